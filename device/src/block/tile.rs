//! Tiles of dot products on tensor cores: 128 queries against 128 rows, by a block of 8 warps.
//!
//! Vectors are taken in chunks of 128 bytes, 8 units of 16. In shared memory a chunk of 128 vectors is
//! 128 lines of 8 units; unit `u` of line `r` lies at place `u ^ (r % 8)`, so that the 8 lines that
//! `ldmatrix` reads together lie in different banks.

use cuda_std::prelude::*;
use cuda_std::{copy, tensor};

/// Vectors of a side of a tile.
pub const SIDE: u32 = 128;

/// Threads of the block: 8 warps, of which each computes 64 x 32 products.
pub const THREADS: u32 = 256;

/// Bytes of a vector that are taken at once.
pub const CHUNK_BYTES: u32 = 128;

/// Units of 16 bytes in a chunk.
pub const UNITS: u32 = CHUNK_BYTES / 16;

/// Bytes of a chunk of 128 vectors in shared memory.
pub const SIDE_BYTES: u32 = SIDE * CHUNK_BYTES;

/// The products of a warp: `[4 * m + n]` is the fragment of rows `16 m..` and columns `8 n..` of its
/// part of the tile.
pub type Sums<S> = [[S; 4]; 16];

/// Starts copies of a chunk or two, as many as `chunks` says, from number `first` on, of the vectors of four lines for
/// each of the calling threads, of which eight that follow one another copy a line: this and those `step` and more
/// behind. `source` says which vector a line has; lines that have none are zero. The chunks go to `to`, each of 128
/// lines, one after another; units from `units` on are set to zero if `tail` says so.
#[inline(always)]
pub fn start_copy_of(
    (line, step): (u32, u32),
    to: Shared<u8>,
    (vectors, stride): (Global<u8>, u32),
    (first, chunks): (u32, u32),
    (units, tail): (u32, bool),
    source: &impl Fn(u32) -> Option<u32>,
) {
    let unit = thread::thread_idx_x() % UNITS;
    let source_unit = first * UNITS + unit;
    let begin = vectors.offset(source_unit as usize * 16);
    // All sources first: copies that follow one another need not wait for reads of shared memory.
    let (mut from, mut bytes) = ([begin; 4], [0; 4]);
    unroll!(4, I => {
        // Nothing is read where no vector is.
        let vector = source(line + step * I as u32);
        bytes[I] = if vector.is_some() { 16 } else { 0 };
        from[I] = begin.offset(vector.unwrap_or(u32::MAX) as usize * stride as usize);
    });
    let place = to.offset((line * CHUNK_BYTES + (unit ^ (line % 8)) * 16) as usize);
    unroll!(2, C => {
        let place = |i: usize| place.offset(C * SIDE_BYTES as usize + i * (step * CHUNK_BYTES) as usize);
        if (C as u32) < chunks {
            if source_unit + C as u32 * UNITS < units {
                unroll!(4, I => copy::quad(place(I), from[I].offset(C * CHUNK_BYTES as usize), bytes[I]));
            } else if tail {
                unroll!(4, I => copy::quad(place(I), vectors, 0));
            }
        }
    });
}

/// Starts copies of chunk `chunk` of 128 vectors to `to`: `source` says which vector a line has; lines
/// that have none, and units from `units` on, are zero. The whole block calls this.
#[inline(always)]
pub fn start_copy(
    to: Shared<u8>,
    vectors: Global<u8>,
    stride: u32,
    chunk: u32,
    units: u32,
    source: &impl Fn(u32) -> Option<u32>,
) {
    let lines = (thread::thread_idx_x() / UNITS, THREADS / UNITS);
    start_copy_of(lines, to, (vectors, stride), (chunk, 1), (units, true), source);
}

/// Which part of the tile a warp computes: its first row and its first column. Two warps that follow one another have
/// the same columns.
#[inline(always)]
pub fn part_of_warp() -> (u32, u32) {
    let warp = thread::warp_idx();
    (64 * (warp % 2), 32 * (warp / 2))
}

/// Adds the products of a chunk of rows and a chunk of columns to the warp's sums; of the chunk, only
/// the first `steps` times 32 bytes, at most 4. The whole block calls this, after a barrier.
#[inline(always)]
pub fn multiply_add<E: tensor::Element>(
    sums: &mut Sums<E::Sum>,
    rows: Shared<u8>,
    columns: Shared<u8>,
    steps: u32,
) {
    multiply_add_part::<E, 4>(sums, (rows, columns), part_of_warp(), steps);
}

/// As [`multiply_add`], of the `16 * FRAGMENTS` rows, up to 64, and the 32 columns that begin at these; the whole
/// warp calls this.
#[inline(always)]
pub fn multiply_add_part<E: tensor::Element, const FRAGMENTS: usize>(
    sums: &mut Sums<E::Sum>,
    (rows, columns): (Shared<u8>, Shared<u8>),
    (row, column): (u32, u32),
    steps: u32,
) {
    let lane = warp::lane_id();
    // Lane l gives the address of line l % 16, unit l / 16 of the rows' four matrices, and of line
    // l % 8 + 8 (l / 16), unit (l / 8) % 2 of the columns'.
    let row_line = rows.offset(((row + lane % 16) * CHUNK_BYTES) as usize);
    let column_line = columns.offset(((column + lane % 8 + 8 * (lane / 16)) * CHUNK_BYTES) as usize);
    let mut step = 0;
    while step < steps {
        let row_place = ((2 * step + lane / 16) ^ (lane % 8)) * 16;
        let column_place = ((2 * step + lane / 8 % 2) ^ (lane % 8)) * 16;
        let mut b = [[0u32; 4]; 2];
        unroll!(2, N => {
            let place = column_place + N as u32 * 16 * CHUNK_BYTES;
            b[N] = tensor::load_matrices(column_line.offset(place as usize));
        });
        unroll!(4, M => {
            if M < FRAGMENTS {
                let place = row_place + M as u32 * 16 * CHUNK_BYTES;
                let a = tensor::load_matrices(row_line.offset(place as usize));
                unroll!(4, N => {
                    E::multiply_add(&mut sums[4 * M + N], a, [b[N / 2][N % 2 * 2], b[N / 2][N % 2 * 2 + 1]]);
                });
            }
        });
        step += 1;
    }
}
