//! The filter of exact search. Its survivors are the rows that may be among the nearest of a query.
//!
//! # Algorithm
//!
//! ```text
//! for each 128 queries and some tiles of 128 rows, one block of 8 warps:
//!     for each tile of rows:
//!         products = queries × rows on tensor cores         (block::tile_walk)
//!         for each query and row of the tile:
//!             if bias(row) + weight * product < bound(query): the row survives
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
//! 1. Asynchronous copies fill shared memory while tensor cores work: rows three chunks deep,
//!    queries two, or all of them once where they have no more chunks.
//! 2. Product, norm of the row and bound of the query make one comparison:
//!    `|q - r|² = |r|² - 2 <q, r> + |q|²`, and `|q|²` is subtracted from the bound beforehand.
//! 3. Comparisons set bits of a word, by a predicated instruction each. A loop over the bits then
//!    stores survivors: few bits are set.
//! 4. A survivor is its number alone. Its distance is computed again, exactly
//!    ([`super::ExactSettle`]).
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
    Epilogue, LanePart, Lookups, TileWalk, Tiles, column_of, tile_walk_shared_bytes, walk_tiles,
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
    /// Most survivors per query.
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
fn filter_all<E: TileElement>(p: &ExactFilter<E::Sum>) {
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
        if line < walk.query_count { p.bounds.get((first_query + line) as usize) } else { E::Sum::CLOSED }
    };
    let lookups = Lookups { query_vector: |query| query, row_vector: |row| row, bound };
    walk_tiles::<E, _>(&p.tiles, walk, lookups, &mut NoteRows { p, first_query });
}

/// Stores survivors of the queries from `first_query` on. Other blocks may add to them too.
struct NoteRows<'a, S> {
    p: &'a ExactFilter<S>,
    first_query: u32,
}

impl<S: TileSum> Epilogue<S> for NoteRows<'_, S> {
    #[inline(always)]
    fn tile(&mut self, sums: &tile::Sums<S>, bounds: &[S; 8], part: LanePart<S>) {
        let p = self.p;
        let LanePart { line, column, columns } = part;
        let mut biases = [S::NEVER; 8];
        unroll!(8, C => biases[C] = columns.biases.get((column + column_of(C)) as usize));
        // Bit 16 m + 4 n + v: value v of fragment (m, n) is below its bound.
        let mut below = [0u32; 2];
        unroll!(4, M => {
            unroll!(4, N => {
                unroll!(4, V => {
                    let value = S::value(biases[2 * N + V % 2], p.tiles.weight, sums[4 * M + N][V]);
                    let mask = 1 << (16 * (M % 2) + 4 * N + V);
                    below[M / 2] = S::mark_below(below[M / 2], mask, (value, bounds[2 * M + V / 2]));
                });
            });
        });
        let mut bits = below[0] as u64 | (below[1] as u64) << 32;
        while bits != 0 {
            let bit = bits.trailing_zeros();
            bits &= bits - 1;
            let query = (self.first_query + line + 16 * (bit / 16) + 8 * (bit / 2 % 2)) as usize;
            let slot = p.counts.fetch_add(query, 1, Scope::Device);
            if slot < p.capacity {
                let vector = columns.vectors.get((column + 8 * (bit / 4 % 4) + bit % 2) as usize);
                p.survivors.set(query * p.capacity as usize + slot as usize, vector);
            } else {
                p.overflow.set(0, 1);
            }
        }
    }
}

macro_rules! filter_kernels {
    ($($name:ident $element:ty, $sum:ty;)*) => {$(
        /// Stores the rows of a range whose distance may be below the query's bound (see
        /// [`ExactFilter`] and the module). The order of the survivors is not deterministic.
        ///
        /// Launch: grid x: a block per [`tile::SIDE`] queries; grid y: one per
        /// `positions_per_block` of the `position_count` tiles of rows; [`tile::THREADS`] threads;
        /// [`tile_walk_shared_bytes`].
        ///
        /// # Safety
        /// - The views match the fields of [`ExactFilter`].
        #[kernel(block = tile::THREADS, shared = tile_walk_shared_bytes(p.tiles.units), blocks_per_multiprocessor = 2)]
        pub unsafe fn $name(p: ExactFilter<$sum>) {
            filter_all::<$element>(&p);
        }
    )*};
}

filter_kernels! {
    exact_filter_f16 f16, f32;
    exact_filter_u8 u8, i32;
    exact_filter_i8 i8, i32;
}
