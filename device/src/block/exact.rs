//! Exact distances: the sums of the CPU backend, bit for bit.

use cuda_std::prelude::*;

use super::element::{Element, GROUP, Wide};

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

/// A point in shared memory, to which each group of four lanes computes the distance of a row.
#[derive(Clone, Copy)]
pub struct Point<T: Element> {
    values: Shared<T::Point>,
    norm: T::Wide,
    dim: u32,
}

/// Bytes of shared memory of a point of `dim` components, whatever they are.
pub const fn point_bytes(dim: u32) -> u32 {
    dim.next_multiple_of(16) * 4
}

impl<T: Element> Point<T> {
    /// Puts the `dim` components of `row` in shared memory, which begins at a multiple of 16 bytes and has
    /// [`point_bytes`]. The `threads` threads of a block call this; a barrier follows.
    #[inline(always)]
    pub fn load(values: Shared<T::Point>, row: Global<T>, dim: u32, (thread, threads): (u32, u32)) {
        let mut i = thread;
        while i < dim.next_multiple_of(T::PIECE) {
            values.set(i as usize, if i < dim { row.get(i as usize) } else { T::default() }.point());
            i += threads;
        }
    }

    /// The point that was loaded, as the calling lane sees it.
    #[inline(always)]
    pub fn new(values: Shared<T::Point>, dim: u32) -> Self {
        Self { values, norm: T::norm_of_part(values, warp::lane_id() % GROUP, dim), dim }
    }

    /// The distance of `row` for each group of [`GROUP`] lanes by itself; every lane of the group has it. The row
    /// begins at a multiple of 16 bytes, with zeros behind it up to the next. A group that has no row passes
    /// None; the whole warp calls this.
    ///
    /// These are the sums of the CPU backend, in its order.
    #[inline(always)]
    pub fn distance(&self, metric: Metric, row: Option<Global<T>>) -> f32 {
        // SAFETY: of no components, none is read.
        let none = || unsafe { Global::new(0) };
        let dim = if row.is_some() { self.dim } else { 0 };
        self.sums(metric, [row.unwrap_or_else(none)], dim)[0]
    }

    /// As [`distance`](Self::distance), of `N` rows that each group has, whose loads are under way at once.
    #[inline(always)]
    pub fn distances<const N: usize>(&self, metric: Metric, rows: [Global<T>; N]) -> [f32; N] {
        self.sums(metric, rows, self.dim)
    }

    #[inline(always)]
    fn sums<const N: usize>(&self, metric: Metric, rows: [Global<T>; N], dim: u32) -> [f32; N] {
        let part = warp::lane_id() % GROUP;
        T::sums_of_group(metric, (self.values, self.norm), rows, part, dim).map(|sum| {
            let sum = sum.to_f32();
            match metric {
                Metric::L2 => sum,
                Metric::InnerProduct => -sum,
                Metric::Cosine => 0.5 * sum,
            }
        })
    }
}
