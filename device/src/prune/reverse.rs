//! Reverse edges: counted, scanned and sorted, so that their order is fixed.
//!
//! [`prune_edges_count()`] and the scan of [`crate::sort`] give each block of forward slots its place among all
//! edges, and [`prune_edges()`] writes a key for each edge: its rank above the number of its slot. If ranks are
//! distances, keys are sorted by them; if they are places, edges are written place by place. Then
//! [`prune_edge_targets()`] puts the target above the slot, keys are sorted by that, stably, and
//! [`prune_edge_sources()`] turns slots into sources.

use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::thread::{block_idx_x, index_1d, thread_idx_x, warp_idx};

use crate::block::scan::{WARPS, exclusive_sum};
use crate::key::{Key, NONE};

/// Threads of a block.
pub const EDGE_THREADS: u32 = 256;

/// Slots of each thread.
const SLOTS_PER_THREAD: u32 = 8;

/// Slots of a block.
pub const EDGE_SLOTS: u32 = EDGE_THREADS * SLOTS_PER_THREAD;

/// Bytes of dynamic shared memory of the kernels that count and write edges: a sum for each warp.
pub const EDGE_SHARED_BYTES: u32 = WARPS * 4;

/// The edges of all rows.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Edges {
    /// In: slots of `width` keys for each row: rank and target; [`NONE`] in those that are empty. The number of a slot
    /// is below 2^32.
    pub forward: Global<Key>,
    /// In and out: a number for each block of [`EDGE_SLOTS`] slots: of the edges in it, then of those before it.
    pub starts: GlobalMut<u32>,
    /// Out: a key for each edge: rank above slot, or with `by_place` target above slot.
    pub keys: GlobalMut<u64>,
    /// How many rows.
    pub rows: u32,
    /// Slots of each row.
    pub width: u32,
    /// Whether edges are taken place by place, those of a place in the order of their rows: else row by row.
    pub by_place: u32,
    /// Nothing.
    pub padding: u32,
}

impl Edges {
    /// The slot, and the key in it, that comes `i`-th.
    #[inline(always)]
    fn slot(&self, i: u32) -> (u32, Key) {
        if i >= self.rows * self.width || self.rows == 0 {
            return (0, NONE);
        }
        let slot = if self.by_place != 0 { i % self.rows * self.width + i / self.rows } else { i };
        (slot, self.forward.get(slot as usize))
    }
}

/// The first of the slots of a warp, which follow one another.
#[inline(always)]
fn first_of_warp() -> u32 {
    block_idx_x() * EDGE_SLOTS + warp_idx() * 32 * SLOTS_PER_THREAD
}

/// Counts the edges of each block of slots (see [`Edges`]).
///
/// Launch: a block of [`EDGE_THREADS`] per [`EDGE_SLOTS`] slots; [`EDGE_SHARED_BYTES`].
///
/// # Safety
/// - The views hold what [`Edges`] says.
#[kernel(block = EDGE_THREADS, shared = EDGE_SHARED_BYTES)]
pub unsafe fn prune_edges_count(p: Edges) {
    let first = first_of_warp() + warp::lane_id();
    let mut count = 0;
    unroll!(8, I => count += u32::from(p.slot(first + 32 * I as u32).1 != NONE));
    let (_, total) = exclusive_sum(count, shared::dynamic(0));
    if thread_idx_x() == 0 {
        p.starts.set(block_idx_x() as usize, total);
    }
}

/// Writes a key for each edge (see [`Edges`]).
///
/// Launch: a block of [`EDGE_THREADS`] per [`EDGE_SLOTS`] slots; [`EDGE_SHARED_BYTES`].
///
/// # Safety
/// - The views hold what [`Edges`] says.
#[kernel(block = EDGE_THREADS, shared = EDGE_SHARED_BYTES, blocks_per_multiprocessor = 4)]
pub unsafe fn prune_edges(p: Edges) {
    let (lane, first) = (warp::lane_id(), first_of_warp() + warp::lane_id());
    let mut slots = [(0, NONE); SLOTS_PER_THREAD as usize];
    let mut places = [0; SLOTS_PER_THREAD as usize];
    let mut of_warp = 0;
    unroll!(8, I => {
        slots[I] = p.slot(first + 32 * I as u32);
        let edges = warp::ballot(slots[I].1 != NONE);
        places[I] = of_warp + (edges & ((1 << lane) - 1)).count_ones();
        of_warp += edges.count_ones();
    });
    // The warp's edges count once.
    let (before, _) = exclusive_sum(if lane == 0 { of_warp } else { 0 }, shared::dynamic(0));
    let start = p.starts.get(block_idx_x() as usize) + warp::broadcast(before, 0);
    unroll!(8, I => {
        let (slot, key) = slots[I];
        if key != NONE {
            let above = if p.by_place != 0 { key << 32 } else { key & !0xffff_ffff };
            p.keys.set((start + places[I]) as usize, above | u64::from(slot));
        }
    });
}

const _: () = assert!(SLOTS_PER_THREAD == 8);

/// Puts above the slot in each of `count` keys the target of the edge in that slot of `forward`.
///
/// Launch: a thread per key, blocks of [`EDGE_THREADS`].
///
/// # Safety
/// - `keys` holds `count` keys, whose slots `forward` has.
#[kernel(block = EDGE_THREADS)]
pub unsafe fn prune_edge_targets(keys: GlobalMut<u64>, forward: Global<Key>, count: u32) {
    let i = index_1d();
    if i < count {
        let slot = keys.get(i as usize) as u32;
        keys.set(i as usize, forward.get(slot as usize) << 32 | u64::from(slot));
    }
}

/// The sources of edges.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Sources {
    /// In: `count` keys, target above slot, in the order of the targets.
    pub keys: Global<u64>,
    /// In: as in [`Edges`].
    pub forward: Global<Key>,
    /// Out: for each key the source of the edge, below its rank.
    pub sources: GlobalMut<Key>,
    /// Out: for each row where the edges to it begin, and `count` in the end.
    pub offsets: GlobalMut<u32>,
    /// How many edges, at least 1.
    pub count: u32,
    /// How many rows.
    pub rows: u32,
    /// Slots of each row.
    pub width: u32,
    /// Whether the rank of an edge is its place in its row: else the upper half of its forward key.
    pub by_place: u32,
}

/// Finds the sources of edges (see [`Sources`]).
///
/// Launch: a thread per edge, blocks of [`EDGE_THREADS`].
///
/// # Safety
/// - The views hold what [`Sources`] says.
#[kernel(block = EDGE_THREADS)]
pub unsafe fn prune_edge_sources(p: Sources) {
    let i = index_1d();
    if i >= p.count || p.width == 0 {
        return;
    }
    let key = p.keys.get(i as usize);
    let (target, slot) = ((key >> 32) as u32, key as u32);
    let rank = if p.by_place != 0 { u64::from(slot % p.width) } else { p.forward.get(slot as usize) >> 32 };
    p.sources.set(i as usize, rank << 32 | u64::from(slot / p.width));
    // The edges to this target, and to those before it that have none, begin here.
    let mut row = if i == 0 { 0 } else { (p.keys.get(i as usize - 1) >> 32) as u32 + 1 };
    while row <= target {
        p.offsets.set(row as usize, i);
        row += 1;
    }
    if i + 1 == p.count {
        while row <= p.rows {
            p.offsets.set(row as usize, p.count);
            row += 1;
        }
    }
}
