//! Products of all pairs of a node's candidates, on tensor cores.
//!
//! # Algorithm
//!
//! ```text
//! for each chunk of 64 components:
//!     load the rows' next chunk to registers
//!     each warp w, row of 16 candidates w, for columns w, w + 1, ... modulo the rows of tiles:
//!         sums += mma(ldmatrix(row), ldmatrix(column))
//!     differences of the next chunk, rounded, to shared memory
//! write the products of each pair
//! ```
//!
//! A difference is a sum of two halves: the second is what rounding to the first lost. A chunk has
//! a line of 128 bytes for the first halves of a candidate, and after all of these one for the
//! second halves. Unit `u` of line `r` lies at place `u ^ (r % 8)`, as in `block::tile`.
//!
//! # Optimisations
//!
//! 1. Of `n` rows of tiles, each warp has a row and the `n / 2 + 1` columns from the diagonal on,
//!    around the end: each pair of rows once, with as many tiles in each warp.
//! 2. Rows are on their way to registers while the tensor cores multiply.
//! 3. Products are summed for 16 components at a time, so that sums lose little.

use cuda_std::float16::f16x2;
use cuda_std::memory::Quad;
use cuda_std::prelude::*;
use cuda_std::{float, float16, keep_rolled, tensor};

use super::{GRAM_THREADS, LINES, Lines};
use crate::block::tile::{CHUNK_BYTES, UNITS, steps};

/// Candidates on a side of a tile.
const TILE: u32 = 16;

/// Products of 16 × 16 candidates. `[h]` is the lane's part of columns `8 h..`.
type Tile = [[f32; 4]; 2];

/// Components of a chunk.
const WIDTH: u32 = CHUNK_BYTES / 2;

/// Threads that load a line of a chunk, four components each.
const LANES: u32 = WIDTH / 4;

/// Lines of a chunk that a thread loads.
const LOADS: usize = (LINES * LANES / GRAM_THREADS) as usize;

/// Maximum number of tiles of a warp: of an odd number of rows of tiles, those from the diagonal
/// on, around.
const TILES: usize = (LINES / TILE / 2 + 1) as usize;

/// Bytes of two chunks of `lines` candidates.
pub(super) const fn chunk_bytes(lines: u32) -> u32 {
    4 * CHUNK_BYTES * lines.next_multiple_of(TILE)
}

/// A bound of the relative error of products, and of the CPU's sums, with a margin: tensor cores
/// lose up to 8 units of 2^-23 of the largest addend in each of three products of 16 components,
/// adding these loses 2^-24, and products of two second halves, at most 2^-22, are left out.
#[inline(always)]
pub(super) fn drift(dim: u32) -> f32 {
    (dim / 32 + 32) as f32 * (1.0 / (1u32 << 22) as f32)
}

/// The part of a chunk that a thread loads: four components of some of the lines.
struct Loaded {
    rows: [Quad; LOADS],
    node: Quad,
}

impl Lines<'_> {
    /// Computes the products, norms and errors of the candidates. The whole block calls this after
    /// a barrier, and a barrier ends it.
    #[inline(always)]
    pub(super) fn multiply(&self) {
        let chunks = self.p.rows.dim.div_ceil(WIDTH);
        let mut sums: [Tile; TILES] = [[[0.0; 4]; 2]; TILES];
        let mut errors = [0.0; LOADS];
        let mut chunk = 0;
        let loaded = self.load(0);
        self.round(0, &loaded, &mut errors);
        while chunk < chunks {
            keep_rolled();
            let next = self.load(chunk + 1);
            // All warps are done with the chunk before.
            thread::sync_threads();
            // Loops of their own: a product that depends on a condition would need its sums twice.
            if self.tiles() == 1 {
                self.add::<1>(chunk, &mut sums);
            } else {
                self.add::<TILES>(chunk, &mut sums);
            }
            self.round(chunk + 1, &next, &mut errors);
            chunk += 1;
        }
        thread::sync_threads();
        self.write_products(&sums);
        thread::sync_threads();
        self.write_errors(errors);
        thread::sync_threads();
    }

    /// Rows of tiles.
    #[inline(always)]
    fn tiles(&self) -> u32 {
        self.count.div_ceil(TILE)
    }

    /// The thread's place in a chunk: its first component, its first line, and the lines from one
    /// to its next.
    #[inline(always)]
    fn part() -> (u32, u32, u32) {
        let thread = thread::thread_idx_x();
        (thread % LANES * 4, thread / LANES, GRAM_THREADS / LANES)
    }

    /// Bytes of the first halves of all differences in a chunk.
    #[inline(always)]
    fn side(&self) -> usize {
        (self.tiles() * TILE * CHUNK_BYTES) as usize
    }

    #[inline(always)]
    fn stage(&self, chunk: u32) -> Shared<u8> {
        self.room.offset(chunk as usize % 2 * 2 * self.side())
    }

    /// Loads the thread's part of a chunk; zeros after the last component.
    #[inline(always)]
    fn load(&self, chunk: u32) -> Loaded {
        let rows = &self.p.rows;
        let (component, first, step) = Self::part();
        let at = chunk * WIDTH + component;
        let mut loaded = Loaded { rows: [Quad::default(); LOADS], node: Quad::default() };
        if at < rows.dim {
            let node = self.p.nodes.get(thread::block_idx_x() as usize);
            loaded.node = rows.row(node).get_quad(at as usize);
            unroll!(4, L => {
                let line = first + step * L as u32;
                if L < LOADS && line < self.count {
                    loaded.rows[L % LOADS] = rows.row(self.id(line)).get_quad(at as usize);
                }
            });
        }
        loaded
    }

    /// Rounds the differences of the thread's part of a chunk, to its stage, and adds the squares
    /// of what they lost to `errors`. Lines after the last candidate hold the node.
    #[inline(always)]
    fn round(&self, chunk: u32, loaded: &Loaded, errors: &mut [f32; LOADS]) {
        let (component, first, step) = Self::part();
        let (unit, half) = (component / 8, component / 4 % 2);
        unroll!(4, L => {
            let line = first + step * L as u32;
            if L < LOADS && line < self.tiles() * TILE {
                let place = line * CHUNK_BYTES + 16 * (unit ^ (line % 8)) + 8 * half;
                let to = self.stage(chunk).offset(place as usize);
                let mut rest = [0.0; 4];
                unroll!(4, C => {
                    let row = f32::from_bits(loaded.rows[L % LOADS].0[C]);
                    rest[C] = (row - f32::from_bits(loaded.node.0[C])) * self.scale;
                });
                to.cast::<u64>().set(0, take_halves(&mut rest));
                to.offset(self.side()).cast::<u64>().set(0, take_halves(&mut rest));
                unroll!(4, C => errors[L % LOADS] += rest[C] * rest[C]);
            }
        });
    }

    /// Adds the products of a chunk to the first `N` tiles of the warp.
    #[inline(always)]
    fn add<const N: usize>(&self, chunk: u32, sums: &mut [Tile; TILES]) {
        let (lane, tiles, row) = (warp::lane_id(), self.tiles(), thread::warp_idx());
        if row >= tiles {
            return;
        }
        let stage = self.stage(chunk);
        // Lane l addresses line l % 16, unit l / 16 of the rows' four matrices, and line l % 8 + 8
        // (l / 16), unit (l / 8) % 2 of the columns'.
        let row_line = stage.offset(((row * TILE + lane % 16) * CHUNK_BYTES) as usize);
        let column_line = stage.offset(((lane % 8 + 8 * (lane / 16)) * CHUNK_BYTES) as usize);
        let (mut step, steps) = (0, steps(self.p.rows.dim.div_ceil(8) - chunk * UNITS));
        while step < steps {
            keep_rolled();
            let row_line = row_line.offset((16 * ((2 * step + lane / 16) ^ (lane % 8))) as usize);
            let column_line = column_line.offset((16 * ((2 * step + lane / 8 % 2) ^ (lane % 8))) as usize);
            let a = tensor::load_matrices(row_line);
            let rest = tensor::load_matrices(row_line.offset(self.side()));
            unroll!(2, I => {
                if I < N {
                    let column = column_of(row, I as u32, tiles);
                    let column_line = column_line.offset((column * TILE * CHUNK_BYTES) as usize);
                    let b = tensor::load_matrices(column_line);
                    let (sum, mut own) = (&mut sums[I % TILES], [[0.0; 4]; 2]);
                    add_product(&mut own, rest, b);
                    let rest = tensor::load_matrices(column_line.offset(self.side()));
                    add_product(&mut own, a, rest);
                    add_product(&mut own, a, b);
                    unroll!(8, V => sum[V / 4][V % 4] += own[V / 4][V % 4]);
                }
            });
            step += 1;
        }
    }

    /// Writes the products of pairs of candidates.
    #[inline(always)]
    fn write_products(&self, sums: &[Tile; TILES]) {
        let (lane, tiles, row) = (warp::lane_id(), self.tiles(), thread::warp_idx());
        let products: Shared<f32> = self.room.cast();
        unroll!(2, I => {
            // Of an even number of rows, the last column of one half is a row of the other.
            let is_last = 2 * I as u32 == tiles;
            let is_one = row < tiles && 2 * I as u32 <= tiles && !(is_last && 2 * row >= tiles);
            if I < TILES && is_one {
                let column = column_of(row, I as u32, tiles);
                unroll!(8, V => {
                    // Column 8 h + 2 (l % 4) + e, line l / 4 or 8 more.
                    let c = TILE * column + 8 * (V as u32 / 4) + 2 * (lane % 4) + V as u32 % 2;
                    let a = TILE * row + lane / 4 + 8 * (V as u32 / 2 % 2);
                    let (first, last) = (a.min(c), a.max(c));
                    if last < self.count && (row != column || a <= c) {
                        products.set(Self::place(first, last), sums[I % TILES][V / 4][V % 4]);
                    }
                });
            }
        });
    }

    /// Writes norms, and the lengths by which roundings moved the candidates; infinite for a row at
    /// a fixed distance from all others.
    #[inline(always)]
    fn write_errors(&self, mut errors: [f32; LOADS]) {
        let (component, first, step) = Self::part();
        let products: Shared<f32> = self.room.cast();
        unroll!(4, L => {
            if L < LOADS {
                let mut lanes = 1;
                while lanes < LANES {
                    errors[L % LOADS] += warp::shuffle_xor(errors[L % LOADS], lanes);
                    lanes *= 2;
                }
                let line = first + step * L as u32;
                if component == 0 && line < self.count {
                    let norm = products.get(Self::place(line, line));
                    // The subtraction of the node's components was rounded too.
                    let error = float::sqrt(errors[L % LOADS]) * (1.0 + self.drift)
                        + float::sqrt(norm) * (1.0 / (1 << 22) as f32);
                    let is_fixed = self.p.rows.lift(self.id(line)) < 0.0;
                    self.norms.set(line as usize, norm);
                    self.errors.set(line as usize, if is_fixed { f32::INFINITY } else { error });
                }
            }
        });
    }
}

/// The column of a warp's tile number `i`.
#[inline(always)]
fn column_of(row: u32, i: u32, tiles: u32) -> u32 {
    let column = row + i;
    if column < tiles { column } else { column - tiles }
}

/// The four values, rounded to halves; what these lose stays in `values`.
#[inline(always)]
fn take_halves(values: &mut [f32; 4]) -> u64 {
    let halves = values.map(float16::from_f32);
    unroll!(4, C => values[C] -= float16::to_f32(halves[C]));
    let [low, high] = [f16x2::new(halves[0], halves[1]), f16x2::new(halves[2], halves[3])];
    u64::from(low.0) | u64::from(high.0) << 32
}

/// `sums += a * b`.
#[inline(always)]
fn add_product(sums: &mut Tile, a: [u32; 4], b: [u32; 4]) {
    <f16 as tensor::Element>::multiply_add(&mut sums[0], a, [b[0], b[1]]);
    <f16 as tensor::Element>::multiply_add(&mut sums[1], a, [b[2], b[3]]);
}
