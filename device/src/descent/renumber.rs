//! Renumbering: vectors move to new places, and ids follow.
//!
//! ```text
//! renumber_vectors: warp = place: to[place] = from[order[place]]; places[order[place]] = place
//! renumber_ids: thread = id: ids[i] = places[ids[i]]
//! ```
//!
//! Nodes that are near in the graph are then near in memory, and gathers of phase 2 come from the
//! L2 cache. Bound by memory: each vector is read and written once.

use cuda_std::prelude::*;

/// Threads of a block.
pub const RENUMBER_THREADS: u32 = 256;

/// The move of vectors to their places.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Renumber {
    /// In: vectors, `units` units of 16 bytes apart.
    pub from: Global<Quad>,
    /// Out: the vectors in the order of their places.
    pub to: GlobalMut<Quad>,
    /// In: the bits of one value per vector.
    pub biases: Global<u32>,
    /// Out: the values in the order of their places.
    pub biases_to: GlobalMut<u32>,
    /// In: the vector of each place.
    pub order: Global<u32>,
    /// Out: the place of each vector.
    pub places: GlobalMut<u32>,
    /// Number of vectors.
    pub count: u32,
    /// Units of 16 bytes from one vector to the next.
    pub units: u32,
}

/// Moves vectors and their values to their places (see [`Renumber`]).
///
/// Launch: a block of [`RENUMBER_THREADS`] per `RENUMBER_THREADS / 32` places.
///
/// # Safety
/// - The views have the shapes of [`Renumber`].
#[kernel(block = RENUMBER_THREADS)]
pub unsafe fn renumber_vectors(p: Renumber) {
    let place = thread::block_idx_x() * (RENUMBER_THREADS / 32) + thread::warp_idx();
    if place >= p.count {
        return;
    }
    let vector = p.order.get(place as usize);
    let (from, to) = (vector as usize * p.units as usize, place as usize * p.units as usize);
    let mut unit = warp::lane_id();
    while unit < p.units {
        p.to.set(to + unit as usize, p.from.get(from + unit as usize));
        unit += 32;
    }
    if warp::lane_id() == 0 {
        p.biases_to.set(place as usize, p.biases.get(vector as usize));
        p.places.set(vector as usize, place);
    }
}

/// Replaces `count` ids by their `places`.
///
/// Launch: a thread per id, blocks of [`RENUMBER_THREADS`].
///
/// # Safety
/// - `ids` holds `count` numbers, all below the length of `places`.
#[kernel(block = RENUMBER_THREADS)]
pub unsafe fn renumber_ids(ids: GlobalMut<u32>, places: Global<u32>, count: u32) {
    let i = thread::index_1d();
    if i < count {
        ids.set(i as usize, places.get(ids.get(i as usize) as usize));
    }
}
