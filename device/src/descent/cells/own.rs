//! The filter of cells: which members of a cell are near which others.

use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};

use super::nearness;
use crate::block::copied;
use crate::block::element::{TileElement, TileSum};
use crate::block::tile;
use crate::block::tile_walk::{
    Epilogue, LanePart, Lookups, TileWalk, Tiles, column_of, tile_walk_shared_bytes, walk_tiles,
};
use crate::key::{self, Key};

/// Bytes of dynamic shared memory of the filter of cells: with them, of each line its next place, the end of its
/// places, and its term.
pub const fn cell_filter_shared_bytes(units: u32) -> u32 {
    tile_walk_shared_bytes(units) + tile::SIDE * 12
}

/// The filter of some members of cells for other members of their cell: a job per block.
#[repr(C)]
pub struct CellFilter<S> {
    /// What is compared; queries and rows are the same vectors.
    pub tiles: Tiles<S>,
    /// In: one of each vector, f32 whatever the products are.
    pub bounds: Global<f32>,
    /// In: the vectors of all cells' members, cell by cell.
    pub members: Global<u32>,
    /// In: a [`Job`] of each block.
    pub jobs: Global<u32>,
    /// Out: of each line of the blocks' query tiles, of which a block has [`tile::SIDE`], keys noted, also those
    /// that there was no room for.
    pub counts: GlobalMut<u32>,
    /// Out: `capacity` keys of each line: the vector of a row, at its distance as the tensor cores compute it, less
    /// the query's norm.
    pub found: GlobalMut<Key>,
    /// Keys that are noted per line; of all lines, below 2^32.
    pub capacity: u32,
    /// Nothing.
    pub padding: u32,
}

/// A job of [`CellFilter`]: up to 128 queries against any number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Job {
    /// The first query among the members; they follow one another.
    pub first_query: u32,
    /// How many queries, at most [`tile::SIDE`].
    pub query_count: u32,
    /// The first row among the members.
    pub first_row: u32,
    /// How many rows.
    pub row_count: u32,
}

/// Words of a [`Job`].
pub const JOB_WORDS: usize = size_of::<Job>() / 4;

impl Job {
    /// The job number `index`.
    #[inline(always)]
    pub fn read(jobs: Global<u32>, index: u32) -> Self {
        let job = jobs.offset(index as usize * JOB_WORDS);
        Self {
            first_query: job.get(0),
            query_count: job.get(1),
            first_row: job.get(2),
            row_count: job.get(3),
        }
    }
}

copied! {
    CellFilter<S>;
}

/// Notes keys of lines that are of this block alone: where the next key of each goes, and the end of its room.
struct NoteKeys<S> {
    found: GlobalMut<Key>,
    next: Shared<u32>,
    ends: Shared<u32>,
    terms: Shared<S>,
}

impl<S: TileSum> Epilogue<S> for NoteKeys<S> {
    #[inline(always)]
    fn term(norm: S) -> S {
        S::term(norm)
    }

    #[inline(always)]
    fn begin(&self, part: LanePart<S>) -> tile::Sums<S> {
        nearness::begin(self.terms, part)
    }

    #[inline(always)]
    fn tile(&mut self, sums: &tile::Sums<S>, thresholds: &[S; 8], part: LanePart<S>) {
        let LanePart { line, column, columns } = part;
        // Bit 8 (r % 4) + c of word r / 4, from the top: column c is nearer than the threshold of line r.
        let mut below = [0u32; 2];
        unroll!(8, R => {
            unroll!(8, C => {
                below[R / 4] = S::push_below(below[R / 4], thresholds[R], nearness::of(sums, R, C));
            });
        });
        // All places of a line are taken at once, and of all lines one after another, without waiting in between.
        let mut firsts = [0u32; 8];
        unroll!(8, R => {
            let hits = below[R / 4] >> (24 - 8 * (R % 4)) & 0xff;
            if hits != 0 {
                firsts[R] = self.next.fetch_add((line + 8 * R as u32) as usize, hits.count_ones());
            }
        });
        unroll!(8, R => {
            let hits = below[R / 4] >> (24 - 8 * (R % 4)) & 0xff;
            // A line with more than there is room for is passed over, so it may lack some.
            if hits != 0 && firsts[R] + hits.count_ones() <= self.ends.get((line + 8 * R as u32) as usize) {
                let term = self.terms.get((line + 8 * R as u32) as usize);
                let mut place = firsts[R].wrapping_sub(1);
                unroll!(8, C => {
                    if hits >> (7 - C) & 1 == 1 {
                        place = place.wrapping_add(1);
                        let column = (column + column_of(C)) as usize;
                        let value = S::from_nearness(nearness::of(sums, R, C), term, columns.biases.get(column));
                        self.found.set(place as usize, key::pack(value.to_f32(), columns.vectors.get(column)));
                    }
                });
            }
        });
    }
}

#[inline(always)]
fn filter_cell<E: TileElement>(p: &CellFilter<E::Sum>) {
    let job = Job::read(p.jobs, block_idx_x());
    let tiles = job.row_count.div_ceil(tile::SIDE);
    let walk = TileWalk {
        first_query: job.first_query,
        query_count: job.query_count,
        first_row: job.first_row,
        end_row: job.first_row + job.row_count,
        first_tile: 0,
        tile_count: tiles,
        tile_step: 1,
        visits: tiles,
    };
    // A line belongs to one block, so where its next key goes is in shared memory while the block runs. The
    // barriers of the walk stand between this and the first use.
    let next: Shared<u32> = shared::dynamic(tile_walk_shared_bytes(p.tiles.units) as usize);
    let ends = next.offset(tile::SIDE as usize);
    let terms: Shared<E::Sum> = ends.offset(tile::SIDE as usize).cast();
    let thread = thread_idx_x();
    let line = block_idx_x() * tile::SIDE + thread;
    let begin = line * p.capacity;
    let vector = |member: u32| p.members.get(member as usize);
    let norm = |line: u32| p.tiles.biases.get(vector(job.first_query + line) as usize);
    if thread < tile::SIDE {
        next.set(thread as usize, begin);
        ends.set(thread as usize, begin + p.capacity);
        let norm = if thread < job.query_count { norm(thread) } else { E::Sum::NEVER };
        terms.set(thread as usize, E::Sum::term(norm));
    }
    let threshold = |line: u32| {
        if line >= job.query_count {
            return E::Sum::UNBOUNDED;
        }
        let bound = p.bounds.get(vector(job.first_query + line) as usize);
        E::Sum::nearness(E::Sum::from_f32(bound), norm(line))
    };
    let mut epilogue = NoteKeys { found: p.found, next, ends, terms };
    let lookups = Lookups { query_vector: vector, row_vector: vector, bound: threshold };
    walk_tiles::<E, _>(&p.tiles, walk, lookups, &mut epilogue);
    sync_threads();
    if thread < tile::SIDE {
        p.counts.set(line as usize, next.get(thread as usize) - begin);
    }
}

macro_rules! filter_kernels {
    ($($name:ident $element:ty, $sum:ty;)*) => {$(
        /// Notes, for members of cells, the members of their cell whose distance is below their bound
        /// (see [`CellFilter`]), the node itself among them.
        ///
        /// Launch: a block of [`tile::THREADS`] per job; [`cell_filter_shared_bytes`].
        ///
        /// # Safety
        /// - The views hold what [`CellFilter`] says.
        #[kernel(block = tile::THREADS, shared = cell_filter_shared_bytes(p.tiles.units), blocks_per_multiprocessor = 2)]
        pub unsafe fn $name(p: CellFilter<$sum>) {
            filter_cell::<$element>(&p);
        }
    )*};
}

filter_kernels! {
    cells_filter_f16 f16, f32;
    cells_filter_u8 u8, i32;
    cells_filter_i8 i8, i32;
}
