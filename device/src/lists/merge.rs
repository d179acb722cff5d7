//! Merge of the two pruned lists of a node, with the vectors of the second list's cluster.
//!
//! # Algorithm
//!
//! ```text
//! for each node, one warp:
//!     merged = both lists in order of distance, duplicates marked
//!     left   = positions of merged neighbours whose vector is in this cluster, ascending
//!     absent = positions of the others, ascending
//!     while the record has room:
//!         a = nearest position of left and absent; append its id to the record
//!         if a's vector is in this cluster:
//!             for each b in left behind a:               (up to 32 at once, a lane each)
//!                 if distance(a, b) < distance(node, b): b is occluded, drop it from left
//!     fill the rest of the record with occluded neighbours, nearest first
//! ```
//!
//! A neighbour without a vector here cannot be compared: it is taken by its distance and occludes
//! nothing.
//!
//! # Buffers
//!
//! Ids name nodes, *rows* the vectors of the cluster, *places* the second lists.
//!
//! | buffer | shape |
//! | --- | --- |
//! | `rows` | `members` vectors, see [`Rows`] |
//! | `ids` | `members` ids, ascending |
//! | `order` | one row per place |
//! | `second` | places × `degree` keys (order distance, row) |
//! | `places` | `count` places |
//! | `first` | `count` × `degree` keys (order distance, id) |
//! | `records` | `count` × (1 + `degree`) ids: the node, then its neighbours |
//! | shared memory, per warp | one vector; 2 `degree` keys; 2 `degree` rows; 3 `degree` positions |
//!
//! # Optimisations
//!
//! 1. One accepted neighbour is compared with all that are left at once, as in the wavefront filter
//!    ([`crate::prune::filter`]). A neighbour still meets the accepted ones in ascending order, so
//!    the result is that of the serial rule.
//! 2. Each key finds its place in the merged order by a binary search in the other list. Both lists
//!    ascend, so its place is its index plus the number of smaller keys in the other.
//! 3. Duplicates need no table. A pair has the same distance in both clusters, so its two keys are
//!    equal and the search of step 2 ends at it.
//! 4. `left` shrinks in place: a vote gives each survivor its position, which is never after the
//!    one it was read from.
//!
//! # Speed
//!
//! The kernel is bound by memory: it reads the vectors of the neighbours in this cluster, at most
//! 2 `degree` of them, once per accepted neighbour that they survive. They stay in the L1 cache.

use cuda_std::prelude::*;
use cuda_std::thread::block_idx_x;
use cuda_std::{keep_rolled, shared};

use crate::block::copied;
use crate::block::element::Element;
use crate::block::exact::query_bytes;
use crate::block::rows::Rows;
use crate::block::sort::{partition_point, rank};
use crate::block::threads::Threads;
use crate::key::{Key, NO_ID, NONE};

/// Threads per block, one warp per node.
pub const MERGE_LISTS_THREADS: u32 = 64;

/// Nodes per block.
pub const MERGE_LISTS_NODES: u32 = MERGE_LISTS_THREADS / 32;

/// Mark in place of a row: the cluster has no vector of this neighbour.
const ABSENT: u32 = NO_ID;

/// Mark in place of a row: an accepted neighbour is nearer than the node.
const OCCLUDED: u32 = u32::MAX - 1;

/// Mark in place of a row: also in the second list.
const DUPLICATE: u32 = u32::MAX - 2;

/// Arguments of the kernels `lists_merge_*`.
#[repr(C)]
pub struct MergeLists<T> {
    /// In: the vectors of the second lists' cluster.
    pub rows: Rows<T>,
    /// In: the ids of the `members` rows, ascending.
    pub ids: Global<u32>,
    /// In: the row at each place.
    pub order: Global<u32>,
    /// In: `degree` keys per place: ascending (order distance, row), then [`NONE`].
    pub second: Global<Key>,
    /// In: the place of each node.
    pub places: Global<u32>,
    /// In: `degree` keys per node: ascending (order distance, id), then [`NONE`].
    pub first: Global<Key>,
    /// Out: per node its id and `degree` ids of neighbours, `NO_ID` after the last.
    pub records: GlobalMut<u32>,
    /// Number of rows.
    pub members: u32,
    /// Number of nodes.
    pub count: u32,
    /// Keys per list, at least 1.
    pub degree: u32,
    /// Unused.
    pub padding: u32,
}

copied! {
    MergeLists<T>;
}

/// Dynamic shared memory in bytes: per warp a vector, the neighbours of both lists with their rows,
/// and the positions that are left.
pub const fn merge_lists_shared_bytes(dim: u32, degree: u32) -> u32 {
    MERGE_LISTS_NODES * warp_bytes(dim, degree)
}

/// Shared memory of one warp, in bytes.
const fn warp_bytes(dim: u32, degree: u32) -> u32 {
    query_bytes(dim) + (degree * (2 * (8 + 4) + 3 * 4)).next_multiple_of(16)
}

/// Shared memory of one warp.
struct Room<T: Element> {
    /// The accepted neighbour's vector.
    values: Shared<T::Query>,
    /// The merged neighbours (distance, id), ascending.
    keys: Shared<Key>,
    /// Their rows, or a mark.
    rows: Shared<u32>,
    /// The positions in [`RemainingPositions`], twice; the second list while both are merged.
    positions: Shared<u32>,
}

impl<T: Element> Room<T> {
    #[inline(always)]
    fn of_warp(dim: u32, degree: u32) -> Self {
        let begin = thread::warp_idx() * warp_bytes(dim, degree);
        let values: Shared<T::Query> = shared::dynamic(begin as usize);
        let keys: Shared<Key> = values.cast::<u8>().offset(query_bytes(dim) as usize).cast();
        let rows: Shared<u32> = keys.offset(2 * degree as usize).cast();
        Self { values, keys, rows, positions: rows.offset(2 * degree as usize) }
    }
}

/// Positions of merged neighbours that are neither accepted nor occluded, ascending.
struct RemainingPositions {
    positions: Shared<u32>,
    /// Index of the nearest.
    first: u32,
    end: u32,
}

impl RemainingPositions {
    #[inline(always)]
    fn empty(positions: Shared<u32>) -> Self {
        Self { positions, first: 0, end: 0 }
    }

    /// The nearest position, or `NO_ID`.
    #[inline(always)]
    fn next(&self) -> u32 {
        if self.first < self.end { self.positions.get(self.first as usize) } else { NO_ID }
    }

    /// Appends the positions of the lanes where `is_one` holds. The whole warp calls this.
    #[inline(always)]
    fn append(&mut self, position: u32, is_one: bool) {
        let ones = warp::ballot(is_one);
        // All lanes have read before one writes.
        warp::sync();
        if is_one {
            let before = warp::lanes_before(ones);
            self.positions.set((self.end + before) as usize, position);
        }
        self.end += ones.count_ones();
    }
}

impl<T: Element> MergeLists<T> {
    /// Merges the lists of `node` into the keys and rows of `room`; returns the number of
    /// neighbours, duplicates included.
    #[inline(always)]
    fn sorted(&self, node: u32, place: u32, room: &Room<T>) -> u32 {
        let lane = warp::lane_id();
        let second: Shared<Key> = room.positions.cast();
        let first = self.first.offset(node as usize * self.degree as usize);
        let of_rows = self.second.offset(place as usize * self.degree as usize);
        let (mut firsts, mut seconds, mut begin) = (0, 0, 0);
        while begin < self.degree {
            keep_rolled();
            let slot = begin + lane;
            let mut key = NONE;
            if slot < self.degree {
                key = of_rows.get(slot as usize);
                let id = if key == NONE { NO_ID } else { self.ids.get(key as u32 as usize) };
                second.set(slot as usize, key >> 32 << 32 | id as u64);
            }
            seconds += warp::ballot(key != NONE).count_ones();
            firsts += warp::ballot(slot < self.degree && first.get(slot as usize) != NONE).count_ones();
            begin += 32;
        }
        warp::sync();
        let mut slot = lane;
        while slot < firsts {
            keep_rolled();
            let key = first.get(slot as usize);
            let before = rank(second, seconds, key);
            let row = partition_point(self.members, |row| self.ids.get(row as usize) < key as u32);
            let row = if before < seconds && second.get(before as usize) == key {
                DUPLICATE
            } else if row < self.members && self.ids.get(row as usize) == key as u32 {
                row
            } else {
                ABSENT
            };
            room.keys.set((slot + before) as usize, key);
            room.rows.set((slot + before) as usize, row);
            slot += 32;
        }
        let mut slot = lane;
        while slot < seconds {
            keep_rolled();
            let key = second.get(slot as usize);
            let position = slot + partition_point(firsts, |i| first.get(i as usize) <= key);
            room.keys.set(position as usize, key);
            room.rows.set(position as usize, of_rows.get(slot as usize) as u32);
            slot += 32;
        }
        warp::sync();
        firsts + seconds
    }

    /// Splits the first `count` positions into those with a vector here and those without.
    #[inline(always)]
    fn split(&self, count: u32, room: &Room<T>) -> (RemainingPositions, RemainingPositions) {
        let lane = warp::lane_id();
        let mut here = RemainingPositions::empty(room.positions);
        let mut absent = RemainingPositions::empty(room.positions.offset(2 * self.degree as usize));
        let mut begin = 0;
        while begin < count {
            keep_rolled();
            let position = begin + lane;
            let row = if position < count { room.rows.get(position as usize) } else { DUPLICATE };
            here.append(position, row < DUPLICATE);
            absent.append(position, row == ABSENT);
            begin += 32;
        }
        warp::sync();
        (here, absent)
    }

    /// Accepts neighbours in order of distance and writes their ids to `out`; returns their number.
    /// `lift` is the node's.
    #[inline(always)]
    fn accept(
        &self,
        mut here: RemainingPositions,
        mut absent: RemainingPositions,
        room: &Room<T>,
        lift: f32,
        out: GlobalMut<u32>,
    ) -> u32 {
        let lane = warp::lane_id();
        let mut taken = 0;
        while taken < self.degree {
            keep_rolled();
            let (of_here, of_absent) = (here.next(), absent.next());
            let position = if of_here < of_absent { of_here } else { of_absent };
            if position == NO_ID {
                break;
            }
            if lane == 0 {
                out.set(taken as usize, room.keys.get(position as usize) as u32);
            }
            taken += 1;
            if position == of_absent {
                absent.first += 1;
                continue;
            }
            self.occlude(&mut here, room, position, lift);
        }
        taken
    }

    /// Drops from `here` its first position, `accepted`, and every position that `accepted`
    /// occludes.
    #[inline(always)]
    fn occlude(&self, here: &mut RemainingPositions, room: &Room<T>, accepted: u32, lift: f32) {
        let lane = warp::lane_id();
        let row = room.rows.get(accepted as usize);
        self.rows.load(room.values, row, Threads::new(lane, 32));
        warp::sync();
        let point = self.rows.point(room.values, row);
        let (mut begin, end) = (here.first + 1, here.end);
        (here.first, here.end) = (0, 0);
        while begin < end {
            keep_rolled();
            let is_one = begin + lane < end;
            let position = if is_one { here.positions.get((begin + lane) as usize) } else { accepted };
            let count = if end - begin < 32 { end - begin } else { 32 };
            let row = room.rows.get(position as usize);
            let distance = self.rows.distances(&point, row, count);
            // The rule distance takes rows; the key in shared memory holds an id.
            let key = room.keys.get(position as usize) >> 32 << 32 | row as u64;
            let stays = distance >= self.rows.rule_distance(lift, key);
            if is_one && !stays {
                room.rows.set(position as usize, OCCLUDED);
            }
            here.append(position, is_one && stays);
            begin += 32;
        }
        warp::sync();
    }

    /// Fills `out` from slot `taken` on with the nearest occluded neighbours, then `NO_ID`.
    #[inline(always)]
    fn fill(&self, mut taken: u32, count: u32, room: &Room<T>, out: GlobalMut<u32>) {
        let lane = warp::lane_id();
        let mut begin = 0;
        while begin < count && taken < self.degree {
            keep_rolled();
            let position = begin + lane;
            let is_one = position < count && room.rows.get(position as usize) == OCCLUDED;
            let ones = warp::ballot(is_one);
            let slot = taken + warp::lanes_before(ones);
            if is_one && slot < self.degree {
                out.set(slot as usize, room.keys.get(position as usize) as u32);
            }
            taken += ones.count_ones();
            begin += 32;
        }
        let mut slot = taken + lane;
        while slot < self.degree {
            keep_rolled();
            out.set(slot as usize, NO_ID);
            slot += 32;
        }
    }
}

#[inline(always)]
fn merge<T: Element>(p: &MergeLists<T>) {
    let node = block_idx_x() * MERGE_LISTS_NODES + thread::warp_idx();
    if node >= p.count {
        return;
    }
    let room = Room::of_warp(p.rows.dim, p.degree);
    let place = p.places.get(node as usize);
    let count = p.sorted(node, place, &room);
    let (here, absent) = p.split(count, &room);

    let record = p.records.offset(node as usize * (1 + p.degree as usize));
    let own = p.order.get(place as usize);
    if warp::lane_id() == 0 {
        record.set(0, p.ids.get(own as usize));
    }
    let taken = p.accept(here, absent, &room, p.rows.lift(own), record.offset(1));
    p.fill(taken, count, &room, record.offset(1));
}

macro_rules! merge_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Merges the two lists of nodes (see [`MergeLists`] and the module).
        ///
        /// Launch: a block of [`MERGE_LISTS_THREADS`] per [`MERGE_LISTS_NODES`] nodes;
        /// [`merge_lists_shared_bytes`].
        ///
        /// # Safety
        /// - The views match the fields of [`MergeLists`].
        #[kernel(
            unsafe,
            block = MERGE_LISTS_THREADS,
            shared = merge_lists_shared_bytes(p.rows.dim, p.degree),
            blocks_per_multiprocessor = 16
        )]
        pub unsafe fn $name(p: MergeLists<$type>) {
            merge(&p);
        }
    )*};
}

merge_kernels! {
    lists_merge_f32 f32;
    lists_merge_f16 f16;
    lists_merge_u8 u8;
    lists_merge_i8 i8;
}
