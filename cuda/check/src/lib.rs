//! Test kernels that expose the results of single GPU instructions, to compare hardware with the
//! emulator.
//!
//! `host/gpu/check.rs` launches the kernels on the emulator, and on a GPU where there is one.
//! `host/gpu/self_check.rs` launches [`check_device()`] on every GPU before it is used: for that,
//! programs embed the PTX (`cuda/check/ptx/`).
//!
//! | kernel | covers |
//! | --- | --- |
//! | [`check_warp()`] | shuffles, votes, matches and reductions under any mask |
//! | [`check_half()`] | arithmetic on pairs of f16, conversions from and to f32 |
//! | [`check_product_f16()`] and its siblings | `ldmatrix`, `mma.sync` |
//! | [`check_device()`] | one launch of each kind of instruction |

#![cfg_attr(target_os = "cuda", no_std)]
#![cfg_attr(target_os = "cuda", feature(abi_ptx, asm_experimental_arch))]

mod device;

pub use device::{DEVICE_RESULTS, check_device};

use cuda_std::float16::{self, f16x2};
use cuda_std::prelude::*;
use cuda_std::static_shared;
use cuda_std::tensor::{self, Element};
use cuda_std::thread::{block_idx_x, thread_idx_x};
use cuda_std::warp::{
    FULL, WarpReductionOp, lane_id, sync_warp, warp_match_any, warp_reduce, warp_shuffle_down,
    warp_shuffle_idx, warp_shuffle_up, warp_shuffle_xor, warp_vote_all, warp_vote_any, warp_vote_ballot,
};

/// PTX of all kernels, for compute capability 8.0 and later, as checked in.
#[cfg(not(target_os = "cuda"))]
pub const PTX: &str = include_str!("../ptx/check.sm_80.ptx");

/// Words written per lane by [`check_warp()`].
pub const WARP_RESULTS: usize = 19;

/// Runs shuffles, votes, matches and reductions under the mask of each block.
///
/// Launch: one warp per block. `values` holds 32 words per block; `masks` one word per block, not
/// 0; `out` holds 32 x [`WARP_RESULTS`] words per block; only lanes of the mask write theirs.
///
/// # Safety
/// - The views have the sizes above.
#[kernel(unsafe, block = 32)]
pub unsafe fn check_warp(values: Global<u32>, masks: Global<u32>, out: GlobalMut<u32>) {
    let (lane, block) = (lane_id(), block_idx_x() as usize);
    let mask = masks.get(block);
    if mask >> lane & 1 == 0 {
        return;
    }
    let value = values.get(block * 32 + lane as usize);
    let wide = (value as u64) << 32 | !value as u64;
    // A shuffle must not read a lane outside the mask; such a lane reads itself instead.
    let inside = |source: u32| source < 32 && mask >> source & 1 == 1;
    let signed = value as i32;
    // SAFETY: exactly the lanes of the mask reach this.
    let results: [u32; WARP_RESULTS] = unsafe {
        let inside_or_self = |source: u32| if inside(source) { source } else { lane };
        let (idx, _) = warp_shuffle_idx(mask, value, inside_or_self((lane * 5 + 3) % 32), 32);
        let (idx_wide, _) = warp_shuffle_idx(mask, wide, inside_or_self(31 - lane), 32);
        let piece = inside_or_self((lane & !7) | ((lane * 3 + 1) % 8));
        let (idx_piece, _) = warp_shuffle_idx(mask, value, piece, 8);
        let (same, _) = warp_shuffle_idx(mask, value as f32, lane, 32);
        let whole = mask == FULL;
        let (up, up_there) = if whole { warp_shuffle_up(mask, value, 3, 16) } else { (value, false) };
        let (down, down_there) = if whole { warp_shuffle_down(mask, value, 5, 8) } else { (value, false) };
        let (xor, xor_there) = if whole { warp_shuffle_xor(mask, wide, 9, 32) } else { (wide, true) };
        sync_warp(mask);
        [
            idx,
            (idx_wide >> 32) as u32,
            idx_wide as u32,
            idx_piece,
            same.to_bits(),
            up,
            down,
            xor as u32,
            up_there as u32 | (down_there as u32) << 1 | (xor_there as u32) << 2,
            warp_vote_ballot(mask, value & 1 == 1),
            warp_vote_all(mask, value & 7 != 7) as u32 | (warp_vote_any(mask, value & 7 == 7) as u32) << 1,
            warp_match_any(mask, value & 3),
            warp_match_any(mask, wide & 0x1_0000_0001),
            warp_reduce(mask, value, WarpReductionOp::Add),
            warp_reduce(mask, value, WarpReductionOp::Min) ^ warp_reduce(mask, value, WarpReductionOp::Max),
            warp_reduce(mask, signed, WarpReductionOp::Min) as u32,
            warp_reduce(mask, signed, WarpReductionOp::Max) as u32,
            warp_reduce(mask, value, WarpReductionOp::And) ^ warp_reduce(mask, value, WarpReductionOp::Or),
            warp_reduce(mask, value, WarpReductionOp::Xor),
        ]
    };
    let out = out.offset((block * 32 + lane as usize) * WARP_RESULTS);
    // Constant indices keep the array in registers.
    unroll!(8, I => out.set(I, results[I]));
    unroll!(8, I => out.set(8 + I, results[8 + I]));
    out.set(16, results[16]);
    out.set(17, results[17]);
    out.set(18, results[18]);
}

/// Words written per thread by [`check_half()`].
pub const HALF_RESULTS: usize = 8;

/// Runs half-precision arithmetic.
///
/// Launch: one thread per word. Per thread, `a`, `b` and `c` hold a pair of halves, `x` a float,
/// and `out` [`HALF_RESULTS`] words.
///
/// # Safety
/// - The views have the sizes above for every thread of the grid.
#[kernel(unsafe, block = 64)]
pub unsafe fn check_half(
    a: Global<u32>,
    b: Global<u32>,
    c: Global<u32>,
    x: Global<f32>,
    out: GlobalMut<u32>,
) {
    let i = thread::index_1d() as usize;
    let (a, b, c) = (f16x2(a.get(i)), f16x2(b.get(i)), f16x2(c.get(i)));
    let out = out.offset(i * HALF_RESULTS);
    out.set(0, a.plus(b).0);
    out.set(1, a.minus(b).0);
    out.set(2, a.times(b).0);
    out.set(3, a.mul_add(b, c).0);
    out.set(4, a.min(b).0);
    out.set(5, a.max(b).0);
    out.set(6, float16::to_f32(a.low()).to_bits());
    out.set(7, float16::from_f32(x.get(i)).to_bits() as u32);
}

#[inline(always)]
fn product<E: Element>(a: Global<Quad>, b: Global<Quad>, c: Global<E::Sum>, out: GlobalMut<E::Sum>) {
    let (lane, block) = (thread_idx_x() as usize, block_idx_x() as usize);
    let rows = static_shared!(CHECK_ROWS: [u8; 512]).cast::<Quad>();
    let columns = static_shared!(CHECK_COLUMNS: [u8; 512]).cast::<Quad>();
    rows.set(lane, a.get(block * 32 + lane));
    // Sixteen lines: the load reads four matrices; `mma.sync` uses the first two.
    columns.set(lane, b.get(block * 16 + lane % 16));
    warp::sync();
    // A line is two quads. Lane l addresses row l % 16, quad l / 16, and column l % 8, quad l / 8 %
    // 2.
    let fragment_a = tensor::load_matrices(rows.offset(lane % 16 * 2 + lane / 16));
    let fragment_b = tensor::load_matrices(columns.offset(lane % 8 * 2 + lane / 8 % 2));
    let place = |i: usize| block * 128 + (lane / 4 + 8 * (i / 2)) * 8 + lane % 4 * 2 + i % 2;
    let mut sums = [E::Sum::default(); 4];
    unroll!(4, I => sums[I] = c.get(place(I)));
    warp::sync();
    E::multiply_add(&mut sums, fragment_a, [fragment_b[0], fragment_b[1]]);
    unroll!(4, I => out.set(place(I), sums[I]));
}

macro_rules! product_kernels {
    ($($name:ident $type:ty, $sum:ty;)*) => {$(
        /// Computes `out = a b + c` on tensor cores.
        ///
        /// Launch: one warp per block. Per block, `a` holds 16 rows and `b` 8 columns of 32 bytes,
        /// `c` and `out` 16 x 8 sums.
        ///
        /// # Safety
        /// - The views have the sizes above.
        #[kernel(unsafe, block = 32)]
        pub unsafe fn $name(a: Global<Quad>, b: Global<Quad>, c: Global<$sum>, out: GlobalMut<$sum>) {
            product::<$type>(a, b, c, out);
        }
    )*};
}

product_kernels! {
    check_product_f16 f16, f32;
    check_product_u8 u8, i32;
    check_product_i8 i8, i32;
}
