//! Phase 2: expansion. A node meets the neighbours and reverse neighbours of its nearest
//! neighbours.
//!
//! ```text
//! block = node, from the first on
//! parents = the nearest `expand` unvisited keys of the list; they become visited
//! known = hash table of the list's ids and the node
//! ids = ids in the rows of the parents that are not known, each once
//! found = keys of `ids` below the last of the list
//! sort found; merge it into the list
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | `rows` | nodes x 128 ids ([`ROW`]): neighbours, then reverse neighbours as ranks |
//! | `lists` | nodes x `k` keys, ascending |
//! | shared memory | vector, found and spare keys, list, table, ids, parents, 3 counts |
//!
//! Optimisations:
//!
//! 1. The table drops known and repeated ids before any distance is computed.
//! 2. Eight lanes compute a distance, two rows at a time and two units of 16 bytes of each: four
//!    loads per lane are under way at once. Each sum has a fixed order.
//! 3. Lists are merged by binary search of ranks, without insertion.
//!
//! Bound by memory: about 240 vectors, their ids and the list per node; 35 GB for a million nodes
//! of 128 bytes, 8 ms at the rate of an H200. Part of it comes from the L2 cache.

use cuda_std::atomic::Scope;
use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::shuffle_xor;
use cuda_std::{keep_rolled, shared};

use crate::block::copied;
use crate::block::sort::{SortedKeys, sort_block};
use crate::block::sums::{Bits, Products, TileSum};
use crate::block::table;
use crate::block::threads::Threads;
use crate::descent::merge::{COUNTERS, merge_flagged};
use crate::descent::sample::{GATHER, ROW};
use crate::descent::slots::unscramble;
use crate::key::{self, Key, NO_ID, NONE};

/// Threads of a block, one block per node.
pub const EXPAND_THREADS: u32 = 128;

/// Lanes that compute a distance together.
const LANES: u32 = 8;

/// Ids that the groups of a block compute distances of at once.
const STEP: u32 = EXPAND_THREADS / LANES;

/// The expansion of phase 2.
#[repr(C)]
pub struct Expand<S> {
    /// In: vectors of `units` units, `stride` bytes apart, a multiple of 16.
    pub vectors: Global<u8>,
    /// In: one bias per vector.
    pub biases: Global<S>,
    /// In: [`ROW`] ids per node, as [`Sample`](super::sample::Sample) leaves them in phase 2.
    pub rows: Global<u32>,
    /// In and out: `k` ascending keys per node; added keys are unvisited.
    pub lists: GlobalMut<Key>,
    /// In and out: [`COUNTERS`] partial sums of the number of added keys.
    pub changes: GlobalMut<u32>,
    /// In and out: [`COUNTERS`] partial sums of the number of computed distances.
    pub distances: GlobalMut<u64>,
    /// Bytes from one vector to the next.
    pub stride: u32,
    /// Units of 16 bytes per vector.
    pub units: u32,
    /// Factor of a product: -2 for L2, -1 for inner products.
    pub weight: S,
    /// Salt of the slots, the same as that of the sample.
    pub salt: u32,
    /// Length of the lists, at least 1.
    pub k: u32,
    /// Neighbours expanded per node, at least 1 (the paper's m).
    pub expand: u32,
    /// The node of the first block.
    pub first: u32,
    /// Unused.
    pub padding: u32,
}

copied! {
    Expand<S>;
}

/// Bytes of dynamic shared memory of the expanding kernels, in the order of `Room`.
pub const fn expand_shared_bytes(k: u32, expand: u32, units: u32) -> u32 {
    units * 16
        + (2 * expand * ROW + k) * 8
        + (table::slots(k + 1 + expand * ROW) + expand * ROW + expand.next_multiple_of(4) + 4) * 4
}

/// Shared memory of a block.
#[derive(Clone, Copy)]
struct Room {
    /// The node's vector.
    vector: Shared<Quad>,
    /// Keys below the last of the list.
    found: Shared<Key>,
    /// Room to sort `found`.
    spare: Shared<Key>,
    list: Shared<Key>,
    /// Table of `slots` slots: the list's ids, the node, and all ids met.
    known: Shared<u32>,
    slots: u32,
    /// Ids met that were not known.
    ids: Shared<u32>,
    parents: Shared<u32>,
    /// Numbers of parents, of ids, of found keys.
    counts: Shared<u32>,
}

impl<S> Expand<S> {
    /// The node of this block.
    #[inline(always)]
    fn node(&self) -> u32 {
        self.first + block_idx_x()
    }
}

impl Room {
    #[inline(always)]
    fn new<S>(p: &Expand<S>) -> Self {
        let most = (p.expand * ROW) as usize;
        let vector: Shared<u8> = shared::dynamic(0);
        let found: Shared<Key> = vector.offset(p.units as usize * 16).cast();
        let spare = found.offset(most);
        let list = spare.offset(most);
        let known: Shared<u32> = list.offset(p.k as usize).cast();
        let slots = table::slots(p.k + 1 + p.expand * ROW);
        let ids = known.offset(slots as usize);
        let parents = ids.offset(most);
        let counts = parents.offset(p.expand.next_multiple_of(4) as usize);
        Self { vector: vector.cast(), found, spare, list, known, slots, ids, parents, counts }
    }

    /// Loads the list and the vector of the block's node, and clears table and counts.
    #[inline(always)]
    fn load<S>(&self, p: &Expand<S>, out: GlobalMut<Key>) {
        let (thread, node) = (thread_idx_x(), p.node());
        let mut i = thread;
        while i < p.k {
            self.list.set(i as usize, out.get(i as usize));
            i += EXPAND_THREADS;
        }
        let mut i = thread;
        while i < p.units {
            let from = p.vectors.offset(node as usize * p.stride as usize).cast::<Quad>();
            self.vector.set(i as usize, from.get(i as usize));
            i += EXPAND_THREADS;
        }
        let mut i = thread;
        while i < self.slots {
            self.known.set(i as usize, NO_ID);
            i += EXPAND_THREADS;
        }
        if thread < 3 {
            self.counts.set(thread as usize, 0);
        }
        sync_threads();
    }

    /// Takes the nearest unvisited keys of the list as parents, and marks them as visited; returns
    /// their number. The first warp does the work.
    #[inline(always)]
    fn take_parents<S>(&self, p: &Expand<S>, out: GlobalMut<Key>) -> u32 {
        let thread = thread_idx_x();
        if thread < 32 {
            let (mut taken, mut first) = (0, 0);
            while first < p.k && taken < p.expand {
                let i = first + thread;
                let key = if i < p.k { self.list.get(i as usize) } else { NONE };
                let is_new = key != NONE && key::is_unvisited(key);
                let news = warp::ballot(is_new);
                let place = taken + warp::lanes_before(news);
                if is_new && place < p.expand {
                    self.parents.set(place as usize, key::id(key));
                    self.list.set(i as usize, key::plain(key));
                    out.set(i as usize, key::plain(key));
                }
                taken += news.count_ones();
                first += 32;
            }
            if thread == 0 {
                self.counts.set(0, if taken < p.expand { taken } else { p.expand });
            }
        }
        sync_threads();
        self.counts.get(0)
    }

    /// Gathers the ids of the parents' rows that are not known, each once.
    #[inline(always)]
    fn gather<S>(&self, p: &Expand<S>, parent_count: u32) {
        let (thread, node) = (thread_idx_x(), p.node());
        let mut i = thread;
        while i <= p.k {
            let key = if i < p.k { self.list.get(i as usize) } else { node as Key };
            if key != NONE {
                table::insert(self.known, self.slots - 1, key::id(key));
            }
            i += EXPAND_THREADS;
        }
        sync_threads();
        let mut i = thread;
        while i < parent_count * ROW {
            let parent = self.parents.get((i / ROW) as usize);
            let mut id = p.rows.get(parent as usize * ROW as usize + (i % ROW) as usize);
            if id != NO_ID {
                if i % ROW >= GATHER {
                    id = unscramble(id, p.salt);
                }
                if table::insert(self.known, self.slots - 1, id) {
                    self.ids.set(self.counts.fetch_add(1, 1) as usize, id);
                }
            }
            i += EXPAND_THREADS;
        }
        sync_threads();
    }

    /// Computes the distances of `count` gathered ids, and keeps the keys below `last`. A group of
    /// lanes has two ids at a time.
    #[inline(always)]
    fn compute<S: TileSum, E: Products<S>>(&self, p: &Expand<S>, count: u32, last: Key) {
        let (thread, node) = (thread_idx_x(), p.node());
        let (group, part) = (thread / LANES, thread % LANES);
        let mut first = group & !3;
        while first < count {
            let i = first + group % 4;
            let (i, other) = (i, i + STEP);
            let id = if i < count { self.ids.get(i as usize) } else { node };
            let other_id = if other < count { self.ids.get(other as usize) } else { node };
            let (bias, other_bias) = (p.biases.get(id as usize), p.biases.get(other_id as usize));
            let (sum, other_sum) = self.products::<S, E>(p, id, other_id);
            // The first lane of a group keeps the first id, the second lane the second one.
            let (i, id, value) = if part == 0 {
                (i, id, S::value(bias, p.weight, sum))
            } else {
                (other, other_id, S::value(other_bias, p.weight, other_sum))
            };
            let key = key::pack(value.to_f32(), id);
            // Biases of `NEVER` mark vectors that are never found.
            if part < 2 && i < count && key < last && value < S::NEVER {
                self.found.set(self.counts.fetch_add(2, 1) as usize, key);
            }
            first += 2 * STEP;
        }
        sync_threads();
    }

    /// The products of the node's vector with two others, in every lane of each group.
    #[inline(always)]
    fn products<S: TileSum, E: Products<S>>(&self, p: &Expand<S>, id: u32, other_id: u32) -> (S, S) {
        let row = |id: u32| p.vectors.offset(id as usize * p.stride as usize).cast::<Quad>();
        let (from, other_from) = (row(id), row(other_id));
        let (mut sum, mut other_sum) = (S::default(), S::default());
        let mut unit = thread_idx_x() % LANES;
        while unit < p.units {
            keep_rolled();
            let far = unit + LANES < p.units;
            let next = if far { unit + LANES } else { unit };
            let (one, two) = (from.get(unit as usize), other_from.get(unit as usize));
            let (one_next, two_next) = (from.get(next as usize), other_from.get(next as usize));
            let own = self.vector.get(unit as usize);
            let own_next = if far { self.vector.get(next as usize) } else { Quad::default() };
            sum = E::add_products(sum, one, own);
            other_sum = E::add_products(other_sum, two, own);
            sum = E::add_products(sum, one_next, own_next);
            other_sum = E::add_products(other_sum, two_next, own_next);
            unit += 2 * LANES;
        }
        let mut lanes = 1;
        while lanes < LANES {
            sum = S::plus(sum, shuffle_xor(sum, lanes));
            other_sum = S::plus(other_sum, shuffle_xor(other_sum, lanes));
            lanes *= 2;
        }
        (sum, other_sum)
    }
}

#[inline(always)]
fn expand<S: TileSum, E: Products<S>>(p: &Expand<S>) {
    let (thread, node) = (thread_idx_x(), p.node());
    let room = Room::new(p);
    let out = p.lists.offset(node as usize * p.k as usize);
    room.load(p, out);
    let parent_count = room.take_parents(p, out);
    if parent_count == 0 {
        return;
    }
    room.gather(p, parent_count);
    let (count, last) = (room.counts.get(1), key::plain(room.list.get(p.k as usize - 1)));
    room.compute::<S, E>(p, count, last);
    let len = room.counts.get(2);
    if thread == 0 {
        p.distances.fetch_add((node % COUNTERS) as usize, count as u64, Scope::Device);
    }
    if len == 0 {
        return;
    }
    let sorted = sort_block(room.found, room.spare, len);
    let added = merge_flagged(
        SortedKeys::new(room.list, p.k),
        SortedKeys::new(sorted, len),
        out,
        Threads::new(thread, EXPAND_THREADS),
    );
    if added > 0 {
        p.changes.fetch_add((node % COUNTERS) as usize, added, Scope::Device);
    }
}

macro_rules! expand_kernels {
    ($($name:ident $element:ty, $sum:ty;)*) => {$(
        /// Expands the nearest unvisited neighbours of each node, and adds nearer nodes to its list
        /// (see [`Expand`]).
        ///
        /// Launch: a block of [`EXPAND_THREADS`] per node, from the first on;
        /// [`expand_shared_bytes`].
        ///
        /// # Safety
        /// - The views have the shapes of [`Expand`].
        #[kernel(
            unsafe,
            block = EXPAND_THREADS,
            shared = expand_shared_bytes(p.k, p.expand, p.units),
            blocks_per_multiprocessor = 8
        )]
        pub unsafe fn $name(p: Expand<$sum>) {
            expand::<$sum, $element>(&p);
        }
    )*};
}

expand_kernels! {
    descent_expand_f16 f16, f32;
    descent_expand_u8 u8, i32;
    descent_expand_i8 i8, i32;
    descent_expand_b1 Bits, i32;
}
