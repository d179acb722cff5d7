//! The meeting of cells and those near them: each offers itself to the other.

use cuda_std::atomic::Scope;
use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};

use super::{OFFER_BITS, OFFERS, nearness};
use crate::block::copied;
use crate::block::element::{TileElement, TileSum};
use crate::block::tile;
use crate::block::tile_walk::{
    Epilogue, LanePart, Lookups, NOTHING, TileWalk, Tiles, column_of, tile_walk_shared_bytes, walk_tiles,
};
use crate::descent::slots::two_slots;
use crate::key::{self, Key};

/// Bytes of dynamic shared memory of the meeting kernels: with the filter's, of each line its vector, term and
/// threshold.
pub const fn meet_shared_bytes(units: u32) -> u32 {
    tile_walk_shared_bytes(units) + tile::SIDE * 12
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

/// Of each line of a party, what the epilogue needs.
#[derive(Clone, Copy)]
struct Lines<S> {
    vectors: Shared<u32>,
    terms: Shared<S>,
    thresholds: Shared<S>,
}

/// Offers the members of a party and those that it meets to each other.
struct Offer<'a, S> {
    p: &'a Meet<S>,
    lines: Lines<S>,
}

impl<S: TileSum> Meet<S> {
    /// Offers `other`, at this distance, to `vector`.
    #[inline(always)]
    fn offer(&self, vector: u32, value: S, other: u32) {
        let slots = self.offers.offset(vector as usize * OFFERS as usize);
        let key = key::pack(value.to_f32(), other);
        let (first, second) = two_slots(other, self.draw, OFFER_BITS);
        slots.fetch_min(first as usize, key, Scope::Device);
        slots.fetch_min(second as usize, key, Scope::Device);
    }
}

impl<S: TileSum> Epilogue<S> for Offer<'_, S> {
    const THRESHOLDS: bool = true;

    #[inline(always)]
    fn term(norm: S) -> S {
        S::term(norm)
    }

    #[inline(always)]
    fn bound(&self, vector: u32) -> f32 {
        self.p.bounds.get(vector as usize)
    }

    #[inline(always)]
    fn threshold(&self, bound: f32, norm: S) -> S {
        S::nearness(S::from_f32(bound), norm)
    }

    #[inline(always)]
    fn begin(&self, part: LanePart<S>) -> tile::Sums<S> {
        nearness::begin(self.lines.terms, part)
    }

    #[inline(always)]
    fn tile(&mut self, sums: &tile::Sums<S>, _: &[S; 8], part: LanePart<S>) {
        let LanePart { line, column, columns } = part;
        let lines = self.lines;
        // Half of the lines at a time, whose thresholds are about the same: what is above the least of them or that
        // of the column is looked at once more.
        unroll!(2, W => {
            let mut least = lines.thresholds.get((line + 32 * W as u32) as usize);
            unroll!(4, R => least = S::smaller(least, lines.thresholds.get((line + 8 * (4 * W + R) as u32) as usize)));
            let mut thresholds = [least; 8];
            unroll!(8, C => {
                let of_column = columns.thresholds.get((column + column_of(C)) as usize);
                thresholds[C] = S::smaller(least, of_column);
            });
            // From the top, bit 16 (r / 2) + 2 c + r % 2: line r or column c may ask for the other. Two words, so that
            // not every bit waits for the one before.
            let mut words = [0u32; 2];
            unroll!(8, C => {
                unroll!(2, H => {
                    unroll!(2, R => {
                        let near = nearness::of(sums, 4 * W + 2 * H + R, C);
                        words[H] = S::push_below(words[H], thresholds[C], near);
                    });
                });
            });
            let mut bits = words[0] << 16 | words[1];
            while bits != 0 {
                let bit = bits.leading_zeros();
                bits &= !(0x8000_0000 >> bit);
                // The nearness of a bit, by halves: registers have no addresses.
                let either = |second: u32, a: S, b: S| if bit & second != 0 { b } else { a };
                let mut of = [S::default(); 8];
                unroll!(8, C => {
                    let of_row = |row: usize| nearness::of(sums, 4 * W + row, C);
                    of[C] = either(16, either(1, of_row(0), of_row(1)), either(1, of_row(2), of_row(3)));
                });
                unroll!(4, C => of[C] = either(8, of[C], of[C + 4]));
                unroll!(2, C => of[C] = either(4, of[C], of[C + 2]));
                let near = either(2, of[0], of[1]);
                let line = (line + 8 * (4 * W as u32 + bit / 16 * 2 + bit % 2)) as usize;
                let column = (column + 8 * (bit % 16 / 4) + bit / 2 % 2) as usize;
                let (a, b) = (lines.vectors.get(line), columns.vectors.get(column));
                if a != b {
                    let terms = (lines.terms.get(line), columns.biases.get(column));
                    if near > lines.thresholds.get(line) {
                        self.p.offer(a, S::from_nearness(near, terms.0, terms.1), b);
                    }
                    if near > columns.thresholds.get(column) {
                        self.p.offer(b, S::from_nearness(near, terms.1, terms.0), a);
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
    let (begin, end) = (starts.get(p.first_rank as usize), starts.get(p.end_rank as usize));
    // Those before the party have met it as hosts.
    let first_row = if begin < first { first } else { begin };
    if first_row >= end {
        return;
    }
    let rows = end - first_row;
    let rows = if rows < p.most { rows } else { p.most };
    let tiles = rows.div_ceil(tile::SIDE);
    let walk = TileWalk {
        first_query: 0,
        query_count: tile::SIDE,
        first_row,
        end_row: first_row + rows,
        first_tile: 0,
        tile_count: tiles,
        tile_step: 1,
        visits: tiles,
    };
    let vector = |member: u32| p.members.get(member as usize);
    let vectors: Shared<u32> = shared::dynamic(tile_walk_shared_bytes(p.tiles.units) as usize);
    let side = tile::SIDE as usize;
    let terms: Shared<E::Sum> = vectors.offset(side).cast();
    let lines = Lines { vectors, terms, thresholds: terms.offset(side) };

    // A lane's lines ask for about the same: sorted, eight that follow one another are a lane's. Two threads, each
    // with half of the others, find the place of each.
    let (member, half) = (thread_idx_x() / 2, thread_idx_x() % 2);
    let (mut own, mut norm, mut threshold) = (NOTHING, E::Sum::NEVER, E::Sum::UNBOUNDED);
    if member < count {
        own = vector(first + member);
        norm = p.tiles.biases.get(own as usize);
        threshold = E::Sum::nearness(E::Sum::from_f32(p.bounds.get(own as usize)), norm);
    }
    // Differs from those of all others.
    let order = threshold.ordered() & !(tile::SIDE - 1) | member;
    let orders = vectors;
    if half == 0 {
        orders.set(member as usize, order);
    }
    sync_threads();
    let mut before = 0;
    let mut i = half * tile::SIDE / 2;
    while i < (half + 1) * tile::SIDE / 2 {
        let four = orders.get_quad(i as usize).0;
        unroll!(4, I => before += (four[I] < order) as u32);
        i += 4;
    }
    let place = before + warp::shuffle_xor(before, 1);
    let line = (64 * (place / 64) + place / 8 % 8 + 8 * (place % 8)) as usize;
    sync_threads();
    if half == 0 {
        vectors.set(line, own);
        lines.terms.set(line, E::Sum::term(norm));
        lines.thresholds.set(line, threshold);
    }
    sync_threads();
    let query_vector = |line: u32| vectors.get(line as usize);
    let lookups = Lookups { query_vector, row_vector: vector, bound: |_| E::Sum::CLOSED };
    walk_tiles::<E, _>(&p.tiles, walk, lookups, &mut Offer { p, lines });
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
