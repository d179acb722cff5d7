//! Intra-cell join: all pairs inside a cell.
//!
//! ```text
//! block = job: up to 128 queries x up to `capacity` rows, all members of one cell
//! walk the tiles of rows (block::tile_walk):
//!     distances[line][row] = ordered bits of the distance of each pair
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | `jobs` | 4 words per block ([`Job`]) |
//! | `distances` | 128 lines per block x `capacity` words |
//! | shared memory | that of the walk, then the term of each line |
//!
//! Optimisations:
//!
//! 1. Most rows of a cell are compared with an empty list, so all of them would be candidates:
//!    places follow from the pair, without counting or locks. A distance takes four bytes, where a
//!    key takes eight. The merge looks up the ids of the few that it keeps.
//! 2. The tensor cores compute these distances. Exact distances are computed once, for the final
//!    lists ([`Finish`](super::Finish)).
//! 3. A store of a warp fills whole sectors of 32 bytes: eight lines of eight rows.
//!
//! Bound by memory: distances, 2.2 GB for a million nodes in cells of 550.

use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::thread::{block_idx_x, thread_idx_x};

use super::nearness;
use crate::block::copied;
use crate::block::sums::{TileElement, TileSum};
use crate::block::tile;
use crate::block::tile_walk::{
    Epilogue, LanePart, Lookups, MANY, TileWalk, Tiles, column_of, sum_of, tile_walk_shared_bytes, walk_tiles,
};
use crate::key;

/// Bytes of dynamic shared memory of the intra-cell join: the walk's, and the norm term of each
/// query line.
pub const fn intra_cell_join_shared_bytes(units: u32) -> u32 {
    tile_walk_shared_bytes(units) + tile::SIDE * 4
}

/// The intra-cell join.
#[repr(C)]
pub struct IntraCellJoin<S> {
    /// Vectors; queries and rows are the same ones.
    pub tiles: Tiles<S>,
    /// In: the vectors of all cells' members, cell by cell.
    pub members: Global<u32>,
    /// In: a [`Job`] per block.
    pub jobs: Global<u32>,
    /// Out: [`ordered`](key::ordered) distances from the tensor cores, less the query's norm:
    /// `capacity` per line and [`tile::SIDE`] lines per block. Lines without a query keep what they
    /// hold, as do the places after the group of eight with the last row.
    pub distances: GlobalMut<u32>,
    /// Distances per line, a multiple of [`tile::SIDE`].
    pub capacity: u32,
    /// Unused.
    pub padding: u32,
}

/// A job of [`IntraCellJoin`]: up to 128 queries against up to `capacity` rows.
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

/// Writer of the distances of a block's lines.
struct Distances<S> {
    lines: GlobalMut<u32>,
    capacity: u32,
    terms: Shared<S>,
    query_count: u32,
    row_count: u32,
    /// The first row of the next tile.
    first_row: u32,
}

impl<S: TileSum> Epilogue<S> for Distances<S> {
    #[inline(always)]
    fn term(&self, norm: S) -> S {
        S::term(norm)
    }

    #[inline(always)]
    fn begin(&self, _: &[S; 8], part: LanePart<S>) -> tile::Sums<S> {
        nearness::begin(self.terms, part)
    }

    #[inline(always)]
    fn tile(&mut self, sums: &tile::Sums<S>, part: LanePart<S>) {
        let LanePart { line, column, columns } = part;
        let mut others = [S::default(); 8];
        unroll!(8, C => others[C] = columns.biases.get((column + column_of(C)) as usize));
        unroll!(8, R => {
            let own = line + 8 * R as u32;
            if own < self.query_count {
                let term = self.terms.get(own as usize);
                let distance = |c: usize| {
                    let value = S::from_nearness(sum_of(sums, R, c), term, others[c]);
                    u64::from(key::ordered(value.to_f32()))
                };
                let to = self.lines.offset((own * self.capacity + self.first_row + column) as usize);
                // Two neighbouring columns at a time.
                let pairs: GlobalMut<u64> = to.cast();
                unroll!(4, N => {
                    if self.first_row + (column & !7) + 8 * (N as u32) < self.row_count {
                        pairs.set(4 * N, distance(2 * N) | distance(2 * N + 1) << 32);
                    }
                });
            }
        });
        self.first_row += tile::SIDE;
    }
}

#[inline(always)]
fn intra_cell_join<E: TileElement, const CHUNKS: u32>(p: &IntraCellJoin<E::Sum>) {
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
    let terms: Shared<E::Sum> = shared::dynamic(tile_walk_shared_bytes(p.tiles.units) as usize);
    let thread = thread_idx_x();
    let vector = |member: u32| p.members.get(member as usize);
    // The barriers of the walk come between these writes and the first use.
    if thread < tile::SIDE {
        let norm = || p.tiles.biases.get(vector(job.first_query + thread) as usize);
        let norm = if thread < job.query_count { norm() } else { E::Sum::NEVER };
        terms.set(thread as usize, E::Sum::term(norm));
    }
    let mut distances = Distances {
        lines: p.distances.offset((block_idx_x() * tile::SIDE) as usize * p.capacity as usize),
        capacity: p.capacity,
        terms,
        query_count: job.query_count,
        row_count: job.row_count,
        first_row: 0,
    };
    let lookups = Lookups { query_vector: vector, row_vector: vector, bound: |_| E::Sum::UNBOUNDED };
    walk_tiles::<E, _, CHUNKS>(&p.tiles, walk, lookups, &mut distances);
}

macro_rules! intra_cell_join_kernels {
    ($($name:ident $element:ty, $sum:ty, $chunks:expr;)*) => {$(
        /// Computes the distances of the queries of each job to members of their cell (see
        /// [`IntraCellJoin`]).
        ///
        /// Launch: a block of [`tile::THREADS`] per job; [`intra_cell_join_shared_bytes`].
        ///
        /// # Safety
        /// - Vectors have as many [`Chunks`](crate::block::tile_walk::Chunks) as the name says.
        /// - The views have the shapes of [`IntraCellJoin`].
        #[kernel(
            unsafe,
            block = tile::THREADS,
            shared = intra_cell_join_shared_bytes(p.tiles.units),
            blocks_per_multiprocessor = 2
        )]
        pub unsafe fn $name(p: IntraCellJoin<$sum>) {
            intra_cell_join::<$element, $chunks>(&p);
        }
    )*};
}

intra_cell_join_kernels! {
    cells_intra_join_1_f16 f16, f32, 1;
    cells_intra_join_2_f16 f16, f32, 2;
    cells_intra_join_many_f16 f16, f32, MANY;
    cells_intra_join_1_u8 u8, i32, 1;
    cells_intra_join_2_u8 u8, i32, 2;
    cells_intra_join_many_u8 u8, i32, MANY;
    cells_intra_join_1_i8 i8, i32, 1;
    cells_intra_join_2_i8 i8, i32, 2;
    cells_intra_join_many_i8 i8, i32, MANY;
}
