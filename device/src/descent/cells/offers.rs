//! The merging of what hosts and visitors of cells were offered ([`Meet`](super::Meet)).

use cuda_std::prelude::*;
use cuda_std::thread::block_idx_x;
use cuda_std::{keep_rolled, shared};

use crate::block::sort::{partition_point, rank, sort_warp};
use crate::descent::merge::{MERGE_NODES, MERGE_THREADS, merge_flagged};
use crate::descent::slots::two_slots;
use crate::key::{self, Key, NONE};

/// Slots of each node for what is offered to it where cells meet those near them.
pub const OFFERS: u32 = 1 << OFFER_BITS;

/// [`OFFERS`] is 2 to this.
pub const OFFER_BITS: u32 = 7;

/// The merging of what was offered where cells met those near them.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MergeOffers {
    /// In and out: `k` ascending keys of each node; those that are new become unvisited.
    pub lists: GlobalMut<Key>,
    /// In: [`OFFERS`] slots of each node, as [`Meet`](super::Meet) leaves them; out: [`NONE`].
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
