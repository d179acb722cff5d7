//! Merge of the candidates of the [intra-cell join](super::IntraCellJoin) into the lists.
//!
//! ```text
//! block = line of a job
//! keys = candidates nearer than the last of the list, without the node itself
//! if keys exceed the list's length by much: keep the smallest by a histogram
//! sort keys; merge them into the list; tighten the node's bound
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | `candidates` | lines x `capacity` keys |
//! | `lists` | nodes x `k` keys, ascending |
//! | shared memory | `capacity` keys, as many spare, `k` list, 4 words, room of [`keep_smallest`] |
//!
//! Optimisations:
//!
//! 1. A histogram of the distances excludes most keys beyond the `k` smallest before any
//!    sorting. Everything up to the bin of the `k`-th key is kept, so none of the `k` smallest is
//!    lost.
//! 2. Lists are merged by binary search of ranks: every key of both lists computes its own place.
//!    An empty list, that of most nodes, takes the first keys as they are.
//!
//! Bound by memory: candidates are read once, lists read and written. Before optimisation 1 it was
//! bound by the 14,000 instructions of a warp per node that sorting took.

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared};

use super::Job;
use crate::block::nearest::{KEEP_ROOM_BYTES, append, keep_smallest};
use crate::block::sort::{merge_block, sort_block};
use crate::block::tile;
use crate::key::{self, Key, NONE};
use crate::search::exact::SETTLE_THREADS;

/// The merge of the intra-cell join's candidates.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MergeCandidates {
    /// In: `capacity` keys per line of the jobs' query tiles.
    pub candidates: Global<Key>,
    /// In: keys found per line. A line with more than `capacity` is skipped: which of them were
    /// written is chance.
    pub counts: Global<u32>,
    /// In: the vectors of all cells' members.
    pub members: Global<u32>,
    /// In: the join's [`Job`]s.
    pub jobs: Global<u32>,
    /// In and out: `k` ascending keys per node.
    pub lists: GlobalMut<Key>,
    /// In and out: per node, the distance of the last of its list, once the list is full.
    pub bounds: GlobalMut<f32>,
    /// Candidates per line.
    pub capacity: u32,
    /// Length of the lists, at least 1.
    pub k: u32,
}

/// Bytes of dynamic shared memory of [`cells_merge_candidates()`].
pub const fn merge_candidates_shared_bytes(capacity: u32, k: u32) -> u32 {
    (2 * capacity + k) * 8 + 16 + KEEP_ROOM_BYTES
}

/// Keys beyond the list's length from which on [`keep_smallest`] runs before the sort.
const FEW_MORE: u32 = 64;

/// Merges candidates into the lists, and tightens the bounds (see [`MergeCandidates`]).
///
/// Launch: a block of [`SETTLE_THREADS`] per line; [`merge_candidates_shared_bytes`].
///
/// # Safety
/// - The views have the shapes of [`MergeCandidates`].
#[kernel(block = SETTLE_THREADS, shared = merge_candidates_shared_bytes(p.capacity, p.k))]
pub unsafe fn cells_merge_candidates(p: MergeCandidates) {
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
        let key = if i < count { p.candidates.get((line * p.capacity + i) as usize) } else { NONE };
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
    if list.get(0) == NONE {
        put_first((sorted, len), node, (p.k, out), p.bounds);
        return;
    }
    merge_block((list, p.k), (sorted, len), |place, key| {
        out.set(place as usize, key);
        if place + 1 == p.k && key != NONE {
            p.bounds.set(node as usize, key::distance(key));
        }
    });
}

/// Writes the first `k` of `len` sorted keys to an empty list. The whole block calls this.
#[inline(always)]
fn put_first(
    (sorted, len): (Shared<Key>, u32),
    node: u32,
    (k, out): (u32, GlobalMut<Key>),
    bounds: GlobalMut<f32>,
) {
    let mut i = thread_idx_x();
    while i < len && i < k {
        let key = sorted.get(i as usize);
        out.set(i as usize, key);
        if i + 1 == k {
            bounds.set(node as usize, key::distance(key));
        }
        i += SETTLE_THREADS;
    }
}
