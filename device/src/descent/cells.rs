//! Graphs of cells: the merging of what members of a cell noted of each other
//! ([`CellFilter`](crate::search::exact::CellFilter)) and of what hosts and visitors were offered
//! ([`Meet`](crate::search::exact::Meet)), and the exact distances of the lists at the end.

use cuda_std::atomic::Scope;
use cuda_std::float::sqrt;
use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared};

use crate::block::copied;
use crate::block::element::Element;
use crate::block::element::GROUP;
use crate::block::exact::{Metric, Point, point_bytes};
use crate::block::nearest::{KEEP_ROOM_BYTES, append, keep_smallest};
use crate::block::sort::{merge_block, partition_point, rank, sort_block, sort_warp};
use crate::block::tile;
use crate::descent::key::{self, Key, NONE};
use crate::descent::merge::{MERGE_NODES, MERGE_THREADS, merge_flagged};
use crate::descent::slots::two_slots;
use crate::search::exact::{Job, SETTLE_THREADS};

/// Slots of each node for what is offered to it where cells meet those near them.
pub const OFFERS: u32 = 1 << OFFER_BITS;

/// [`OFFERS`] is 2 to this.
pub const OFFER_BITS: u32 = 7;

/// The merging of what the filter of cells noted.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MergeNoted {
    /// In: `capacity` keys of each line of the jobs' query tiles.
    pub found: Global<Key>,
    /// In: of each line, keys that were to be noted. A line with more than `capacity` is passed over, since which
    /// of its keys are there is chance.
    pub counts: Global<u32>,
    /// In: the vectors of all cells' members.
    pub members: Global<u32>,
    /// In: the filter's [`Job`]s.
    pub jobs: Global<u32>,
    /// In and out: `k` ascending keys of each node.
    pub lists: GlobalMut<Key>,
    /// In and out: of each node, for the filter: the distance of the last of its list, once that is full.
    pub bounds: GlobalMut<f32>,
    /// Keys that are noted per line.
    pub capacity: u32,
    /// Length of the lists, at least 1.
    pub k: u32,
}

/// Bytes of dynamic shared memory of [`cells_merge_noted()`].
pub const fn merge_noted_shared_bytes(capacity: u32, k: u32) -> u32 {
    (2 * capacity + k) * 8 + 16 + KEEP_ROOM_BYTES
}

/// From so many keys more than a list holds, the smallest are looked for before they are sorted.
const FEW_MORE: u32 = 64;

/// Merges what the filter of cells noted into the lists, and tightens the bounds (see [`MergeNoted`]).
///
/// Launch: a block of [`SETTLE_THREADS`] per line; [`merge_noted_shared_bytes`].
///
/// # Safety
/// - The views hold what [`MergeNoted`] says.
#[kernel(block = SETTLE_THREADS, shared = merge_noted_shared_bytes(p.capacity, p.k))]
pub unsafe fn cells_merge_noted(p: MergeNoted) {
    let (thread, line) = (thread_idx_x(), block_idx_x());
    let job = Job::read(p.jobs, line / tile::SIDE);
    let count = p.counts.get(line as usize);
    if line % tile::SIDE >= job.query_count || count > p.capacity {
        return;
    }
    let (capacity, k) = (p.capacity as usize, p.k as usize);
    let keys: Shared<Key> = shared::dynamic(0);
    let spare = keys.offset(capacity);
    let list = spare.offset(capacity);
    let kept: Shared<u32> = list.offset(k).cast();
    let node = p.members.get((job.first_query + line % tile::SIDE) as usize);
    let out = p.lists.offset(node as usize * k);
    let mut i = thread;
    while i < p.k {
        list.set(i as usize, out.get(i as usize));
        i += SETTLE_THREADS;
    }
    if thread == 0 {
        kept.set(0, 0);
    }
    sync_threads();
    let farthest = list.get(k - 1);
    let mut first = thread & !31;
    while first < count {
        keep_rolled();
        let i = first + warp::lane_id();
        let key = if i < count { p.found.get((line * p.capacity + i) as usize) } else { NONE };
        append(keys, kept, key, key < farthest && key as u32 != node);
        first += SETTLE_THREADS;
    }
    sync_threads();
    let mut len = kept.get(0);
    if len == 0 {
        return;
    }
    let (mut keys, mut spare) = (keys, spare);
    if len > p.k + FEW_MORE {
        len = keep_smallest(keys, len, p.k, spare, kept.offset(4));
        (keys, spare) = (spare, keys);
    }
    let sorted = sort_block(keys, spare, len);
    merge_block((list, p.k), (sorted, len), |place, key| {
        out.set(place as usize, key);
        if place + 1 == p.k && key != NONE {
            p.bounds.set(node as usize, key::distance(key));
        }
    });
}

/// The merging of what was offered where cells met those near them.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MergeOffers {
    /// In and out: `k` ascending keys of each node; those that are new become unvisited.
    pub lists: GlobalMut<Key>,
    /// In: [`OFFERS`] slots of each node, as [`Meet`](crate::search::exact::Meet) leaves them; out: [`NONE`].
    pub offers: GlobalMut<Key>,
    /// In and out: the distance of the last of each list, once that is full.
    pub bounds: GlobalMut<f32>,
    /// How many nodes.
    pub nodes: u32,
    /// Length of the lists, at least 1.
    pub k: u32,
    /// Mixed nodes in the slots.
    pub draw: u32,
    /// Nothing.
    pub padding: u32,
}

/// Bytes of dynamic shared memory of [`cells_merge_offers()`].
pub const fn merge_offers_shared_bytes(k: u32) -> u32 {
    MERGE_NODES * (k + 2 * OFFERS) * 8
}

/// Merges what was offered to each node into its list, but what it has already, and tightens its bound.
///
/// Launch: a block of [`MERGE_THREADS`] per [`MERGE_NODES`] nodes; [`merge_offers_shared_bytes`].
///
/// # Safety
/// - The views hold what [`MergeOffers`] says.
#[kernel(block = MERGE_THREADS, shared = merge_offers_shared_bytes(p.k))]
pub unsafe fn cells_merge_offers(p: MergeOffers) {
    const { assert!(OFFERS == 128, "four keys to a lane") };
    let node = block_idx_x() * MERGE_NODES + thread::warp_idx();
    if node >= p.nodes {
        return;
    }
    let (lane, k) = (warp::lane_id(), p.k as usize);
    let list: Shared<Key> =
        shared::dynamic::<Key>(0).offset(thread::warp_idx() as usize * (k + 2 * OFFERS as usize));
    let runs = list.offset(k);
    let sorted = runs.offset(OFFERS as usize);
    let out = p.lists.offset(node as usize * k);
    let offers = p.offers.offset(node as usize * OFFERS as usize);
    let mut keys = [NONE; 4];
    unroll!(4, I => keys[I] = offers.get(lane as usize + 32 * I));
    if !warp::any(keys[0] & keys[1] & keys[2] & keys[3] != NONE) {
        return;
    }
    unroll!(4, I => {
        let slot = lane as usize + 32 * I;
        if keys[I] != NONE {
            offers.set(slot, NONE);
        }
        runs.set(slot, keys[I]);
    });
    let mut i = lane;
    while i < p.k {
        list.set(i as usize, out.get(i as usize));
        i += 32;
    }
    warp::sync();

    // What is in both of its slots counts in the first; what is too far does not count.
    let last = key::plain(list.get(k - 1));
    let mut counts = [false; 4];
    unroll!(4, I => {
        let first = two_slots(key::id(keys[I]), p.draw, OFFER_BITS).0;
        let is_second = first != lane + 32 * I as u32 && runs.get(first as usize) == keys[I];
        counts[I] = keys[I] < last && !is_second;
    });
    warp::sync();
    // Those that are left, without gaps.
    let mut end = 0;
    unroll!(4, I => {
        let left = warp::ballot(counts[I]);
        if counts[I] {
            runs.set((end + (left & ((1 << lane) - 1)).count_ones()) as usize, keys[I]);
        }
        end += left.count_ones();
    });
    warp::sync();
    // Sorted runs of those that are not known: the tensor cores compute the same bits for a pair every time.
    let (mut len, mut run) = (0, 0);
    while run < end {
        keep_rolled();
        let place = run + lane;
        let mut key = if place < end { runs.get(place as usize) } else { NONE };
        let known = partition_point(p.k, |i| key::plain(list.get(i as usize)) < key);
        if key != NONE && key::plain(list.get(known as usize)) == key {
            key = NONE;
        }
        let key = sort_warp(key);
        len += warp::ballot(key != NONE).count_ones();
        runs.set(place as usize, key);
        run += 32;
    }
    if len == 0 {
        return;
    }
    warp::sync();
    let (mut keys, mut run) = (runs, 0);
    while end > 32 && run < end {
        keep_rolled();
        keys = sorted;
        let key = runs.get((run + lane) as usize);
        let mut place = lane;
        let mut other = 0;
        while other < end {
            if other != run {
                place += rank(runs.offset(other as usize), 32, key);
            }
            other += 32;
        }
        if key != NONE {
            sorted.set(place as usize, key);
        }
        run += 32;
    }
    warp::sync();
    merge_flagged((list, p.k), (keys, len), out, (lane, 32));
    warp::sync();
    if lane == 0 {
        let last = out.get(k - 1);
        if last != NONE {
            p.bounds.set(node as usize, key::distance(last));
        }
    }
}

/// The end of a descent: distances become exact, and ids those of rows.
#[repr(C)]
pub struct Finish<T> {
    /// In: vectors of `dim` components, `stride` components apart.
    pub rows: Global<T>,
    /// In: the row of each node.
    pub order: Global<u32>,
    /// In: `k` keys of each node; none but at the end are [`NONE`].
    pub lists: Global<Key>,
    /// In: how far rounding moved each row, scaled.
    pub errors: Global<f32>,
    /// Out: `k` keys of each row: rows at their exact distances, ascending.
    pub nearest: GlobalMut<Key>,
    /// Out: in any order, rows whose lists are not full, or are not to be trusted: what rounding moved is no less than
    /// the L2 distance of the last over `least_per_error`. There is room for all.
    pub lacking: GlobalMut<u32>,
    /// In and out: how many these are.
    pub lacking_count: GlobalMut<u32>,
    /// Components from one vector to the next.
    pub stride: u32,
    /// Components per vector.
    pub dim: u32,
    /// Length of the lists, at least 1.
    pub k: u32,
    /// A [`Metric`].
    pub metric: u32,
    /// What a scaled error is multiplied by to be compared with a distance.
    pub least_per_error: f32,
    /// Nothing.
    pub padding: u32,
}

/// Bytes of dynamic shared memory of the finishing kernels.
pub const fn finish_shared_bytes(k: u32, dim: u32) -> u32 {
    point_bytes(dim) + 2 * k * 8
}

copied! {
    Finish<T>;
}

#[inline(always)]
fn finish<T: Element>(p: &Finish<T>) {
    let (thread, node) = (thread_idx_x(), block_idx_x() as usize);
    let k = p.k as usize;
    let values: Shared<T::Point> = shared::dynamic(0);
    let keys: Shared<Key> = shared::dynamic(point_bytes(p.dim) as usize);
    let spare = keys.offset(k);
    let list = p.lists.offset(node * k);
    let metric = Metric::from_u32(p.metric);
    let own = p.order.get(node) as usize;
    Point::load(values, p.rows.offset(own * p.stride as usize), p.dim, (thread, SETTLE_THREADS));
    sync_threads();
    let point = Point::<T>::new(values, p.dim);
    let mut first = thread / 32 * (32 / GROUP);
    while first < p.k {
        keep_rolled();
        let i = first + thread % 32 / GROUP;
        let old = if i < p.k { list.get(i as usize) } else { NONE };
        let row = if old != NONE { Some(p.order.get(key::id(old) as usize)) } else { None };
        let distance = point.distance(metric, row.map(|row| p.rows.offset(row as usize * p.stride as usize)));
        if i < p.k && thread % GROUP == 0 {
            keys.set(i as usize, row.map_or(NONE, |row| key::pack(distance, row)));
        }
        first += SETTLE_THREADS / GROUP;
    }
    sync_threads();
    // Empty slots come last, and stay there.
    let mut len = 0;
    while len < p.k && keys.get(len as usize) != NONE {
        len += 1;
    }
    sync_threads();
    let sorted = sort_block(keys, spare, len);
    let out = p.nearest.offset(own * k);
    let mut i = thread;
    while i < p.k {
        out.set(i as usize, if i < len { sorted.get(i as usize) } else { NONE });
        i += SETTLE_THREADS;
    }
    if thread == 0 {
        // Nothing is nearer than an equal vector; inner products have no such scale.
        let is_lacking = len < p.k || {
            let distance = key::distance(sorted.get(p.k as usize - 1));
            let squared = match metric {
                Metric::L2 => distance,
                Metric::Cosine => 2.0 * distance,
                Metric::InnerProduct => 0.0,
            };
            squared > 0.0 && p.errors.get(own) * p.least_per_error > sqrt(squared)
        };
        if is_lacking {
            p.lacking.set(p.lacking_count.fetch_add(0, 1, Scope::Device) as usize, own as u32);
        }
    }
}

macro_rules! finish_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Computes the exact distances of the lists, and sorts them (see [`Finish`]).
        ///
        /// Launch: a block of [`SETTLE_THREADS`] per node; [`finish_shared_bytes`].
        ///
        /// # Safety
        /// - The views hold what [`Finish`] says.
        #[kernel(block = SETTLE_THREADS, shared = finish_shared_bytes(p.k, p.dim))]
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
