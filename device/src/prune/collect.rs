//! Collect: the candidates of nodes, from their own lists and the lists of their nearest (paper section 5.1).

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared};

use crate::block::copied;
use crate::block::element::{Element, GROUP};
use crate::block::exact::query_bytes;
use crate::block::rows::Rows;
use crate::block::sort::sort_block;
use crate::block::table;
use crate::key::{self, Key, NONE};

/// Threads of a block of the collecting kernels, which has one node.
pub const COLLECT_THREADS: u32 = 128;

/// The nodes whose candidates are wanted.
#[repr(C)]
pub struct Collect<T> {
    /// In: the base.
    pub rows: Rows<T>,
    /// In: the nodes, a row to a block.
    pub nodes: Global<u32>,
    /// In: `k` ascending keys of each row, [`NONE`] behind the last: the k-NN graph.
    pub lists: Global<Key>,
    /// Out: of each of the nodes the nearest `limit` different candidates: ascending keys of their
    /// order distances, [`NONE`] behind the last.
    pub candidates: GlobalMut<Key>,
    /// Length of the lists, at least 1.
    pub k: u32,
    /// Of so many nearest neighbours so many nearest are candidates too: 0 for 1-hop.
    pub hop: u32,
    /// Candidates per node, at least 1.
    pub limit: u32,
    /// Whether the lists' distances are order distances: under L2 and inner product.
    pub ordered: u32,
}

copied! {
    Collect<T>;
}

/// The most ids that a node meets in its own list and those of its neighbours.
const fn most_ids(k: u32, hop: u32) -> u32 {
    k + hop * hop
}

/// Bytes of dynamic shared memory of the collecting kernels.
pub const fn collect_shared_bytes(k: u32, hop: u32, dim: u32) -> u32 {
    let most = most_ids(k, hop);
    let table = if hop == 0 { 0 } else { table::slots(most + 1) };
    // The node's vector, keys and room to sort them, ids of 2 hops, the table, and two counts.
    query_bytes(dim) + 2 * most * 8 + (hop * hop + table + 2) * 4
}

#[inline(always)]
fn collect<T: Element>(p: &Collect<T>) {
    let (thread, line) = (thread_idx_x(), block_idx_x() as usize);
    let node = p.nodes.get(line);
    let most = most_ids(p.k, p.hop);
    let values: Shared<T::Query> = shared::dynamic(0);
    let keys: Shared<Key> = shared::dynamic(query_bytes(p.rows.dim) as usize);
    let spare = keys.offset(most as usize);
    let ids: Shared<u32> = spare.offset(most as usize).cast();
    let counts = ids.offset((p.hop * p.hop) as usize);
    let known = counts.offset(2);
    let mask = table::slots(most + 1) - 1;
    let list = p.lists.offset(node as usize * p.k as usize);

    p.rows.load(values, node, (thread, COLLECT_THREADS));
    if thread < 2 {
        counts.set(thread as usize, 0);
    }
    if p.hop > 0 {
        let mut i = thread;
        while i <= mask {
            known.set(i as usize, table::EMPTY);
            i += COLLECT_THREADS;
        }
    }
    // Empty slots come last.
    let mut own = 0;
    let mut i = thread;
    while i < p.k {
        let key = list.get(i as usize);
        keys.set(i as usize, key);
        own += (key != NONE) as u32;
        i += COLLECT_THREADS;
    }
    sync_threads();
    if own > 0 {
        counts.fetch_add(0, own);
    }
    sync_threads();
    let own = counts.get(0);
    let point = p.rows.point(values, node);
    // Groups of lanes, of which each has an id of its own; all of a warp go round together.
    let (group, speaks) = (thread / GROUP, thread % GROUP == 0);
    const GROUPS: u32 = COLLECT_THREADS / GROUP;

    let mut sorted = keys;
    if p.ordered == 0 {
        let mut first = 0;
        while first < own {
            keep_rolled();
            let i = first + group;
            let id = if i < own { Some(list.get(i as usize) as u32) } else { None };
            let distance = p.rows.distance(&point, id);
            if let (true, Some(id)) = (speaks, id) {
                keys.set(i as usize, key::pack(distance, id));
            }
            first += GROUPS;
        }
        sync_threads();
        sorted = sort_block(keys, spare, own);
    }
    let spare = if sorted.address() == keys.address() { spare } else { keys };
    let mut len = own;
    if p.hop > 0 {
        // What is farther than as many of its own list as are wanted is not wanted.
        let bound = if own < p.limit { NONE } else { sorted.get(p.limit as usize - 1) };
        let mut i = thread;
        while i <= own {
            let id = if i < own { sorted.get(i as usize) as u32 } else { node };
            table::insert(known, mask, id);
            i += COLLECT_THREADS;
        }
        sync_threads();
        let vias = if own < p.hop { own } else { p.hop };
        let nearest = if p.k < p.hop { p.k } else { p.hop };
        let mut i = thread;
        while i < vias * nearest {
            // By the list's own order.
            let via = list.get((i / nearest) as usize) as u32;
            let key = p.lists.get(via as usize * p.k as usize + (i % nearest) as usize);
            if key != NONE && table::insert(known, mask, key as u32) {
                ids.set(counts.fetch_add(1, 1) as usize, key as u32);
            }
            i += COLLECT_THREADS;
        }
        sync_threads();
        let found = counts.get(1);
        let mut first = 0;
        while first < found {
            keep_rolled();
            let i = first + group;
            let id = if i < found { Some(ids.get(i as usize)) } else { None };
            let distance = p.rows.order_distance(&point, id);
            if let (true, Some(id)) = (speaks, id) {
                let key = key::pack(distance, id);
                if key < bound {
                    sorted.set(counts.fetch_add(0, 1) as usize, key);
                }
            }
            first += GROUPS;
        }
        sync_threads();
        len = counts.get(0);
        if len > own {
            sorted = sort_block(sorted, spare, len);
        }
    }
    let out = p.candidates.offset(line * p.limit as usize);
    let mut i = thread;
    while i < p.limit {
        out.set(i as usize, if i < len { sorted.get(i as usize) } else { NONE });
        i += COLLECT_THREADS;
    }
}

macro_rules! collect_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Collects candidates from a node's own list, and from the lists of its nearest (see [`Collect`]).
        ///
        /// Launch: a block of [`COLLECT_THREADS`] per node; [`collect_shared_bytes`].
        ///
        /// # Safety
        /// - The views hold what [`Collect`] says.
        #[kernel(block = COLLECT_THREADS, shared = collect_shared_bytes(p.k, p.hop, p.rows.dim), blocks_per_multiprocessor = 8)]
        pub unsafe fn $name(p: Collect<$type>) {
            collect(&p);
        }
    )*};
}

collect_kernels! {
    prune_collect_f32 f32;
    prune_collect_f16 f16;
    prune_collect_u8 u8;
    prune_collect_i8 i8;
}
