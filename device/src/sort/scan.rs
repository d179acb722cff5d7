//! Second step of a pass: counts become sums over earlier blocks.
//!
//! ```text
//! block = line (a digit): for each stretch of as many counts as threads:
//!     counts[i] = sum of the line's earlier counts
//! totals[line] = sum of the line
//! ```
//!
//! A block has no more threads than its line has counts. Bound by latency: a line of 1024 counts is
//! one stretch, that is 4 million keys.

use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::thread::{block_dim_x, block_idx_x, sync_threads, thread_idx_x};

use crate::block::scan::{WARPS, exclusive_sum};

/// Threads of a block of [`sort_scan()`], at most.
pub const SCAN_THREADS: u32 = 1024;

/// Threads of a block of [`sort_scan()`] for lines of `len` counts.
pub const fn scan_threads(len: u32) -> u32 {
    if len < SCAN_THREADS { len.next_multiple_of(32) } else { SCAN_THREADS }
}

#[inline(always)]
fn scan(counts: GlobalMut<u32>, totals: GlobalMut<u32>, len: u32) {
    let (thread, line) = (thread_idx_x(), block_idx_x() as usize);
    let room: Shared<u32> = shared::dynamic(0);
    let counts = counts.offset(line * len as usize);
    let mut before = 0;
    let mut first = 0;
    while first < len {
        let i = first + thread;
        let value = if i < len { counts.get(i as usize) } else { 0 };
        let (sum, total) = exclusive_sum(value, room);
        if i < len {
            counts.set(i as usize, before + sum);
        }
        before += total;
        first += block_dim_x();
        // The next sum reuses the room.
        sync_threads();
    }
    if thread == 0 {
        totals.set(line, before);
    }
}

/// Replaces each count in a line of `len` by the sum of the earlier ones, and writes the line's
/// total to `totals`.
///
/// Launch: a block of [`scan_threads`] per line; a value per warp in shared memory.
///
/// # Safety
/// - `counts` holds a line per block, and `totals` a value per block.
#[kernel(unsafe, block = 32..=SCAN_THREADS, shared = WARPS * 4)]
pub unsafe fn sort_scan(counts: GlobalMut<u32>, totals: GlobalMut<u32>, len: u32) {
    scan(counts, totals, len);
}
