//! Exact distances: the sums of the CPU backend, bit for bit.
//!
//! ```text
//! query = a row in shared memory
//! each group of four lanes: 16 partial sums over the components of its row, added as a fixed tree
//! ```
//!
//! Eight rows per warp at a time. Four loads per row and lane are under way before the first is
//! used, two of a row's rest and of bytes. Bound by memory: each row is read once.

use cuda_std::prelude::*;

use super::element::{Element, GROUP, Wide};
use super::threads::Threads;

/// A metric, with its number in kernels' arguments.
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
    /// The metric of a number.
    #[inline(always)]
    pub const fn from_u32(value: u32) -> Self {
        match value {
            0 => Self::L2,
            1 => Self::InnerProduct,
            _ => Self::Cosine,
        }
    }
}

/// A query in shared memory. Each group of four lanes computes its distance from a row.
#[derive(Clone, Copy)]
pub struct ExactQuery<T: Element> {
    values: Shared<T::Query>,
    norm: T::Wide,
    dim: u32,
}

/// Bytes of shared memory of a query of `dim` components of any type.
pub const fn query_bytes(dim: u32) -> u32 {
    dim.next_multiple_of(16) * 4
}

impl<T: Element> ExactQuery<T> {
    /// Copies the `dim` components of `row` to shared memory, which begins at a multiple of 16
    /// bytes and has [`query_bytes`]. All of `threads` call this; the caller adds a barrier.
    #[inline(always)]
    pub fn load(values: Shared<T::Query>, row: Global<T>, dim: u32, threads: Threads) {
        let mut i = threads.index;
        while i < dim.next_multiple_of(T::PIECE) {
            values.set(i as usize, if i < dim { row.get(i as usize) } else { T::default() }.query());
            i += threads.count;
        }
    }

    /// The loaded query, for the calling lane.
    #[inline(always)]
    pub fn new(values: Shared<T::Query>, dim: u32) -> Self {
        Self { values, norm: T::norm_of_part(values, warp::lane_id() % GROUP, dim), dim }
    }

    /// The distance of `row`, one row per group of [`GROUP`] lanes, in every lane of the group. The
    /// row begins at a multiple of 16 bytes, with zeros after it up to the next multiple. A group
    /// without a row passes None. The whole warp calls this.
    #[inline(always)]
    pub fn distance(&self, metric: Metric, row: Option<Global<T>>) -> f32 {
        // SAFETY: with no components, nothing is read.
        let none = || unsafe { Global::new(0) };
        let dim = if row.is_some() { self.dim } else { 0 };
        self.sums::<1, 4>(metric, [row.unwrap_or_else(none)], dim)[0]
    }

    /// The [distances](Self::distance) of `N` rows per group. `LOADS` loads of each row are under
    /// way at once, see [`Element::sums_of_group`].
    #[inline(always)]
    pub fn distances<const N: usize, const LOADS: usize>(
        &self,
        metric: Metric,
        rows: [Global<T>; N],
    ) -> [f32; N] {
        self.sums::<N, LOADS>(metric, rows, self.dim)
    }

    #[inline(always)]
    fn sums<const N: usize, const LOADS: usize>(
        &self,
        metric: Metric,
        rows: [Global<T>; N],
        dim: u32,
    ) -> [f32; N] {
        let part = warp::lane_id() % GROUP;
        T::sums_of_group::<N, LOADS>(metric, self.values, self.norm, rows, part, dim).map(|sum| {
            let sum = sum.to_f32();
            match metric {
                Metric::L2 => sum,
                Metric::InnerProduct => -sum,
                Metric::Cosine => 0.5 * sum,
            }
        })
    }
}
