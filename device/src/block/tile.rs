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

/// Starts copies of `chunks` chunks of 128 vectors from number `first` on to `to`, one after another: `source` says
/// which vector a line has; lines that have none, and units from `units` on, are zero. The whole block calls this.
#[inline(always)]
pub fn start_copy(
    to: Shared<u8>,
    vectors: Global<u8>,
    stride: u32,
    (first, chunks): (u32, u32),
    units: u32,
    source: &impl Fn(u32) -> Option<u32>,
) {
    let thread = thread::thread_idx_x();
    let (line, unit) = (thread / UNITS, thread % UNITS);
    // All sources first: copies that follow one another need not wait for reads of shared memory.
    let (mut from, mut there) = ([vectors; 4], [false; 4]);
    unroll!(4, I => {
        let vector = source(line + 32 * I as u32);
        there[I] = vector.is_some();
        from[I] = vectors.offset(vector.unwrap_or(0) as usize * stride as usize);
    });
    let place = to.offset((line * CHUNK_BYTES + (unit ^ (line % 8)) * 16) as usize);
    let mut chunk = 0;
    while chunk < chunks {
        let source_unit = (first + chunk) * UNITS + unit;
        let is_part = source_unit < units;
        let (begin, place) =
            (if is_part { source_unit * 16 } else { 0 }, place.offset((chunk * SIDE_BYTES) as usize));
        unroll!(4, I => {
            let bytes = if there[I] && is_part { 16 } else { 0 };
            copy::quad(place.offset(32 * I * CHUNK_BYTES as usize), from[I].offset(begin as usize), bytes);
        });
        chunk += 1;
    }
}

/// Which part of the tile a warp computes: its first row and its first column.
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
