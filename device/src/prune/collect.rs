//! Collect: candidates from a node's k-NN list and from the lists of its nearest neighbours (paper
//! section 5.1).
//!
//! # Algorithm
//!
//! ```text
//! for each node, one block:
//!     keys = the node's k-NN list; under cosine with order distances instead of list distances
//!     sort keys
//!     for each of the nearest `hop` neighbours, for each of its nearest `hop` neighbours v:
//!         if v is new: append (order distance of v, v) to keys, if it may be among the nearest
//!     sort keys; write the nearest `limit`
//! ```
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `rows` | base vectors, see [`Rows`] |
//! | `nodes` | one row per node, a node per block |
//! | `lists` | rows × `k` keys, ascending, [`NONE`] after the last |
//! | `candidates` | nodes × `limit` keys, ascending, [`NONE`] after the last |
//! | shared memory | one vector; 2 (k + hop²) keys; hop² ids; a table of ids; two counts |
//!
//! # Optimisations
//!
//! 1. A hash table in shared memory finds repeated ids before their distances are computed. It has
//!    room for all of them, so no id is ever lost.
//! 2. With `limit` neighbours in the own list, keys after the last of them are dropped at once:
//!    that many are nearer already.
//! 3. Under L2 and inner product, lists hold order distances in ascending order, so the first
//!    distances and the first sort are left out.
//! 4. Four lanes compute one distance, with coalesced loads of the row.
//!
//! # Speed
//!
//! The kernel is bound by memory: it gathers up to `hop`² vectors per node. Nodes come in an order
//! in which near ones follow one another, so that most of these are in the L2 cache.

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared};

use crate::block::copied;
use crate::block::element::{Element, GROUP};
use crate::block::exact::query_bytes;
use crate::block::rows::{Rows, RulePoint};
use crate::block::sort::sort_block;
use crate::block::table;
use crate::block::threads::Threads;
use crate::key::{self, Key, NO_ID, NONE};

/// Threads per block, one node per block.
pub const COLLECT_THREADS: u32 = 128;

/// Groups of lanes per block. A group computes one distance at a time.
const GROUPS: u32 = COLLECT_THREADS / GROUP;

/// Arguments of the kernels `prune_collect_*`.
#[repr(C)]
pub struct Collect<T> {
    /// In: the base.
    pub rows: Rows<T>,
    /// In: one row per block.
    pub nodes: Global<u32>,
    /// In: the k-NN graph: `k` ascending keys per row, [`NONE`] after the last.
    pub lists: Global<Key>,
    /// Out: per node the nearest `limit` distinct candidates: ascending keys (order distance, row),
    /// [`NONE`] after the last.
    pub candidates: GlobalMut<Key>,
    /// Keys per list, at least 1.
    pub k: u32,
    /// The nearest `hop` neighbours of each of the nearest `hop` neighbours are candidates too. 0
    /// for 1-hop.
    pub hop: u32,
    /// Candidates per node, at least 1.
    pub limit: u32,
    /// Whether the lists' distances are order distances: under L2 and inner product.
    pub ordered: u32,
}

copied! {
    Collect<T>;
}

/// Maximum number of ids in a node's list and those of its neighbours.
const fn most_ids(k: u32, hop: u32) -> u32 {
    k + hop * hop
}

/// Dynamic shared memory in bytes.
pub const fn collect_shared_bytes(k: u32, hop: u32, dim: u32) -> u32 {
    let most = most_ids(k, hop);
    let table = if hop == 0 { 0 } else { table::slots(most + 1) };
    // The node's vector, keys and room to sort them, ids of 2 hops, the table, and two counts.
    query_bytes(dim) + 2 * most * 8 + (hop * hop + table + 2) * 4
}

/// Shared memory of a block.
struct Room<T: Element> {
    /// The node's vector.
    values: Shared<T::Query>,
    /// Candidates.
    keys: Shared<Key>,
    /// Room to sort them.
    spare: Shared<Key>,
    /// New ids of the second hop.
    ids: Shared<u32>,
    /// Number of candidates, number of `ids`.
    counts: Shared<u32>,
    /// Table of known ids; its slots less one.
    table: (Shared<u32>, u32),
}

impl<T: Element> Room<T> {
    #[inline(always)]
    fn new(p: &Collect<T>) -> Self {
        let most = most_ids(p.k, p.hop);
        let values: Shared<T::Query> = shared::dynamic(0);
        let keys: Shared<Key> = shared::dynamic(query_bytes(p.rows.dim) as usize);
        let spare = keys.offset(most as usize);
        let ids: Shared<u32> = spare.offset(most as usize).cast();
        let counts = ids.offset((p.hop * p.hop) as usize);
        let table = (counts.offset(2), table::slots(most + 1) - 1);
        Self { values, keys, spare, ids, counts, table }
    }
}

impl<T: Element> Collect<T> {
    /// Loads `node` and its `list` and empties the table; returns the length of the list. The whole
    /// block calls this.
    #[inline(always)]
    fn start(&self, node: u32, list: Global<Key>, room: &Room<T>) -> u32 {
        let thread = thread_idx_x();
        self.rows.load(room.values, node, Threads::new(thread, COLLECT_THREADS));
        if thread < 2 {
            room.counts.set(thread as usize, 0);
        }
        let (table, mask) = room.table;
        if self.hop > 0 {
            let mut i = thread;
            while i <= mask {
                table.set(i as usize, NO_ID);
                i += COLLECT_THREADS;
            }
        }
        let mut own = 0;
        let mut i = thread;
        while i < self.k {
            let key = list.get(i as usize);
            room.keys.set(i as usize, key);
            own += (key != NONE) as u32;
            i += COLLECT_THREADS;
        }
        sync_threads();
        if own > 0 {
            room.counts.fetch_add(0, own);
        }
        sync_threads();
        room.counts.get(0)
    }

    /// Replaces the distances of the first `own` keys by order distances and sorts them; returns
    /// where they lie. The whole block calls this.
    #[inline(always)]
    fn sort_own(&self, point: &RulePoint<T>, list: Global<Key>, own: u32, room: &Room<T>) -> Shared<Key> {
        let (group, speaks) = (thread_idx_x() / GROUP, thread_idx_x().is_multiple_of(GROUP));
        let mut first = 0;
        // Each group of lanes has an id of its own; the lanes of a warp go round together.
        while first < own {
            keep_rolled();
            let i = first + group;
            let id = if i < own { Some(list.get(i as usize) as u32) } else { None };
            let distance = self.rows.distance(point, id);
            if let (true, Some(id)) = (speaks, id) {
                room.keys.set(i as usize, key::pack(distance, id));
            }
            first += GROUPS;
        }
        sync_threads();
        sort_block(room.keys, room.spare, own)
    }

    /// Puts the new ids of the second hop in `room.ids`; returns their number. The first `own` ids
    /// of `sorted`, and `node`, are known. The whole block calls this.
    #[inline(always)]
    fn second_hop(&self, node: u32, list: Global<Key>, sorted: Shared<Key>, own: u32, room: &Room<T>) -> u32 {
        let (table, mask) = room.table;
        let mut i = thread_idx_x();
        while i <= own {
            let id = if i < own { sorted.get(i as usize) as u32 } else { node };
            table::insert(table, mask, id);
            i += COLLECT_THREADS;
        }
        sync_threads();
        let vias = if own < self.hop { own } else { self.hop };
        let nearest = if self.k < self.hop { self.k } else { self.hop };
        let mut i = thread_idx_x();
        while i < vias * nearest {
            // The nearest by list distance, as the list has them.
            let via = list.get((i / nearest) as usize) as u32;
            let key = self.lists.get(via as usize * self.k as usize + (i % nearest) as usize);
            if key != NONE && table::insert(table, mask, key as u32) {
                room.ids.set(room.counts.fetch_add(1, 1) as usize, key as u32);
            }
            i += COLLECT_THREADS;
        }
        sync_threads();
        room.counts.get(1)
    }

    /// Appends the keys of the first `found` of `room.ids` that are below `bound` to `keys`;
    /// returns the new length. The whole block calls this.
    #[inline(always)]
    fn append(&self, point: &RulePoint<T>, found: u32, keys: Shared<Key>, bound: Key, room: &Room<T>) -> u32 {
        let (group, speaks) = (thread_idx_x() / GROUP, thread_idx_x().is_multiple_of(GROUP));
        let mut first = 0;
        while first < found {
            keep_rolled();
            let i = first + group;
            let id = if i < found { Some(room.ids.get(i as usize)) } else { None };
            let distance = self.rows.order_distance(point, id);
            if let (true, Some(id)) = (speaks, id) {
                let key = key::pack(distance, id);
                if key < bound {
                    keys.set(room.counts.fetch_add(0, 1) as usize, key);
                }
            }
            first += GROUPS;
        }
        sync_threads();
        room.counts.get(0)
    }
}

#[inline(always)]
fn collect<T: Element>(p: &Collect<T>) {
    let line = block_idx_x() as usize;
    let node = p.nodes.get(line);
    let room = Room::new(p);
    let list = p.lists.offset(node as usize * p.k as usize);
    let own = p.start(node, list, &room);
    let point = p.rows.point(room.values, node);
    let sorted = if p.ordered == 0 { p.sort_own(&point, list, own, &room) } else { room.keys };
    let (mut sorted, mut len) = (sorted, own);
    if p.hop > 0 {
        let spare = if sorted.address() == room.keys.address() { room.spare } else { room.keys };
        let bound = if own < p.limit { NONE } else { sorted.get(p.limit as usize - 1) };
        let found = p.second_hop(node, list, sorted, own, &room);
        len = p.append(&point, found, sorted, bound, &room);
        if len > own {
            sorted = sort_block(sorted, spare, len);
        }
    }
    let out = p.candidates.offset(line * p.limit as usize);
    let mut i = thread_idx_x();
    while i < p.limit {
        out.set(i as usize, if i < len { sorted.get(i as usize) } else { NONE });
        i += COLLECT_THREADS;
    }
}

macro_rules! collect_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Collects candidates by 1 hop or 2 hops (see [`Collect`] and the module).
        ///
        /// Launch: a block of [`COLLECT_THREADS`] per node; [`collect_shared_bytes`].
        ///
        /// # Safety
        /// - The views match the fields of [`Collect`].
        #[kernel(unsafe, block = COLLECT_THREADS, shared = collect_shared_bytes(p.k, p.hop, p.rows.dim), blocks_per_multiprocessor = 8)]
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
