//! Hashes of rows, to find equal ones.
//!
//! # Algorithm
//!
//! For each row, one warp: add up a mix of each value with its place. Rows of equal values have
//! equal hashes, whatever the signs of their zeros. The host compares rows of equal hashes.
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `rows` | see [`Strided`] |
//! | `hashes` | `count` |
//!
//! # Speed
//!
//! Each value is read once: bound by memory. Rows are read as words where all addresses allow it,
//! else as bytes.

use cuda_std::keep_rolled;
use cuda_std::prelude::*;
use cuda_std::thread::block_idx_x;

use super::{Strided, VECTOR_ROWS, VECTOR_THREADS};

/// The finaliser of SplitMix64.
#[inline(always)]
const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// The part of a row's hash that value `value` at `place` adds.
#[inline(always)]
pub const fn term(place: u32, value: u32) -> u64 {
    mix((place as u64) << 32 | value as u64)
}

/// The magnitudes, as bits without a sign, below which values count as zero: equal rows may have
/// zeros of either sign, and values whose squares vanish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Least {
    /// Of values of 32 bits; 0 if values are shorter.
    pub word: u32,
    /// Of values of 16 bits; 0 if values are longer, or integers.
    pub half: u32,
}

impl Least {
    /// `word`, of one value or several, with 0 for each value that counts as zero.
    #[inline(always)]
    pub const fn apply(self, word: u32) -> u32 {
        if word & 0x7fff_ffff < self.word {
            return 0;
        }
        let upper = if (word >> 16) & 0x7fff < self.half { 0 } else { word & 0xffff_0000 };
        let lower = if word & 0x7fff < self.half { 0 } else { word & 0xffff };
        upper | lower
    }
}

#[inline(always)]
fn hash<T: Plain>(rows: &Strided<T>, hashes: GlobalMut<u64>, word: impl Fn(T) -> u32) {
    let row = block_idx_x() * VECTOR_ROWS + thread::warp_idx();
    if row >= rows.count {
        return;
    }
    let values = rows.row(row);
    let (mut sum, mut i) = (0u64, warp::lane_id());
    while i < rows.dim {
        keep_rolled();
        sum = sum.wrapping_add(term(i, word(values.get(i as usize))));
        i += 32;
    }
    let mut lanes = 16;
    while lanes > 0 {
        sum = sum.wrapping_add(warp::shuffle_xor(sum, lanes));
        lanes /= 2;
    }
    if warp::lane_id() == 0 {
        hashes.set(row as usize, sum);
    }
}

/// Hashes rows of words, by value.
///
/// Launch: a block of [`VECTOR_THREADS`] per [`VECTOR_ROWS`] rows. `hashes` holds a value per row.
///
/// # Safety
/// - `hashes` has the shape above, and `rows` matches [`Strided`].
#[kernel(unsafe, block = VECTOR_THREADS)]
pub unsafe fn vectors_hash_words(rows: Strided<u32>, hashes: GlobalMut<u64>, least: Least) {
    hash(&rows, hashes, |x| least.apply(x));
}

/// Hashes rows of bytes: integers, or floats of 16 bits whose rows begin at odd words.
///
/// Launch: a block of [`VECTOR_THREADS`] per [`VECTOR_ROWS`] rows. `hashes` holds a value per row.
///
/// # Safety
/// - `hashes` has the shape above, and `rows` matches [`Strided`].
#[kernel(unsafe, block = VECTOR_THREADS)]
pub unsafe fn vectors_hash_bytes(rows: Strided<u8>, hashes: GlobalMut<u64>, least: Least) {
    // The last byte of -0.0. Rows of equal hashes are compared.
    hash(&rows, hashes, |x| if least.half > 0 && x == 0x80 { 0 } else { x as u32 });
}
