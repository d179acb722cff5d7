//! What every filter does: the products of queries and rows, tile by tile, on tensor cores.

use cuda_std::prelude::*;
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::{copy, shared};

use crate::block::copied;
use crate::block::element::{TileElement, TileSum};
use crate::block::tile;

/// Chunks of a short vector: those of the queries stay in shared memory while rows pass by, a whole tile at a time,
/// which takes one barrier; longer vectors of both pass by in chunks.
const SHORT_CHUNKS: u32 = 2;

/// Tiles of rows that are on their way or in use, of short vectors.
const SHORT_STAGES: u32 = 2;

/// Chunks that are on their way or in use, of longer vectors.
const LONG_STAGES: u32 = 3;

/// Tiles whose vectors are known: one is looked up while the next is copied and another is in use.
const LOOKED_UP: u32 = 4;

/// No vector.
pub(crate) const NOTHING: u32 = u32::MAX;

/// Bytes of dynamic shared memory of the filter for vectors of `units` units of 16 bytes.
pub const fn filter_shared_bytes(units: u32) -> u32 {
    let chunks = units.div_ceil(tile::UNITS);
    let tiles = if chunks <= SHORT_CHUNKS { chunks * (1 + SHORT_STAGES) } else { 2 * LONG_STAGES };
    // And biases and thresholds of the rows of two tiles, and the vectors of the queries, and of the rows of some tiles.
    tiles * tile::SIDE_BYTES + tile::SIDE * 4 * (2 + 2 + 1 + LOOKED_UP)
}

/// What every filter compares with what.
#[repr(C)]
pub struct Tiles<S> {
    /// In: the vectors of the queries, `query_stride` bytes apart, a multiple of 16, of `units` units.
    pub queries: Global<u8>,
    /// In: the vectors of the rows, `row_stride` bytes apart, of as many units.
    pub rows: Global<u8>,
    /// In: one of each row's vector.
    pub biases: Global<S>,
    /// Bytes from one query's vector to the next.
    pub query_stride: u32,
    /// Bytes from one row's vector to the next.
    pub row_stride: u32,
    /// Units of 16 bytes per vector.
    pub units: u32,
    /// What a product is multiplied by: -2 for L2, -1 for inner products.
    pub weight: S,
}

copied! {
    Tiles<S>;
}

/// What one block compares: `query_count` queries from `first_query` on, with the tiles of 128 rows from
/// `first_row` on that the walk names, rows from `end_row` on left out.
#[derive(Clone, Copy)]
pub(crate) struct Walk {
    pub first_query: u32,
    pub query_count: u32,
    pub first_row: u32,
    pub end_row: u32,
    pub first_tile: u32,
    pub tile_count: u32,
    pub tile_step: u32,
    pub visits: u32,
}

/// What becomes of the products of a tile, of which this lane has the lines `line + 8 r` and the columns
/// `column + column_of(c)`.
pub(crate) trait Epilogue<S: TileSum> {
    /// Whether the rows of a tile have thresholds.
    const THRESHOLDS: bool = false;

    /// That of a row that is this vector; of rows that are not there it is [`UNBOUNDED`](TileSum::UNBOUNDED).
    #[inline(always)]
    fn threshold(&self, _vector: u32) -> S {
        S::UNBOUNDED
    }

    /// What the sums of a tile begin at.
    #[inline(always)]
    fn begin(&self, _line: u32, _column: u32, _of_tile: Columns<S>) -> tile::Sums<S> {
        [[S::default(); 4]; 16]
    }

    /// Called by all lanes of a warp with the sums of a tile, and the bounds of this lane's lines.
    fn tile(&mut self, sums: &tile::Sums<S>, bounds: &[S; 8], line: u32, column: u32, of_tile: Columns<S>);
}

/// Where the eight columns of a lane are, from its first on.
#[inline(always)]
pub(crate) const fn column_of(index: usize) -> u32 {
    (8 * (index / 2) + index % 2) as u32
}

/// Of each row of a tile, its bias, its threshold if rows have any, and its vector.
#[derive(Clone, Copy)]
pub(crate) struct Columns<S> {
    pub biases: Shared<S>,
    pub thresholds: Shared<S>,
    pub vectors: Shared<u32>,
}

/// Runs a walk; `query_vector` and `row_vector` say which vector a query and a row have, and `bound` which bound
/// a line of the query tile has, also where there is no query.
#[inline(always)]
pub(crate) fn filter<E: TileElement, Ep: Epilogue<E::Sum>>(
    p: &Tiles<E::Sum>,
    walk: Walk,
    query_vector: impl Fn(u32) -> u32,
    row_vector: impl Fn(u32) -> u32,
    bound: impl Fn(u32) -> E::Sum,
    epilogue: &mut Ep,
) {
    let chunks = p.units.div_ceil(tile::UNITS);
    let short = chunks <= SHORT_CHUNKS;
    // What is copied at once, and how many of these there is room for.
    let (piece, stages) = if short { (chunks, SHORT_STAGES) } else { (1, LONG_STAGES) };
    let query_chunks = if short { chunks } else { LONG_STAGES };
    let chunk_at = |number: u32| shared::dynamic::<u8>((number * tile::SIDE_BYTES) as usize);
    let rows = |stage: u32| chunk_at(query_chunks + stage * piece);
    let side = tile::SIDE as usize;
    let biases: Shared<E::Sum> = rows(stages).cast();
    let thresholds = biases.offset(2 * side);
    let query_vectors: Shared<u32> = thresholds.offset(2 * side).cast();
    let row_vectors = |visit: u32| query_vectors.offset((1 + visit % LOOKED_UP) as usize * side);
    let of_tile = |visit: u32| {
        let parity = (visit % 2) as usize * side;
        let (biases, thresholds) = (biases.offset(parity), thresholds.offset(parity));
        Columns { biases, thresholds, vectors: row_vectors(visit) }
    };

    // Half of the threads look rows up and fetch their biases, the others their thresholds.
    let thread = thread_idx_x();
    let (of_row, is_first) = ((thread % tile::SIDE) as usize, thread < tile::SIDE);
    let look_up = |row_tile: u32| {
        let row = walk.first_row + row_tile * tile::SIDE + of_row as u32;
        if row < walk.end_row { row_vector(row) } else { NOTHING }
    };
    let fetch = |epilogue: &Ep, vector: u32| {
        if is_first {
            if vector == NOTHING { E::Sum::NEVER } else { p.biases.get(vector as usize) }
        } else {
            if Ep::THRESHOLDS && vector != NOTHING { epilogue.threshold(vector) } else { E::Sum::UNBOUNDED }
        }
    };
    let store = |visit: u32, fetched: E::Sum| {
        let columns = of_tile(visit);
        if is_first { columns.biases } else { columns.thresholds }.set(of_row, fetched);
    };
    let tile_after = |row_tile: u32| {
        let next = row_tile + walk.tile_step;
        if next < walk.tile_count { next } else { next - walk.tile_count }
    };
    if walk.visits == 0 {
        return;
    }
    let first_vector = look_up(walk.first_tile);
    let mut far_tile = tile_after(walk.first_tile);
    if is_first {
        let there = thread < walk.query_count;
        query_vectors.set(of_row, if there { query_vector(walk.first_query + thread) } else { NOTHING });
        row_vectors(0).set(of_row, first_vector);
        row_vectors(1).set(of_row, if walk.visits > 1 { look_up(far_tile) } else { NOTHING });
    }
    store(0, fetch(epilogue, first_vector));
    sync_threads();

    // What this lane holds of every tile: rows lane / 4 + 8 h of each fragment, columns 2 (lane % 4) + c.
    let lane = warp::lane_id();
    let (part_row, part_column) = tile::part_of_warp();
    let (lane_row, lane_column) = (part_row + lane / 4, part_column + lane % 4 * 2);
    let mut bounds = [E::Sum::CLOSED; 8];
    unroll!(8, I => bounds[I] = bound(lane_row + 8 * I as u32));

    let source = |vectors: Shared<u32>| {
        move |line: u32| {
            let vector = vectors.get(line as usize);
            if vector == NOTHING { None } else { Some(vector) }
        }
    };
    let start_queries = |slot: u32, chunk: (u32, u32)| {
        tile::start_copy(chunk_at(slot), p.queries, p.query_stride, chunk, p.units, &source(query_vectors));
    };
    if short {
        start_queries(0, (0, chunks));
    }
    let (mut next_visit, mut next_chunk, mut next_stage) = (0, 0, 0);
    let mut start_next = || {
        if next_visit < walk.visits {
            let (chunk, vectors) = ((next_chunk, piece), source(row_vectors(next_visit)));
            tile::start_copy(rows(next_stage), p.rows, p.row_stride, chunk, p.units, &vectors);
            if !short {
                start_queries(next_stage, chunk);
            }
            next_chunk += piece;
            if next_chunk == chunks {
                (next_visit, next_chunk) = (next_visit + 1, 0);
            }
            next_stage = if next_stage + 1 == stages { 0 } else { next_stage + 1 };
        }
        copy::commit();
    };
    let mut started = 1;
    while started < stages {
        start_next();
        started += 1;
    }
    // All threads' bytes of the next piece are there, and all warps have left the stage that the next copy goes to.
    let mut arrive = || {
        if short {
            copy::wait::<{ SHORT_STAGES - 2 }>()
        } else {
            copy::wait::<{ LONG_STAGES - 2 }>()
        }
        sync_threads();
        start_next();
    };

    let (mut visit, mut stage) = (0, 0);
    while visit < walk.visits {
        arrive();
        // What later tiles need is asked for here, and there when the products are.
        let fetched = fetch(epilogue, row_vectors(visit + 1).get(of_row));
        let mut far = NOTHING;
        if is_first && visit + 2 < walk.visits {
            far_tile = tile_after(far_tile);
            far = look_up(far_tile);
        }
        let columns = of_tile(visit);
        let mut sums = epilogue.begin(lane_row, lane_column, columns);
        let mut chunk = 0;
        loop {
            let mut of_piece = 0;
            while of_piece < piece {
                let units = p.units - (chunk + of_piece) * tile::UNITS;
                let steps = if units < tile::UNITS { units.div_ceil(2) } else { tile::UNITS / 2 };
                let query_slot = if short { of_piece } else { stage };
                let rows = rows(stage).offset((of_piece * tile::SIDE_BYTES) as usize);
                tile::multiply_add::<E>(&mut sums, chunk_at(query_slot), rows, steps);
                of_piece += 1;
            }
            stage = if stage + 1 == stages { 0 } else { stage + 1 };
            chunk += piece;
            if chunk == chunks {
                break;
            }
            arrive();
        }
        // The next barrier stands between this and what reads it, the last one between it and what read the like.
        store(visit + 1, fetched);
        if is_first {
            row_vectors(visit + 2).set(of_row, far);
        }
        epilogue.tile(&sums, &bounds, lane_row, lane_column, columns);
        visit += 1;
    }
}
