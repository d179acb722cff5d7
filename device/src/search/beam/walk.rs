//! What beam searches share, and the search that collects visited nodes for pruning.
//!
//! # Algorithm
//!
//! ```text
//! for each node, one block:
//!     load its vector to shared memory; empty the table of visited ids and the beam
//!     parents = none
//!     repeat:
//!         ids  = the next entry nodes, until all have come; then the neighbours of the parent
//!         new  = ids that the table does not hold; enter them
//!         keys = (list distance, id) of new
//!         insert keys into the beam, drop what does not fit
//!         parent = the nearest node of the beam that was never expanded
//!     until there is no parent
//! ```
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `base` | nodes × dim, see [`Rows`] |
//! | `graph.ids` | rows × `degree` ids, every `1 << shift`-th value; `NO_ID` is no edge |
//! | `graph.places` | per node its row in `ids`; not read for graphs over all nodes |
//! | `entries` | per block `entry_count` nodes, `entry_stride` values apart |
//! | shared memory | query, keys of one step or of all, table, ids of a step, parents |
//!
//! # Optimisations
//!
//! 1. The beam is sorted in the registers of the first warp, 1 to 16 keys per lane (`list::Beam`).
//!    An insertion is one rule for all slots, `slot = min(slot, max(slot before, key))`. It takes
//!    one shuffle and no search for the place.
//! 2. The lowest bit of a slot marks an expanded node, so a vote finds the next parent.
//! 3. The table lies in shared memory. Searches with a filter empty it, except for the beam, at
//!    three quarters full: every other visited node is farther than the beam's last key, which only
//!    falls, so such a node is computed again and rejected again.
//! 4. A vote compacts the new ids, so that no group of lanes computes a distance in vain.
//! 5. Groups of 4 lanes compute exact distances, 16 at a time per warp: two rows per group, 32
//!    bytes of each, are loaded at once to hide latency.

use cuda_std::prelude::*;
use cuda_std::thread::{block_dim_x, block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared};

use super::list::Beam;
use super::purpose::{Collect, Purpose};
use super::stop::Stop;
use crate::block::copied;
use crate::block::element::{Element, GROUP};
use crate::block::exact::query_bytes;
use crate::block::rows::{ListPoint, Rows};
use crate::block::table;
use crate::block::threads::Threads;
use crate::key::{self, Key, NO_ID, NONE};

/// The edges of a graph.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Graph {
    /// In: `degree` ids per row, every `1 << shift`-th value; `NO_ID` is no edge. k-NN lists are
    /// read as such rows: the low words of their keys, with a shift of 1.
    pub ids: Global<u32>,
    /// In: for a graph over some of the nodes, the row in `ids` of each node that has one. Not read
    /// for other graphs.
    pub places: Global<u32>,
    /// Ids per row.
    pub degree: u32,
    /// Binary logarithm of the distance between ids, in values.
    pub shift: u32,
}

impl Graph {
    /// Id `i` of the row at `place`.
    #[inline(always)]
    pub(super) fn neighbor(&self, place: u32, i: u32) -> u32 {
        self.ids.get((place as usize * self.degree as usize + i as usize) << self.shift)
    }
}

/// Arguments of a beam search.
#[repr(C)]
pub struct BeamWalk<T> {
    /// In: the vectors of the nodes, fewer than 2^31.
    pub base: Rows<T>,
    /// In: the edges.
    pub graph: Graph,
    /// In: the entry nodes, every `1 << entry_shift`-th value; `NO_ID` is none. Path collection
    /// reads every value.
    pub entries: Global<u32>,
    /// Entry nodes per search.
    pub entry_count: u32,
    /// Nodes of the beam, 1 to 32 C.
    pub beam: u32,
    /// Nodes expanded per step, at least 1; 1 in path collection.
    pub width: u32,
    /// Maximum number of nodes expanded in path collection.
    pub expansions: u32,
    /// Slots of the table of visited ids: a power of two, at least [`least_slots`].
    pub slots: u32,
    /// A [`Metric`](crate::block::exact::Metric).
    pub metric: u32,
    /// Entries between the first entries of two blocks; 0 if all blocks share them.
    pub entry_stride: u32,
    /// Binary logarithm of the distance between entries, in values.
    pub entry_shift: u32,
    /// When the search stops, for a query of norm 1. The rank is below `beam`. Not read in
    /// path collection.
    pub stop: Stop,
}

copied! {
    BeamWalk<T>;
}

/// Maximum number of ids of a step.
pub const fn step_ids(degree: u32, width: u32) -> u32 {
    let ids = degree * width;
    if ids < 64 { 64 } else { ids }
}

/// Minimum number of slots of a table for a beam of `beam` nodes. The beam and the ids of a step
/// fill at most two thirds of it, so one slot is always empty.
pub const fn least_slots(beam: u32, step_ids: u32) -> u32 {
    table::slots(beam + step_ids)
}

/// Dynamic shared memory in bytes of a search that keeps `keys` keys, with a table of `words`
/// words.
pub const fn walk_shared_bytes(dim: u32, keys: u32, words: u32, step_ids: u32, width: u32) -> u32 {
    query_bytes(dim) + keys * 8 + (words + step_ids + width + 3) * 4
}

/// Shared memory of a block.
#[derive(Clone, Copy)]
pub struct Room<T: Element> {
    /// The query's vector.
    pub values: Shared<T::Query>,
    /// Keys of the visited nodes: of the last step, or of all steps.
    pub keys: Shared<Key>,
    /// Table of visited ids.
    pub table: Shared<u32>,
    /// New ids of a step, up to [`step_ids`].
    pub ids: Shared<u32>,
    /// Rows of the nodes that the next step expands.
    pub(super) parents: Shared<u32>,
    /// Number of parents.
    pub(super) parent_count: Shared<u32>,
    /// Number of new ids; 0 between steps.
    pub new_count: Shared<u32>,
    /// The stop's slack for the query. In a register it would spill.
    pub slack: Shared<f32>,
}

impl<T: Element> Room<T> {
    /// Divides the dynamic shared memory, loads row `id` of `points`, and empties the table. There
    /// is room for `keys` keys and a table of `words` words, at least one per slot. The whole block
    /// calls this; a barrier follows.
    #[inline(always)]
    pub fn start(walk: &BeamWalk<T>, keys: u32, words: u32, points: &Rows<T>, id: u32) -> Self {
        let thread = thread_idx_x();
        let values = shared::dynamic(0);
        let keys_at: Shared<Key> = shared::dynamic(query_bytes(walk.base.dim) as usize);
        let table: Shared<u32> = keys_at.offset(keys as usize).cast();
        let ids = table.offset(words as usize);
        let parents = ids.offset(step_ids(walk.graph.degree, walk.width) as usize);
        let parent_count = parents.offset(walk.width as usize);
        let new_count = parent_count.offset(1);
        let slack = new_count.offset(1).cast();
        points.load(values, id, Threads::new(thread, block_dim_x()));
        walk.clear(table);
        if thread == 0 {
            new_count.set(0, 0);
        }
        Self { values, keys: keys_at, table, ids, parents, parent_count, new_count, slack }
    }
}

/// Adds the number of lanes where `is_one` holds to `count`, and calls `put` in each of them with a
/// place of its own. The whole warp calls this.
#[inline(always)]
pub fn append(is_one: bool, count: Shared<u32>, put: impl Fn(u32)) {
    let lane = warp::lane_id();
    let ones = warp::ballot(is_one);
    let before = if lane == 0 && ones != 0 { count.fetch_add(0, ones.count_ones()) } else { 0 };
    let place = warp::broadcast(before, 0) + warp::lanes_before(ones);
    if is_one {
        put(place);
    }
}

/// Counts of a walk.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    /// Entries that have come.
    pub entered: u32,
    /// Nodes that this step expands; none while entries come.
    pub parents: u32,
    /// Nodes expanded, those of this step among them.
    pub expanded: u32,
    /// Ids in the table.
    pub in_table: u32,
    /// Distances computed.
    pub computed: u32,
}

impl<T: Element> BeamWalk<T> {
    /// The keys of the block's entries, ascending, if an upper layer found them: their distances
    /// are known.
    #[inline(always)]
    pub(super) fn keys(&self) -> Option<Global<Key>> {
        let first = block_idx_x() as usize * self.entry_stride as usize;
        (self.entry_shift == 1).then(|| self.entries.cast::<Key>().offset(first))
    }

    /// Empties the table. The whole block calls this; a barrier follows.
    #[inline(always)]
    pub(super) fn clear(&self, table: Shared<u32>) {
        let mut i = thread_idx_x();
        while i < self.slots {
            table.set(i as usize, NO_ID);
            i += block_dim_x();
        }
    }

    /// Whether a table with `ids` ids is emptied.
    #[inline(always)]
    pub(super) fn is_full(&self, ids: u32) -> bool {
        ids > self.slots / 4 * 3
    }

    /// Enters an id in the table; returns whether it is new.
    #[inline(always)]
    pub fn insert(&self, table: Shared<u32>, id: u32) -> bool {
        table::insert(table, self.slots - 1, id)
    }

    /// Searches for `point` with up to `expansions` expansions; leaves the keys of all visited
    /// nodes in `room.keys` and returns their number. The beam has at most 32 nodes, and the graph
    /// is one over all nodes. The block calls this after a barrier; a barrier also ends it.
    ///
    /// `LOADS` loads of each row are under way at once.
    #[inline(always)]
    pub fn collect<const LOADS: usize>(&self, point: &ListPoint<T>, room: &Room<T>) -> u32 {
        let (thread, threads, degree) = (thread_idx_x(), block_dim_x(), self.graph.degree);
        let most = step_ids(degree, 1);
        let mut beam = Beam::<1>::new(self.beam);
        let mut counts = Counts::default();
        loop {
            keep_rolled();
            // The entries come first, in as many steps as they take.
            let entering = counts.parents == 0;
            let left = self.entry_count - counts.entered;
            let count = if !entering {
                degree
            } else if left < most {
                left
            } else {
                most
            };
            // The new ids of this step. Here, not in a function: `prune_path_f32` would spill on
            // sm_100.
            let mut first = thread & !31;
            while first < count {
                keep_rolled();
                let i = first + warp::lane_id();
                let id = if i >= count {
                    NO_ID
                } else if entering {
                    Collect::entry(self, (counts.entered + i) as usize)
                } else {
                    self.graph.neighbor(room.parents.get(0), i)
                };
                let is_new = id != NO_ID && self.insert(room.table, id);
                append(is_new, room.new_count, |place| room.ids.set(place as usize, id));
                first += threads;
            }
            sync_threads();

            let new = room.new_count.get(0);
            let keys = room.keys.offset(counts.computed as usize);
            self.distances::<LOADS>(point, room.ids, keys, new, Threads::new(thread, threads));
            sync_threads();
            counts.computed += new;
            if entering {
                counts.entered += count;
            }

            if thread < 32 {
                beam.offer(keys, new);
                let has_entered = counts.entered == self.entry_count;
                self.take_parents::<Collect, 1, false>(&mut beam, room, counts, has_entered);
            }
            sync_threads();
            counts.parents = room.parent_count.get(0);
            counts.expanded += counts.parents;
            if counts.parents == 0 && counts.entered == self.entry_count {
                return counts.computed;
            }
        }
    }

    /// Empties the table except for the nodes of the beam. The whole block calls this.
    #[inline(always)]
    pub(super) fn forget<const C: usize>(&self, beam: Beam<C>, table: Shared<u32>) {
        self.clear(table);
        sync_threads();
        self.enter(beam, table);
    }

    /// Enters the nodes of the beam in an empty table. The whole block calls this; a barrier ends
    /// it.
    #[inline(always)]
    fn enter<const C: usize>(&self, beam: Beam<C>, table: Shared<u32>) {
        if thread_idx_x() < 32 {
            beam.each(self.beam, |_, key| {
                if key != NONE {
                    self.insert(table, key as u32);
                }
            });
        }
        sync_threads();
    }

    /// Computes the keys of `count` ids, with `LOADS` loads of each row under way at once. All
    /// `threads`, whole warps, call this; a barrier follows.
    #[inline(always)]
    pub(in crate::search) fn distances<const LOADS: usize>(
        &self,
        point: &ListPoint<T>,
        ids: Shared<u32>,
        keys: Shared<Key>,
        count: u32,
        threads: Threads,
    ) {
        let (lane, groups) = (warp::lane_id(), threads.count / GROUP);
        let mut first = threads.index / 32 * (32 / GROUP);
        while first < count {
            keep_rolled();
            // A group of lanes has two ids. Beyond the end it takes the last id, whose row is
            // cached.
            let (i, other) = (first + lane / GROUP, first + lane / GROUP + groups);
            let id = |i: u32| ids.get((if i < count { i } else { count - 1 }) as usize);
            let pair = [id(i), id(other)];
            let distances = self.base.list_distances::<2, LOADS>(point, pair);
            let (i, id, distance) = match lane % GROUP {
                0 => (i, pair[0], distances[0]),
                _ => (other, pair[1], distances[1]),
            };
            if lane % GROUP < 2 && i < count {
                keys.set(i as usize, key::pack(distance, id));
            }
            first += 2 * groups;
        }
    }

    /// Takes the parents of the next step from the beam, if all entries have entered, and resets
    /// `room.new_count`. The first warp calls this; a barrier follows.
    #[inline(always)]
    pub(super) fn take_parents<P: Purpose, const C: usize, const PARTIAL: bool>(
        &self,
        beam: &mut Beam<C>,
        room: &Room<T>,
        counts: Counts,
        has_entered: bool,
    ) {
        let (thread, width) = (thread_idx_x(), P::width(self));
        let last = P::last(self, room, beam);
        let mut taken = 0;
        while has_entered && taken < width && P::expands(self, counts.expanded + taken) {
            keep_rolled();
            let Some(parent) = beam.take(last) else { break };
            if thread == 0 {
                let place = if PARTIAL { self.graph.places.get(parent as usize) } else { parent };
                room.parents.set(taken as usize, place);
            }
            taken += 1;
        }
        if thread == 0 {
            room.parent_count.set(0, taken);
            room.new_count.set(0, 0);
        }
    }
}
