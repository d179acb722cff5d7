//! Collect by paths: the candidates of a node are what a short search for it meets, and its own list (paper section 5.1).

use cuda_std::keep_rolled;
use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::{WarpReductionOp, warp_reduce};

use crate::block::copied;
use crate::block::element::{Element, GROUP};
use crate::block::exact::Metric;
use crate::block::sort::sort_block;
use crate::descent::key::{self, Key, NONE};
use crate::search::beam::walk::{Room, BeamWalk, append, step_ids, walk_shared_bytes};

/// Threads of a block, which has one node.
pub const PATH_THREADS: u32 = 128;

/// So many more candidates than are wanted may be sorted, so that the bound is found sooner.
const SLACK: u32 = 32;

/// The nodes whose candidates are wanted.
#[repr(C)]
pub struct Paths<T> {
    /// The search for a node: on the k-NN lists, at most as many `expansions` as the `beam` has nodes, 32 at most, in
    /// steps of one, and [`path_slots`].
    pub walk: BeamWalk<T>,
    /// In: the nodes, a row to a block.
    pub nodes: Global<u32>,
    /// Out: of each of the nodes the nearest `limit` different candidates, without itself:
    /// ascending keys of their order distances, [`NONE`] behind the last.
    pub candidates: GlobalMut<Key>,
    /// Candidates per node, at least 1.
    pub limit: u32,
    /// Nothing.
    pub padding: u32,
}

copied! {
    Paths<T>;
}

/// The most nodes that a search meets, with those of the node's own list of `k`.
const fn most_met(k: u32, entries: u32, expansions: u32) -> u32 {
    (entries + (expansions + 1) * k).next_multiple_of(4)
}

/// Slots of the table of nodes met. Its memory is room for sorting afterwards.
pub const fn path_slots(k: u32, entries: u32, expansions: u32) -> u32 {
    (most_met(k, entries, expansions) * 3 / 2).next_power_of_two()
}

/// Words of the table's memory.
const fn table_words(k: u32, entries: u32, expansions: u32) -> u32 {
    let (slots, spare) = (path_slots(k, entries, expansions), 2 * most_met(k, entries, expansions));
    if slots < spare { spare } else { slots }
}

/// Bytes of dynamic shared memory of the kernels of paths.
pub const fn path_shared_bytes(dim: u32, k: u32, entries: u32, expansions: u32) -> u32 {
    let words = table_words(k, entries, expansions);
    walk_shared_bytes(dim, most_met(k, entries, expansions), words, step_ids(k, 1), 1)
}

#[inline(always)]
fn path<T: Element>(p: &Paths<T>) {
    let (walk, k) = (&p.walk, p.walk.graph.degree);
    let (line, lane) = (block_idx_x() as usize, warp::lane_id());
    let node = p.nodes.get(line);
    let (most, words) =
        (most_met(k, walk.entry_count, walk.expansions), table_words(k, walk.entry_count, walk.expansions));
    let room = Room::start(walk, (most, words), &walk.base, node);
    sync_threads();
    let metric = Metric::from_u32(walk.metric);
    let point = walk.base.list_point(room.values, node, metric);
    let (_, met) = walk.run::<1, true, false>(&point, &room);

    // The node's own list, where it was not met.
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

    // What is near enough, without the node itself, which is one of them or none.
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

/// Puts rule distances in the place of list distances, as cosine orders candidates; the whole block
/// calls this, a barrier follows.
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

/// A bound on the high words of keys that at least `wanted` of `count` keys keep, or all if there are fewer, and if
/// possible few more. `counts` is room for 34 values. The whole block calls this, after a barrier.
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
    // Bisection: as many are wanted as the upper end keeps, and fewer than that are below the lower end.
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

/// Calls `with` with the high words of the thread's share of `count` keys.
#[inline(always)]
fn each_word(keys: Shared<Key>, count: u32, mut with: impl FnMut(u32)) {
    let mut i = thread_idx_x();
    while i < count {
        with((keys.get(i as usize) >> 32) as u32);
        i += PATH_THREADS;
    }
}

macro_rules! path_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Collects candidates on the way of a search for each node (see [`Paths`]).
        ///
        /// Launch: a block of [`PATH_THREADS`] per node; [`path_shared_bytes`].
        ///
        /// # Safety
        /// - The views hold what [`Paths`] and [`BeamWalk`] say.
        #[kernel(
            block = PATH_THREADS,
            shared = path_shared_bytes(p.walk.base.dim, p.walk.graph.degree, p.walk.entry_count, p.walk.expansions),
            blocks_per_multiprocessor = 9
        )]
        pub unsafe fn $name(p: Paths<$type>) {
            path(&p);
        }
    )*};
}

path_kernels! {
    prune_path_f32 f32;
    prune_path_f16 f16;
    prune_path_u8 u8;
    prune_path_i8 i8;
}
