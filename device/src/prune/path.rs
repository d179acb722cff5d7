//! Collect by paths: candidates are the nodes that a short beam search for the node visits, and the
//! node's own k-NN list (paper section 5.1).
//!
//! # Algorithm
//!
//! ```text
//! for each node, one block:
//!     search the k-NN lists for the node's vector, keep the keys of all visited nodes
//!                                                          (crate::search::beam::walk)
//!     append the node's own list, without nodes already visited
//!     under cosine: replace list distances by rule distances
//!     bisect a bound that at least `limit` + 1 keys pass and few more
//!     sort the keys that pass, without the node itself; write the nearest `limit`
//! ```
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `walk` | the base and the k-NN lists, see [`BeamWalk`] |
//! | `nodes` | one row per node, a node per block |
//! | `candidates` | nodes × `limit` keys, ascending, [`NONE`] after the last |
//! | shared memory | that of a search with all keys; the table's memory is also room to sort |
//!
//! # Optimisations
//!
//! 1. Four warps share a node, since a parent has 96 neighbours: one step has work for all of them.
//! 2. The table holds every visited id and is never emptied, so no key is kept twice.
//! 3. A bound by bisection replaces the sort of all keys: only `limit` + 1 and up to 32 more keys
//!    are sorted (more if distances are equal). It is right because at least `limit` + 1 keys are
//!    at or below the bound, and one of them at most is the node.
//!
//! # Speed
//!
//! 10 expansions visit up to 1,056 ids, about 700 of them distinct. That is 90 GB of gathers for a
//! million nodes of 128 bytes, 21 ms if all of it came from memory. Nodes come in an order in which
//! near ones follow one another and share most of their paths, so most of it comes from the L2
//! cache. About 17,000 instructions of a warp per node: 19 ms. The kernel for f32 is at its
//! register limit. Rows of at least [`LONG_ROW`] bytes have a kernel of their own: fewer blocks on
//! a multiprocessor, each with more loads under way. At 960 components that takes 0.40 s in place
//! of 0.73 s per million nodes; at 96 it would take 81 ms in place of 65.

use cuda_std::keep_rolled;
use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WarpReductionOp, warp_reduce};

use crate::block::copied;
use crate::block::element::{Element, GROUP};
use crate::block::exact::Metric;
use crate::block::sort::sort_block;
use crate::key::{self, Key, NONE};
use crate::search::beam::walk::{BeamWalk, Room, append, step_ids, walk_shared_bytes};

/// Threads per block, one node per block.
pub const PATH_THREADS: u32 = 128;

/// Bytes of a row from which on `prune_path_long_f32` is faster.
pub const LONG_ROW: usize = 768;

/// Maximum number of surplus keys that pass the bound: the bisection ends sooner.
const SLACK: u32 = 32;

/// Arguments of the kernels `prune_path_*`.
#[repr(C)]
pub struct Paths<T> {
    /// The search on the k-NN lists: a `beam` of at most 32 nodes, at most as many `expansions`, a
    /// `width` of 1 and [`path_slots`] slots.
    pub walk: BeamWalk<T>,
    /// In: one row per block.
    pub nodes: Global<u32>,
    /// Out: per node the nearest `limit` distinct candidates other than the node: ascending keys
    /// (order distance, row), [`NONE`] after the last.
    pub candidates: GlobalMut<Key>,
    /// Candidates per node, at least 1.
    pub limit: u32,
    /// Unused.
    pub padding: u32,
}

copied! {
    Paths<T>;
}

/// Maximum number of nodes that a search visits, the node's own list of `k` included.
const fn most_met(k: u32, entries: u32, expansions: u32) -> u32 {
    (entries + (expansions + 1) * k).next_multiple_of(4)
}

/// Slots of the table of visited ids. Its memory is room for sorting afterwards.
pub const fn path_slots(k: u32, entries: u32, expansions: u32) -> u32 {
    (most_met(k, entries, expansions) * 3 / 2).next_power_of_two()
}

/// Words of the table's memory.
const fn table_words(k: u32, entries: u32, expansions: u32) -> u32 {
    let (slots, spare) = (path_slots(k, entries, expansions), 2 * most_met(k, entries, expansions));
    if slots < spare { spare } else { slots }
}

/// Dynamic shared memory in bytes.
pub const fn path_shared_bytes(dim: u32, k: u32, entries: u32, expansions: u32) -> u32 {
    let words = table_words(k, entries, expansions);
    walk_shared_bytes(dim, most_met(k, entries, expansions), words, step_ids(k, 1), 1)
}

#[inline(always)]
fn path<T: Element, const LOADS: usize>(p: &Paths<T>) {
    let (walk, k) = (&p.walk, p.walk.graph.degree);
    let (line, lane) = (block_idx_x() as usize, warp::lane_id());
    let node = p.nodes.get(line);
    let most = most_met(k, walk.entry_count, walk.expansions);
    let words = table_words(k, walk.entry_count, walk.expansions);
    let room = Room::start(walk, most, words, &walk.base, node);
    sync_threads();
    let metric = Metric::from_u32(walk.metric);
    let point = walk.base.list_point(room.values, node, metric);
    let met = walk.collect::<LOADS>(&point, &room);

    // The rest of the node's own list.
    let list = walk.graph.ids.cast::<Key>().offset(node as usize * k as usize);
    let own = room.keys.offset(met as usize);
    let mut first = thread_idx_x() & !31;
    while first < k {
        keep_rolled();
        let key = if first + lane < k { list.get((first + lane) as usize) } else { NONE };
        let is_new = key != NONE && walk.insert(room.table, key as u32);
        append(is_new, room.new_count, |place| own.set(place as usize, key));
        first += PATH_THREADS;
    }
    sync_threads();
    let count = met + room.new_count.get(0);
    if metric == Metric::Cosine {
        rule_keys(walk, &room, node, count);
    }
    sync_threads();

    // The node itself may be among the keys below the bound, hence one more.
    if thread_idx_x() == 0 {
        room.new_count.set(0, 0);
    }
    let bound = bound(room.keys, count, p.limit + 1, room.ids);
    let spare: Shared<Key> = room.table.cast();
    sync_threads();
    let mut first = thread_idx_x() & !31;
    while first < count {
        keep_rolled();
        let key = if first + lane < count { room.keys.get((first + lane) as usize) } else { NONE };
        let is_near = key != NONE && (key >> 32) as u32 <= bound && key as u32 != node;
        append(is_near, room.new_count, |place| spare.set(place as usize, key));
        first += PATH_THREADS;
    }
    sync_threads();
    let len = room.new_count.get(0);
    let sorted = sort_block(spare, room.keys, len);
    let out = p.candidates.offset(line * p.limit as usize);
    let mut i = thread_idx_x();
    while i < p.limit {
        out.set(i as usize, if i < len { sorted.get(i as usize) } else { NONE });
        i += PATH_THREADS;
    }
}

/// Replaces list distances by rule distances, which order candidates under cosine. The whole block
/// calls this; a barrier follows.
#[inline(always)]
fn rule_keys<T: Element>(walk: &BeamWalk<T>, room: &Room<T>, node: u32, count: u32) {
    let point = walk.base.point(room.values, node);
    let lane = warp::lane_id();
    let mut first = thread_idx_x() / 32 * (32 / GROUP);
    while first < count {
        keep_rolled();
        let i = first + lane / GROUP;
        let id = if i < count { Some(room.keys.get(i as usize) as u32) } else { None };
        let distance = walk.base.distance(&point, id);
        // All lanes of the group have read the key.
        warp::sync();
        if let (0, Some(id)) = (lane % GROUP, id) {
            room.keys.set(i as usize, key::pack(distance, id));
        }
        first += PATH_THREADS / GROUP;
    }
}

/// A bound on the high words of keys: at least `wanted` of `count` keys are at or below it (all if
/// there are fewer), and at most [`SLACK`] more unless their distances are equal. `counts` is room
/// for 34 values. The whole block calls this after a barrier.
#[inline(always)]
fn bound(keys: Shared<Key>, count: u32, wanted: u32, counts: Shared<u32>) -> u32 {
    if count <= wanted + SLACK {
        return u32::MAX;
    }
    let thread = thread_idx_x();
    if thread < 34 {
        counts.set(thread as usize, if thread == 32 { u32::MAX } else { 0 });
    }
    sync_threads();
    let (mut low, mut high) = (u32::MAX, 0);
    each_word(keys, count, |word| (low, high) = (low.min(word), high.max(word)));
    // SAFETY: the whole warp is here.
    let (low, high) = unsafe {
        (warp_reduce(u32::MAX, low, WarpReductionOp::Min), warp_reduce(u32::MAX, high, WarpReductionOp::Max))
    };
    if warp::lane_id() == 0 {
        counts.fetch_min(32, low);
        counts.fetch_max(33, high);
    }
    sync_threads();
    // Invariant: at least `wanted` keys are at or below `high`, fewer than `wanted` are below
    // `low`.
    let (mut low, mut high, mut pass) = (counts.get(32), counts.get(33), 0);
    while low < high {
        keep_rolled();
        let middle = low + (high - low) / 2;
        let mut kept = 0;
        each_word(keys, count, |word| kept += (word <= middle) as u32);
        // SAFETY: the whole warp is here.
        let kept = unsafe { warp_reduce(u32::MAX, kept, WarpReductionOp::Add) };
        if warp::lane_id() == 0 {
            counts.fetch_add(pass, kept);
        }
        sync_threads();
        let kept = counts.get(pass);
        if kept < wanted {
            low = middle + 1;
        } else {
            high = middle;
            if kept <= wanted + SLACK {
                break;
            }
        }
        pass += 1;
    }
    high
}

/// Calls `with` with the high word of each of the thread's keys.
#[inline(always)]
fn each_word(keys: Shared<Key>, count: u32, mut with: impl FnMut(u32)) {
    let mut i = thread_idx_x();
    while i < count {
        with((keys.get(i as usize) >> 32) as u32);
        i += PATH_THREADS;
    }
}

macro_rules! path_kernels {
    ($($name:ident $type:ty, $blocks:literal blocks, $loads:literal loads;)*) => {$(
        /// Collects candidates by paths (see [`Paths`] and the module).
        ///
        /// Launch: a block of [`PATH_THREADS`] per node; [`path_shared_bytes`].
        ///
        /// # Safety
        /// - The views match the fields of [`Paths`] and [`BeamWalk`].
        #[kernel(
            unsafe,
            block = PATH_THREADS,
            shared = path_shared_bytes(p.walk.base.dim, p.walk.graph.degree, p.walk.entry_count, p.walk.expansions),
            blocks_per_multiprocessor = $blocks
        )]
        pub unsafe fn $name(p: Paths<$type>) {
            path::<$type, $loads>(&p);
        }
    )*};
}

path_kernels! {
    prune_path_f32 f32, 9 blocks, 2 loads;
    prune_path_long_f32 f32, 5 blocks, 4 loads;
    prune_path_f16 f16, 8 blocks, 4 loads;
    prune_path_u8 u8, 9 blocks, 2 loads;
    prune_path_i8 i8, 9 blocks, 2 loads;
}
