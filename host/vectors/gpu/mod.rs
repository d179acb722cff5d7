//! Vectors on a GPU, in full precision and in the form of tiles.

mod base;
mod element;
mod lent;
pub(super) mod memory;
mod origin;
mod places;
mod results;
mod rounding;
mod rows_at;
mod side;
mod start;

use rayon::prelude::*;
use tagore_device::block::exact;

pub(crate) use base::{Base, DeviceBase, with_base};
pub(crate) use element::{OnDevice, stage_kernels};
pub(crate) use lent::Lent;
#[cfg(test)]
pub(crate) use lent::NormKernels;
pub use memory::DeviceMemory;
pub(crate) use origin::{AnyOrigin, Origin, narrowed, with_origin};
pub(crate) use places::{Order, spare_bytes};
pub use results::DeviceResults;
pub(crate) use rounding::Rounding;
pub(crate) use rows_at::{Pick, RowsAt};
pub(crate) use side::{Preparation, QUERIES, ROWS, Side, TileRows, TileVectors};
pub use start::start_seconds;

use super::Matrix;
use super::shape::{byte, sums_are_exact};
use crate::Metric;
use crate::memory::zeros;
use crate::parallel::FEW_BYTES;

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
    let mut bytes: Vec<u8> = zeros(count * dim);
    let convert = |(row, to): (usize, &mut [u8])| {
        rows.row(row).iter().zip(to).all(|(&x, to)| byte(x).inspect(|&byte| *to = byte).is_some())
    };
    let are_bytes = if bytes.len() <= FEW_BYTES {
        bytes.chunks_exact_mut(dim).enumerate().all(convert)
    } else {
        bytes.par_chunks_exact_mut(dim).enumerate().with_min_len(1024).all(convert)
    };
    are_bytes.then_some(bytes)
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
