//! Beam search for queries.

use cuda_std::atomic::Scope;
use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};

use super::walk::{Room, BeamWalk, step_ids, walk_shared_bytes};
use crate::block::copied;
use crate::block::element::Element;
use crate::block::exact::Metric;
use crate::block::rows::Rows;
use crate::descent::key::Key;

/// The most threads of a block.
pub const SEARCH_THREADS: u32 = 256;

/// Counters of distances, so that blocks do not wait for one another.
pub const SEARCH_COUNTERS: u32 = 32;

/// The search of queries.
#[repr(C)]
pub struct BeamSearch<T> {
    /// What is searched, and how far.
    pub walk: BeamWalk<T>,
    /// In: a vector per block, as the base's; of their lifts only the signs count.
    pub queries: Rows<T>,
    /// Out: the `k` nearest of each query, ascending; [`NONE`](crate::descent::key::NONE) where fewer were found.
    pub found: GlobalMut<Key>,
    /// In and out: [`SEARCH_COUNTERS`] sums of how many distances were computed.
    pub computed: GlobalMut<u64>,
    /// Keys per query, at most as many as the beam has.
    pub k: u32,
    /// Nothing.
    pub padding: u32,
}

copied! {
    BeamSearch<T>;
}

/// Bytes of dynamic shared memory of the searching kernels.
pub const fn search_shared_bytes(dim: u32, degree: u32, width: u32, slots: u32) -> u32 {
    let ids = step_ids(degree, width);
    walk_shared_bytes(dim, ids, slots, ids, width)
}

/// Slots of the table of a search by a beam of `beam` nodes: room for about as many ids as it meets, so that it is rarely
/// emptied; a larger one would leave less room for other searches. Where shared memory is too small for it,
/// [`least_slots`](super::walk::least_slots) do.
pub const fn table_slots(beam: u32, step_ids: u32) -> u32 {
    let (met, step) = (12 * beam, 2 * (beam + step_ids));
    (if met < step { step } else { met }).next_power_of_two()
}

#[inline(always)]
fn search<T: Element, const C: usize, const PLACED: bool>(p: &BeamSearch<T>) {
    let (thread, query) = (thread_idx_x(), block_idx_x());
    let walk = &p.walk;
    let room = Room::start(walk, (step_ids(walk.graph.degree, walk.width), walk.slots), &p.queries, query);
    sync_threads();
    let point = p.queries.list_point(room.values, query, Metric::from_u32(walk.metric));
    let (beam, computed) = walk.run::<C, false, PLACED>(&point, &room);
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
    ($($name:ident $type:ty, $keys:literal keys, $blocks:literal blocks, $placed:literal;)*) => {$(
        /// Finds the nearest nodes of queries by beam search (see [`BeamSearch`]), with a beam of up to 32 nodes for each of
        #[doc = concat!("the ", stringify!($keys), " keys of a lane.")]
        ///
        #[doc = concat!("Whether the graph is one over some of the nodes: ", $placed, ".")]
        ///
        /// Launch: a block per query, of any number of warps: they share the ids of a step. [`search_shared_bytes`].
        ///
        /// # Safety
        /// - The views hold what [`BeamSearch`] and [`BeamWalk`] say.
        #[kernel(
            block = 32..=SEARCH_THREADS,
            shared = search_shared_bytes(p.walk.base.dim, p.walk.graph.degree, p.walk.width, p.walk.slots),
            blocks_per_multiprocessor = $blocks
        )]
        pub unsafe fn $name(p: BeamSearch<$type>) {
            search::<$type, $keys, $placed>(&p);
        }
    )*};
}

search_kernels! {
    beam_search_64_f32 f32, 2 keys, 4 blocks, false;
    beam_search_64_f16 f16, 2 keys, 4 blocks, false;
    beam_search_64_u8 u8, 2 keys, 4 blocks, false;
    beam_search_64_i8 i8, 2 keys, 4 blocks, false;
    beam_search_128_f32 f32, 4 keys, 4 blocks, false;
    beam_search_128_f16 f16, 4 keys, 4 blocks, false;
    beam_search_128_u8 u8, 4 keys, 4 blocks, false;
    beam_search_128_i8 i8, 4 keys, 4 blocks, false;
    beam_search_256_f32 f32, 8 keys, 3 blocks, false;
    beam_search_256_f16 f16, 8 keys, 3 blocks, false;
    beam_search_256_u8 u8, 8 keys, 3 blocks, false;
    beam_search_256_i8 i8, 8 keys, 3 blocks, false;
    beam_search_512_f32 f32, 16 keys, 2 blocks, false;
    beam_search_512_f16 f16, 16 keys, 2 blocks, false;
    beam_search_512_u8 u8, 16 keys, 2 blocks, false;
    beam_search_512_i8 i8, 16 keys, 2 blocks, false;
    beam_search_layer_f32 f32, 2 keys, 4 blocks, true;
    beam_search_layer_f16 f16, 2 keys, 4 blocks, true;
    beam_search_layer_u8 u8, 2 keys, 4 blocks, true;
    beam_search_layer_i8 i8, 2 keys, 4 blocks, true;
}
