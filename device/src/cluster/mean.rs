//! New centres: the means of the vectors nearest to each centre.
//!
//! ```text
//! block = centre; thread = components thread, thread + 128, ...
//! members = keys with this centre, found by binary search
//! value[component] = mean over the members, in the order of the keys
//!                    (without members: the component of a drawn vector)
//! bias = sum of squares: a tree over lanes, then the warps in order
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | `keys` | `key_count`, ascending: centre, place in the sample |
//! | `centres` | centres x `stride` bytes |
//! | shared memory | one sum per warp |
//!
//! Optimisations:
//!
//! 1. Members of a centre are consecutive keys, so no atomics are needed, and each sum has one
//!    order.
//! 2. Four members' loads are under way before the first is added.
//!
//! Bound by memory: the sample is read once per round.

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x, warp_idx};
use cuda_std::{float16, shared};

use super::{ID_BITS, drawn};
use crate::block::copied;
use crate::block::element::{Element, Wide};
use crate::block::sums::TileElement;
use crate::random::{Draws, Stage};

/// Threads of a block.
pub const MEAN_THREADS: u32 = 128;

/// Warps of a block.
const MEAN_WARPS: u32 = MEAN_THREADS / 32;

/// Element types that have means.
pub trait Mean: TileElement {
    /// The type of sums.
    type Total: Copy;

    /// The empty sum.
    const ZERO: Self::Total;

    /// `total + value`.
    fn add(total: Self::Total, value: Self) -> Self::Total;

    /// `total / count`, rounded to nearest; `count` is not 0.
    fn mean(total: Self::Total, count: u32) -> Self;
}

impl Mean for f16 {
    type Total = f32;

    const ZERO: f32 = 0.0;

    #[inline(always)]
    fn add(total: f32, value: Self) -> f32 {
        total + float16::to_f32(value)
    }

    #[inline(always)]
    fn mean(total: f32, count: u32) -> Self {
        float16::from_f32(total / count as f32)
    }
}

macro_rules! byte_means {
    ($($type:ty)*) => {$(
        impl Mean for $type {
            // A centre may have more than 2^31 / 255 vectors.
            type Total = i64;

            const ZERO: i64 = 0;

            #[inline(always)]
            fn add(total: i64, value: Self) -> i64 {
                total + value as i64
            }

            // Halves are rounded up.
            #[inline(always)]
            fn mean(total: i64, count: u32) -> Self {
                (2 * total + count as i64).checked_div_euclid(2 * count as i64).unwrap_or(0) as Self
            }
        }
    )*};
}

byte_means!(u8 i8);

/// Bytes of dynamic shared memory: one sum per warp.
pub const MEAN_SHARED_BYTES: u32 = MEAN_WARPS * 4;

/// The centres of the next round.
#[repr(C)]
pub struct Means<S> {
    /// In: vectors, `stride` bytes apart, a multiple of 16.
    pub vectors: Global<u8>,
    /// In: the `sample_count` vectors of the sample.
    pub sample: Global<u32>,
    /// In: `key_count` ascending keys: the centre above [`ID_BITS`], a place in the sample below.
    /// None before the first round.
    pub keys: Global<u64>,
    /// Out: centres, `stride` bytes apart: the mean of the centre's vectors, added up in the order
    /// of the keys, and rounded. A centre without vectors gets one drawn from the sample; before
    /// the first round, from a stretch of its own.
    pub centres: GlobalMut<u8>,
    /// Out: squared norms of the centres.
    pub biases: GlobalMut<S>,
    /// Seed of the draws.
    pub seed: u64,
    /// Vectors of the sample, at least as many as centres.
    pub sample_count: u32,
    /// Number of keys.
    pub key_count: u32,
    /// Number of centres.
    pub centre_count: u32,
    /// Bytes from one vector to the next.
    pub stride: u32,
    /// The number of the round, part of the draws' seed.
    pub round: u32,
    /// Unused.
    pub padding: u32,
}

copied! {
    Means<S>;
}

/// The place of the first of `count` ascending keys whose centre is at least `centre`.
#[inline(always)]
fn first_of(keys: Global<u64>, count: u32, centre: u32) -> u32 {
    let (mut low, mut high) = (0, count);
    while low < high {
        let middle = low + (high - low) / 2;
        let below = keys.get(middle as usize) >> ID_BITS < centre as u64;
        if below { low = middle + 1 } else { high = middle }
    }
    low
}

/// The sum of the values of `count` members, in order.
#[inline(always)]
fn total_of<T: Mean>(count: u32, value: impl Fn(u32) -> T) -> T::Total {
    let mut total = T::ZERO;
    let mut member = 0;
    while member + 4 <= count {
        let values = [value(member), value(member + 1), value(member + 2), value(member + 3)];
        unroll!(4, I => total = T::add(total, values[I]));
        member += 4;
    }
    while member < count {
        total = T::add(total, value(member));
        member += 1;
    }
    total
}

#[inline(always)]
fn mean<T: Mean + Element<Wide = T::Sum>>(p: &Means<T::Sum>)
where
    T::Sum: Wide,
{
    let (thread, centre) = (thread_idx_x(), block_idx_x());
    let sums: Shared<T::Sum> = shared::dynamic(0);
    let components = p.stride / size_of::<T>() as u32;
    let first = first_of(p.keys, p.key_count, centre);
    let count = first_of(p.keys, p.key_count, centre + 1) - first;
    let keys = p.keys.offset(first as usize);
    let vector = |place: u32| -> Global<T> {
        let vector = p.sample.get(place as usize);
        p.vectors.offset(vector as usize * p.stride as usize).cast()
    };
    let draws = Draws::new(p.seed, Stage::Cells, p.round + 1, centre as u64);
    let drawn = if p.key_count == 0 {
        drawn(draws, centre, p.centre_count, p.sample_count)
    } else {
        draws.below(0, p.sample_count as u64) as u32
    };
    let out: GlobalMut<T> = p.centres.offset(centre as usize * p.stride as usize).cast();

    // Components beyond the dimension are zero in all vectors, and so in their mean.
    let mut norm = T::Sum::ZERO;
    let mut component = thread;
    while component < components {
        let i = component as usize;
        let value = if count == 0 {
            vector(drawn).get(i)
        } else {
            T::mean(total_of::<T>(count, |member| vector(keys.get(member as usize) as u32).get(i)), count)
        };
        out.set(i, value);
        norm = T::Sum::add_product(norm, value.wide(), value.wide());
        component += MEAN_THREADS;
    }

    // A tree over the lanes, then the warps in order.
    let mut width = 16;
    while width > 0 {
        norm = T::Sum::plus(norm, warp::shuffle_xor(norm, width));
        width /= 2;
    }
    if warp::lane_id() == 0 {
        sums.set(warp_idx() as usize, norm);
    }
    sync_threads();
    if thread == 0 {
        let mut total = sums.get(0);
        let mut other = 1;
        while other < MEAN_WARPS {
            total = T::Sum::plus(total, sums.get(other as usize));
            other += 1;
        }
        p.biases.set(centre as usize, total);
    }
}

macro_rules! mean_kernels {
    ($($name:ident $type:ty, $sum:ty;)*) => {$(
        /// Computes the centres of the next round (see [`Means`]).
        ///
        /// Launch: a block of [`MEAN_THREADS`] per centre; [`MEAN_SHARED_BYTES`].
        ///
        /// # Safety
        /// - The views have the shapes of [`Means`].
        #[kernel(unsafe, block = MEAN_THREADS, shared = MEAN_SHARED_BYTES)]
        pub unsafe fn $name(p: Means<$sum>) {
            mean::<$type>(&p);
        }
    )*};
}

mean_kernels! {
    cluster_mean_f16 f16, f32;
    cluster_mean_u8 u8, i32;
    cluster_mean_i8 i8, i32;
}
