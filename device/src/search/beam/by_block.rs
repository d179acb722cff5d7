//! Beam search by several warps, several nodes per step: for few queries at a time.
//!
//! # Algorithm
//!
//! ```text
//! repeat:
//!     ids     = the next entry nodes, until all have come; then the neighbours of the parents
//!     new     = ids that the table does not hold; enter them
//!     slots   = (list distance to the query, id) of new, where nearer than the beam's last node
//!     beam    = the nearest of beam and slots: the place of each is the number of those below it,
//!               which a thread counts
//!     parents = the nearest `width` unexpanded nodes of the beam up to the bound of `stop`
//! until there are no parents
//! ```
//!
//! # Buffers
//!
//! Those of [`BeamWalk`]. Shared memory: query, beam before and after a step, slots and ids of a
//! step, table, parents.
//!
//! # Optimisations
//!
//! 1. All threads merge: one warp that inserts the 40 to 60 slots of a step one by one takes longer
//!    than all the rest.
//! 2. Four rows per group of 4 lanes are under way at once, so the rows of a step come in one wait.
//!    Long rows are prefetched, all of a step.
//!
//! # Speed
//!
//! One query alone waits: a step takes two dependent loads, ids and rows, and five barriers.

use cuda_std::prelude::*;
use cuda_std::thread::{block_dim_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared, unroll};

use super::list::{EXPANDED, Slot, id, key, slot, two};
use super::purpose::{Purpose, Search};
use super::stop::Stop;
use super::walk::{BeamWalk, append, step_ids};
use crate::block::element::{Element, GROUP};
use crate::block::exact::query_bytes;
use crate::block::rows::{ListPoint, Rows};
use crate::block::threads::Threads;
use crate::key::{self as keys, Key, NO_ID, NONE};

/// Bytes of a row up to which a group of lanes has four rows under way. Of longer ones it has one,
/// and all its loads come from the cache.
const SHORT_ROW: u32 = 512;

/// Dynamic shared memory in bytes of a search that keeps `kept` nodes.
pub const fn block_search_shared_bytes(dim: u32, kept: u32, degree: u32, width: u32, slots: u32) -> u32 {
    let ids = step_ids(degree, width);
    query_bytes(dim) + (kept + near_slots(ids)) * 8 + (id_words(kept, ids) + slots + width + 3) * 4
}

/// Slots of [`BlockRoom::near`]: one per id of a step, up to a multiple of eight, since a thread
/// reads eight at a time.
const fn near_slots(step_ids: u32) -> u32 {
    step_ids.next_multiple_of(8)
}

/// Words of the ids of a step, and afterwards of the merged beam.
const fn id_words(kept: u32, step_ids: u32) -> u32 {
    if step_ids < 2 * kept { 2 * kept } else { step_ids }
}

/// Shared memory of a block.
pub struct BlockRoom<T: Element> {
    /// The query's vector.
    pub values: Shared<T::Query>,
    beam: Shared<Slot>,
    /// New slots of a step that are nearer than the beam's last one, then [`NONE`].
    near: Shared<Slot>,
    /// New ids of a step; then the merged beam.
    ids: Shared<u32>,
    table: Shared<u32>,
    parents: Shared<u32>,
    parent_count: Shared<u32>,
    /// Number of new ids; 0 between steps.
    new_count: Shared<u32>,
    /// Number of near slots.
    near_count: Shared<u32>,
}

impl<T: Element> BlockRoom<T> {
    /// Divides the dynamic shared memory, loads row `query` of `points`, and empties beam and
    /// table. The whole block calls this; a barrier follows.
    #[inline(always)]
    pub fn start(walk: &BeamWalk<T>, points: &Rows<T>, query: u32) -> Self {
        let (thread, threads) = (thread_idx_x(), block_dim_x());
        let most = step_ids(walk.graph.degree, walk.width);
        let near: Shared<Slot> = shared::dynamic(query_bytes(walk.base.dim) as usize);
        let beam = near.offset(near_slots(most) as usize);
        let ids: Shared<u32> = beam.offset(walk.beam as usize).cast();
        let table = ids.offset(id_words(walk.beam, most) as usize);
        let parents = table.offset(walk.slots as usize);
        let parent_count = parents.offset(walk.width as usize);
        let (new_count, near_count) = (parent_count.offset(1), parent_count.offset(2));
        let values = shared::dynamic(0);
        points.load(values, query, Threads::new(thread, threads));
        walk.clear(table);
        let mut place = thread;
        while place < walk.beam {
            beam.set(place as usize, NONE);
            place += threads;
        }
        if thread == 0 {
            new_count.set(0, 0);
        }
        Self { values, beam, near, ids, table, parents, parent_count, new_count, near_count }
    }
}

/// The number of the first `len` slots of `beam` below `slot`.
#[inline(always)]
fn place(beam: Shared<Slot>, len: u32, slot: Slot) -> u32 {
    let (mut first, mut end) = (0, len);
    while first < end {
        keep_rolled();
        let middle = (first + end) / 2;
        if beam.get(middle as usize) < slot {
            first = middle + 1;
        } else {
            end = middle;
        }
    }
    first
}

impl<T: Element> BeamWalk<T> {
    /// Enters ids in the table and appends the new ones to `room.ids`: the neighbours of `parents`
    /// parents, or if there are none `count` entries from `entered` on. A barrier follows.
    #[inline(always)]
    fn gather(&self, room: &BlockRoom<T>, parents: u32, entered: u32, count: u32) {
        let degree = self.graph.degree;
        let mut first = thread_idx_x() & !31;
        while first < count {
            keep_rolled();
            let i = first + warp::lane_id();
            let id = if i >= count {
                NO_ID
            } else if parents == 0 {
                Search::entry(self, (entered + i) as usize)
            } else {
                let parent = i.checked_div(degree).unwrap_or(0);
                self.graph.neighbor(room.parents.get(parent as usize), i - parent * degree)
            };
            let is_new = id != NO_ID && self.insert(room.table, id);
            append(is_new, room.new_count, |place| room.ids.set(place as usize, id));
            first += block_dim_x();
        }
    }

    /// Starts to load the rows of `new` ids, a warp each.
    #[inline(always)]
    fn prefetch_rows(&self, room: &BlockRoom<T>, new: u32) {
        let mut i = thread_idx_x() / 32;
        while i < new {
            keep_rolled();
            let row = self.base.row(room.ids.get(i as usize)).cast::<u32>();
            let mut word = warp::lane_id() * 32;
            while word * 4 < self.base.dim * size_of::<T>() as u32 {
                keep_rolled();
                row.prefetch(word as usize);
                word += 32 * 32;
            }
            i += block_dim_x() / 32;
        }
    }

    /// Appends the slots of `new` ids that are below `last` to `room.near`, `N` rows per group of
    /// lanes at a time from number `first` on. A barrier follows.
    #[inline(always)]
    fn near_of<const N: usize, const LOADS: usize>(
        &self,
        point: &ListPoint<T>,
        room: &BlockRoom<T>,
        first: u32,
        new: u32,
        last: Slot,
    ) {
        let (lane, groups) = (warp::lane_id(), block_dim_x() / GROUP);
        let at = first + thread_idx_x() / GROUP;
        if first + (thread_idx_x() & !31) / GROUP >= new {
            return;
        }
        // Beyond the end a group takes the last id, whose row is cached.
        let place = |n: usize| at + n as u32 * groups;
        let mut ids = [0; N];
        for (n, id) in ids.iter_mut().enumerate() {
            *id = room.ids.get((if place(n) < new { place(n) } else { new - 1 }) as usize);
        }
        let distances = self.base.list_distances::<N, LOADS>(point, ids);
        let (mut own, mut place_of_own) = (keys::pack(distances[0], ids[0]), place(0));
        for n in 1..N {
            if lane % GROUP == n as u32 {
                (own, place_of_own) = (keys::pack(distances[n], ids[n]), place(n));
            }
        }
        let own = slot(own);
        let is_near = lane % GROUP < N as u32 && place_of_own < new && own < last;
        append(is_near, room.near_count, |to| room.near.set(to as usize, own));
    }

    /// Merges the beam and `count` near slots. The block calls this after a barrier; a barrier also
    /// ends it.
    #[inline(always)]
    fn merge(&self, room: &BlockRoom<T>, count: u32) {
        let merged: Shared<Slot> = room.ids.cast();
        let mut item = thread_idx_x();
        while item < self.beam + count {
            keep_rolled();
            let of_beam = item < self.beam;
            let own = if of_beam {
                room.beam.get(item as usize)
            } else {
                room.near.get((item - self.beam) as usize)
            };
            let mut to = if of_beam { item } else { place(room.beam, self.beam, own) };
            // Four sums, which do not wait for one another.
            let (mut below, mut i) = ([0; 4], 0);
            while i < count {
                keep_rolled();
                let mut pairs = [(NONE, NONE); 4];
                unroll!(4, P => pairs[P] = two(room.near, i + 2 * P as u32));
                unroll!(4, P => below[P] += u32::from(pairs[P].0 < own) + u32::from(pairs[P].1 < own));
                i += 8;
            }
            to += (below[0] + below[1]) + (below[2] + below[3]);
            if to < self.beam {
                merged.set(to as usize, own);
            }
            item += block_dim_x();
        }
        sync_threads();
        let mut place = thread_idx_x();
        while place < self.beam {
            room.beam.set(place as usize, merged.get(place as usize));
            place += block_dim_x();
        }
        sync_threads();
    }

    /// Marks the next parents in the beam. The first warp calls this; a barrier follows.
    #[inline(always)]
    fn mark_parents(&self, room: &BlockRoom<T>, stop: Stop, is_partial: bool) {
        let lane = warp::lane_id();
        let at_rank = (room.beam.get(stop.rank as usize) >> 32) as u32;
        let last = stop.last(at_rank);
        // All lanes have read before one marks.
        warp::sync();
        let (mut taken, mut first) = (0, 0);
        while taken < self.width && first < self.beam {
            keep_rolled();
            let at = first + lane;
            let here = if at < self.beam { room.beam.get(at as usize) } else { NONE };
            let is_parent = here & EXPANDED == 0 && here <= last;
            let lanes = warp::ballot(is_parent);
            let rank = taken + warp::lanes_before(lanes);
            if is_parent && rank < self.width {
                let node = id(here);
                let row = if is_partial { self.graph.places.get(node as usize) } else { node };
                room.parents.set(rank as usize, row);
                room.beam.set(at as usize, here | EXPANDED);
            }
            taken += lanes.count_ones();
            first += 32;
        }
        if lane == 0 {
            room.parent_count.set(0, if taken < self.width { taken } else { self.width });
            room.new_count.set(0, 0);
        }
    }

    /// Empties the table but for the beam: other nodes are farther than its last one, and stay so.
    /// The block calls this; a barrier ends it.
    #[inline(always)]
    fn forget_others(&self, room: &BlockRoom<T>) {
        self.clear(room.table);
        sync_threads();
        let mut place = thread_idx_x();
        while place < self.beam {
            let key = key(room.beam.get(place as usize));
            if key != NONE {
                self.insert(room.table, key as u32);
            }
            place += block_dim_x();
        }
        sync_threads();
    }

    /// Searches for `point`; leaves the nodes in `room.beam`, and returns the number of distances
    /// computed. With `is_partial` the graph is one over some of the nodes, which `graph.places`
    /// maps to rows. The block calls this after a barrier; a barrier also ends it.
    #[inline(always)]
    pub(super) fn search_by_block(
        &self,
        point: &ListPoint<T>,
        room: &BlockRoom<T>,
        stop: Stop,
        is_partial: bool,
    ) -> u32 {
        let (thread, groups) = (thread_idx_x(), block_dim_x() / GROUP);
        let most = step_ids(self.graph.degree, self.width);
        let is_short = self.base.dim * size_of::<T>() as u32 <= SHORT_ROW;
        let (mut parents, mut entered, mut in_table, mut computed) = (0, 0, 0, 0);
        // The keys of an upper layer are the beam.
        if let Some(keys) = self.keys() {
            entered = self.entry_count;
            let mut rank = thread;
            while rank < self.beam && rank < entered {
                let key = keys.get(rank as usize);
                if key != NONE {
                    room.beam.set(rank as usize, slot(key));
                    self.insert(room.table, key as u32);
                }
                rank += block_dim_x();
            }
            in_table = self.beam;
            sync_threads();
        }
        loop {
            keep_rolled();
            let left = self.entry_count - entered;
            let count = match parents {
                0 if left < most => left,
                0 => most,
                _ => parents * self.graph.degree,
            };
            if self.is_full(in_table + count) {
                self.forget_others(room);
                in_table = self.beam;
            }
            if thread == 0 {
                room.near_count.set(0, 0);
            }
            let mut place = thread;
            while place < near_slots(most) {
                room.near.set(place as usize, NONE);
                place += block_dim_x();
            }
            self.gather(room, parents, entered, count);
            if parents == 0 {
                entered += count;
            }
            sync_threads();

            let new = room.new_count.get(0);
            (in_table, computed) = (in_table + new, computed + new);
            let last = room.beam.get(self.beam as usize - 1);
            if !is_short {
                self.prefetch_rows(room, new);
            }
            let mut first = 0;
            while first < new {
                keep_rolled();
                if is_short && new - first > groups {
                    self.near_of::<4, 2>(point, room, first, new, last);
                    first += 4 * groups;
                } else {
                    self.near_of::<1, 8>(point, room, first, new, last);
                    first += groups;
                }
            }
            sync_threads();
            let near = room.near_count.get(0);
            if near > 0 {
                self.merge(room, near);
            }
            if thread < 32 {
                if entered == self.entry_count {
                    self.mark_parents(room, stop, is_partial);
                } else if thread == 0 {
                    room.parent_count.set(0, 0);
                    room.new_count.set(0, 0);
                }
            }
            sync_threads();
            parents = room.parent_count.get(0);
            if parents == 0 && entered == self.entry_count {
                return computed;
            }
        }
    }

    /// Calls `with` with the rank and the key of each node of the beam, in one thread each.
    #[inline(always)]
    pub(super) fn each_of_block(&self, room: &BlockRoom<T>, with: impl Fn(u32, Key)) {
        let mut place = thread_idx_x();
        while place < self.beam {
            with(place, key(room.beam.get(place as usize)));
            place += block_dim_x();
        }
    }
}
