//! Beam search for queries.
//!
//! # Algorithm
//!
//! ```text
//! for each query, one block:
//!     search the graph for the query                       (super::walk)
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
//! | shared memory | that of [`walk_shared_bytes`] with the keys of one step |
//!
//! # Optimisations
//!
//! Those of [`super::walk`], and:
//!
//! 1. Kernels differ in the keys per lane, so that a small beam takes few registers and more blocks
//!    fit a multiprocessor.
//! 2. Blocks spread their counts over [`SEARCH_COUNTERS`] counters, so that atomics do not queue.
//!
//! # Speed
//!
//! As in [`super::walk`]: memory bounds large batches, latency small ones.

use cuda_std::atomic::Scope;
use cuda_std::float::sqrt;
use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};

use super::list::Beam;
use super::walk::{BeamWalk, Room, step_ids, walk_shared_bytes};
use crate::block::copied;
use crate::block::element::Element;
use crate::block::exact::Metric;
use crate::block::rows::{ListPoint, Rows};
use crate::key::Key;

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
    /// Unused.
    pub padding: u32,
}

copied! {
    BeamSearch<T>;
}

/// Dynamic shared memory in bytes.
pub const fn search_shared_bytes(dim: u32, degree: u32, width: u32, slots: u32) -> u32 {
    let ids = step_ids(degree, width);
    walk_shared_bytes(dim, ids, slots, ids, width)
}

/// Usual slots of the table for a beam of `beam` nodes.
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

/// Writes the keys that `search` finds for the block's query.
#[inline(always)]
pub(super) fn find<T: Element, const C: usize, const LOADS: usize>(
    p: &BeamSearch<T>,
    search: impl FnOnce(&ListPoint<T>, &Room<T>) -> (Beam<C>, u32),
) {
    let (thread, query) = (thread_idx_x(), block_idx_x());
    let walk = &p.walk;
    let keys = step_ids(walk.graph.degree, walk.width);
    let room = Room::start(walk, keys, walk.slots, &p.queries, query);
    sync_threads();
    let point = p.queries.list_point(room.values, query, Metric::from_u32(walk.metric));
    let mut stop = walk.stop;
    if stop.takes_norm() {
        let [product] = p.queries.list_distances::<1, LOADS>(&point, [query]);
        stop = stop.of_query(sqrt(-product));
    }
    if thread == 0 {
        room.slack.set(0, stop.slack);
    }
    let (beam, computed) = search(&point, &room);
    if thread == 0 {
        p.computed.fetch_add((query % SEARCH_COUNTERS) as usize, computed as u64, Scope::Device);
    }
    if thread < 32 {
        let out = p.found.offset(query as usize * p.k as usize);
        beam.each(walk.beam, |rank, key| {
            if rank < p.k {
                out.set(rank as usize, key);
            }
        });
    }
}

macro_rules! search_kernels {
    ($($name:ident $type:ty, $keys:literal keys, $blocks:literal blocks, $partial:literal, $loads:literal loads;)*) => {$(
        /// Finds the nearest nodes of queries by beam search (see [`BeamSearch`] and the module).
        ///
        #[doc = concat!("Keys per lane: ", stringify!($keys), ", a beam of up to 32 times as many nodes.")]
        #[doc = concat!("Graph over some of the nodes: ", $partial, ".")]
        ///
        /// Launch: a block per query, of any number of warps; [`search_shared_bytes`].
        ///
        /// # Safety
        /// - The views match the fields of [`BeamSearch`] and [`BeamWalk`].
        #[kernel(
            unsafe,
            block = 32..=SEARCH_THREADS,
            shared = search_shared_bytes(p.walk.base.dim, p.walk.graph.degree, p.walk.width, p.walk.slots),
            blocks_per_multiprocessor = $blocks
        )]
        pub unsafe fn $name(p: BeamSearch<$type>) {
            find::<_, _, $loads>(&p, |point, room| p.walk.search::<$keys, $partial, $loads>(point, room));
        }
    )*};
}

search_kernels! {
    beam_search_64_f32 f32, 2 keys, 3 blocks, false, 4 loads;
    beam_search_64_f16 f16, 2 keys, 4 blocks, false, 4 loads;
    beam_search_64_u8 u8, 2 keys, 4 blocks, false, 2 loads;
    beam_search_64_i8 i8, 2 keys, 4 blocks, false, 2 loads;
    beam_search_128_f32 f32, 4 keys, 3 blocks, false, 3 loads;
    beam_search_128_f16 f16, 4 keys, 4 blocks, false, 4 loads;
    beam_search_128_u8 u8, 4 keys, 4 blocks, false, 2 loads;
    beam_search_128_i8 i8, 4 keys, 4 blocks, false, 2 loads;
    beam_search_256_f32 f32, 8 keys, 2 blocks, false, 4 loads;
    beam_search_256_f16 f16, 8 keys, 3 blocks, false, 4 loads;
    beam_search_256_u8 u8, 8 keys, 3 blocks, false, 2 loads;
    beam_search_256_i8 i8, 8 keys, 3 blocks, false, 2 loads;
    beam_search_512_f32 f32, 16 keys, 2 blocks, false, 4 loads;
    beam_search_512_f16 f16, 16 keys, 2 blocks, false, 4 loads;
    beam_search_512_u8 u8, 16 keys, 2 blocks, false, 2 loads;
    beam_search_512_i8 i8, 16 keys, 2 blocks, false, 2 loads;
    beam_search_layer_f32 f32, 2 keys, 3 blocks, true, 4 loads;
    beam_search_layer_f16 f16, 2 keys, 4 blocks, true, 4 loads;
    beam_search_layer_u8 u8, 2 keys, 4 blocks, true, 2 loads;
    beam_search_layer_i8 i8, 2 keys, 4 blocks, true, 2 loads;
}
