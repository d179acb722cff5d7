//! Merging the two lists of a node, each of which has been pruned for itself, by the vectors of the second list's
//! cluster.
//!
//! Neighbours are taken by their distance. One that is nearer to one of those taken before than to the node stands behind
//! it, if the vectors of both are here; such ones only fill what is left. As in the wavefront filter, who is taken is
//! compared with all that are left at once, so the result is the serial one.

use cuda_std::prelude::*;
use cuda_std::thread::block_idx_x;
use cuda_std::{keep_rolled, shared};

use crate::block::copied;
use crate::block::element::Element;
use crate::block::exact::query_bytes;
use crate::block::rows::Rows;
use crate::block::sort::{partition_point, rank};
use crate::key::{Key, NONE};

/// Threads of a block, a warp per node.
pub const MERGE_LISTS_THREADS: u32 = 64;

/// Nodes per block.
pub const MERGE_LISTS_NODES: u32 = MERGE_LISTS_THREADS / 32;

/// What a neighbour has in place of a row: there is no vector of it here.
const ABSENT: u32 = u32::MAX;

/// It stands behind one that was taken.
const OCCLUDED: u32 = u32::MAX - 1;

/// It is there once more.
const TWICE: u32 = u32::MAX - 2;

/// The merging of lists. Ids are those of nodes, *rows* those of the cluster's vectors; second lists have *places*.
#[repr(C)]
pub struct MergeLists<T> {
    /// In: the vectors of the second lists' cluster.
    pub rows: Rows<T>,
    /// In: the id of each of the `members` rows, ascending.
    pub ids: Global<u32>,
    /// In: the row at each place.
    pub order: Global<u32>,
    /// In: `degree` keys at each place: ascending (order distance, row), then [`NONE`].
    pub second: Global<Key>,
    /// In: the place of each node.
    pub places: Global<u32>,
    /// In: `degree` keys of each node: ascending (order distance, id), then [`NONE`].
    pub first: Global<Key>,
    /// Out: of each node its id and `degree` ids of neighbours, `u32::MAX` behind the last.
    pub records: GlobalMut<u32>,
    /// How many rows.
    pub members: u32,
    /// How many nodes.
    pub count: u32,
    /// Keys per list, at least 1.
    pub degree: u32,
    /// Nothing.
    pub padding: u32,
}

copied! {
    MergeLists<T>;
}

/// Bytes of dynamic shared memory of the kernels: for each warp a vector, the neighbours of both lists, the row of each, and
/// places of those that are left.
pub const fn merge_lists_shared_bytes(dim: u32, degree: u32) -> u32 {
    MERGE_LISTS_NODES * warp_bytes(dim, degree)
}

const fn warp_bytes(dim: u32, degree: u32) -> u32 {
    query_bytes(dim) + (degree * (2 * (8 + 4) + 3 * 4)).next_multiple_of(16)
}

/// Neighbours that are left, by their places in the order of distances.
struct Left {
    places: Shared<u32>,
    /// Those before have been taken.
    first: u32,
    end: u32,
}

impl Left {
    /// The place of the next, or `u32::MAX`.
    #[inline(always)]
    fn next(&self) -> u32 {
        if self.first < self.end { self.places.get(self.first as usize) } else { u32::MAX }
    }

    /// Appends the places of those lanes that have one to append; the whole warp calls this.
    #[inline(always)]
    fn append(&mut self, place: u32, is_one: bool) {
        let ones = warp::ballot(is_one);
        // All have read before one writes.
        warp::sync();
        if is_one {
            let before = (ones & ((1 << warp::lane_id()) - 1)).count_ones();
            self.places.set((self.end + before) as usize, place);
        }
        self.end += ones.count_ones();
    }
}

impl<T: Element> MergeLists<T> {
    /// Puts the keys of both lists of `node`, whose second is at `place`, in order, with the row of each; `second` has room
    /// for a list. How many they are.
    #[inline(always)]
    fn sorted(
        &self,
        (node, place): (u32, u32),
        keys: Shared<Key>,
        rows: Shared<u32>,
        second: Shared<Key>,
    ) -> u32 {
        let lane = warp::lane_id();
        let first = self.first.offset(node as usize * self.degree as usize);
        let of_rows = self.second.offset(place as usize * self.degree as usize);
        let (mut firsts, mut seconds, mut begin) = (0, 0, 0);
        while begin < self.degree {
            keep_rolled();
            let slot = begin + lane;
            let mut key = NONE;
            if slot < self.degree {
                key = of_rows.get(slot as usize);
                let id = if key == NONE { u32::MAX } else { self.ids.get(key as u32 as usize) };
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
            // The distance of a pair is the same in both clusters, so that what is twice there is one key twice.
            let row = if before < seconds && second.get(before as usize) == key {
                TWICE
            } else if row < self.members && self.ids.get(row as usize) == key as u32 {
                row
            } else {
                ABSENT
            };
            keys.set((slot + before) as usize, key);
            rows.set((slot + before) as usize, row);
            slot += 32;
        }
        let mut slot = lane;
        while slot < seconds {
            keep_rolled();
            let key = second.get(slot as usize);
            let place = slot + partition_point(firsts, |i| first.get(i as usize) <= key);
            keys.set(place as usize, key);
            rows.set(place as usize, of_rows.get(slot as usize) as u32);
            slot += 32;
        }
        warp::sync();
        firsts + seconds
    }
}

#[inline(always)]
fn merge<T: Element>(p: &MergeLists<T>) {
    let (warp, lane) = (thread::warp_idx(), warp::lane_id());
    let node = block_idx_x() * MERGE_LISTS_NODES + warp;
    if node >= p.count {
        return;
    }
    let values: Shared<T::Query> = shared::dynamic((warp * warp_bytes(p.rows.dim, p.degree)) as usize);
    let keys: Shared<Key> = values.cast::<u8>().offset(query_bytes(p.rows.dim) as usize).cast();
    let rows: Shared<u32> = keys.offset(2 * p.degree as usize).cast();
    let places = rows.offset(2 * p.degree as usize);
    let place = p.places.get(node as usize);
    let count = p.sorted((node, place), keys, rows, places.cast());

    let mut here = Left { places, first: 0, end: 0 };
    let mut absent = Left { places: places.offset(2 * p.degree as usize), first: 0, end: 0 };
    let mut begin = 0;
    while begin < count {
        keep_rolled();
        let place = begin + lane;
        let row = if place < count { rows.get(place as usize) } else { TWICE };
        here.append(place, row < TWICE);
        absent.append(place, row == ABSENT);
        begin += 32;
    }
    warp::sync();

    let record = p.records.offset(node as usize * (1 + p.degree as usize));
    let out = record.offset(1);
    let own = p.order.get(place as usize);
    let lift = p.rows.lift(own);
    if lane == 0 {
        record.set(0, p.ids.get(own as usize));
    }
    let mut taken = 0;
    while taken < p.degree {
        keep_rolled();
        let (of_here, of_absent) = (here.next(), absent.next());
        let place = if of_here < of_absent { of_here } else { of_absent };
        if place == u32::MAX {
            break;
        }
        if lane == 0 {
            out.set(taken as usize, keys.get(place as usize) as u32);
        }
        taken += 1;
        if place == of_absent {
            absent.first += 1;
            continue;
        }
        let row = rows.get(place as usize);
        p.rows.load(values, row, (lane, 32));
        warp::sync();
        let point = p.rows.point(values, row);
        let (mut begin, end) = (here.first + 1, here.end);
        (here.first, here.end) = (0, 0);
        while begin < end {
            keep_rolled();
            let is_one = begin + lane < end;
            let place = if is_one { here.places.get((begin + lane) as usize) } else { place };
            let count = if end - begin < 32 { end - begin } else { 32 };
            let row = rows.get(place as usize);
            let distance = p.rows.distances(&point, row, count);
            // Of the key only the distance: its id is not a row here.
            let key = keys.get(place as usize) >> 32 << 32 | row as u64;
            let stays = distance >= p.rows.rule_distance(lift, key);
            if is_one && !stays {
                rows.set(place as usize, OCCLUDED);
            }
            here.append(place, is_one && stays);
            begin += 32;
        }
        warp::sync();
    }
    // What is behind others fills what is left.
    let mut begin = 0;
    while begin < count && taken < p.degree {
        keep_rolled();
        let place = begin + lane;
        let is_one = place < count && rows.get(place as usize) == OCCLUDED;
        let ones = warp::ballot(is_one);
        let slot = taken + (ones & ((1 << lane) - 1)).count_ones();
        if is_one && slot < p.degree {
            out.set(slot as usize, keys.get(place as usize) as u32);
        }
        taken += ones.count_ones();
        begin += 32;
    }
    let mut slot = taken + lane;
    while slot < p.degree {
        keep_rolled();
        out.set(slot as usize, u32::MAX);
        slot += 32;
    }
}

macro_rules! merge_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Merges the two lists of nodes (see [`MergeLists`]).
        ///
        /// Launch: a block of [`MERGE_LISTS_THREADS`] per [`MERGE_LISTS_NODES`] nodes; [`merge_lists_shared_bytes`].
        ///
        /// # Safety
        /// - The views hold what [`MergeLists`] says.
        #[kernel(
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
