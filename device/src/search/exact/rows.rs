//! The filter of exact search. Its survivors are the rows that may be among the nearest of a query.
//!
//! # Algorithm
//!
//! ```text
//! for each 128 queries and some tiles of 128 rows, one block of 8 warps:
//!     for each tile of rows:
//!         for each query and row of the tile:
//!             margin = margin(query) + margin(row)
//!         margins += queries × rows on tensor cores         (block::tile_walk)
//!         for each query and row of the tile:
//!             if the margin is not negative: the row survives
//! ```
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `tiles` | vectors of queries and rows, and a bias per row, see [`Tiles`] |
//! | `bounds`, `counts` | one per query |
//! | `survivors` | queries × `capacity` rows |
//! | `overflow` | one value |
//! | shared memory | chunks of queries and rows, see [`tile_walk_shared_bytes`] |
//!
//! # Optimisations
//!
//! 1. Asynchronous copies fill shared memory while tensor cores work ([`crate::block::tile_walk`]).
//! 2. Products are added to what bound and bias leave of them: `bias + weight * product < bound`
//!    where `product + (bound - bias) / |weight|` is above zero ([`TileSum::margin_of_query`]). So
//!    a pair costs an addition before the products and a shift after them.
//! 3. The shift takes the sign of a margin into a word. A loop over the queries with a bit then
//!    stores their survivors: few bits are set. A lane reserves the room of all of a query at once.
//! 4. A survivor is its number alone. Its distance is computed again, exactly
//!    ([`super::ExactRerank`]).
//! 5. Tiles come in an order of `tile_step`, which mixes data that lie sorted, so that bounds
//!    tighten early. The step is coprime to the number of tiles, so each tile comes once.
//!
//! # Speed
//!
//! Bound by tensor cores: 2 × dim operations per pair of query and row.

use cuda_std::atomic::Scope;
use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, block_idx_y};

use crate::block::copied;
use crate::block::sums::{TileElement, TileSum};
use crate::block::tile;
use crate::block::tile_walk::{
    Epilogue, LanePart, Lookups, MANY, TileWalk, Tiles, column_of, sum_of, tile_walk_shared_bytes, walk_tiles,
};

/// Arguments of the kernels `exact_filter_*`: a range of the rows, for all queries.
///
/// Position p of the order is the tile of 128 rows number `(p * tile_step) % tile_count`.
#[repr(C)]
pub struct ExactFilter<S> {
    /// The vectors.
    pub tiles: Tiles<S>,
    /// In: one bound per query.
    pub bounds: Global<S>,
    /// In and out: per query the number of rows below the bound, also beyond `capacity`.
    pub counts: GlobalMut<u32>,
    /// Out: `capacity` rows per query.
    pub survivors: GlobalMut<u32>,
    /// Out: 1 if a query passed its capacity.
    pub overflow: GlobalMut<u32>,
    /// Maximum number of survivors per query.
    pub capacity: u32,
    /// Number of queries.
    pub query_count: u32,
    /// Number of rows.
    pub row_count: u32,
    /// First position of the range.
    pub first_position: u32,
    /// Positions of the range.
    pub position_count: u32,
    /// Positions per block.
    pub positions_per_block: u32,
    /// Tiles of all rows.
    pub tile_count: u32,
    /// Tiles between two positions: at most `tile_count`, and coprime to it.
    pub tile_step: u32,
}

copied! {
    ExactFilter<S>;
}

#[inline(always)]
fn filter_all<E: TileElement, const CHUNKS: u32>(p: &ExactFilter<E::Sum>) {
    let first_query = block_idx_x() * tile::SIDE;
    let begin = block_idx_y() * p.positions_per_block;
    let (left, queries) = (p.position_count - begin, p.query_count - first_query);
    let place = (p.first_position + begin) as u64 * p.tile_step as u64;
    let walk = TileWalk {
        first_query,
        query_count: if queries < tile::SIDE { queries } else { tile::SIDE },
        first_row: 0,
        end_row: p.row_count,
        first_tile: place.checked_rem(p.tile_count as u64).unwrap_or(0) as u32,
        tile_count: p.tile_count,
        tile_step: p.tile_step,
        visits: if left < p.positions_per_block { left } else { p.positions_per_block },
    };
    let bound = |line: u32| {
        let there = line < walk.query_count;
        let bound = if there { p.bounds.get((first_query + line) as usize) } else { E::Sum::CLOSED };
        E::Sum::margin_of_query(bound, p.tiles.weight)
    };
    let lookups = Lookups { query_vector: |query| query, row_vector: |row| row, bound };
    walk_tiles::<E, _, CHUNKS>(&p.tiles, walk, lookups, &mut CollectSurvivors { p, first_query });
}

/// Stores survivors of the queries from `first_query` on. Other blocks may add to them too.
struct CollectSurvivors<'a, S> {
    p: &'a ExactFilter<S>,
    first_query: u32,
}

impl<S: TileSum> Epilogue<S> for CollectSurvivors<'_, S> {
    #[inline(always)]
    fn term(&self, bias: S) -> S {
        S::margin_of_row(bias, self.p.tiles.weight)
    }

    #[inline(always)]
    fn begin(&self, bounds: &[S; 8], part: LanePart<S>) -> tile::Sums<S> {
        let mut sums = [[S::default(); 4]; 16];
        unroll!(8, C => {
            let of_row = part.columns.biases.get((part.column + column_of(C)) as usize);
            unroll!(8, R => sums[4 * (R / 2) + C / 2][2 * (R % 2) + C % 2] = S::plus(bounds[R], of_row));
        });
        sums
    }

    #[inline(always)]
    fn tile(&mut self, sums: &tile::Sums<S>, part: LanePart<S>) {
        let p = self.p;
        let LanePart { line, column, columns } = part;
        // Of each half of the lines, the byte of a line has the signs of its columns.
        let mut negative = [0u32; 2];
        unroll!(2, H => {
            unroll!(4, R => {
                unroll!(8, C => {
                    let sum = sum_of(sums, 4 * H + R, C);
                    negative[H] = S::push_below(negative[H], sum, S::default());
                });
            });
        });
        let mut bits = u64::from(!negative[0]) << 32 | u64::from(!negative[1]);
        while bits != 0 {
            let row = bits.leading_zeros() / 8;
            let mut of_line = (bits << (8 * row) >> 56) as u32;
            bits &= !(0xff << 56 >> (8 * row));
            let query = (self.first_query + line + 8 * row) as usize;
            let mut slot = p.counts.fetch_add(query, of_line.count_ones(), Scope::Device);
            let survivors = p.survivors.offset(query * p.capacity as usize);
            while of_line != 0 {
                let bit = 31 - of_line.leading_zeros();
                of_line &= !(1 << bit);
                if slot < p.capacity {
                    let column = column + column_of(7 - bit as usize);
                    survivors.set(slot as usize, columns.vectors.get(column as usize));
                } else {
                    p.overflow.set(0, 1);
                }
                slot += 1;
            }
        }
    }
}

macro_rules! filter_kernels {
    ($($name:ident $element:ty, $sum:ty, $chunks:expr;)*) => {$(
        /// Stores the rows of a range whose distance may be below the query's bound (see
        /// [`ExactFilter`] and the module). The order of the survivors is not deterministic.
        ///
        /// Launch: grid x: a block per [`tile::SIDE`] queries; grid y: one per
        /// `positions_per_block` of the `position_count` tiles of rows; [`tile::THREADS`] threads;
        /// [`tile_walk_shared_bytes`].
        ///
        /// # Safety
        /// - Vectors have as many [`Chunks`](crate::block::tile_walk::Chunks) as the name says.
        /// - The views match the fields of [`ExactFilter`].
        #[kernel(unsafe, block = tile::THREADS, shared = tile_walk_shared_bytes(p.tiles.units), blocks_per_multiprocessor = 2)]
        pub unsafe fn $name(p: ExactFilter<$sum>) {
            filter_all::<$element, $chunks>(&p);
        }
    )*};
}

filter_kernels! {
    exact_filter_1_f16 f16, f32, 1;
    exact_filter_2_f16 f16, f32, 2;
    exact_filter_many_f16 f16, f32, MANY;
    exact_filter_1_u8 u8, i32, 1;
    exact_filter_2_u8 u8, i32, 2;
    exact_filter_many_u8 u8, i32, MANY;
    exact_filter_1_i8 i8, i32, 1;
    exact_filter_2_i8 i8, i32, 2;
    exact_filter_many_i8 i8, i32, MANY;
}
