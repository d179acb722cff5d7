//! Store: rows of an index from forward and reverse edges (paper section 5.1).
//!
//! # Algorithm
//!
//! ```text
//! prune_store, for each row, one warp:
//!     append the first `first` forward edges, then the reverse edges, then the other forward edges
//!     skip ids that the row has; stop when it is full
//! prune_merge, for each node, one block:
//!     merge the nearest 512 reverse edges with the forward edges, without duplicates, to 512 slots
//! ```
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `forward` | rows × `width` keys, [`NONE`] after the last |
//! | `reverse` | edges in order of target; `offsets` has rows + 1 values |
//! | `ids` | `rows` × `degree` ids, `NO_ID` after the last |
//! | `merged` | nodes × [`MERGED`] keys, ascending, [`NONE`] after the last |
//! | shared memory of `prune_store` | `degree` ids per warp |
//! | shared memory of `prune_merge` | [`MERGED`] + 2 `width` keys and a count |
//!
//! # Optimisations
//!
//! 1. `prune_store` compares 32 ids at a time with the row in shared memory, four ids per load. Ids
//!    of one source differ, so the 32 need not be compared with each other.
//! 2. `prune_merge` finds duplicates by binary search: the key of an id is the same in both
//!    directions.
//! 3. `prune_merge` reads 512 reverse edges at most: an edge that is not among the nearest 512 of
//!    one direction is not among the nearest 512 of both.
//!
//! # Speed
//!
//! Both are bound by memory. `prune_store`: 650 bytes per node at degree 32. `prune_merge` writes
//! all 512 slots: 4 KiB per node, 1 ms for 1,000,000 nodes.

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x, warp_idx};
use cuda_std::{keep_rolled, shared};

use crate::block::sort::{rank, sort_block};
use crate::key::{Key, NO_ID, NONE};

/// Maximum number of forward and reverse edges of a node that are filtered once more.
pub const MERGED: u32 = 512;

/// Threads per block of [`prune_store()`], one warp per row.
pub const STORE_THREADS: u32 = 128;

/// Rows per block.
pub const STORE_ROWS: u32 = STORE_THREADS / 32;

/// Threads per block of [`prune_merge()`], one row per block.
pub const MERGE_THREADS: u32 = 64;

/// Arguments of [`prune_store()`].
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Store {
    /// In: `width` keys per row, of distinct ids, [`NONE`] after the last.
    pub forward: Global<Key>,
    /// In: keys of sources, best first; row i has `offsets[i]` to `offsets[i + 1]`.
    pub reverse: Global<Key>,
    /// In: `rows` + 1 offsets in `reverse`.
    pub offsets: Global<u32>,
    /// Out: `degree` distinct ids per row, `NO_ID` after the last.
    pub ids: GlobalMut<u32>,
    /// Number of rows.
    pub rows: u32,
    /// Forward keys per row.
    pub width: u32,
    /// Ids per row, at least 1.
    pub degree: u32,
    /// Forward edges that come before the reverse edges, at most `width`.
    pub first: u32,
}

/// Dynamic shared memory in bytes of [`prune_store()`]: the block's rows.
pub const fn store_shared_bytes(degree: u32) -> u32 {
    STORE_ROWS * degree.next_multiple_of(4) * 4
}

/// A row that a warp fills.
struct Row {
    /// `NO_ID` after the last, up to a multiple of four.
    ids: Shared<u32>,
    len: u32,
    degree: u32,
}

impl Row {
    /// Appends the ids of `count` keys that the row lacks, until it is full. The whole warp calls
    /// this.
    #[inline(always)]
    #[track_caller]
    fn fill(&mut self, keys: Global<Key>, count: u32) {
        let lane = warp::lane_id();
        let mut first = 0;
        while first < count && self.len < self.degree {
            keep_rolled();
            let key = if first + lane < count { keys.get((first + lane) as usize) } else { NONE };
            let mut is_new = key != NONE;
            let mut i = 0;
            while i < self.len {
                keep_rolled();
                let four = self.ids.get_quad(i as usize);
                unroll!(4, C => is_new &= four.0[C] != key as u32);
                i += 4;
            }
            let news = warp::ballot(is_new);
            let place = self.len + warp::lanes_before(news);
            // All lanes have read before one writes.
            warp::sync();
            if is_new && place < self.degree {
                self.ids.set(place as usize, key as u32);
            }
            warp::sync();
            self.len += news.count_ones();
            first += 32;
        }
    }
}

/// Fills rows (see [`Store`] and the module).
///
/// Launch: a block of [`STORE_THREADS`] per [`STORE_ROWS`] rows; [`store_shared_bytes`].
///
/// # Safety
/// - The views match the fields of [`Store`].
#[kernel(unsafe, block = STORE_THREADS, shared = store_shared_bytes(p.degree))]
pub unsafe fn prune_store(p: Store) {
    let row = block_idx_x() * STORE_ROWS + warp_idx();
    if row >= p.rows {
        return;
    }
    let (lane, padded) = (warp::lane_id(), p.degree.next_multiple_of(4));
    let ids = shared::dynamic::<u32>(0).offset((warp_idx() * padded) as usize);
    let mut i = lane;
    while i < padded {
        keep_rolled();
        ids.set(i as usize, NO_ID);
        i += 32;
    }
    warp::sync();
    let mut filled = Row { ids, len: 0, degree: p.degree };
    let forward = p.forward.offset(row as usize * p.width as usize);
    let (begin, end) = (p.offsets.get(row as usize), p.offsets.get(row as usize + 1));
    filled.fill(forward, p.first);
    filled.fill(p.reverse.offset(begin as usize), end - begin);
    filled.fill(forward.offset(p.first as usize), p.width - p.first);
    let out = p.ids.offset(row as usize * p.degree as usize);
    let mut i = lane;
    while i < p.degree {
        keep_rolled();
        out.set(i as usize, ids.get(i as usize));
        i += 32;
    }
}

/// Arguments of [`prune_merge()`].
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MergeReverse {
    /// In: `width` keys per row, of distinct ids, [`NONE`] after the last.
    pub forward: Global<Key>,
    /// In: ascending keys of sources; row i has `offsets[i]` to `offsets[i + 1]`. The key of an id
    /// is the same in both directions.
    pub reverse: Global<Key>,
    /// In: rows + 1 offsets in `reverse`.
    pub offsets: Global<u32>,
    /// In: one row per block.
    pub nodes: Global<u32>,
    /// Out: [`MERGED`] keys per block: the nearest of both directions, ascending and distinct,
    /// [`NONE`] after the last.
    pub merged: GlobalMut<Key>,
    /// Forward keys per row, at least 1.
    pub width: u32,
    /// Unused.
    pub padding: u32,
}

/// Dynamic shared memory in bytes of [`prune_merge()`]: reverse keys, forward keys with room to
/// sort them, and a count.
pub const fn merge_shared_bytes(width: u32) -> u32 {
    (MERGED + 2 * width + 1) * 8
}

/// Merges forward and reverse edges (see [`MergeReverse`] and the module).
///
/// Launch: a block of [`MERGE_THREADS`] per node; [`merge_shared_bytes`].
///
/// # Safety
/// - The views match the fields of [`MergeReverse`].
#[kernel(unsafe, block = MERGE_THREADS, shared = merge_shared_bytes(p.width))]
pub unsafe fn prune_merge(p: MergeReverse) {
    let (thread, node) = (thread_idx_x(), block_idx_x());
    let reverse: Shared<Key> = shared::dynamic(0);
    let forward = reverse.offset(MERGED as usize);
    let spare = forward.offset(p.width as usize);
    let count: Shared<u32> = spare.offset(p.width as usize).cast();
    let row = p.nodes.get(node as usize) as usize;
    let (begin, end) = (p.offsets.get(row), p.offsets.get(row + 1));
    let reverse_len = if end - begin < MERGED { end - begin } else { MERGED };
    let mut i = thread;
    while i < reverse_len {
        keep_rolled();
        reverse.set(i as usize, p.reverse.get((begin + i) as usize));
        i += MERGE_THREADS;
    }
    if thread == 0 {
        count.set(0, 0);
    }
    sync_threads();
    // Forward edges that are not reverse edges, in any order, sorted below.
    let mut i = thread;
    while i < p.width {
        keep_rolled();
        let key = p.forward.get(row * p.width as usize + i as usize);
        let place = rank(reverse, reverse_len, key);
        let is_known = place < reverse_len && reverse.get(place as usize) == key;
        if key != NONE && !is_known {
            forward.set(count.fetch_add(0, 1) as usize, key);
        }
        i += MERGE_THREADS;
    }
    sync_threads();
    let forward_len = count.get(0);
    let sorted = sort_block(forward, spare, forward_len);

    let out = p.merged.offset(node as usize * MERGED as usize);
    let mut i = thread;
    while i < reverse_len {
        keep_rolled();
        let key = reverse.get(i as usize);
        let place = i + rank(sorted, forward_len, key);
        if place < MERGED {
            out.set(place as usize, key);
        }
        i += MERGE_THREADS;
    }
    let mut i = thread;
    while i < forward_len {
        keep_rolled();
        let key = sorted.get(i as usize);
        let place = i + rank(reverse, reverse_len, key);
        if place < MERGED {
            out.set(place as usize, key);
        }
        i += MERGE_THREADS;
    }
    let mut i = reverse_len + forward_len + thread;
    while i < MERGED {
        keep_rolled();
        out.set(i as usize, NONE);
        i += MERGE_THREADS;
    }
}
