//! Cross-cell join: compares a tile of a cell's assigned vectors with the vectors that probe the
//! cell, and proposes each to the other.
//!
//! ```text
//! block = query tile: up to 128 assigned vectors of a cell
//! sort the lines of the tile by threshold
//! walk the tiles of vectors that probe the cell, ranks first_rank..end_rank (block::tile_walk):
//!     for each half of a lane's 8 lines:
//!         mark the pairs above min(least threshold of the half, threshold of the column)
//!         for each mark: select its sum; append it to the warp's queue
//!     for each pair of the queue, a lane a pair: for each vector of the pair:
//!         if above its own threshold: proposals[two slots of the vector] = min(slot, key)
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | `query_tiles` | 3 words per block ([`QueryTile`]) |
//! | `proposals` | [`PROPOSALS`] keys per vector |
//! | `starts` | cells x `probes` + 1 |
//! | shared memory | that of the walk, then per line: vector, term, threshold, least threshold |
//! | queue | [`QUEUE`] pairs per warp: sum, line and column; in shared memory |
//!
//! The bits of lines, marks and queued pairs are drawn in [`pairs`](super::pairs).
//!
//! Optimisations:
//!
//! 1. One visit serves both vectors: a [nearness](super::nearness) is the same number for both. Of
//!    two neighbours only one has to probe the cell of the other.
//! 2. Few of 64 pairs are near. One subtraction of a joint threshold leaves a pair's mark in a sign
//!    bit; a funnel shift collects the signs in a word; a loop over the bits checks each mark
//!    exactly. The joint threshold is at most that of either vector, so no near pair is missed.
//! 3. Sums of bytes are exact: they begin lower by the joint threshold, and their signs are the
//!    marks without a subtraction. Sums of halves begin at the same number in each visit, so that a
//!    pair has the same bits each time.
//! 4. Lines are sorted by threshold, so that the four lines of a lane's half have about the same
//!    one.
//! 5. Registers have no addresses. The sum of a bit is selected by halves: 31 selections instead of
//!    32 branches.
//! 6. Few lanes of a warp have marks, and not equally many. Queued pairs are dealt to all lanes, so
//!    that lookups, hashes and minima of 32 pairs take the time of one.
//! 7. From the second clustering on most near pairs are known. A word of a known set tells, and
//!    saves the minima and their merge.
//! 8. Proposals are atomic minima without a result, so that no lane waits. A minimum does not
//!    depend on the order, so the result is the same on every run.
//!
//! Bound by instruction issue: about 800 instructions of a warp per 64 x 32 part of a tile (f16 x
//! 96): 104 initial sums, 96 `mma`, 80 `ldmatrix` and addresses, 196 comparisons, 150 proposals, 70
//! copies.

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared};

use super::pairs::{Line, Marks, QueuedPair};
use super::{PROPOSAL_BITS, PROPOSALS, known_hash, nearness, word_holds};
use crate::block::copied;
use crate::block::sums::{TileElement, TileSum};
use crate::block::tile;
use crate::block::tile_walk::{
    Columns, Epilogue, LanePart, Lookups, MANY, TileWalk, Tiles, column_of, sum_of, tile_walk_shared_bytes,
    walk_tiles,
};
use crate::descent::slots::two_slots;
use crate::key::{self, Key, NO_ID};

/// Pairs in a warp's queue. A turn of the loop over marks adds up to 64.
const QUEUE: u32 = 128;

/// Bytes of dynamic shared memory of the cross-cell join: the walk's, plus, per query line:
/// vector, norm term, threshold, least threshold; and the queues.
pub const fn cross_cell_join_shared_bytes(units: u32) -> u32 {
    tile_walk_shared_bytes(units) + tile::SIDE * 16 + tile::THREADS / 32 * QUEUE * 8
}

/// The cross-cell join.
#[repr(C)]
pub struct CrossCellJoin<S> {
    /// Vectors; queries and rows are the same ones.
    pub tiles: Tiles<S>,
    /// In: one bound per vector, in f32 for every type of products.
    pub bounds: Global<f32>,
    /// In: the vectors of all cells' members, cell by cell, and in a cell by rank.
    pub members: Global<u32>,
    /// In: start of the members of rank `r` of cell `c`, at `c * probes + r`, and the end of the
    /// last.
    pub starts: Global<u32>,
    /// In: a [`QueryTile`] per block.
    pub query_tiles: Global<u32>,
    /// In and out: [`PROPOSALS`] slots per vector. A key is a vector at the distance that the
    /// tensor cores computed, less the norm of the vector that gets the proposal; it goes to
    /// [`two_slots`].
    pub proposals: GlobalMut<Key>,
    /// In: with `known_bits`, the [`KnownSets`](super::KnownSets) of all vectors.
    pub known: Global<u32>,
    /// Cells per vector.
    pub probes: u32,
    /// The first rank of the rows.
    pub first_rank: u32,
    /// The end of the ranks of the rows.
    pub end_rank: u32,
    /// The most rows of a query tile.
    pub most: u32,
    /// Salt of the slots.
    pub salt: u32,
    /// Base-2 logarithm of the words per known set; 0 without known sets.
    pub known_bits: u32,
    /// Salt of the known sets.
    pub known_salt: u32,
    /// Unused.
    pub padding: u32,
}

copied! {
    CrossCellJoin<S>;
}

/// Up to 128 members of a cell: the queries of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct QueryTile {
    /// The cell.
    pub cell: u32,
    /// The first query among all members. Queries are consecutive.
    pub first: u32,
    /// Number of queries, at most [`tile::SIDE`].
    pub count: u32,
}

/// Words of a [`QueryTile`].
pub const QUERY_TILE_WORDS: usize = size_of::<QueryTile>() / 4;

/// Per line of the query tile, in shared memory: vector, norm term, threshold of nearness, and the
/// least threshold of the half that the line is in.
#[derive(Clone, Copy)]
struct Lines<S> {
    vectors: Shared<u32>,
    terms: Shared<S>,
    thresholds: Shared<S>,
    leasts: Shared<S>,
}

/// A warp's queue of marked pairs: the sum of each, and a [`QueuedPair`].
#[derive(Clone, Copy)]
struct Queue<S> {
    sums: Shared<S>,
    pairs: Shared<u32>,
}

/// Writer of proposals.
struct Proposals<'a, S> {
    p: &'a CrossCellJoin<S>,
    lines: Lines<S>,
    queue: Queue<S>,
}

impl<S: TileSum> CrossCellJoin<S> {
    /// Proposes `other`, at this distance, to `vector`.
    #[inline(always)]
    fn propose(&self, vector: u32, value: S, other: u32) {
        let slots = self.proposals.offset(vector as usize * PROPOSALS as usize);
        let key = key::pack(value.to_f32(), other);
        let (first, second) = two_slots(other, self.salt, PROPOSAL_BITS);
        slots.reduce_min(first as usize, key);
        slots.reduce_min(second as usize, key);
    }
}

impl<S: TileSum> Proposals<'_, S> {
    /// Marks of half `HALF` of a lane's lines.
    #[inline(always)]
    fn marks<const HALF: usize>(&self, sums: &tile::Sums<S>, part: LanePart<S>) -> Marks {
        let mut thresholds = [S::default(); 8];
        if !S::EXACT {
            thresholds = self.joint_thresholds::<HALF>(part);
        }
        let marks = Marks::collect(|bits, row, column| {
            let sum = sum_of(sums, 4 * HALF + row, column);
            if S::EXACT {
                S::push_below(bits, sum, S::default())
            } else {
                S::push_below(bits, thresholds[column], sum)
            }
        });
        if S::EXACT { marks.inverted() } else { marks }
    }

    /// The joint threshold of half `HALF` of a lane's lines and each of its columns.
    #[inline(always)]
    fn joint_thresholds<const HALF: usize>(&self, part: LanePart<S>) -> [S; 8] {
        let least = self.lines.leasts.get((part.line + 32 * HALF as u32) as usize);
        let mut thresholds = [least; 8];
        unroll!(8, C => {
            let of_column = part.columns.thresholds.get((part.column + column_of(C)) as usize);
            thresholds[C] = S::smaller(least, of_column);
        });
        thresholds
    }

    /// Appends the first mark of half `HALF` of each lane that has one to the queue of `count`
    /// pairs. The whole warp calls this.
    #[inline(always)]
    fn append<const HALF: usize>(
        &self,
        sums: &tile::Sums<S>,
        part: LanePart<S>,
        marks: &mut Marks,
        count: &mut u32,
    ) {
        let is_marked = !marks.is_empty();
        let lanes = warp::ballot(is_marked);
        if is_marked {
            let mark = marks.take_first();
            let (line, column) = (mark.line::<HALF, S>(part), mark.tile_column(part));
            let place = (*count + warp::lanes_before(lanes)) as usize;
            let sum = mark.select(|row, column| sum_of(sums, 4 * HALF + row, column));
            self.queue.sums.set(place, sum);
            self.queue.pairs.set(place, QueuedPair::new(line, column).0);
        }
        *count += lanes.count_ones();
    }

    /// Proposes the `count` pairs of the queue, each only if above its own threshold. The whole
    /// warp calls this.
    #[inline(always)]
    fn propose_queued(&self, count: u32, columns: Columns<S>) {
        warp::sync();
        let mut i = warp::lane_id();
        while i < count {
            keep_rolled();
            let (sum, pair) = (self.queue.sums.get(i as usize), self.queue.pairs.get(i as usize));
            self.propose_pair(sum, QueuedPair(pair), columns);
            i += 32;
        }
        warp::sync();
    }

    /// Clears `asks` of a vector that knows the other.
    #[inline(always)]
    fn drop_known(&self, asks: &mut [bool; 2], [a, b]: [u32; 2]) {
        let p = self.p;
        let hash = |id: u32| known_hash(id, p.known_salt, p.known_bits);
        let hashes = [hash(b), hash(a)];
        // Both loads are under way before either is used.
        let mut words = [0; 2];
        if asks[0] {
            words[0] = p.known.get(((a as usize) << p.known_bits) + (hashes[0] >> 8) as usize);
        }
        if asks[1] {
            words[1] = p.known.get(((b as usize) << p.known_bits) + (hashes[1] >> 8) as usize);
        }
        unroll!(2, I => asks[I] &= !word_holds(words[I], hashes[I]));
    }

    /// Proposes the vectors of a pair to each other, each only if above its own threshold.
    #[inline(always)]
    fn propose_pair(&self, sum: S, pair: QueuedPair, columns: Columns<S>) {
        let (lines, line, column) = (self.lines, pair.line(), pair.column());
        let (a, b) = (lines.vectors.get(line), columns.vectors.get(column));
        if a != b {
            let terms = (lines.terms.get(line), columns.biases.get(column));
            let thresholds = (lines.thresholds.get(line), columns.thresholds.get(column));
            let joint = || S::smaller(lines.leasts.get(line), thresholds.1);
            let near = if S::EXACT { S::from_excess(sum, joint()) } else { sum };
            let mut asks = [near > thresholds.0, near > thresholds.1];
            if self.p.known_bits != 0 {
                self.drop_known(&mut asks, [a, b]);
            }
            if asks[0] {
                self.p.propose(a, S::from_nearness(near, terms.0, terms.1), b);
            }
            if asks[1] {
                self.p.propose(b, S::from_nearness(near, terms.1, terms.0), a);
            }
        }
    }
}

impl<S: TileSum> Epilogue<S> for Proposals<'_, S> {
    const THRESHOLDS: bool = true;

    #[inline(always)]
    fn term(&self, norm: S) -> S {
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
    fn begin(&self, _: &[S; 8], part: LanePart<S>) -> tile::Sums<S> {
        if !S::EXACT {
            return nearness::begin(self.lines.terms, part);
        }
        let mut thresholds = [[S::default(); 8]; 2];
        unroll!(2, HALF => thresholds[HALF] = self.joint_thresholds::<HALF>(part));
        nearness::begin_with(self.lines.terms, part, |half, c, of_column| {
            S::excess(of_column, thresholds[half][c])
        })
    }

    #[inline(always)]
    fn tile(&mut self, sums: &tile::Sums<S>, part: LanePart<S>) {
        let mut marks = [Marks::default(); 2];
        unroll!(2, HALF => marks[HALF] = self.marks::<HALF>(sums, part));
        let mut count = 0;
        loop {
            keep_rolled();
            let is_done = !warp::any(!marks[0].is_empty() | !marks[1].is_empty());
            if is_done || count > QUEUE - 64 {
                self.propose_queued(count, part.columns);
                count = 0;
            }
            if is_done {
                break;
            }
            unroll!(2, HALF => self.append::<HALF>(sums, part, &mut marks[HALF], &mut count));
        }
    }
}

/// The rows of a query tile as a walk; none if there are no rows.
#[inline(always)]
fn walk_of<S>(p: &CrossCellJoin<S>, cell: u32, first: u32) -> Option<TileWalk> {
    let starts = p.starts.offset(cell as usize * p.probes as usize);
    let (begin, end) = (starts.get(p.first_rank as usize), starts.get(p.end_rank as usize));
    // Earlier rows met this tile when they were the query tile, so each pair is compared once.
    let first_row = if begin < first { first } else { begin };
    if first_row >= end {
        return None;
    }
    let rows = end - first_row;
    let rows = if rows < p.most { rows } else { p.most };
    let tiles = rows.div_ceil(tile::SIDE);
    Some(TileWalk {
        first_query: 0,
        query_count: tile::SIDE,
        first_row,
        end_row: first_row + rows,
        first_tile: 0,
        tile_count: tiles,
        tile_step: 1,
        visits: tiles,
    })
}

/// Puts the `count` queries from `first` on in lines, sorted by threshold ([`Line::at_rank`]). The
/// whole block calls this, and finds a barrier after the result.
#[inline(always)]
fn sort_lines<S: TileSum>(p: &CrossCellJoin<S>, lines: Lines<S>, first: u32, count: u32) {
    // Two threads per query: each counts the smaller ones among half of the others.
    let (member, half) = (thread_idx_x() / 2, thread_idx_x() % 2);
    let (mut own, mut norm, mut threshold) = (NO_ID, S::NEVER, S::UNBOUNDED);
    if member < count {
        own = p.members.get((first + member) as usize);
        norm = p.tiles.biases.get(own as usize);
        threshold = S::nearness(S::from_f32(p.bounds.get(own as usize)), norm);
    }
    // The low bits make all values different.
    let order = threshold.ordered() & !(tile::SIDE - 1) | member;
    let orders = lines.vectors;
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
    let line = Line::at_rank(before + warp::shuffle_xor(before, 1)).0 as usize;
    sync_threads();
    if half == 0 {
        lines.vectors.set(line, own);
        lines.terms.set(line, S::term(norm));
        lines.thresholds.set(line, threshold);
    }
    sync_threads();
    if half == 0 {
        let mut least = S::UNBOUNDED;
        unroll!(4, R => {
            let row = Line(member).row_of_half(R as u32);
            least = S::smaller(least, lines.thresholds.get(row.0 as usize));
        });
        lines.leasts.set(member as usize, least);
    }
    sync_threads();
}

#[inline(always)]
fn cross_cell_join<E: TileElement, const CHUNKS: u32>(p: &CrossCellJoin<E::Sum>) {
    let words = p.query_tiles.offset(block_idx_x() as usize * QUERY_TILE_WORDS);
    let (cell, first, count) = (words.get(0), words.get(1), words.get(2));
    let Some(walk) = walk_of(p, cell, first) else { return };
    let vectors: Shared<u32> = shared::dynamic(tile_walk_shared_bytes(p.tiles.units) as usize);
    let side = tile::SIDE as usize;
    let terms: Shared<E::Sum> = vectors.offset(side).cast();
    let (thresholds, leasts) = (terms.offset(side), terms.offset(2 * side));
    let lines = Lines { vectors, terms, thresholds, leasts };
    let sums = terms.offset(3 * side + 2 * (thread::warp_idx() * QUEUE) as usize);
    let queue = Queue { sums, pairs: sums.offset(QUEUE as usize).cast() };
    sort_lines(p, lines, first, count);
    let lookups = Lookups {
        query_vector: |line: u32| vectors.get(line as usize),
        row_vector: |member: u32| p.members.get(member as usize),
        bound: |_| E::Sum::CLOSED,
    };
    walk_tiles::<E, _, CHUNKS>(&p.tiles, walk, lookups, &mut Proposals { p, lines, queue });
}

macro_rules! cross_cell_join_kernels {
    ($($name:ident $element:ty, $sum:ty, $chunks:expr;)*) => {$(
        /// Compares query tiles with the vectors that probe their cells, and proposes near pairs to
        /// both vectors (see [`CrossCellJoin`]).
        ///
        /// Launch: a block of [`tile::THREADS`] per query tile; [`cross_cell_join_shared_bytes`].
        ///
        /// # Safety
        /// - Vectors have as many [`Chunks`](crate::block::tile_walk::Chunks) as the name says.
        /// - The views have the shapes of [`CrossCellJoin`].
        #[kernel(
            unsafe,
            block = tile::THREADS,
            shared = cross_cell_join_shared_bytes(p.tiles.units),
            blocks_per_multiprocessor = 2
        )]
        pub unsafe fn $name(p: CrossCellJoin<$sum>) {
            cross_cell_join::<$element, $chunks>(&p);
        }
    )*};
}

cross_cell_join_kernels! {
    cells_cross_join_1_f16 f16, f32, 1;
    cells_cross_join_2_f16 f16, f32, 2;
    cells_cross_join_many_f16 f16, f32, MANY;
    cells_cross_join_1_u8 u8, i32, 1;
    cells_cross_join_2_u8 u8, i32, 2;
    cells_cross_join_many_u8 u8, i32, MANY;
    cells_cross_join_1_i8 i8, i32, 1;
    cells_cross_join_2_i8 i8, i32, 2;
    cells_cross_join_many_i8 i8, i32, MANY;
}
