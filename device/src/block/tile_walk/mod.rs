//! Tile walk: compares a tile of 128 queries with tiles of 128 rows on tensor cores.
//!
//! Exact search and the joins of cells share it. An `Epilogue` consumes the products.
//!
//! ```text
//! look up the queries, and the rows of the first two tiles
//! start the first copies
//! for each row tile of the walk:
//!     sums = epilogue.begin(tile)
//!     for each chunk of 128 bytes:
//!         wait for the chunk; start the copies of a later chunk
//!         sums += queries[chunk] x rows[chunk]
//!     epilogue.tile(sums)
//! ```
//!
//! The state of a walk is the tile `visit` in use, the stages of its chunks and the next chunk to
//! copy, all in `Pipeline`, and `far_tile`, whose ids are being looked up:
//!
//! ```text
//!                  far_tile: look up       Pipeline.next:          Pipeline.visit:
//!                  ids                     copy vectors            multiply
//! tile of visit    v + 2 ----------------> v + 1 ----------------> v ------------------> done
//!                                          load biases, thresholds
//! ```
//!
//! Shared memory, in this order; Q and R are the stages of queries and rows:
//!
//! | buffer | shape |
//! | --- | --- |
//! | query chunks | Q x 128 lines x 128 bytes |
//! | row chunks | R x 128 lines x 128 bytes |
//! | biases, or `Epilogue::term` of them | 2 tiles x 128 |
//! | thresholds | 2 tiles x 128 |
//! | query vectors | 128 ids |
//! | row vectors | 4 tiles x 128 ids |
//!
//! Optimisations:
//!
//! 1. Copies run one or two chunks ahead. A stage is overwritten only after a barrier that its
//!    readers have reached.
//! 2. Vectors of up to 256 bytes keep all query chunks in shared memory, since Q = 2 chunks hold
//!    them.
//! 3. For such vectors the two warps that read the same 32 rows copy them themselves. No other warp
//!    touches these lines, so a named barrier of 64 threads replaces that of the block.
//! 4. Row ids are looked up two tiles ahead, biases and thresholds one tile ahead. No load is
//!    waited for.
//! 5. Zeros after the end of short vectors are written once per stage. Later copies do not touch
//!    them.
//! 6. Vectors of one chunk, of two and of more have kernels of their own (`CHUNKS`): loops over
//!    chunks and their stages take a twelfth of the time, and the driver compiles one kernel of
//!    three.
//!
//! Bound by instruction issue and `mma.sync` (6.6 cycles per 16 x 8 x 16 of f16 on an H200): 64
//! sums per lane leave 4 warps per scheduler. docs/descent.md has the counts.

mod copies;

use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::thread::sync_threads;

use self::copies::Pipeline;
use crate::block::copied;
use crate::block::sums::{TileElement, TileSum};
use crate::block::tile;
use crate::key::NO_ID;

/// Query chunks in shared memory.
const QUERY_STAGES: u32 = 2;

/// Row chunks in shared memory for vectors of `chunks` chunks: the one in use, the next one, and
/// for vectors of several chunks the one after.
const fn row_stages(chunks: u32) -> u32 {
    if chunks == 1 { 2 } else { 3 }
}

/// Stands for any number of chunks above [`QUERY_STAGES`].
pub(crate) const MANY: u32 = u32::MAX;

/// How many chunks of 128 bytes vectors have. Kernels of a tile walk have a version for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunks {
    /// One.
    One,
    /// Two.
    Two,
    /// Three or more.
    Many,
}

impl Chunks {
    /// Those of vectors of `units` units of 16 bytes.
    pub const fn for_units(units: u32) -> Self {
        match units.div_ceil(tile::UNITS) {
            0 | 1 => Self::One,
            2 => Self::Two,
            _ => Self::Many,
        }
    }
}

/// Tiles whose row ids are in shared memory: being looked up, being copied (two), and in use.
const LOOKED_UP: u32 = 4;

/// Bytes of dynamic shared memory of a walk over vectors of `units` units of 16 bytes.
pub const fn tile_walk_shared_bytes(units: u32) -> u32 {
    let chunks = units.div_ceil(tile::UNITS);
    let queries = if chunks < QUERY_STAGES { chunks } else { QUERY_STAGES };
    let tiles = queries + row_stages(chunks);
    // Two tiles of biases and of thresholds, query ids, and row ids.
    tiles * tile::SIDE_BYTES + tile::SIDE * 4 * (2 + 2 + 1 + LOOKED_UP)
}

/// Vectors of a tile walk.
#[repr(C)]
pub struct Tiles<S> {
    /// In: query vectors of `units` units, `query_stride` bytes apart, a multiple of 16.
    pub queries: Global<u8>,
    /// In: row vectors of `units` units, `row_stride` bytes apart, a multiple of 16.
    pub rows: Global<u8>,
    /// In: one bias per row vector.
    pub biases: Global<S>,
    /// Bytes from one query vector to the next.
    pub query_stride: u32,
    /// Bytes from one row vector to the next.
    pub row_stride: u32,
    /// Units of 16 bytes per vector.
    pub units: u32,
    /// Factor of a product: -2 for L2, -1 for inner products.
    pub weight: S,
}

copied! {
    Tiles<S>;
}

/// The tiles of one block: `query_count` queries from `first_query` on, and `visits` tiles of 128
/// rows.
///
/// Tile `t` holds up to 128 rows from `first_row + 128 t` on, and ends before `end_row`. Visit `v`
/// takes tile `(first_tile + v * tile_step) % tile_count`.
#[derive(Clone, Copy)]
pub(crate) struct TileWalk {
    pub first_query: u32,
    pub query_count: u32,
    pub first_row: u32,
    pub end_row: u32,
    pub first_tile: u32,
    pub tile_count: u32,
    pub tile_step: u32,
    pub visits: u32,
}

/// Lookups of a walk.
pub(crate) struct Lookups<Q, R, B> {
    /// The vector of a query.
    pub query_vector: Q,
    /// The vector of a row.
    pub row_vector: R,
    /// The bound of a line of the query tile; also called for lines without a query.
    pub bound: B,
}

/// Consumer of the products of a walk.
pub(crate) trait Epilogue<S: TileSum> {
    /// The value kept in shared memory for a row's bias.
    fn term(&self, bias: S) -> S;

    /// Whether rows have thresholds.
    const THRESHOLDS: bool = false;

    /// The bound of a vector from which its threshold is computed. Loaded a tile ahead.
    #[inline(always)]
    fn bound(&self, _vector: u32) -> f32 {
        0.0
    }

    /// The threshold of a row. Lines without a row have [`UNBOUNDED`](TileSum::UNBOUNDED).
    #[inline(always)]
    fn threshold(&self, _bound: f32, _bias: S) -> S {
        S::UNBOUNDED
    }

    /// The initial sums of a tile. `bounds[r]` belongs to line `part.line + 8 r`.
    fn begin(&self, bounds: &[S; 8], part: LanePart<S>) -> tile::Sums<S>;

    /// Consumes the sums of a tile. The whole warp calls this.
    fn tile(&mut self, sums: &tile::Sums<S>, part: LanePart<S>);
}

/// The offset of a lane's column `index`, 0 to 7, from its first one.
#[inline(always)]
pub(crate) const fn column_of(index: usize) -> u32 {
    (8 * (index / 2) + index % 2) as u32
}

/// The sum of the lane's line `line + 8 row` and column `column + column_of(c)`. Constant indices
/// keep the sums in registers.
#[inline(always)]
pub(crate) fn sum_of<S: Copy>(sums: &tile::Sums<S>, row: usize, c: usize) -> S {
    sums[4 * (row / 2) + c / 2][2 * (row % 2) + c % 2]
}

/// Rows of a tile in shared memory: bias (or its [term](Epilogue::term)), threshold and vector of
/// each.
#[derive(Clone, Copy)]
pub(crate) struct Columns<S> {
    pub biases: Shared<S>,
    pub thresholds: Shared<S>,
    pub vectors: Shared<u32>,
}

/// A lane's part of a tile: lines `line + 8 r` and columns `column + column_of(c)`, for `r` and `c`
/// in `0..8`.
#[derive(Clone, Copy)]
pub(crate) struct LanePart<S> {
    pub line: u32,
    pub column: u32,
    pub columns: Columns<S>,
}

/// Runs a walk over vectors of `CHUNKS` chunks: 1, 2 or [`MANY`].
#[inline(always)]
pub(crate) fn walk_tiles<E: TileElement, Ep: Epilogue<E::Sum>, const CHUNKS: u32>(
    p: &Tiles<E::Sum>,
    walk: TileWalk,
    lookups: Lookups<impl Fn(u32) -> u32, impl Fn(u32) -> u32, impl Fn(u32) -> E::Sum>,
    epilogue: &mut Ep,
) {
    if walk.visits == 0 {
        return;
    }
    let room = Room::new::<CHUNKS>(p.units);
    let rows = RowsAhead { p, walk, room, row_vector: &lookups.row_vector, own: OwnRow::of_thread() };
    let mut far_tile = rows.look_up_first(epilogue, &lookups.query_vector);

    // Rows lane / 4 + 8 h of each fragment, columns 2 (lane % 4) + c.
    let lane = warp::lane_id();
    let (part_row, part_column) = tile::part_of_warp();
    let (line, column) = (part_row + lane / 4, part_column + lane % 4 * 2);
    let mut bounds = [E::Sum::CLOSED; 8];
    unroll!(8, I => bounds[I] = (lookups.bound)(line + 8 * I as u32));

    let mut pipeline = Pipeline::<_, CHUNKS>::start(p, room, walk.visits);
    while pipeline.visit < walk.visits {
        let visit = pipeline.visit;
        pipeline.arrive(Some(1));
        // Loads for later tiles start here; the products hide their latency.
        let fetched = rows.fetch(epilogue, room.row_vectors(visit + 1).get(rows.own.line));
        let mut far = NO_ID;
        if rows.own.is_first && visit + 2 < walk.visits {
            far_tile = walk.tile_after(far_tile);
            far = rows.look_up(far_tile);
        }
        let part = LanePart { line, column, columns: room.columns(visit) };
        let mut sums = epilogue.begin(&bounds, part);
        pipeline.multiply::<E>(&mut sums);
        // A barrier follows before these are read, and the last one came after the previous values
        // had been read.
        rows.store(epilogue, visit + 1, fetched);
        if rows.own.is_first {
            room.row_vectors(visit + 2).set(rows.own.line, far);
        }
        epilogue.tile(&sums, part);
        pipeline.visit += 1;
    }
}

impl TileWalk {
    /// The tile visited after `tile`.
    #[inline(always)]
    fn tile_after(&self, tile: u32) -> u32 {
        let next = tile + self.tile_step;
        if next < self.tile_count { next } else { next - self.tile_count }
    }
}

/// Shared memory of a walk.
#[derive(Clone, Copy)]
struct Room<S> {
    /// Chunks per vector.
    chunks: u32,
    /// Query chunks in shared memory.
    query_stages: u32,
    /// Row chunks in shared memory.
    row_stages: u32,
    /// The memory after the chunks.
    biases: Shared<S>,
}

impl<S: TileSum> Room<S> {
    #[inline(always)]
    fn new<const CHUNKS: u32>(units: u32) -> Self {
        let chunks = if CHUNKS == MANY { units.div_ceil(tile::UNITS) } else { CHUNKS };
        let query_stages = if CHUNKS == MANY { QUERY_STAGES } else { CHUNKS };
        let row_stages = row_stages(CHUNKS);
        let end = (query_stages + row_stages) * tile::SIDE_BYTES;
        Self { chunks, query_stages, row_stages, biases: shared::dynamic(end as usize) }
    }

    /// Query chunk number `slot`.
    #[inline(always)]
    fn queries(&self, slot: u32) -> Shared<u8> {
        shared::dynamic((slot * tile::SIDE_BYTES) as usize)
    }

    /// Row chunk number `stage`.
    #[inline(always)]
    fn rows(&self, stage: u32) -> Shared<u8> {
        self.queries(self.query_stages + stage)
    }

    /// The stage of row chunks that is used after `stage`.
    #[inline(always)]
    fn stage_after(&self, stage: u32) -> u32 {
        if stage + 1 == self.row_stages { 0 } else { stage + 1 }
    }

    #[inline(always)]
    fn query_vectors(&self) -> Shared<u32> {
        self.biases.offset(4 * tile::SIDE as usize).cast()
    }

    #[inline(always)]
    fn row_vectors(&self, visit: u32) -> Shared<u32> {
        self.query_vectors().offset((1 + visit % LOOKED_UP) as usize * tile::SIDE as usize)
    }

    #[inline(always)]
    fn columns(&self, visit: u32) -> Columns<S> {
        let side = tile::SIDE as usize;
        let parity = (visit % 2) as usize * side;
        let biases = self.biases.offset(parity);
        let thresholds = self.biases.offset(2 * side + parity);
        Columns { biases, thresholds, vectors: self.row_vectors(visit) }
    }
}

/// The line of a tile that a thread looks up. Two warps share 32 lines: the first one looks up the
/// ids and keeps the biases, the second one keeps the thresholds.
#[derive(Clone, Copy)]
struct OwnRow {
    line: usize,
    is_first: bool,
}

impl OwnRow {
    #[inline(always)]
    fn of_thread() -> Self {
        let warp = thread::warp_idx();
        Self { line: (32 * (warp / 2) + warp::lane_id()) as usize, is_first: warp.is_multiple_of(2) }
    }
}

/// Look-ahead of a walk: loads ids, biases and thresholds of the rows of later tiles.
struct RowsAhead<'a, S, R> {
    p: &'a Tiles<S>,
    walk: TileWalk,
    room: Room<S>,
    row_vector: &'a R,
    own: OwnRow,
}

/// A row of a later tile as a thread loads it: the bias, and in the second warp the bound.
struct Column<S> {
    bias: S,
    bound: f32,
}

impl<S: TileSum, R: Fn(u32) -> u32> RowsAhead<'_, S, R> {
    /// Puts the query ids, the row ids of the first two tiles and the columns of the first tile in
    /// shared memory. Returns the second tile. The block has passed a barrier, but not after the
    /// columns.
    #[inline(always)]
    fn look_up_first<Ep: Epilogue<S>>(&self, epilogue: &Ep, query_vector: impl Fn(u32) -> u32) -> u32 {
        let (walk, room, line) = (self.walk, self.room, self.own.line);
        let first_vector = self.look_up(walk.first_tile);
        let far_tile = walk.tile_after(walk.first_tile);
        if self.own.is_first {
            let (query, there) = (line as u32, (line as u32) < walk.query_count);
            let vector = if there { query_vector(walk.first_query + query) } else { NO_ID };
            room.query_vectors().set(line, vector);
            room.row_vectors(0).set(line, first_vector);
            room.row_vectors(1).set(line, if walk.visits > 1 { self.look_up(far_tile) } else { NO_ID });
        }
        sync_threads();
        self.store(epilogue, 0, self.fetch(epilogue, first_vector));
        far_tile
    }

    /// The vector of the own line in tile `tile`.
    #[inline(always)]
    fn look_up(&self, tile: u32) -> u32 {
        let row = self.walk.first_row + tile * tile::SIDE + self.own.line as u32;
        if row < self.walk.end_row { (self.row_vector)(row) } else { NO_ID }
    }

    /// Loads the column of a row.
    #[inline(always)]
    fn fetch<Ep: Epilogue<S>>(&self, epilogue: &Ep, vector: u32) -> Column<S> {
        let (mut bias, mut bound) = (S::NEVER, 0.0);
        if vector != NO_ID && (self.own.is_first || Ep::THRESHOLDS) {
            bias = self.p.biases.get(vector as usize);
            if Ep::THRESHOLDS && !self.own.is_first {
                bound = epilogue.bound(vector);
            }
        }
        Column { bias, bound }
    }

    /// Stores the own line's column value for a visit.
    #[inline(always)]
    fn store<Ep: Epilogue<S>>(&self, epilogue: &Ep, visit: u32, Column { bias, bound }: Column<S>) {
        let (columns, line) = (self.room.columns(visit), self.own.line);
        if self.own.is_first {
            columns.biases.set(line, epilogue.term(bias));
        } else if Ep::THRESHOLDS {
            let there = columns.vectors.get(line) != NO_ID;
            columns.thresholds.set(line, if there { epilogue.threshold(bound, bias) } else { S::UNBOUNDED });
        }
    }
}
