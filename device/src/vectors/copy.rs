//! Copies of rows to another layout.
//!
//! # Algorithm
//!
//! For each row of the result, one warp: copy the values of its row, then zeros.
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `rows` | see [`Strided`] |
//! | `ids` | `count` |
//! | `to` | `count` × `to_stride` |
//!
//! # Speed
//!
//! Bound by memory. Rows of every type are copied as words where all addresses allow it, else as
//! bytes.

use cuda_std::prelude::*;
use cuda_std::thread::block_idx_x;
use cuda_std::{keep_rolled, unroll};

use super::{Strided, VECTOR_ROWS, VECTOR_THREADS};
use crate::block::copied;

/// Arguments of the kernels `vectors_copy_*`.
#[repr(C)]
pub struct CopyRows<T, U> {
    /// In: the rows.
    pub rows: Strided<T>,
    /// In: with `by_ids`, the rows to copy.
    pub ids: Global<u32>,
    /// Out: `count` rows, `to_stride` values apart.
    pub to: GlobalMut<U>,
    /// Values from one row of the result to the next, all of them written.
    pub to_stride: u64,
    /// Rows to copy.
    pub count: u32,
    /// Without `by_ids`, the first row to copy; the others follow it.
    pub first: u32,
    /// Whether `ids` name the rows.
    pub by_ids: u32,
    /// Unused.
    pub padding: u32,
}

copied! {
    CopyRows<T, U>;
}

#[inline(always)]
fn copy<T: Plain, U: Plain + Default>(p: &CopyRows<T, U>, value: impl Fn(Global<T>, usize) -> U) {
    let index = block_idx_x() * VECTOR_ROWS + thread::warp_idx();
    if index >= p.count {
        return;
    }
    let row = if p.by_ids != 0 { p.ids.get(index as usize) } else { p.first + index };
    let (from, to) = (p.rows.row(row), p.to.offset(index as usize * p.to_stride as usize));
    let mut i = warp::lane_id();
    while i < p.to_stride as u32 {
        keep_rolled();
        let value = if i < p.rows.dim { value(from, i as usize) } else { U::default() };
        to.set(i as usize, value);
        i += 32;
    }
}

/// Copies rows of words (see [`CopyRows`]).
///
/// Launch: a block of [`VECTOR_THREADS`] per [`VECTOR_ROWS`] rows to copy.
///
/// # Safety
/// - The views match the fields of [`CopyRows`].
#[kernel(unsafe, block = VECTOR_THREADS)]
pub unsafe fn vectors_copy_words(p: CopyRows<u32, u32>) {
    copy(&p, |row, i| row.get(i));
}

/// Copies rows of bytes (see [`CopyRows`]).
///
/// Launch: a block of [`VECTOR_THREADS`] per [`VECTOR_ROWS`] rows to copy.
///
/// # Safety
/// - The views match the fields of [`CopyRows`].
#[kernel(unsafe, block = VECTOR_THREADS)]
pub unsafe fn vectors_copy_bytes(p: CopyRows<u8, u8>) {
    copy(&p, |row, i| row.get(i));
}

/// Converts rows of f32 whose values are whole numbers from 0 to 255 to bytes (see [`CopyRows`]).
///
/// Launch: a block of [`VECTOR_THREADS`] per [`VECTOR_ROWS`] rows to copy.
///
/// # Safety
/// - The views match the fields of [`CopyRows`].
#[kernel(unsafe, block = VECTOR_THREADS)]
pub unsafe fn vectors_copy_narrowed(p: CopyRows<f32, u8>) {
    copy(&p, |row, i| row.get(i) as u32 as u8);
}

/// Packs rows of zeros and ones, in bytes, to words of 32 bits, the first value in the least bit
/// (see [`CopyRows`]).
///
/// Launch: a block of [`VECTOR_THREADS`] per [`VECTOR_ROWS`] rows to copy.
///
/// # Safety
/// - The views match the fields of [`CopyRows`], but `dim` counts words. Rows begin at multiples of
///   16 bytes, with zeros after them up to the next multiple.
#[kernel(unsafe, block = VECTOR_THREADS)]
pub unsafe fn vectors_copy_packed(p: CopyRows<u8, u32>) {
    // The lowest bits of the four bytes of `word`, in their order.
    let bits = |word: u32| word.wrapping_mul(0x0102_0408) >> 24 & 0xf;
    copy(&p, |row, i| {
        let first = 32 * i;
        let mut packed = 0;
        unroll!(2, Q => {
            if first + 16 * Q < p.rows.stride as usize {
                let quad = row.get_quad(first + 16 * Q);
                unroll!(4, W => packed |= bits(quad.0[W]) << (16 * Q + 4 * W));
            }
        });
        packed
    });
}

/// Widens rows of `dim` bits, the least of a byte first, to bytes (see [`CopyRows`]).
///
/// Launch: a block of [`VECTOR_THREADS`] per [`VECTOR_ROWS`] rows to copy.
///
/// # Safety
/// - The views match the fields of [`CopyRows`], but a row has a byte for eight values.
#[kernel(unsafe, block = VECTOR_THREADS)]
pub unsafe fn vectors_copy_bits(p: CopyRows<u8, u8>) {
    copy(&p, |row, i| row.get(i / 8) >> (i % 8) & 1);
}
