//! Which ids a node brings to an iteration: some of its own neighbours, and nodes whose neighbour it is.

use cuda_std::atomic::Scope;
use cuda_std::prelude::*;

use crate::descent::slots::{scramble, slot};
use crate::key::{self, Key, NONE, UNVISITED};
use crate::random::{Draws, Stage};

/// Ids of a node's row: in phase 1 four groups of [`SAMPLE`], in phase 2 two of [`GATHER`].
pub const ROW: u32 = 128;

/// Ids of each group in phase 1: new neighbours, old neighbours, nodes that have it as a new neighbour,
/// nodes that have it as an old one.
pub const SAMPLE: u32 = 1 << SAMPLE_BITS;

/// Ids of each group in phase 2: neighbours, and nodes that have it as a neighbour.
pub const GATHER: u32 = 1 << GATHER_BITS;

/// [`SAMPLE`] is 2 to this.
pub const SAMPLE_BITS: u32 = 5;

/// [`GATHER`] is 2 to this.
pub const GATHER_BITS: u32 = 6;

/// Threads of a block, a warp per node.
pub const SAMPLE_THREADS: u32 = 256;

/// Nodes per block.
pub const SAMPLE_NODES: u32 = SAMPLE_THREADS / 32;

/// The ids that each node brings to an iteration.
///
/// Reverse neighbours go to slots ([`slot`]) as ranks ([`scramble`]): the same whoever comes first.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Sample {
    /// In and out: `k` ascending keys of each node.
    pub lists: GlobalMut<Key>,
    /// In: all bits set; out: [`ROW`] ids of each node, `u32::MAX` where there is none. The second half holds
    /// ranks.
    pub rows: GlobalMut<u32>,
    /// The seed of the random start.
    pub seed: u64,
    /// How many nodes.
    pub nodes: u32,
    /// Length of the lists.
    pub k: u32,
    /// Mixes ids in the slots.
    pub draw: u32,
    /// In [`descent_gather()`], whether all neighbours become unvisited.
    pub unvisit: u32,
}

impl Sample {
    /// The node of this warp, if there is one.
    #[inline(always)]
    fn node(&self) -> Option<u32> {
        let node = thread::block_idx_x() * SAMPLE_NODES + thread::warp_idx();
        if node < self.nodes { Some(node) } else { None }
    }

    /// Puts `id` in place `place` of the row of `node`, and `node` in a slot of the group of `2^bits` places of
    /// the row of `id` that begins at `group`.
    #[inline(always)]
    fn bring(&self, node: u32, place: u32, id: u32, group: u32, bits: u32) {
        self.rows.set((node as usize) * ROW as usize + place as usize, id);
        let reverse = self.rows.offset(id as usize * ROW as usize + group as usize);
        reverse.fetch_min(slot(node, self.draw, bits) as usize, scramble(node, self.draw), Scope::Device);
    }
}

/// Brings random ids as new neighbours; the lists are not looked at.
///
/// Launch: a block of [`SAMPLE_THREADS`] per [`SAMPLE_NODES`] nodes.
///
/// # Safety
/// - The views hold what [`Sample`] says; there are at least 2 nodes.
#[kernel(block = SAMPLE_THREADS)]
pub unsafe fn descent_start(p: Sample) {
    let Some(node) = p.node() else { return };
    let lane = warp::lane_id() as u64;
    // One drawn from each of 32 stretches of the others, so that none comes twice.
    let others = p.nodes as u64 - 1;
    let (first, end) = (lane * others / 32, (lane + 1) * others / 32);
    if first < end {
        let draws = Draws::new(p.seed, Stage::Start, 0, node as u64);
        let id = (first + draws.below(lane, end - first)) as u32;
        p.bring(node, lane as u32, if id < node { id } else { id + 1 }, 2 * SAMPLE, SAMPLE_BITS);
    }
}

/// Brings the nearest neighbours that are unvisited, which are visited from then on, and the nearest
/// visited ones.
///
/// Launch: as [`descent_start()`].
///
/// # Safety
/// - The views hold what [`Sample`] says.
#[kernel(block = SAMPLE_THREADS)]
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
        let before = (1u32 << lane) - 1;
        let place =
            if is_new { new + (news & before).count_ones() } else { old + (olds & before).count_ones() };
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
/// - The views hold what [`Sample`] says.
#[kernel(block = SAMPLE_THREADS)]
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
