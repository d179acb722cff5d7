//! Settling: exact distances of the survivors, merged into each query's list.
//!
//! # Algorithm
//!
//! ```text
//! for each query, one block:
//!     keys = exact keys of the survivors that are nearer than the list's last
//!     sort keys; merge them into the list
//!     bound = the list's last distance as the filter compares it, plus rounding
//! ```
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `rows`, `queries` | vectors of `dim` components |
//! | `survivors` | queries × `capacity` rows |
//! | `counts`, `bounds`, `norms`, `errors`, `excluded` | one per query |
//! | `lists` | queries × `k` keys, ascending, [`NONE`] after the last |
//! | shared memory | one vector; 2 `capacity` keys; `k` keys; a count |
//!
//! # Optimisations
//!
//! 1. Four lanes compute one distance in the order of the CPU backend, so the bits are the CPU's.
//! 2. Keys not nearer than the list's last are dropped before the sort: they would not be merged.
//! 3. The sort makes runs of 32 by shuffles. Runs and list are merged by binary search of each
//!    key's rank: keys differ, so each place is taken once.
//!
//! # Speed
//!
//! The kernel is bound by the gathers of the survivors, some times `k` rows per query and range.

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared};

use crate::block::copied;
use crate::block::element::{Element, GROUP};
use crate::block::exact::{ExactQuery, Metric, query_bytes};
use crate::block::sort::{SortedKeys, merge, sort_block};
use crate::block::sums::{QueryBound, TileSum};
use crate::block::threads::Threads;
use crate::key::{self, Key, NO_ID, NONE};

/// The count of a closed query: no row passes the filter, and none is reranked.
pub const CLOSED: u32 = u32::MAX;

/// Threads per block, one query per block.
pub const RERANK_THREADS: u32 = 128;

/// Dynamic shared memory in bytes.
pub const fn rerank_shared_bytes(capacity: u32, k: u32, dim: u32) -> u32 {
    // Keys and room to sort them, the list, the query, and a count.
    query_bytes(dim) + (2 * capacity + k) * 8 + 16
}

/// Arguments of the kernels `exact_rerank_*`.
#[repr(C)]
pub struct ExactRerank<T, S> {
    /// In: vectors of `dim` components, `row_stride` components apart.
    pub rows: Global<T>,
    /// In: one query per block, `query_stride` components apart.
    pub queries: Global<T>,
    /// In: `capacity` survivors per query.
    pub survivors: Global<u32>,
    /// In: per query the number of survivors, or [`CLOSED`]; the first `capacity` are in
    /// `survivors`. Out: 0, unless closed.
    pub counts: GlobalMut<u32>,
    /// In: with `exclude`, per query an id that is left out.
    pub excluded: Global<u32>,
    /// In and out: `k` ascending keys per query.
    pub lists: GlobalMut<Key>,
    /// Out: per query the bound of the filter.
    pub bounds: GlobalMut<S>,
    /// In: per query its bias, as prepared.
    pub norms: Global<S>,
    /// In: per query its error, as prepared. f16 only.
    pub errors: Global<f32>,
    /// Components from one row to the next.
    pub row_stride: u32,
    /// Components from one query to the next.
    pub query_stride: u32,
    /// Components per vector.
    pub dim: u32,
    /// Maximum number of survivors per query.
    pub capacity: u32,
    /// Keys per list, at least 1.
    pub k: u32,
    /// The id of row 0.
    pub first_id: u32,
    /// Whether `excluded` is read.
    pub exclude: u32,
    /// A [`Metric`].
    pub metric: u32,
    /// The `error_limit` that the rows were prepared with.
    pub row_error: f32,
    /// Factor of the rows before rounding.
    pub scale: f32,
}

copied! {
    ExactRerank<T, S>;
}

#[inline(always)]
fn rerank<T: Element, S: TileSum>(p: &ExactRerank<T, S>) {
    let (thread, query) = (thread_idx_x(), block_idx_x() as usize);
    let (capacity, k) = (p.capacity as usize, p.k as usize);
    let values: Shared<T::Query> = shared::dynamic(0);
    let keys: Shared<Key> = shared::dynamic(query_bytes(p.dim) as usize);
    let spare = keys.offset(capacity);
    let list = spare.offset(capacity);
    let kept: Shared<u32> = list.offset(k).cast();
    let out = p.lists.offset(query * k);
    let metric = Metric::from_u32(p.metric);

    let count = p.counts.get(query);
    if count == CLOSED {
        return;
    }
    let count = if count < p.capacity { count } else { p.capacity };
    let mut i = thread;
    while i < p.k {
        list.set(i as usize, out.get(i as usize));
        i += RERANK_THREADS;
    }
    let threads = Threads::new(thread, RERANK_THREADS);
    ExactQuery::load(values, p.queries.offset(query * p.query_stride as usize), p.dim, threads);
    if thread == 0 {
        kept.set(0, 0);
    }
    sync_threads();

    let farthest = list.get(k - 1);
    let excluded = if p.exclude != 0 { p.excluded.get(query) } else { NO_ID };
    let point = ExactQuery::<T>::new(values, p.dim);
    let mut first = thread / 32 * (32 / GROUP);
    while first < count {
        keep_rolled();
        let i = first + thread % 32 / GROUP;
        let there = i < count;
        let row = if there { p.survivors.get(query * capacity + i as usize) } else { 0 };
        let values = p.rows.offset(row as usize * p.row_stride as usize);
        let distance = point.distance(metric, if there { Some(values) } else { None });
        let key = key::pack(distance, p.first_id + row);
        if there && thread % GROUP == 0 && key < farthest && p.first_id + row != excluded {
            keys.set(kept.fetch_add(0, 1) as usize, key);
        }
        first += RERANK_THREADS / GROUP;
    }
    sync_threads();

    let len = kept.get(0);
    let sorted = sort_block(keys, spare, len);
    if len > 0 {
        let (list, sorted) = (SortedKeys::new(list, p.k), SortedKeys::new(sorted, len));
        merge(list, sorted, threads, |place, key| out.set(place as usize, key));
    }
    // Another thread of this block wrote the k-th key.
    sync_threads();
    if thread == 0 {
        p.counts.set(query, 0);
        let last = out.get(k - 1);
        let bound = if last == NONE {
            S::UNBOUNDED
        } else {
            S::bound(
                key::distance(last),
                &QueryBound {
                    metric,
                    dim: p.dim,
                    norm: p.norms.get(query),
                    error: p.errors.get(query),
                    row_error: p.row_error,
                    scale: p.scale,
                },
            )
        };
        p.bounds.set(query, bound);
    }
}

macro_rules! rerank_kernels {
    ($($name:ident $type:ty, $sum:ty;)*) => {$(
        /// Merges the survivors into the lists and tightens the bounds (see [`ExactRerank`] and
        /// the module). The result does not depend on the order of the survivors.
        ///
        /// Launch: a block of [`RERANK_THREADS`] per query; [`rerank_shared_bytes`].
        ///
        /// # Safety
        /// - The views match the fields of [`ExactRerank`].
        #[kernel(unsafe, block = RERANK_THREADS, shared = rerank_shared_bytes(p.capacity, p.k, p.dim), blocks_per_multiprocessor = 8)]
        pub unsafe fn $name(p: ExactRerank<$type, $sum>) {
            rerank(&p);
        }
    )*};
}

rerank_kernels! {
    exact_rerank_f32 f32, f32;
    exact_rerank_f16 f16, f32;
    exact_rerank_u8 u8, i32;
    exact_rerank_i8 i8, i32;
}
