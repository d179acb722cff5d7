//! The nearest centres of vectors, by products on tensor cores.

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads};
use cuda_std::{copy, keep_rolled, shared};

use super::NOWHERE;
use crate::block::copied;
use crate::block::element::{TileElement, TileSum};
use crate::block::sort::sort_warp;
use crate::block::tile;

/// The most centres of a vector: a lane each.
pub const MAX_PROBES: u32 = 32;

/// Chunks of the vectors that stay in shared memory while centres pass by; longer vectors pass with
/// the centres.
const RESIDENT_CHUNKS: u32 = 2;

/// Columns of a tile whose values are in shared memory at once: a lane each.
const COLUMNS: u32 = 32;

/// From a column's values in shared memory to those of the next: the lanes that read a row meet no bank twice, and
/// those that write a fragment hardly.
const COLUMN_STRIDE: u32 = tile::SIDE + 5;

/// Vectors that each warp finds the best for.
const LINES_PER_WARP: u32 = tile::SIDE / (tile::THREADS / 32);

/// From so many keys at once on they are sorted and merged, rather than put in one by one.
const MANY: u32 = 6;

/// Bytes of the values that are in shared memory at once. They lie where the last chunk of centres was, so that the keys of
/// [`MAX_PROBES`] have room, and by so many bytes in the gap between the stages.
const VALUE_BYTES: u32 = COLUMNS * COLUMN_STRIDE * 4;
const GAP_BYTES: u32 = VALUE_BYTES - tile::SIDE_BYTES;

/// Chunks that are on their way or in use: with one more, two blocks do not fit a multiprocessor.
const STAGES: u32 = 2;

/// Bytes of the vectors' and centres' chunks in shared memory.
const fn chunk_bytes(units: u32) -> u32 {
    let chunks = units.div_ceil(tile::UNITS);
    let vectors = if chunks <= RESIDENT_CHUNKS { chunks } else { STAGES };
    (vectors + STAGES) * tile::SIDE_BYTES + GAP_BYTES
}

/// Bytes of dynamic shared memory of the kernels for vectors of `units` units of 16 bytes, and so many centres each.
pub const fn assign_shared_bytes(units: u32, probes: u32) -> u32 {
    chunk_bytes(units) + tile::SIDE * probes * 8
}

/// Blocks of the kernels for `count` vectors of `guide_count` guides, or of none.
pub const fn assign_blocks(count: u32, guide_count: u32) -> u32 {
    if guide_count == 0 { count.div_ceil(tile::SIDE) } else { first_block(count, guide_count) }
}

/// The first block of guide `guide`, whose vectors begin at `start`. It has a block for each tile of its vectors, and
/// maybe one that has nothing to do: so nobody has to add tiles up.
const fn first_block(start: u32, guide: u32) -> u32 {
    start / tile::SIDE + guide
}

/// Vectors whose nearest centres are wanted: of all, or, where they are in the order of guides, of a list of
/// centres that their guide has.
#[repr(C)]
pub struct Assign<S> {
    /// In: vectors of `units` units of 16 bytes, `vector_stride` bytes apart, a multiple of 16.
    pub vectors: Global<u8>,
    /// In: with `listed`, which vectors: `count` numbers; else they are the first `count`.
    pub ids: Global<u32>,
    /// In: the vectors of centres, `centre_stride` bytes apart, of as many units.
    pub centres: Global<u8>,
    /// In: with guides, the numbers of `centre_count` centres of each guide, best the nearest first; else the centres
    /// are the first.
    pub lists: Global<u32>,
    /// In: the squared norm of each centre, with guides of each in `lists`.
    pub biases: Global<S>,
    /// In: with guides, where the vectors of each begin among the `count`, and the end of the last:
    /// `guide_count + 1` numbers.
    pub guide_starts: Global<u32>,
    /// Out: of each vector the `probes` nearest centres by `bias + weight * product`, ties by their
    /// number; [`NOWHERE`] from `centre_count` on.
    pub nearest: GlobalMut<u32>,
    /// Whether `ids` says which vectors.
    pub listed: u32,
    /// With `listed`, whether the centres of a vector stand at its number, and not at its place among the ids.
    pub by_number: u32,
    /// How many vectors.
    pub count: u32,
    /// How many guides; 0 if every vector is compared with all centres.
    pub guide_count: u32,
    /// How many centres a vector is compared with, at least 1.
    pub centre_count: u32,
    /// Centres per vector, 1 to [`MAX_PROBES`].
    pub probes: u32,
    /// Bytes from one vector to the next.
    pub vector_stride: u32,
    /// Bytes from one centre to the next.
    pub centre_stride: u32,
    /// Units of 16 bytes per vector.
    pub units: u32,
    /// What a product is multiplied by: -2.
    pub weight: S,
}

copied! {
    Assign<S>;
}

/// The smallest `probes` of the warp's `best` keys, ascending, and of other keys, one of each lane; what the lanes
/// from `probes` on hold is nothing. The whole warp calls this.
#[inline(always)]
fn select(mut best: u64, key: u64, probes: u32) -> u64 {
    let lane = warp::lane_id();
    let mut farthest = warp::broadcast(best, probes - 1);
    let mut nearer = warp::ballot(key < farthest);
    if nearer.count_ones() >= MANY {
        // Against the other order, the smaller of each pair are the smallest of all; they rise, then fall.
        let others = warp::shuffle_xor(sort_warp(key), 31);
        best = if others < best { others } else { best };
        let mut distance = 16;
        while distance > 0 {
            let other = warp::shuffle_xor(best, distance);
            best = if (lane & distance == 0) == (other < best) { other } else { best };
            distance /= 2;
        }
        return best;
    }
    while nearer != 0 {
        let new = warp::broadcast(key, nearer.trailing_zeros());
        let before = warp::shuffle_up(best, 1);
        let place = warp::ballot(best < new).count_ones();
        best = if lane < place {
            best
        } else if lane == place {
            new
        } else {
            before
        };
        farthest = warp::broadcast(best, probes - 1);
        nearer &= nearer - 1;
        nearer &= warp::ballot(key < farthest);
    }
    best
}

/// What one block compares.
struct Part {
    /// Its vectors: where they begin, and where the last end.
    first: u32,
    end: u32,
    /// Where the list of its centres begins.
    list: usize,
}

/// The part of this block.
#[inline(always)]
fn part<S: Plain>(p: &Assign<S>) -> Part {
    let block = block_idx_x();
    if p.guide_count == 0 {
        return Part { first: block * tile::SIDE, end: p.count, list: 0 };
    }
    let start = |guide: u32| p.guide_starts.get(guide as usize);
    // The last guide whose first block is not behind this one.
    let (mut guide, mut behind) = (0, p.guide_count);
    while behind - guide > 1 {
        let middle = guide + (behind - guide) / 2;
        if first_block(start(middle), middle) <= block { guide = middle } else { behind = middle }
    }
    let begin = start(guide);
    let tile = block - first_block(begin, guide);
    let list = guide as usize * p.centre_count as usize;
    Part { first: begin + tile * tile::SIDE, end: start(guide + 1), list }
}

#[inline(always)]
fn assign<E: TileElement>(p: &Assign<E::Sum>) {
    let part = part(p);
    let first = part.first;
    if first >= part.end {
        return;
    }
    let left = part.end - first;
    let here = if left < tile::SIDE { left } else { tile::SIDE };
    let (list, biases) = (p.lists.offset(part.list), p.biases.offset(part.list));
    // Which centre it is at a place of the list, or of all.
    let number = |place: u32| if p.guide_count != 0 { list.get(place as usize) } else { place };
    let chunks = p.units.div_ceil(tile::UNITS);
    let resident = chunks <= RESIDENT_CHUNKS;

    let vector_chunks = if resident { chunks } else { STAGES };
    let vectors = |slot: u32| shared::dynamic::<u8>((slot * tile::SIDE_BYTES) as usize);
    let centres = |stage: u32| {
        shared::dynamic::<u8>(((vector_chunks + stage) * tile::SIDE_BYTES + stage * GAP_BYTES) as usize)
    };
    let values_in = |stage: u32| -> Shared<E::Sum> {
        shared::dynamic(((vector_chunks + stage) * tile::SIDE_BYTES) as usize)
    };
    let kept: Shared<u64> = shared::dynamic(chunk_bytes(p.units) as usize);
    let vector_source = |line: u32| {
        if line >= here {
            return None;
        }
        let vector = first + line;
        Some(if p.listed != 0 { p.ids.get(vector as usize) } else { vector })
    };
    let start_vectors = |slot: u32, chunk: u32| {
        tile::start_copy(vectors(slot), (p.vectors, p.vector_stride), chunk, p.units, &vector_source);
    };
    let start = |stage: u32, first_centre: u32, chunk: u32| {
        let source = |line: u32| {
            let centre = first_centre + line;
            if centre < p.centre_count { Some(number(centre)) } else { None }
        };
        tile::start_copy(centres(stage), (p.centres, p.centre_stride), chunk, p.units, &source);
        if !resident {
            start_vectors(stage, chunk);
        }
    };

    // Rows lane / 4 + 8 h of each fragment, columns 2 (lane % 4) + c.
    let lane = warp::lane_id();
    let (part_row, part_column) = tile::part_of_warp();
    let (lane_row, lane_column) = (part_row + lane / 4, lane % 4 * 2);
    // The vectors whose best keys this warp finds. They are in shared memory in between, so that the sums have the
    // registers; a lane only meets its own.
    let first_line = thread::warp_idx() * LINES_PER_WARP;
    let kept_of = |line: u32| kept.offset((line * p.probes) as usize);
    // Of the warp's line number `lane`, what the value of the last key sorts as.
    let mut farthest_of_lines = u32::MAX;
    let mut line = first_line;
    while line < first_line + LINES_PER_WARP {
        if lane < p.probes {
            kept_of(line).set(lane as usize, u64::MAX);
        }
        line += 1;
    }

    if resident {
        let mut chunk = 0;
        while chunk < chunks {
            start_vectors(chunk, chunk);
            chunk += 1;
        }
    }
    start(0, 0, 0);
    copy::commit();

    let mut stage = 0;
    let mut first_centre = 0;
    while first_centre < p.centre_count {
        let mut sums: tile::Sums<E::Sum> = [[E::Sum::default(); 4]; 16];
        let mut chunk = 0;
        while chunk < chunks {
            copy::wait::<0>();
            // All threads' bytes of this chunk are there, and all warps have left the stage that the next
            // copy goes to.
            sync_threads();
            let last = chunk + 1 == chunks;
            let (next_centre, next_chunk) =
                if last { (first_centre + tile::SIDE, 0) } else { (first_centre, chunk + 1) };
            if next_centre < p.centre_count {
                start(stage ^ 1, next_centre, next_chunk);
            }
            copy::commit();
            let units = p.units - chunk * tile::UNITS;
            let steps = if units < tile::UNITS { units.div_ceil(2) } else { tile::UNITS / 2 };
            let slot = if resident { chunk } else { stage };
            tile::multiply_add::<E>(&mut sums, vectors(slot), centres(stage), steps);
            stage ^= 1;
            chunk += 1;
        }

        // A quarter of each warp's columns at a time: column 8 w + c in shared memory is column 32 w + 8 PASS + c
        // of the tile. All warps have left the last chunk of centres, where the values go.
        let values = values_in(stage ^ 1);
        unroll!(4, PASS => {
            sync_threads();
            unroll!(2, C => {
                let column = lane_column + C as u32;
                let centre = first_centre + part_column + 8 * PASS as u32 + column;
                let bias = if centre < p.centre_count { biases.get(centre as usize) } else { E::Sum::NEVER };
                let to = values.offset(((part_column / 4 + column) * COLUMN_STRIDE + lane_row) as usize);
                unroll!(4, M => {
                    unroll!(2, H => {
                        let product = sums[4 * M + PASS][2 * H + C];
                        to.set(16 * M + 8 * H, E::Sum::value(bias, p.weight, product));
                    });
                });
            });
            sync_threads();
            let centre = first_centre + lane / 8 * 32 + 8 * PASS as u32 + lane % 8;
            let there = centre < p.centre_count;
            let mut line = first_line;
            while line < first_line + LINES_PER_WARP && line < here {
                keep_rolled();
                let value = values.get((lane * COLUMN_STRIDE + line) as usize);
                let value = value.ordered();
                let farthest = warp::broadcast(farthest_of_lines, line - first_line);
                // Hardly any is nearer once the first have passed.
                if warp::any(there && value <= farthest) {
                    let kept = kept_of(line);
                    let key = if there { (value as u64) << 32 | number(centre) as u64 } else { u64::MAX };
                    let best = if lane < p.probes { kept.get(lane as usize) } else { u64::MAX };
                    let best = select(best, key, p.probes);
                    if lane < p.probes {
                        kept.set(lane as usize, best);
                    }
                    let farthest = (warp::broadcast(best, p.probes - 1) >> 32) as u32;
                    if lane == line - first_line {
                        farthest_of_lines = farthest;
                    }
                }
                line += 1;
            }
        });
        first_centre += tile::SIDE;
    }

    let mut line = first_line;
    while line < first_line + LINES_PER_WARP && line < here {
        let place = first + line;
        let to = if p.by_number != 0 { p.ids.get(place as usize) } else { place };
        if lane < p.probes {
            // The low half of a place that no key has taken is that of `NOWHERE`.
            let centre = kept_of(line).get(lane as usize) as u32;
            p.nearest.set(to as usize * p.probes as usize + lane as usize, centre);
        }
        line += 1;
    }
}

const _: () = assert!(NOWHERE == u64::MAX as u32);

macro_rules! assign_kernels {
    ($($name:ident $element:ty, $sum:ty;)*) => {$(
        /// Finds the nearest centres of vectors (see [`Assign`]).
        ///
        /// Launch: [`assign_blocks`] blocks of [`tile::THREADS`]; [`assign_shared_bytes`].
        ///
        /// # Safety
        /// - The views hold what [`Assign`] says.
        #[kernel(block = tile::THREADS, shared = assign_shared_bytes(p.units, p.probes), blocks_per_multiprocessor = 2)]
        pub unsafe fn $name(p: Assign<$sum>) {
            assign::<$element>(&p);
        }
    )*};
}

assign_kernels! {
    cluster_assign_f16 f16, f32;
    cluster_assign_u8 u8, i32;
    cluster_assign_i8 i8, i32;
}
