//! Monotonic rows: the rule of NSG with all other rows as candidates (Fu et al. 2019, *NSG*,
//! section 3.3).
//!
//! # Algorithm
//!
//! ```text
//! for each node, one block:
//!     deal all other rows to the warps, with their distances from the node
//!     until the row is full or no candidate is left:
//!         a = the nearest candidate of the block: the minimum of the warps' nearest ones
//!         append a to the row; load a's vector to shared memory
//!         for each candidate c left to the warp:          (32 at once, a lane each)
//!             keep c if distance(a, c) >= distance(node, c)
//!         the warp's nearest = the minimum of what it kept
//! ```
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `rows` | `count` base vectors, see [`Rows`]; not under inner product |
//! | `left` | blocks × `count` rounded up to [`MONOTONIC_THREADS`], keys |
//! | `edges` | nodes of the launch × `most` ids in order of distance, then `u32::MAX` |
//! | shared memory | one vector; a key per warp |
//!
//! # Optimisations
//!
//! 1. Candidates are never sorted: the test against one edge finds the next edge as a minimum.
//! 2. Candidates lie in global memory, since there are as many as rows. Each warp closes the gaps
//!    of its own, and reads and writes 32 consecutive keys.
//! 3. A block takes one node after another, so that the candidates need no more memory than the
//!    blocks that run at a time.
//!
//! # Speed
//!
//! Every edge takes away about half of the candidates at first, so a node takes some 4 × `count`
//! distances. Rows are read from the L2 cache: 15,500 rows of 256 bytes take 250 GB, 50 ms at
//! 5 TB/s.

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, grid_dim_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared};

use crate::block::copied;
use crate::block::element::Element;
use crate::block::exact::query_bytes;
use crate::block::rows::{Rows, RulePoint};
use crate::key::{self, Key, NONE};

/// Threads per block.
pub const MONOTONIC_THREADS: u32 = 256;

/// Warps per block.
const WARPS: u32 = MONOTONIC_THREADS / 32;

/// Arguments of the kernels.
#[repr(C)]
pub struct Monotonic<T> {
    /// In: the base.
    pub rows: Rows<T>,
    /// Room for the candidates of each block: [`monotonic_slots`] keys.
    pub left: GlobalMut<Key>,
    /// Out: `most` ids for each node of the launch: nearest first, then `u32::MAX`.
    pub edges: GlobalMut<u32>,
    /// Number of rows, at least 1.
    pub count: u32,
    /// The first node of the launch.
    pub first: u32,
    /// Nodes of the launch; `first + nodes` is at most `count`.
    pub nodes: u32,
    /// Most edges of a node, at least 1.
    pub most: u32,
}

copied! {
    Monotonic<T>;
}

/// Dynamic shared memory in bytes: an edge's vector, and each warp's nearest key.
pub const fn monotonic_shared_bytes(dim: u32) -> u32 {
    query_bytes(dim) + WARPS * 8
}

/// Keys of candidates per block.
pub const fn monotonic_slots(count: u32) -> u32 {
    count.next_multiple_of(MONOTONIC_THREADS)
}

/// The candidates left to a warp.
struct Left {
    keys: GlobalMut<Key>,
    warp: u32,
    count: u32,
}

impl Left {
    /// The place of this warp's candidate `i` among the block's: 32 of a warp lie side by side.
    #[inline(always)]
    fn place(&self, i: u32) -> u32 {
        (i / 32 * WARPS + self.warp) * 32 + i % 32
    }

    /// Keeps each lane's `key`, unless it is [`NONE`], behind those kept so far. The whole warp
    /// calls this once all lanes have read what lies there.
    #[inline(always)]
    fn keep(&mut self, key: Key) {
        let kept = warp::ballot(key != NONE);
        warp::sync();
        if key != NONE {
            let i = self.count + (kept & ((1 << warp::lane_id()) - 1)).count_ones();
            self.keys.set(self.place(i) as usize, key);
        }
        self.count += kept.count_ones();
    }

    /// Deals all rows but `node`, whose vector is `point`. Returns the lane's nearest key.
    #[inline(always)]
    fn deal<T: Element>(&mut self, p: &Monotonic<T>, point: &RulePoint<T>, node: u32) -> Key {
        let (mut nearest, mut first) = (NONE, 0);
        while self.place(first) < p.count {
            keep_rolled();
            let id = self.place(first + warp::lane_id());
            let rest = p.count - self.place(first);
            let distance = p.rows.distances(point, id, if rest < 32 { rest } else { 32 });
            let is_other = id < p.count && id != node;
            let key = if is_other { key::pack(distance, id) } else { NONE };
            nearest = if key < nearest { key } else { nearest };
            self.keep(key);
            first += 32;
        }
        warp::sync();
        nearest
    }

    /// Takes away `edge` and the candidates that are nearer to it than to the node; its vector is
    /// `point`. Returns the lane's nearest key.
    #[inline(always)]
    fn test<T: Element>(&mut self, p: &Monotonic<T>, point: &RulePoint<T>, edge: Key) -> Key {
        let count = self.count;
        let (mut nearest, mut first) = (NONE, 0);
        self.count = 0;
        while first < count {
            keep_rolled();
            let i = first + warp::lane_id();
            let key = if i < count { self.keys.get(self.place(i) as usize) } else { NONE };
            let rest = count - first;
            let distance = p.rows.distances(point, key::id(key), if rest < 32 { rest } else { 32 });
            let stays = key != NONE && key != edge && distance >= key::distance(key);
            let key = if stays { key } else { NONE };
            nearest = if key < nearest { key } else { nearest };
            self.keep(key);
            first += 32;
        }
        warp::sync();
        nearest
    }
}

/// The least key of all threads. The whole block calls this.
#[inline(always)]
fn least(mut key: Key, nearest: Shared<Key>) -> Key {
    let mut lanes = 1;
    while lanes < 32 {
        let other = warp::shuffle_xor(key, lanes);
        key = if other < key { other } else { key };
        lanes *= 2;
    }
    if warp::lane_id() == 0 {
        nearest.set(thread_idx_x() as usize / 32, key);
    }
    sync_threads();
    let mut warp = 0;
    while warp < WARPS {
        keep_rolled();
        let other = nearest.get(warp as usize);
        key = if other < key { other } else { key };
        warp += 1;
    }
    key
}

#[inline(always)]
fn monotonic<T: Element>(p: &Monotonic<T>) {
    let thread = thread_idx_x();
    let values: Shared<T::Query> = shared::dynamic(0);
    let nearest: Shared<Key> = shared::dynamic(query_bytes(p.rows.dim) as usize);
    let keys = p.left.offset(block_idx_x() as usize * monotonic_slots(p.count) as usize);
    let mut of_launch = block_idx_x();
    while of_launch < p.nodes {
        keep_rolled();
        let node = p.first + of_launch;
        let out = p.edges.offset(of_launch as usize * p.most as usize);
        let mut left = Left { keys, warp: thread / 32, count: 0 };
        p.rows.load(values, node, (thread, MONOTONIC_THREADS));
        sync_threads();
        let mut own = left.deal(p, &p.rows.point(values, node), node);
        let mut edges = 0;
        loop {
            keep_rolled();
            let edge = least(own, nearest);
            if edge == NONE {
                break;
            }
            if thread == 0 {
                out.set(edges as usize, key::id(edge));
            }
            edges += 1;
            if edges == p.most {
                break;
            }
            // All warps have passed the barrier of `least`, so none reads the vector before.
            p.rows.load(values, key::id(edge), (thread, MONOTONIC_THREADS));
            sync_threads();
            own = left.test(p, &p.rows.point(values, key::id(edge)), edge);
        }
        let mut i = edges + thread;
        while i < p.most {
            out.set(i as usize, u32::MAX);
            i += MONOTONIC_THREADS;
        }
        of_launch += grid_dim_x();
    }
}

macro_rules! monotonic_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Finds the edges of nodes among all rows (see [`Monotonic`] and the module).
        ///
        /// Launch: any grid in x; [`MONOTONIC_THREADS`] threads; [`monotonic_shared_bytes`].
        ///
        /// # Safety
        /// - The views match the fields of [`Monotonic`], and `left` has room for each block.
        #[kernel(block = MONOTONIC_THREADS, shared = monotonic_shared_bytes(p.rows.dim), blocks_per_multiprocessor = 4)]
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
