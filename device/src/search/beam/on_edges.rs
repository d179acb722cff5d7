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
//! alone tells what was visited: a node that it has dropped may come back by an edge that estimates
//! it nearer, and one that waits in it gets the least of its estimates. That ends, since each offer
//! that changes the beam makes its keys smaller. What a search returns are distances of vectors,
//! of the nodes that it has expanded.
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `search` | see [`BeamSearch`]; its walk needs neither places, table nor width |
//! | `codes` | nodes × [`row_words`](crate::search::edges::row_words) |
//! | `queries` | queries × [`query_words`] |
//! | shared memory | the query, its code, entries of a step and their keys, the nearest nodes |
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
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared};

use super::list::Beam;
use super::search::{BeamSearch, SEARCH_COUNTERS};
use crate::block::copied;
use crate::block::element::Element;
use crate::block::exact::{Metric, query_bytes};
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

/// Dynamic shared memory in bytes.
pub const fn edge_search_shared_bytes(dim: u32, kept: u32) -> u32 {
    query_bytes(dim) + (kept + EDGE_THREADS) * 8 + (query_words(dim) + EDGE_THREADS) * 4
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

impl<T: Element> EdgeSearch<T> {
    /// Finds the nearest nodes for the block's query.
    #[inline(always)]
    fn run<const C: usize, const LOADS: usize>(&self) {
        let (lane, query, search) = (thread_idx_x(), block_idx_x(), &self.search);
        let (walk, dim) = (&search.walk, search.walk.base.dim);
        let values: Shared<T::Query> = shared::dynamic(0);
        let nearest: Shared<Key> = shared::dynamic(query_bytes(dim) as usize);
        let keys = nearest.offset(self.kept as usize);
        let ids: Shared<u32> = keys.offset(EDGE_THREADS as usize).cast();
        let code = ids.offset(EDGE_THREADS as usize);
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
        sync_threads();

        let point = search.queries.list_point(values, query, Metric::from_u32(walk.metric));
        let mut stop = walk.stop;
        if stop.takes_norm() {
            let [product] = search.queries.list_distances::<1, LOADS>(&point, [query]);
            stop = stop.of_query(sqrt(-product));
        }
        let mut beam = Beam::<C>::new(walk.beam);
        let first_entry = query as usize * walk.entry_stride as usize;
        let mut entered = 0;
        while entered < walk.entry_count {
            keep_rolled();
            let left = walk.entry_count - entered;
            let count = if left < EDGE_THREADS { left } else { EDGE_THREADS };
            let mut id = NO_ID;
            if lane < count {
                let place = (first_entry + (entered + lane) as usize) << walk.entry_shift;
                id = walk.entries.get(place);
                // Any node stands for none.
                ids.set(lane as usize, if id == NO_ID { 0 } else { id });
            }
            sync_threads();
            walk.distances::<LOADS>(&point, ids, keys, count);
            sync_threads();
            beam.offer_estimates(if id == NO_ID { NONE } else { keys.get(lane as usize) });
            sync_threads();
            entered += count;
        }

        let mut computed = entered;
        loop {
            keep_rolled();
            let last = stop.last((nearest.get(stop.rank as usize) >> 32) as u32);
            let Some(node) = beam.take(last) else { break };
            let [distance] = walk.base.list_distances::<1, LOADS>(&point, [node]);
            insert(nearest, self.kept, key::pack(distance, node));
            self.follow(&mut beam, code, node, distance);
            computed += 1;
        }

        if lane == 0 {
            search.computed.fetch_add((query % SEARCH_COUNTERS) as usize, computed as u64, Scope::Device);
        }
        let out = search.found.offset(query as usize * search.k as usize);
        let mut rank = lane;
        while rank < search.k {
            keep_rolled();
            out.set(rank as usize, nearest.get(rank as usize));
            rank += EDGE_THREADS;
        }
    }

    /// Offers the neighbours of `node`, at this distance from the query of `code`, to the beam.
    #[inline(always)]
    fn follow<const C: usize>(&self, beam: &mut Beam<C>, code: Shared<u32>, node: u32, distance: f32) {
        let (graph, dim) = (&self.search.walk.graph, self.search.walk.base.dim);
        let (words, slots) = (words(dim), slots(graph.degree) as usize);
        let codes = self.codes.offset(node as usize * (words as usize + 2) * slots);
        let step = f32::from_bits(code.get((words * PLANES) as usize));
        let sum = code.get((words * PLANES) as usize + 1) as i32;
        let mut first = 0;
        while first < graph.degree {
            keep_rolled();
            let edge = first + warp::lane_id();
            let id = if edge < graph.degree { graph.neighbor(node, edge) } else { NO_ID };
            let mut key = NONE;
            if id != NO_ID {
                let of_edge = codes.offset(edge as usize);
                let (mut ones, mut word) = (0, 0);
                while word < words {
                    keep_rolled();
                    let bits = of_edge.get(word as usize * slots);
                    for plane in 0..PLANES {
                        let both = bits & code.get((word * PLANES + plane) as usize);
                        ones += weighed(both.count_ones(), plane);
                    }
                    word += 1;
                }
                let terms = of_edge.offset(words as usize * slots);
                let (factor, offset) = (f32::from_bits(terms.get(0)), f32::from_bits(terms.get(slots)));
                key = key::pack(estimate(distance, offset, factor, product(ones, sum), step), id);
            }
            beam.offer_estimates(key);
            first += 32;
        }
    }
}

macro_rules! edge_search_kernels {
    ($($name:ident $type:ty, $keys:literal keys, $loads:literal loads;)*) => {$(
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
            shared = edge_search_shared_bytes(p.search.walk.base.dim, p.kept),
            blocks_per_multiprocessor = 32
        )]
        pub unsafe fn $name(p: EdgeSearch<$type>) {
            p.run::<$keys, $loads>();
        }
    )*};
}

edge_search_kernels! {
    edge_search_128_f32 f32, 4 keys, 4 loads;
    edge_search_128_f16 f16, 4 keys, 4 loads;
    edge_search_128_u8 u8, 4 keys, 2 loads;
    edge_search_128_i8 i8, 4 keys, 2 loads;
    edge_search_512_f32 f32, 16 keys, 4 loads;
    edge_search_512_f16 f16, 16 keys, 4 loads;
    edge_search_512_u8 u8, 16 keys, 2 loads;
    edge_search_512_i8 i8, 16 keys, 2 loads;
}
