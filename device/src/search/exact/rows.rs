//! The filter of exact search: which rows may be among the nearest of which query.

use cuda_std::atomic::Scope;
use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, block_idx_y};

use super::filter::{Columns, Epilogue, Tiles, Walk, column_of, filter, filter_shared_bytes};
use crate::block::copied;
use crate::block::element::{TileElement, TileSum};
use crate::block::tile;

/// The filter of a range of all rows for all queries.
///
/// The tiles of 128 rows are visited in the order `(position * tile_step) % tile_count`, which mixes
/// data that lie sorted; `tile_step` is at most `tile_count` and has no divisor in common with it.
#[repr(C)]
pub struct ExactFilter<S> {
    /// What is compared.
    pub tiles: Tiles<S>,
    /// In: one of each query.
    pub bounds: Global<S>,
    /// In and out: of each query, rows noted, also those that there was no room for.
    pub counts: GlobalMut<u32>,
    /// Out: `capacity` rows of each query.
    pub found: GlobalMut<u32>,
    /// Out: one value, 1 if a query passed its capacity.
    pub overflow: GlobalMut<u32>,
    /// Rows that are noted per query.
    pub capacity: u32,
    /// How many queries.
    pub query_count: u32,
    /// How many rows.
    pub row_count: u32,
    /// The first tile of the range, in the order of visiting.
    pub first_position: u32,
    /// Tiles of the range.
    pub position_count: u32,
    /// Tiles that a block visits.
    pub positions_per_block: u32,
    /// Tiles of all rows.
    pub tile_count: u32,
    /// From one visited tile to the next.
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
    let walk = Walk {
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
    filter::<E, _>(&p.tiles, walk, |query| query, |row| row, bound, &mut NoteRows { p, first_query });
}

/// Notes rows of the queries from `first_query` on, of which other blocks may note rows too.
struct NoteRows<'a, S> {
    p: &'a ExactFilter<S>,
    first_query: u32,
}

impl<S: TileSum> Epilogue<S> for NoteRows<'_, S> {
    #[inline(always)]
    fn tile(&mut self, sums: &tile::Sums<S>, bounds: &[S; 8], line: u32, column: u32, of_tile: Columns<S>) {
        let p = self.p;
        let mut biases = [S::NEVER; 8];
        unroll!(8, C => biases[C] = of_tile.biases.get((column + column_of(C)) as usize));
        // Few are below: bit 16 m + 4 n + v says that value v of fragment (m, n) is.
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
                let vector = of_tile.vectors.get((column + 8 * (bit / 4 % 4) + bit % 2) as usize);
                p.found.set(query * p.capacity as usize + slot as usize, vector);
            } else {
                p.overflow.set(0, 1);
            }
        }
    }
}

macro_rules! filter_kernels {
    ($($name:ident $element:ty, $sum:ty;)*) => {$(
        /// Notes the rows of a range whose distance may be below the query's bound (see [`ExactFilter`]).
        /// The order in which they are noted is that of the hardware.
        ///
        /// Launch: grid x: a block per [`tile::SIDE`] queries; grid y: one per `positions_per_block` of
        /// the `position_count` tiles of rows; [`tile::THREADS`] threads; [`filter_shared_bytes`].
        ///
        /// # Safety
        /// - The views hold what [`ExactFilter`] says.
        #[kernel(block = tile::THREADS, shared = filter_shared_bytes(p.tiles.units), blocks_per_multiprocessor = 2)]
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
