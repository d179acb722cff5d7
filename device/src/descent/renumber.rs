//! Renumbering: vectors move to new places, and ids follow.
//!
//! ```text
//! renumber_vectors: up to a warp = place: to[place] = from[order[place]]
//! renumber_values:  thread = place: to[place] = from[order[place]]; places[order[place]] = place
//! renumber_ids:     thread = id: ids[i] = places[ids[i]]
//! ```
//!
//! Nodes that are near in the graph are then near in memory, and gathers of phase 2 come from the
//! L2 cache. Bound by memory: each vector is read and written once.

use cuda_std::prelude::*;

/// Threads of a block.
pub const RENUMBER_THREADS: u32 = 256;

/// The move of vectors, or of some of their columns, to their places.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Renumber {
    /// In: the first column of the vectors.
    pub from: Global<Quad>,
    /// Out: the first column of the vectors in the order of their places.
    pub to: GlobalMut<Quad>,
    /// In: the vector of each place; unused if not `ordered`.
    pub order: Global<u32>,
    /// Number of vectors.
    pub count: u32,
    /// Units of 16 bytes from one vector to the next.
    pub from_stride: u32,
    /// Units of 16 bytes from one place to the next.
    pub to_stride: u32,
    /// Units of 16 bytes to move of each vector.
    pub units: u32,
    /// Threads per vector, as the exponent of 2, at most 5.
    pub shift: u32,
    /// Whether the order counts; else vectors keep their places.
    pub ordered: u32,
}

impl Renumber {
    /// The exponent for vectors of `units`.
    pub fn shift_of(units: u32) -> u32 {
        units.next_power_of_two().trailing_zeros().min(5)
    }

    /// Blocks that move all vectors.
    pub fn blocks(&self) -> u32 {
        self.count.div_ceil(RENUMBER_THREADS >> self.shift)
    }
}

/// Moves vectors to their places (see [`Renumber`]).
///
/// Launch: [`Renumber::blocks`] blocks of [`RENUMBER_THREADS`].
///
/// # Safety
/// - The views have the shapes of [`Renumber`]. `from` and `to` do not overlap.
#[kernel(unsafe, block = RENUMBER_THREADS)]
pub unsafe fn renumber_vectors(p: Renumber) {
    let thread = thread::thread_idx_x();
    let place = thread::block_idx_x() * (RENUMBER_THREADS >> p.shift) + (thread >> p.shift);
    if place >= p.count {
        return;
    }
    let vector = if p.ordered != 0 { p.order.get(place as usize) } else { place };
    let from = vector as usize * p.from_stride as usize;
    let to = place as usize * p.to_stride as usize;
    let threads = 1 << p.shift;
    let mut unit = thread & (threads - 1);
    while unit < p.units {
        p.to.set(to + unit as usize, p.from.get(from + unit as usize));
        unit += threads;
    }
}

/// The move of one value per vector.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RenumberValues {
    /// In: the bits of each vector's value.
    pub from: Global<u32>,
    /// Out: the values in the order of their places.
    pub to: GlobalMut<u32>,
    /// In: the vector of each place.
    pub order: Global<u32>,
    /// Out: the place of each vector.
    pub places: GlobalMut<u32>,
    /// Number of vectors.
    pub count: u32,
    /// Unused.
    pub padding: u32,
}

/// Moves values to their places (see [`RenumberValues`]).
///
/// Launch: a thread per place, blocks of [`RENUMBER_THREADS`].
///
/// # Safety
/// - The views have the shapes of [`RenumberValues`].
#[kernel(unsafe, block = RENUMBER_THREADS)]
pub unsafe fn renumber_values(p: RenumberValues) {
    let place = thread::index_1d();
    if place < p.count {
        let vector = p.order.get(place as usize);
        p.to.set(place as usize, p.from.get(vector as usize));
        p.places.set(vector as usize, place);
    }
}

/// Replaces `count` ids by their `places`.
///
/// Launch: a thread per id, blocks of [`RENUMBER_THREADS`].
///
/// # Safety
/// - `ids` holds `count` numbers, all below the length of `places`.
#[kernel(unsafe, block = RENUMBER_THREADS)]
pub unsafe fn renumber_ids(ids: GlobalMut<u32>, places: Global<u32>, count: u32) {
    let i = thread::index_1d();
    if i < count {
        ids.set(i as usize, places.get(ids.get(i as usize) as usize));
    }
}
