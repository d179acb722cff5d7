//! Monotonic graphs: from every row, an edge leads nearer to every other row.
//!
//! # Algorithm
//!
//! ```text
//! for each node, one block:
//!     left = all other nodes, at their rule distances; chunks of 32 are dealt to the warps
//!     until the row is full or no node is left:
//!         r = the nearest node left: the minimum of the warps' nearest
//!         append r to the row; load r's vector to shared memory
//!         for each node q left to the warp:               (32 at once, a lane each)
//!             drop q if it is r, coincides with r, or slack · distance(r, q) < distance(node, q)
//! ```
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `rows` | `count` vectors, see [`Rows`] |
//! | `left` | blocks × [`left_keys`] keys, written first |
//! | `edges` | `count` × `degree` ids, nearest first, then [`NO_ID`] |
//! | shared memory | one vector; a key per warp |
//!
//! # Optimisations
//!
//! 1. Each edge drops half of the nodes left, about. So a node takes two distances for each other
//!    node, however many edges it has.
//! 2. Each warp closes the gaps of its own list. Warps only agree on the nearest node left: two
//!    barriers per edge.
//! 3. Lists of thousands of nodes do not fit shared memory. A block takes one node after another,
//!    so that its list stays in the L2 cache.
//!
//! # Speed
//!
//! Floor: 2 · `count`² rows are read from the L2 cache (206 GB, or 37 ms at 5.5 TB/s, for 16,384
//! rows of 96 f32 values).

use cuda_std::prelude::*;
use cuda_std::thread::{block_dim_x, block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared};

use super::filter::least_of_warp;
use crate::block::copied;
use crate::block::element::Element;
use crate::block::exact::query_bytes;
use crate::block::rows::Rows;
use crate::block::threads::Threads;
use crate::key::{self, Key, NO_ID, NONE};

/// Threads per block.
pub const MONOTONIC_THREADS: u32 = 256;

const WARPS: u32 = MONOTONIC_THREADS / 32;

/// Arguments of the kernels `prune_monotonic_*`.
#[repr(C)]
pub struct Monotonic<T> {
    /// In: the rows.
    pub rows: Rows<T>,
    /// Scratch: [`left_keys`] keys per block.
    pub left: GlobalMut<Key>,
    /// Out: `degree` ids per row: ends of edges, nearest first, then [`NO_ID`].
    pub edges: GlobalMut<u32>,
    /// Number of rows.
    pub count: u32,
    /// Maximum number of edges of a row, at least 1.
    pub degree: u32,
    /// An edge to r removes one to q if the rule distance of r and q, times this, is less than that
    /// of the node and q.
    pub slack: f32,
    /// Unused.
    pub padding: u32,
}

copied! {
    Monotonic<T>;
}

/// Keys of the nodes left to a block, for `count` rows.
pub const fn left_keys(count: u32) -> u32 {
    count.div_ceil(32).next_multiple_of(WARPS) * 32
}

/// Dynamic shared memory in bytes, for rows of `dim` components.
pub const fn monotonic_shared_bytes(dim: u32) -> u32 {
    // The last end's vector, and each warp's nearest node.
    query_bytes(dim) + WARPS * 8
}

/// The nodes left to a warp, for one node.
struct Left<'a, T: Element> {
    p: &'a Monotonic<T>,
    /// A row in shared memory.
    values: Shared<T::Query>,
    /// The nearest node left to each warp.
    nearest: Shared<Key>,
    /// The warp's keys.
    keys: GlobalMut<Key>,
    warp: u32,
    count: u32,
}

impl<T: Element> Left<'_, T> {
    /// Loads row `id`. The whole block calls this, after a barrier since the last row was used.
    #[inline(always)]
    fn load(&self, id: u32) {
        self.p.rows.load(self.values, id, Threads::new(thread_idx_x(), block_dim_x()));
        sync_threads();
    }

    /// Appends the keys of the lanes in which `stays` holds; all lanes have read the slots that it
    /// overwrites. The whole warp calls this.
    #[inline(always)]
    fn append(&mut self, key: Key, stays: bool) {
        let staying = warp::ballot(stays);
        if stays {
            self.keys.set((self.count + warp::lanes_before(staying)) as usize, key);
        }
        self.count += staying.count_ones();
    }

    /// All nodes but `node`, whose row is loaded. Returns the lane's nearest. The whole warp calls
    /// this.
    #[inline(always)]
    fn take_all(&mut self, node: u32) -> Key {
        let p = self.p;
        let point = p.rows.point(self.values, node);
        let mut nearest = NONE;
        let mut first = 32 * self.warp;
        while first < p.count {
            keep_rolled();
            let id = first + warp::lane_id();
            let count = if p.count - first < 32 { p.count - first } else { 32 };
            let key = key::pack(p.rows.distances(&point, id, count), id);
            let stays = id < p.count && id != node;
            self.append(key, stays);
            nearest = if stays && key < nearest { key } else { nearest };
            first += MONOTONIC_THREADS;
        }
        warp::sync();
        nearest
    }

    /// Drops the nodes that an edge to `end`, whose row is loaded, removes. Returns the lane's
    /// nearest of those left. The whole warp calls this.
    #[inline(always)]
    fn drop_behind(&mut self, end: Key) -> Key {
        let p = self.p;
        let point = p.rows.point(self.values, key::id(end));
        let (all, mut first) = (self.count, 0);
        let mut nearest = NONE;
        self.count = 0;
        while first < all {
            keep_rolled();
            let i = first + warp::lane_id();
            let key = if i < all { self.keys.get(i as usize) } else { NONE };
            let count = if all - first < 32 { all - first } else { 32 };
            let apart = p.rows.distances(&point, key::id(key), count);
            let is_other = key != NONE && key != end;
            // Of nodes that coincide, one has an edge.
            let stays = is_other && apart > 0.0 && p.slack * apart >= key::distance(key);
            warp::sync();
            self.append(key, stays);
            nearest = if stays && key < nearest { key } else { nearest };
            first += 32;
        }
        warp::sync();
        nearest
    }

    /// The least key of the block's lanes. The whole block calls this.
    #[inline(always)]
    fn least(&self, key: Key) -> Key {
        let mut key = least_of_warp(key);
        if warp::lane_id() == 0 {
            self.nearest.set(self.warp as usize, key);
        }
        sync_threads();
        unroll!(8, I => {
            let other = self.nearest.get(I);
            key = if other < key { other } else { key };
        });
        key
    }
}

#[inline(always)]
fn monotonic<T: Element>(p: &Monotonic<T>) {
    let values: Shared<T::Query> = shared::dynamic(0);
    let nearest: Shared<Key> = shared::dynamic(query_bytes(p.rows.dim) as usize);
    let warp = thread_idx_x() / 32;
    let of_block = left_keys(p.count);
    let keys = p.left.offset((block_idx_x() * of_block + warp * (of_block / WARPS)) as usize);
    let mut node = block_idx_x();
    while node < p.count {
        keep_rolled();
        let mut left = Left { p, values, nearest, keys, warp, count: 0 };
        left.load(node);
        let mut next = left.take_all(node);
        let edges = p.edges.offset(node as usize * p.degree as usize);
        let mut found = 0;
        loop {
            keep_rolled();
            let end = left.least(next);
            if end == NONE {
                break;
            }
            if thread_idx_x() == 0 {
                edges.set(found as usize, key::id(end));
            }
            found += 1;
            if found == p.degree {
                break;
            }
            left.load(key::id(end));
            next = left.drop_behind(end);
        }
        let mut i = found + thread_idx_x();
        while i < p.degree {
            edges.set(i as usize, NO_ID);
            i += MONOTONIC_THREADS;
        }
        node += grid_dim_x();
    }
}

macro_rules! monotonic_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Finds the edges of a monotonic graph (see [`Monotonic`] and the module).
        ///
        /// Launch: any number of blocks of [`MONOTONIC_THREADS`] in x, each with its keys in
        /// `left`; [`monotonic_shared_bytes`].
        ///
        /// # Safety
        /// - The views match the fields of [`Monotonic`].
        #[kernel(
            unsafe,
            block = MONOTONIC_THREADS,
            shared = monotonic_shared_bytes(p.rows.dim),
            blocks_per_multiprocessor = 4
        )]
        pub unsafe fn $name(p: Monotonic<$type>) {
            monotonic(&p);
        }
    )*};
}

monotonic_kernels! {
    prune_monotonic_f32 f32;
    prune_monotonic_f16 f16;
    prune_monotonic_u8 u8;
    prune_monotonic_i8 i8;
}
