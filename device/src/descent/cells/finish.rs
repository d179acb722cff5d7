//! End of every descent: exact distances.
//!
//! ```text
//! block = node; row = order[node]
//! for each key of the list, four lanes together: distance of its row, exactly
//! sort the list; write it as the row's
//! if the list is short, or rounding moved the row too far: append the row to `lacking`
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | `rows` | vectors of `dim` components, `stride` apart |
//! | `lists`, `nearest` | nodes x `k` keys |
//! | shared memory | the row's own components, `k` keys, `k` spare, their number |
//!
//! Optimisations:
//!
//! 1. Distances are computed in the CPU's order of additions (block::exact), so that a GPU gives
//!    the CPU's bytes. Each is computed once per list entry, not in every merge.
//! 2. A list is trusted if rounding moved its row little compared with its last distance. All other
//!    rows are searched for exactly, so the check may err on one side only.
//! 3. One block per node. Near nodes share rows, so fewer nodes at a time find more of them in L1:
//!    a warp per node takes 102 instead of 97 ms of ten million of 96 components, and 69 instead of
//!    47 of a million of 960.
//! 4. Products and squared differences have code of their own.
//!
//! Bound by instruction issue up to some 200 components, else by memory: `k` + 1 vectors and two
//! lists per node, mostly from L2.
//!
//! The products of bytes are exact, so their keys hold exact distances, less the node's norm.
//! [`cells_finish_exact()`] then reads no vectors:
//!
//! ```text
//! warp = node; row = order[node]
//! for each key of the list: distance + norm[node]; row of its node
//! order keys of equal distances by row; write them as the row's
//! if the list is short: append the row to `lacking`
//! ```
//!
//! Bound by memory: two lists and `k` words of `order` per node, mostly from L2; 1.6 GB for a
//! million nodes at `k` = 96, 0.4 ms at the rate of an H200.

use cuda_std::atomic::Scope;
use cuda_std::float::sqrt;
use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared};

use crate::block::copied;
use crate::block::element::{Element, GROUP};
use crate::block::exact::{ExactQuery, Metric, query_bytes};
use crate::block::sort::sort_block;
use crate::block::threads::Threads;
use crate::key::{self, Key, NONE};
use crate::search::exact::RERANK_THREADS;

/// The end of a descent.
#[repr(C)]
pub struct Finish<T> {
    /// In: vectors of `dim` components, `stride` components apart.
    pub rows: Global<T>,
    /// In: the row of each node.
    pub order: Global<u32>,
    /// In: `k` keys of nodes per node; [`NONE`] only at the end.
    pub lists: Global<Key>,
    /// In: the distance by which rounding moved each row, scaled.
    pub errors: Global<f32>,
    /// Out: `k` keys of rows per row, at their exact distances, ascending.
    pub nearest: GlobalMut<Key>,
    /// Out: in any order, rows whose lists are short, or uncertain: the row's error is at least the
    /// L2 distance of the last key over `least_per_error`. Holds as many values as there are rows.
    pub lacking: GlobalMut<u32>,
    /// In and out: number of rows in `lacking`.
    pub lacking_count: GlobalMut<u32>,
    /// Components from one vector to the next.
    pub stride: u32,
    /// Components per vector.
    pub dim: u32,
    /// Length of the lists, at least 1.
    pub k: u32,
    /// A [`Metric`].
    pub metric: u32,
    /// Factor of a scaled error in its comparison with a distance.
    pub least_per_error: f32,
    /// Unused.
    pub padding: u32,
}

/// Bytes of dynamic shared memory of the finishing kernels.
pub const fn finish_shared_bytes(k: u32, dim: u32) -> u32 {
    query_bytes(dim) + 2 * k * 8 + 4
}

copied! {
    Finish<T>;
}

#[inline(always)]
fn finish<T: Element>(p: &Finish<T>) {
    let (thread, node) = (thread_idx_x(), block_idx_x() as usize);
    let k = p.k as usize;
    let values: Shared<T::Query> = shared::dynamic(0);
    let keys: Shared<Key> = shared::dynamic(query_bytes(p.dim) as usize);
    let spare = keys.offset(k);
    let count: Shared<u32> = spare.offset(k).cast();
    let own = p.order.get(node) as usize;
    if thread == 0 {
        count.set(0, 0);
    }
    ExactQuery::load(
        values,
        p.rows.offset(own * p.stride as usize),
        p.dim,
        Threads::new(thread, RERANK_THREADS),
    );
    sync_threads();
    let found = put_distances(p, p.lists.offset(node * k), ExactQuery::<T>::new(values, p.dim), keys);
    if warp::lane_id() == 0 && found > 0 {
        count.fetch_add(0, found);
    }
    sync_threads();
    // Empty slots are last, and stay there.
    let len = count.get(0);
    let sorted = sort_block(keys, spare, len);
    let out = p.nearest.offset(own * k);
    let mut i = thread;
    while i < p.k {
        out.set(i as usize, if i < len { sorted.get(i as usize) } else { NONE });
        i += RERANK_THREADS;
    }
    if thread == 0 && (len < p.k || is_uncertain(p, own, key::distance(sorted.get(k - 1)))) {
        p.lacking.set(p.lacking_count.fetch_add(0, 1, Scope::Device) as usize, own as u32);
    }
}

/// Writes a key of the row at its exact distance for each key of a list. Returns how many keys this
/// warp wrote. The whole block calls this.
#[inline(always)]
fn put_distances<T: Element>(
    p: &Finish<T>,
    list: Global<Key>,
    query: ExactQuery<T>,
    keys: Shared<Key>,
) -> u32 {
    let (lane, metric) = (warp::lane_id(), Metric::from_u32(p.metric));
    let (mut first, mut found) = (thread::warp_idx() * (32 / GROUP), 0);
    while first < p.k {
        keep_rolled();
        let i = first + lane / GROUP;
        let old = if i < p.k { list.get(i as usize) } else { NONE };
        let row = if old != NONE { Some(p.order.get(key::id(old) as usize)) } else { None };
        let values = row.map(|row| p.rows.offset(row as usize * p.stride as usize));
        // Optimisation 4.
        let distance = match metric {
            Metric::InnerProduct => query.distance(Metric::InnerProduct, values),
            Metric::L2 | Metric::Cosine => query.distance(Metric::L2, values),
        };
        let distance = if metric == Metric::Cosine { 0.5 * distance } else { distance };
        let writes = lane.is_multiple_of(GROUP);
        if let Some(row) = row.filter(|_| writes) {
            keys.set(i as usize, key::pack(distance, row));
        }
        found += warp::ballot(writes && row.is_some()).count_ones();
        first += RERANK_THREADS / GROUP;
    }
    found
}

/// Whether rounding may have hidden neighbours of row `own`, whose last list distance is `last`.
/// Equal vectors are always found, and inner products have no scale to compare with.
#[inline(always)]
fn is_uncertain<T>(p: &Finish<T>, own: usize, last: f32) -> bool {
    let squared = match Metric::from_u32(p.metric) {
        Metric::L2 => last,
        Metric::Cosine => 2.0 * last,
        Metric::InnerProduct => 0.0,
    };
    squared > 0.0 && p.errors.get(own) * p.least_per_error > sqrt(squared)
}

macro_rules! finish_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Computes the exact distances of the lists, and sorts the lists (see [`Finish`]).
        ///
        /// Launch: a block of [`RERANK_THREADS`] per node; [`finish_shared_bytes`].
        ///
        /// # Safety
        /// - The views have the shapes of [`Finish`].
        #[kernel(
            unsafe,
            block = RERANK_THREADS,
            shared = finish_shared_bytes(p.k, p.dim),
            blocks_per_multiprocessor = 10
        )]
        pub unsafe fn $name(p: Finish<$type>) {
            finish(&p);
        }
    )*};
}

finish_kernels! {
    cells_finish_f32 f32;
    cells_finish_f16 f16;
    cells_finish_u8 u8;
    cells_finish_i8 i8;
}

/// Threads of a block of [`cells_finish_exact()`], a warp per node.
pub const FINISH_EXACT_THREADS: u32 = 128;

/// Nodes per block of [`cells_finish_exact()`].
pub const FINISH_EXACT_NODES: u32 = FINISH_EXACT_THREADS / 32;

/// Maximum number of components of bytes whose keys hold exact values: norms and products are below
/// 2^24.
pub const MAX_EXACT: usize = 256;

/// The end of a descent over bytes, under L2.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct FinishExact {
    /// In: the squared norm of each node.
    pub norms: Global<i32>,
    /// In: the row of each node.
    pub order: Global<u32>,
    /// In: `k` ascending keys of nodes per node, at their exact squared distances less the norm of
    /// the node; [`NONE`] only at the end.
    pub lists: Global<Key>,
    /// Out: `k` keys of rows per row, at their exact distances, ascending.
    pub nearest: GlobalMut<Key>,
    /// Out: in any order, rows whose lists are short. Holds as many values as there are rows.
    pub lacking: GlobalMut<u32>,
    /// In and out: number of rows in `lacking`.
    pub lacking_count: GlobalMut<u32>,
    /// Number of nodes.
    pub nodes: u32,
    /// Length of the lists, at least 1.
    pub k: u32,
}

/// Bytes of dynamic shared memory of [`cells_finish_exact()`].
pub const fn finish_exact_shared_bytes(k: u32) -> u32 {
    FINISH_EXACT_NODES * k * 8
}

/// Adds the nodes' norms to the distances of their lists, and orders equal distances by row (see
/// [`FinishExact`]).
///
/// Launch: a block of [`FINISH_EXACT_THREADS`] per [`FINISH_EXACT_NODES`] nodes;
/// [`finish_exact_shared_bytes`].
///
/// # Safety
/// - The views have the shapes of [`FinishExact`].
#[kernel(unsafe, block = FINISH_EXACT_THREADS, shared = finish_exact_shared_bytes(p.k))]
pub unsafe fn cells_finish_exact(p: FinishExact) {
    let node = block_idx_x() * FINISH_EXACT_NODES + thread::warp_idx();
    if node >= p.nodes {
        return;
    }
    let (lane, k, node) = (warp::lane_id(), p.k as usize, node as usize);
    let keys: Shared<Key> = shared::dynamic::<Key>(0).offset(thread::warp_idx() as usize * k);
    let (list, norm, own) = (p.lists.offset(node * k), p.norms.get(node), p.order.get(node));
    let mut i = lane as usize;
    while i < k {
        let old = list.get(i);
        let exact =
            || key::pack((key::distance(old) as i32 + norm) as f32, p.order.get(key::id(old) as usize));
        keys.set(i, if old != NONE { exact() } else { NONE });
        i += 32;
    }
    warp::sync();
    let out = p.nearest.offset(own as usize * k);
    let mut i = lane as usize;
    while i < k {
        let key = keys.get(i);
        out.set(if key != NONE { place_of_equal(keys, k, i, key) } else { i }, key);
        i += 32;
    }
    if lane == 0 && keys.get(k - 1) == NONE {
        p.lacking.set(p.lacking_count.fetch_add(0, 1, Scope::Device) as usize, own);
    }
}

/// The place of `key`, number `i` of `k` keys whose distances ascend, among all keys.
#[inline(always)]
fn place_of_equal(keys: Shared<Key>, k: usize, i: usize, key: Key) -> usize {
    let is_equal = |other: Key| other >> 32 == key >> 32;
    let mut place = i;
    let mut before = i;
    while before > 0 && is_equal(keys.get(before - 1)) {
        before -= 1;
        place -= (keys.get(before) > key) as usize;
    }
    let mut next = i + 1;
    while next < k && is_equal(keys.get(next)) {
        place += (keys.get(next) < key) as usize;
        next += 1;
    }
    place
}
