//! The merging of what members of a cell noted of each other ([`CellFilter`](super::CellFilter)).

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared};

use super::Job;
use crate::block::nearest::{KEEP_ROOM_BYTES, append, keep_smallest};
use crate::block::sort::{merge_block, sort_block};
use crate::block::tile;
use crate::key::{self, Key, NONE};
use crate::search::exact::SETTLE_THREADS;

/// The merging of what the filter of cells noted.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MergeNoted {
    /// In: `capacity` keys of each line of the jobs' query tiles.
    pub found: Global<Key>,
    /// In: of each line, keys that were to be noted. A line with more than `capacity` is passed over, since which
    /// of its keys are there is chance.
    pub counts: Global<u32>,
    /// In: the vectors of all cells' members.
    pub members: Global<u32>,
    /// In: the filter's [`Job`]s.
    pub jobs: Global<u32>,
    /// In and out: `k` ascending keys of each node.
    pub lists: GlobalMut<Key>,
    /// In and out: of each node, for the filter: the distance of the last of its list, once that is full.
    pub bounds: GlobalMut<f32>,
    /// Keys that are noted per line.
    pub capacity: u32,
    /// Length of the lists, at least 1.
    pub k: u32,
}

/// Bytes of dynamic shared memory of [`cells_merge_noted()`].
pub const fn merge_noted_shared_bytes(capacity: u32, k: u32) -> u32 {
    (2 * capacity + k) * 8 + 16 + KEEP_ROOM_BYTES
}

/// From so many keys more than a list holds, the smallest are looked for before they are sorted.
const FEW_MORE: u32 = 64;

/// Merges what the filter of cells noted into the lists, and tightens the bounds (see [`MergeNoted`]).
///
/// Launch: a block of [`SETTLE_THREADS`] per line; [`merge_noted_shared_bytes`].
///
/// # Safety
/// - The views hold what [`MergeNoted`] says.
#[kernel(block = SETTLE_THREADS, shared = merge_noted_shared_bytes(p.capacity, p.k))]
pub unsafe fn cells_merge_noted(p: MergeNoted) {
    let (thread, line) = (thread_idx_x(), block_idx_x());
    let job = Job::read(p.jobs, line / tile::SIDE);
    let count = p.counts.get(line as usize);
    if line % tile::SIDE >= job.query_count || count > p.capacity {
        return;
    }
    let (capacity, k) = (p.capacity as usize, p.k as usize);
    let keys: Shared<Key> = shared::dynamic(0);
    let spare = keys.offset(capacity);
    let list = spare.offset(capacity);
    let kept: Shared<u32> = list.offset(k).cast();
    let node = p.members.get((job.first_query + line % tile::SIDE) as usize);
    let out = p.lists.offset(node as usize * k);
    let mut i = thread;
    while i < p.k {
        list.set(i as usize, out.get(i as usize));
        i += SETTLE_THREADS;
    }
    if thread == 0 {
        kept.set(0, 0);
    }
    sync_threads();
    let farthest = list.get(k - 1);
    let mut first = thread & !31;
    while first < count {
        keep_rolled();
        let i = first + warp::lane_id();
        let key = if i < count { p.found.get((line * p.capacity + i) as usize) } else { NONE };
        append(keys, kept, key, key < farthest && key as u32 != node);
        first += SETTLE_THREADS;
    }
    sync_threads();
    let mut len = kept.get(0);
    if len == 0 {
        return;
    }
    let (mut keys, mut spare) = (keys, spare);
    if len > p.k + FEW_MORE {
        len = keep_smallest(keys, len, p.k, spare, kept.offset(4));
        (keys, spare) = (spare, keys);
    }
    let sorted = sort_block(keys, spare, len);
    merge_block((list, p.k), (sorted, len), |place, key| {
        out.set(place as usize, key);
        if place + 1 == p.k && key != NONE {
            p.bounds.set(node as usize, key::distance(key));
        }
    });
}
