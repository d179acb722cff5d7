//! Phase 1: the ids that a node has brought meet each other on tensor cores, new with new and new with old.

use cuda_std::atomic::Scope;
use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::warp::shuffle_xor;
use cuda_std::{copy, shared};

use crate::block::copied;
use crate::block::element::{TileElement, TileSum};
use crate::block::tile::{self, CHUNK_BYTES, SIDE_BYTES, UNITS};
use crate::descent::merge::{CANDIDATE_BITS, CANDIDATES};
use crate::descent::sample::{ROW, SAMPLE};
use crate::descent::slots::{slot, unscramble};
use crate::key::{self, Key, NONE};

/// Threads of a block: 4 warps, of which two compute new with new, and two new with old.
pub const JOIN_THREADS: u32 = 128;

/// Chunks of vectors that are on their way or in use.
const STAGES: u32 = 2;

/// New ids, and old ids, that a join has room for.
const HALF: u32 = 2 * SAMPLE;

/// The join of phase 1.
#[repr(C)]
pub struct Join<S> {
    /// In: vectors, `stride` bytes apart, a multiple of 16, of `units` units.
    pub vectors: Global<u8>,
    /// In: one of each vector.
    pub biases: Global<S>,
    /// In: [`ROW`] ids of each node, as [`Sample`](super::sample::Sample) leaves them in phase 1.
    pub rows: Global<u32>,
    /// In: the distance of the last of each list.
    pub bounds: Global<f32>,
    /// In and out: [`CANDIDATES`] slots of each node.
    pub candidates: GlobalMut<Key>,
    /// In and out: a sum of how many distances were computed, of which every block uses one of
    /// [`COUNTERS`](super::merge::COUNTERS).
    pub distances: GlobalMut<u64>,
    /// Bytes from one vector to the next.
    pub stride: u32,
    /// Units of 16 bytes per vector.
    pub units: u32,
    /// What a product is multiplied by: -2 for L2, -1 for inner products.
    pub weight: S,
    /// Mixes ids in the slots, as it did in the sample.
    pub draw: u32,
}

copied! {
    Join<S>;
}

/// Bytes of dynamic shared memory of the joins: vectors, and of each line its id, bias and bound.
pub const fn join_shared_bytes() -> u32 {
    STAGES * SIDE_BYTES + tile::SIDE * 12 + 16
}

/// What the lines of a join are.
#[derive(Clone, Copy)]
struct Lines<S> {
    ids: Shared<u32>,
    biases: Shared<S>,
    bounds: Shared<f32>,
}

/// Puts the ids of the block's node in lines: new ones from line 0 on, old ones from line [`HALF`] on, none
/// twice; returns how many there are of each.
#[inline(always)]
fn fill<S: TileSum>(p: &Join<S>, lines: Lines<S>, counts: Shared<u32>) -> (u32, u32) {
    let (thread, warp) = (thread_idx_x(), thread::warp_idx());
    let place = block_idx_x() as usize * ROW as usize + thread as usize;
    let mut id = p.rows.get(place);
    let is_reverse = warp >= 2;
    if is_reverse && id != u32::MAX {
        id = unscramble(id, p.draw);
    }
    // Neighbours lie without gaps, so they are looked through in place.
    lines.ids.set(thread as usize, id);
    sync_threads();
    let mut is_there = id != u32::MAX;
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
    lines.ids.set(thread as usize, u32::MAX);
    sync_threads();
    let is_old = warp % 2;
    let first = is_old * HALF + if is_reverse { counts.get(is_old as usize) } else { 0 };
    if is_there {
        let line = (first + (there & ((1 << (thread % 32)) - 1)).count_ones()) as usize;
        lines.ids.set(line, id);
        lines.biases.set(line, p.biases.get(id as usize));
        lines.bounds.set(line, p.bounds.get(id as usize));
    }
    let (new, old) = (counts.get(0) + counts.get(2), counts.get(1) + counts.get(3));
    sync_threads();
    (new, old)
}

/// The key of a line at a value; none if the value is that of nothing.
#[inline(always)]
fn candidate<S: TileSum>(lines: Lines<S>, value: S, line: u32) -> Key {
    if value < S::NEVER { key::pack(value.to_f32(), lines.ids.get(line as usize)) } else { NONE }
}

/// Offers a candidate to the node of a line.
#[inline(always)]
fn offer<S: TileSum>(p: &Join<S>, lines: Lines<S>, line: u32, candidate: Key) {
    if candidate != NONE && key::distance(candidate) < lines.bounds.get(line as usize) {
        let slots = p.candidates.offset(lines.ids.get(line as usize) as usize * CANDIDATES as usize);
        slots.fetch_min(slot(key::id(candidate), p.draw, CANDIDATE_BITS) as usize, candidate, Scope::Device);
    }
}

#[inline(always)]
fn nearer(a: Key, b: Key) -> Key {
    if b < a { b } else { a }
}

#[inline(always)]
fn join<E: TileElement>(p: &Join<E::Sum>) {
    let stage = |stage: u32| shared::dynamic::<u8>((stage * SIDE_BYTES) as usize);
    let ids: Shared<u32> = stage(STAGES).cast();
    let biases: Shared<E::Sum> = ids.offset(tile::SIDE as usize).cast();
    let bounds: Shared<f32> = ids.offset(2 * tile::SIDE as usize).cast();
    let lines = Lines { ids, biases, bounds };
    let (new, old) = fill(p, lines, ids.offset(3 * tile::SIDE as usize));
    if new == 0 {
        return;
    }

    let chunks = p.units.div_ceil(UNITS);
    let (thread, lane, warp) = (thread_idx_x(), warp::lane_id(), thread::warp_idx());
    let start = |to: Shared<u8>, chunk: u32| {
        let unit = thread % UNITS;
        let source_unit = chunk * UNITS + unit;
        let mut line = thread / UNITS;
        while line < tile::SIDE {
            let id = ids.get(line as usize);
            let there = id != u32::MAX && source_unit < p.units;
            let from = if there { id as usize * p.stride as usize + source_unit as usize * 16 } else { 0 };
            let place = line * CHUNK_BYTES + (unit ^ (line % 8)) * 16;
            copy::quad(to.offset(place as usize), p.vectors.offset(from), if there { 16 } else { 0 });
            line += JOIN_THREADS / UNITS;
        }
    };
    // The columns of this warp: all new, or all old.
    let column = 32 * warp;
    let is_old = column >= HALF;
    let columns = if is_old { old + HALF } else { new };
    let mut sums: tile::Sums<E::Sum> = [[E::Sum::default(); 4]; 16];
    let mut started = 0;
    while started < STAGES {
        if started < chunks {
            start(stage(started), started);
        }
        copy::commit();
        started += 1;
    }
    let mut chunk = 0;
    while chunk < chunks {
        copy::wait::<{ STAGES - 1 }>();
        sync_threads();
        let here = stage(chunk % STAGES);
        let units = p.units - chunk * UNITS;
        let steps = if units < UNITS { units.div_ceil(2) } else { UNITS / 2 };
        // After the first iterations most joins have few new ids.
        if column < columns {
            if new > 32 {
                tile::multiply_add_part::<E, 4>(&mut sums, (here, here), (0, column), steps);
            } else {
                tile::multiply_add_part::<E, 2>(&mut sums, (here, here), (0, column), steps);
            }
        }
        sync_threads();
        if chunk + STAGES < chunks {
            start(here, chunk + STAGES);
        }
        copy::commit();
        chunk += 1;
    }
    if thread == 0 {
        let pairs = new * (new - 1) / 2 + new * old;
        p.distances.fetch_add((block_idx_x() % super::merge::COUNTERS) as usize, pairs as u64, Scope::Device);
    }
    if column >= columns {
        return;
    }

    // What this lane holds: rows lane / 4 + 8 r, columns 2 (lane % 4) + 8 n + c of the warp's. Ids of lines are
    // all different.
    let (first_row, first_column) = (lane / 4, column + lane % 4 * 2);
    let mut column_biases = [E::Sum::NEVER; 8];
    unroll!(8, I => {
        let line = first_column + (8 * (I / 2) + I % 2) as u32;
        if line < columns {
            column_biases[I] = biases.get(line as usize);
        }
    });
    // Of each column the nearest row; only old ones need it, new ones are rows too.
    let (mut of_columns, mut their_rows) = ([E::Sum::NEVER; 8], [0u32; 8]);
    unroll!(4, M => {
        unroll!(2, H => {
            let row = first_row + (16 * M + 8 * H) as u32;
            let there = row < new;
            let row_bias = if there { biases.get(row as usize) } else { E::Sum::NEVER };
            // Of the row the nearest column: among a lane's eight, then among the four lanes that share the row.
            let (mut of_row, mut its_column) = (E::Sum::NEVER, 0);
            unroll!(8, I => {
                let (product, line) = (sums[4 * M + I / 2][2 * H + I % 2], first_column + (8 * (I / 2) + I % 2) as u32);
                let value = E::Sum::value(column_biases[I], p.weight, product);
                if value < of_row && line != row {
                    (of_row, its_column) = (value, line);
                }
                if is_old {
                    let value = E::Sum::value(row_bias, p.weight, product);
                    if value < of_columns[I] {
                        (of_columns[I], their_rows[I]) = (value, row);
                    }
                }
            });
            let mut nearest = candidate(lines, of_row, its_column);
            nearest = nearer(nearest, shuffle_xor(nearest, 1));
            nearest = nearer(nearest, shuffle_xor(nearest, 2));
            if there && lane % 4 == (2 * M + H) as u32 % 4 {
                offer(p, lines, row, nearest);
            }
        });
    });
    // Eight lanes share a column.
    if is_old {
        unroll!(8, I => {
            let mut nearest = candidate(lines, of_columns[I], their_rows[I]);
            nearest = nearer(nearest, shuffle_xor(nearest, 4));
            nearest = nearer(nearest, shuffle_xor(nearest, 8));
            nearest = nearer(nearest, shuffle_xor(nearest, 16));
            let line = first_column + (8 * (I / 2) + I % 2) as u32;
            if lane / 4 == I as u32 && line < columns {
                offer(p, lines, line, nearest);
            }
        });
    }
}

macro_rules! join_kernels {
    ($($name:ident $element:ty, $sum:ty;)*) => {$(
        /// Compares what each node has brought, new with new and new with old, and offers each id the nearest
        /// that each warp has seen of it, if it is nearer than the last of its list (see [`Join`]).
        ///
        /// Launch: a block of [`JOIN_THREADS`] per node; [`join_shared_bytes`].
        ///
        /// # Safety
        /// - The views hold what [`Join`] says.
        #[kernel(block = JOIN_THREADS, shared = join_shared_bytes(), blocks_per_multiprocessor = 4)]
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
