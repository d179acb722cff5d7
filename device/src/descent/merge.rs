//! Merge of new neighbours into lists whose keys carry the flag of unvisited neighbours.
//!
//! ```text
//! warp = node
//! keys = the node's slots (emptied), two per lane; return if all are empty
//! drop keys not below the last of the list, and known ids
//! sort each half by shuffles; merge the halves, then the list and the keys
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | `proposals` | nodes x [`JOIN_PROPOSALS`] keys |
//! | `lists` | nodes x `k` keys, ascending |
//! | shared memory, per node | `k` list, [`JOIN_PROPOSALS`] runs, [`JOIN_PROPOSALS`] sorted |
//!
//! Optimisations:
//!
//! 1. Ranks instead of insertion: every key of both lists finds its place by binary search and
//!    writes itself. Places differ, since all keys differ.
//! 2. One warp per node: barriers of a warp alone, and four nodes per block.
//! 3. A key of the list that keeps its place is not written again.
//!
//! Bound by memory: slots read and emptied, lists read and written.

use cuda_std::atomic::Scope;
use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::warp::{WarpReductionOp, warp_reduce};

use crate::block::sort::{SortedKeys, partition_point, rank, sort_warp};
use crate::block::threads::Threads;
use crate::key::{self, Key, NONE, UNVISITED};

/// Slots per node for the proposals of the [join](super::join::Join).
pub const JOIN_PROPOSALS: u32 = 1 << JOIN_PROPOSAL_BITS;

/// Base-2 logarithm of [`JOIN_PROPOSALS`].
pub const JOIN_PROPOSAL_BITS: u32 = 6;

/// Threads of a block, a warp per node.
pub const MERGE_THREADS: u32 = 128;

/// Nodes per block.
pub const MERGE_NODES: u32 = MERGE_THREADS / 32;

/// Partial sums of a counter: blocks that add at the same time rarely meet in one.
pub const COUNTERS: u32 = 32;

/// Merges unflagged keys into a list of keys that may be flagged. The list has none of the keys,
/// and `out` holds the list. Leaves as many in `out`, added keys as unvisited; returns the number
/// of keys that this thread added. All threads of `threads` call this, after a barrier; none
/// follows.
#[inline(always)]
pub fn merge_flagged(
    SortedKeys { keys: list, len: k }: SortedKeys,
    SortedKeys { keys, len }: SortedKeys,
    out: GlobalMut<Key>,
    threads: Threads,
) -> u32 {
    let mut i = threads.index;
    while i < k {
        let key = list.get(i as usize);
        let place = i + rank(keys, len, key::plain(key));
        if place < k && place != i {
            out.set(place as usize, key);
        }
        i += threads.count;
    }
    let mut added = 0;
    let mut i = threads.index;
    while i < len {
        let key = keys.get(i as usize);
        let place = i + partition_point(k, |i| key::plain(list.get(i as usize)) < key);
        if place < k {
            out.set(place as usize, key | UNVISITED);
            added += 1;
        }
        i += threads.count;
    }
    added
}

/// The merge of the join's proposals.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MergeJoin {
    /// In and out: `k` ascending keys per node; added keys are unvisited.
    pub lists: GlobalMut<Key>,
    /// In: [`JOIN_PROPOSALS`] keys per node, at most one per id; out: [`NONE`].
    pub proposals: GlobalMut<Key>,
    /// Out: the distance of the last of each list, infinite if the list is not full.
    pub bounds: GlobalMut<f32>,
    /// In and out: [`COUNTERS`] partial sums of the number of added keys.
    pub changes: GlobalMut<u32>,
    /// Number of nodes.
    pub nodes: u32,
    /// Length of the lists, at least 1.
    pub k: u32,
}

/// Bytes of dynamic shared memory of [`descent_merge()`].
pub const fn merge_shared_bytes(k: u32) -> u32 {
    MERGE_NODES * (k + 2 * JOIN_PROPOSALS) * 8
}

/// Merges proposals into the lists, without known ids (see [`MergeJoin`]).
///
/// Launch: a block of [`MERGE_THREADS`] per [`MERGE_NODES`] nodes; [`merge_shared_bytes`].
///
/// # Safety
/// - The views have the shapes of [`MergeJoin`].
#[kernel(unsafe, block = MERGE_THREADS, shared = merge_shared_bytes(p.k))]
pub unsafe fn descent_merge(p: MergeJoin) {
    const { assert!(JOIN_PROPOSALS == 64, "two keys to a lane") };
    let node = thread::block_idx_x() * MERGE_NODES + thread::warp_idx();
    if node >= p.nodes {
        return;
    }
    let (lane, k) = (warp::lane_id(), p.k as usize);
    let room = thread::warp_idx() as usize * (k + 2 * JOIN_PROPOSALS as usize);
    let list: Shared<Key> = shared::dynamic::<Key>(0).offset(room);
    let runs = list.offset(k);
    let sorted = runs.offset(JOIN_PROPOSALS as usize);
    let out = p.lists.offset(node as usize * k);
    let proposals = p.proposals.offset(node as usize * JOIN_PROPOSALS as usize);
    let mut first = proposals.get(lane as usize);
    let mut second = proposals.get(lane as usize + 32);
    if !warp::any(first != NONE || second != NONE) {
        return;
    }
    proposals.set(lane as usize, NONE);
    proposals.set(lane as usize + 32, NONE);
    let mut i = lane;
    while i < p.k {
        list.set(i as usize, out.get(i as usize));
        i += 32;
    }
    warp::sync();

    // Ids decide which keys are known: the distance of a pair may differ in the last bit from one
    // kernel to another.
    let last = key::plain(list.get(k - 1));
    let ids: Shared<u32> = list.cast();
    let (mut first_known, mut second_known) = (first >= last, second >= last);
    let mut i = 0;
    while i < k {
        // The low word of a key.
        let id = ids.get(2 * i) & !(UNVISITED as u32);
        first_known |= id == key::id(first);
        second_known |= id == key::id(second);
        i += 1;
    }
    first = sort_warp(if first_known { NONE } else { first });
    second = sort_warp(if second_known { NONE } else { second });
    let len = warp::ballot(first != NONE).count_ones() + warp::ballot(second != NONE).count_ones();
    runs.set(lane as usize, first);
    runs.set(lane as usize + 32, second);
    warp::sync();
    if first != NONE {
        sorted.set((lane + rank(runs.offset(32), 32, first)) as usize, first);
    }
    if second != NONE {
        sorted.set((lane + rank(runs, 32, second)) as usize, second);
    }
    warp::sync();
    if len == 0 {
        return;
    }
    let added =
        merge_flagged(SortedKeys::new(list, p.k), SortedKeys::new(sorted, len), out, Threads::new(lane, 32));
    // SAFETY: the whole warp reaches this.
    let added = unsafe { warp_reduce(u32::MAX, added, WarpReductionOp::Add) };
    warp::sync();
    if lane == 0 {
        p.changes.fetch_add((node % COUNTERS) as usize, added, Scope::Device);
        let last = out.get(k - 1);
        p.bounds.set(node as usize, if last == NONE { f32::INFINITY } else { key::distance(last) });
    }
}
