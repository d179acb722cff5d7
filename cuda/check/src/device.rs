//! One launch of each kind of instruction that the kernels of this project rely on, for a check of
//! a device before it is used.

use cuda_std::atomic::Scope;
use cuda_std::copy;
use cuda_std::prelude::*;
use cuda_std::static_shared;
use cuda_std::tensor::{self, Element};
use cuda_std::thread::thread_idx_x;
use cuda_std::warp::{FULL, WarpReductionOp, warp_reduce, warp_shuffle_xor, warp_vote_ballot};

/// Words written per lane by [`check_device()`]: four sums of products of u8, of i8 and of f16, a
/// shuffle, a vote, and a reduction.
pub const DEVICE_RESULTS: usize = 15;

/// The product of 16 rows and 8 columns of 32 bytes: four sums per lane.
#[inline(always)]
fn product<E: Element>(a: Global<Quad>, b: Global<Quad>) -> [E::Sum; 4] {
    let lane = thread_idx_x() as usize;
    let rows = static_shared!(CHECKED_ROWS: [u8; 512]).cast::<Quad>();
    let columns = static_shared!(CHECKED_COLUMNS: [u8; 512]).cast::<Quad>();
    copy::quad(rows.offset(lane), a.offset(lane), 16);
    // The last sixteen copies read nothing and write zeros.
    copy::quad(columns.offset(lane), b.offset(lane % 16), if lane < 16 { 16 } else { 0 });
    copy::commit();
    copy::wait::<0>();
    warp::sync();
    let fragment_a = tensor::load_matrices(rows.offset(lane % 16 * 2 + lane / 16));
    let fragment_b = tensor::load_matrices(columns.offset(lane % 8 * 2 + lane / 8 % 2));
    // The next product overwrites the rows.
    warp::sync();
    let mut sums = [E::Sum::default(); 4];
    E::multiply_add(&mut sums, fragment_a, [fragment_b[0], fragment_b[1]]);
    sums
}

/// Runs asynchronous copies, `ldmatrix`, `mma.sync` of u8, i8 and f16, a shuffle, a vote, a
/// reduction, and atomics.
///
/// Launch: one block of one warp. `bytes` holds 16 rows and then 8 columns of 32 bytes; `halves`
/// the same of 16 f16; `words` 32 words. `out` gets [`DEVICE_RESULTS`] words per lane. The words of
/// all lanes are added to `totals[0]`, their maximum with `totals[1]` is written there, and `least`
/// keeps its minimum with every word, as u64.
///
/// # Safety
/// - The views have the sizes above, and `totals` and `least` are written.
#[kernel(unsafe, block = 32)]
pub unsafe fn check_device(
    bytes: Global<Quad>,
    halves: Global<Quad>,
    words: Global<u32>,
    out: GlobalMut<u32>,
    totals: GlobalMut<u32>,
    least: GlobalMut<u64>,
) {
    let lane = thread_idx_x() as usize;
    let out = out.offset(lane * DEVICE_RESULTS);
    let unsigned = product::<u8>(bytes, bytes.offset(32));
    let signed = product::<i8>(bytes, bytes.offset(32));
    let floats = product::<f16>(halves, halves.offset(32));
    unroll!(4, I => out.set(I, unsigned[I] as u32));
    unroll!(4, I => out.set(4 + I, signed[I] as u32));
    unroll!(4, I => out.set(8 + I, floats[I].to_bits()));
    let word = words.get(lane);
    // SAFETY: all lanes of the warp reach this.
    unsafe {
        out.set(12, warp_shuffle_xor(FULL, word, 9, 32).0);
        out.set(13, warp_vote_ballot(FULL, word & 1 == 1));
        out.set(14, warp_reduce(FULL, word, WarpReductionOp::Add));
    }
    totals.fetch_add(0, word, Scope::Device);
    totals.fetch_max(1, word, Scope::Device);
    least.fetch_min(0, u64::from(word), Scope::Device);
}
