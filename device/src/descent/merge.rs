//! Merging of new neighbours into lists whose keys carry flags.

use cuda_std::atomic::Scope;
use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::warp::{WarpReductionOp, warp_reduce};

use crate::block::sort::{partition_point, rank, sort_warp};
use crate::key::{self, Key, NONE, UNVISITED};

/// Candidates of a node: slots.
pub const CANDIDATES: u32 = 1 << CANDIDATE_BITS;

/// [`CANDIDATES`] is 2 to this.
pub const CANDIDATE_BITS: u32 = 6;

/// Threads of a block, a warp per node.
pub const MERGE_THREADS: u32 = 128;

/// Nodes per block.
pub const MERGE_NODES: u32 = MERGE_THREADS / 32;

/// Counters of changes, so that blocks do not wait for one another.
pub const COUNTERS: u32 = 32;

/// Merges `len` ascending keys that are not flagged into a list whose keys may be, and that has none of
/// them; writes the first `k` to `out`, those that are new flagged. The `threads` threads call this, after a
/// barrier; none follows. Returns how many keys this thread has added.
#[inline(always)]
pub fn merge_flagged(
    (list, k): (Shared<Key>, u32),
    (keys, len): (Shared<Key>, u32),
    out: GlobalMut<Key>,
    (thread, threads): (u32, u32),
) -> u32 {
    let mut i = thread;
    while i < k {
        let key = list.get(i as usize);
        let place = i + rank(keys, len, key::plain(key));
        if place < k {
            out.set(place as usize, key);
        }
        i += threads;
    }
    let mut added = 0;
    let mut i = thread;
    while i < len {
        let key = keys.get(i as usize);
        let place = i + partition_point(k, |i| key::plain(list.get(i as usize)) < key);
        if place < k {
            out.set(place as usize, key | UNVISITED);
            added += 1;
        }
        i += threads;
    }
    added
}

/// The merging of the candidates that joins have found.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MergeCandidates {
    /// In and out: `k` ascending keys of each node; those that are new become unvisited.
    pub lists: GlobalMut<Key>,
    /// In: [`CANDIDATES`] keys of each node, at most one of an id; out: [`NONE`].
    pub candidates: GlobalMut<Key>,
    /// Out: the distance of the last of each list, infinite if it is not full.
    pub bounds: GlobalMut<f32>,
    /// In and out: [`COUNTERS`] sums of how many keys were added.
    pub changes: GlobalMut<u32>,
    /// How many nodes.
    pub nodes: u32,
    /// Length of the lists, at least 1.
    pub k: u32,
}

/// Bytes of dynamic shared memory of [`descent_merge()`].
pub const fn merge_shared_bytes(k: u32) -> u32 {
    MERGE_NODES * (k + 2 * CANDIDATES) * 8
}

/// Merges each node's candidates into its list, but those that it has already.
///
/// Launch: a block of [`MERGE_THREADS`] per [`MERGE_NODES`] nodes; [`merge_shared_bytes`].
///
/// # Safety
/// - The views hold what [`MergeCandidates`] says.
#[kernel(block = MERGE_THREADS, shared = merge_shared_bytes(p.k))]
pub unsafe fn descent_merge(p: MergeCandidates) {
    const { assert!(CANDIDATES == 64, "two keys to a lane") };
    let node = thread::block_idx_x() * MERGE_NODES + thread::warp_idx();
    if node >= p.nodes {
        return;
    }
    let (lane, k) = (warp::lane_id(), p.k as usize);
    let room = thread::warp_idx() as usize * (k + 2 * CANDIDATES as usize);
    let list: Shared<Key> = shared::dynamic::<Key>(0).offset(room);
    let runs = list.offset(k);
    let sorted = runs.offset(CANDIDATES as usize);
    let out = p.lists.offset(node as usize * k);
    let found = p.candidates.offset(node as usize * CANDIDATES as usize);
    let mut first = found.get(lane as usize);
    let mut second = found.get(lane as usize + 32);
    if !warp::any(first != NONE || second != NONE) {
        return;
    }
    found.set(lane as usize, NONE);
    found.set(lane as usize + 32, NONE);
    let mut i = lane;
    while i < p.k {
        list.set(i as usize, out.get(i as usize));
        i += 32;
    }
    warp::sync();

    // Those that are too far or known are none. The same pair may differ in the last bit from one kernel to
    // another: ids decide.
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
    let added = merge_flagged((list, p.k), (sorted, len), out, (lane, 32));
    // SAFETY: the whole warp is here.
    let added = unsafe { warp_reduce(u32::MAX, added, WarpReductionOp::Add) };
    warp::sync();
    if lane == 0 {
        p.changes.fetch_add((node % COUNTERS) as usize, added, Scope::Device);
        let last = out.get(k - 1);
        p.bounds.set(node as usize, if last == NONE { f32::INFINITY } else { key::distance(last) });
    }
}
