//! Queues of near centres, one per vector: those of a tile that may be among its nearest.
//!
//! ```text
//! marks = the signs of last - value, for a lane's 64 pairs
//! for each pair that is not below zero: take a place in the vector's queue, and put the key there
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | `lasts` | 128 values: that of each vector's last key |
//! | `counts` | 128 numbers of keys |
//! | keys | [`LENGTH`] x 128 vectors, in the place of the last chunk of centres |
//!
//! The order of a queue is chance, but a vector's best keys do not depend on it. A vector with more
//! near centres than places fails the whole tile: which of them found a place would be chance.

use cuda_std::prelude::*;
use cuda_std::thread::{sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, recomputed, shared};

use super::several::LINES_PER_WARP;
use super::{Block, VALUE_BYTES};
use crate::block::sums::TileSum;
use crate::block::tile;

/// Keys of a queue.
const LENGTH: u32 = 16;

const _: () = assert!(LENGTH * tile::SIDE * 8 <= VALUE_BYTES);

/// Bytes of the queues at the start of shared memory, without their keys. Their addresses are
/// constants: registers are few.
pub(super) const QUEUE_BYTES: u32 = 2 * tile::SIDE * 4;

/// The queues of a block.
#[derive(Clone, Copy)]
pub(super) struct Queue<S> {
    lasts: Shared<S>,
    counts: Shared<u32>,
}

/// The sum of pair `i` of fragment column `N`, selected by halves, from registers: that of row
/// `i / 2` and column `i % 2`.
#[inline(always)]
fn sum_of_pair<const N: usize, S: TileSum>(sums: &tile::Sums<S>, i: u32) -> S {
    let either = |second: u32, a: S, b: S| if i & second != 0 { b } else { a };
    let mut of = [S::default(); 8];
    unroll!(8, ROW => {
        let pair = |c: usize| sums[4 * (ROW / 2) + N][2 * (ROW % 2) + c];
        of[ROW] = either(1, pair(0), pair(1));
    });
    unroll!(4, I => of[I] = either(2, of[2 * I], of[2 * I + 1]));
    unroll!(2, I => of[I] = either(4, of[2 * I], of[2 * I + 1]));
    either(8, of[0], of[1])
}

impl<S: TileSum> Queue<S> {
    /// The queues of this block.
    #[inline(always)]
    pub(super) fn new() -> Self {
        let lasts: Shared<S> = shared::dynamic(0);
        Self { lasts, counts: lasts.offset(tile::SIDE as usize).cast() }
    }

    /// The place of a vector's key among those of all.
    #[inline(always)]
    pub(super) const fn place(line: u32, number: u32) -> usize {
        (number * tile::SIDE + line) as usize
    }

    /// The keys in a vector's queue.
    #[inline(always)]
    pub(super) fn count(&self, line: u32) -> u32 {
        self.counts.get(line as usize)
    }

    /// Sets the values of the last keys of the warp's vectors, `farthest` in its first lanes. Those
    /// of lines from `here` on have no vector. A barrier of the block comes before the next use.
    #[inline(always)]
    pub(super) fn set_lasts(&self, here: u32, farthest: u32) {
        let thread = recomputed(thread_idx_x());
        let (line, lane) = (thread / 32 * LINES_PER_WARP + thread % 32, thread % 32);
        if lane < LINES_PER_WARP {
            // Minus half of the largest bound: no value is as small.
            let nothing = S::nearness(S::UNBOUNDED, S::default());
            self.lasts.set(line as usize, if line < here { S::from_ordered(farthest) } else { nothing });
        }
    }

    /// Pairs of fragment column `N` of a lane whose value is at most the last of their vector: pair
    /// `i` at bit `15 - i` (see [`sum_of_pair`]).
    #[inline(always)]
    fn near<const N: usize>(
        &self,
        block: &Block<'_, S>,
        sums: &tile::Sums<S>,
        line: u32,
        biases: [S; 2],
    ) -> u32 {
        let mut farther = 0;
        unroll!(8, ROW => {
            let last = self.lasts.get((line + 8 * ROW as u32) as usize);
            unroll!(2, I => {
                let sum = sums[4 * (ROW / 2) + N][2 * (ROW % 2) + I];
                farther = S::push_below(farther, last, S::value(biases[I], block.p.weight, sum));
            });
        });
        !farther & 0xffff
    }

    /// Puts the near centres of fragment column `N` into the queues.
    #[inline(always)]
    fn put_column<const N: usize>(
        &self,
        block: &Block<'_, S>,
        sums: &tile::Sums<S>,
        first_centre: u32,
        keys: Shared<u64>,
    ) {
        // Nothing is read before the barrier: a thread has no registers for all columns.
        warp::sync();
        let (part_row, _) = tile::part_of_warp();
        let line = recomputed(part_row + warp::lane_id() / 4);
        let centre = block.centre_of_lane(first_centre, N as u32);
        let biases = [block.bias(centre), block.bias(centre + 1)];
        let mut near = self.near::<N>(block, sums, line, biases);
        while near != 0 {
            keep_rolled();
            let i = near.leading_zeros() - 16;
            near &= !(0x8000 >> i);
            let (line, centre) = (line + i / 2 * 8, centre + i % 2);
            if centre < block.p.centre_count {
                let value = S::value(block.bias(centre), block.p.weight, sum_of_pair::<N, S>(sums, i));
                let place = self.counts.fetch_add(line as usize, 1);
                if place < LENGTH {
                    let key = u64::from(value.ordered()) << 32 | u64::from(block.number(centre));
                    keys.set(Self::place(line, place), key);
                }
            }
        }
    }

    /// Puts the near centres of a tile into the queues. Returns false if a queue is too short; then
    /// the queues are of no use. The whole block calls this, and finds a barrier after the result.
    #[inline(always)]
    pub(super) fn put(
        &self,
        block: &Block<'_, S>,
        sums: &tile::Sums<S>,
        first_centre: u32,
        keys: Shared<u64>,
    ) -> bool {
        let thread = recomputed(thread_idx_x());
        if thread < tile::SIDE {
            self.counts.set(thread as usize, 0);
        }
        // All warps have left the last chunk of centres.
        sync_threads();
        unroll!(4, N => self.put_column::<N>(block, sums, first_centre, keys));
        sync_threads();
        let four = self.counts.get_quad(4 * (thread % 32) as usize).0;
        let mut longest = 0;
        unroll!(4, I => longest = if four[I] > longest { four[I] } else { longest });
        !warp::any(longest > LENGTH)
    }
}
