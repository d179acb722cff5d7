//! The meeting of cells and those near them: each offers itself to the other.

use cuda_std::atomic::Scope;
use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::thread::{block_idx_x, thread_idx_x};

use super::{OFFER_BITS, OFFERS};
use crate::block::copied;
use crate::block::element::{TileElement, TileSum};
use crate::block::tile;
use crate::descent::key::{self, Key};
use crate::descent::slots::two_slots;
use crate::search::exact::filter::{Columns, Epilogue, Walk, column_of, filter};
use crate::search::exact::{Tiles, filter_shared_bytes};

/// Bytes of dynamic shared memory of the meeting kernels: with the filter's, of each line its vector, bias and bound,
/// and the bounds of a tile's rows.
pub const fn meet_shared_bytes(units: u32) -> u32 {
    filter_shared_bytes(units) + tile::SIDE * 16
}

/// The meeting of members of cells with vectors to which their cell is less near: for each pair whose distance is
/// below the bound of one of the two, that one is offered the other.
#[repr(C)]
pub struct Meet<S> {
    /// What is compared; queries and rows are the same vectors.
    pub tiles: Tiles<S>,
    /// In: one of each vector, f32 whatever the products are.
    pub bounds: Global<f32>,
    /// In: the vectors of all cells' members, cell by cell, and in a cell by rank.
    pub members: Global<u32>,
    /// In: where the members of rank `r` of cell `c` begin, at `c * memberships + r`, and the end of the last.
    pub starts: Global<u32>,
    /// In: a [`Party`] of each block.
    pub parties: Global<u32>,
    /// In and out: [`OFFERS`] slots of each vector, for keys: a vector, at its distance as the tensor cores
    /// compute it, less the norm of the one that it is offered to. A key goes to [`two_slots`].
    pub offers: GlobalMut<Key>,
    /// Cells of each vector.
    pub memberships: u32,
    /// The first rank of the members that a party meets.
    pub first_rank: u32,
    /// The end of these ranks.
    pub end_rank: u32,
    /// The most members that a party meets.
    pub most: u32,
    /// Mixes vectors in the slots.
    pub draw: u32,
    /// Nothing.
    pub padding: u32,
}

copied! {
    Meet<S>;
}

/// Up to 128 members of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Party {
    /// Their cell.
    pub cell: u32,
    /// The first of them among all members; they follow one another.
    pub first: u32,
    /// How many they are, at most [`tile::SIDE`].
    pub count: u32,
}

/// Words of a [`Party`].
pub const PARTY_WORDS: usize = size_of::<Party>() / 4;

/// What the epilogue needs of the lines of a party.
#[derive(Clone, Copy)]
struct Lines<S> {
    vectors: Shared<u32>,
    biases: Shared<S>,
    bounds: Shared<S>,
}

/// Offers the members of a party and those that it meets to each other.
struct Offer<'a, S> {
    p: &'a Meet<S>,
    lines: Lines<S>,
    row_bounds: Shared<S>,
}

impl<S: TileSum> Offer<'_, S> {
    /// Offers `other`, at this distance, to `vector`.
    #[inline(always)]
    fn offer(&self, vector: u32, value: S, other: u32) {
        let slots = self.p.offers.offset(vector as usize * OFFERS as usize);
        let key = key::pack(value.to_f32(), other);
        let (first, second) = two_slots(other, self.p.draw, OFFER_BITS);
        slots.fetch_min(first as usize, key, Scope::Device);
        slots.fetch_min(second as usize, key, Scope::Device);
    }
}

impl<S: TileSum> Epilogue<S> for Offer<'_, S> {
    #[inline(always)]
    fn row_bounds(&self) -> Option<Shared<S>> {
        Some(self.row_bounds)
    }

    #[inline(always)]
    fn row_bound(&self, vector: u32) -> S {
        S::from_f32(self.p.bounds.get(vector as usize))
    }

    #[inline(always)]
    fn tile(&mut self, sums: &tile::Sums<S>, _: &[S; 8], line: u32, column: u32, of_tile: Columns<S>) {
        let weight = self.p.tiles.weight;
        // Constant indices: the sums stay in registers.
        let product = |row: usize, c: usize| sums[4 * (row / 2) + c / 2][2 * (row % 2) + c % 2];
        // Half of the lines at a time: there are no registers for all of their biases and bounds.
        unroll!(2, W => {
            let (mut biases, mut bounds) = ([S::NEVER; 4], [S::CLOSED; 4]);
            unroll!(4, R => {
                let line = (line + 8 * (4 * W + R) as u32) as usize;
                (biases[R], bounds[R]) = (self.lines.biases.get(line), self.lines.bounds.get(line));
            });
            // Bit 8 r + c: line r or column c is below the bound of the other.
            let mut bits = 0u32;
            unroll!(8, C => {
                let column = (column + column_of(C)) as usize;
                let (bias, bound) = (of_tile.biases.get(column), self.row_bounds.get(column));
                unroll!(4, R => {
                    let product = product(4 * W + R, C);
                    let to_line = (S::value(bias, weight, product), bounds[R]);
                    let to_row = (S::value(biases[R], weight, product), bound);
                    bits = S::mark_either(bits, 1 << (8 * R + C), to_line, to_row);
                });
            });
            while bits != 0 {
                let bit = bits.trailing_zeros();
                bits &= bits - 1;
                // The product of a bit, by halves: registers have no addresses.
                let either = |second: u32, a: S, b: S| if bit & second != 0 { b } else { a };
                let mut of = [S::default(); 8];
                unroll!(8, C => {
                    let of_row = |row: usize| product(4 * W + row, C);
                    of[C] = either(16, either(8, of_row(0), of_row(1)), either(8, of_row(2), of_row(3)));
                });
                unroll!(4, C => of[C] = either(4, of[C], of[C + 4]));
                unroll!(2, C => of[C] = either(2, of[C], of[C + 2]));
                let product = either(1, of[0], of[1]);
                let line = (line + 8 * (4 * W as u32 + bit / 8)) as usize;
                let column = (column + 8 * (bit % 8 / 2) + bit % 2) as usize;
                let (a, b) = (self.lines.vectors.get(line), of_tile.vectors.get(column));
                if a != b {
                    let to_line = S::value(of_tile.biases.get(column), weight, product);
                    if to_line < self.lines.bounds.get(line) {
                        self.offer(a, to_line, b);
                    }
                    let to_row = S::value(self.lines.biases.get(line), weight, product);
                    if to_row < self.row_bounds.get(column) {
                        self.offer(b, to_row, a);
                    }
                }
            }
        });
    }
}

#[inline(always)]
fn meet<E: TileElement>(p: &Meet<E::Sum>) {
    let party = p.parties.offset(block_idx_x() as usize * PARTY_WORDS);
    let (cell, first, count) = (party.get(0), party.get(1), party.get(2));
    let starts = p.starts.offset(cell as usize * p.memberships as usize);
    let first_row = starts.get(p.first_rank as usize);
    let rows = starts.get(p.end_rank as usize) - first_row;
    let rows = if rows < p.most { rows } else { p.most };
    if rows == 0 {
        return;
    }
    let tiles = rows.div_ceil(tile::SIDE);
    let walk = Walk {
        first_query: first,
        query_count: count,
        first_row,
        end_row: first_row + rows,
        first_tile: 0,
        tile_count: tiles,
        tile_step: 1,
        visits: tiles,
    };
    let vector = |member: u32| p.members.get(member as usize);
    let bound_of = |vector: u32| E::Sum::from_f32(p.bounds.get(vector as usize));
    let vectors: Shared<u32> = shared::dynamic(filter_shared_bytes(p.tiles.units) as usize);
    let side = tile::SIDE as usize;
    let biases: Shared<E::Sum> = vectors.offset(side).cast();
    let lines = Lines { vectors, biases, bounds: biases.offset(side) };
    // The barriers of the walk stand between this and the first use.
    let thread = thread_idx_x();
    if thread < tile::SIDE {
        let (mut own, mut bias, mut bound) = (0, E::Sum::NEVER, E::Sum::CLOSED);
        if thread < count {
            own = vector(first + thread);
            (bias, bound) = (p.tiles.biases.get(own as usize), bound_of(own));
        }
        vectors.set(thread as usize, own);
        lines.biases.set(thread as usize, bias);
        lines.bounds.set(thread as usize, bound);
    }
    let mut epilogue = Offer { p, lines, row_bounds: biases.offset(2 * side) };
    // The epilogue takes the bounds of lines from shared memory.
    filter::<E>(&p.tiles, walk, vector, vector, |_| E::Sum::CLOSED, &mut epilogue);
}

macro_rules! meet_kernels {
    ($($name:ident $element:ty, $sum:ty;)*) => {$(
        /// Makes members of cells meet others to which their cell is near, and offers each what is nearer than its
        /// bound (see [`Meet`]).
        ///
        /// Launch: a block of [`tile::THREADS`] per party; [`meet_shared_bytes`].
        ///
        /// # Safety
        /// - The views hold what [`Meet`] says.
        #[kernel(block = tile::THREADS, shared = meet_shared_bytes(p.tiles.units), blocks_per_multiprocessor = 2)]
        pub unsafe fn $name(p: Meet<$sum>) {
            meet::<$element>(&p);
        }
    )*};
}

meet_kernels! {
    cells_meet_f16 f16, f32;
    cells_meet_u8 u8, i32;
    cells_meet_i8 i8, i32;
}
