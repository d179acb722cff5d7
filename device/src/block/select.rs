//! Selection of the smallest values of a row by a warp, without a sort.
//!
//! ```text
//! low, high = values with fewer than k values up to low, and more than most up to high
//! until k to most values are at most `guess`:
//!     guess = a value between low and high
//!     move low or high to it
//! ```
//!
//! The first guesses interpolate between the counts at both ends, since the distances of a cell
//! grow evenly: three or four guesses are enough for 96 to 128 of 550 distances. Later guesses
//! halve the range. Bound by shared memory: a guess reads the row once.

use cuda_std::keep_rolled;
use cuda_std::prelude::*;
use cuda_std::warp::{FULL, WarpReductionOp, warp_reduce};

use crate::key;

/// The value of a place without one: above all others.
pub const NO_VALUE: u32 = u32::MAX;

/// A row's length in shared memory is a multiple of this: four values of each lane.
pub const ROW_STEP: u32 = 128;

/// Guesses that interpolate, and guesses until the range is halved bit by bit.
const INTERPOLATED: u32 = 4;
const OF_DISTANCES: u32 = 8;

/// The least and the greatest value of a row, and the number of values.
#[derive(Clone, Copy)]
pub struct Present {
    /// The least value; [`NO_VALUE`] without values.
    pub least: u32,
    /// The greatest value; 0 without values.
    pub greatest: u32,
    /// The number of values.
    pub count: u32,
}

impl Present {
    /// No values.
    pub const NONE: Self = Self { least: NO_VALUE, greatest: 0, count: 0 };

    /// These values and one more, unless it is [`NO_VALUE`].
    #[inline(always)]
    pub fn with(self, value: u32) -> Self {
        if value == NO_VALUE {
            return self;
        }
        Self {
            least: if value < self.least { value } else { self.least },
            greatest: if value > self.greatest { value } else { self.greatest },
            count: self.count + 1,
        }
    }

    /// The values of all lanes together. The whole warp calls this.
    #[inline(always)]
    pub fn of_warp(self) -> Self {
        // SAFETY: the whole warp reaches this.
        unsafe {
            Self {
                least: warp_reduce(FULL, self.least, WarpReductionOp::Min),
                greatest: warp_reduce(FULL, self.greatest, WarpReductionOp::Max),
                count: warp_reduce(FULL, self.count, WarpReductionOp::Add),
            }
        }
    }
}

/// All values that equal a threshold.
pub const ALL_TIES: u32 = u32::MAX;

/// The selected values: every value below `threshold`, and the first `ties` values equal to it.
#[derive(Clone, Copy)]
pub struct Selection {
    /// The greatest selected value.
    pub threshold: u32,
    /// Selected values that equal it, in the order of places, or [`ALL_TIES`].
    pub ties: u32,
}

/// The values of a row up to `value`, over all lanes. The whole warp calls this.
#[inline(always)]
fn count_up_to(row: Shared<u32>, len: u32, value: u32) -> u32 {
    let mut count = 0;
    let mut i = 4 * warp::lane_id();
    while i < len {
        keep_rolled();
        let four = row.get_quad(i as usize).0;
        unroll!(4, I => count += (four[I] <= value) as u32);
        i += ROW_STEP;
    }
    // SAFETY: the whole warp reaches this.
    unsafe { warp_reduce(FULL, count, WarpReductionOp::Add) }
}

/// A guess at the value up to which there are `share` of the values from `low` to `high`, both
/// [ordered](key::ordered) distances; strictly between them.
#[inline(always)]
fn between(low: u32, high: u32, share: f32) -> u32 {
    let (a, b) = (key::from_ordered(low), key::from_ordered(high));
    let guess = key::ordered(a + (b - a) * share);
    if guess <= low {
        low + 1
    } else if guess >= high {
        high - 1
    } else {
        guess
    }
}

/// Selects at least `k` and at most `most` values of a row, the smallest ones; all, if there are at
/// most `most`.
///
/// The row has `len` places, a multiple of [`ROW_STEP`], of [ordered](key::ordered) distances and
/// [`NO_VALUE`]; `present` describes it. `k` is at least 1 and below `most`. Of equal values any
/// may be selected. The whole warp calls this, after a barrier of its own.
#[inline(always)]
pub fn select_smallest(row: Shared<u32>, len: u32, present: Present, k: u32, most: u32) -> Selection {
    let (mut low, mut high) = (present.least.saturating_sub(1), present.greatest);
    if present.count <= most {
        return Selection { threshold: high, ties: ALL_TIES };
    }
    let (mut below, mut up_to) = (0, present.count);
    let middle = (k + most) as f32 * 0.5;
    let mut guesses = 0;
    while high - low > 1 {
        keep_rolled();
        let guess = if guesses < INTERPOLATED {
            between(low, high, (middle - below as f32) / (up_to - below) as f32)
        } else if guesses < OF_DISTANCES {
            between(low, high, 0.5)
        } else {
            low + (high - low) / 2
        };
        let count = count_up_to(row, len, guess);
        if count < k {
            (low, below) = (guess, count);
        } else {
            (high, up_to) = (guess, count);
            if count <= most {
                return Selection { threshold: high, ties: ALL_TIES };
            }
        }
        guesses += 1;
    }
    // Fewer than `k` values are below `high`, and more than `most` up to it.
    Selection { threshold: high, ties: most - below }
}
