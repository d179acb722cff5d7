//! What every filter does: the products of queries and rows, tile by tile, on tensor cores.

use cuda_std::prelude::*;
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::{copy, shared};

use crate::block::copied;
use crate::block::element::{TileElement, TileSum};
use crate::block::tile;

/// Chunks of a query tile that stay in shared memory while rows pass by; longer vectors pass with
/// the rows.
const RESIDENT_CHUNKS: u32 = 2;

/// Chunks that are on their way or in use.
const STAGES: u32 = 3;

/// Visits from looking a tile's rows up to its epilogue: chunks of two later tiles are on their way in between.
const AHEAD: u32 = STAGES;

/// No vector.
const NOTHING: u32 = u32::MAX;

/// Bytes of dynamic shared memory of the filter for vectors of `units` units of 16 bytes.
pub const fn filter_shared_bytes(units: u32) -> u32 {
    let chunks = units.div_ceil(tile::UNITS);
    let queries = if chunks <= RESIDENT_CHUNKS { chunks } else { STAGES };
    // And a bias of each row of a tile, the vectors of the queries, and those of the rows of some tiles.
    (queries + STAGES) * tile::SIDE_BYTES + tile::SIDE * 4 * (3 + AHEAD)
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

/// What becomes of the rows that are below the bounds of a tile's queries, which `bounds` holds for this lane: of
/// the queries `line + 8 r` of the tile.
pub(crate) trait Epilogue<S: TileSum> {
    /// Where the bounds of a tile's rows are wanted, if they are: one of each.
    #[inline(always)]
    fn row_bounds(&self) -> Option<Shared<S>> {
        None
    }

    /// The bound of a row that is this vector.
    #[inline(always)]
    fn row_bound(&self, _vector: u32) -> S {
        S::CLOSED
    }

    /// Called by all lanes of a warp with the products of a tile of rows. `column` is the first column of this
    /// lane, of which it has `column + 8 n + c`; of each column of the tile the biases and vectors are in
    /// shared memory.
    fn tile(&mut self, sums: &tile::Sums<S>, bounds: &[S; 8], line: u32, column: u32, of_tile: Columns<S>);
}

/// Where the eight columns of a lane are, from its first on.
#[inline(always)]
pub(crate) const fn column_of(index: usize) -> u32 {
    (8 * (index / 2) + index % 2) as u32
}

/// Of each row of a tile, its bias and its vector.
#[derive(Clone, Copy)]
pub(crate) struct Columns<S> {
    pub biases: Shared<S>,
    pub vectors: Shared<u32>,
}

impl<S: Plain> Columns<S> {
    /// The biases of a lane's eight columns.
    #[inline(always)]
    pub fn biases(&self, column: u32) -> [S; 8]
    where
        S: TileSum,
    {
        let mut biases = [S::NEVER; 8];
        unroll!(8, C => biases[C] = self.biases.get((column + column_of(C)) as usize));
        biases
    }
}

/// Runs a walk; `query_vector` and `row_vector` say which vector a query and a row have, and `bound` which bound
/// a line of the query tile.
#[inline(always)]
pub(crate) fn filter<E: TileElement>(
    p: &Tiles<E::Sum>,
    walk: Walk,
    query_vector: impl Fn(u32) -> u32,
    row_vector: impl Fn(u32) -> u32,
    bound: impl Fn(u32) -> E::Sum,
    epilogue: &mut impl Epilogue<E::Sum>,
) {
    let chunks = p.units.div_ceil(tile::UNITS);
    let resident = chunks <= RESIDENT_CHUNKS;
    let query_chunks = if resident { chunks } else { STAGES };
    let queries = |slot: u32| shared::dynamic::<u8>((slot * tile::SIDE_BYTES) as usize);
    let rows = |stage: u32| shared::dynamic::<u8>(((query_chunks + stage) * tile::SIDE_BYTES) as usize);
    // Which vectors the queries are, and the rows of the tile of a visit: asked for long before they are copied,
    // since they may have to be looked up.
    let biases: Shared<E::Sum> = rows(STAGES).cast();
    let query_vectors: Shared<u32> = biases.offset(tile::SIDE as usize).cast();
    let row_vectors = |visit: u32| query_vectors.offset(((1 + visit % (AHEAD + 1)) * tile::SIDE) as usize);
    let thread = thread_idx_x();
    let look_up = |row_tile: u32| {
        let row = walk.first_row + row_tile * tile::SIDE + thread;
        if thread < tile::SIDE && row < walk.end_row { row_vector(row) } else { NOTHING }
    };
    let tile_after = |row_tile: u32| {
        let next = row_tile + walk.tile_step;
        if next < walk.tile_count { next } else { next - walk.tile_count }
    };
    if thread < tile::SIDE {
        let there = thread < walk.query_count;
        let vector = if there { query_vector(walk.first_query + thread) } else { NOTHING };
        query_vectors.set(thread as usize, vector);
    }
    let (mut far_visit, mut far_tile) = (0, walk.first_tile);
    while far_visit < AHEAD && far_visit < walk.visits {
        let vector = look_up(far_tile);
        if thread < tile::SIDE {
            row_vectors(far_visit).set(thread as usize, vector);
        }
        (far_visit, far_tile) = (far_visit + 1, tile_after(far_tile));
    }
    sync_threads();

    let source = |vectors: Shared<u32>| {
        move |line: u32| {
            let vector = vectors.get(line as usize);
            if vector == NOTHING { None } else { Some(vector) }
        }
    };
    let start_queries = |slot: u32, chunk: u32| {
        tile::start_copy(queries(slot), p.queries, p.query_stride, chunk, p.units, &source(query_vectors));
    };
    let start = |stage: u32, visit: u32, chunk: u32| {
        tile::start_copy(rows(stage), p.rows, p.row_stride, chunk, p.units, &source(row_vectors(visit)));
        if !resident {
            start_queries(stage, chunk);
        }
    };

    // What this lane holds of every tile: rows lane / 4 + 8 h of each fragment, columns 2 (lane % 4) + c.
    let lane = warp::lane_id();
    let (part_row, part_column) = tile::part_of_warp();
    let (lane_row, lane_column) = (part_row + lane / 4, part_column + lane % 4 * 2);
    let mut bounds = [E::Sum::CLOSED; 8];
    unroll!(8, I => {
        let query = lane_row + 8 * I as u32;
        if query < walk.query_count {
            bounds[I] = bound(query);
        }
    });

    if resident {
        let mut chunk = 0;
        while chunk < chunks {
            start_queries(chunk, chunk);
            chunk += 1;
        }
    }
    // The copy that is started next, two chunks ahead of the one in use.
    let (mut next_visit, mut next_chunk) = (0, 0);
    let mut started = 0;
    while started < STAGES - 1 {
        if next_visit < walk.visits {
            start(started, next_visit, next_chunk);
            next_chunk += 1;
            if next_chunk == chunks {
                (next_visit, next_chunk) = (next_visit + 1, 0);
            }
        }
        copy::commit();
        started += 1;
    }

    let (mut stage, mut next_stage) = (0, STAGES - 1);
    let mut visit = 0;
    while visit < walk.visits {
        // Half of the threads fetch a row's bias each, and look a later row up, the others a row's bound; all are
        // there when the products are.
        let (mut bias, mut far) = (E::Sum::NEVER, NOTHING);
        let mut row_bound = E::Sum::CLOSED;
        if epilogue.row_bounds().is_some() && thread >= tile::SIDE {
            let vector = row_vectors(visit).get((thread - tile::SIDE) as usize);
            if vector != NOTHING {
                row_bound = epilogue.row_bound(vector);
            }
        }
        if thread < tile::SIDE {
            let vector = row_vectors(visit).get(thread as usize);
            if vector != NOTHING {
                bias = p.biases.get(vector as usize);
            }
            if visit + AHEAD < walk.visits {
                far = look_up(far_tile);
                far_tile = tile_after(far_tile);
            }
        }
        let mut sums: tile::Sums<E::Sum> = [[E::Sum::default(); 4]; 16];
        let mut chunk = 0;
        while chunk < chunks {
            copy::wait::<{ STAGES - 2 }>();
            // All threads' bytes of this chunk are there, and all warps have left the stage that the next
            // copy goes to.
            sync_threads();
            if next_visit < walk.visits {
                start(next_stage, next_visit, next_chunk);
                next_chunk += 1;
                if next_chunk == chunks {
                    (next_visit, next_chunk) = (next_visit + 1, 0);
                }
            }
            copy::commit();
            let units = p.units - chunk * tile::UNITS;
            let steps = if units < tile::UNITS { units.div_ceil(2) } else { tile::UNITS / 2 };
            let query_slot = if resident { chunk } else { stage };
            tile::multiply_add::<E>(&mut sums, queries(query_slot), rows(stage), steps);
            stage = if stage + 1 == STAGES { 0 } else { stage + 1 };
            next_stage = if next_stage + 1 == STAGES { 0 } else { next_stage + 1 };
            chunk += 1;
        }

        // The barriers above stand between this and the last tile's epilogue.
        if thread < tile::SIDE {
            biases.set(thread as usize, bias);
            row_vectors(visit + AHEAD).set(thread as usize, far);
        } else if let Some(row_bounds) = epilogue.row_bounds() {
            row_bounds.set((thread - tile::SIDE) as usize, row_bound);
        }
        sync_threads();
        let of_tile = Columns { biases, vectors: row_vectors(visit) };
        epilogue.tile(&sums, &bounds, lane_row, lane_column, of_tile);
        visit += 1;
    }
}
