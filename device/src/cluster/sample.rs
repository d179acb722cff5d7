//! The sample of k-means: one vector from each of equal stretches.
//!
//! ```text
//! thread = stretch: ids[stretch] = a draw from n * stretch / count .. n * (stretch + 1) / count
//! ```

use cuda_std::prelude::*;

use crate::random::{Draws, Stage};

/// Threads of a block of the kernels with one thread per value.
pub const VALUE_THREADS: u32 = 256;

/// A place drawn from stretch `index` of `count` equal stretches of `n` places; `count` is at most
/// `n`.
#[inline(always)]
pub fn drawn(draws: Draws, index: u32, count: u32, n: u32) -> u32 {
    let end = |index: u32| (index as u64 * n as u64).checked_div(count as u64).unwrap_or(0);
    let first = end(index);
    (first + draws.below(0, end(index + 1) - first)) as u32
}

/// Draws one vector from each of `count` stretches of `n` vectors; `count` is at most `n`.
///
/// Launch: a thread per stretch, blocks of [`VALUE_THREADS`]. `ids` holds `count` values.
///
/// # Safety
/// - The view has the size above.
#[kernel(unsafe, block = VALUE_THREADS)]
pub unsafe fn cluster_sample(ids: GlobalMut<u32>, count: u32, n: u32, seed: u64) {
    let index = thread::index_1d();
    if index < count {
        let draws = Draws::new(seed, Stage::Cells, 0, index as u64);
        ids.set(index as usize, drawn(draws, index, count, n));
    }
}
