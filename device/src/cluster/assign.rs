//! Nearest centres of vectors, by products on tensor cores.
//!
//! ```text
//! block = 128 vectors (of one guide, where there are guides)
//! for each tile of 128 centres (of the guide's list, where there are guides):
//!     sums = vectors x centres, chunk by chunk
//!     for each quarter of the columns:
//!         values = bias + weight * sums, to shared memory
//!         each warp, for each of its 16 vectors:
//!             if any of 32 values may be below the vector's last key: select the best keys
//! write the best keys' centres
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | `nearest` | vectors x `probes` centres |
//! | shared memory | vector chunks, 2 stages of centre chunks with a gap, 128 x `probes` keys |
//! | values | 32 columns x 133 words, in the place of the last chunk of centres |
//!
//! Optimisations:
//!
//! 1. A vector's best keys lie one to a lane, up to 32. A vote tells whether any of 32 values is
//!    below the last key. Few are put in their place by votes and a shuffle, many are sorted and
//!    merged by a bitonic network.
//! 2. Between tiles the keys lie in shared memory, since the sums need the registers. A warp
//!    touches only the keys of its own vectors, so no barrier is needed.
//! 3. The values take the place of the centres' last chunk, which all warps have left. Two blocks
//!    then fit a multiprocessor.
//! 4. Vectors of up to 256 bytes stay in shared memory while centres pass.
//! 5. Guide g gets its first block at `starts[g] / 128 + g`: enough blocks for its tiles and at
//!    most one idle block, without sums over guides.
//!
//! Bound by shared memory and selection: half of the time goes to passing values and to finding
//! near ones, half to putting these in their place. The products of 13 launches on a million
//! vectors of 128 bytes take 1 of 16 ms at the rate of an H200.

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads};
use cuda_std::{copy, keep_rolled, shared};

use super::NOWHERE;
use crate::block::copied;
use crate::block::sort::sort_warp;
use crate::block::sums::{TileElement, TileSum};
use crate::block::tile;

/// The most centres per vector: one per lane.
pub const MAX_PROBES: u32 = 32;

/// The most chunks of vectors that stay in shared memory. Longer vectors pass with the centres.
const RESIDENT_CHUNKS: u32 = 2;

/// Columns of a tile whose values are in shared memory at once: one per lane.
const COLUMNS: u32 = 32;

/// Words from one column's values to the next. Lanes that read a row hit different banks; lanes
/// that write a fragment mostly do.
const COLUMN_STRIDE: u32 = tile::SIDE + 5;

/// Vectors per warp.
const LINES_PER_WARP: u32 = tile::SIDE / (tile::THREADS / 32);

/// Number of new keys from which on they are sorted and merged, rather than inserted one by one.
const MANY: u32 = 6;

/// Bytes of the values in shared memory.
const VALUE_BYTES: u32 = COLUMNS * COLUMN_STRIDE * 4;

/// Bytes between the two stages of centres: the values are that much longer than a chunk.
const GAP_BYTES: u32 = VALUE_BYTES - tile::SIDE_BYTES;

/// Chunks in use or being copied. With three, two blocks would not fit a multiprocessor.
const STAGES: u32 = 2;

/// Bytes of the vectors' and centres' chunks in shared memory.
const fn chunk_bytes(units: u32) -> u32 {
    let chunks = units.div_ceil(tile::UNITS);
    let vectors = if chunks <= RESIDENT_CHUNKS { chunks } else { STAGES };
    (vectors + STAGES) * tile::SIDE_BYTES + GAP_BYTES
}

/// Bytes of dynamic shared memory for vectors of `units` units of 16 bytes, and `probes` centres
/// each.
pub const fn assign_shared_bytes(units: u32, probes: u32) -> u32 {
    chunk_bytes(units) + tile::SIDE * probes * 8
}

/// Blocks for `count` vectors of `guide_count` guides, or without guides.
pub const fn assign_blocks(count: u32, guide_count: u32) -> u32 {
    if guide_count == 0 { count.div_ceil(tile::SIDE) } else { first_block(count, guide_count) }
}

/// The first block of guide `guide`, whose vectors begin at `start` (optimisation 5).
const fn first_block(start: u32, guide: u32) -> u32 {
    start / tile::SIDE + guide
}

/// The search for the nearest centres: of all, or, for vectors in the order of guides, of the
/// guide's list.
#[repr(C)]
pub struct Assign<S> {
    /// In: vectors of `units` units of 16 bytes, `vector_stride` bytes apart, a multiple of 16.
    pub vectors: Global<u8>,
    /// In: with `listed`, the numbers of the `count` vectors; else they are the first `count`.
    pub ids: Global<u32>,
    /// In: vectors of the centres, `centre_stride` bytes apart, of as many units.
    pub centres: Global<u8>,
    /// In: with guides, `centre_count` centres per guide, best the nearest first; else the centres
    /// are the first `centre_count`.
    pub lists: Global<u32>,
    /// In: the squared norm of each centre; with guides, of each entry of `lists`.
    pub biases: Global<S>,
    /// In: with guides, the start of each guide's vectors among the `count`, and the end of the
    /// last: `guide_count + 1` numbers.
    pub guide_starts: Global<u32>,
    /// Out: per vector the `probes` nearest centres by `bias + weight * product`, ties by their
    /// number; [`NOWHERE`] from `centre_count` on.
    pub nearest: GlobalMut<u32>,
    /// Whether `ids` is used.
    pub listed: u32,
    /// With `listed`: whether row `id` of `nearest` gets a vector's centres, not the row of its
    /// place.
    pub by_number: u32,
    /// Number of vectors.
    pub count: u32,
    /// Number of guides; 0 without guides.
    pub guide_count: u32,
    /// Centres compared with each vector, at least 1.
    pub centre_count: u32,
    /// Centres found per vector, 1 to [`MAX_PROBES`].
    pub probes: u32,
    /// Bytes from one vector to the next.
    pub vector_stride: u32,
    /// Bytes from one centre to the next.
    pub centre_stride: u32,
    /// Units of 16 bytes per vector.
    pub units: u32,
    /// Factor of a product: -2.
    pub weight: S,
}

copied! {
    Assign<S>;
}

/// Selects the smallest `probes` of the warp's ascending keys `best` and of one other key per lane.
/// Lanes from `probes` on get arbitrary keys. The whole warp calls this.
#[inline(always)]
fn select(mut best: u64, key: u64, probes: u32) -> u64 {
    let lane = warp::lane_id();
    let mut farthest = warp::broadcast(best, probes - 1);
    let mut nearer = warp::ballot(key < farthest);
    if nearer.count_ones() >= MANY {
        // The smaller of each pair, against the other order, are the smallest of all: a bitonic
        // sequence.
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

/// The vectors and the list of centres of one block.
struct AssignPart {
    /// The first vector.
    first: u32,
    /// The end of the vectors of the same guide.
    end: u32,
    /// The start of the list.
    list: usize,
}

impl AssignPart {
    /// The part of this block.
    #[inline(always)]
    fn of_block<S: Plain>(p: &Assign<S>) -> Self {
        let block = block_idx_x();
        if p.guide_count == 0 {
            return Self { first: block * tile::SIDE, end: p.count, list: 0 };
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
        Self { first: begin + tile * tile::SIDE, end: start(guide + 1), list }
    }
}

/// One block: its vectors, its centres and its shared memory.
#[derive(Clone, Copy)]
struct Block<'a, S> {
    p: &'a Assign<S>,
    /// The first vector.
    first: u32,
    /// Vectors of the block, at most 128.
    here: u32,
    /// The guide's list, and the biases of its entries.
    list: Global<u32>,
    biases: Global<S>,
    /// Chunks per vector.
    chunks: u32,
    /// Whether all chunks of the vectors stay in shared memory.
    resident: bool,
    /// The best keys: `probes` per line.
    kept: Shared<u64>,
}

impl<S: TileSum> Block<'_, S> {
    /// The number of the centre at a place of the list.
    #[inline(always)]
    fn number(&self, place: u32) -> u32 {
        if self.p.guide_count != 0 { self.list.get(place as usize) } else { place }
    }

    /// Chunk `slot` of vectors in shared memory.
    #[inline(always)]
    fn vectors(&self, slot: u32) -> Shared<u8> {
        shared::dynamic((slot * tile::SIDE_BYTES) as usize)
    }

    /// Bytes before the chunk of centres of stage `stage`, without the gap.
    #[inline(always)]
    fn before_centres(&self, stage: u32) -> u32 {
        ((if self.resident { self.chunks } else { STAGES }) + stage) * tile::SIDE_BYTES
    }

    /// The chunk of centres of stage `stage`.
    #[inline(always)]
    fn centres(&self, stage: u32) -> Shared<u8> {
        shared::dynamic((self.before_centres(stage) + stage * GAP_BYTES) as usize)
    }

    /// Values in the place of stage `stage`.
    #[inline(always)]
    fn values(&self, stage: u32) -> Shared<S> {
        shared::dynamic(self.before_centres(stage) as usize)
    }

    /// The keys of a line.
    #[inline(always)]
    fn kept_of(&self, line: u32) -> Shared<u64> {
        self.kept.offset((line * self.p.probes) as usize)
    }

    /// Starts the copy of a chunk of vectors.
    #[inline(always)]
    fn start_vectors(&self, slot: u32, chunk: u32) {
        let p = self.p;
        let source = |line: u32| {
            if line >= self.here {
                return None;
            }
            let vector = self.first + line;
            Some(if p.listed != 0 { p.ids.get(vector as usize) } else { vector })
        };
        tile::start_copy(self.vectors(slot), (p.vectors, p.vector_stride), chunk, p.units, &source);
    }

    /// Starts the copies of a chunk of the centres from `first_centre` on, and of vectors that do
    /// not stay.
    #[inline(always)]
    fn start(&self, stage: u32, first_centre: u32, chunk: u32) {
        let p = self.p;
        let source = |line: u32| {
            let centre = first_centre + line;
            if centre < p.centre_count { Some(self.number(centre)) } else { None }
        };
        tile::start_copy(self.centres(stage), (p.centres, p.centre_stride), chunk, p.units, &source);
        if !self.resident {
            self.start_vectors(stage, chunk);
        }
    }

    /// Clears the keys of the warp's vectors, and starts the first copies.
    #[inline(always)]
    fn begin(&self, first_line: u32) {
        let mut line = first_line;
        while line < first_line + LINES_PER_WARP {
            if warp::lane_id() < self.p.probes {
                self.kept_of(line).set(warp::lane_id() as usize, u64::MAX);
            }
            line += 1;
        }
        if self.resident {
            let mut chunk = 0;
            while chunk < self.chunks {
                self.start_vectors(chunk, chunk);
                chunk += 1;
            }
        }
        self.start(0, 0, 0);
        copy::commit();
    }

    /// The products with the centres from `first_centre` on, whose first chunk is on its way to
    /// `stage`.
    #[inline(always)]
    fn multiply<E: TileElement<Sum = S>>(&self, first_centre: u32, stage: &mut u32) -> tile::Sums<S> {
        let p = self.p;
        let mut sums: tile::Sums<S> = [[S::default(); 4]; 16];
        let mut chunk = 0;
        while chunk < self.chunks {
            copy::wait::<0>();
            // All threads' bytes of this chunk have arrived, and all warps have left the target of
            // the next copy.
            sync_threads();
            let last = chunk + 1 == self.chunks;
            let (next_centre, next_chunk) =
                if last { (first_centre + tile::SIDE, 0) } else { (first_centre, chunk + 1) };
            if next_centre < p.centre_count {
                self.start(*stage ^ 1, next_centre, next_chunk);
            }
            copy::commit();
            let steps = tile::steps(p.units - chunk * tile::UNITS);
            let slot = if self.resident { chunk } else { *stage };
            tile::multiply_add::<E>(&mut sums, self.vectors(slot), self.centres(*stage), steps);
            *stage ^= 1;
            chunk += 1;
        }
        sums
    }

    /// Writes the values of quarter `PASS` of the columns: column `8 w + c` of `values` is column
    /// `32 w + 8 PASS + c` of the tile.
    #[inline(always)]
    fn put_values<const PASS: usize>(&self, sums: &tile::Sums<S>, first_centre: u32, values: Shared<S>) {
        let p = self.p;
        // Rows lane / 4 + 8 h of each fragment, columns 2 (lane % 4) + c.
        let lane = warp::lane_id();
        let (part_row, part_column) = tile::part_of_warp();
        let (lane_row, lane_column) = (part_row + lane / 4, lane % 4 * 2);
        unroll!(2, C => {
            let column = lane_column + C as u32;
            let centre = first_centre + part_column + 8 * PASS as u32 + column;
            let bias = if centre < p.centre_count { self.biases.get(centre as usize) } else { S::NEVER };
            let to = values.offset(((part_column / 4 + column) * COLUMN_STRIDE + lane_row) as usize);
            unroll!(4, M => {
                unroll!(2, H => {
                    let product = sums[4 * M + PASS][2 * H + C];
                    to.set(16 * M + 8 * H, S::value(bias, p.weight, product));
                });
            });
        });
    }

    /// Selects the best keys of the warp's vectors from a quarter of the columns. Lane `i` holds
    /// the centre `centre`, and in `farthest` the value of the last key of the warp's vector `i`.
    #[inline(always)]
    fn select_best(&self, values: Shared<S>, centre: u32, farthest: &mut u32) {
        let (lane, probes) = (warp::lane_id(), self.p.probes);
        let first_line = thread::warp_idx() * LINES_PER_WARP;
        let there = centre < self.p.centre_count;
        let mut line = first_line;
        while line < first_line + LINES_PER_WARP && line < self.here {
            keep_rolled();
            let value = values.get((lane * COLUMN_STRIDE + line) as usize);
            let value = value.ordered();
            let last = warp::broadcast(*farthest, line - first_line);
            // After the first tiles this is rare.
            if warp::any(there && value <= last) {
                let kept = self.kept_of(line);
                let key = if there { (value as u64) << 32 | self.number(centre) as u64 } else { u64::MAX };
                let best = if lane < probes { kept.get(lane as usize) } else { u64::MAX };
                let best = select(best, key, probes);
                if lane < probes {
                    kept.set(lane as usize, best);
                }
                let last = (warp::broadcast(best, probes - 1) >> 32) as u32;
                if lane == line - first_line {
                    *farthest = last;
                }
            }
            line += 1;
        }
    }

    /// Writes the centres of the warp's best keys.
    #[inline(always)]
    fn write(&self, first_line: u32) {
        let (p, lane) = (self.p, warp::lane_id());
        let mut line = first_line;
        while line < first_line + LINES_PER_WARP && line < self.here {
            let place = self.first + line;
            let to = if p.by_number != 0 { p.ids.get(place as usize) } else { place };
            if lane < p.probes {
                // The low half of an unused key is `NOWHERE`.
                let centre = self.kept_of(line).get(lane as usize) as u32;
                p.nearest.set(to as usize * p.probes as usize + lane as usize, centre);
            }
            line += 1;
        }
    }
}

#[inline(always)]
fn assign<E: TileElement>(p: &Assign<E::Sum>) {
    let AssignPart { first, end, list } = AssignPart::of_block(p);
    if first >= end {
        return;
    }
    let left = end - first;
    let chunks = p.units.div_ceil(tile::UNITS);
    let block = Block {
        p,
        first,
        here: if left < tile::SIDE { left } else { tile::SIDE },
        list: p.lists.offset(list),
        biases: p.biases.offset(list),
        chunks,
        resident: chunks <= RESIDENT_CHUNKS,
        kept: shared::dynamic(chunk_bytes(p.units) as usize),
    };
    let first_line = thread::warp_idx() * LINES_PER_WARP;
    block.begin(first_line);
    let lane = warp::lane_id();
    let (mut stage, mut first_centre) = (0, 0);
    let mut farthest = u32::MAX;
    while first_centre < p.centre_count {
        let sums = block.multiply::<E>(first_centre, &mut stage);
        let values = block.values(stage ^ 1);
        unroll!(4, PASS => {
            // All warps have left the last chunk of centres, or the previous values.
            sync_threads();
            block.put_values::<PASS>(&sums, first_centre, values);
            sync_threads();
            let centre = first_centre + lane / 8 * 32 + 8 * PASS as u32 + lane % 8;
            block.select_best(values, centre, &mut farthest);
        });
        first_centre += tile::SIDE;
    }
    block.write(first_line);
}

const _: () = assert!(NOWHERE == u64::MAX as u32);

macro_rules! assign_kernels {
    ($($name:ident $element:ty, $sum:ty;)*) => {$(
        /// Finds the nearest centres of vectors (see [`Assign`]).
        ///
        /// Launch: [`assign_blocks`] blocks of [`tile::THREADS`]; [`assign_shared_bytes`].
        ///
        /// # Safety
        /// - The views have the shapes of [`Assign`].
        #[kernel(
            block = tile::THREADS,
            shared = assign_shared_bytes(p.units, p.probes),
            blocks_per_multiprocessor = 2
        )]
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
