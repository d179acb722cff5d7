//! Vectors on a GPU, in full precision and in the form of tiles.

mod base;
mod element;
mod lent;
pub(super) mod memory;
mod origin;
mod results;
mod rounding;
mod rows_at;
mod side;
mod start;

use rayon::prelude::*;
use tagore_device::block::exact;

pub(crate) use base::{Base, DeviceBase, with_base};
pub(crate) use element::{OnDevice, stage_kernels};
#[cfg(test)]
pub(crate) use lent::NormKernels;
pub(crate) use lent::{Checking, Lent};
pub use memory::DeviceMemory;
pub(crate) use origin::{AnyOrigin, Origin, narrowed, with_origin};
pub use results::DeviceResults;
pub(crate) use rounding::Rounding;
pub(crate) use rows_at::{Pick, RowsAt};
pub(crate) use side::{Preparation, QUERIES, ROWS, Side, TileRows, TileVectors};
pub use start::start_seconds;

use super::shape::{byte, sums_are_exact};
use super::{Bits, Matrix};
use crate::Metric;
use crate::memory::zeros;

/// Components from one vector of `dim` components to the next: rows begin at multiples of 16 bytes.
pub(crate) fn stride<T: OnDevice>(dim: usize) -> usize {
    dim.next_multiple_of(16 / size_of::<T>())
}

/// Converts f32 vectors of whole numbers from 0 to 255 to bytes, `dim` per row. Their distances
/// have the same bits, in a quarter of the memory. None for other values, or if f32 rounds sums of
/// `dim` terms.
fn as_bytes(rows: Matrix<'_, f32>, count: usize) -> Option<Vec<u8>> {
    let dim = rows.dim();
    if !sums_are_exact(dim) {
        return None;
    }
    let mut bytes = vec![0; count * dim];
    let convert = |(row, to): (usize, &mut [u8])| {
        rows.row(row).iter().zip(to).all(|(&x, to)| byte(x).inspect(|&byte| *to = byte).is_some())
    };
    bytes.par_chunks_exact_mut(dim).enumerate().with_min_len(1024).all(convert).then_some(bytes)
}

/// A byte of 0 or 1 for each of `dim` bits of `count` rows.
fn spread(rows: Matrix<'_, Bits>, count: usize, dim: usize) -> Vec<u8> {
    let mut bytes = zeros(count * dim);
    let to = bytes.par_chunks_exact_mut(dim).enumerate().with_min_len(1024);
    to.for_each(|(row, to)| {
        to.iter_mut().zip(Bits::ones(rows.row(row))).for_each(|(to, bit)| *to = bit);
    });
    bytes
}

/// Evaluates `$body` with the matrix of rows that [`wide`](super::shape::wide) has prepared for a
/// device.
macro_rules! with_wide_matrix {
    ($rows:expr, $matrix:ident => $body:expr) => {
        match $rows {
            $crate::vectors::TypedRows::F32($matrix) => $body,
            $crate::vectors::TypedRows::F16($matrix) => $body,
            $crate::vectors::TypedRows::Bf16(_) => unreachable!("bf16 is widened before it goes to a device"),
            $crate::vectors::TypedRows::U8($matrix) => $body,
            $crate::vectors::TypedRows::I8($matrix) => $body,
            $crate::vectors::TypedRows::B1(_) => unreachable!("bits are bytes on a device"),
        }
    };
}
pub(crate) use with_wide_matrix;

/// The number of a metric that kernels take.
pub(crate) fn metric_number(metric: Metric) -> u32 {
    match metric {
        Metric::L2 => exact::Metric::L2 as u32,
        Metric::InnerProduct => exact::Metric::InnerProduct as u32,
        Metric::Cosine => exact::Metric::Cosine as u32,
    }
}
