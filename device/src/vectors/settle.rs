//! End of a descent on codes in bytes: distances by codes and rests together.
//!
//! Rounding to bytes changes the order of near neighbours, most where they are nearer than those of
//! other nodes. So descent on codes finds lists that are longer than wanted, and this kernel orders
//! them by distances of about 15 bits per component. The nearest of a list then lead it.
//!
//! ```text
//! block = row; query = its codes and rests as f32, in shared memory
//! for each key of the list, four lanes together: squared L2 distance or inner product of the row
//! sort the list; write it where it was
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | `codes`, `rests` | rows of `dim` components, `stride` apart, with zeros up to 16 bytes |
//! | `lists` | rows × `k` keys |
//! | shared memory | the query, `k` keys, `k` spare |
//!
//! Optimisations:
//!
//! 1. A lane takes 16 components by two loads of 16 bytes. [`PARTS`] sums in a fixed order give the
//!    CPU's bits ([`sum_of`]).
//! 2. The query is stored in the order in which lanes read it, so that no two of a group meet in a
//!    bank.
//! 3. Blocks take rows in the order of nodes: near rows are read from L2.
//!
//! Bound by instructions: about ten per component make an f32 of two bytes and add its square.

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared, unroll};

use super::code::whole;
use crate::block::element::GROUP;
use crate::block::exact::Metric;
use crate::block::sort::sort_block;
use crate::key::{self, Key, NONE};

/// Threads per block, one row per block.
pub const SETTLE_LISTS_THREADS: u32 = 128;

/// Components that a lane takes at once.
const PIECE: u32 = 16;

/// Sums of a distance: component `i` belongs to sum `i % PARTS`.
pub const PARTS: usize = (GROUP * PIECE) as usize;

/// The end of a descent on codes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Settle {
    /// In: the codes.
    pub codes: Global<i8>,
    /// In: their rests.
    pub rests: Global<i8>,
    /// In: the rows, each once, near ones adjacent.
    pub order: Global<u32>,
    /// In and out: `k` keys of rows per row; [`NONE`] only at the end. Out: ascending distances.
    pub lists: GlobalMut<Key>,
    /// Values from one row to the next, a multiple of 16.
    pub stride: u32,
    /// Components per row.
    pub dim: u32,
    /// Length of the lists, at least 1.
    pub k: u32,
    /// A [`Metric`]: L2 or inner product.
    pub metric: u32,
}

/// Values of the query in shared memory: zeros follow the last component.
const fn query_len(dim: u32) -> u32 {
    dim.div_ceil(PARTS as u32) * PARTS as u32
}

/// Bytes of dynamic shared memory of [`vectors_settle()`].
pub const fn settle_lists_shared_bytes(k: u32, dim: u32) -> u32 {
    query_len(dim) * 4 + 2 * k * 8
}

/// The sum of a lane's sums, or of 16 of [`PARTS`] sums, in the order of all backends.
#[inline(always)]
pub fn sum_of(mut sums: [f32; PIECE as usize]) -> f32 {
    unroll!(8, C => sums[C] += sums[C + 8]);
    unroll!(4, C => sums[C] += sums[C + 4]);
    (sums[0] + sums[2]) + (sums[1] + sums[3])
}

/// The term of a component in a sum.
#[inline(always)]
pub fn term(metric: Metric, x: f32, y: f32) -> f32 {
    match metric {
        Metric::InnerProduct => x * y,
        Metric::L2 | Metric::Cosine => (x - y) * (x - y),
    }
}

/// The place of component `i` of a query: quads of the lanes of a group follow one another.
#[inline(always)]
fn place(i: u32) -> usize {
    let (lane, quad) = (i / PIECE % GROUP, i % PIECE / 4);
    (i / PARTS as u32 * PARTS as u32 + (quad * GROUP + lane) * 4 + i % 4) as usize
}

/// Byte `place` of a word.
#[inline(always)]
fn byte(word: u32, place: usize) -> i8 {
    (word >> (8 * place)) as i8
}

/// Settles lists on codes (see [`Settle`] and the module).
///
/// Launch: a block of [`SETTLE_LISTS_THREADS`] per row; [`settle_lists_shared_bytes`].
///
/// # Safety
/// - The views have the shapes of [`Settle`], and `order` names each row once.
#[kernel(
    unsafe,
    block = SETTLE_LISTS_THREADS,
    shared = settle_lists_shared_bytes(p.k, p.dim),
    blocks_per_multiprocessor = 7
)]
pub unsafe fn vectors_settle(p: Settle) {
    let (thread, lane) = (thread_idx_x(), warp::lane_id() % GROUP);
    let (k, own) = (p.k as usize, p.order.get(block_idx_x() as usize) as usize);
    let query: Shared<f32> = shared::dynamic(0);
    let keys: Shared<Key> = shared::dynamic(query_len(p.dim) as usize * 4);
    let spare = keys.offset(k);
    let list = p.lists.offset(own * k);
    let metric = Metric::from_u32(p.metric);
    let (codes, rests) = (p.codes.offset(own * p.stride as usize), p.rests.offset(own * p.stride as usize));
    let mut i = thread;
    while i < query_len(p.dim) {
        keep_rolled();
        let value = if i < p.dim { whole(codes.get(i as usize), rests.get(i as usize)) } else { 0.0 };
        query.set(place(i), value);
        i += SETTLE_LISTS_THREADS;
    }
    sync_threads();
    let mut first = thread / 32 * (32 / GROUP);
    while first < p.k {
        keep_rolled();
        let number = first + thread % 32 / GROUP;
        let old = if number < p.k { list.get(number as usize) } else { NONE };
        let row = if old != NONE { key::id(old) } else { own as u32 };
        let dim = if old != NONE { p.dim } else { 0 };
        let at = row as usize * p.stride as usize;
        let mut sums = [0f32; PIECE as usize];
        let mut i = lane * PIECE;
        while i < dim {
            keep_rolled();
            let code = p.codes.get_quad(at + i as usize);
            let rest = p.rests.get_quad(at + i as usize);
            unroll!(4, W => {
                // Query and row are zero after their last component.
                let of_query = query.get_quad(((i / PARTS as u32 * GROUP + W as u32) * 16 + lane * 4) as usize);
                unroll!(4, C => {
                    let value = whole(byte(code.0[W], C), byte(rest.0[W], C));
                    sums[4 * W + C] += term(metric, f32::from_bits(of_query.0[C]), value);
                });
            });
            i += PARTS as u32;
        }
        let sum = sum_of(sums);
        let sum = sum + warp::shuffle_xor(sum, 2);
        let sum = sum + warp::shuffle_xor(sum, 1);
        if number < p.k && lane == 0 {
            let distance = if metric == Metric::InnerProduct { -sum } else { sum };
            keys.set(number as usize, if old != NONE { key::pack(distance, row) } else { NONE });
        }
        first += SETTLE_LISTS_THREADS / GROUP;
    }
    sync_threads();
    // Empty slots are last, and stay there.
    let mut len = 0;
    while len < p.k && keys.get(len as usize) != NONE {
        len += 1;
    }
    sync_threads();
    let sorted = sort_block(keys, spare, len);
    let mut i = thread;
    while i < len {
        list.set(i as usize, sorted.get(i as usize));
        i += SETTLE_LISTS_THREADS;
    }
}
