//! Exact distances: the sums of the CPU backend, bit for bit.

use cuda_std::prelude::*;

use super::element::{Element, Wide};

/// How near two vectors are; the values are those that kernels take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Metric {
    /// Squared L2 distance.
    L2 = 0,
    /// Inner product: the distance is −⟨x, y⟩.
    InnerProduct = 1,
    /// Half the squared L2 distance of unit vectors: 1 − cos.
    Cosine = 2,
}

impl Metric {
    /// The metric of a kernel's argument.
    #[inline(always)]
    pub const fn from_u32(value: u32) -> Self {
        match value {
            0 => Self::L2,
            1 => Self::InnerProduct,
            _ => Self::Cosine,
        }
    }
}

/// The distance from a point in shared memory to `row`, both of `dim` components, for each half of the warp
/// by itself; every lane of the half has it. A lane of a half that has no row passes `dim` 0; the whole warp
/// calls this.
///
/// The sixteen sums of a half are added as a tree: the order of the CPU backend.
#[inline(always)]
pub fn distance<T: Element>(metric: Metric, point: Shared<T::Point>, row: Global<T>, dim: u32) -> f32 {
    let sum = T::sum_of_lane(metric, point, row, warp::lane_id() % 16, dim);
    let sum = sum.sum_of_half_warp().to_f32();
    match metric {
        Metric::L2 => sum,
        Metric::InnerProduct => -sum,
        Metric::Cosine => 0.5 * sum,
    }
}

/// Puts the `dim` components of `row` in shared memory for [`distance`], with zeros up to a multiple of 4; the
/// `threads` threads of the block call this, and a barrier follows.
#[inline(always)]
pub fn load_point<T: Element>(
    point: Shared<T::Point>,
    row: Global<T>,
    dim: u32,
    (thread, threads): (u32, u32),
) {
    let mut i = thread;
    while i < dim.next_multiple_of(4) {
        point.set(i as usize, if i < dim { row.get(i as usize) } else { T::default() }.point());
        i += threads;
    }
}
