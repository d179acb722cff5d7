//! The least of the keys that two devices have found.
//!
//! ```text
//! thread = four keys, a block apart: keys[i] = min(keys[i], others[i])
//! ```
//!
//! Keys are found by an atomic minimum on each device, so the minimum over the devices is what one
//! of them would have found alone. Bound by memory: two keys are read, and at most one is written.

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, thread_idx_x};

use crate::key::Key;

/// Threads of a block.
pub const REDUCE_THREADS: u32 = 256;

/// Keys of a block.
pub const REDUCE_KEYS: u32 = 4 * REDUCE_THREADS;

/// Replaces each of `count` keys by the key of `others` at its place, if that is less.
///
/// Launch: a block of [`REDUCE_THREADS`] per [`REDUCE_KEYS`] keys.
///
/// # Safety
/// - `keys` and `others` hold `count` keys, and do not overlap.
#[kernel(unsafe, block = REDUCE_THREADS)]
pub unsafe fn reduce_min(keys: GlobalMut<Key>, others: Global<Key>, count: u32) {
    let first = block_idx_x() as usize * REDUCE_KEYS as usize + thread_idx_x() as usize;
    unroll!(4, I => {
        let i = first + I * REDUCE_THREADS as usize;
        if i < count as usize {
            let other = others.get(i);
            if other < keys.get(i) {
                keys.set(i, other);
            }
        }
    });
}
