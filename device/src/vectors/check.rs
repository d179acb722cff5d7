//! The check of values.
//!
//! # Algorithm
//!
//! ```text
//! each warp, over its rows:
//!     largest magnitude as bits; a row above the bound is faulty
//!     f32: is each value a whole number from 0 to 255?
//! at the end: one atomic operation per warp and result
//! ```
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `rows` | see [`Strided`] |
//! | `found` | 3 values: see [`Check::found`] |
//!
//! # Speed
//!
//! Each value is read once: bound by memory.

use cuda_std::atomic::Scope;
use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, grid_dim_x};
use cuda_std::{float16, keep_rolled};

use super::{Strided, VECTOR_ROWS, VECTOR_THREADS};
use crate::block::copied;

/// Arguments of the kernels `vectors_check_*`.
#[repr(C)]
pub struct Check<T> {
    /// In: the rows.
    pub rows: Strided<T>,
    /// In and out: the first faulty row, `NO_ID` at first; the bits of the largest magnitude of
    /// the other rows, 0 at first; and 1 if some value is no whole number from 0 to 255, 0 at
    /// first.
    pub found: GlobalMut<u32>,
    /// The largest magnitude of a row without fault, as bits. Infinities and NaNs are above all.
    pub most: u32,
    /// Unused.
    pub padding: u32,
}

copied! {
    Check<T>;
}

/// Whether `x` is a whole number from 0 to 255, and not minus zero.
#[inline(always)]
pub fn is_byte(x: f32) -> bool {
    let bits = x.to_bits();
    // Up to the bits of 255; minus zero and all negative numbers are above.
    bits <= 0x437f_0000 && (x as u32) as f32 == x
}

#[inline(always)]
fn check<T: Plain>(p: &Check<T>, wide: impl Fn(T) -> f32) {
    let (lane, mut first_faulty, mut largest, mut others) = (warp::lane_id(), u32::MAX, 0, 0);
    let mut row = block_idx_x() * VECTOR_ROWS + thread::warp_idx();
    while row < p.rows.count {
        keep_rolled();
        let values = p.rows.row(row);
        let (mut magnitude, mut i) = (0, lane);
        while i < p.rows.dim {
            keep_rolled();
            let value = wide(values.get(i as usize));
            let bits = value.to_bits() & 0x7fff_ffff;
            magnitude = if bits > magnitude { bits } else { magnitude };
            others |= !is_byte(value) as u32;
            i += 32;
        }
        let mut lanes = 16;
        while lanes > 0 {
            let other = warp::shuffle_xor(magnitude, lanes);
            magnitude = if other > magnitude { other } else { magnitude };
            lanes /= 2;
        }
        if magnitude > p.most {
            first_faulty = if row < first_faulty { row } else { first_faulty };
        } else if magnitude > largest {
            largest = magnitude;
        }
        row += grid_dim_x() * VECTOR_ROWS;
    }
    let others = warp::any(others != 0) as u32;
    if lane == 0 {
        p.found.fetch_min(0, first_faulty, Scope::Device);
        p.found.fetch_max(1, largest, Scope::Device);
        p.found.fetch_max(2, others, Scope::Device);
    }
}

/// Checks rows of f32 (see [`Check`]).
///
/// Launch: any grid in x; [`VECTOR_THREADS`] threads.
///
/// # Safety
/// - The views match the fields of [`Check`].
#[kernel(unsafe, block = VECTOR_THREADS)]
pub unsafe fn vectors_check_f32(p: Check<f32>) {
    check(&p, |x| x);
}

/// Checks rows of f16 (see [`Check`]).
///
/// Launch: any grid in x; [`VECTOR_THREADS`] threads.
///
/// # Safety
/// - The views match the fields of [`Check`].
#[kernel(unsafe, block = VECTOR_THREADS)]
pub unsafe fn vectors_check_f16(p: Check<f16>) {
    check(&p, float16::to_f32);
}
