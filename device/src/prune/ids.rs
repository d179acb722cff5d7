//! Rows of ids from rows of keys.

use cuda_std::keep_rolled;
use cuda_std::prelude::*;

use crate::key::Key;

/// Threads of a block, a warp per row.
pub const ID_THREADS: u32 = 256;

/// Rows per block.
pub const ID_ROWS: u32 = ID_THREADS / 32;

/// The taking of ids.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Ids {
    /// In: `width` keys per row, [`NONE`](crate::key::NONE) behind the last, none flagged.
    pub keys: Global<Key>,
    /// Out: `stride` ids per row, `u32::MAX` behind the last.
    pub ids: GlobalMut<u32>,
    /// How many rows.
    pub rows: u32,
    /// Keys per row, at most `stride`.
    pub width: u32,
    /// Ids from one row to the next.
    pub stride: u32,
    /// Nothing.
    pub padding: u32,
}

/// Takes the ids of keys (see [`Ids`]).
///
/// Launch: a block of [`ID_THREADS`] per [`ID_ROWS`] rows.
///
/// # Safety
/// - The views hold what [`Ids`] says.
#[kernel(block = ID_THREADS)]
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
        // The low word of no key is no id.
        to.set(i as usize, if i < p.width { from.get(i as usize) as u32 } else { u32::MAX });
        i += 32;
    }
}
