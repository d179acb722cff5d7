//! Beam search on [codes of edges](crate::search::edges), one query per warp.
//!
//! # Algorithm
//!
//! ```text
//! for each query, one warp:
//!     beam    = the entries, by their distances; nearest = none
//!     repeat:
//!         p = the nearest node of the beam that was never expanded and is not beyond the bound of
//!             `stop`; end if there is none
//!         nearest += (list distance of p, p), if p is among the nearest so far
//!         for each edge of p, one lane:
//!             key = (estimated distance of the neighbour, id)
//!         offer the keys to the beam
//! ```
//!
//! A step reads two things whose places it knows: the row of codes, and the vector of p. The beam
//! before the step tells what was visited: a node that it has dropped may come back by an edge that
//! estimates it nearer, and one that waits in it gets the least of its estimates. That ends, since
//! each offer that changes the beam makes its keys smaller. What a search returns are distances of
//! vectors, of the nodes that it has expanded.
//!
//! A table in shared memory holds the last slot of each node that was in the beam, so each lane
//! looks its neighbour up by itself, and the warp inserts what changes the beam, about 5 of 32.
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `search` | see [`BeamSearch`]; its walk needs neither places nor width |
//! | `codes` | nodes × [`row_words`](crate::search::edges::row_words) |
//! | `queries` | queries × [`query_words`] |
//! | shared memory | the query, its code, the nearest nodes, entries of a step, the table |
//!
//! # Speed
//!
//! 128 bytes per vector, degree 32: 896 bytes of codes and 128 of edges lie in a row, and a step
//! adds one vector, 1.1 KB in place of about 3 KB of scattered vectors; of 3,840 bytes per vector,
//! 8 KB in place of 50. Counting ones takes 8 planes × dim / 32 words at a quarter of the usual
//! rate: 256 cycles of a quarter of a multiprocessor for 128 dimensions.

use cuda_std::atomic::Scope;
use cuda_std::float::sqrt;
use cuda_std::prelude::*;
use cuda_std::thread::{block_dim_x, block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared, unroll};

use super::list::{self, Beam, EXPANDED, Slot};
use super::search::{BeamSearch, SEARCH_COUNTERS};
use crate::block::copied;
use crate::block::element::Element;
use crate::block::exact::{Metric, query_bytes};
use crate::block::rows::ListPoint;
use crate::block::table;
use crate::block::threads::Threads;
use crate::key::{self, Key, NO_ID, NONE};
use crate::search::edges::{PLANES, estimate, product, query_words, slots, weighed, words};

/// Threads per block.
pub const EDGE_THREADS: u32 = 32;

/// Arguments of the kernels `edge_search_*`.
#[repr(C)]
pub struct EdgeSearch<T> {
    /// The search.
    pub search: BeamSearch<T>,
    /// In: the codes of the edges.
    pub codes: Global<u32>,
    /// In: the codes of the queries.
    pub queries: Global<u32>,
    /// Nodes whose distances are kept: at least `search.k`, and above the rank of the stop.
    pub kept: u32,
    /// Unused.
    pub padding: u32,
}

copied! {
    EdgeSearch<T>;
}

/// Slots of the table for a beam of `beam` nodes: three quarters of them hold a beam, and the edges
/// of a step at least.
pub const fn edge_table_slots(beam: u32) -> u32 {
    let slots = ((beam + EDGE_THREADS) * 4).div_ceil(3).next_power_of_two();
    if slots < SMALL_TABLE { 2 * slots } else { slots }
}

/// Slots of a table that leaves room for as many searches as a multiprocessor runs.
const SMALL_TABLE: u32 = 512;

/// Dynamic shared memory in bytes.
pub const fn edge_search_shared_bytes(dim: u32, kept: u32, slots: u32) -> u32 {
    query_bytes(dim) + (kept + slots + EDGE_THREADS) * 8 + (slots + query_words(dim) + EDGE_THREADS) * 4
}

/// Inserts a key in the ascending list `nearest` of `len` keys, unless it is there, and drops the
/// last one. The whole block calls this; a barrier ends it.
#[inline(always)]
fn insert(nearest: Shared<Key>, len: u32, key: Key) {
    let at = |i: u32| if i < len { nearest.get(i as usize) } else { NONE };
    if key >= at(len - 1) {
        return;
    }
    let lane = warp::lane_id();
    let mut first = 0;
    while first < len {
        keep_rolled();
        if warp::any(at(first + lane) == key) {
            return;
        }
        first += 32;
    }
    // From the last chunk on, so that each reads what was before it.
    while first > 0 {
        keep_rolled();
        first -= 32;
        let i = first + lane;
        let (here, before) = (at(i), if i > 0 { at(i - 1) } else { 0 });
        sync_threads();
        if i < len {
            let pushed = if before > key { before } else { key };
            nearest.set(i as usize, if here < pushed { here } else { pushed });
        }
        sync_threads();
    }
}

/// Shared memory of a block.
struct Room<T: Element> {
    /// The query's vector.
    values: Shared<T::Query>,
    /// The nearest nodes expanded, by their distances, ascending.
    nearest: Shared<Key>,
    /// For each place of `ids`, the last slot that its node had in the beam.
    held: Shared<Slot>,
    /// Keys of entries.
    keys: Shared<Key>,
    /// Table of the nodes that were in the beam; some that it has dropped are forgotten.
    ids: Shared<u32>,
    /// Entries of a step.
    entries: Shared<u32>,
    /// The query's code.
    code: Shared<u32>,
}

impl<T: Element> EdgeSearch<T> {
    /// Divides the dynamic shared memory, and loads the block's query and its code. A barrier
    /// follows.
    #[inline(always)]
    fn start(&self) -> Room<T> {
        let (lane, query, search) = (thread_idx_x(), block_idx_x(), &self.search);
        let (dim, slots) = (search.walk.base.dim, search.walk.slots as usize);
        let values = shared::dynamic(0);
        let code: Shared<u32> = shared::dynamic(query_bytes(dim) as usize);
        let nearest: Shared<Key> = code.offset(query_words(dim) as usize).cast();
        let held = nearest.offset(self.kept as usize);
        let keys = held.offset(slots);
        let ids: Shared<u32> = keys.offset(EDGE_THREADS as usize).cast();
        let entries = ids.offset(slots);
        search.queries.load(values, query, Threads::new(lane, EDGE_THREADS));
        let of_query = self.queries.offset(query as usize * query_words(dim) as usize);
        let mut i = lane;
        while i < query_words(dim) {
            keep_rolled();
            code.set(i as usize, of_query.get(i as usize));
            i += EDGE_THREADS;
        }
        let mut i = lane;
        while i < self.kept {
            keep_rolled();
            nearest.set(i as usize, NONE);
            i += EDGE_THREADS;
        }
        Room { values, nearest, held, keys, ids, entries, code }
    }

    /// Finds the nearest nodes for the block's query.
    #[inline(always)]
    fn run<const C: usize, const LOADS: usize>(&self) {
        let (lane, query, search) = (thread_idx_x(), block_idx_x(), &self.search);
        let walk = &search.walk;
        let room = self.start();
        sync_threads();
        let point = search.queries.list_point(room.values, query, Metric::from_u32(walk.metric));
        let mut stop = walk.stop;
        if stop.takes_norm() {
            let [product] = search.queries.list_distances::<1, LOADS>(&point, [query]);
            stop = stop.of_query(sqrt(-product));
        }
        let (mut beam, mut computed) = self.enter::<C, LOADS>(&point, &room);
        let mut in_table = walk.beam;
        loop {
            keep_rolled();
            let last = stop.last((room.nearest.get(stop.rank as usize) >> 32) as u32);
            let Some(node) = beam.take(last) else { break };
            let (place, _) = table::place(room.ids, walk.slots - 1, node);
            if lane == 0 {
                room.held.set(place as usize, room.held.get(place as usize) | EXPANDED);
            }
            // All that the node needs is under way at once.
            self.prefetch(node);
            let mut edge = self.load(node, lane);
            let [distance] = walk.base.list_distances::<1, LOADS>(&point, [node]);
            insert(room.nearest, self.kept, key::pack(distance, node));
            let mut first = 0;
            loop {
                keep_rolled();
                if in_table + EDGE_THREADS > walk.slots / 4 * 3 {
                    self.remember(&room, beam);
                    in_table = walk.beam;
                }
                let key = self.estimate(room.code, &edge, distance);
                in_table += self.offer(&room, &mut beam, key);
                first += EDGE_THREADS;
                if first >= walk.graph.degree {
                    break;
                }
                edge = self.load(node, first + lane);
            }
            computed += 1;
        }

        if lane == 0 {
            search.computed.fetch_add((query % SEARCH_COUNTERS) as usize, computed as u64, Scope::Device);
        }
        let out = search.found.offset(query as usize * search.k as usize);
        let mut rank = lane;
        while rank < search.k {
            keep_rolled();
            out.set(rank as usize, room.nearest.get(rank as usize));
            rank += EDGE_THREADS;
        }
    }

    /// A beam of the entries, which the table remembers, and the number of distances computed.
    #[inline(always)]
    fn enter<const C: usize, const LOADS: usize>(
        &self,
        point: &ListPoint<T>,
        room: &Room<T>,
    ) -> (Beam<C>, u32) {
        let (lane, walk) = (thread_idx_x(), &self.search.walk);
        if let Some(keys) = walk.keys() {
            let beam = Beam::load(keys, walk.entry_count, walk.beam);
            self.remember(room, beam);
            return (beam, 0);
        }
        let mut beam = Beam::new(walk.beam);
        let mut entered = 0;
        while entered < walk.entry_count {
            keep_rolled();
            // The table has room for the entries of a step beside a beam.
            self.remember(room, beam);
            let left = walk.entry_count - entered;
            let count = if left < EDGE_THREADS { left } else { EDGE_THREADS };
            if lane < count {
                room.entries.set(lane as usize, walk.entries.get((entered + lane) as usize));
            }
            sync_threads();
            walk.distances::<LOADS>(
                point,
                room.entries,
                room.keys,
                count,
                Threads::new(thread_idx_x(), block_dim_x()),
            );
            sync_threads();
            self.offer(room, &mut beam, if lane < count { room.keys.get(lane as usize) } else { NONE });
            entered += count;
        }
        (beam, entered)
    }

    /// Empties the table except for the nodes of the beam.
    #[inline(always)]
    fn remember<const C: usize>(&self, room: &Room<T>, beam: Beam<C>) {
        let slots = self.search.walk.slots;
        sync_threads();
        let mut i = thread_idx_x();
        while i < slots {
            keep_rolled();
            room.ids.set(i as usize, NO_ID);
            i += EDGE_THREADS;
        }
        sync_threads();
        beam.each_slot(|slot| {
            let (place, _) = table::place(room.ids, slots - 1, list::id(slot));
            room.held.set(place as usize, slot);
        });
        sync_threads();
    }

    /// Offers the lane's key, an estimate, or [`NONE`], to the beam: a node gets the least of its
    /// estimates unless it was expanded and is in the beam. Returns the number of nodes that are
    /// new in the table.
    #[inline(always)]
    fn offer<const C: usize>(&self, room: &Room<T>, beam: &mut Beam<C>, key: Key) -> u32 {
        let (slot, last) = (if key == NONE { NONE } else { list::slot(key) }, beam.last());
        let (mut old, mut is_unknown) = (0, false);
        if slot < last {
            let place;
            (place, is_unknown) = table::place(room.ids, self.search.walk.slots - 1, list::id(slot));
            old = if is_unknown { NONE } else { room.held.get(place as usize) };
            // In the beam and expanded: it stays. Not in the beam: it is above the last slot.
            if !is_unknown && old & EXPANDED != 0 && old <= last {
                old = 0;
            }
            if slot < old {
                room.held.set(place as usize, slot);
            }
        }
        beam.replace(slot < old, slot, old);
        // The next step reads what this one wrote.
        sync_threads();
        warp::ballot(is_unknown).count_ones()
    }

    /// Fetches the vector of `node`, if its distance takes several rounds of loads.
    #[inline(always)]
    fn prefetch(&self, node: u32) {
        const SECTOR: usize = 32;
        let base = &self.search.walk.base;
        let (row, bytes) = (base.row(node).cast::<u8>(), base.dim as usize * size_of::<T>());
        let mut at = thread_idx_x() as usize * SECTOR;
        while at < bytes {
            keep_rolled();
            row.prefetch(at);
            at += EDGE_THREADS as usize * SECTOR;
        }
    }

    /// Begins to load the codes of edge `edge` of `node`.
    #[inline(always)]
    fn load(&self, node: u32, edge: u32) -> EdgeCode {
        let (graph, dim) = (&self.search.walk.graph, self.search.walk.base.dim);
        let (words, slots) = (words(dim), slots(graph.degree) as usize);
        // A lane without an edge reads the last slot.
        let slot = if (edge as usize) < slots { edge as usize } else { slots - 1 };
        let bits = self.codes.offset(node as usize * (words as usize + 2) * slots + slot);
        let terms = bits.offset(words as usize * slots);
        EdgeCode {
            id: if edge < graph.degree { graph.neighbor(node, edge) } else { NO_ID },
            bits,
            first: Self::words(bits, 0, words, slots),
            factor: f32::from_bits(terms.get(0)),
            offset: f32::from_bits(terms.get(slots)),
        }
    }

    /// The words of an edge from `word` on; zeros beyond the last.
    #[inline(always)]
    fn words(bits: Global<u32>, word: u32, words: u32, slots: usize) -> [u32; WORDS] {
        let mut loaded = [0; WORDS];
        unroll!(4, W => {
            if word + (W as u32) < words {
                loaded[W] = bits.get((word as usize + W) * slots);
            }
        });
        loaded
    }

    /// The key of the neighbour at an edge of a node that lies at `distance` from the query of
    /// `code`; [`NONE`] if there is no edge.
    #[inline(always)]
    fn estimate(&self, code: Shared<u32>, edge: &EdgeCode, distance: f32) -> Key {
        let (words, slots) =
            (words(self.search.walk.base.dim), slots(self.search.walk.graph.degree) as usize);
        let (mut ones, mut word, mut loaded) = (0, 0, edge.first);
        while word < words {
            keep_rolled();
            // The next words are under way while these are counted.
            let next = Self::words(edge.bits, word + WORDS as u32, words, slots);
            unroll!(4, W => {
                if word + (W as u32) < words {
                    let of_query = (word as usize + W) * PLANES as usize;
                    let planes = [code.get_quad(of_query), code.get_quad(of_query + 4)];
                    unroll!(4, P => {
                        ones += weighed((loaded[W] & planes[0].0[P]).count_ones(), P as u32);
                        ones += weighed((loaded[W] & planes[1].0[P]).count_ones(), P as u32 + 4);
                    });
                }
            });
            loaded = next;
            word += WORDS as u32;
        }
        let step = f32::from_bits(code.get((words * PLANES) as usize));
        let sum = code.get((words * PLANES) as usize + 1) as i32;
        let estimate = estimate(distance, edge.offset, edge.factor, product(ones, sum), step);
        if edge.id == NO_ID { NONE } else { key::pack(estimate, edge.id) }
    }
}

/// Words of an edge that are loaded at once.
const WORDS: usize = 4;

/// The codes of an edge.
struct EdgeCode {
    /// The node that it leads to; [`NO_ID`] if there is no edge.
    id: u32,
    bits: Global<u32>,
    /// The first words.
    first: [u32; WORDS],
    factor: f32,
    offset: f32,
}

macro_rules! edge_search_kernels {
    ($($name:ident $type:ty, $keys:literal keys, $blocks:literal blocks, $loads:literal loads;)*) => {$(
        /// Finds the nearest nodes of queries by beam search on codes of edges (see [`EdgeSearch`]
        /// and the module).
        ///
        #[doc = concat!("Keys per lane: ", stringify!($keys), ", a beam of up to 32 times as many nodes.")]
        ///
        /// Launch: a block of [`EDGE_THREADS`] per query; [`edge_search_shared_bytes`].
        ///
        /// # Safety
        /// - The views match the fields of [`EdgeSearch`] and [`BeamSearch`].
        #[kernel(
            unsafe,
            block = EDGE_THREADS,
            shared = edge_search_shared_bytes(p.search.walk.base.dim, p.kept, p.search.walk.slots),
            blocks_per_multiprocessor = $blocks
        )]
        pub unsafe fn $name(p: EdgeSearch<$type>) {
            p.run::<$keys, $loads>();
        }
    )*};
}

edge_search_kernels! {
    edge_search_64_f32 f32, 2 keys, 24 blocks, 3 loads;
    edge_search_64_f16 f16, 2 keys, 28 blocks, 4 loads;
    edge_search_64_u8 u8, 2 keys, 32 blocks, 2 loads;
    edge_search_64_i8 i8, 2 keys, 32 blocks, 2 loads;
    edge_search_128_f32 f32, 4 keys, 24 blocks, 2 loads;
    edge_search_128_f16 f16, 4 keys, 28 blocks, 4 loads;
    edge_search_128_u8 u8, 4 keys, 32 blocks, 2 loads;
    edge_search_128_i8 i8, 4 keys, 32 blocks, 2 loads;
    edge_search_256_f32 f32, 8 keys, 18 blocks, 3 loads;
    edge_search_256_f16 f16, 8 keys, 20 blocks, 4 loads;
    edge_search_256_u8 u8, 8 keys, 24 blocks, 2 loads;
    edge_search_256_i8 i8, 8 keys, 24 blocks, 2 loads;
    edge_search_512_f32 f32, 16 keys, 16 blocks, 4 loads;
    edge_search_512_f16 f16, 16 keys, 16 blocks, 4 loads;
    edge_search_512_u8 u8, 16 keys, 16 blocks, 2 loads;
    edge_search_512_i8 i8, 16 keys, 16 blocks, 2 loads;
}
