//! Preparation of vectors for the filter: f16 copies with norms and errors, and norms of bytes.
//!
//! # Algorithm
//!
//! ```text
//! for each vector, two at a time in a warp:
//!     scale = that of all vectors, or what makes the norm of this one UNIT
//!     for each component: half = f16((value - mean) * scale), cut to the range of f16
//!     norm  = sum of half²
//!     error = sqrt(sum of ((value - mean) * scale - half)²), rounded up
//!     bias  = norm * norm_weight, less what rounding hides           (see Prepare::biases)
//! ```
//!
//! For bytes only the norms are computed, exactly, in integers.
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `values` | `count` × `stride` components, `dim` of them used |
//! | `mean` | `dim` |
//! | `rounded` | `count` × `rounded_stride` halves |
//! | `biases`, `errors`, `norms` | `count` |
//!
//! # Optimisations
//!
//! 1. The mean is subtracted before rounding, which makes errors small for data far from the
//!    origin. L2 distances do not change, and [`total_error`] covers the rounding of the
//!    subtraction.
//! 2. A lane loads four components of two vectors before it uses the first.
//!
//! # Speed
//!
//! Each value is read once and each half written once: 6 bytes per component of f32, bound by
//! memory.

use cuda_std::prelude::*;
use cuda_std::thread::block_idx_x;
use cuda_std::warp::WarpReductionOp;
use cuda_std::{float, float16};

use crate::block::element::Element;
use crate::block::sums::{UNIT, biased, product_loss};

/// Threads per block.
pub const PREPARE_THREADS: u32 = 256;

/// Warps per block: vectors per block of the kernels `exact_norms_*`.
pub const PREPARE_VECTORS: u32 = PREPARE_THREADS / 32;

/// Arguments of the kernels `exact_prepare_*`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Prepare<T> {
    /// In: `count` vectors of `dim` components, `stride` components apart.
    pub values: Global<T>,
    /// In: `dim` values, subtracted from each vector.
    pub mean: Global<f32>,
    /// Out: `count` vectors of f16, `rounded_stride` halves apart, zero from `dim` on.
    pub rounded: GlobalMut<f16>,
    /// Out: per vector `norm_weight` times the squared norm of the rounded vector. With a finite
    /// `error_limit`, what [`biased`] makes of it, or if the weight is 0 minus its
    /// [`product_loss`]. With `skip_zero`, infinity for a zero vector. With `unit`, the factor
    /// applied; NaN if the vector is so small that none is.
    pub biases: GlobalMut<f32>,
    /// Out: per vector a bound on the distance by which rounding moved it.
    pub errors: GlobalMut<f32>,
    /// Number of vectors.
    pub count: u32,
    /// Components per vector.
    pub dim: u32,
    /// Components from one vector to the next.
    pub stride: u32,
    /// Halves from one rounded vector to the next.
    pub rounded_stride: u32,
    /// Factor applied before rounding, unless `unit`.
    pub scale: f32,
    /// Factor of the norms in `biases`.
    pub norm_weight: f32,
    /// Largest error of a row that the bounds of queries account for; infinity where there are no
    /// bounds.
    pub error_limit: f32,
    /// Whether zero vectors get a bias that no query finds.
    pub skip_zero: u32,
    /// Times that a block prepares [`PREPARED_AT_ONCE`] vectors, at least 1.
    pub rounds: u32,
    /// Whether each vector gets a factor of its own, which makes its norm [`UNIT`].
    pub unit: u32,
}

/// An upper bound on the distance by which preparation moved a vector.
///
/// `rounding` is the computed norm of the difference to the rounded vector. The term in `norm`
/// covers the rounding of the subtraction of the mean, the factor that of these sums, and the last
/// term differences whose squares are below the smallest f32.
#[inline(always)]
pub fn total_error(rounding: f32, norm: f32) -> f32 {
    (rounding + norm * (1.0 / (1u32 << 22) as f32)) * (1.0 + 1.0 / 1024.0) + 1.0 / (1u64 << 54) as f32
}

/// The largest f16. Larger values are cut, and the error includes the cut.
const F16_MAX: f32 = 65_504.0;

/// The largest factor of a vector of norm [`UNIT`]: 2^110, so that its products stay finite.
const MAX_FACTOR: f32 = 1.298_074_2e33;

/// Vectors that a warp prepares at once.
const AT_ONCE: usize = 2;

/// Vectors that a block prepares at once.
pub const PREPARED_AT_ONCE: u32 = PREPARE_VECTORS * AT_ONCE as u32;

#[inline(always)]
fn prepare<T: Element<Wide = f32>>(p: &Prepare<T>) {
    let begin = block_idx_x() * PREPARED_AT_ONCE * p.rounds;
    let mut first = begin + thread::warp_idx() * AT_ONCE as u32;
    let mut round = 0;
    while round < p.rounds && first < p.count {
        // The last vector again, where there is no second one.
        let second = if first + 1 < p.count { first + 1 } else { first };
        prepare_vectors(p, [first, second]);
        first += PREPARED_AT_ONCE;
        round += 1;
    }
}

/// The factor that makes the norm of a vector [`UNIT`]; 1 for a zero vector, and above
/// [`MAX_FACTOR`] or infinite for a tiny one. The whole warp calls this.
#[inline(always)]
fn factor_of_unit<T: Element<Wide = f32>>(values: Global<T>, dim: u32) -> f32 {
    let lane = warp::lane_id();
    let mut largest = 0.0f32;
    let mut i = lane;
    while i < dim {
        largest = largest.max(values.get(i as usize).wide().abs());
        i += 32;
    }
    // Bits of non-negative numbers sort as the numbers do.
    // SAFETY: the whole warp is here.
    let largest = unsafe { warp::warp_reduce(warp::FULL, largest.to_bits(), WarpReductionOp::Max) };
    if largest == 0 {
        return 1.0;
    }
    // A power of two that brings the largest to between 1 and 2, so that squares stay finite.
    let power = f32::from_bits((254 - (largest >> 23).max(1)) << 23);
    let mut sum = 0.0f32;
    let mut i = lane;
    while i < dim {
        let value = values.get(i as usize).wide() * power;
        sum += value * value;
        i += 32;
    }
    UNIT / float::sqrt(warp::sum(sum)) * power
}

/// Sums over a vector, or a lane's part of it.
#[derive(Clone, Copy)]
struct Sums {
    norm: f32,
    error: f32,
    is_zero: bool,
}

/// Prepares vectors. The whole warp calls this.
#[inline(always)]
fn prepare_vectors<T: Element<Wide = f32>>(p: &Prepare<T>, vectors: [u32; AT_ONCE]) {
    let lane = warp::lane_id();
    let values = vectors.map(|vector| p.values.offset(vector as usize * p.stride as usize));
    let rounded = vectors.map(|vector| p.rounded.offset(vector as usize * p.rounded_stride as usize));
    let mut scales = [p.scale; AT_ONCE];
    if p.unit != 0 {
        unroll!(2, V => {
            let factor = factor_of_unit(values[V], p.dim);
            scales[V] = if factor <= MAX_FACTOR { factor } else { 0.0 };
        });
    }
    let mut sums = [Sums { norm: 0.0, error: 0.0, is_zero: true }; AT_ONCE];
    let mut i = lane;
    while i < p.rounded_stride {
        // Optimisation 2.
        let (mut of_mean, mut of_vectors) = ([0.0f32; 4], [[0.0f32; 4]; AT_ONCE]);
        unroll!(4, L => {
            let i = i + 32 * L as u32;
            if i < p.dim {
                of_mean[L] = p.mean.get(i as usize);
                unroll!(2, V => of_vectors[V][L] = values[V].get(i as usize).wide());
            }
        });
        unroll!(4, L => {
            let i = i + 32 * L as u32;
            unroll!(2, V => {
                let mut half = f16::from_bits(0);
                if i < p.dim {
                    let (value, of): (f32, &mut Sums) = (of_vectors[V][L], &mut sums[V]);
                    let exact = (value - of_mean[L]) * scales[V];
                    half = float16::from_f32(exact.clamp(-F16_MAX, F16_MAX));
                    let back = float16::to_f32(half);
                    of.norm += back * back;
                    of.error += (exact - back) * (exact - back);
                    of.is_zero &= value == 0.0;
                }
                if i < p.rounded_stride {
                    rounded[V].set(i as usize, half);
                }
            });
        });
        i += 128;
    }
    unroll!(2, V => {
        let norm = warp::sum(sums[V].norm);
        let error = total_error(float::sqrt(warp::sum(sums[V].error)), float::sqrt(norm));
        let is_zero = !warp::any(!sums[V].is_zero);
        if lane == 0 {
            let bias = if p.unit != 0 {
                if scales[V] > 0.0 { scales[V] } else { f32::NAN }
            } else if is_zero && p.skip_zero != 0 {
                f32::INFINITY
            } else if p.error_limit == f32::INFINITY {
                norm * p.norm_weight
            } else if p.norm_weight == 0.0 {
                -product_loss(float::sqrt(norm), p.dim, error)
            } else {
                biased(norm, p.dim, error, p.error_limit) * p.norm_weight
            };
            p.biases.set(vectors[V] as usize, bias);
            p.errors.set(vectors[V] as usize, error);
        }
    });
}

/// Arguments of the kernels `exact_norms_*`. Tiles take vectors of bytes unchanged.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Norms<T> {
    /// In: `count` vectors of `dim` components, `stride` components apart.
    pub values: Global<T>,
    /// Out: per vector `weight` times its squared norm.
    pub norms: GlobalMut<i32>,
    /// Number of vectors.
    pub count: u32,
    /// Components per vector.
    pub dim: u32,
    /// Components from one vector to the next.
    pub stride: u32,
    /// Factor of the norms.
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
        /// Centres, scales and rounds vectors to f16, with norms and errors (see [`Prepare`]).
        ///
        /// Launch: a block of [`PREPARE_THREADS`] per `rounds` times [`PREPARED_AT_ONCE`] vectors;
        /// no shared memory.
        ///
        /// # Safety
        /// - The views match the fields of [`Prepare`].
        #[kernel(unsafe, block = PREPARE_THREADS)]
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
        /// Computes squared norms of vectors of bytes (see [`Norms`]).
        ///
        /// Launch: a block of [`PREPARE_THREADS`] per [`PREPARE_VECTORS`] vectors; no shared
        /// memory.
        ///
        /// # Safety
        /// - The views match the fields of [`Norms`].
        #[kernel(unsafe, block = PREPARE_THREADS)]
        pub unsafe fn $name(p: Norms<$type>) {
            norms(&p);
        }
    )*};
}

norm_kernels! {
    exact_norms_u8 u8;
    exact_norms_i8 i8;
}
