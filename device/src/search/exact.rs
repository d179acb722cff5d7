//! Exact k nearest neighbours: a filter on tensor cores, and exact distances for what passes it.
//!
//! The base is taken in ranges of rows. [`exact_filter_f16()`] and its siblings compute the products of
//! all queries with the rows of a range and note the rows whose distance may be below the query's
//! bound; [`exact_settle_f32()`] and its siblings compute the exact distances of the noted rows from the
//! original vectors, merge them into the query's list of the k nearest, and tighten the bound. As the
//! bound allows for all rounding on the tensor cores, the lists are exact, ties by id included.

use cuda_std::atomic::Scope;
use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, block_idx_y, sync_threads, thread_idx_x};
use cuda_std::warp::WarpReductionOp;
use cuda_std::{copy, float, float16, shared};

use crate::block::element::{Element, QueryBound, TileElement, TileSum};
use crate::block::exact::{Metric, distance};
use crate::block::sort::{merge_block, rank, sort_block};
use crate::block::tile;
use crate::descent::key::{self, Key, NONE};

/// Threads of a block of [`exact_prepare_f32()`] and its siblings: a warp per vector.
pub const PREPARE_THREADS: u32 = 256;

/// Vectors that a block prepares.
pub const PREPARE_VECTORS: u32 = PREPARE_THREADS / 32;

/// Vectors to be rounded to f16.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Prepare<T> {
    /// In: `count` vectors of `dim` components, `stride` components apart.
    pub values: Global<T>,
    /// In: `dim` values that are subtracted.
    pub mean: Global<f32>,
    /// Out: `count` vectors of f16, `rounded_stride` apart, zero from `dim` on.
    pub rounded: GlobalMut<f16>,
    /// Out: `count`, each `norm_weight` times the squared norm of the rounded vector; of vectors that
    /// rounding moved by more than `error_limit`, minus infinity; with `skip_zero`, of zero vectors
    /// infinity.
    pub biases: GlobalMut<f32>,
    /// Out: `count`, how far rounding moved each vector.
    pub errors: GlobalMut<f32>,
    /// In and out: one value, the bits of the largest squared norm of a rounded vector.
    pub largest: GlobalMut<u32>,
    /// How many vectors.
    pub count: u32,
    /// Components per vector.
    pub dim: u32,
    /// Components from one vector to the next.
    pub stride: u32,
    /// Halves from one rounded vector to the next.
    pub rounded_stride: u32,
    /// What a vector is multiplied by before it is rounded.
    pub scale: f32,
    /// What norms are multiplied by in `biases`.
    pub norm_weight: f32,
    /// The largest error of a vector that keeps its bias.
    pub error_limit: f32,
    /// Whether zero vectors are never found.
    pub skip_zero: u32,
}

/// How far a vector may have been moved by rounding it, and a little more: `rounding` is the norm of the
/// difference, as computed; subtracting the mean of a vector of norm `norm` was rounded too.
#[inline(always)]
pub fn total_error(rounding: f32, norm: f32) -> f32 {
    (rounding + norm * (1.0 / (1u32 << 22) as f32)) * (1.0 + 1.0 / 1024.0)
}

/// The largest value of f16; larger ones are cut, and the error says so.
const F16_MAX: f32 = 65_504.0;

#[inline(always)]
fn prepare<T: Element<Wide = f32>>(p: &Prepare<T>) {
    let lane = warp::lane_id();
    let vector = block_idx_x() * PREPARE_VECTORS + thread::warp_idx();
    if vector >= p.count {
        return;
    }
    let values = p.values.offset(vector as usize * p.stride as usize);
    let rounded = p.rounded.offset(vector as usize * p.rounded_stride as usize);
    let (mut norm, mut error, mut zero) = (0.0f32, 0.0f32, true);
    let mut i = lane;
    while i < p.rounded_stride {
        let mut half = f16::from_bits(0);
        if i < p.dim {
            let value = values.get(i as usize).wide();
            let exact = (value - p.mean.get(i as usize)) * p.scale;
            half = float16::from_f32(exact.clamp(-F16_MAX, F16_MAX));
            let back = float16::to_f32(half);
            norm += back * back;
            error += (exact - back) * (exact - back);
            zero &= value == 0.0;
        }
        rounded.set(i as usize, half);
        i += 32;
    }
    let norm = warp::sum(norm);
    let error = total_error(float::sqrt(warp::sum(error)), float::sqrt(norm));
    let zero = !warp::any(!zero);
    if lane == 0 {
        let bias = if zero && p.skip_zero != 0 {
            f32::INFINITY
        } else if error > p.error_limit {
            f32::NEG_INFINITY
        } else {
            norm * p.norm_weight
        };
        p.biases.set(vector as usize, bias);
        p.errors.set(vector as usize, error);
        // Bits of numbers that are not negative are ordered as they are.
        p.largest.fetch_max(0, norm.to_bits(), Scope::Device);
    }
}

/// Vectors of bytes whose squared norms are wanted; tiles take the vectors as they are.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Norms<T> {
    /// In: `count` vectors of `dim` components, `stride` components apart.
    pub values: Global<T>,
    /// Out: `count`, each `weight` times the squared norm.
    pub norms: GlobalMut<i32>,
    /// How many vectors.
    pub count: u32,
    /// Components per vector.
    pub dim: u32,
    /// Components from one vector to the next.
    pub stride: u32,
    /// What norms are multiplied by.
    pub weight: i32,
}

#[inline(always)]
fn norms<T: Element<Wide = i32>>(p: &Norms<T>) {
    let lane = warp::lane_id();
    let vector = block_idx_x() * PREPARE_VECTORS + thread::warp_idx();
    if vector >= p.count {
        return;
    }
    let values = p.values.offset(vector as usize * p.stride as usize);
    let mut sum = 0;
    let mut i = lane;
    while i < p.dim {
        let value = values.get(i as usize).wide();
        sum += value * value;
        i += 32;
    }
    // SAFETY: the whole warp has the same vector and is here.
    let norm = unsafe { warp::warp_reduce(warp::FULL, sum, WarpReductionOp::Add) };
    if lane == 0 {
        p.norms.set(vector as usize, p.weight * norm);
    }
}

/// Chunks of a query tile that stay in shared memory while rows pass by; longer vectors pass with
/// the rows.
const RESIDENT_CHUNKS: u32 = 2;

/// Chunks that are on their way or in use.
const STAGES: u32 = 3;

/// Bytes of dynamic shared memory of the filter for vectors of `units` units of 16 bytes.
pub const fn filter_shared_bytes(units: u32) -> u32 {
    let chunks = units.div_ceil(tile::UNITS);
    let queries = if chunks <= RESIDENT_CHUNKS { chunks } else { STAGES };
    (queries + STAGES) * tile::SIDE_BYTES
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
    /// In: one of each query.
    pub bounds: Global<S>,
    /// In and out: of each query, rows noted.
    pub counts: GlobalMut<u32>,
    /// Out: one value, 1 if a query passed its capacity.
    pub overflow: GlobalMut<u32>,
    /// Bytes from one query's vector to the next.
    pub query_stride: u32,
    /// Bytes from one row's vector to the next.
    pub row_stride: u32,
    /// Units of 16 bytes per vector.
    pub units: u32,
    /// Rows that are noted per query.
    pub capacity: u32,
    /// What a product is multiplied by: -2 for L2, -1 for inner products.
    pub weight: S,
    /// Nothing.
    pub padding: u32,
}

/// The filter of a range of all rows for all queries.
///
/// The tiles of 128 rows are visited in the order `(position * tile_step) % tile_count`, which mixes
/// data that lie sorted; `tile_step` is at most `tile_count` and has no divisor in common with it.
#[repr(C)]
pub struct Filter<S> {
    /// What is compared.
    pub tiles: Tiles<S>,
    /// Out: `capacity` rows of each query.
    pub found: GlobalMut<u32>,
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
    /// Nothing.
    pub padding: u32,
}

/// The filter of some members of cells for other members of their cell: a job per block.
#[repr(C)]
pub struct CellFilter<S> {
    /// What is compared; queries and rows are the same vectors.
    pub tiles: Tiles<S>,
    /// In: the vectors of all cells' members, cell by cell.
    pub members: Global<u32>,
    /// In: a [`Job`] of each block.
    pub jobs: Global<u32>,
    /// Out: `capacity` keys of each query: the vector of a row, at its distance as the tensor cores compute
    /// it, less the query's norm.
    pub found: GlobalMut<Key>,
}

/// A job of [`CellFilter`]: up to 128 queries against any number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Job {
    /// The first query among the members; they follow one another.
    pub first_member: u32,
    /// The number of the first query among the bounds, counts and noted rows.
    pub first_query: u32,
    /// How many queries, at most [`tile::SIDE`].
    pub query_count: u32,
    /// The first row among the members.
    pub first_row: u32,
    /// How many rows, at least 1.
    pub row_count: u32,
}

/// Words of a [`Job`].
pub const JOB_WORDS: usize = size_of::<Job>() / 4;

macro_rules! copied {
    ($($name:ident<$($parameter:ident),*>;)*) => {$(
        impl<$($parameter: Copy),*> Clone for $name<$($parameter),*> {
            #[inline(always)]
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<$($parameter: Copy),*> Copy for $name<$($parameter),*> {}
    )*};
}

copied! {
    Merge<S>;
    Finish<T>;
    Tiles<S>;
    Filter<S>;
    CellFilter<S>;
    Settle<T, S>;
}

/// What one block compares: `query_count` queries from `first_query` on, with the tiles of 128 rows from
/// `first_row` on that the walk names, rows from `end_row` on left out.
#[derive(Clone, Copy)]
struct Walk {
    first_query: u32,
    query_count: u32,
    first_row: u32,
    end_row: u32,
    first_tile: u32,
    tile_count: u32,
    tile_step: u32,
    visits: u32,
}

/// Runs a walk; `query_vector` and `row_vector` say which vector a query and a row have, and `number` is
/// that of the first query among bounds, counts and noted rows. `note` is given the place for a row below
/// its bound, the row's vector, and with `VALUED` its value.
#[inline(always)]
fn filter<E: TileElement, const VALUED: bool>(
    p: &Tiles<E::Sum>,
    walk: Walk,
    number: u32,
    query_vector: impl Fn(u32) -> u32,
    row_vector: impl Fn(u32) -> u32,
    note: impl Fn(usize, u32, E::Sum),
) {
    let chunks = p.units.div_ceil(tile::UNITS);
    let resident = chunks <= RESIDENT_CHUNKS;
    let tile_after = |row_tile: u32| {
        let next = row_tile + walk.tile_step;
        if next < walk.tile_count { next } else { next - walk.tile_count }
    };

    let query_chunks = if resident { chunks } else { STAGES };
    let queries = |slot: u32| shared::dynamic::<u8>((slot * tile::SIDE_BYTES) as usize);
    let rows = |stage: u32| shared::dynamic::<u8>(((query_chunks + stage) * tile::SIDE_BYTES) as usize);
    let query_source = |line: u32| {
        if line < walk.query_count { Some(query_vector(walk.first_query + line)) } else { None }
    };
    let start_queries = |slot: u32, chunk: u32| {
        tile::start_copy(queries(slot), p.queries, p.query_stride, chunk, p.units, &query_source);
    };
    let start = |stage: u32, row_tile: u32, chunk: u32| {
        let row_source = |line: u32| {
            let row = walk.first_row + row_tile * tile::SIDE + line;
            if row < walk.end_row { Some(row_vector(row)) } else { None }
        };
        tile::start_copy(rows(stage), p.rows, p.row_stride, chunk, p.units, &row_source);
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
            bounds[I] = p.bounds.get((number + query) as usize);
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
    let (mut next_visit, mut next_chunk, mut next_tile) = (0, 0, walk.first_tile);
    let mut started = 0;
    while started < STAGES - 1 {
        if next_visit < walk.visits {
            start(started, next_tile, next_chunk);
            next_chunk += 1;
            if next_chunk == chunks {
                (next_visit, next_chunk) = (next_visit + 1, 0);
                next_tile = tile_after(next_tile);
            }
        }
        copy::commit();
        started += 1;
    }

    let (mut stage, mut next_stage) = (0, STAGES - 1);
    let (mut visit, mut row_tile) = (0, walk.first_tile);
    while visit < walk.visits {
        let first_row = walk.first_row + row_tile * tile::SIDE;
        let mut sums: tile::Sums<E::Sum> = [[E::Sum::default(); 4]; 16];
        let mut chunk = 0;
        while chunk < chunks {
            copy::wait::<{ STAGES - 2 }>();
            // All threads' bytes of this chunk are there, and all warps have left the stage that the next
            // copy goes to.
            sync_threads();
            if next_visit < walk.visits {
                start(next_stage, next_tile, next_chunk);
                next_chunk += 1;
                if next_chunk == chunks {
                    (next_visit, next_chunk) = (next_visit + 1, 0);
                    next_tile = tile_after(next_tile);
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

        let mut biases = [E::Sum::NEVER; 8];
        unroll!(4, N => {
            unroll!(2, C => {
                let row = first_row + lane_column + 8 * N as u32 + C as u32;
                if row < walk.end_row {
                    biases[2 * N + C] = p.biases.get(row_vector(row) as usize);
                }
            });
        });
        // Bit 16 m + 4 n + e: value e of fragment (m, n) is below its query's bound.
        let mut below = [0u32; 2];
        unroll!(4, M => {
            unroll!(4, N => {
                unroll!(4, V => {
                    let bound = bounds[2 * M + V / 2];
                    if E::Sum::below(biases[2 * N + V % 2], p.weight, sums[4 * M + N][V], bound) {
                        below[M / 2] |= 1 << (16 * (M % 2) + 4 * N + V);
                    }
                });
            });
        });
        let mut bits = below[0] as u64 | (below[1] as u64) << 32;
        while bits != 0 {
            let bit = bits.trailing_zeros();
            bits &= bits - 1;
            let query = number + lane_row + 16 * (bit / 16) + 8 * (bit / 2 % 2);
            let row = first_row + lane_column + 8 * (bit / 4 % 4) + bit % 2;
            let slot = p.counts.fetch_add(query as usize, 1, Scope::Device);
            let mut value = E::Sum::default();
            if VALUED {
                // Constant indices: the sums stay in registers.
                unroll!(4, M => {
                    unroll!(4, N => {
                        unroll!(4, V => {
                            if bit == (16 * M + 4 * N + V) as u32 {
                                value = E::Sum::value(biases[2 * N + V % 2], p.weight, sums[4 * M + N][V]);
                            }
                        });
                    });
                });
            }
            if slot < p.capacity {
                note(query as usize * p.capacity as usize + slot as usize, row_vector(row), value);
            } else {
                p.overflow.set(0, 1);
            }
        }
        visit += 1;
        row_tile = tile_after(row_tile);
    }
}

#[inline(always)]
fn filter_all<E: TileElement>(p: &Filter<E::Sum>) {
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
    let note = |place, row, _| p.found.set(place, row);
    filter::<E, false>(&p.tiles, walk, first_query, |query| query, |row| row, note);
}

#[inline(always)]
fn filter_cell<E: TileElement>(p: &CellFilter<E::Sum>) {
    let job = p.jobs.offset(block_idx_x() as usize * JOB_WORDS);
    let (first_row, row_count) = (job.get(3), job.get(4));
    let tiles = row_count.div_ceil(tile::SIDE);
    let walk = Walk {
        first_query: job.get(0),
        query_count: job.get(2),
        first_row,
        end_row: first_row + row_count,
        first_tile: 0,
        tile_count: tiles,
        tile_step: 1,
        visits: tiles,
    };
    let vector = |member: u32| p.members.get(member as usize);
    let note = |place, row, value: E::Sum| p.found.set(place, key::pack(value.to_f32(), row));
    filter::<E, true>(&p.tiles, walk, job.get(1), vector, vector, note);
}

/// The count of a query that is given up: nothing is noted or settled for it.
pub const CLOSED: u32 = u32::MAX;

/// Threads of a block of [`exact_settle_f32()`] and its siblings, which has one query.
pub const SETTLE_THREADS: u32 = 128;

/// Bytes of dynamic shared memory of the settling kernels.
pub const fn settle_shared_bytes(capacity: u32, k: u32, dim: u32) -> u32 {
    // Keys and room to sort them, the list, the query, and a count.
    (2 * capacity + k) * 8 + dim.next_multiple_of(4) * 4 + 16
}

/// The settling of the rows that the filter noted.
#[repr(C)]
pub struct Settle<T, S> {
    /// In: vectors of `dim` components, `row_stride` components apart.
    pub rows: Global<T>,
    /// In: one vector per block, `query_stride` components apart.
    pub queries: Global<T>,
    /// In: `capacity` rows of each query.
    pub found: Global<u32>,
    /// In: of each query, rows that were to be noted, `capacity` of which are there, or [`CLOSED`]; out: 0, unless closed.
    pub counts: GlobalMut<u32>,
    /// In: with `exclude`, an id of each query that it is not to find.
    pub excluded: Global<u32>,
    /// In and out: `k` ascending keys of each query.
    pub lists: GlobalMut<Key>,
    /// Out: of each query, for the filter.
    pub bounds: GlobalMut<S>,
    /// In: of each query, as it was prepared; errors of f16 alone.
    pub norms: Global<S>,
    /// In: of each query, as it was prepared; errors of f16 alone.
    pub errors: Global<f32>,
    /// In: bits of the largest squared norm of a row, of f16 alone.
    pub largest: Global<u32>,
    /// From one row to the next: bytes for the filter, components for settling.
    pub row_stride: u32,
    /// From one query to the next: bytes for the filter, components for settling.
    pub query_stride: u32,
    /// Components per vector.
    pub dim: u32,
    /// Rows that are noted per query.
    pub capacity: u32,
    /// Length of the lists, at least 1.
    pub k: u32,
    /// The id of row 0.
    pub first_id: u32,
    /// Whether `excluded` is looked at.
    pub exclude: u32,
    /// A [`Metric`].
    pub metric: u32,
    /// The `error_limit` that the rows were prepared with.
    pub row_error: f32,
    /// What vectors were multiplied by before they were rounded; for inner products, that of the rows
    /// times that of the queries.
    pub scale: f32,
}

#[inline(always)]
fn settle<T: Element, S: TileSum>(p: &Settle<T, S>) {
    let (thread, query) = (thread_idx_x(), block_idx_x() as usize);
    let (capacity, k) = (p.capacity as usize, p.k as usize);
    let keys: Shared<Key> = shared::dynamic(0);
    let spare = keys.offset(capacity);
    let list = spare.offset(capacity);
    let point: Shared<T::Wide> = list.offset(k).cast();
    let kept: Shared<u32> = point.offset(p.dim.next_multiple_of(4) as usize).cast();
    let out = p.lists.offset(query * k);
    let metric = Metric::from_u32(p.metric);

    let count = p.counts.get(query);
    if count == CLOSED {
        return;
    }
    let count = if count < p.capacity { count } else { p.capacity };
    let mut i = thread;
    while i < p.k {
        list.set(i as usize, out.get(i as usize));
        i += SETTLE_THREADS;
    }
    let mut i = thread;
    while i < p.dim {
        point.set(i as usize, p.queries.get(query * p.query_stride as usize + i as usize).wide());
        i += SETTLE_THREADS;
    }
    if thread == 0 {
        kept.set(0, 0);
    }
    sync_threads();

    let farthest = list.get(k - 1);
    let excluded = if p.exclude != 0 { p.excluded.get(query) } else { u32::MAX };
    // A half of a warp to a row.
    let mut first = thread / 32 * 2;
    while first < count {
        let i = first + thread % 32 / 16;
        let there = i < count;
        let row = if there { p.found.get(query * capacity + i as usize) } else { 0 };
        let values = p.rows.offset(row as usize * p.row_stride as usize);
        let distance = distance(metric, point, values, if there { p.dim } else { 0 });
        let key = key::pack(distance, p.first_id + row);
        if there && thread % 16 == 0 && key < farthest && p.first_id + row != excluded {
            keys.set(kept.fetch_add(0, 1) as usize, key);
        }
        first += SETTLE_THREADS / 16;
    }
    sync_threads();

    let len = kept.get(0);
    let sorted = sort_block(keys, spare, len);
    if len > 0 {
        merge_block(list, p.k, sorted, len, out);
    }
    // What is k-th now was written by another thread of this block.
    sync_threads();
    if thread == 0 {
        p.counts.set(query, 0);
        let last = out.get(k - 1);
        let bound = if last == NONE {
            S::UNBOUNDED
        } else {
            S::bound(
                key::distance(last),
                &QueryBound {
                    metric,
                    dim: p.dim,
                    norm: p.norms.get(query),
                    error: p.errors.get(query),
                    row_error: p.row_error,
                    largest: f32::from_bits(p.largest.get(0)),
                    scale: p.scale,
                },
            )
        };
        p.bounds.set(query, bound);
    }
}

/// The merging of what the filter of cells noted.
#[repr(C)]
pub struct Merge<S> {
    /// In: `capacity` keys of each query.
    pub found: Global<Key>,
    /// In: of each query, keys that were to be noted, `capacity` of which are there; out: 0.
    pub counts: GlobalMut<u32>,
    /// In: of each query, the node that it is.
    pub nodes: Global<u32>,
    /// In and out: `k` ascending keys of each node.
    pub lists: GlobalMut<Key>,
    /// Out: of each query, for the filter.
    pub bounds: GlobalMut<S>,
    /// Keys that are noted per query.
    pub capacity: u32,
    /// Length of the lists, at least 1.
    pub k: u32,
}

#[inline(always)]
fn merge<S: TileSum>(p: &Merge<S>) {
    let (thread, query) = (thread_idx_x(), block_idx_x() as usize);
    let (capacity, k) = (p.capacity as usize, p.k as usize);
    let keys: Shared<Key> = shared::dynamic(0);
    let spare = keys.offset(capacity);
    let list = spare.offset(capacity);
    let kept: Shared<u32> = list.offset(k).cast();
    let node = p.nodes.get(query);
    let out = p.lists.offset(node as usize * k);
    let count = p.counts.get(query);
    let count = if count < p.capacity { count } else { p.capacity };
    let mut i = thread;
    while i < p.k {
        list.set(i as usize, out.get(i as usize));
        i += SETTLE_THREADS;
    }
    if thread == 0 {
        kept.set(0, 0);
    }
    sync_threads();
    let farthest = list.get(k - 1);
    let mut i = thread;
    while i < count {
        let key = p.found.get(query * capacity + i as usize);
        // Another cell may have found it before, at the same value.
        if key < farthest && key as u32 != node && list.get(rank(list, p.k, key) as usize) != key {
            keys.set(kept.fetch_add(0, 1) as usize, key);
        }
        i += SETTLE_THREADS;
    }
    sync_threads();
    let len = kept.get(0);
    let sorted = sort_block(keys, spare, len);
    if len > 0 {
        merge_block(list, p.k, sorted, len, out);
    }
    sync_threads();
    if thread == 0 {
        p.counts.set(query, 0);
        let last = out.get(k - 1);
        p.bounds.set(query, if last == NONE { S::UNBOUNDED } else { S::from_f32(key::distance(last)) });
    }
}

/// The end of a graph of cells: distances become exact.
#[repr(C)]
pub struct Finish<T> {
    /// In: vectors of `dim` components, `stride` components apart.
    pub rows: Global<T>,
    /// In and out: `k` keys of each node; out: at their exact distances, ascending.
    pub lists: GlobalMut<Key>,
    /// Components from one vector to the next.
    pub stride: u32,
    /// Components per vector.
    pub dim: u32,
    /// Length of the lists, at least 1.
    pub k: u32,
    /// A [`Metric`].
    pub metric: u32,
}

/// Bytes of dynamic shared memory of the finishing kernels.
pub const fn finish_shared_bytes(k: u32, dim: u32) -> u32 {
    2 * k * 8 + dim.next_multiple_of(4) * 4
}

#[inline(always)]
fn finish<T: Element>(p: &Finish<T>) {
    let (thread, node) = (thread_idx_x(), block_idx_x() as usize);
    let k = p.k as usize;
    let keys: Shared<Key> = shared::dynamic(0);
    let spare = keys.offset(k);
    let point: Shared<T::Wide> = spare.offset(k).cast();
    let out = p.lists.offset(node * k);
    let metric = Metric::from_u32(p.metric);
    let mut i = thread;
    while i < p.dim {
        point.set(i as usize, p.rows.get(node * p.stride as usize + i as usize).wide());
        i += SETTLE_THREADS;
    }
    sync_threads();
    let mut first = thread / 32 * 2;
    while first < p.k {
        let i = first + thread % 32 / 16;
        let old = if i < p.k { out.get(i as usize) } else { NONE };
        let there = old != NONE;
        let row = if there { old as u32 } else { 0 };
        let values = p.rows.offset(row as usize * p.stride as usize);
        let distance = distance(metric, point, values, if there { p.dim } else { 0 });
        if i < p.k && thread % 16 == 0 {
            keys.set(i as usize, if there { key::pack(distance, row) } else { NONE });
        }
        first += SETTLE_THREADS / 16;
    }
    sync_threads();
    // Empty slots come last, and stay there.
    let mut len = 0;
    while len < p.k && keys.get(len as usize) != NONE {
        len += 1;
    }
    sync_threads();
    let sorted = sort_block(keys, spare, len);
    let mut i = thread;
    while i < len {
        out.set(i as usize, sorted.get(i as usize));
        i += SETTLE_THREADS;
    }
}

macro_rules! prepare_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Rounds vectors to f16, less the mean, scaled, with norms and errors (see [`Prepare`]).
        ///
        /// Launch: a block of [`PREPARE_THREADS`] per [`PREPARE_VECTORS`] vectors; no shared memory.
        ///
        /// # Safety
        /// - The views hold what [`Prepare`] says.
        #[kernel(block = PREPARE_THREADS)]
        pub unsafe fn $name(p: Prepare<$type>) {
            prepare(&p);
        }
    )*};
}

prepare_kernels! {
    exact_prepare_f32 f32;
    exact_prepare_f16 f16;
}

macro_rules! norm_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Squared norms of vectors of bytes (see [`Norms`]).
        ///
        /// Launch: a block of [`PREPARE_THREADS`] per [`PREPARE_VECTORS`] vectors; no shared memory.
        ///
        /// # Safety
        /// - The views hold what [`Norms`] says.
        #[kernel(block = PREPARE_THREADS)]
        pub unsafe fn $name(p: Norms<$type>) {
            norms(&p);
        }
    )*};
}

norm_kernels! {
    exact_norms_u8 u8;
    exact_norms_i8 i8;
}

macro_rules! filter_kernels {
    ($($name:ident $cell_name:ident $element:ty, $sum:ty;)*) => {$(
        /// Notes the rows of a range whose distance may be below the query's bound (see [`Filter`]).
        /// The order in which they are noted is that of the hardware.
        ///
        /// Launch: grid x: a block per [`tile::SIDE`] queries; grid y: one per `positions_per_block` of
        /// the `position_count` tiles of rows; [`tile::THREADS`] threads; [`filter_shared_bytes`].
        ///
        /// # Safety
        /// - The views hold what [`Filter`] says.
        #[kernel(block = tile::THREADS, shared = filter_shared_bytes(p.tiles.units), blocks_per_multiprocessor = 2)]
        pub unsafe fn $name(p: Filter<$sum>) {
            filter_all::<$element>(&p);
        }

        /// Notes, for members of cells, the members of their cell whose distance may be below their bound
        /// (see [`CellFilter`]), the node itself among them.
        ///
        /// Launch: a block of [`tile::THREADS`] per job; [`filter_shared_bytes`].
        ///
        /// # Safety
        /// - The views hold what [`CellFilter`] says.
        #[kernel(block = tile::THREADS, shared = filter_shared_bytes(p.tiles.units), blocks_per_multiprocessor = 2)]
        pub unsafe fn $cell_name(p: CellFilter<$sum>) {
            filter_cell::<$element>(&p);
        }
    )*};
}

filter_kernels! {
    exact_filter_f16 cells_filter_f16 f16, f32;
    exact_filter_u8 cells_filter_u8 u8, i32;
    exact_filter_i8 cells_filter_i8 i8, i32;
}

macro_rules! settle_kernels {
    ($($name:ident $type:ty, $sum:ty;)*) => {$(
        /// Merges the noted rows into the lists of the nearest, and tightens the bounds (see
        /// [`Settle`]). The result depends on what was noted, not on its order.
        ///
        /// Launch: a block of [`SETTLE_THREADS`] per query; [`settle_shared_bytes`].
        ///
        /// # Safety
        /// - The views hold what [`Settle`] says.
        #[kernel(block = SETTLE_THREADS, shared = settle_shared_bytes(p.capacity, p.k, p.dim))]
        pub unsafe fn $name(p: Settle<$type, $sum>) {
            settle(&p);
        }
    )*};
}

settle_kernels! {
    exact_settle_f32 f32, f32;
    exact_settle_f16 f16, f32;
    exact_settle_u8 u8, i32;
    exact_settle_i8 i8, i32;
}

macro_rules! merge_kernels {
    ($($name:ident $sum:ty;)*) => {$(
        /// Merges what the filter of cells noted into the lists, and tightens the bounds (see [`Merge`]).
        ///
        /// Launch: a block of [`SETTLE_THREADS`] per query; [`settle_shared_bytes`] of dimension 0.
        ///
        /// # Safety
        /// - The views hold what [`Merge`] says.
        #[kernel(block = SETTLE_THREADS, shared = settle_shared_bytes(p.capacity, p.k, 0))]
        pub unsafe fn $name(p: Merge<$sum>) {
            merge(&p);
        }
    )*};
}

merge_kernels! {
    cells_merge_f32 f32;
    cells_merge_i32 i32;
}

macro_rules! finish_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Computes the exact distances of the lists, and sorts them (see [`Finish`]).
        ///
        /// Launch: a block of [`SETTLE_THREADS`] per node; [`finish_shared_bytes`].
        ///
        /// # Safety
        /// - The views hold what [`Finish`] says.
        #[kernel(block = SETTLE_THREADS, shared = finish_shared_bytes(p.k, p.dim))]
        pub unsafe fn $name(p: Finish<$type>) {
            finish(&p);
        }
    )*};
}

finish_kernels! {
    cells_finish_f32 f32;
    cells_finish_f16 f16;
    cells_finish_u8 u8;
    cells_finish_i8 i8;
}
