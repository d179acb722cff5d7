//! From the counts of blocks to places.

use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::thread::{block_dim_x, block_idx_x, sync_threads, thread_idx_x};

use crate::block::scan::{WARPS, exclusive_sum};

/// Threads of a block of [`sort_scan()`], at most.
pub const SCAN_THREADS: u32 = 1024;

/// Threads of a block of [`sort_scan()`] for lines of `len`: no more than have something to do.
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
        // The room is used again.
        sync_threads();
    }
    if thread == 0 {
        totals.set(line, before);
    }
}

/// Makes of each count in a line of `len` the sum of those before it, and puts the total of each line to `totals`.
///
/// Launch: a block of [`scan_threads`] per line; a value of each warp in shared memory.
///
/// # Safety
/// - `counts` holds as many lines as there are blocks, and `totals` as many values.
#[kernel(block = 32..=SCAN_THREADS, shared = WARPS * 4)]
pub unsafe fn sort_scan(counts: GlobalMut<u32>, totals: GlobalMut<u32>, len: u32) {
    scan(counts, totals, len);
}
