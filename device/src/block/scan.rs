//! Prefix sums over the threads of a block.
//!
//! ```text
//! each warp: inclusive sums by shuffles; its total to room[warp]; barrier
//! each warp: inclusive sums of all totals; sum = total of earlier warps + own earlier lanes
//! ```
//!
//! Every warp adds up all totals itself, which saves a second barrier.

use core::ops::Add;

use cuda_std::prelude::*;
use cuda_std::thread::{block_dim_x, sync_threads, warp_idx};
use cuda_std::warp::WarpShuffleValue;

/// The most warps of a block: the room of [`exclusive_sum`] in values.
pub const WARPS: u32 = 32;

/// The sum of the values of the lanes up to and including this one. The whole warp calls this.
#[inline(always)]
#[track_caller]
fn inclusive_sum_of_warp<T: WarpShuffleValue + Add<Output = T>>(value: T) -> T {
    let lane = warp::lane_id();
    let mut sum = value;
    let mut distance = 1;
    while distance < 32 {
        let below = warp::shuffle_up(sum, distance);
        if lane >= distance {
            sum = sum + below;
        }
        distance *= 2;
    }
    sum
}

/// The sum of the values of earlier threads, and the sum of all.
///
/// `room` holds [`WARPS`] values and is in use until the next barrier. The whole block calls this,
/// after a barrier if the room was used before.
#[inline(always)]
#[track_caller]
pub fn exclusive_sum<T: WarpShuffleValue + Add<Output = T> + Default>(value: T, room: Shared<T>) -> (T, T) {
    let (lane, warp) = (warp::lane_id(), warp_idx());
    let inclusive = inclusive_sum_of_warp(value);
    if lane == 31 {
        room.set(warp as usize, inclusive);
    }
    sync_threads();
    let of_warp = if lane < block_dim_x() / 32 { room.get(lane as usize) } else { T::default() };
    let of_warps = inclusive_sum_of_warp(of_warp);
    let before = warp::shuffle_up(inclusive, 1);
    let of_warps_before = warp::broadcast(of_warps, warp.saturating_sub(1));
    let mut exclusive = if lane == 0 { T::default() } else { before };
    if warp > 0 {
        exclusive = exclusive + of_warps_before;
    }
    (exclusive, warp::broadcast(of_warps, 31))
}
