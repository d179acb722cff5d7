//! The search of a block.

use cuda_std::prelude::*;
use cuda_std::thread::{block_dim_x, block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared};

use super::list::Beam;
use crate::block::copied;
use crate::block::element::{Element, GROUP};
use crate::block::exact::point_bytes;
use crate::block::rows::{ListPoint, Rows};
use crate::block::table;
use crate::descent::key::{self, Key, NONE};

/// The rows of a graph.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Graph {
    /// In: `degree` ids of each node, every `1 << shift`-th value; `u32::MAX` in place of those that are not there. k-NN
    /// lists are read as such rows: the low words of their keys, with a shift of 1.
    pub ids: Global<u32>,
    /// In: of a graph over some of the nodes, the row of each node that has one. Other graphs have
    /// none, and it is not read.
    pub places: Global<u32>,
    /// Ids of a node.
    pub degree: u32,
    /// How far apart ids are.
    pub shift: u32,
}

impl Graph {
    /// Id `i` of the row at `place`.
    #[inline(always)]
    fn neighbor(&self, place: u32, i: u32) -> u32 {
        self.ids.get((place as usize * self.degree as usize + i as usize) << self.shift)
    }
}

/// What blocks search, and how far.
#[repr(C)]
pub struct BeamWalk<T> {
    /// In: the vectors of the nodes, fewer than 2^31.
    pub base: Rows<T>,
    /// In: its edges.
    pub graph: Graph,
    /// In: the nodes that searches begin at: every `1 << entry_shift`-th value is one, `u32::MAX`
    /// is none. Searches that keep the keys of all nodes met share them, and read every value.
    pub entries: Global<u32>,
    /// How many entries a search has.
    pub entry_count: u32,
    /// Nodes of the beam, 1 to 32 C.
    pub beam: u32,
    /// Nodes expanded in a step, at least 1; of searches that keep the keys of all nodes met, 1.
    pub width: u32,
    /// Nodes expanded at most, of searches that keep the keys of all nodes met.
    pub expansions: u32,
    /// Slots of the table of nodes met: at least [`least_slots`], and a power of two.
    pub slots: u32,
    /// A [`Metric`](crate::block::exact::Metric).
    pub metric: u32,
    /// How many entries are between those of one block and of the next: 0 if all begin at the same.
    pub entry_stride: u32,
    /// How far apart entries are.
    pub entry_shift: u32,
}

copied! {
    BeamWalk<T>;
}

/// Ids that are looked at in a step.
pub const fn step_ids(degree: u32, width: u32) -> u32 {
    let ids = degree * width;
    if ids < 64 { 64 } else { ids }
}

/// The fewest slots of a table for a search by a beam of `beam` nodes: the beam and the ids of a step fill two thirds of it
/// at most, so one slot is always empty.
pub const fn least_slots(beam: u32, step_ids: u32) -> u32 {
    table::slots(beam + step_ids)
}

/// Bytes of dynamic shared memory of a search that keeps `keys` keys, with a table in `words` words.
pub const fn walk_shared_bytes(dim: u32, keys: u32, words: u32, step_ids: u32, width: u32) -> u32 {
    point_bytes(dim) + keys * 8 + (words + step_ids + width + 2) * 4
}

/// Shared memory of a block.
#[derive(Clone, Copy)]
pub struct Room<T: Element> {
    /// The point that is searched for, as it was loaded.
    pub values: Shared<T::Point>,
    /// Keys of the nodes met: of the last step, or of all.
    pub keys: Shared<Key>,
    /// A table of the nodes met.
    pub table: Shared<u32>,
    /// Ids that a step finds to be new: [`step_ids`] of them.
    pub ids: Shared<u32>,
    /// The rows of the nodes that a step expands.
    parents: Shared<u32>,
    /// How many parents.
    parent_count: Shared<u32>,
    /// How many ids are new: 0 between steps.
    pub new_count: Shared<u32>,
}

impl<T: Element> Room<T> {
    /// The dynamic shared memory, with row `id` of `points` put in and an empty table, for `keys` keys and `words` words of
    /// the table, at least one to a slot. The whole block calls this; a barrier follows.
    #[inline(always)]
    pub fn start(walk: &BeamWalk<T>, (keys, words): (u32, u32), points: &Rows<T>, id: u32) -> Self {
        let thread = thread_idx_x();
        let values = shared::dynamic(0);
        let keys_at: Shared<Key> = shared::dynamic(point_bytes(walk.base.dim) as usize);
        let table: Shared<u32> = keys_at.offset(keys as usize).cast();
        let ids = table.offset(words as usize);
        let parents = ids.offset(step_ids(walk.graph.degree, walk.width) as usize);
        let parent_count = parents.offset(walk.width as usize);
        let new_count = parent_count.offset(1);
        points.load(values, id, (thread, block_dim_x()));
        walk.clear(table);
        if thread == 0 {
            new_count.set(0, 0);
        }
        Self { values, keys: keys_at, table, ids, parents, parent_count, new_count }
    }
}

/// Counts the lanes in which `is_one`, and calls `put` in each with a place of its own among those of the block; the whole
/// warp calls this.
#[inline(always)]
pub fn append(is_one: bool, count: Shared<u32>, put: impl Fn(u32)) {
    let lane = warp::lane_id();
    let ones = warp::ballot(is_one);
    let before = if lane == 0 && ones != 0 { count.fetch_add(0, ones.count_ones()) } else { 0 };
    let place = warp::broadcast(before, 0) + (ones & ((1 << lane) - 1)).count_ones();
    if is_one {
        put(place);
    }
}

impl<T: Element> BeamWalk<T> {
    /// Empties the table; the whole block calls this, before a barrier.
    #[inline(always)]
    fn clear(&self, table: Shared<u32>) {
        let mut i = thread_idx_x();
        while i < self.slots {
            table.set(i as usize, table::EMPTY);
            i += block_dim_x();
        }
    }

    /// Puts an id into the table; returns whether it was not there.
    #[inline(always)]
    pub fn insert(&self, table: Shared<u32>, id: u32) -> bool {
        table::insert(table, self.slots - 1, id)
    }

    /// Searches for `point`, whose block calls this after a barrier, and finds a barrier behind the keys. Returns the beam,
    /// which the first warp has, and how many distances were computed.
    ///
    /// With `KEEP` the keys of all nodes met stay, of `expansions` nodes expanded; the table holds all of them then, and never
    /// fills. Without, it is emptied when it is three quarters full, but for the nodes of the beam: what else was met is
    /// farther than the beam's last, and does not come back into it.
    ///
    /// With `PLACED` the graph is one over some of the nodes, which are looked up in its `places`.
    #[inline(always)]
    pub fn run<const C: usize, const KEEP: bool, const PLACED: bool>(
        &self,
        point: &ListPoint<T>,
        room: &Room<T>,
    ) -> (Beam<C>, u32) {
        let (thread, threads, lane) = (thread_idx_x(), block_dim_x(), warp::lane_id());
        let degree = self.graph.degree;
        // Searches that keep all go in steps of one.
        let width = if KEEP { 1 } else { self.width };
        let most = step_ids(degree, width);
        let mut beam = Beam::new(self.beam);
        let (mut entered, mut expanded, mut parents) = (0, 0, 0);
        // Ids in the table, and distances computed.
        let (mut known, mut computed) = (0, 0);
        loop {
            keep_rolled();
            // The entries come first, in as many steps as they take.
            let entering = parents == 0;
            let left = self.entry_count - entered;
            let count = if !entering {
                parents * degree
            } else if left < most {
                left
            } else {
                most
            };
            if !KEEP && known + count > self.slots / 4 * 3 {
                self.clear(room.table);
                sync_threads();
                if thread < 32 {
                    beam.each(self.beam, |_, key| {
                        if key != NONE {
                            self.insert(room.table, key as u32);
                        }
                    });
                }
                sync_threads();
                known = self.beam;
            }

            let mut first = thread & !31;
            while first < count {
                keep_rolled();
                let i = first + lane;
                let id = if i >= count {
                    table::EMPTY
                } else if entering {
                    let i = (entered + i) as usize;
                    if KEEP {
                        // Such searches all begin at the same nodes.
                        self.entries.get(i)
                    } else {
                        let first = block_idx_x() as usize * self.entry_stride as usize;
                        self.entries.get((first + i) << self.entry_shift)
                    }
                } else {
                    // The division is spared where it is not needed.
                    let parent = if width == 1 { 0 } else { i.checked_div(degree).unwrap_or(0) };
                    self.graph.neighbor(room.parents.get(parent as usize), i - parent * degree)
                };
                let is_new = id != table::EMPTY && self.insert(room.table, id);
                append(is_new, room.new_count, |place| room.ids.set(place as usize, id));
                first += threads;
            }
            sync_threads();

            let new = room.new_count.get(0);
            let keys = room.keys.offset(if KEEP { computed as usize } else { 0 });
            self.distances(point, room.ids, keys, new);
            sync_threads();
            known += new;
            computed += new;
            if entering {
                entered += count;
            }

            if thread < 32 {
                beam.offer(keys, new);
                let mut taken = 0;
                while entered == self.entry_count
                    && taken < width
                    && (!KEEP || expanded + taken < self.expansions)
                {
                    keep_rolled();
                    let Some(parent) = beam.take() else { break };
                    if thread == 0 {
                        let place = if PLACED { self.graph.places.get(parent as usize) } else { parent };
                        room.parents.set(taken as usize, place);
                    }
                    taken += 1;
                }
                if thread == 0 {
                    room.parent_count.set(0, taken);
                    room.new_count.set(0, 0);
                }
            }
            sync_threads();
            parents = room.parent_count.get(0);
            if KEEP {
                expanded += parents;
            }
            if parents == 0 && entered == self.entry_count {
                return (beam, computed);
            }
        }
    }

    /// Computes the keys of `count` ids; the whole block calls this.
    #[inline(always)]
    fn distances(&self, point: &ListPoint<T>, ids: Shared<u32>, keys: Shared<Key>, count: u32) {
        let (thread, lane) = (thread_idx_x(), warp::lane_id());
        let groups = block_dim_x() / GROUP;
        let mut first = thread / 32 * (32 / GROUP);
        while first < count {
            keep_rolled();
            // A group of lanes has two ids. Beyond the end it takes the last once more: that is in the cache.
            let (i, other) = (first + lane / GROUP, first + lane / GROUP + groups);
            let id = |i: u32| ids.get((if i < count { i } else { count - 1 }) as usize);
            let pair = [id(i), id(other)];
            let distances = self.base.list_distances(point, pair);
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
}
