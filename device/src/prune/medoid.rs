//! The medoid: the row nearest to the mean of all rows, in f64, bit for bit as the CPU backend.
//!
//! # Algorithm
//!
//! ```text
//! medoid_sums:    for each component and each 4,096 rows, one thread: add the values up in order
//! host:           add the sums up in order; divide by the number of rows
//! medoid_nearest: for each row, one thread: squared distance to the mean, component by component
//!                 each warp: its least distance and row; the host takes the least of all
//! ```
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `rows` | `count` vectors, see [`Rows`] |
//! | `sums` | blocks of 4,096 rows × dim |
//! | `mean` | dim |
//! | `distances`, `nearest` | one per warp |
//!
//! # Optimisations
//!
//! 1. Sums of 4,096 rows run in parallel. The CPU adds the same pieces up in the same order, so the
//!    result has its bits.
//! 2. Eight rows are loaded before the first is added: the order of additions is fixed, that of
//!    loads is not.
//! 3. Distances are not negative, so their bits sort as they do and a warp compares integers.
//!
//! # Speed
//!
//! Each value is read once per kernel: bound by memory.

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, block_idx_y, grid_dim_x, index_1d};

use crate::block::copied;
use crate::block::element::{Element, Wide};
use crate::block::rows::Rows;
use crate::key::NO_ID;

/// Threads per block.
pub const MEDOID_THREADS: u32 = 128;

/// Rows per sum.
pub const SUM_ROWS: u32 = 4096;

/// Arguments of the kernels `medoid_nearest_*`.
#[repr(C)]
pub struct Nearest<T> {
    /// In: the rows, with their lifts if there are any.
    pub rows: Rows<T>,
    /// In: the mean per component.
    pub mean: Global<f64>,
    /// Out: per warp the bits of the least squared distance.
    pub distances: GlobalMut<u64>,
    /// Out: per warp the row at that distance, the smallest of several; `NO_ID` for no row.
    pub nearest: GlobalMut<u32>,
    /// The mean of the lifts.
    pub lift_mean: f64,
    /// Number of rows.
    pub count: u32,
    /// Unused.
    pub padding: u32,
}

copied! {
    Nearest<T>;
}

#[inline(always)]
fn component<T: Element>(value: T) -> f64 {
    value.wide().to_f32() as f64
}

#[inline(always)]
fn sums<T: Element>(rows: Rows<T>, sums: GlobalMut<f64>, count: u32) {
    let i = block_idx_y() * MEDOID_THREADS + thread::thread_idx_x();
    if i >= rows.dim {
        return;
    }
    let first = block_idx_x() * SUM_ROWS;
    let end = if count - first < SUM_ROWS { count } else { first + SUM_ROWS };
    let mut sum = 0f64;
    let mut row = first;
    while row + 8 <= end {
        let mut values = [0f64; 8];
        unroll!(8, I => values[I] = component(rows.row(row + I as u32).get(i as usize)));
        unroll!(8, I => sum += values[I]);
        row += 8;
    }
    while row < end {
        sum += component(rows.row(row).get(i as usize));
        row += 1;
    }
    sums.set(block_idx_x() as usize * rows.dim as usize + i as usize, sum);
}

#[inline(always)]
fn nearest<T: Element>(p: &Nearest<T>) {
    let (mut least, mut nearest) = (u64::MAX, NO_ID);
    let mut row = index_1d();
    while row < p.count {
        let values = p.rows.row(row);
        let mut distance = 0f64;
        let mut i = 0;
        while i < p.rows.dim {
            let difference = component(values.get(i as usize)) - p.mean.get(i as usize);
            distance += difference * difference;
            i += 1;
        }
        if p.rows.lifted != 0 {
            let difference = p.rows.lifts.get(row as usize) as f64 - p.lift_mean;
            distance += difference * difference;
        }
        // Rows come in ascending order, so the first of equals is the smallest.
        if distance.to_bits() < least {
            (least, nearest) = (distance.to_bits(), row);
        }
        row += grid_dim_x() * MEDOID_THREADS;
    }
    let mut lanes = 16;
    while lanes > 0 {
        let (other, of_other) = (warp::shuffle_xor(least, lanes), warp::shuffle_xor(nearest, lanes));
        if other < least || other == least && of_other < nearest {
            (least, nearest) = (other, of_other);
        }
        lanes /= 2;
    }
    if warp::lane_id() == 0 {
        let warp = index_1d() as usize / 32;
        p.distances.set(warp, least);
        p.nearest.set(warp, nearest);
    }
}

macro_rules! medoid_kernels {
    ($($sums:ident $nearest:ident $type:ty;)*) => {$(
        /// Adds up each component of every [`SUM_ROWS`] of `count` rows, in order (see the module).
        ///
        /// Launch: grid x: a block per [`SUM_ROWS`] rows; grid y: per [`MEDOID_THREADS`]
        /// components. `sums` holds `dim` values per block in x.
        ///
        /// # Safety
        /// - `sums` has the shape above, and `rows` matches [`Rows`].
        #[kernel(unsafe, block = MEDOID_THREADS)]
        pub unsafe fn $sums(rows: Rows<$type>, sums: GlobalMut<f64>, count: u32) {
            self::sums(rows, sums, count);
        }

        /// Finds the row nearest to the mean among the rows of each warp (see [`Nearest`]).
        ///
        /// Launch: any grid in x; [`MEDOID_THREADS`] threads.
        ///
        /// # Safety
        /// - The views match the fields of [`Nearest`].
        #[kernel(unsafe, block = MEDOID_THREADS)]
        pub unsafe fn $nearest(p: Nearest<$type>) {
            nearest(&p);
        }
    )*};
}

medoid_kernels! {
    medoid_sums_f32 medoid_nearest_f32 f32;
    medoid_sums_f16 medoid_nearest_f16 f16;
    medoid_sums_u8 medoid_nearest_u8 u8;
    medoid_sums_i8 medoid_nearest_i8 i8;
}
