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

/// The distance from a point, its `dim` components wide in shared memory, to `row`, for each half of
/// the warp by itself; every lane of the half has it. A lane of a half that has no row passes
/// `dim` 0; the whole warp calls this.
///
/// Lane `l` of a half adds up the components `l, l + 16, ...` in this order, and the sixteen sums are
/// added as a tree: the order of the CPU backend.
#[inline(always)]
pub fn distance<T: Element>(metric: Metric, point: Shared<T::Wide>, row: Global<T>, dim: u32) -> f32 {
    let lane = warp::lane_id() % 16;
    let term = |sum, i: u32, x: T| {
        let y = point.get(i as usize);
        match metric {
            Metric::InnerProduct => T::Wide::add_product(sum, y, x.wide()),
            Metric::L2 | Metric::Cosine => T::Wide::add_square(sum, y, x.wide()),
        }
    };
    let mut sum = T::Wide::ZERO;
    let mut i = lane;
    // Four loads are under way before the first is used.
    while i + 48 < dim {
        let first = row.get(i as usize);
        let second = row.get(i as usize + 16);
        let third = row.get(i as usize + 32);
        let fourth = row.get(i as usize + 48);
        sum = term(sum, i, first);
        sum = term(sum, i + 16, second);
        sum = term(sum, i + 32, third);
        sum = term(sum, i + 48, fourth);
        i += 64;
    }
    while i < dim {
        sum = term(sum, i, row.get(i as usize));
        i += 16;
    }
    let sum = sum.sum_of_half_warp().to_f32();
    match metric {
        Metric::L2 => sum,
        Metric::InnerProduct => -sum,
        Metric::Cosine => 0.5 * sum,
    }
}
