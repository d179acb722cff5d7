//! The filter: which rows may be among the nearest of which query.

use cuda_std::atomic::Scope;
use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, block_idx_y, sync_threads, thread_idx_x};
use cuda_std::warp::{FULL, warp_shuffle_idx, warp_shuffle_up};
use cuda_std::{copy, shared};

use crate::block::copied;
use crate::block::element::{TileElement, TileSum};
use crate::block::tile;
use crate::descent::key::{self, Key};

/// Chunks of a query tile that stay in shared memory while rows pass by; longer vectors pass with
/// the rows.
const RESIDENT_CHUNKS: u32 = 2;

/// Chunks that are on their way or in use.
const STAGES: u32 = 3;

/// Bytes of dynamic shared memory of the filter for vectors of `units` units of 16 bytes.
pub const fn filter_shared_bytes(units: u32) -> u32 {
    let chunks = units.div_ceil(tile::UNITS);
    let queries = if chunks <= RESIDENT_CHUNKS { chunks } else { STAGES };
    // Of each row of a tile, its vector and its bias.
    (queries + STAGES) * tile::SIDE_BYTES + tile::SIDE * 8
}

/// Bytes of dynamic shared memory of the filter of cells.
pub const fn cell_filter_shared_bytes(units: u32) -> u32 {
    filter_shared_bytes(units) + NOTED_BYTES
}

/// Warps that compare a query of a tile with rows, each with its own quarter of the rows of a tile.
pub const PARTS: u32 = 4;

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

/// The filter of a range of all rows for all queries.
///
/// The tiles of 128 rows are visited in the order `(position * tile_step) % tile_count`, which mixes
/// data that lie sorted; `tile_step` is at most `tile_count` and has no divisor in common with it.
#[repr(C)]
pub struct Filter<S> {
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

/// The filter of some members of cells for other members of their cell: a job per block.
#[repr(C)]
pub struct CellFilter<S> {
    /// What is compared; queries and rows are the same vectors.
    pub tiles: Tiles<S>,
    /// In: one of each vector.
    pub bounds: Global<S>,
    /// In: the vectors of all cells' members, cell by cell.
    pub members: Global<u32>,
    /// In: a [`Job`] of each block.
    pub jobs: Global<u32>,
    /// Out: [`PARTS`] of each line of the blocks' query tiles, of which a block has [`tile::SIDE`]: keys noted, or
    /// a number above `part_capacity` if there was no room for some.
    pub counts: GlobalMut<u32>,
    /// Out: `part_capacity` keys of each part of each line: the vector of a row, at its distance as the tensor
    /// cores compute it, less the query's norm.
    pub found: GlobalMut<Key>,
    /// Keys that are noted per part, below 2^16 - 1; of all lines, below 2^32.
    pub part_capacity: u32,
    /// Nothing.
    pub padding: u32,
}

/// A job of [`CellFilter`]: up to 128 queries against any number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Job {
    /// The first query among the members; they follow one another.
    pub first_query: u32,
    /// How many queries, at most [`tile::SIDE`].
    pub query_count: u32,
    /// The first row among the members.
    pub first_row: u32,
    /// How many rows.
    pub row_count: u32,
    /// The place in the list, once what this job notes is merged, whose distance is the bound from then on: the
    /// last, or a nearer one where enough nearer ones are sure to follow.
    pub bound_place: u32,
}

/// Words of a [`Job`].
pub const JOB_WORDS: usize = size_of::<Job>() / 4;

impl Job {
    /// The job number `index`.
    #[inline(always)]
    pub fn read(jobs: Global<u32>, index: u32) -> Self {
        let job = jobs.offset(index as usize * JOB_WORDS);
        Self {
            first_query: job.get(0),
            query_count: job.get(1),
            first_row: job.get(2),
            row_count: job.get(3),
            bound_place: job.get(4),
        }
    }
}

copied! {
    Tiles<S>;
    Filter<S>;
    CellFilter<S>;
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

/// What becomes of the rows that are below the bounds of a tile's queries, which `bounds` holds for this lane: of
/// the queries `line + 8 r` of the tile.
trait Epilogue<S> {
    /// Called by all lanes of a warp with the products of a tile of rows. `column` is the first column of this
    /// lane, of which it has `column + 8 n + c`; of each column of the tile the biases and vectors are in
    /// shared memory.
    fn tile(&mut self, sums: &tile::Sums<S>, bounds: &[S; 8], line: u32, column: u32, of_tile: Columns<S>);
}

/// Where the eight columns of a lane are, from its first on.
#[inline(always)]
const fn column_of(index: usize) -> u32 {
    (8 * (index / 2) + index % 2) as u32
}

/// How many bits of each byte are set.
#[inline(always)]
const fn ones_of_bytes(word: u32) -> u32 {
    let twos = word - (word >> 1 & 0x5555_5555);
    let fours = (twos & 0x3333_3333) + (twos >> 2 & 0x3333_3333);
    (fours + (fours >> 4)) & 0x0f0f_0f0f
}

/// Of each row of a tile, its bias and its vector.
#[derive(Clone, Copy)]
struct Columns<S> {
    biases: Shared<S>,
    vectors: Shared<u32>,
}

impl<S: Plain> Columns<S> {
    /// The biases of a lane's eight columns.
    #[inline(always)]
    fn biases(&self, column: u32) -> [S; 8]
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
fn filter<E: TileElement>(
    p: &Tiles<E::Sum>,
    walk: Walk,
    query_vector: impl Fn(u32) -> u32,
    row_vector: impl Fn(u32) -> u32,
    bound: impl Fn(u32) -> E::Sum,
    epilogue: &mut impl Epilogue<E::Sum>,
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
    let biases: Shared<E::Sum> = rows(STAGES).cast();
    let columns = Columns { biases, vectors: biases.offset(tile::SIDE as usize).cast() };
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
        // Half of the threads fetch a row's bias each, which is there when the products are.
        let line = thread_idx_x();
        let row = walk.first_row + row_tile * tile::SIDE + line;
        let (mut vector, mut bias) = (0, E::Sum::NEVER);
        if line < tile::SIDE && row < walk.end_row {
            vector = row_vector(row);
            bias = p.biases.get(vector as usize);
        }
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

        // The barriers above stand between this and the last tile's epilogue.
        if line < tile::SIDE {
            columns.biases.set(line as usize, bias);
            columns.vectors.set(line as usize, vector);
        }
        sync_threads();
        epilogue.tile(&sums, &bounds, lane_row, lane_column, columns);
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
    let bound = |line: u32| p.bounds.get((first_query + line) as usize);
    filter::<E>(&p.tiles, walk, |query| query, |row| row, bound, &mut NoteRows { p, first_query });
}

/// Notes rows of the queries from `first_query` on, of which other blocks may note rows too.
struct NoteRows<'a, S> {
    p: &'a Filter<S>,
    first_query: u32,
}

impl<S: TileSum> Epilogue<S> for NoteRows<'_, S> {
    #[inline(always)]
    fn tile(&mut self, sums: &tile::Sums<S>, bounds: &[S; 8], line: u32, column: u32, of_tile: Columns<S>) {
        let p = self.p;
        let biases = of_tile.biases(column);
        // Few are below: bit 16 m + 4 n + v says that value v of fragment (m, n) is.
        let mut below = [0u32; 2];
        unroll!(4, M => {
            unroll!(4, N => {
                unroll!(4, V => {
                    if S::below(biases[2 * N + V % 2], p.tiles.weight, sums[4 * M + N][V], bounds[2 * M + V / 2]) {
                        below[M / 2] |= 1 << (16 * (M % 2) + 4 * N + V);
                    }
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

/// Notes keys of lines that are of this block alone. Each of the [`PARTS`] warps that share a line has its own part
/// of the line's room, so that nobody waits for anybody.
struct NoteKeys<S> {
    found: GlobalMut<Key>,
    /// The first place of this warp's part of line 0 of the block.
    first_place: u32,
    part_capacity: u32,
    weight: S,
    /// Keys noted of each of the eight lines that four lanes of the warp share, two lines to a word.
    noted: Shared<u32>,
}

/// Bytes of the counts that [`NoteKeys`] keeps in shared memory: 16 for each four lanes.
const NOTED_BYTES: u32 = tile::THREADS / 4 * 16;

impl<S: TileSum> Epilogue<S> for NoteKeys<S> {
    #[inline(always)]
    fn tile(&mut self, sums: &tile::Sums<S>, bounds: &[S; 8], line: u32, column: u32, of_tile: Columns<S>) {
        let place_of = |c: usize| (column + column_of(c)) as usize;
        let bias = |c: usize| of_tile.biases.get(place_of(c));
        let product = |r: usize, c: usize| sums[4 * (r / 2) + c / 2][2 * (r % 2) + c % 2];
        // Bit 8 (r % 4) + c of word r / 4: column c is below the bound of line r.
        let mut below = [0u32; 2];
        unroll!(8, C => {
            let bias = bias(C);
            unroll!(8, R => {
                if S::value(bias, self.weight, product(R, C)) < bounds[R] {
                    below[R / 4] |= 1 << (8 * (R % 4) + C);
                }
            });
        });
        if !warp::any(below[0] | below[1] != 0) {
            return;
        }
        // How many of each line, four lines to a word: at most 8, and of four lanes at most 32. Those of this lane
        // and the lanes before it, and of all four.
        let (mut until, mut all) = ([0u32; 2], [0u32; 2]);
        unroll!(2, W => {
            until[W] = ones_of_bytes(below[W]);
            // SAFETY: the whole warp is here.
            unsafe {
                let (one, there) = warp_shuffle_up(FULL, until[W], 1, 4);
                until[W] += if there { one } else { 0 };
                let (two, there) = warp_shuffle_up(FULL, until[W], 2, 4);
                until[W] += if there { two } else { 0 };
                all[W] = warp_shuffle_idx(FULL, until[W], 3, 4).0;
            }
        });
        let mut noted = self.noted.get_quad(0).0;
        unroll!(8, R => {
            let of_row = |word: u32| word >> (8 * (R % 4)) & 0xff;
            let before = noted[R / 2] >> (16 * (R % 2)) & 0xffff;
            let hits = of_row(below[R / 4]);
            if hits != 0 {
                let first = self.first_place + (line + 8 * R as u32) * PARTS * self.part_capacity;
                let own = before + of_row(until[R / 4]) - hits.count_ones();
                unroll!(8, C => {
                    if hits >> C & 1 == 1 {
                        let place = own + (hits & ((1 << C) - 1)).count_ones();
                        if place < self.part_capacity {
                            let value = S::value(bias(C), self.weight, product(R, C));
                            let vector = of_tile.vectors.get(place_of(C));
                            self.found.set((first + place) as usize, key::pack(value.to_f32(), vector));
                        }
                    }
                });
            }
            // One more than there is room for says enough.
            let sum = before + of_row(all[R / 4]);
            let sum = if sum > self.part_capacity { self.part_capacity + 1 } else { sum };
            noted[R / 2] = noted[R / 2] & !(0xffff << (16 * (R % 2))) | sum << (16 * (R % 2));
        });
        warp::sync();
        if warp::lane_id() % 4 == 0 {
            self.noted.set_quad(0, Quad(noted));
        }
    }
}

#[inline(always)]
fn filter_cell<E: TileElement>(p: &CellFilter<E::Sum>) {
    let job = Job::read(p.jobs, block_idx_x());
    let tiles = job.row_count.div_ceil(tile::SIDE);
    let walk = Walk {
        first_query: job.first_query,
        query_count: job.query_count,
        first_row: job.first_row,
        end_row: job.first_row + job.row_count,
        first_tile: 0,
        tile_count: tiles,
        tile_step: 1,
        visits: tiles,
    };
    let vector = |member: u32| p.members.get(member as usize);
    let bound = |line: u32| p.bounds.get(vector(job.first_query + line) as usize);
    let (first_row, first_column) = tile::part_of_warp();
    let (part, lane) = (first_column / 32, warp::lane_id());
    let first_line = block_idx_x() * tile::SIDE;
    let mut epilogue = NoteKeys {
        found: p.found,
        first_place: (first_line * PARTS + part) * p.part_capacity,
        part_capacity: p.part_capacity,
        weight: p.tiles.weight,
        noted: shared::dynamic(filter_shared_bytes(p.tiles.units) as usize)
            .offset(thread_idx_x() as usize / 4 * 4),
    };
    if lane % 4 == 0 {
        epilogue.noted.set_quad(0, Quad([0; 4]));
    }
    warp::sync();
    filter::<E>(&p.tiles, walk, vector, vector, bound, &mut epilogue);
    if lane % 4 == 0 {
        unroll!(8, R => {
            let line = first_line + first_row + lane / 4 + 8 * R as u32;
            let noted = epilogue.noted.get(R / 2) >> (16 * (R % 2)) & 0xffff;
            p.counts.set((line * PARTS + part) as usize, noted);
        });
    }
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

        /// Notes, for members of cells, the members of their cell whose distance is below their bound
        /// (see [`CellFilter`]), the node itself among them.
        ///
        /// Launch: a block of [`tile::THREADS`] per job; [`cell_filter_shared_bytes`].
        ///
        /// # Safety
        /// - The views hold what [`CellFilter`] says.
        #[kernel(block = tile::THREADS, shared = cell_filter_shared_bytes(p.tiles.units), blocks_per_multiprocessor = 2)]
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
