//! First step of a pass: the digits of each block's keys are counted.
//!
//! ```text
//! block = 4096 keys: counts[digit] += 1 in shared memory; write all counts
//! ```
//!
//! A thread's eight loads are under way together. Bound by memory: each key is read once.

use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};

use super::{DIGITS, KEYS_PER_THREAD, Pass, SORT_KEYS, SORT_THREADS};

#[inline(always)]
fn count(p: &Pass) {
    let (thread, block) = (thread_idx_x(), block_idx_x());
    let counts: Shared<u32> = shared::dynamic(0);
    if thread < DIGITS {
        counts.set(thread as usize, 0);
    }
    sync_threads();
    let first = block as usize * SORT_KEYS as usize + thread as usize;
    unroll!(8, I => {
        let i = first + I * SORT_THREADS as usize;
        if i < p.count as usize {
            counts.fetch_add(p.digit(p.keys.get(i)) as usize, 1);
        }
    });
    sync_threads();
    if thread < DIGITS {
        p.counts.set(thread as usize * p.blocks as usize + block as usize, counts.get(thread as usize));
    }
}

const _: () = assert!(KEYS_PER_THREAD == 8);

/// Counts the digits of each block's keys (see [`Pass`]).
///
/// Launch: a block of [`SORT_THREADS`] per [`SORT_KEYS`] keys; a count per digit in shared memory.
///
/// # Safety
/// - The views have the shapes of [`Pass`].
#[kernel(unsafe, block = SORT_THREADS, shared = DIGITS * 4)]
pub unsafe fn sort_count(p: Pass) {
    count(&p);
}
