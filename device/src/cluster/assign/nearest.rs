//! The nearest centre of each vector.
//!
//! ```text
//! for each tile: each lane, for each of its 8 rows of sums: keep the smallest key of its 8 columns
//! the smallest key of a row: by shuffles among 4 lanes, then among 4 warps by shared memory
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | keys | 8 rows x 256 threads |
//! | smallest | 4 warps x 128 vectors, in the place of the chunks |
//!
//! Optimisations:
//!
//! 1. No value goes through shared memory, and there is no selection:
//!    [`cluster_assign_u8()`](super::cluster_assign_u8()) and its siblings need both.
//! 2. A key holds a value above a number, so ties fall by number. Between tiles a thread's keys lie
//!    in shared memory, since the sums need the registers. No other thread touches them.
//!
//! Bound by the products and by two comparisons of words for each of them.

use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::thread::{sync_threads, thread_idx_x};

use super::{Assign, Block, chunk_bytes};
use crate::block::sums::{TileElement, TileSum};
use crate::block::tile;
use crate::key::NO_ID;

/// Rows of a lane: `16 m + 8 h + lane / 4` of the warp's part, for 4 `m` and 2 `h`.
const ROWS: u32 = 8;

/// Bytes of dynamic shared memory for vectors of `units` units of 16 bytes.
pub const fn nearest_shared_bytes(units: u32) -> u32 {
    chunk_bytes(units) + ROWS * tile::THREADS * 8
}

/// Keeps the smaller of the thread's keys and those of the sums of a tile.
#[inline(always)]
fn keep_smaller<S: TileSum>(
    keys: Shared<u64>,
    block: &Block<'_, S>,
    sums: &tile::Sums<S>,
    first_centre: u32,
) {
    // A fragment at a time: a thread has no registers for the biases of all columns.
    unroll!(4, N => {
        // No bias is read before the barrier.
        warp::sync();
        let (mut biases, mut numbers) = ([S::NEVER; 2], [NO_ID; 2]);
        unroll!(2, I => {
            let centre = block.centre_of_lane(first_centre, N as u32) + I as u32;
            biases[I] = block.bias(centre);
            if centre < block.p.centre_count {
                numbers[I] = block.number(centre);
            }
        });
        unroll!(8, ROW => {
            let mut smallest = keys.get(ROW * tile::THREADS as usize);
            unroll!(2, I => {
                let sum = sums[4 * (ROW / 2) + N][2 * (ROW % 2) + I];
                let value = S::value(biases[I], block.p.weight, sum);
                let key = (value.ordered() as u64) << 32 | numbers[I] as u64;
                smallest = if key < smallest { key } else { smallest };
            });
            keys.set(ROW * tile::THREADS as usize, smallest);
        });
    });
}

/// Writes the smallest keys of all parts of the tile to the lines of `smallest`, part by part.
#[inline(always)]
fn put_smallest(keys: Shared<u64>, smallest: Shared<u64>) {
    let (part_row, part_column) = tile::part_of_warp();
    let to = smallest.offset((part_column / 32 * tile::SIDE + part_row + warp::lane_id() / 4) as usize);
    unroll!(8, I => {
        let key = keys.get(I * tile::THREADS as usize);
        let other = warp::shuffle_xor(key, 1);
        let key = if other < key { other } else { key };
        let other = warp::shuffle_xor(key, 2);
        let key = if other < key { other } else { key };
        if warp::lane_id().is_multiple_of(4) {
            to.set(8 * I, key);
        }
    });
}

#[inline(always)]
fn nearest<E: TileElement>(p: &Assign<E::Sum>) {
    let Some(block) = Block::new(p) else { return };
    block.begin();
    let (mut stage, mut first_centre) = (0, 0);
    let keys: Shared<u64> =
        shared::dynamic::<u64>(chunk_bytes(p.units) as usize).offset(thread_idx_x() as usize);
    unroll!(8, I => keys.set(I * tile::THREADS as usize, u64::MAX));
    while first_centre < p.centre_count {
        let sums = block.multiply::<E>(first_centre, &mut stage);
        keep_smaller(keys, &block, &sums, first_centre);
        first_centre += tile::SIDE;
    }
    // All warps have left the chunks.
    sync_threads();
    let smallest: Shared<u64> = shared::dynamic(0);
    put_smallest(keys, smallest);
    sync_threads();
    let line = thread_idx_x();
    if line < block.here {
        let mut key = u64::MAX;
        // Four warps have the same rows and other columns.
        unroll!(4, PART => {
            let other = smallest.get(PART * tile::SIDE as usize + line as usize);
            key = if other < key { other } else { key };
        });
        p.nearest.set(block.row_of(line) as usize, key as u32);
    }
}

macro_rules! nearest_kernels {
    ($($name:ident $element:ty, $sum:ty;)*) => {$(
        /// Finds the nearest centre of each vector (see [`Assign`], with `probes` of 1).
        ///
        /// Launch: [`assign_blocks`](super::assign_blocks()) blocks of [`tile::THREADS`];
        /// [`nearest_shared_bytes`].
        ///
        /// # Safety
        /// - The views have the shapes of [`Assign`].
        #[kernel(
            unsafe,
            block = tile::THREADS,
            shared = nearest_shared_bytes(p.units),
            blocks_per_multiprocessor = 2
        )]
        pub unsafe fn $name(p: Assign<$sum>) {
            nearest::<$element>(&p);
        }
    )*};
}

nearest_kernels! {
    cluster_nearest_f16 f16, f32;
    cluster_nearest_u8 u8, i32;
    cluster_nearest_i8 i8, i32;
}
