//! Vectors on a GPU, in full precision and in the form of tiles.

mod base;
mod element;
mod lent;
pub(super) mod memory;
mod origin;
mod places;
mod replica;
mod results;
mod rounding;
mod rows_at;
mod side;
mod start;
mod typed;

use tagore_device::block::exact;

pub(crate) use base::{Base, DeviceBase};
pub(crate) use element::{ByChunks, OnDevice, kernels_of_types, stage_kernels, tile_kernels};
pub(crate) use lent::{Lent, NormKernels};
pub use memory::DeviceMemory;
pub(crate) use origin::{AnyOrigin, Origin, bits_plan, narrowed};
pub(crate) use places::{Order, spare_bytes};
pub(crate) use replica::Replicas;
pub use results::DeviceResults;
pub(crate) use rounding::Rounding;
pub(crate) use rows_at::{Pick, RowsAt};
pub(crate) use side::{Preparation, QUERIES, ROWS, Role, Side, TileRows, TileVectors};
pub use start::start_seconds;
pub(crate) use typed::{Family, Typed, with_typed};

use crate::Metric;

/// Components from one vector of `dim` components to the next: rows begin at multiples of 16 bytes.
pub(crate) fn stride<T: OnDevice>(dim: usize) -> usize {
    dim.next_multiple_of(16 / size_of::<T>())
}

/// The number of a metric that kernels take.
pub(crate) fn metric_number(metric: Metric) -> u32 {
    match metric {
        Metric::L2 => exact::Metric::L2 as u32,
        Metric::InnerProduct => exact::Metric::InnerProduct as u32,
        Metric::Cosine => exact::Metric::Cosine as u32,
    }
}
