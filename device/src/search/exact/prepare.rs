//! What the filter needs of vectors: f16 copies with norms and errors, and norms of bytes.

use cuda_std::atomic::Scope;
use cuda_std::prelude::*;
use cuda_std::thread::block_idx_x;
use cuda_std::warp::WarpReductionOp;
use cuda_std::{float, float16};

use crate::block::element::Element;

/// Threads of a block of [`exact_prepare_f32()`] and its siblings: a warp per vector.
pub const PREPARE_THREADS: u32 = 256;

/// Vectors that a block prepares.
pub const PREPARE_VECTORS: u32 = PREPARE_THREADS / 32;

/// Vectors to be rounded to f16.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Prepare<T> {
    /// In: `count` vectors of `dim` components, `stride` components apart.
    pub values: Global<T>,
    /// In: `dim` values that are subtracted.
    pub mean: Global<f32>,
    /// Out: `count` vectors of f16, `rounded_stride` apart, zero from `dim` on.
    pub rounded: GlobalMut<f16>,
    /// Out: `count`, each `norm_weight` times the squared norm of the rounded vector; of vectors that
    /// rounding moved by more than `error_limit`, minus infinity; with `skip_zero`, of zero vectors
    /// infinity.
    pub biases: GlobalMut<f32>,
    /// Out: `count`, how far rounding moved each vector.
    pub errors: GlobalMut<f32>,
    /// In and out: one value, the bits of the largest squared norm of a rounded vector.
    pub largest: GlobalMut<u32>,
    /// How many vectors.
    pub count: u32,
    /// Components per vector.
    pub dim: u32,
    /// Components from one vector to the next.
    pub stride: u32,
    /// Halves from one rounded vector to the next.
    pub rounded_stride: u32,
    /// What a vector is multiplied by before it is rounded.
    pub scale: f32,
    /// What norms are multiplied by in `biases`.
    pub norm_weight: f32,
    /// The largest error of a vector that keeps its bias.
    pub error_limit: f32,
    /// Whether zero vectors are never found.
    pub skip_zero: u32,
}

/// How far a vector may have been moved by rounding it, and a little more: `rounding` is the norm of the
/// difference, as computed; subtracting the mean of a vector of norm `norm` was rounded too.
#[inline(always)]
pub fn total_error(rounding: f32, norm: f32) -> f32 {
    (rounding + norm * (1.0 / (1u32 << 22) as f32)) * (1.0 + 1.0 / 1024.0)
}

/// The largest value of f16; larger ones are cut, and the error says so.
const F16_MAX: f32 = 65_504.0;

#[inline(always)]
fn prepare<T: Element<Wide = f32>>(p: &Prepare<T>) {
    let lane = warp::lane_id();
    let vector = block_idx_x() * PREPARE_VECTORS + thread::warp_idx();
    if vector >= p.count {
        return;
    }
    let values = p.values.offset(vector as usize * p.stride as usize);
    let rounded = p.rounded.offset(vector as usize * p.rounded_stride as usize);
    let (mut norm, mut error, mut zero) = (0.0f32, 0.0f32, true);
    let mut i = lane;
    while i < p.rounded_stride {
        let mut half = f16::from_bits(0);
        if i < p.dim {
            let value = values.get(i as usize).wide();
            let exact = (value - p.mean.get(i as usize)) * p.scale;
            half = float16::from_f32(exact.clamp(-F16_MAX, F16_MAX));
            let back = float16::to_f32(half);
            norm += back * back;
            error += (exact - back) * (exact - back);
            zero &= value == 0.0;
        }
        rounded.set(i as usize, half);
        i += 32;
    }
    let norm = warp::sum(norm);
    let error = total_error(float::sqrt(warp::sum(error)), float::sqrt(norm));
    let zero = !warp::any(!zero);
    if lane == 0 {
        let bias = if zero && p.skip_zero != 0 {
            f32::INFINITY
        } else if error > p.error_limit {
            f32::NEG_INFINITY
        } else {
            norm * p.norm_weight
        };
        p.biases.set(vector as usize, bias);
        p.errors.set(vector as usize, error);
        // Bits of numbers that are not negative are ordered as they are.
        p.largest.fetch_max(0, norm.to_bits(), Scope::Device);
    }
}

/// Vectors of bytes whose squared norms are wanted; tiles take the vectors as they are.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Norms<T> {
    /// In: `count` vectors of `dim` components, `stride` components apart.
    pub values: Global<T>,
    /// Out: `count`, each `weight` times the squared norm.
    pub norms: GlobalMut<i32>,
    /// How many vectors.
    pub count: u32,
    /// Components per vector.
    pub dim: u32,
    /// Components from one vector to the next.
    pub stride: u32,
    /// What norms are multiplied by.
    pub weight: i32,
}

#[inline(always)]
fn norms<T: Element<Wide = i32>>(p: &Norms<T>) {
    let lane = warp::lane_id();
    let vector = block_idx_x() * PREPARE_VECTORS + thread::warp_idx();
    if vector >= p.count {
        return;
    }
    let values = p.values.offset(vector as usize * p.stride as usize);
    let mut sum = 0;
    let mut i = lane;
    while i < p.dim {
        let value = values.get(i as usize).wide();
        sum += value * value;
        i += 32;
    }
    // SAFETY: the whole warp has the same vector and is here.
    let norm = unsafe { warp::warp_reduce(warp::FULL, sum, WarpReductionOp::Add) };
    if lane == 0 {
        p.norms.set(vector as usize, p.weight * norm);
    }
}

macro_rules! prepare_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Rounds vectors to f16, less the mean, scaled, with norms and errors (see [`Prepare`]).
        ///
        /// Launch: a block of [`PREPARE_THREADS`] per [`PREPARE_VECTORS`] vectors; no shared memory.
        ///
        /// # Safety
        /// - The views hold what [`Prepare`] says.
        #[kernel(block = PREPARE_THREADS)]
        pub unsafe fn $name(p: Prepare<$type>) {
            prepare(&p);
        }
    )*};
}

prepare_kernels! {
    exact_prepare_f32 f32;
    exact_prepare_f16 f16;
}

macro_rules! norm_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Squared norms of vectors of bytes (see [`Norms`]).
        ///
        /// Launch: a block of [`PREPARE_THREADS`] per [`PREPARE_VECTORS`] vectors; no shared memory.
        ///
        /// # Safety
        /// - The views hold what [`Norms`] says.
        #[kernel(block = PREPARE_THREADS)]
        pub unsafe fn $name(p: Norms<$type>) {
            norms(&p);
        }
    )*};
}

norm_kernels! {
    exact_norms_u8 u8;
    exact_norms_i8 i8;
}
