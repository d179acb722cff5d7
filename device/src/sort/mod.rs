//! A stable sort of keys in global memory, by the digits of a range of their bits, from the lowest on.
//!
//! A pass sorts by one digit of up to 8 bits, in three launches: [`sort_count()`] counts the digits of each
//! block of keys, [`sort_scan()`] turns the counts into places, and [`sort_scatter()`] moves the keys. Inside
//! a block, a key's place depends on the keys before it alone, so that equal digits keep their order and a
//! result does not depend on the order of threads.

mod count;
mod scan;
mod scatter;

use cuda_std::prelude::*;

pub use count::*;
pub use scan::*;
pub use scatter::*;

/// Bits of a digit, at most.
pub const DIGIT_BITS: u32 = 8;

/// Values of a digit, at most.
pub const DIGITS: u32 = 1 << DIGIT_BITS;

/// Threads of a block that counts or moves keys.
pub const SORT_THREADS: u32 = 512;

/// Keys of each thread.
const KEYS_PER_THREAD: u32 = 8;

/// Keys that a block counts or moves.
pub const SORT_KEYS: u32 = SORT_THREADS * KEYS_PER_THREAD;

/// One pass of the sort.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Pass {
    /// In: `count` keys.
    pub keys: Global<u64>,
    /// Out: the keys in the order of their digits, equal digits in the order of `keys`.
    pub sorted: GlobalMut<u64>,
    /// Between the launches: for each of [`DIGITS`] digits a value of each block; of [`sort_count()`] how many
    /// keys of the block have the digit, of [`sort_scan()`] how many keys of the blocks before it.
    pub counts: GlobalMut<u32>,
    /// Between the launches: of each digit, how many keys have it.
    pub totals: GlobalMut<u32>,
    /// How many keys, at least 1.
    pub count: u32,
    /// Blocks of [`SORT_KEYS`] keys.
    pub blocks: u32,
    /// The lowest bit of the digit.
    pub shift: u32,
    /// The bits of a digit, from its lowest bit on: at most [`DIGITS`] - 1.
    pub mask: u32,
}

impl Pass {
    /// The digit of a key.
    #[inline(always)]
    fn digit(&self, key: u64) -> u32 {
        (key >> self.shift) as u32 & self.mask
    }
}
