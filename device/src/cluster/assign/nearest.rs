//! The nearest centre of each vector.
//!
//! ```text
//! for each tile: each lane, for each of its 8 rows of sums: keep the smallest key of its 8 columns
//! the smallest key of a row: by shuffles among 4 lanes, then among 4 warps by shared memory
//! ```
//!
//! Keys stay in registers while centres pass: no value goes through shared memory, and there is no
//! selection ([`cluster_assign_u8()`](super::cluster_assign_u8()) and its siblings need both). A key
//! holds a value above a number, so ties fall by number.
//!
//! Bound by the products and by two comparisons of words for each of them.

use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::thread::{sync_threads, thread_idx_x};

use super::{Assign, Block, chunk_bytes};
use crate::block::sums::{TileElement, TileSum};
use crate::block::tile;

/// The smallest keys of a lane's rows `16 m + 8 h + lane / 4` of the warp's part.
type LaneKeys = [[u64; 2]; 4];

/// Bytes of dynamic shared memory for vectors of `units` units of 16 bytes.
pub const fn nearest_shared_bytes(units: u32) -> u32 {
    chunk_bytes(units)
}

/// Keeps the smaller of the lane's keys and those of the sums of a tile.
#[inline(always)]
fn keep_smaller<S: TileSum>(
    keys: &mut LaneKeys,
    block: &Block<'_, S>,
    sums: &tile::Sums<S>,
    first_centre: u32,
) {
    unroll!(4, N => {
        unroll!(2, C => {
            let centre = block.centre_of_lane(first_centre, N as u32) + C as u32;
            let bias = block.bias(centre);
            let number = if centre < block.p.centre_count { block.number(centre) } else { super::NOWHERE };
            unroll!(4, M => {
                unroll!(2, H => {
                    let value = S::value(bias, block.p.weight, sums[4 * M + N][2 * H + C]);
                    let key = (value.ordered() as u64) << 32 | number as u64;
                    keys[M][H] = if key < keys[M][H] { key } else { keys[M][H] };
                });
            });
        });
    });
}

/// Writes the smallest keys of all parts of the tile to the lines of `smallest`, part by part.
#[inline(always)]
fn put_smallest(keys: &LaneKeys, smallest: Shared<u64>) {
    let (part_row, part_column) = tile::part_of_warp();
    let to = smallest.offset((part_column / 32 * tile::SIDE + part_row + warp::lane_id() / 4) as usize);
    unroll!(4, M => {
        unroll!(2, H => {
            let key = keys[M][H];
            let other = warp::shuffle_xor(key, 1);
            let key = if other < key { other } else { key };
            let other = warp::shuffle_xor(key, 2);
            let key = if other < key { other } else { key };
            if warp::lane_id().is_multiple_of(4) {
                to.set(16 * M + 8 * H, key);
            }
        });
    });
}

#[inline(always)]
fn nearest<E: TileElement>(p: &Assign<E::Sum>) {
    let Some(block) = Block::new(p) else { return };
    block.begin();
    let (mut stage, mut first_centre) = (0, 0);
    let mut keys: LaneKeys = [[u64::MAX; 2]; 4];
    while first_centre < p.centre_count {
        let sums = block.multiply::<E>(first_centre, &mut stage);
        keep_smaller(&mut keys, &block, &sums, first_centre);
        first_centre += tile::SIDE;
    }
    // All warps have left the chunks.
    sync_threads();
    let smallest: Shared<u64> = shared::dynamic(0);
    put_smallest(&keys, smallest);
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
