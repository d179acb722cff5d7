//! Last step of a pass: keys move to their places.
//!
//! ```text
//! block = 4096 keys, a warp 256 consecutive ones
//! rank of each key among the warp's keys of its digit: votes
//! per digit: keys of earlier warps, first place in the block, first place in the whole
//! order the keys in shared memory; write each to (place of the digit) + (rank in the block)
//! ```
//!
//! | shared memory | shape |
//! | --- | --- |
//! | keys in order | 4096 |
//! | counts | 16 warps x 256 digits |
//! | firsts, places | 256 each |
//! | room for sums | 32 x 8 bytes |
//!
//! Optimisations:
//!
//! 1. Votes rank 32 keys at a time in 8 ballots, without atomics, and keep the order of equal
//!    digits.
//! 2. Keys are ordered in shared memory first. About 16 keys of a digit are then written together,
//!    in one or two transactions.
//! 3. One prefix sum adds two numbers: keys of the block in the low half, all keys in the high
//!    half. The low sums do not exceed 4096, so they never carry.
//!
//! Bound by memory: 16 bytes per key.

use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x, warp_idx};

use super::{DIGIT_BITS, DIGITS, KEYS_PER_THREAD, Pass, SORT_KEYS, SORT_THREADS};
use crate::block::peers::peers;
use crate::block::scan::{WARPS, exclusive_sum};

/// Warps of a block.
const BLOCK_WARPS: u32 = SORT_THREADS / 32;

/// Consecutive keys of a warp.
const WARP_KEYS: u32 = 32 * KEYS_PER_THREAD;

/// Bytes of dynamic shared memory of [`sort_scatter()`]: the block's keys, counts per warp and
/// digit, first rank and first place of each digit, and room for sums.
pub const SCATTER_SHARED_BYTES: u32 = SORT_KEYS * 8 + (BLOCK_WARPS + 2) * DIGITS * 4 + WARPS * 8;

/// Shared memory of a block.
#[derive(Clone, Copy)]
struct Room {
    /// The block's keys in order.
    moved: Shared<u64>,
    /// Per warp and digit: keys of the warp, later keys of earlier warps.
    counts: Shared<u32>,
    /// Per digit, the rank in the block of its first key.
    firsts: Shared<u32>,
    /// Per digit, the place of the block's first key.
    places: Shared<u32>,
    sums: Shared<u64>,
}

impl Room {
    #[inline(always)]
    fn new() -> Self {
        let moved: Shared<u64> = shared::dynamic(0);
        let counts: Shared<u32> = moved.offset(SORT_KEYS as usize).cast();
        let firsts = counts.offset((BLOCK_WARPS * DIGITS) as usize);
        let places = firsts.offset(DIGITS as usize);
        Self { moved, counts, firsts, places, sums: places.offset(DIGITS as usize).cast() }
    }

    /// The counts of the calling warp.
    #[inline(always)]
    fn of_warp(&self) -> Shared<u32> {
        self.counts.offset((warp_idx() * DIGITS) as usize)
    }
}

/// A thread's keys, and their ranks among the warp's keys of the same digit.
struct Ranked {
    keys: [u64; KEYS_PER_THREAD as usize],
    ranks: [u32; KEYS_PER_THREAD as usize],
}

/// The thread's first key. Others follow, 32 apart.
#[inline(always)]
fn first_key() -> usize {
    block_idx_x() as usize * SORT_KEYS as usize + (warp_idx() * WARP_KEYS + warp::lane_id()) as usize
}

/// Loads the thread's keys, ranks them, and counts the warp's digits.
#[inline(always)]
fn rank_in_warp(p: &Pass, of_warp: Shared<u32>) -> Ranked {
    let lane = warp::lane_id();
    let mut i = lane;
    while i < DIGITS {
        of_warp.set(i as usize, 0);
        i += 32;
    }
    warp::sync();
    let first = first_key();
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
        let peers = peers(digit, DIGIT_BITS, there);
        let before = of_warp.get(digit as usize);
        ranks[I] = before + warp::lanes_before(peers);
        // All lanes read before one writes.
        warp::sync();
        if there && peers.trailing_zeros() == lane {
            of_warp.set(digit as usize, before + peers.count_ones());
        }
        warp::sync();
    });
    Ranked { keys, ranks }
}

/// Computes firsts and places of all digits, and replaces counts by sums over earlier warps. The
/// block has passed a barrier, and finds one after the result.
#[inline(always)]
fn place_digits(p: &Pass, room: Room) {
    let thread = thread_idx_x();
    let mut total = 0;
    if thread < DIGITS {
        let mut other = 0;
        while other < BLOCK_WARPS {
            let place = (other * DIGITS + thread) as usize;
            let count = room.counts.get(place);
            room.counts.set(place, total);
            total += count;
            other += 1;
        }
    }
    // Optimisation 3.
    let of_all = if thread < DIGITS { p.totals.get(thread as usize) } else { 0 };
    let (sums, _) = exclusive_sum((of_all as u64) << 32 | total as u64, room.sums);
    if thread < DIGITS {
        let before = p.counts.get(thread as usize * p.blocks as usize + block_idx_x() as usize);
        room.firsts.set(thread as usize, sums as u32);
        room.places.set(thread as usize, (sums >> 32) as u32 + before);
    }
    sync_threads();
}

#[inline(always)]
fn scatter(p: &Pass) {
    let room = Room::new();
    let of_warp = room.of_warp();
    let Ranked { keys, ranks } = rank_in_warp(p, of_warp);
    sync_threads();
    place_digits(p, room);
    let first = first_key();
    unroll!(8, I => {
        if first + 32 * I < p.count as usize {
            let digit = p.digit(keys[I]) as usize;
            let place = room.firsts.get(digit) + of_warp.get(digit) + ranks[I];
            room.moved.set(place as usize, keys[I]);
        }
    });
    sync_threads();
    let left = p.count - block_idx_x() * SORT_KEYS;
    let here = if left < SORT_KEYS { left } else { SORT_KEYS };
    unroll!(8, I => {
        let i = thread_idx_x() + I as u32 * SORT_THREADS;
        if i < here {
            let key = room.moved.get(i as usize);
            let digit = p.digit(key) as usize;
            let place = room.places.get(digit) as usize + (i - room.firsts.get(digit)) as usize;
            p.sorted.set(place, key);
        }
    });
}

/// Moves the keys to their places (see [`Pass`]).
///
/// Launch: a block of [`SORT_THREADS`] per [`SORT_KEYS`] keys; [`SCATTER_SHARED_BYTES`].
///
/// # Safety
/// - The views have the shapes of [`Pass`].
#[kernel(unsafe, block = SORT_THREADS, shared = SCATTER_SHARED_BYTES)]
pub unsafe fn sort_scatter(p: Pass) {
    scatter(&p);
}
