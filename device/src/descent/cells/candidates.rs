//! Merge of the distances of the [intra-cell join](super::IntraCellJoin) into the lists.
//!
//! ```text
//! warp = line of a job
//! row = the line's distances up to that of the last of the list, without the node's own
//! select the k to k + 63 smallest (block::select); sort them
//! merge them into the list; tighten the node's bound
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | `distances` | lines x `capacity` words |
//! | `lists` | nodes x `k` keys, ascending |
//! | shared memory, per line | `capacity` words or `k` + [`selected`] keys; [`selected`] keys |
//!
//! Optimisations:
//!
//! 1. A few guesses find a distance that k to k + 63 of the row do not exceed. Only these are
//!    sorted, and only these have their ids looked up.
//! 2. One warp per line: barriers of a warp alone.
//! 3. Lists are merged by binary search of ranks: every key of both lists computes its own place.
//!    An empty list, that of most nodes, takes the first keys as they are.
//!
//! Bound by instruction issue: 2,700 instructions of a warp for a row of 550, at 79 % of the issue
//! slots of an H100. Distances are read once, lists written.

use cuda_std::memory::Quad;
use cuda_std::prelude::*;
use cuda_std::thread::block_idx_x;
use cuda_std::{keep_rolled, shared};

use super::Job;
use crate::block::select::{ALL_TIES, NO_VALUE, Present, ROW_STEP, Selection, select_smallest};
use crate::block::sort::{SortedKeys, merge, sort_by_warp};
use crate::block::threads::Threads;
use crate::block::tile;
use crate::key::{self, Key, NONE};

/// Threads of a block of [`cells_merge_candidates()`], a warp per line.
pub const CANDIDATE_THREADS: u32 = 128;

/// Lines per block.
pub const CANDIDATE_LINES: u32 = CANDIDATE_THREADS / 32;

/// The merge of the intra-cell join's distances.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MergeCandidates {
    /// In: `capacity` distances per line of the jobs' query tiles, as the join leaves them.
    pub distances: Global<u32>,
    /// In: the vectors of all cells' members.
    pub members: Global<u32>,
    /// In: the join's [`Job`]s.
    pub jobs: Global<u32>,
    /// In and out: `k` ascending keys per node.
    pub lists: GlobalMut<Key>,
    /// In and out: per node, the distance of the last of its list, once the list is full.
    pub bounds: GlobalMut<f32>,
    /// Distances per line, a multiple of 128.
    pub capacity: u32,
    /// Length of the lists, at least 1.
    pub k: u32,
}

/// Maximum number of distances of a line that are sorted: a multiple of 32, above `k`.
const fn selected(k: u32) -> u32 {
    (k + 32).next_multiple_of(32)
}

/// Bytes of shared memory of a line before its sorted keys: distances, and after a barrier the
/// list and the spare keys of the sort.
const fn row_bytes(capacity: u32, k: u32) -> u32 {
    let (row, keys) = (4 * capacity, (k + selected(k)) * 8);
    if row > keys { row } else { keys }.next_multiple_of(16)
}

/// Bytes of dynamic shared memory of [`cells_merge_candidates()`].
pub const fn merge_candidates_shared_bytes(capacity: u32, k: u32) -> u32 {
    CANDIDATE_LINES * (row_bytes(capacity, k) + selected(k) * 8)
}

/// Merges distances into the lists, and tightens the bounds (see [`MergeCandidates`]).
///
/// Launch: a block of [`CANDIDATE_THREADS`] per [`CANDIDATE_LINES`] lines, [`tile::SIDE`] lines per
/// job; [`merge_candidates_shared_bytes`].
///
/// # Safety
/// - The views have the shapes of [`MergeCandidates`].
#[kernel(unsafe, block = CANDIDATE_THREADS, shared = merge_candidates_shared_bytes(p.capacity, p.k))]
pub unsafe fn cells_merge_candidates(p: MergeCandidates) {
    let line = block_idx_x() * CANDIDATE_LINES + thread::warp_idx();
    let (job, query) = (Job::read(p.jobs, line / tile::SIDE), line % tile::SIDE);
    if query >= job.query_count {
        return;
    }
    let k = p.k as usize;
    let own = job.first_query + query;
    let node = p.members.get(own as usize);
    let out = p.lists.offset(node as usize * k);
    let (last, is_empty) = (out.get(k - 1), out.get(0) == NONE);

    let bytes = merge_candidates_shared_bytes(p.capacity, p.k) / CANDIDATE_LINES;
    let row: Shared<u32> = shared::dynamic((thread::warp_idx() * bytes) as usize);
    let list: Shared<Key> = row.cast();
    let spare = list.offset(k);
    let keys = row.offset(row_bytes(p.capacity, p.k) as usize / 4).cast();
    let len = job.row_count.next_multiple_of(ROW_STEP);
    let distances = p.distances.offset(line as usize * p.capacity as usize);
    let own_row = own.wrapping_sub(job.first_row);
    let present = load(distances, row, len, job.row_count, own_row, (last >> 32) as u32);
    warp::sync();
    let selection = select_smallest(row, len, present, p.k, selected(p.k));
    let members = p.members.offset(job.first_row as usize);
    let count = compact(row, len, selection, |i, distance, place| {
        keys.set(place as usize, Key::from(distance) << 32 | Key::from(members.get(i as usize)));
    });
    if count == 0 {
        return;
    }
    // The row is not needed any more: its memory holds the list.
    warp::sync();
    let mut i = warp::lane_id();
    while i < p.k && !is_empty {
        list.set(i as usize, out.get(i as usize));
        i += 32;
    }
    let sorted = SortedKeys::new(sort_by_warp(keys, spare, count), count);
    if is_empty {
        put_first(&p, sorted, node, out);
        return;
    }
    merge(SortedKeys::new(list, p.k), sorted, Threads::new(warp::lane_id(), 32), |place, key| {
        out.set(place as usize, key);
        if place + 1 == p.k && key != NONE {
            p.bounds.set(node as usize, key::distance(key));
        }
    });
}

/// Copies the distances of a line's `count` rows to `row`, of `len` places, without that of place
/// `own` and those above `last`. Describes what is left. The whole warp calls this.
#[inline(always)]
fn load(distances: Global<u32>, row: Shared<u32>, len: u32, count: u32, own: u32, last: u32) -> Present {
    let mut present = Present::NONE;
    let mut i = 4 * warp::lane_id();
    while i < len {
        keep_rolled();
        let mut four = if i < count { distances.get_quad(i as usize) } else { Quad([NO_VALUE; 4]) };
        unroll!(4, I => {
            let place = i + I as u32;
            if place >= count || place == own || four.0[I] > last {
                four.0[I] = NO_VALUE;
            }
            present = present.with(four.0[I]);
        });
        row.set_quad(i as usize, four);
        i += ROW_STEP;
    }
    present.of_warp()
}

/// Passes the selected ones of a row's distances to `put`: place in the row, distance, and place
/// among the selected ones. Returns their number. The whole warp calls this.
#[inline(always)]
fn compact(row: Shared<u32>, len: u32, selection: Selection, put: impl Fn(u32, u32, u32)) -> u32 {
    let Selection { threshold, mut ties } = selection;
    let leaves_ties = ties != ALL_TIES;
    let mut end = 0;
    let mut i = 4 * warp::lane_id();
    while i < len {
        keep_rolled();
        let four = row.get_quad(i as usize).0;
        unroll!(4, I => {
            let mut is_selected = four[I] <= threshold;
            if leaves_ties {
                let is_tie = four[I] == threshold;
                let lanes = warp::ballot(is_tie);
                is_selected &= !is_tie || warp::lanes_before(lanes) < ties;
                ties = ties.saturating_sub(lanes.count_ones());
            }
            let lanes = warp::ballot(is_selected);
            if is_selected {
                put(i + I as u32, four[I], end + warp::lanes_before(lanes));
            }
            end += lanes.count_ones();
        });
        i += ROW_STEP;
    }
    end
}

/// Writes the first of the sorted keys to an empty list. The whole warp calls this.
#[inline(always)]
fn put_first(p: &MergeCandidates, sorted: SortedKeys, node: u32, out: GlobalMut<Key>) {
    let mut i = warp::lane_id();
    while i < sorted.len && i < p.k {
        let key = sorted.keys.get(i as usize);
        out.set(i as usize, key);
        if i + 1 == p.k {
            p.bounds.set(node as usize, key::distance(key));
        }
        i += 32;
    }
}
