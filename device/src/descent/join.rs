//! Phase 1: local join. The ids that a node brings are compared on tensor cores, new with new and
//! new with old.
//!
//! ```text
//! block = node
//! lines = new ids (from 0 on) and old ids (from 64 on) of the node's row, each id once
//! sums = products of the new lines and all lines, chunk by chunk
//! for each new line, per warp: propose to it the nearest column
//! for each old line: propose to it the nearest new line
//! propose(to, key): if below the bound of `to`: proposals[to][slot(id)] = min(slot, key)
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | `rows` | nodes x 128 ids ([`ROW`]) |
//! | `proposals` | nodes x 64 keys ([`JOIN_PROPOSALS`]) |
//! | shared memory | 2 stages x 128 lines x 128 bytes; per line: id, bias, bound; 4 counts |
//!
//! Optimisations:
//!
//! 1. One tile serves new x new and new x old: 4 warps with 64 x 32 products each.
//! 2. A line gets the nearest id of each warp alone, found by shuffles: few atomics instead of one
//!    per pair. A list gets the rest in later iterations.
//! 3. A slot is named by a hash of the id, and keeps the smallest key by one atomic minimum: no
//!    locks, no overflow, no duplicates, and a result that does not depend on the order of threads.
//! 4. With at most 32 new ids, as after the first iterations, a warp computes 32 x 32 products.
//!
//! Bound by memory: up to 128 vectors gathered per node, from L2 where nodes are in an order of
//! near ones.

use cuda_std::atomic::Scope;
use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::shuffle_xor;
use cuda_std::{copy, shared};

use crate::block::copied;
use crate::block::sums::{TileElement, TileSum};
use crate::block::tile::{self, CHUNK_BYTES, SIDE_BYTES, UNITS};
use crate::block::tile_walk::column_of;
use crate::descent::merge::{COUNTERS, JOIN_PROPOSAL_BITS, JOIN_PROPOSALS};
use crate::descent::sample::{ROW, SAMPLE};
use crate::descent::slots::{slot, unscramble};
use crate::key::{self, Key, NO_ID, NONE};

/// Threads of a block: 4 warps, two for columns of new ids and two for columns of old ids.
pub const JOIN_THREADS: u32 = 128;

/// Chunks of vectors in shared memory, in use or being copied.
const STAGES: u32 = 2;

/// Lines for new ids, and for old ids.
const HALF: u32 = 2 * SAMPLE;

/// The local join of phase 1.
#[repr(C)]
pub struct Join<S> {
    /// In: vectors of `units` units, `stride` bytes apart, a multiple of 16.
    pub vectors: Global<u8>,
    /// In: one bias per vector.
    pub biases: Global<S>,
    /// In: [`ROW`] ids per node, as [`Sample`](super::sample::Sample) leaves them in phase 1.
    pub rows: Global<u32>,
    /// In: the distance of the last of each list.
    pub bounds: Global<f32>,
    /// In and out: [`JOIN_PROPOSALS`] slots per node.
    pub proposals: GlobalMut<Key>,
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
}

copied! {
    Join<S>;
}

/// Bytes of dynamic shared memory of the joins: vectors, id, bias and bound per line, and counts.
pub const fn join_shared_bytes() -> u32 {
    STAGES * SIDE_BYTES + tile::SIDE * 12 + 16
}

/// Per line, in shared memory: id, bias and bound.
#[derive(Clone, Copy)]
struct Lines<S> {
    ids: Shared<u32>,
    biases: Shared<S>,
    bounds: Shared<f32>,
}

/// The columns of a warp: all new, or all old ones.
#[derive(Clone, Copy)]
struct WarpColumns {
    /// The first one.
    first: u32,
    /// The end of the lines in use of the same kind.
    end: u32,
    /// Whether they are old ones.
    is_old: bool,
}

impl WarpColumns {
    #[inline(always)]
    fn new(new: u32, old: u32) -> Self {
        let first = 32 * thread::warp_idx();
        let is_old = first >= HALF;
        Self { first, end: if is_old { old + HALF } else { new }, is_old }
    }

    /// The line of a lane's column `index`: a lane has columns `2 (lane % 4) + 8 n + c` of its
    /// warp's.
    #[inline(always)]
    fn line(&self, index: usize) -> u32 {
        self.first + warp::lane_id() % 4 * 2 + column_of(index)
    }
}

/// Puts the ids of the block's node in lines: new ones from line 0 on, old ones from line [`HALF`]
/// on, each id once. Returns the numbers of new and old lines.
#[inline(always)]
fn fill<S: TileSum>(p: &Join<S>, lines: Lines<S>, counts: Shared<u32>) -> (u32, u32) {
    let (thread, warp) = (thread_idx_x(), thread::warp_idx());
    let place = block_idx_x() as usize * ROW as usize + thread as usize;
    let mut id = p.rows.get(place);
    let is_reverse = warp >= 2;
    if is_reverse && id != NO_ID {
        id = unscramble(id, p.salt);
    }
    // Forward ids have no gaps, so reverse ids are searched for among them in place.
    lines.ids.set(thread as usize, id);
    sync_threads();
    let mut is_there = id != NO_ID;
    if is_reverse {
        let mut i = 0;
        while i < HALF as usize {
            is_there &= lines.ids.get(i) != id;
            i += 1;
        }
    }
    let there = warp::ballot(is_there);
    if thread % 32 == 0 {
        counts.set(warp as usize, there.count_ones());
    }
    sync_threads();
    lines.ids.set(thread as usize, NO_ID);
    sync_threads();
    let is_old = warp % 2;
    let first = is_old * HALF + if is_reverse { counts.get(is_old as usize) } else { 0 };
    if is_there {
        let line = (first + warp::lanes_before(there)) as usize;
        lines.ids.set(line, id);
        lines.biases.set(line, p.biases.get(id as usize));
        lines.bounds.set(line, p.bounds.get(id as usize));
    }
    let (new, old) = (counts.get(0) + counts.get(2), counts.get(1) + counts.get(3));
    sync_threads();
    (new, old)
}

/// Starts the copy of chunk `chunk` of all lines to `to`; lines without an id become zero.
#[inline(always)]
fn start_copy<S>(p: &Join<S>, ids: Shared<u32>, to: Shared<u8>, chunk: u32) {
    let unit = thread_idx_x() % UNITS;
    let source_unit = chunk * UNITS + unit;
    let mut line = thread_idx_x() / UNITS;
    while line < tile::SIDE {
        let id = ids.get(line as usize);
        let there = id != NO_ID && source_unit < p.units;
        let from = if there { id as usize * p.stride as usize + source_unit as usize * 16 } else { 0 };
        let place = line * CHUNK_BYTES + (unit ^ (line % 8)) * 16;
        copy::quad(to.offset(place as usize), p.vectors.offset(from), if there { 16 } else { 0 });
        line += JOIN_THREADS / UNITS;
    }
}

/// The chunk in shared memory of stage `stage`.
#[inline(always)]
fn chunk_at(stage: u32) -> Shared<u8> {
    shared::dynamic((stage * SIDE_BYTES) as usize)
}

/// The products of the `new` first lines and the warp's columns. The whole block calls this.
#[inline(always)]
fn multiply<E: TileElement>(
    p: &Join<E::Sum>,
    ids: Shared<u32>,
    new: u32,
    columns: WarpColumns,
) -> tile::Sums<E::Sum> {
    let chunks = p.units.div_ceil(UNITS);
    let mut sums: tile::Sums<E::Sum> = [[E::Sum::default(); 4]; 16];
    let mut started = 0;
    while started < STAGES {
        if started < chunks {
            start_copy(p, ids, chunk_at(started), started);
        }
        copy::commit();
        started += 1;
    }
    let mut chunk = 0;
    while chunk < chunks {
        copy::wait::<{ STAGES - 1 }>();
        sync_threads();
        let here = chunk_at(chunk % STAGES);
        let steps = tile::steps(p.units - chunk * UNITS);
        if columns.first < columns.end {
            // Optimisation 4.
            if new > 32 {
                tile::multiply_add_part::<E, 4>(&mut sums, here, here, 0, columns.first, steps);
            } else {
                tile::multiply_add_part::<E, 2>(&mut sums, here, here, 0, columns.first, steps);
            }
        }
        sync_threads();
        if chunk + STAGES < chunks {
            start_copy(p, ids, here, chunk + STAGES);
        }
        copy::commit();
        chunk += 1;
    }
    sums
}

/// The key of a line at a value; [`NONE`] for the value of no line.
#[inline(always)]
fn key_of<S: TileSum>(lines: Lines<S>, value: S, line: u32) -> Key {
    if value < S::NEVER { key::pack(value.to_f32(), lines.ids.get(line as usize)) } else { NONE }
}

/// Proposes `key` to the node of a line.
#[inline(always)]
fn propose<S: TileSum>(p: &Join<S>, lines: Lines<S>, line: u32, key: Key) {
    if key != NONE && key::distance(key) < lines.bounds.get(line as usize) {
        let node = lines.ids.get(line as usize);
        let slots = p.proposals.offset(node as usize * JOIN_PROPOSALS as usize);
        slots.reduce_min(slot(key::id(key), p.salt, JOIN_PROPOSAL_BITS) as usize, key);
    }
}

/// The smaller of the lane's key and that of the lane at `distance`.
#[inline(always)]
fn nearer(key: Key, distance: u32) -> Key {
    let other = shuffle_xor(key, distance);
    if other < key { other } else { key }
}

/// The nearest new line of each of a lane's columns, with its value.
struct NearestRows<S> {
    values: [S; 8],
    rows: [u32; 8],
}

/// Proposes to each new line the nearest of the warp's columns; returns the nearest new line of
/// each column if these are old ones.
#[inline(always)]
fn propose_to_new<S: TileSum>(
    p: &Join<S>,
    lines: Lines<S>,
    new: u32,
    columns: WarpColumns,
    sums: &tile::Sums<S>,
) -> NearestRows<S> {
    let lane = warp::lane_id();
    let mut column_biases = [S::NEVER; 8];
    unroll!(8, I => {
        let line = columns.line(I);
        if line < columns.end {
            column_biases[I] = lines.biases.get(line as usize);
        }
    });
    let mut nearest_rows = NearestRows { values: [S::NEVER; 8], rows: [0u32; 8] };
    unroll!(4, M => {
        unroll!(2, H => {
            let row = lane / 4 + (16 * M + 8 * H) as u32;
            let there = row < new;
            let row_bias = if there { lines.biases.get(row as usize) } else { S::NEVER };
            // Among the lane's eight columns, then among the four lanes that share the row.
            let (mut of_row, mut its_column) = (S::NEVER, 0);
            unroll!(8, I => {
                let (product, line) = (sums[4 * M + I / 2][2 * H + I % 2], columns.line(I));
                let value = S::value(column_biases[I], p.weight, product);
                if value < of_row && line != row {
                    (of_row, its_column) = (value, line);
                }
                // New columns are rows as well.
                if columns.is_old {
                    let value = S::value(row_bias, p.weight, product);
                    if value < nearest_rows.values[I] {
                        (nearest_rows.values[I], nearest_rows.rows[I]) = (value, row);
                    }
                }
            });
            let nearest = nearer(nearer(key_of(lines, of_row, its_column), 1), 2);
            if there && lane % 4 == (2 * M + H) as u32 % 4 {
                propose(p, lines, row, nearest);
            }
        });
    });
    nearest_rows
}

/// Proposes to each old line of the warp's columns the nearest new line. Eight lanes share a
/// column.
#[inline(always)]
fn propose_to_old<S: TileSum>(p: &Join<S>, lines: Lines<S>, columns: WarpColumns, nearest: &NearestRows<S>) {
    unroll!(8, I => {
        let key = key_of(lines, nearest.values[I], nearest.rows[I]);
        let key = nearer(nearer(nearer(key, 4), 8), 16);
        let line = columns.line(I);
        if warp::lane_id() / 4 == I as u32 && line < columns.end {
            propose(p, lines, line, key);
        }
    });
}

#[inline(always)]
fn join<E: TileElement>(p: &Join<E::Sum>) {
    let ids: Shared<u32> = chunk_at(STAGES).cast();
    let biases: Shared<E::Sum> = ids.offset(tile::SIDE as usize).cast();
    let bounds: Shared<f32> = ids.offset(2 * tile::SIDE as usize).cast();
    let lines = Lines { ids, biases, bounds };
    let (new, old) = fill(p, lines, ids.offset(3 * tile::SIDE as usize));
    if new == 0 {
        return;
    }
    let columns = WarpColumns::new(new, old);
    let sums = multiply::<E>(p, ids, new, columns);
    if thread_idx_x() == 0 {
        let pairs = new * (new - 1) / 2 + new * old;
        p.distances.fetch_add((block_idx_x() % COUNTERS) as usize, pairs as u64, Scope::Device);
    }
    if columns.first >= columns.end {
        return;
    }
    let nearest = propose_to_new(p, lines, new, columns, &sums);
    if columns.is_old {
        propose_to_old(p, lines, columns, &nearest);
    }
}

macro_rules! join_kernels {
    ($($name:ident $element:ty, $sum:ty;)*) => {$(
        /// Compares the ids that each node brings, and proposes to each id the nearest that each
        /// warp has seen, if below its bound (see [`Join`]).
        ///
        /// Launch: a block of [`JOIN_THREADS`] per node; [`join_shared_bytes`].
        ///
        /// # Safety
        /// - The views have the shapes of [`Join`].
        #[kernel(unsafe, block = JOIN_THREADS, shared = join_shared_bytes(), blocks_per_multiprocessor = 4)]
        pub unsafe fn $name(p: Join<$sum>) {
            join::<$element>(&p);
        }
    )*};
}

join_kernels! {
    descent_join_f16 f16, f32;
    descent_join_u8 u8, i32;
    descent_join_i8 i8, i32;
}
