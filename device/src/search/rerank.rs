//! Reranking: exact distances of the nodes that a search on codes found.
//!
//! # Algorithm
//!
//! ```text
//! for each query, one block:
//!     keys = (exact list distance to the query, id) of the nodes found
//!     sort keys; write the first `k`
//! ```
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `base`, `queries` | vectors of `dim` components, see [`Rows`] |
//! | `found` | queries × `walked` keys, [`NONE`] after the last |
//! | `reranked` | queries × `k` keys, ascending, [`NONE`] after the last |
//! | shared memory | one vector; 2 `walked` keys |
//!
//! # Optimisations
//!
//! Four lanes compute one distance, two rows at a time, in the order of the CPU backend. Keys are
//! sorted as [`crate::block::sort`] has it.
//!
//! # Speed
//!
//! Bound by the gathers of `walked` rows per query: 32 rows of 3,840 bytes take 26 ns of 4.8 TB/s.

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared};

use crate::block::copied;
use crate::block::element::{Element, GROUP};
use crate::block::exact::{Metric, query_bytes};
use crate::block::rows::Rows;
use crate::block::sort::{partition_point, sort_block};
use crate::block::threads::Threads;
use crate::key::{self, Key, NONE};

/// Threads per block, one query per block.
pub const RERANK_THREADS: u32 = 128;

/// Rows of a group of lanes at a time.
const ROWS: usize = 2;

/// Dynamic shared memory in bytes.
pub const fn rerank_shared_bytes(walked: u32, dim: u32) -> u32 {
    query_bytes(dim) + 2 * walked * 8
}

/// Arguments of the kernels `search_rerank_*`.
#[repr(C)]
pub struct Rerank<T> {
    /// In: the vectors of the nodes.
    pub base: Rows<T>,
    /// In: one query per block, in the layout of the base. Only the signs of their lifts count.
    pub queries: Rows<T>,
    /// In: `walked` distinct keys per query; their ids are rows of the base.
    pub found: Global<Key>,
    /// Out: `k` keys per query.
    pub reranked: GlobalMut<Key>,
    /// Keys found per query, at least 1.
    pub walked: u32,
    /// Keys per query in the result.
    pub k: u32,
    /// A [`Metric`].
    pub metric: u32,
    /// Unused.
    pub padding: u32,
}

copied! {
    Rerank<T>;
}

#[inline(always)]
fn rerank<T: Element>(p: &Rerank<T>) {
    let (thread, query) = (thread_idx_x(), block_idx_x());
    let values: Shared<T::Query> = shared::dynamic(0);
    let keys: Shared<Key> = shared::dynamic(query_bytes(p.queries.dim) as usize);
    let spare = keys.offset(p.walked as usize);
    let found = p.found.offset(query as usize * p.walked as usize);
    let out = p.reranked.offset(query as usize * p.k as usize);

    p.queries.load(values, query, Threads::new(thread, RERANK_THREADS));
    // Nearly all searches fill their beam.
    let is_full = found.get(p.walked as usize - 1) != NONE;
    let count = if is_full { p.walked } else { partition_point(p.walked, |i| found.get(i as usize) != NONE) };
    sync_threads();

    let point = p.queries.list_point(values, query, Metric::from_u32(p.metric));
    const STEP: u32 = RERANK_THREADS / GROUP;
    let mut i = thread / GROUP;
    // Warps whose first group has a row go on together.
    while i / (32 / GROUP) * (32 / GROUP) < count {
        keep_rolled();
        // A place beyond the last repeats the first.
        let places = [i, i + STEP];
        let ids = places.map(|place| key::id(found.get(if place < count { place as usize } else { 0 })));
        let distances = p.base.list_distances::<ROWS, 4>(&point, ids);
        for n in 0..ROWS {
            if thread % GROUP == 0 && places[n] < count {
                keys.set(places[n] as usize, key::pack(distances[n], ids[n]));
            }
        }
        i += ROWS as u32 * STEP;
    }
    sync_threads();

    let sorted = sort_block(keys, spare, count);
    let mut rank = thread;
    while rank < p.k {
        out.set(rank as usize, if rank < count { sorted.get(rank as usize) } else { NONE });
        rank += RERANK_THREADS;
    }
}

macro_rules! rerank_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Computes the exact distances of found nodes and writes the nearest (see [`Rerank`] and
        /// the module).
        ///
        /// Launch: a block of [`RERANK_THREADS`] per query; [`rerank_shared_bytes`].
        ///
        /// # Safety
        /// - The views match the fields of [`Rerank`].
        #[kernel(
            unsafe,
            block = RERANK_THREADS,
            shared = rerank_shared_bytes(p.walked, p.queries.dim),
            blocks_per_multiprocessor = 7
        )]
        pub unsafe fn $name(p: Rerank<$type>) {
            rerank(&p);
        }
    )*};
}

rerank_kernels! {
    search_rerank_f32 f32;
    search_rerank_f16 f16;
}
