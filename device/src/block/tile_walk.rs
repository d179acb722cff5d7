//! What every filter does: the products of queries and rows, tile by tile, on tensor cores.

use cuda_std::prelude::*;
use cuda_std::thread::{sync_named, sync_threads, thread_idx_x};
use cuda_std::{copy, shared};

use crate::block::copied;
use crate::block::element::{TileElement, TileSum};
use crate::block::tile;

/// Chunks of queries in shared memory. Those of short vectors, which have no more, stay there while rows pass by, and only
/// the two warps with the same rows wait for one another. Chunks of longer ones pass by with the rows.
const QUERY_STAGES: u32 = 2;

/// Chunks of rows in shared memory, in use or being copied, of vectors of `chunks` chunks: the next chunk is copied while
/// one is in use, and of vectors with several the chunk after that too.
const fn row_stages(chunks: u32) -> u32 {
    if chunks == 1 { 2 } else { 3 }
}

/// Tiles whose vectors are known: one is looked up while the next is copied and another is in use.
const LOOKED_UP: u32 = 4;

/// No vector.
pub(crate) const NOTHING: u32 = u32::MAX;

/// Bytes of dynamic shared memory of the filter for vectors of `units` units of 16 bytes.
pub const fn tile_walk_shared_bytes(units: u32) -> u32 {
    let chunks = units.div_ceil(tile::UNITS);
    let queries = if chunks < QUERY_STAGES { chunks } else { QUERY_STAGES };
    let tiles = queries + row_stages(chunks);
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

/// What becomes of the products of a tile, of which this lane has the lines `line + 8 r` and the columns
/// `column + column_of(c)`.
pub(crate) trait Epilogue<S: TileSum> {
    /// What is kept of a row's bias.
    #[inline(always)]
    fn term(bias: S) -> S {
        bias
    }

    /// Whether the rows of a tile have thresholds.
    const THRESHOLDS: bool = false;

    /// What the threshold of a row that is this vector is made from: fetched long before.
    #[inline(always)]
    fn bound(&self, _vector: u32) -> f32 {
        0.0
    }

    /// The threshold of a row; of rows that are not there it is [`UNBOUNDED`](TileSum::UNBOUNDED).
    #[inline(always)]
    fn threshold(&self, _bound: f32, _bias: S) -> S {
        S::UNBOUNDED
    }

    /// What the sums of a tile begin at.
    #[inline(always)]
    fn begin(&self, _part: LanePart<S>) -> tile::Sums<S> {
        [[S::default(); 4]; 16]
    }

    /// Called by all lanes of a warp with the sums of a tile, and the bounds of this lane's lines.
    fn tile(&mut self, sums: &tile::Sums<S>, bounds: &[S; 8], part: LanePart<S>);
}

/// Where the eight columns of a lane are, from its first on.
#[inline(always)]
pub(crate) const fn column_of(index: usize) -> u32 {
    (8 * (index / 2) + index % 2) as u32
}

/// Of each row of a tile, its bias or what is kept of it, its threshold if rows have any, and its vector.
#[derive(Clone, Copy)]
pub(crate) struct Columns<S> {
    pub biases: Shared<S>,
    pub thresholds: Shared<S>,
    pub vectors: Shared<u32>,
}

/// A lane's part of a tile: lines `line + 8 r` and columns `column + column_of(c)`.
#[derive(Clone, Copy)]
pub(crate) struct LanePart<S> {
    pub line: u32,
    pub column: u32,
    pub columns: Columns<S>,
}

/// Lookups of a walk: the vector of a query, the vector of a row, and the bound of a line of the query tile (also of
/// lines without a query).
pub(crate) struct Lookups<Q, R, B> {
    pub query_vector: Q,
    pub row_vector: R,
    pub bound: B,
}

/// Computes the products of all tiles of `walk`, and gives them to `epilogue`.
#[inline(always)]
pub(crate) fn walk_tiles<E: TileElement, Ep: Epilogue<E::Sum>>(
    p: &Tiles<E::Sum>,
    walk: TileWalk,
    lookups: Lookups<impl Fn(u32) -> u32, impl Fn(u32) -> u32, impl Fn(u32) -> E::Sum>,
    epilogue: &mut Ep,
) {
    if walk.visits == 0 {
        return;
    }
    if p.units <= QUERY_STAGES * tile::UNITS {
        pass::<E, Ep, true>(p, walk, &lookups, epilogue);
    } else {
        pass::<E, Ep, false>(p, walk, &lookups, epilogue);
    }
}

/// As [`walk_tiles`], of vectors that are `SHORT` or not: the code of each has registers for its own.
#[inline(always)]
fn pass<E: TileElement, Ep: Epilogue<E::Sum>, const SHORT: bool>(
    p: &Tiles<E::Sum>,
    walk: TileWalk,
    lookups: &Lookups<impl Fn(u32) -> u32, impl Fn(u32) -> u32, impl Fn(u32) -> E::Sum>,
    epilogue: &mut Ep,
) {
    let Lookups { query_vector, row_vector, bound } = lookups;
    let chunks = p.units.div_ceil(tile::UNITS);
    let query_stages = if SHORT { chunks } else { QUERY_STAGES };
    let stages = if SHORT { row_stages(chunks) } else { const { row_stages(u32::MAX) } };
    let chunk_at = |number: u32| shared::dynamic::<u8>((number * tile::SIDE_BYTES) as usize);
    let rows = |stage: u32| chunk_at(query_stages + stage);
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

    // Two warps have the same rows: one looks them up and keeps their biases, the other their thresholds.
    let lane = warp::lane_id();
    let (pair, is_first) = (thread::warp_idx() / 2, thread::warp_idx().is_multiple_of(2));
    let of_row = (32 * pair + lane) as usize;
    let look_up = |row_tile: u32| {
        let row = walk.first_row + row_tile * tile::SIDE + of_row as u32;
        if row < walk.end_row { row_vector(row) } else { NOTHING }
    };
    let fetch = |epilogue: &Ep, vector: u32| {
        let (mut bias, mut bound) = (E::Sum::NEVER, 0.0);
        if vector != NOTHING && (is_first || Ep::THRESHOLDS) {
            bias = p.biases.get(vector as usize);
            if Ep::THRESHOLDS && !is_first {
                bound = epilogue.bound(vector);
            }
        }
        (bias, bound)
    };
    let store = |epilogue: &Ep, visit: u32, (bias, bound): (E::Sum, f32)| {
        let columns = of_tile(visit);
        if is_first {
            columns.biases.set(of_row, Ep::term(bias));
        } else if Ep::THRESHOLDS {
            let there = columns.vectors.get(of_row) != NOTHING;
            columns
                .thresholds
                .set(of_row, if there { epilogue.threshold(bound, bias) } else { E::Sum::UNBOUNDED });
        }
    };
    let tile_after = |row_tile: u32| {
        let next = row_tile + walk.tile_step;
        if next < walk.tile_count { next } else { next - walk.tile_count }
    };
    let first_vector = look_up(walk.first_tile);
    let mut far_tile = tile_after(walk.first_tile);
    if is_first {
        let (query, there) = (of_row as u32, (of_row as u32) < walk.query_count);
        query_vectors.set(of_row, if there { query_vector(walk.first_query + query) } else { NOTHING });
        row_vectors(0).set(of_row, first_vector);
        row_vectors(1).set(of_row, if walk.visits > 1 { look_up(far_tile) } else { NOTHING });
    }
    sync_threads();
    store(epilogue, 0, fetch(epilogue, first_vector));

    // What this lane holds of every tile: rows lane / 4 + 8 h of each fragment, columns 2 (lane % 4) + c.
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
    let of_thread = thread_idx_x() / tile::UNITS;
    let start_queries = |slot: u32, chunk: (u32, u32)| {
        let (lines, queries) = ((of_thread, tile::SIDE / 4), (p.queries, p.query_stride));
        tile::start_copy_of(lines, chunk_at(slot), queries, chunk, (p.units, true), &source(query_vectors));
    };
    // The rows of this pair of warps.
    let own_lines = (32 * pair + of_thread % 8, 8);
    let (mut next_visit, mut next_chunk, mut next_stage) = (0, 0, 0);
    let mut start_rows = || {
        if next_visit < walk.visits {
            let (to, vectors) = (rows(next_stage), source(row_vectors(next_visit)));
            // Behind the units of the shortest vectors, zeros stay.
            let units = (p.units, !SHORT || chunks > 1 || next_visit < stages);
            tile::start_copy_of(own_lines, to, (p.rows, p.row_stride), (next_chunk, 1), units, &vectors);
            next_chunk += 1;
            if next_chunk == chunks {
                (next_visit, next_chunk) = (next_visit + 1, 0);
            }
            next_stage = if next_stage + 1 == stages { 0 } else { next_stage + 1 };
        }
    };
    // Copies are waited for in groups, all but the latest one: that holds the rows of the chunk after the next, and is
    // empty if there is no room for them.
    let end_groups = || {
        copy::commit();
        if stages == 2 {
            copy::commit();
        }
    };
    start_queries(0, (0, if SHORT { chunks } else { 1 }));
    start_rows();
    end_groups();
    if stages == 3 {
        start_rows();
        copy::commit();
    }
    // Comes to a chunk, whose copies are complete then. The warps that need it have left the stages that the next copies go
    // to: those of the rows of the chunk after the next, and of the next chunk of queries that are not all there.
    let mut arrive = |next_queries: Option<(u32, u32)>| {
        copy::wait::<1>();
        if SHORT {
            sync_named(1 + pair, 64);
        } else {
            sync_threads();
            if let Some((stage, chunk)) = next_queries {
                start_queries(stage, (chunk, 1));
            }
            copy::commit();
        }
        start_rows();
        end_groups();
    };
    if SHORT {
        // The queries, which all warps copy, are there.
        copy::wait::<1>();
        sync_threads();
    }
    let (mut visit, mut stage, mut query_stage) = (0, 0, 0);
    while visit < walk.visits {
        arrive(Some((query_stage ^ 1, 1)));
        // What later tiles need is asked for here, and there when the products are.
        let fetched = fetch(epilogue, row_vectors(visit + 1).get(of_row));
        let mut far = NOTHING;
        if is_first && visit + 2 < walk.visits {
            far_tile = tile_after(far_tile);
            far = look_up(far_tile);
        }
        let columns = of_tile(visit);
        let part = LanePart { line: lane_row, column: lane_column, columns };
        let mut sums = epilogue.begin(part);
        let mut chunk = 0;
        loop {
            let units = p.units - chunk * tile::UNITS;
            let steps = if units < tile::UNITS { units.div_ceil(2) } else { tile::UNITS / 2 };
            let queries = chunk_at(if SHORT { chunk } else { query_stage });
            tile::multiply_add::<E>(&mut sums, queries, rows(stage), steps);
            stage = if stage + 1 == stages { 0 } else { stage + 1 };
            query_stage ^= 1;
            chunk += 1;
            if chunk == chunks {
                break;
            }
            arrive(match chunk + 1 < chunks {
                true => Some((query_stage ^ 1, chunk + 1)),
                false if visit + 1 < walk.visits => Some((query_stage ^ 1, 0)),
                false => None,
            });
        }
        // The next barrier stands between this and what reads it, the last one between it and what read the like.
        store(epilogue, visit + 1, fetched);
        if is_first {
            row_vectors(visit + 2).set(of_row, far);
        }
        epilogue.tile(&sums, &bounds, part);
        visit += 1;
    }
}
