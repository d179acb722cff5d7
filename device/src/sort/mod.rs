//! Stable radix sort of keys in global memory, by a range of their bits.
//!
//! ```text
//! for each digit of up to 8 bits, from the lowest on:
//!     counts[digit][block] = keys of the block with the digit       // sort_count
//!     counts[digit][block] = keys of earlier blocks with the digit  // sort_scan; totals
//!     each key goes to (smaller digits) + counts + (rank in block)  // sort_scatter
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | `keys`, `sorted` | `count` |
//! | `counts` | 256 digits x `blocks` |
//! | `totals` | 256 |
//!
//! A key's place depends on the earlier keys alone, so equal digits keep their order, and the
//! result does not depend on the order of threads. Stable sorts by several values, the least
//! important first, give an order by all of them.
//!
//! Bound by memory: a pass reads the keys twice and writes them once, 24 bytes per key.

mod count;
mod scan;
mod scatter;

use cuda_std::prelude::*;

pub use count::*;
pub use scan::*;
pub use scatter::*;

/// Bits of a digit, at most.
pub const DIGIT_BITS: u32 = 8;

/// Number of digits, at most.
pub const DIGITS: u32 = 1 << DIGIT_BITS;

/// Threads of a block that counts or moves keys.
pub const SORT_THREADS: u32 = 512;

/// Keys per thread.
const KEYS_PER_THREAD: u32 = 8;

/// Keys per block.
pub const SORT_KEYS: u32 = SORT_THREADS * KEYS_PER_THREAD;

/// One pass of the sort.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Pass {
    /// In: `count` keys.
    pub keys: Global<u64>,
    /// Out: the keys by digit, equal digits in the order of `keys`.
    pub sorted: GlobalMut<u64>,
    /// Between the launches: [`DIGITS`] x `blocks`. [`sort_count()`] leaves the block's keys with
    /// the digit, [`sort_scan()`] the keys of earlier blocks.
    pub counts: GlobalMut<u32>,
    /// Between the launches: the number of keys with each digit.
    pub totals: GlobalMut<u32>,
    /// Number of keys, at least 1.
    pub count: u32,
    /// Blocks of [`SORT_KEYS`] keys.
    pub blocks: u32,
    /// The lowest bit of the digit.
    pub shift: u32,
    /// The mask of a digit, shifted down: at most [`DIGITS`] - 1.
    pub mask: u32,
}

impl Pass {
    /// The digit of a key.
    #[inline(always)]
    fn digit(&self, key: u64) -> u32 {
        (key >> self.shift) as u32 & self.mask
    }
}
