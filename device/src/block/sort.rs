//! Sort and merge of distinct keys in shared memory.
//!
//! ```text
//! sort by a block: runs of 32 by shuffles; then runs of 64, 128, ... by merges
//! sort by a warp: runs of 32 by shuffles; then each key's place = its ranks in all runs
//! merge: each key's place = its place in its own list + its rank in the other one
//! ```
//!
//! Keys are distinct, so places are too: no locks. A merge of runs takes one barrier per doubling,
//! and as many steps as the binary search. Bound by shared memory and barriers.

use cuda_std::keep_rolled;
use cuda_std::prelude::*;
use cuda_std::thread::{block_dim_x, sync_threads, thread_idx_x};

use crate::block::threads::Threads;
use crate::key::{Key, NONE};

/// The number of leading values, of `len`, for which `is_before` is true; it is false for all later
/// ones.
#[inline(always)]
pub fn partition_point(len: u32, is_before: impl Fn(u32) -> bool) -> u32 {
    let (mut low, mut high) = (0, len);
    while low < high {
        let middle = (low + high) / 2;
        if is_before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

/// The number of `len` ascending keys below `key`.
#[inline(always)]
pub fn rank(keys: Shared<Key>, len: u32, key: Key) -> u32 {
    partition_point(len, |i| keys.get(i as usize) < key)
}

/// Sorts the keys of a warp's lanes, ascending, by a bitonic network of shuffles. The whole warp
/// calls this.
#[inline(always)]
pub fn sort_warp(key: Key) -> Key {
    let lane = warp::lane_id();
    let mut key = key;
    let mut size = 2;
    while size <= 32 {
        let mut distance = size / 2;
        while distance > 0 {
            let other = warp::shuffle_xor(key, distance);
            // The lower lane of a pair keeps the smaller key where the run ascends.
            let smaller = (lane & distance == 0) == (lane & size == 0);
            key = if (other < key) == smaller { other } else { key };
            distance /= 2;
        }
        size *= 2;
    }
    key
}

/// Sorts `len` distinct keys, with `spare` as room for as many; returns the sorted keys, in either
/// room.
///
/// The whole block calls this after a barrier, and finds a barrier after the result.
#[inline(always)]
pub fn sort_block(keys: Shared<Key>, spare: Shared<Key>, len: u32) -> Shared<Key> {
    let (thread, threads) = (thread_idx_x(), block_dim_x());
    // Runs of 32, each in a warp's registers.
    let mut first = thread & !31;
    while first < len {
        let i = first + thread % 32;
        let key = sort_warp(if i < len { keys.get(i as usize) } else { NONE });
        if i < len {
            keys.set(i as usize, key);
        }
        first += threads;
    }
    sync_threads();
    // Pairs of runs into runs of twice the length.
    let (mut from, mut to) = (keys, spare);
    let mut run = 32;
    while run < len {
        let mut i = thread;
        while i < len {
            let key = from.get(i as usize);
            let other = (i & !(run - 1)) ^ run;
            let place = if other < len {
                let others = if len - other < run { len - other } else { run };
                let before = rank(from.offset(other as usize), others, key);
                (i & !(2 * run - 1)) + (i & (run - 1)) + before
            } else {
                i
            };
            to.set(place as usize, key);
            i += threads;
        }
        sync_threads();
        (from, to) = (to, from);
        run *= 2;
    }
    from
}

/// Sorts `len` distinct keys, with `spare` as room for as many; returns the sorted keys, in either
/// room. For a few runs of 32 keys: both rooms hold whole runs.
///
/// The whole warp calls this after a barrier of its own, and finds one after the result.
#[inline(always)]
pub fn sort_by_warp(keys: Shared<Key>, spare: Shared<Key>, len: u32) -> Shared<Key> {
    let lane = warp::lane_id();
    let mut run = 0;
    while run < len {
        keep_rolled();
        let place = run + lane;
        let key = if place < len { keys.get(place as usize) } else { NONE };
        keys.set(place as usize, sort_warp(key));
        run += 32;
    }
    warp::sync();
    if len <= 32 {
        return keys;
    }
    let mut run = 0;
    while run < len {
        keep_rolled();
        let key = keys.get((run + lane) as usize);
        let mut place = lane;
        let mut other = 0;
        while other < len {
            if other != run {
                place += rank(keys.offset(other as usize), 32, key);
            }
            other += 32;
        }
        if key != NONE {
            spare.set(place as usize, key);
        }
        run += 32;
    }
    warp::sync();
    spare
}

/// Ascending keys in shared memory.
#[derive(Clone, Copy)]
pub struct SortedKeys {
    /// The first key.
    pub keys: Shared<Key>,
    /// Number of keys.
    pub len: u32,
}

impl SortedKeys {
    /// The `len` keys from `keys` on.
    #[inline(always)]
    pub const fn new(keys: Shared<Key>, len: u32) -> Self {
        Self { keys, len }
    }
}

/// Merges two ascending lists without common keys, and passes place and key of each of the first
/// `list.len` to `put`.
///
/// Only `list` may hold [`NONE`], at its end. All threads of `threads` call this, after a barrier;
/// none follows.
#[inline(always)]
pub fn merge(
    SortedKeys { keys: list, len: k }: SortedKeys,
    SortedKeys { keys, len }: SortedKeys,
    threads: Threads,
    put: impl Fn(u32, Key),
) {
    let mut i = threads.index;
    while i < k {
        let key = list.get(i as usize);
        let place = i + rank(keys, len, key);
        if place < k {
            put(place, key);
        }
        i += threads.count;
    }
    let mut i = threads.index;
    while i < len {
        let key = keys.get(i as usize);
        let place = i + rank(list, k, key);
        if place < k {
            put(place, key);
        }
        i += threads.count;
    }
}
