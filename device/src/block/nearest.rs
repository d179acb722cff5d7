//! Selection of the smallest of a block's keys, without a sort.
//!
//! ```text
//! least, greatest = ends of the distances
//! bins[(distance - least) >> shift] += 1, in 256 bins
//! last = the bin of the k-th key, by a prefix sum
//! keep all keys up to that bin
//! ```
//!
//! Room: 256 bins, 32 sums, 2 numbers. Keys of the last bin that are not among the `k` smallest are
//! kept too, so that no comparison inside a bin is needed. Bound by shared memory: three passes
//! over the keys.

use cuda_std::keep_rolled;
use cuda_std::prelude::*;
use cuda_std::thread::{block_dim_x, sync_threads, thread_idx_x, warp_idx};
use cuda_std::warp::{FULL, WarpReductionOp, warp_reduce};

use super::scan::{WARPS, exclusive_sum};
use crate::key::Key;

/// Bins of the histogram: two per thread of 128.
const BINS: u32 = 256;

/// Bytes of room that [`keep_smallest`] needs.
pub const KEEP_ROOM_BYTES: u32 = (BINS + WARPS + 2) * 4;

/// Appends the keys with `is_kept` of the warp's lanes to `to`, whose length is at `len`. The whole
/// warp calls this.
#[inline(always)]
pub fn append(to: Shared<Key>, len: Shared<u32>, key: Key, is_kept: bool) {
    let kept = warp::ballot(is_kept);
    let mut first = 0;
    if warp::lane_id() == 0 && kept != 0 {
        first = len.fetch_add(0, kept.count_ones());
    }
    let first = warp::broadcast(first, 0);
    if is_kept {
        let before = kept & ((1 << warp::lane_id()) - 1);
        to.set((first + before.count_ones()) as usize, key);
    }
}

/// Ends of a range of values.
#[derive(Clone, Copy)]
struct Ends {
    least: u32,
    greatest: u32,
}

impl Ends {
    /// Of no values.
    const NONE: Self = Self { least: u32::MAX, greatest: 0 };

    /// The range that spans `self` and `least..=greatest`.
    #[inline(always)]
    fn with(self, least: u32, greatest: u32) -> Self {
        Self {
            least: if least < self.least { least } else { self.least },
            greatest: if greatest > self.greatest { greatest } else { self.greatest },
        }
    }
}

/// The distance of a key, as ordered bits.
#[inline(always)]
fn value(keys: Shared<Key>, i: u32) -> u32 {
    (keys.get(i as usize) >> 32) as u32
}

/// The ends of the values of `len` keys. Clears `bins` and `kept` as well. The whole block calls
/// this, and finds a barrier behind the result.
#[inline(always)]
fn ends(keys: Shared<Key>, len: u32, bins: Shared<u32>, sums: Shared<u32>, kept: Shared<u32>) -> Ends {
    let thread = thread_idx_x();
    let mut of_thread = Ends::NONE;
    let mut i = thread;
    while i < len {
        keep_rolled();
        let value = value(keys, i);
        of_thread = of_thread.with(value, value);
        i += block_dim_x();
    }
    // SAFETY: the whole warp reaches this.
    let (least, greatest) = unsafe {
        (
            warp_reduce(FULL, of_thread.least, WarpReductionOp::Min),
            warp_reduce(FULL, of_thread.greatest, WarpReductionOp::Max),
        )
    };
    let warps = block_dim_x() / 32;
    if warp::lane_id() == 0 {
        sums.set(warp_idx() as usize, least);
        sums.set((warps + warp_idx()) as usize, greatest);
    }
    bins.set(thread as usize, 0);
    bins.set((thread + block_dim_x()) as usize, 0);
    if thread == 0 {
        kept.set(0, 0);
    }
    sync_threads();
    let mut all = Ends::NONE;
    let mut warp = 0;
    while warp < warps {
        all = all.with(sums.get(warp as usize), sums.get((warps + warp) as usize));
        warp += 1;
    }
    all
}

/// Moves the `k` smallest of `len` keys, and few others, to `to` in any order; returns their
/// number.
///
/// `len` is at least `k`, and `k` at least 1. A histogram of the distances decides: where most of
/// these are much alike, others may be many. The whole block of 128 threads calls this after a
/// barrier, and finds a barrier behind the result.
#[inline(always)]
pub fn keep_smallest(keys: Shared<Key>, len: u32, k: u32, to: Shared<Key>, room: Shared<u32>) -> u32 {
    let thread = thread_idx_x();
    let sums = room.offset(BINS as usize);
    let last_bin = sums.offset(WARPS as usize);
    let kept = last_bin.offset(1);
    let Ends { least, greatest } = ends(keys, len, room, sums, kept);
    let bits = 32 - (greatest - least).leading_zeros();
    let shift = bits.saturating_sub(8);
    let bin = |value: u32| (value - least) >> shift;

    let mut i = thread;
    while i < len {
        keep_rolled();
        room.fetch_add(bin(value(keys, i)) as usize, 1);
        i += block_dim_x();
    }
    sync_threads();
    // The bin of the k-th key.
    let (first, second) = (room.get(2 * thread as usize), room.get(2 * thread as usize + 1));
    let (before, _) = exclusive_sum(first + second, sums);
    if before < k && k <= before + first + second {
        last_bin.set(0, if k <= before + first { 2 * thread } else { 2 * thread + 1 });
    }
    sync_threads();
    let last = last_bin.get(0);
    let mut first = thread & !31;
    while first < len {
        keep_rolled();
        let i = first + warp::lane_id();
        let key = if i < len { keys.get(i as usize) } else { Key::MAX };
        append(to, kept, key, i < len && bin((key >> 32) as u32) <= last);
        first += block_dim_x();
    }
    sync_threads();
    kept.get(0)
}
