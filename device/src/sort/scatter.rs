//! The moving of keys to their places.

use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x, warp_idx};

use super::{DIGIT_BITS, DIGITS, KEYS_PER_THREAD, Pass, SORT_KEYS, SORT_THREADS};
use crate::block::scan::{WARPS, exclusive_sum};

/// Warps of a block.
const BLOCK_WARPS: u32 = SORT_THREADS / 32;

/// Keys of each warp: they follow one another.
const WARP_KEYS: u32 = 32 * KEYS_PER_THREAD;

/// Bytes of dynamic shared memory of [`sort_scatter()`]: the block's keys, counts of each warp's digits, the
/// first key of each digit in the block and its place, and room for sums.
pub const SCATTER_SHARED_BYTES: u32 = SORT_KEYS * 8 + (BLOCK_WARPS + 2) * DIGITS * 4 + WARPS * 8;

/// The lanes whose digit is that of this lane, `there` among them; the whole warp calls this.
#[inline(always)]
#[track_caller]
fn peers(digit: u32, there: bool) -> u32 {
    let mut peers = warp::ballot(there);
    let mut bit = 0;
    while bit < DIGIT_BITS {
        let set = digit >> bit & 1 == 1;
        let lanes = warp::ballot(set);
        peers &= if set { lanes } else { !lanes };
        bit += 1;
    }
    peers
}

#[inline(always)]
fn scatter(p: &Pass) {
    let (thread, block) = (thread_idx_x(), block_idx_x());
    let (lane, warp) = (warp::lane_id(), warp_idx());
    let moved: Shared<u64> = shared::dynamic(0);
    let counts: Shared<u32> = moved.offset(SORT_KEYS as usize).cast();
    let of_warp = counts.offset((warp * DIGITS) as usize);
    let firsts = counts.offset((BLOCK_WARPS * DIGITS) as usize);
    let places = firsts.offset(DIGITS as usize);
    let room: Shared<u64> = places.offset(DIGITS as usize).cast();
    let mut i = lane;
    while i < DIGITS {
        of_warp.set(i as usize, 0);
        i += 32;
    }
    warp::sync();

    // Each key's rank among the warp's keys of its digit, in the order of the keys.
    let first = block as usize * SORT_KEYS as usize + (warp * WARP_KEYS + lane) as usize;
    let mut keys = [0u64; KEYS_PER_THREAD as usize];
    let mut ranks = [0u32; KEYS_PER_THREAD as usize];
    unroll!(8, I => {
        if first + 32 * I < p.count as usize {
            keys[I] = p.keys.get(first + 32 * I);
        }
    });
    unroll!(8, I => {
        let there = first + 32 * I < p.count as usize;
        let digit = p.digit(keys[I]);
        let peers = peers(digit, there);
        let before = of_warp.get(digit as usize);
        ranks[I] = before + (peers & ((1 << lane) - 1)).count_ones();
        // All have read before one writes.
        warp::sync();
        if there && peers.trailing_zeros() == lane {
            of_warp.set(digit as usize, before + peers.count_ones());
        }
        warp::sync();
    });
    sync_threads();

    // Each digit's first key in the block, its keys of the warps before, and its place in the whole.
    let mut total = 0;
    if thread < DIGITS {
        let mut other = 0;
        while other < BLOCK_WARPS {
            let place = (other * DIGITS + thread) as usize;
            let count = counts.get(place);
            counts.set(place, total);
            total += count;
            other += 1;
        }
    }
    // Two sums at once: of the block's keys, at most SORT_KEYS, and of all keys.
    let of_all = if thread < DIGITS { p.totals.get(thread as usize) } else { 0 };
    let (sums, _) = exclusive_sum((of_all as u64) << 32 | total as u64, room);
    if thread < DIGITS {
        let before = p.counts.get(thread as usize * p.blocks as usize + block as usize);
        firsts.set(thread as usize, sums as u32);
        places.set(thread as usize, (sums >> 32) as u32 + before);
    }
    sync_threads();

    // In shared memory first, so that keys that follow one another are written together.
    unroll!(8, I => {
        if first + 32 * I < p.count as usize {
            let digit = p.digit(keys[I]) as usize;
            let place = firsts.get(digit) + of_warp.get(digit) + ranks[I];
            moved.set(place as usize, keys[I]);
        }
    });
    sync_threads();
    let left = p.count - block * SORT_KEYS;
    let here = if left < SORT_KEYS { left } else { SORT_KEYS };
    unroll!(8, I => {
        let i = thread + I as u32 * SORT_THREADS;
        if i < here {
            let key = moved.get(i as usize);
            let digit = p.digit(key) as usize;
            p.sorted.set(places.get(digit) as usize + (i - firsts.get(digit)) as usize, key);
        }
    });
}

/// Moves the keys to their places (see [`Pass`]).
///
/// Launch: a block of [`SORT_THREADS`] per [`SORT_KEYS`] keys; [`SCATTER_SHARED_BYTES`].
///
/// # Safety
/// - The views hold what [`Pass`] says.
#[kernel(block = SORT_THREADS, shared = SCATTER_SHARED_BYTES)]
pub unsafe fn sort_scatter(p: Pass) {
    scatter(&p);
}
