//! Rows of ids from rows of keys.
//!
//! # Algorithm
//!
//! For each row, one warp: copy the low words of its keys, then `NO_ID`.
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `keys` | `rows` × `width` keys |
//! | `ids` | `rows` × `stride` ids |
//!
//! # Speed
//!
//! Bound by memory: 12 bytes per id. [`super::detours`] reads the ids many times, in half the bytes
//! of the keys and by quads.

use cuda_std::keep_rolled;
use cuda_std::prelude::*;

use crate::key::{Key, NO_ID};

/// Threads per block, one warp per row.
pub const ID_THREADS: u32 = 256;

/// Rows per block.
pub const ID_ROWS: u32 = ID_THREADS / 32;

/// Arguments of [`prune_ids()`].
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Ids {
    /// In: `width` keys per row, [`NONE`](crate::key::NONE) after the last, without
    /// flags.
    pub keys: Global<Key>,
    /// Out: `stride` ids per row, `NO_ID` after the last.
    pub ids: GlobalMut<u32>,
    /// Number of rows.
    pub rows: u32,
    /// Keys per row, at most `stride`.
    pub width: u32,
    /// Ids per row of the result.
    pub stride: u32,
    /// Unused.
    pub padding: u32,
}

/// Copies the ids of keys (see [`Ids`]).
///
/// Launch: a block of [`ID_THREADS`] per [`ID_ROWS`] rows.
///
/// # Safety
/// - The views match the fields of [`Ids`].
#[kernel(unsafe, block = ID_THREADS)]
pub unsafe fn prune_ids(p: Ids) {
    let row = thread::block_idx_x() * ID_ROWS + thread::warp_idx();
    if row >= p.rows {
        return;
    }
    let from = p.keys.offset(row as usize * p.width as usize);
    let to = p.ids.offset(row as usize * p.stride as usize);
    let mut i = warp::lane_id();
    while i < p.stride {
        keep_rolled();
        // The low word of NONE is `NO_ID`.
        to.set(i as usize, if i < p.width { from.get(i as usize) as u32 } else { NO_ID });
        i += 32;
    }
}
