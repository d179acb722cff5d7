//! The smallest of a block's keys, without sorting all of them.

use cuda_std::keep_rolled;
use cuda_std::prelude::*;
use cuda_std::thread::{block_dim_x, sync_threads, thread_idx_x, warp_idx};
use cuda_std::warp::{FULL, WarpReductionOp, warp_reduce};

use super::scan::{WARPS, exclusive_sum};
use crate::key::Key;

/// Bins of the histogram: two for each of 128 threads.
const BINS: u32 = 256;

/// Bytes of room that [`keep_smallest`] needs.
pub const KEEP_ROOM_BYTES: u32 = (BINS + WARPS + 2) * 4;

/// Appends the keys of the lanes that have one that `is_kept` to `to`, whose length is at `len`; the whole warp calls this.
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

/// Moves, of `len` keys, the `k` smallest and few others to `to`, in no order; returns how many. By a histogram of the
/// distances: where most of them are much alike, others may be many. `len` is at least `k`, and `k` at least 1. The
/// whole block, of 128 threads, calls this, after a barrier, and finds a barrier behind the result.
#[inline(always)]
pub fn keep_smallest(keys: Shared<Key>, len: u32, k: u32, to: Shared<Key>, room: Shared<u32>) -> u32 {
    let (thread, lane) = (thread_idx_x(), warp::lane_id());
    let sums = room.offset(BINS as usize);
    let last_bin = sums.offset(WARPS as usize);
    let kept = last_bin.offset(1);
    let value = |i: u32| (keys.get(i as usize) >> 32) as u32;

    // The ends of the values: of each warp, then of all.
    let (mut least, mut greatest) = (u32::MAX, 0);
    let mut i = thread;
    while i < len {
        keep_rolled();
        let value = value(i);
        least = if value < least { value } else { least };
        greatest = if value > greatest { value } else { greatest };
        i += block_dim_x();
    }
    // SAFETY: the whole warp is here.
    let (least, greatest) = unsafe {
        (warp_reduce(FULL, least, WarpReductionOp::Min), warp_reduce(FULL, greatest, WarpReductionOp::Max))
    };
    let warps = block_dim_x() / 32;
    if lane == 0 {
        sums.set(warp_idx() as usize, least);
        sums.set((warps + warp_idx()) as usize, greatest);
    }
    room.set(thread as usize, 0);
    room.set((thread + block_dim_x()) as usize, 0);
    if thread == 0 {
        kept.set(0, 0);
    }
    sync_threads();
    let (mut least, mut greatest) = (u32::MAX, 0);
    let mut warp = 0;
    while warp < warps {
        let (low, high) = (sums.get(warp as usize), sums.get((warps + warp) as usize));
        least = if low < least { low } else { least };
        greatest = if high > greatest { high } else { greatest };
        warp += 1;
    }
    let bits = 32 - (greatest - least).leading_zeros();
    let shift = bits.saturating_sub(8);
    let bin = |value: u32| (value - least) >> shift;

    let mut i = thread;
    while i < len {
        keep_rolled();
        room.fetch_add(bin(value(i)) as usize, 1);
        i += block_dim_x();
    }
    sync_threads();
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
        let i = first + lane;
        let key = if i < len { keys.get(i as usize) } else { Key::MAX };
        append(to, kept, key, i < len && bin((key >> 32) as u32) <= last);
        first += block_dim_x();
    }
    sync_threads();
    kept.get(0)
}
