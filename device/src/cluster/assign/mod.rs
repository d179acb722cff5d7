//! Nearest centres of vectors, by products on tensor cores.
//!
//! ```text
//! block = 128 vectors (of one guide, where there are guides)
//! for each tile of 128 centres (of the guide's list, where there are guides):
//!     sums = vectors x centres, chunk by chunk
//!     keep the nearest of each vector: one (nearest.rs) or several (several.rs)
//! ```
//!
//! This file has what both share: the arguments, the part of a block, and its products.
//!
//! | buffer | shape |
//! | --- | --- |
//! | `nearest` | vectors x `probes` centres |
//! | shared memory | queues, vector chunks, 2 stages of centre chunks with a gap, keys |
//!
//! Optimisations:
//!
//! 1. Vectors of up to 256 bytes stay in shared memory while centres pass.
//! 2. Guide g gets its first block at `starts[g] / 128 + g`: enough blocks for its tiles and at
//!    most one idle block, without sums over guides.
//! 3. Fragment `n` of all warps together holds 32 centres in a row: the tile's line
//!    `32 w + 8 n + c` is centre `32 n + 8 w + c`. So the nearest centres of a sorted list pass
//!    first.

mod nearest;
mod queue;
mod several;

pub use nearest::*;
pub use several::*;

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads};
use cuda_std::{copy, recomputed, shared};

use self::queue::QUEUE_BYTES;
use crate::block::copied;
use crate::block::sums::{TileElement, TileSum};
use crate::block::tile;
use crate::key::NO_ID;

/// The most centres per vector: one per lane.
pub const MAX_PROBES: u32 = 32;

/// The most chunks of vectors that stay in shared memory. Longer vectors pass with the centres.
const RESIDENT_CHUNKS: u32 = 2;

/// Columns of a tile whose values are in shared memory at once: one per lane.
const COLUMNS: u32 = 32;

/// Words from one column's values to the next. Lanes that read a row hit different banks; lanes
/// that write a fragment mostly do.
const COLUMN_STRIDE: u32 = tile::SIDE + 5;

/// Bytes of the values in shared memory.
const VALUE_BYTES: u32 = COLUMNS * COLUMN_STRIDE * 4;

/// Bytes between the two stages of centres: the values are that much longer than a chunk.
const GAP_BYTES: u32 = VALUE_BYTES - tile::SIDE_BYTES;

/// Chunks in use or being copied. With three, two blocks would not fit a multiprocessor.
const STAGES: u32 = 2;

/// Bytes of the queues and of the vectors' and centres' chunks in shared memory.
const fn chunk_bytes(units: u32) -> u32 {
    let chunks = units.div_ceil(tile::UNITS);
    let vectors = if chunks <= RESIDENT_CHUNKS { chunks } else { STAGES };
    QUEUE_BYTES + (vectors + STAGES) * tile::SIDE_BYTES + GAP_BYTES
}

/// Blocks for `count` vectors of `guide_count` guides, or without guides.
pub const fn assign_blocks(count: u32, guide_count: u32) -> u32 {
    if guide_count == 0 { count.div_ceil(tile::SIDE) } else { first_block(count, guide_count) }
}

/// The first block of guide `guide`, whose vectors begin at `start` (optimisation 2).
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
    /// number; [`NO_ID`] from `centre_count` on.
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

/// The vectors and the list of centres of one block.
struct AssignPart {
    /// The first vector.
    first: u32,
    /// The end of the vectors of the same guide.
    end: u32,
    /// The start of the list.
    list: u32,
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
        // The last guide whose first block is not after this one.
        let (mut guide, mut end) = (0, p.guide_count);
        while end - guide > 1 {
            let middle = guide + (end - guide) / 2;
            if first_block(start(middle), middle) <= block { guide = middle } else { end = middle }
        }
        let begin = start(guide);
        let tile = block - first_block(begin, guide);
        let list = guide * p.centre_count;
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
    /// The start of the guide's list.
    list: u32,
    /// Chunks per vector.
    chunks: u32,
    /// Whether all chunks of the vectors stay in shared memory.
    resident: bool,
}

impl<'a, S: TileSum> Block<'a, S> {
    /// This block, unless it has no vectors.
    #[inline(always)]
    fn new(p: &'a Assign<S>) -> Option<Self> {
        let AssignPart { first, end, list } = AssignPart::of_block(p);
        if first >= end {
            return None;
        }
        let left = end - first;
        let chunks = p.units.div_ceil(tile::UNITS);
        Some(Self {
            p,
            first,
            here: if left < tile::SIDE { left } else { tile::SIDE },
            list,
            chunks,
            resident: chunks <= RESIDENT_CHUNKS,
        })
    }

    /// The number of the centre at a place of the list.
    #[inline(always)]
    fn number(&self, place: u32) -> u32 {
        if self.p.guide_count != 0 { self.p.lists.get((self.list + place) as usize) } else { place }
    }

    /// Chunk `slot` of vectors in shared memory.
    #[inline(always)]
    fn vectors(&self, slot: u32) -> Shared<u8> {
        shared::dynamic((QUEUE_BYTES + slot * tile::SIDE_BYTES) as usize)
    }

    /// Bytes before the chunk of centres of stage `stage`, without the gap.
    #[inline(always)]
    fn before_centres(&self, stage: u32) -> u32 {
        QUEUE_BYTES + ((if self.resident { self.chunks } else { STAGES }) + stage) * tile::SIDE_BYTES
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
        tile::start_copy(
            self.vectors(slot),
            tile::Vectors { first: p.vectors, stride: p.vector_stride },
            chunk,
            p.units,
            &source,
        );
    }

    /// Starts the copies of a chunk of the centres from `first_centre` on, and of vectors that do
    /// not stay.
    #[inline(always)]
    fn start(&self, stage: u32, first_centre: u32, chunk: u32) {
        let p = self.p;
        let source = |line: u32| {
            let centre = first_centre + centre_of_line(line);
            if centre < p.centre_count { Some(self.number(centre)) } else { None }
        };
        tile::start_copy(
            self.centres(stage),
            tile::Vectors { first: p.centres, stride: p.centre_stride },
            chunk,
            p.units,
            &source,
        );
        if !self.resident {
            self.start_vectors(stage, chunk);
        }
    }

    /// Starts the first copies.
    #[inline(always)]
    fn begin(&self) {
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
    /// The first of the two centres of fragment column `fragment` of a lane, after `first_centre`.
    #[inline(always)]
    fn centre_of_lane(&self, first_centre: u32, fragment: u32) -> u32 {
        let (_, part_column) = tile::part_of_warp();
        first_centre + centre_of_line(part_column + 8 * fragment + recomputed(warp::lane_id()) % 4 * 2)
    }

    /// The bias of a centre; a place without a centre has one that no vector finds.
    #[inline(always)]
    fn bias(&self, centre: u32) -> S {
        if centre < self.p.centre_count { self.p.biases.get((self.list + centre) as usize) } else { S::NEVER }
    }

    /// The row of `nearest` of a line's vector.
    #[inline(always)]
    fn row_of(&self, line: u32) -> u32 {
        let place = self.first + line;
        if self.p.by_number != 0 { self.p.ids.get(place as usize) } else { place }
    }
}

/// The centre, of the tile's 128, in a line of the tile (optimisation 3).
#[inline(always)]
const fn centre_of_line(line: u32) -> u32 {
    line / 8 % 4 * 32 + line / 32 * 8 + line % 8
}

const _: () = assert!(NO_ID == u64::MAX as u32);
