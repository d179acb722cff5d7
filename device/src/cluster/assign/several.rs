//! The nearest several centres of vectors.
//!
//! ```text
//! first tile, for each quarter of its columns:
//!     values = bias + weight * sums, to shared memory
//!     each warp, for each of its 16 vectors:
//!         if any of 32 values may be below the vector's last key: select the best keys
//! later tiles: queue the values up to the last key of their vector (queue.rs)
//!     if a vector has more than its queue holds: as the first tile
//!     else each vector's lane inserts its queue
//! write the best keys' centres
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | values | 32 columns x 133 words, in the place of the last chunk of centres |
//! | best keys | 128 vectors x `probes` keys, an odd number of keys apart |
//!
//! Optimisations:
//!
//! 1. In the first tile a vector's best keys lie one to a lane, up to 32. A vote tells whether any
//!    of 32 values is below the last key. Few are put in their place by votes and a shuffle, many
//!    are sorted and merged by a bitonic network.
//! 2. Later tiles have few near centres, since lists begin with the nearest. Signs of differences
//!    tell them in registers, so other values do not pass shared memory. Sixteen lanes of a warp
//!    then insert at a time, each into the keys of its own vector.
//! 3. Between tiles the keys lie in shared memory, since the sums need the registers. A warp
//!    touches only the keys of its own vectors, so no barrier is needed.
//! 4. Values and queues take the place of the centres' last chunk, which all warps have left. Two
//!    blocks then fit a multiprocessor.
//!
//! Bound by instruction issue: products, three instructions for each value, and insertion.

use cuda_std::prelude::*;
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, recomputed, shared};

use super::queue::Queue;
use super::{Assign, Block, COLUMN_STRIDE, chunk_bytes};
use crate::block::sort::sort_warp;
use crate::block::sums::{TileElement, TileSum};
use crate::block::tile;

/// Vectors per warp.
pub(super) const LINES_PER_WARP: u32 = tile::SIDE / (tile::THREADS / 32);

/// Number of new keys from which on they are sorted and merged, rather than inserted one by one.
const MANY: u32 = 6;

/// Keys from one vector's best keys to the next: an odd number, so that the lanes of a warp, each
/// with the key of another vector, hit different banks.
const fn kept_stride(probes: u32) -> u32 {
    probes | 1
}

/// Bytes of the best keys of all vectors.
const fn kept_bytes(probes: u32) -> u32 {
    tile::SIDE * kept_stride(probes) * 8
}

/// Bytes of dynamic shared memory for vectors of `units` units of 16 bytes, and `probes` centres
/// each.
pub const fn assign_shared_bytes(units: u32, probes: u32) -> u32 {
    chunk_bytes(units) + kept_bytes(probes)
}

/// Selects the smallest `probes` of the warp's ascending keys `best` and of one other key per lane.
/// Lanes from `probes` on get arbitrary keys. The whole warp calls this.
#[inline(always)]
fn select(mut best: u64, key: u64, probes: u32) -> u64 {
    let lane = warp::lane_id();
    let mut farthest = warp::broadcast(best, probes - 1);
    let mut nearer = warp::ballot(key < farthest);
    if nearer.count_ones() >= MANY {
        // The smaller of each pair, against the other order, are the smallest of all: a bitonic
        // sequence.
        let others = warp::shuffle_xor(sort_warp(key), 31);
        best = if others < best { others } else { best };
        let mut distance = 16;
        while distance > 0 {
            let other = warp::shuffle_xor(best, distance);
            best = if (lane & distance == 0) == (other < best) { other } else { best };
            distance /= 2;
        }
        return best;
    }
    while nearer != 0 {
        let new = warp::broadcast(key, nearer.trailing_zeros());
        let before = warp::shuffle_up(best, 1);
        let place = warp::ballot(best < new).count_ones();
        best = if lane < place {
            best
        } else if lane == place {
            new
        } else {
            before
        };
        farthest = warp::broadcast(best, probes - 1);
        nearer &= nearer - 1;
        nearer &= warp::ballot(key < farthest);
    }
    best
}

/// A block and the best keys of its vectors.
#[derive(Clone, Copy)]
struct Several<'a, S> {
    block: Block<'a, S>,
    /// The best keys: `probes` per line, `kept_stride` apart.
    kept: Shared<u64>,
    queue: Queue<S>,
}

impl<S: TileSum> Several<'_, S> {
    /// The keys of a line.
    #[inline(always)]
    fn kept_of(&self, line: u32) -> Shared<u64> {
        self.kept.offset((line * kept_stride(self.block.p.probes)) as usize)
    }

    /// Clears the keys of the warp's vectors.
    #[inline(always)]
    fn clear(&self, first_line: u32) {
        let mut line = first_line;
        while line < first_line + LINES_PER_WARP {
            if warp::lane_id() < self.block.p.probes {
                self.kept_of(line).set(warp::lane_id() as usize, u64::MAX);
            }
            line += 1;
        }
    }

    /// Writes the values of fragment column `PASS` of all warps: column `c` of `values` is centre
    /// `32 PASS + c` of the tile.
    #[inline(always)]
    fn put_values<const PASS: usize>(&self, sums: &tile::Sums<S>, first_centre: u32, values: Shared<S>) {
        let Block { p, .. } = self.block;
        // Rows lane / 4 + 8 h of each fragment, columns 2 (lane % 4) + c.
        let (part_row, _) = tile::part_of_warp();
        let lane_row = part_row + warp::lane_id() / 4;
        unroll!(2, C => {
            let centre = self.block.centre_of_lane(first_centre, PASS as u32) + C as u32;
            let bias = self.block.bias(centre);
            let column = centre - first_centre - 32 * PASS as u32;
            let to = values.offset((column * COLUMN_STRIDE + lane_row) as usize);
            unroll!(4, M => {
                unroll!(2, H => {
                    let product = sums[4 * M + PASS][2 * H + C];
                    to.set(16 * M + 8 * H, S::value(bias, p.weight, product));
                });
            });
        });
    }

    /// Selects the best keys of the warp's vectors from a quarter of the columns. Lane `i` holds
    /// the centre `centre`, and in `farthest` the value of the last key of the warp's vector `i`.
    #[inline(always)]
    fn select_best(&self, values: Shared<S>, centre: u32, farthest: &mut u32) {
        let (block, lane, probes) = (&self.block, warp::lane_id(), self.block.p.probes);
        let first_line = thread::warp_idx() * LINES_PER_WARP;
        let there = centre < block.p.centre_count;
        let mut line = first_line;
        while line < first_line + LINES_PER_WARP && line < block.here {
            keep_rolled();
            let value = values.get((lane * COLUMN_STRIDE + line) as usize);
            let value = value.ordered();
            let last = warp::broadcast(*farthest, line - first_line);
            // After the first tiles this is rare.
            if warp::any(there && value <= last) {
                let kept = self.kept_of(line);
                let key = if there { (value as u64) << 32 | block.number(centre) as u64 } else { u64::MAX };
                let best = if lane < probes { kept.get(lane as usize) } else { u64::MAX };
                let best = select(best, key, probes);
                if lane < probes {
                    kept.set(lane as usize, best);
                }
                let last = (warp::broadcast(best, probes - 1) >> 32) as u32;
                if lane == line - first_line {
                    *farthest = last;
                }
            }
            line += 1;
        }
    }

    /// The value of the last key of the warp's vector `i`, in lane `i`.
    #[inline(always)]
    fn farthest(&self) -> u32 {
        let thread = recomputed(thread_idx_x());
        let line = thread / 32 * LINES_PER_WARP + thread % LINES_PER_WARP;
        (self.kept_of(line).get(self.block.p.probes as usize - 1) >> 32) as u32
    }

    /// Selects the best keys of the warp's vectors from a tile.
    #[inline(always)]
    fn select_tile(&self, sums: &tile::Sums<S>, first_centre: u32, values: Shared<S>) {
        let mut farthest = self.farthest();
        unroll!(4, PASS => {
            // All warps have left the last chunk of centres, or the previous values.
            sync_threads();
            self.put_values::<PASS>(sums, first_centre, values);
            sync_threads();
            let centre = first_centre + 32 * PASS as u32 + warp::lane_id();
            self.select_best(values, centre, &mut farthest);
        });
    }

    /// Inserts the queued keys of the warp's vectors, a vector to a lane.
    #[inline(always)]
    fn insert_queued(&self, keys: Shared<u64>) {
        let thread = recomputed(thread_idx_x());
        if thread % 32 >= LINES_PER_WARP {
            return;
        }
        let line = thread / 32 * LINES_PER_WARP + thread % 32;
        let (kept, last) = (self.kept_of(line), self.block.p.probes - 1);
        let count = self.queue.count(line);
        let mut number = 0;
        while number < count {
            keep_rolled();
            let key = keys.get(Queue::<S>::place(line, number));
            if key < kept.get(last as usize) {
                let mut place = last;
                while place > 0 && kept.get(place as usize - 1) > key {
                    keep_rolled();
                    kept.set(place as usize, kept.get(place as usize - 1));
                    place -= 1;
                }
                kept.set(place as usize, key);
            }
            number += 1;
        }
    }

    /// Writes the centres of the warp's best keys.
    #[inline(always)]
    fn write(&self, first_line: u32) {
        let (Block { p, here, .. }, lane) = (self.block, warp::lane_id());
        let mut line = first_line;
        while line < first_line + LINES_PER_WARP && line < here {
            let row = self.block.row_of(line);
            if lane < p.probes {
                // The low half of an unused key is `NO_ID`.
                let centre = self.kept_of(line).get(lane as usize) as u32;
                p.nearest.set(row as usize * p.probes as usize + lane as usize, centre);
            }
            line += 1;
        }
    }
}

#[inline(always)]
fn assign<E: TileElement>(p: &Assign<E::Sum>) {
    let Some(block) = Block::new(p) else { return };
    let kept = shared::dynamic(chunk_bytes(p.units) as usize);
    let several = Several { block, kept, queue: Queue::new() };
    several.clear(thread::warp_idx() * LINES_PER_WARP);
    block.begin();
    let (mut stage, mut first_centre) = (0, 0);
    while first_centre < p.centre_count {
        let sums = block.multiply::<E>(first_centre, &mut stage);
        let (values, keys) = (block.values(stage ^ 1), block.values(stage ^ 1).cast());
        if first_centre > 0 && several.queue.put(&block, &sums, first_centre, keys) {
            several.insert_queued(keys);
        } else {
            several.select_tile(&sums, first_centre, values);
        }
        // Lanes read keys that other lanes have put in place.
        warp::sync();
        several.queue.set_lasts(block.here, several.farthest());
        first_centre += tile::SIDE;
    }
    several.write(recomputed(thread_idx_x()) / 32 * LINES_PER_WARP);
}

macro_rules! assign_kernels {
    ($($name:ident $element:ty, $sum:ty;)*) => {$(
        /// Finds the nearest centres of vectors, `probes` each (see [`Assign`]).
        ///
        /// Launch: [`super::assign_blocks`] blocks of [`tile::THREADS`]; [`assign_shared_bytes`].
        ///
        /// # Safety
        /// - The views have the shapes of [`Assign`].
        #[kernel(
            unsafe,
            block = tile::THREADS,
            shared = assign_shared_bytes(p.units, p.probes),
            blocks_per_multiprocessor = 2
        )]
        pub unsafe fn $name(p: Assign<$sum>) {
            assign::<$element>(&p);
        }
    )*};
}

assign_kernels! {
    cluster_assign_f16 f16, f32;
    cluster_assign_u8 u8, i32;
    cluster_assign_i8 i8, i32;
}
