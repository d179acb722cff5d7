//! Tiles of dot products on tensor cores: 128 queries against 128 rows, by a block of 8 warps.
//!
//! ```text
//! for each chunk of 128 bytes: copy 128 lines of each side to shared memory
//! for each 32 bytes of the chunk:
//!     a = ldmatrix(64 lines of queries), b = ldmatrix(32 lines of rows)
//!     sums[16 fragments of 16 x 8] += mma(a, b)
//! ```
//!
//! A chunk in shared memory: 128 lines x 8 units x 16 bytes. Sums of a lane: 16 fragments x 4.
//!
//! Optimisations:
//!
//! 1. Unit `u` of line `r` lies at place `u ^ (r % 8)`. The 8 lines that `ldmatrix` reads together
//!    then lie in different banks.
//! 2. Copies read all sources of a thread before the first one starts, so that they do not wait for
//!    reads of shared memory in between.
//!
//! Bound by `mma.sync` and `ldmatrix`: 16 products and 6 loads of matrices per step of 32 bytes.

use cuda_std::prelude::*;
use cuda_std::{copy, tensor};

/// Lines of a side of a tile.
pub const SIDE: u32 = 128;

/// Threads of the block: 8 warps, each with 64 x 32 products.
pub const THREADS: u32 = 256;

/// Bytes of a vector in a chunk.
pub const CHUNK_BYTES: u32 = 128;

/// Units of 16 bytes in a chunk.
pub const UNITS: u32 = CHUNK_BYTES / 16;

/// Bytes of a chunk of 128 vectors in shared memory.
pub const SIDE_BYTES: u32 = SIDE * CHUNK_BYTES;

/// Products of a lane. `[4 * m + n]` is its part of the fragment of rows `16 m..` and columns `8
/// n..` in the warp's part of the tile.
pub type Sums<S> = [[S; 4]; 16];

/// Steps of 32 bytes in a whole chunk.
pub const STEPS: u32 = UNITS / 2;

/// Steps of 32 bytes in a chunk, of a vector with `units` units from this chunk on.
#[inline(always)]
pub const fn steps(units: u32) -> u32 {
    if units < UNITS { units.div_ceil(2) } else { STEPS }
}

/// Vectors in global memory.
#[derive(Clone, Copy)]
pub struct Vectors {
    /// The first vector.
    pub first: Global<u8>,
    /// Bytes from one vector to the next.
    pub stride: u32,
}

/// The four lines that a thread copies. Eight consecutive threads have the same ones.
#[derive(Clone, Copy)]
pub struct CopiedLines {
    /// The first line.
    pub first: u32,
    /// Lines from one to the next.
    pub step: u32,
}

/// One chunk of vectors, or two consecutive ones.
#[derive(Clone, Copy)]
pub struct CopiedChunks {
    /// The first chunk.
    pub first: u32,
    /// Number of chunks: 1 or 2.
    pub count: u32,
    /// Units per vector.
    pub units: u32,
    /// Whether units from `units` on become zero; else they keep what they hold.
    pub zero_tail: bool,
}

/// Starts copies of four lines per calling thread. `source` gives the vector of a line; a line
/// without a vector becomes zero. The chunks go to `to`, one after another.
#[inline(always)]
pub fn start_copy_of(
    to: Shared<u8>,
    vectors: Vectors,
    lines: CopiedLines,
    chunks: CopiedChunks,
    source: &impl Fn(u32) -> Option<u32>,
) {
    let (line, step, units) = (lines.first, lines.step, chunks.units);
    let unit = thread::thread_idx_x() % UNITS;
    let source_unit = chunks.first * UNITS + unit;
    let begin = vectors.first.offset(source_unit as usize * 16);
    // Optimisation 2.
    let (mut from, mut bytes) = ([begin; 4], [0; 4]);
    unroll!(4, I => {
        // A copy of 0 bytes reads nothing.
        let vector = source(line + step * I as u32);
        bytes[I] = if vector.is_some() { 16 } else { 0 };
        from[I] = begin.offset(vector.unwrap_or(u32::MAX) as usize * vectors.stride as usize);
    });
    let place = to.offset((line * CHUNK_BYTES + (unit ^ (line % 8)) * 16) as usize);
    unroll!(2, C => {
        let place = |i: usize| place.offset(C * SIDE_BYTES as usize + i * (step * CHUNK_BYTES) as usize);
        if (C as u32) < chunks.count {
            if source_unit + C as u32 * UNITS < units {
                unroll!(4, I => copy::quad(place(I), from[I].offset(C * CHUNK_BYTES as usize), bytes[I]));
            } else if chunks.zero_tail {
                unroll!(4, I => copy::quad(place(I), vectors.first, 0));
            }
        }
    });
}

/// Starts copies of chunk `chunk` of 128 vectors to `to`. `source` gives the vector of a line.
/// Lines without a vector, and units from `units` on, become zero. The whole block calls this.
#[inline(always)]
pub fn start_copy(
    to: Shared<u8>,
    vectors: Vectors,
    chunk: u32,
    units: u32,
    source: &impl Fn(u32) -> Option<u32>,
) {
    let lines = CopiedLines { first: thread::thread_idx_x() / UNITS, step: THREADS / UNITS };
    let chunks = CopiedChunks { first: chunk, count: 1, units, zero_tail: true };
    start_copy_of(to, vectors, lines, chunks, source);
}

/// The first row and the first column of a warp's part of the tile. Warps `2 i` and `2 i + 1` have
/// the same columns.
#[inline(always)]
pub fn part_of_warp() -> (u32, u32) {
    let warp = thread::warp_idx();
    (64 * (warp % 2), 32 * (warp / 2))
}

/// Adds the products of a chunk of rows and a chunk of columns to the warp's sums, over the first
/// `steps` times 32 bytes, at most 4. The whole block calls this, after a barrier.
#[inline(always)]
pub fn multiply_add<E: tensor::Element>(
    sums: &mut Sums<E::Sum>,
    rows: Shared<u8>,
    columns: Shared<u8>,
    steps: u32,
) {
    let (row, column) = part_of_warp();
    multiply_add_part::<E, 4>(sums, rows, columns, row, column, steps);
}

/// Does the same as [`multiply_add`] for all [`STEPS`] of whole chunks, without a loop.
#[inline(always)]
pub fn multiply_add_whole<E: tensor::Element>(
    sums: &mut Sums<E::Sum>,
    rows: Shared<u8>,
    columns: Shared<u8>,
) {
    let (row, column) = part_of_warp();
    let lines = FragmentLines::of_lane(rows, columns, row, column);
    unroll!(4, STEP => lines.multiply_add::<E, 4>(sums, STEP as u32));
}

/// Does the same as [`multiply_add`] for `16 * FRAGMENTS` rows, up to 64, and 32 columns, from
/// `row` and `column` on. The whole warp calls this.
#[inline(always)]
pub fn multiply_add_part<E: tensor::Element, const FRAGMENTS: usize>(
    sums: &mut Sums<E::Sum>,
    rows: Shared<u8>,
    columns: Shared<u8>,
    row: u32,
    column: u32,
    steps: u32,
) {
    let lines = FragmentLines::of_lane(rows, columns, row, column);
    let mut step = 0;
    while step < steps {
        lines.multiply_add::<E, FRAGMENTS>(sums, step);
        step += 1;
    }
}

/// The lines of a lane in the fragments of rows and columns.
struct FragmentLines {
    rows: Shared<u8>,
    columns: Shared<u8>,
}

impl FragmentLines {
    /// Lane l addresses line l % 16, unit l / 16 of the rows' four matrices, and line
    /// l % 8 + 8 (l / 16), unit (l / 8) % 2 of the columns'.
    #[inline(always)]
    fn of_lane(rows: Shared<u8>, columns: Shared<u8>, row: u32, column: u32) -> Self {
        let lane = warp::lane_id();
        Self {
            rows: rows.offset(((row + lane % 16) * CHUNK_BYTES) as usize),
            columns: columns.offset(((column + lane % 8 + 8 * (lane / 16)) * CHUNK_BYTES) as usize),
        }
    }

    /// Adds the products of 32 bytes of `16 * FRAGMENTS` rows and 32 columns.
    #[inline(always)]
    fn multiply_add<E: tensor::Element, const FRAGMENTS: usize>(&self, sums: &mut Sums<E::Sum>, step: u32) {
        let lane = warp::lane_id();
        let row_place = ((2 * step + lane / 16) ^ (lane % 8)) * 16;
        let column_place = ((2 * step + lane / 8 % 2) ^ (lane % 8)) * 16;
        let mut b = [[0u32; 4]; 2];
        unroll!(2, N => {
            let place = column_place + N as u32 * 16 * CHUNK_BYTES;
            b[N] = tensor::load_matrices(self.columns.offset(place as usize));
        });
        unroll!(4, M => {
            if M < FRAGMENTS {
                let place = row_place + M as u32 * 16 * CHUNK_BYTES;
                let a = tensor::load_matrices(self.rows.offset(place as usize));
                unroll!(4, N => {
                    E::multiply_add(&mut sums[4 * M + N], a, [b[N / 2][N % 2 * 2], b[N / 2][N % 2 * 2 + 1]]);
                });
            }
        });
    }
}
