//! Phase 2: a node meets the neighbours and the reverse neighbours of its nearest neighbours.

use cuda_std::atomic::Scope;
use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::shuffle_xor;
use cuda_std::{keep_rolled, shared};

use crate::block::copied;
use crate::block::element::{TileElement, TileSum};
use crate::block::sort::sort_block;
use crate::block::table;
use crate::descent::merge::{COUNTERS, merge_flagged};
use crate::descent::sample::{GATHER, ROW};
use crate::descent::slots::unscramble;
use crate::key::{self, Key, NONE};

/// Threads of a block, which has one node.
pub const EXPAND_THREADS: u32 = 128;

/// Lanes that compute a distance together.
const LANES: u32 = 8;

/// The expansion of phase 2.
#[repr(C)]
pub struct Expand<S> {
    /// In: vectors, `stride` bytes apart, a multiple of 16, of `units` units.
    pub vectors: Global<u8>,
    /// In: one of each vector.
    pub biases: Global<S>,
    /// In: [`ROW`] ids of each node, as [`Sample`](super::sample::Sample) leaves them in phase 2.
    pub rows: Global<u32>,
    /// In and out: `k` ascending keys of each node; those that are new become unvisited.
    pub lists: GlobalMut<Key>,
    /// In and out: [`COUNTERS`] sums of how many keys were added.
    pub changes: GlobalMut<u32>,
    /// In and out: [`COUNTERS`] sums of how many distances were computed.
    pub distances: GlobalMut<u64>,
    /// Bytes from one vector to the next.
    pub stride: u32,
    /// Units of 16 bytes per vector.
    pub units: u32,
    /// What a product is multiplied by: -2 for L2, -1 for inner products.
    pub weight: S,
    /// Mixed ids in the slots.
    pub draw: u32,
    /// Length of the lists, at least 1.
    pub k: u32,
    /// Neighbours that a node expands, at least 1 (the paper's m).
    pub expand: u32,
}

copied! {
    Expand<S>;
}

/// Bytes of dynamic shared memory of the expanding kernels.
pub const fn expand_shared_bytes(k: u32, expand: u32, units: u32) -> u32 {
    // The node's vector, found keys and room to sort them, the list, the table, ids, expanded neighbours,
    // and three counts.
    units * 16
        + (2 * expand * ROW + k) * 8
        + (table::slots(k + 1 + expand * ROW) + expand * ROW + expand.next_multiple_of(4) + 4) * 4
}

#[inline(always)]
fn expand<E: TileElement>(p: &Expand<E::Sum>) {
    let (thread, node) = (thread_idx_x(), block_idx_x());
    let (k, most) = (p.k as usize, (p.expand * ROW) as usize);
    let vector: Shared<u8> = shared::dynamic(0);
    let found: Shared<Key> = vector.offset(p.units as usize * 16).cast();
    let spare = found.offset(most);
    let list = spare.offset(most);
    let known: Shared<u32> = list.offset(k).cast();
    let slots = table::slots(p.k + 1 + p.expand * ROW);
    let ids = known.offset(slots as usize);
    let parents = ids.offset(most);
    // Of parents, of ids, of found keys.
    let counts = parents.offset(p.expand.next_multiple_of(4) as usize);
    let out = p.lists.offset(node as usize * k);
    let mut i = thread;
    while i < p.k {
        list.set(i as usize, out.get(i as usize));
        i += EXPAND_THREADS;
    }
    let mut i = thread;
    while i < p.units {
        let from = p.vectors.offset(node as usize * p.stride as usize).cast::<Quad>();
        vector.cast::<Quad>().set(i as usize, from.get(i as usize));
        i += EXPAND_THREADS;
    }
    let mut i = thread;
    while i < slots {
        known.set(i as usize, table::EMPTY);
        i += EXPAND_THREADS;
    }
    if thread < 3 {
        counts.set(thread as usize, 0);
    }
    sync_threads();

    // The nearest that are unvisited: the first warp takes them, and marks them.
    if thread < 32 {
        let (mut taken, mut first) = (0, 0);
        while first < p.k && taken < p.expand {
            let i = first + thread;
            let key = if i < p.k { list.get(i as usize) } else { NONE };
            let is_new = key != NONE && key::is_unvisited(key);
            let news = warp::ballot(is_new);
            let place = taken + (news & ((1 << thread) - 1)).count_ones();
            if is_new && place < p.expand {
                parents.set(place as usize, key::id(key));
                list.set(i as usize, key::plain(key));
                out.set(i as usize, key::plain(key));
            }
            taken += news.count_ones();
            first += 32;
        }
        if thread == 0 {
            counts.set(0, if taken < p.expand { taken } else { p.expand });
        }
    }
    sync_threads();
    let parent_count = counts.get(0);
    if parent_count == 0 {
        return;
    }
    // What is known.
    let mut i = thread;
    while i <= p.k {
        let key = if i < p.k { list.get(i as usize) } else { node as Key };
        if key != NONE {
            table::insert(known, slots - 1, key::id(key));
        }
        i += EXPAND_THREADS;
    }
    sync_threads();
    // What is not, each once.
    let mut i = thread;
    while i < parent_count * ROW {
        let parent = parents.get((i / ROW) as usize);
        let mut id = p.rows.get(parent as usize * ROW as usize + (i % ROW) as usize);
        if id != u32::MAX {
            if i % ROW >= GATHER {
                id = unscramble(id, p.draw);
            }
            if table::insert(known, slots - 1, id) {
                ids.set(counts.fetch_add(1, 1) as usize, id);
            }
        }
        i += EXPAND_THREADS;
    }
    sync_threads();

    let (count, last) = (counts.get(1), key::plain(list.get(k - 1)));
    let (group, part) = (thread / LANES, thread % LANES);
    let query = vector.cast::<Quad>();
    // A group of lanes has two ids at a time, so that the loads of one run while the other is computed with.
    const STEP: u32 = EXPAND_THREADS / LANES;
    let mut first = group & !3;
    while first < count {
        let i = first + group % 4;
        let (i, other) = (i, i + STEP);
        let id = if i < count { ids.get(i as usize) } else { node };
        let other_id = if other < count { ids.get(other as usize) } else { node };
        let from = p.vectors.offset(id as usize * p.stride as usize).cast::<Quad>();
        let other_from = p.vectors.offset(other_id as usize * p.stride as usize).cast::<Quad>();
        let (bias, other_bias) = (p.biases.get(id as usize), p.biases.get(other_id as usize));
        let (mut sum, mut other_sum) = (E::Sum::default(), E::Sum::default());
        let mut unit = part;
        while unit < p.units {
            keep_rolled();
            // Two units of each at a time.
            let far = unit + LANES < p.units;
            let next = if far { unit + LANES } else { unit };
            let (one, two) = (from.get(unit as usize), other_from.get(unit as usize));
            let (one_next, two_next) = (from.get(next as usize), other_from.get(next as usize));
            let of_query = query.get(unit as usize);
            let of_query_next = if far { query.get(next as usize) } else { Quad::default() };
            sum = E::add_products(sum, one, of_query);
            other_sum = E::add_products(other_sum, two, of_query);
            sum = E::add_products(sum, one_next, of_query_next);
            other_sum = E::add_products(other_sum, two_next, of_query_next);
            unit += 2 * LANES;
        }
        let mut lanes = 1;
        while lanes < LANES {
            sum = E::Sum::plus(sum, shuffle_xor(sum, lanes));
            other_sum = E::Sum::plus(other_sum, shuffle_xor(other_sum, lanes));
            lanes *= 2;
        }
        // One lane looks at the first id, another at the second.
        let (i, id, value) = if part == 0 {
            (i, id, E::Sum::value(bias, p.weight, sum))
        } else {
            (other, other_id, E::Sum::value(other_bias, p.weight, other_sum))
        };
        let key = key::pack(value.to_f32(), id);
        // What nothing finds is infinitely far.
        if part < 2 && i < count && key < last && value < E::Sum::NEVER {
            found.set(counts.fetch_add(2, 1) as usize, key);
        }
        first += 2 * STEP;
    }
    sync_threads();
    let len = counts.get(2);
    if thread == 0 {
        p.distances.fetch_add((node % COUNTERS) as usize, count as u64, Scope::Device);
    }
    if len == 0 {
        return;
    }
    let sorted = sort_block(found, spare, len);
    let added = merge_flagged((list, p.k), (sorted, len), out, (thread, EXPAND_THREADS));
    if added > 0 {
        p.changes.fetch_add((node % COUNTERS) as usize, added, Scope::Device);
    }
}

macro_rules! expand_kernels {
    ($($name:ident $element:ty, $sum:ty;)*) => {$(
        /// Each node takes its nearest unvisited neighbours, which are visited from then on, gathers their
        /// neighbours and reverse neighbours, drops those that it knows, and keeps those that are nearer
        /// than the last of its list (see [`Expand`]).
        ///
        /// Launch: a block of [`EXPAND_THREADS`] per node; [`expand_shared_bytes`].
        ///
        /// # Safety
        /// - The views hold what [`Expand`] says.
        #[kernel(block = EXPAND_THREADS, shared = expand_shared_bytes(p.k, p.expand, p.units), blocks_per_multiprocessor = 8)]
        pub unsafe fn $name(p: Expand<$sum>) {
            expand::<$element>(&p);
        }
    )*};
}

expand_kernels! {
    descent_expand_f16 f16, f32;
    descent_expand_u8 u8, i32;
    descent_expand_i8 i8, i32;
}
