//! From the counts of blocks to places.

use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::thread::{block_dim_x, block_idx_x, sync_threads, thread_idx_x};

use super::Pass;
use crate::block::scan::{WARPS, exclusive_sum};

/// Threads of a block of [`sort_scan()`], at most.
pub const SCAN_THREADS: u32 = 1024;

/// Threads of a block of [`sort_scan()`] for so many blocks of keys: no more than have something to do.
pub const fn scan_threads(blocks: u32) -> u32 {
    if blocks < SCAN_THREADS { blocks.next_multiple_of(32) } else { SCAN_THREADS }
}

#[inline(always)]
fn scan(p: &Pass) {
    let (thread, digit) = (thread_idx_x(), block_idx_x() as usize);
    let room: Shared<u32> = shared::dynamic(0);
    let counts = p.counts.offset(digit * p.blocks as usize);
    let mut before = 0;
    let mut first = 0;
    while first < p.blocks {
        let i = first + thread;
        let value = if i < p.blocks { counts.get(i as usize) } else { 0 };
        let (sum, total) = exclusive_sum(value, room);
        if i < p.blocks {
            counts.set(i as usize, before + sum);
        }
        before += total;
        first += block_dim_x();
        // The room is used again.
        sync_threads();
    }
    if thread == 0 {
        p.totals.set(digit, before);
    }
}

/// Makes of each digit's counts the sums of the counts of the blocks before, and their total (see [`Pass`]).
///
/// Launch: a block of [`scan_threads`] per digit; a value of each warp in shared memory.
///
/// # Safety
/// - The views hold what [`Pass`] says.
#[kernel(block = 32..=SCAN_THREADS, shared = WARPS * 4)]
pub unsafe fn sort_scan(p: Pass) {
    scan(&p);
}
