//! Intra-cell join: all pairs inside a cell.
//!
//! ```text
//! block = job: up to 128 queries x any number of rows, all members of one cell
//! walk the tiles of rows (block::tile_walk):
//!     mark the pairs whose nearness is above the threshold of their line
//!     reserve places for the marked pairs of each line
//!     write a key (distance, row) to each place
//! counts[line] = keys of each line
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | `jobs` | 4 words per block ([`Job`]) |
//! | `candidates` | 128 lines per block x `capacity` keys |
//! | `counts` | 128 per block |
//! | shared memory | that of the walk, then per line: next place, end of places, term |
//!
//! Optimisations:
//!
//! 1. A pair costs one subtraction: the sign of threshold minus [nearness](super::nearness) is its
//!    bit.
//! 2. Keys carry the distance that the tensor cores computed. Exact distances are computed once,
//!    for the final lists ([`Finish`](super::Finish)).
//! 3. A line belongs to one block, so its cursor lies in shared memory.
//! 4. All places of a line are reserved by one addition. The additions of a lane's eight lines are
//!    issued one after another; no line waits for another.
//! 5. A line with more keys than places is dropped as a whole. Which keys fit would be chance.
//! 6. A loop writes the keys of a line. Code for each of a lane's 64 pairs would take the driver
//!    twice as long to compile as any other kernel.
//!
//! Bound by the products of the walk; keys written and read again are about as many bytes as the
//! lists.

use cuda_std::keep_rolled;
use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};

use super::nearness;
use crate::block::copied;
use crate::block::sums::{TileElement, TileSum};
use crate::block::tile;
use crate::block::tile_walk::{
    Epilogue, LanePart, Lookups, TileWalk, Tiles, column_of, tile_walk_shared_bytes, walk_tiles,
};
use crate::key::{self, Key};

/// Bytes of dynamic shared memory of the intra-cell join: the walk's, plus, per query line:
/// next place, end of places, norm term.
pub const fn intra_cell_join_shared_bytes(units: u32) -> u32 {
    tile_walk_shared_bytes(units) + tile::SIDE * 12
}

/// The intra-cell join.
#[repr(C)]
pub struct IntraCellJoin<S> {
    /// Vectors; queries and rows are the same ones.
    pub tiles: Tiles<S>,
    /// In: one bound per vector, in f32 for every type of products.
    pub bounds: Global<f32>,
    /// In: the vectors of all cells' members, cell by cell.
    pub members: Global<u32>,
    /// In: a [`Job`] per block.
    pub jobs: Global<u32>,
    /// Out: keys found per line, including those beyond `capacity`; [`tile::SIDE`] lines per block.
    pub counts: GlobalMut<u32>,
    /// Out: `capacity` keys per line: a row's vector at the distance that the tensor cores
    /// computed, less the query's norm.
    pub candidates: GlobalMut<Key>,
    /// Candidates per line. All lines together have fewer than 2^32.
    pub capacity: u32,
    /// Unused.
    pub padding: u32,
}

/// A job of [`IntraCellJoin`]: up to 128 queries against any number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Job {
    /// The first query among the members. Queries are consecutive.
    pub first_query: u32,
    /// Number of queries, at most [`tile::SIDE`].
    pub query_count: u32,
    /// The first row among the members. Rows are consecutive.
    pub first_row: u32,
    /// Number of rows.
    pub row_count: u32,
}

/// Words of a [`Job`].
pub const JOB_WORDS: usize = size_of::<Job>() / 4;

impl Job {
    /// Reads job `index`.
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
    IntraCellJoin<S>;
}

/// Writer of candidates. Each line belongs to this block alone.
struct Candidates<S> {
    keys: GlobalMut<Key>,
    /// The next place of each line in `keys`.
    next: Shared<u32>,
    /// The end of each line's places.
    ends: Shared<u32>,
    terms: Shared<S>,
}

/// The marks of line `row` of a lane's eight: bit `7 - c` for column `c`.
#[inline(always)]
fn marks_of(marks: [u32; 2], row: usize) -> u32 {
    marks[row / 4] >> (24 - 8 * (row % 4)) & 0xff
}

impl<S: TileSum> Epilogue<S> for Candidates<S> {
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
        // From the top, bit 8 (r % 4) + c of word r / 4: the pair of line r and column c is near.
        let mut marks = [0u32; 2];
        unroll!(8, R => {
            unroll!(8, C => {
                marks[R / 4] = S::push_below(marks[R / 4], thresholds[R], nearness::of(sums, R, C));
            });
        });
        // Optimisation 4.
        let mut firsts = [0u32; 8];
        unroll!(8, R => {
            let hits = marks_of(marks, R);
            if hits != 0 {
                firsts[R] = self.next.fetch_add((line + 8 * R as u32) as usize, hits.count_ones());
            }
        });
        unroll!(8, R => {
            let mut hits = marks_of(marks, R);
            // The merge skips a line with more keys than places.
            if hits != 0 && firsts[R] + hits.count_ones() <= self.ends.get((line + 8 * R as u32) as usize) {
                let term = self.terms.get((line + 8 * R as u32) as usize);
                let mut place = firsts[R] as usize;
                // Optimisation 6.
                while hits != 0 {
                    keep_rolled();
                    let c = hits.leading_zeros() - 24;
                    hits &= !(0x80 >> c);
                    let column = (column + column_of(c as usize)) as usize;
                    let nearness = nearness::select(sums, R, c);
                    let value = S::from_nearness(nearness, term, columns.biases.get(column));
                    self.keys.set(place, key::pack(value.to_f32(), columns.vectors.get(column)));
                    place += 1;
                }
            }
        });
    }
}

#[inline(always)]
fn intra_cell_join<E: TileElement>(p: &IntraCellJoin<E::Sum>) {
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
    // The barriers of the walk come between these writes and the first use.
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
    let mut candidates = Candidates { keys: p.candidates, next, ends, terms };
    let lookups = Lookups { query_vector: vector, row_vector: vector, bound: threshold };
    walk_tiles::<E, _>(&p.tiles, walk, lookups, &mut candidates);
    sync_threads();
    if thread < tile::SIDE {
        p.counts.set(line as usize, next.get(thread as usize) - begin);
    }
}

macro_rules! intra_cell_join_kernels {
    ($($name:ident $element:ty, $sum:ty;)*) => {$(
        /// Finds, for the queries of each job, the members of their cell below their bound, the
        /// query itself among them (see [`IntraCellJoin`]).
        ///
        /// Launch: a block of [`tile::THREADS`] per job; [`intra_cell_join_shared_bytes`].
        ///
        /// # Safety
        /// - The views have the shapes of [`IntraCellJoin`].
        #[kernel(
            block = tile::THREADS,
            shared = intra_cell_join_shared_bytes(p.tiles.units),
            blocks_per_multiprocessor = 2
        )]
        pub unsafe fn $name(p: IntraCellJoin<$sum>) {
            intra_cell_join::<$element>(&p);
        }
    )*};
}

intra_cell_join_kernels! {
    cells_intra_join_f16 f16, f32;
    cells_intra_join_u8 u8, i32;
    cells_intra_join_i8 i8, i32;
}
