//! Beam search for queries.
//!
//! # Algorithm
//!
//! ```text
//! for each query, one block:
//!     search the graph for the query                       (super::by_warp, super::by_block)
//!     write the nearest `k` keys of the beam
//!     add the number of distances to a counter
//! ```
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `walk` | base, graph and entries, see [`BeamWalk`] |
//! | `queries` | queries × dim, see [`Rows`] |
//! | `found` | queries × `k` keys, ascending, [`NONE`](crate::key::NONE) after the last |
//! | `computed` | [`SEARCH_COUNTERS`] sums |
//! | shared memory | [`warp_search_shared_bytes`], [`block_search_shared_bytes`] |
//!
//! # Optimisations
//!
//! 1. A block of one warp needs no barrier, and 32 of them share a multiprocessor.
//! 2. Kernels differ in the length of the beam, so that bisection and moves are unrolled.
//! 3. Blocks spread their counts over [`SEARCH_COUNTERS`] counters, so that atomics do not queue.
//!
//! # Speed
//!
//! sift on an H200, beam 64: 55 steps and 1,350 distances, 180 KB of rows and edges. At 4.3 TB/s
//! that is 24 million queries a second. A step takes about 650 instructions, 36,000 a query: 29
//! million a second on 132 multiprocessors at 1.98 GHz. Measured are 16 million, at 63 % of the
//! instructions and 39 % of the memory: the 24 warps that a multiprocessor holds on average wait
//! for rows a quarter of the time.

use cuda_std::atomic::Scope;
use cuda_std::float::sqrt;
use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};

use super::by_block::{BlockRoom, block_search_shared_bytes};
use super::by_warp::{WarpRoom, warp_search_shared_bytes};
use super::stop::Stop;
use super::walk::BeamWalk;
use crate::block::copied;
use crate::block::element::Element;
use crate::block::exact::Metric;
use crate::block::rows::{ListPoint, Rows};
use crate::key::Key;

/// Threads of a block that searches by a warp.
pub const WARP_THREADS: u32 = 32;

/// Maximum number of threads per block.
pub const SEARCH_THREADS: u32 = 256;

/// Counters of distances.
pub const SEARCH_COUNTERS: u32 = 32;

/// Arguments of the kernels `beam_search_*`.
#[repr(C)]
pub struct BeamSearch<T> {
    /// The search.
    pub walk: BeamWalk<T>,
    /// In: one query per block, in the layout of the base. Only the signs of their lifts count.
    pub queries: Rows<T>,
    /// Out: per query the `k` nearest keys, ascending, then [`NONE`](crate::key::NONE).
    pub found: GlobalMut<Key>,
    /// In and out: [`SEARCH_COUNTERS`] sums of distances computed.
    pub computed: GlobalMut<u64>,
    /// Keys per query, at most the nodes of the beam.
    pub k: u32,
    /// For kernels `beam_search_wide_*`: whether the graph is one over some of the nodes.
    pub is_partial: u32,
}

copied! {
    BeamSearch<T>;
}

/// Usual slots of the table of a search among nodes that pass a filter, for a beam of `beam` nodes.
///
/// They hold about as many ids as a search visits, so the table is rarely emptied; above 1,024
/// slots half as many, so that more searches fit a multiprocessor: 10 to 35 % faster at beams of
/// 100 to 256 (benches/results/search.md). Where shared memory is too small,
/// [`least_slots`](super::walk::least_slots) are enough.
pub const fn table_slots(beam: u32, step_ids: u32) -> u32 {
    let (met, step) = (12 * beam, 2 * (beam + step_ids));
    let slots = (if met < step { step } else { met }).next_power_of_two();
    if slots > LARGE_TABLE && slots / 2 >= step { slots / 2 } else { slots }
}

/// Slots of a table that leaves room for as many searches as a multiprocessor runs.
const LARGE_TABLE: u32 = 1024;

/// Slots of the table of a search by a warp. It forgets, so any power of two from 2 on will do.
pub const fn warp_table_slots(beam: u32) -> u32 {
    let slots = (12 * beam).next_power_of_two();
    if slots > LARGE_TABLE { slots / 2 } else { slots }
}

/// Usual slots of the table of a search by several warps: few searches share a multiprocessor, and
/// a lookup in a table with much room takes one step.
pub const fn block_table_slots(beam: u32, step_ids: u32) -> u32 {
    (32 * beam + 4 * step_ids).next_power_of_two()
}

impl<T: Element> BeamSearch<T> {
    /// The block's query, which `values` holds, and when its search stops.
    #[inline(always)]
    pub(super) fn point<const LOADS: usize>(&self, values: Shared<T::Query>) -> (ListPoint<T>, Stop) {
        let query = block_idx_x();
        let point = self.queries.list_point(values, query, Metric::from_u32(self.walk.metric));
        let mut stop = self.walk.stop;
        if stop.takes_norm() {
            let [product] = self.queries.list_distances::<1, LOADS>(&point, [query]);
            stop = stop.of_query(sqrt(-product));
        }
        (point, stop)
    }

    /// Counts the distances that the block has computed.
    #[inline(always)]
    pub(super) fn count(&self, computed: u32) {
        if thread_idx_x() == 0 {
            let counter = block_idx_x() % SEARCH_COUNTERS;
            self.computed.fetch_add(counter as usize, computed as u64, Scope::Device);
        }
    }

    /// Writes the key of rank `rank`, if it is wanted.
    #[inline(always)]
    pub(super) fn write(&self, rank: u32, key: Key) {
        if rank < self.k {
            self.found.set(block_idx_x() as usize * self.k as usize + rank as usize, key);
        }
    }
}

macro_rules! search_kernels {
    ($($name:ident $type:ty, $keys:literal keys, $blocks:literal blocks, $partial:literal, $loads:literal loads;)*) => {$(
        /// Finds the nearest nodes of queries by beam search (see [`BeamSearch`] and
        /// [`super::by_warp`]).
        ///
        #[doc = concat!("Keys per lane: ", stringify!($keys), ", a beam of up to 32 times as many nodes.")]
        #[doc = concat!("Graph over some of the nodes: ", $partial, ".")]
        ///
        /// Launch: a warp per query; [`warp_search_shared_bytes`].
        ///
        /// # Safety
        /// - The views match the fields of [`BeamSearch`] and [`BeamWalk`].
        #[kernel(
            unsafe,
            block = WARP_THREADS,
            shared = warp_search_shared_bytes(p.walk.base.dim, 32 * $keys, p.walk.slots),
            blocks_per_multiprocessor = $blocks
        )]
        pub unsafe fn $name(p: BeamSearch<$type>) {
            let room = WarpRoom::<_, $keys>::start(&p.walk, &p.queries, block_idx_x());
            warp::sync();
            let (point, stop) = p.point::<$loads>(room.values);
            if thread_idx_x() == 0 {
                room.slack.set(0, stop.slack);
                room.computed.set(0, 0);
            }
            warp::sync();
            p.walk.search_by_warp::<$keys, $partial, $loads>(&point, &room);
            p.count(room.computed.get(0));
            room.beam.each(|rank, key| p.write(rank, key));
        }
    )*};
}

search_kernels! {
    beam_search_64_f32 f32, 2 keys, 20 blocks, false, 4 loads;
    beam_search_64_f16 f16, 2 keys, 28 blocks, false, 4 loads;
    beam_search_64_u8 u8, 2 keys, 32 blocks, false, 2 loads;
    beam_search_64_i8 i8, 2 keys, 32 blocks, false, 2 loads;
    beam_search_128_f32 f32, 4 keys, 24 blocks, false, 3 loads;
    beam_search_128_f16 f16, 4 keys, 28 blocks, false, 4 loads;
    beam_search_128_u8 u8, 4 keys, 32 blocks, false, 2 loads;
    beam_search_128_i8 i8, 4 keys, 32 blocks, false, 2 loads;
    beam_search_256_f32 f32, 8 keys, 20 blocks, false, 4 loads;
    beam_search_256_f16 f16, 8 keys, 20 blocks, false, 4 loads;
    beam_search_256_u8 u8, 8 keys, 20 blocks, false, 2 loads;
    beam_search_256_i8 i8, 8 keys, 20 blocks, false, 2 loads;
    beam_search_512_f32 f32, 16 keys, 16 blocks, false, 4 loads;
    beam_search_512_f16 f16, 16 keys, 16 blocks, false, 4 loads;
    beam_search_512_u8 u8, 16 keys, 16 blocks, false, 2 loads;
    beam_search_512_i8 i8, 16 keys, 16 blocks, false, 2 loads;
    beam_search_layer_f32 f32, 2 keys, 24 blocks, true, 3 loads;
    beam_search_layer_f16 f16, 2 keys, 28 blocks, true, 4 loads;
    beam_search_layer_u8 u8, 2 keys, 28 blocks, true, 2 loads;
    beam_search_layer_i8 i8, 2 keys, 28 blocks, true, 2 loads;
}

macro_rules! wide_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Finds the nearest nodes of queries, several steps of a beam search at once (see
        /// [`BeamSearch`] and [`super::by_block`]).
        ///
        /// Launch: a block per query, of any number of warps; [`block_search_shared_bytes`].
        ///
        /// # Safety
        /// - The views match the fields of [`BeamSearch`] and [`BeamWalk`].
        #[kernel(
            unsafe,
            block = 32..=SEARCH_THREADS,
            shared = block_search_shared_bytes(
                p.walk.base.dim, p.walk.beam, p.walk.graph.degree, p.walk.width, p.walk.slots
            ),
            blocks_per_multiprocessor = 2
        )]
        pub unsafe fn $name(p: BeamSearch<$type>) {
            let room = BlockRoom::start(&p.walk, &p.queries, block_idx_x());
            sync_threads();
            let (point, stop) = p.point::<2>(room.values);
            p.count(p.walk.search_by_block(&point, &room, stop, p.is_partial != 0));
            p.walk.each_of_block(&room, |rank, key| p.write(rank, key));
        }
    )*};
}

wide_kernels! {
    beam_search_wide_f32 f32;
    beam_search_wide_f16 f16;
    beam_search_wide_u8 u8;
    beam_search_wide_i8 i8;
}
