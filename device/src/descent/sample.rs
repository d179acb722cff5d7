//! Sample of an iteration: the ids that each node brings, some of its neighbours and some reverse
//! ones.
//!
//! ```text
//! warp = node
//! for each neighbour taken from the list (or drawn, at a random start):
//!     rows[node][place] = neighbour
//!     slot = hash(node) in the neighbour's group of reverse ids
//!     rows[neighbour][slot] = min(slot's rank, scramble(node))
//! ```
//!
//! | row | phase 1, 4 x 32 ids | phase 2, 2 x 64 ids |
//! | --- | --- | --- |
//! | first half | new neighbours, old neighbours | neighbours |
//! | second half, as ranks | reverse new, reverse old | reverse neighbours |
//!
//! Reverse neighbours need no counters, locks or sorting: a slot keeps the smallest rank by one
//! atomic minimum, so the result does not depend on the order of threads. Ranks are a permutation
//! of ids, so that no id wins everywhere. Bound by memory: rows and lists.

use cuda_std::prelude::*;

use crate::descent::slots::{scramble, slot};
use crate::key::{self, Key, NONE, UNVISITED};
use crate::random::{Draws, Stage};

/// Ids per row: in phase 1 four groups of [`SAMPLE`], in phase 2 two of [`GATHER`].
pub const ROW: u32 = 128;

/// Ids per group in phase 1: new neighbours, old neighbours, reverse new ones, reverse old ones.
pub const SAMPLE: u32 = 1 << SAMPLE_BITS;

/// Ids per group in phase 2: neighbours, and reverse neighbours.
pub const GATHER: u32 = 1 << GATHER_BITS;

/// Base-2 logarithm of [`SAMPLE`].
pub const SAMPLE_BITS: u32 = 5;

/// Base-2 logarithm of [`GATHER`].
pub const GATHER_BITS: u32 = 6;

/// Threads of a block, a warp per node.
pub const SAMPLE_THREADS: u32 = 256;

/// Nodes per block.
pub const SAMPLE_NODES: u32 = SAMPLE_THREADS / 32;

/// The ids that each node brings to an iteration.
///
/// Reverse neighbours go to slots ([`slot`]) as ranks ([`scramble`]).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Sample {
    /// In and out: `k` ascending keys per node.
    pub lists: GlobalMut<Key>,
    /// In: all bits set; out: [`ROW`] ids per node, `NO_ID` in unused places. The second half
    /// holds ranks.
    pub rows: GlobalMut<u32>,
    /// The seed of the random start.
    pub seed: u64,
    /// Number of nodes.
    pub nodes: u32,
    /// Length of the lists.
    pub k: u32,
    /// Salt of the slots.
    pub salt: u32,
    /// For [`descent_gather()`]: whether all neighbours become unvisited.
    pub unvisit: u32,
}

impl Sample {
    /// The node of this warp; None beyond the last one.
    #[inline(always)]
    fn node(&self) -> Option<u32> {
        let node = thread::block_idx_x() * SAMPLE_NODES + thread::warp_idx();
        if node < self.nodes { Some(node) } else { None }
    }

    /// Puts `id` in place `place` of the row of `node`, and `node` in the row of `id`: in a slot of
    /// the group of `2^bits` places from `group` on.
    #[inline(always)]
    fn bring(&self, node: u32, place: u32, id: u32, group: u32, bits: u32) {
        self.rows.set((node as usize) * ROW as usize + place as usize, id);
        let reverse = self.rows.offset(id as usize * ROW as usize + group as usize);
        reverse.reduce_min(slot(node, self.salt, bits) as usize, scramble(node, self.salt));
    }
}

/// Brings random ids as new neighbours; ignores the lists.
///
/// Launch: a block of [`SAMPLE_THREADS`] per [`SAMPLE_NODES`] nodes.
///
/// # Safety
/// - The views have the shapes of [`Sample`]; there are at least 2 nodes.
#[kernel(unsafe, block = SAMPLE_THREADS)]
pub unsafe fn descent_start(p: Sample) {
    let Some(node) = p.node() else { return };
    let lane = warp::lane_id() as u64;
    // One draw from each of 32 stretches of the other nodes: all are different.
    let others = p.nodes as u64 - 1;
    let (first, end) = (lane * others / 32, (lane + 1) * others / 32);
    if first < end {
        let draws = Draws::new(p.seed, Stage::Start, 0, node as u64);
        let id = (first + draws.below(lane, end - first)) as u32;
        p.bring(node, lane as u32, if id < node { id } else { id + 1 }, 2 * SAMPLE, SAMPLE_BITS);
    }
}

/// Brings the nearest unvisited neighbours, which become visited, and the nearest visited ones.
///
/// Launch: as [`descent_start()`].
///
/// # Safety
/// - The views have the shapes of [`Sample`].
#[kernel(unsafe, block = SAMPLE_THREADS)]
pub unsafe fn descent_sample(p: Sample) {
    let Some(node) = p.node() else { return };
    let lane = warp::lane_id();
    let list = p.lists.offset(node as usize * p.k as usize);
    let (mut new, mut old, mut first) = (0, 0, 0);
    while first < p.k && (new < SAMPLE || old < SAMPLE) {
        let i = first + lane;
        let key = if i < p.k { list.get(i as usize) } else { NONE };
        let there = key != NONE;
        let is_new = there && key::is_unvisited(key);
        let (news, olds) = (warp::ballot(is_new), warp::ballot(there && !is_new));
        let place = if is_new { new + warp::lanes_before(news) } else { old + warp::lanes_before(olds) };
        if there && place < SAMPLE {
            let group = if is_new { 0 } else { SAMPLE };
            p.bring(node, group + place, key::id(key), 2 * SAMPLE + group, SAMPLE_BITS);
            if is_new {
                list.set(i as usize, key::plain(key));
            }
        }
        new += news.count_ones();
        old += olds.count_ones();
        first += 32;
    }
}

/// Brings the nearest neighbours, for phase 2.
///
/// Launch: as [`descent_start()`].
///
/// # Safety
/// - The views have the shapes of [`Sample`].
#[kernel(unsafe, block = SAMPLE_THREADS)]
pub unsafe fn descent_gather(p: Sample) {
    let Some(node) = p.node() else { return };
    let list = p.lists.offset(node as usize * p.k as usize);
    let mut i = warp::lane_id();
    while i < p.k {
        let key = list.get(i as usize);
        if key != NONE {
            if i < GATHER {
                p.bring(node, i, key::id(key), GATHER, GATHER_BITS);
            }
            if p.unvisit != 0 {
                list.set(i as usize, key | UNVISITED);
            }
        }
        i += 32;
    }
}
