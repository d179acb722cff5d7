//! Nodes in an order in which those that are near follow one another: what is near in the graph is then near
//! in memory, and in the caches.

use cuda_std::prelude::*;

/// Threads of a block.
pub const RENUMBER_THREADS: u32 = 256;

/// The moving of vectors to their places.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Renumber {
    /// In: vectors, `units` units of 16 bytes apart.
    pub from: Global<Quad>,
    /// Out: those vectors in the order of their places.
    pub to: GlobalMut<Quad>,
    /// In: the bits of one value of each vector.
    pub biases: Global<u32>,
    /// Out: those values in the order of their places.
    pub biases_to: GlobalMut<u32>,
    /// In: of each place, the vector that belongs there.
    pub order: Global<u32>,
    /// Out: of each vector, its place.
    pub places: GlobalMut<u32>,
    /// How many vectors.
    pub count: u32,
    /// Units of 16 bytes from one vector to the next.
    pub units: u32,
}

/// Moves vectors and what belongs to them to their places (see [`Renumber`]).
///
/// Launch: a block of [`RENUMBER_THREADS`] per `RENUMBER_THREADS / 32` places.
///
/// # Safety
/// - The views hold what [`Renumber`] says.
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

/// Replaces `count` ids of vectors by their `places`.
///
/// Launch: a thread per id, blocks of [`RENUMBER_THREADS`].
///
/// # Safety
/// - `ids` holds `count` numbers below that of the `places`.
#[kernel(block = RENUMBER_THREADS)]
pub unsafe fn renumber_ids(ids: GlobalMut<u32>, places: Global<u32>, count: u32) {
    let i = thread::index_1d();
    if i < count {
        ids.set(i as usize, places.get(ids.get(i as usize) as usize));
    }
}
