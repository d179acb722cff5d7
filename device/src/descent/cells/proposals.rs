//! Merge of the proposals of the [cross-cell join](super::CrossCellJoin) into the lists.
//!
//! ```text
//! warp = node
//! keys = the node's slots (emptied), four per lane; return if all are empty
//! drop the second copy of a key, and keys not below the last of the list; close the gaps
//! drop known keys, and close the gaps; return if none is left
//! sort each run of 32 by shuffles
//! merge the runs, then merge them into the list; tighten the node's bound
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | `proposals` | nodes x [`PROPOSALS`] keys |
//! | `lists` | nodes x `k` keys, ascending |
//! | shared memory, per node | `k` list, [`PROPOSALS`] runs, [`PROPOSALS`] sorted |
//!
//! Optimisations:
//!
//! 1. A known key is found by binary search of its distance, not by a scan of all ids. The tensor
//!    cores compute the same bits for a pair every time, so a known neighbour has the same key.
//! 2. Gaps are closed first: runs and merges then cover the keys that are left, not all slots. From
//!    the second clustering on most proposals are known, and few nodes have more than one run.
//! 3. One warp per node: barriers of a warp alone, and four nodes per block.
//! 4. Keys of the list that keep their places are not written again.
//! 5. Added keys are counted for one node in [`COUNTED`]: a share is wanted, and additions to the
//!    same counters take their turns.
//!
//! Bound by memory and by instruction issue: slots read and emptied, lists read; 36 GB in 13 passes
//! for a million nodes at `k` = 96, 8 ms at the rate of an H200.

use cuda_std::atomic::Scope;
use cuda_std::prelude::*;
use cuda_std::thread::block_idx_x;
use cuda_std::warp::{WarpReductionOp, warp_reduce};
use cuda_std::{keep_rolled, shared};

use crate::block::sort::{SortedKeys, partition_point, sort_by_warp};
use crate::block::threads::Threads;
use crate::descent::merge::{COUNTERS, MERGE_NODES, MERGE_THREADS, merge_flagged};
use crate::descent::slots::two_slots;
use crate::key::{self, Key, NONE};

/// Slots per node for proposals.
pub const PROPOSALS: u32 = 1 << PROPOSAL_BITS;

/// Base-2 logarithm of [`PROPOSALS`].
pub const PROPOSAL_BITS: u32 = 7;

/// The merge of the cross-cell join's proposals.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MergeProposals {
    /// In and out: `k` ascending keys per node; added keys are unvisited.
    pub lists: GlobalMut<Key>,
    /// In: [`PROPOSALS`] slots per node, as [`CrossCellJoin`](super::CrossCellJoin) leaves them;
    /// out: [`NONE`].
    pub proposals: GlobalMut<Key>,
    /// In and out: per node, the distance of the last of its list, once the list is full.
    pub bounds: GlobalMut<f32>,
    /// In and out: [`COUNTERS`] partial sums of the number of keys added to the lists of every
    /// [`COUNTED`]-th node.
    pub changes: GlobalMut<u32>,
    /// The end of the nodes to merge.
    pub nodes: u32,
    /// Length of the lists, at least 1.
    pub k: u32,
    /// Salt of the slots.
    pub salt: u32,
    /// The first node to merge.
    pub first: u32,
}

/// Added keys are counted in the list of every this many-th node.
pub const COUNTED: u32 = 16;

/// Bytes of dynamic shared memory of [`cells_merge_proposals()`].
pub const fn merge_proposals_shared_bytes(k: u32) -> u32 {
    MERGE_NODES * (k + 2 * PROPOSALS) * 8
}

/// Merges proposals into the lists, without known keys, and tightens the bounds (see
/// [`MergeProposals`]).
///
/// Launch: a block of [`MERGE_THREADS`] per [`MERGE_NODES`] nodes from the first to be merged on;
/// [`merge_proposals_shared_bytes`].
///
/// # Safety
/// - The views have the shapes of [`MergeProposals`].
#[kernel(unsafe, block = MERGE_THREADS, shared = merge_proposals_shared_bytes(p.k))]
pub unsafe fn cells_merge_proposals(p: MergeProposals) {
    const { assert!(PROPOSALS == 128, "four keys to a lane") };
    let node = p.first + block_idx_x() * MERGE_NODES + thread::warp_idx();
    if node >= p.nodes {
        return;
    }
    let k = p.k as usize;
    let first = thread::warp_idx() as usize * (k + 2 * PROPOSALS as usize);
    let list: Shared<Key> = shared::dynamic::<Key>(0).offset(first);
    let runs = list.offset(k);
    let sorted = runs.offset(PROPOSALS as usize);
    let out = p.lists.offset(node as usize * k);
    let Some(keys) = take_proposals(&p, node, runs) else { return };
    let mut i = warp::lane_id();
    while i < p.k {
        list.set(i as usize, out.get(i as usize));
        i += 32;
    }
    warp::sync();
    let kept = are_kept(keys, key::plain(list.get(k - 1)), runs, p.salt);
    let end = compact(keys, kept, runs);
    let len = drop_known(runs, end, list, p.k);
    if len == 0 {
        return;
    }
    let keys = sort_by_warp(runs, sorted, len);
    let added = merge_flagged(
        SortedKeys::new(list, p.k),
        SortedKeys::new(keys, len),
        out,
        Threads::new(warp::lane_id(), 32),
    );
    if node.is_multiple_of(COUNTED) {
        // SAFETY: the whole warp reaches this.
        let added = unsafe { warp_reduce(u32::MAX, added, WarpReductionOp::Add) };
        if warp::lane_id() == 0 {
            p.changes.fetch_add((node / COUNTED % COUNTERS) as usize, added, Scope::Device);
        }
    }
    warp::sync();
    if warp::lane_id() == 0 {
        let last = out.get(k - 1);
        if last != NONE {
            p.bounds.set(node as usize, key::distance(last));
        }
    }
}

/// Reads a node's slots, four per lane, copies them to `runs` and empties them. Returns None if all
/// were empty.
#[inline(always)]
fn take_proposals(p: &MergeProposals, node: u32, runs: Shared<Key>) -> Option<[Key; 4]> {
    let lane = warp::lane_id();
    let proposals = p.proposals.offset(node as usize * PROPOSALS as usize);
    let mut keys = [NONE; 4];
    unroll!(4, I => keys[I] = proposals.get(lane as usize + 32 * I));
    if !warp::any(keys[0] & keys[1] & keys[2] & keys[3] != NONE) {
        return None;
    }
    unroll!(4, I => {
        let slot = lane as usize + 32 * I;
        if keys[I] != NONE {
            proposals.set(slot, NONE);
        }
        runs.set(slot, keys[I]);
    });
    Some(keys)
}

/// Whether each key is below `last`, and not the second copy of a key. `runs` holds all slots.
#[inline(always)]
fn are_kept(keys: [Key; 4], last: Key, runs: Shared<Key>, salt: u32) -> [bool; 4] {
    let mut kept = [false; 4];
    unroll!(4, I => {
        let first = two_slots(key::id(keys[I]), salt, PROPOSAL_BITS).0;
        let is_second = first != warp::lane_id() + 32 * I as u32 && runs.get(first as usize) == keys[I];
        kept[I] = keys[I] < last && !is_second;
    });
    warp::sync();
    kept
}

/// Writes the kept keys of the lanes to `runs` without gaps; returns their number.
#[inline(always)]
fn compact(keys: [Key; 4], kept: [bool; 4], runs: Shared<Key>) -> u32 {
    let mut end = 0;
    unroll!(4, I => {
        let left = warp::ballot(kept[I]);
        if kept[I] {
            runs.set((end + warp::lanes_before(left)) as usize, keys[I]);
        }
        end += left.count_ones();
    });
    warp::sync();
    end
}

/// Drops those of the first `end` keys that the list holds, and closes the gaps. All are below the
/// last of the list. Returns the number of keys left.
#[inline(always)]
fn drop_known(runs: Shared<Key>, end: u32, list: Shared<Key>, k: u32) -> u32 {
    let lane = warp::lane_id();
    // The high word of a key is its distance.
    let distances: Shared<u32> = list.cast();
    let distance = |i: u32| distances.get(2 * i as usize + 1);
    let (mut left, mut run) = (0, 0);
    while run < end {
        keep_rolled();
        let there = run + lane < end;
        let key = if there { runs.get((run + lane) as usize) } else { 0 };
        let own = (key >> 32) as u32;
        let mut place = partition_point(k, |i| distance(i) < own);
        let mut is_new = there;
        while is_new && place < k && distance(place) == own {
            is_new = key::plain(list.get(place as usize)) != key;
            place += 1;
        }
        let new = warp::ballot(is_new);
        // All lanes have read their keys.
        warp::sync();
        if is_new {
            runs.set((left + warp::lanes_before(new)) as usize, key);
        }
        left += new.count_ones();
        warp::sync();
        run += 32;
    }
    left
}
