//! Beam search among the nodes that pass a filter.
//!
//! # Algorithm
//!
//! A [walk](super::walk) whose beam holds passing nodes alone. A step goes from each parent to its
//! neighbours that pass, and [through] the first of the others to their neighbours that pass:
//!
//! ```text
//! rows = none
//! for each parent, one warp:
//!     new ids = neighbours that pass and that the table does not hold; enter them
//!     others  = neighbours that do not pass
//!     rows   += the first `through` of others that the table does not hold; enter them
//! repeat:
//!     gather new ids that pass from `rows`, until room for a step is full or rows end
//!     keys    = (list distance to the query, id) of the new ids; insert them into the beam
//! until rows end
//! ```
//!
//! What lies behind another node has been visited if the table holds that node. With `width` 1 the
//! beam is that of the CPU backend, bit for bit: the number of others depends on the row alone, not
//! on what the table has forgotten.
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `search` | see [`BeamSearch`] |
//! | `passing` | a bit per node: bit i % 32 of word i / 32 |
//! | `entries` | `entry_count` nodes that pass, after those of the walk |
//! | shared memory | that of a search, and per step: others and rows |
//!
//! # Speed
//!
//! Where a tenth passes, a parent of degree 32 has 3 neighbours that pass, and 10 rows lead to 30
//! more: 1.3 KB of ids and as many bits from the cache, beside about as many vectors as without a
//! filter. Rows wait for ids, ids for bits: latency grows more than throughput falls.

use cuda_std::atomic::Scope;
use cuda_std::float::sqrt;
use cuda_std::keep_rolled;
use cuda_std::prelude::*;
use cuda_std::thread::{block_dim_x, block_idx_x, sync_threads, thread_idx_x};

use super::list::Beam;
use super::passing::through;
use super::purpose::{Purpose, Search};
use super::search::{BeamSearch, SEARCH_COUNTERS, SEARCH_THREADS};
use super::walk::{BeamWalk, Counts, Room, append, step_ids, walk_shared_bytes};
use crate::block::copied;
use crate::block::element::Element;
use crate::block::exact::Metric;
use crate::block::rows::ListPoint;
use crate::block::threads::Threads;
use crate::key::NO_ID;

/// Arguments of the kernels `beam_among_*`.
#[repr(C)]
pub struct BeamAmong<T> {
    /// The search.
    pub search: BeamSearch<T>,
    /// In: a bit per node, 1 if the search may keep it.
    pub passing: Global<u32>,
    /// In: nodes that pass, where all searches start besides the entries of the walk.
    pub entries: Global<u32>,
    /// Their number.
    pub entry_count: u32,
    /// Unused.
    pub padding: u32,
}

copied! {
    BeamAmong<T>;
}

/// Maximum number of ids that enter the table before a search with a filter may empty it, where
/// `step_ids` enter it in a step of a [walk](super::walk).
pub const fn among_step_ids(step_ids: u32) -> u32 {
    2 * step_ids
}

/// Dynamic shared memory in bytes.
pub const fn among_shared_bytes(dim: u32, degree: u32, width: u32, slots: u32) -> u32 {
    let ids = step_ids(degree, width);
    walk_shared_bytes(dim, ids, slots, ids, width) + (2 * degree * width + 1) * 4
}

/// Shared memory of a block, besides that of a search.
#[derive(Clone, Copy)]
struct Others {
    /// Per parent, `degree` slots: neighbours that do not pass.
    ids: Shared<u32>,
    /// Rows of the nodes that the step goes through.
    rows: Shared<u32>,
    /// Number of rows; 0 between steps.
    count: Shared<u32>,
}

impl<T: Element> BeamAmong<T> {
    #[inline(always)]
    fn walk(&self) -> &BeamWalk<T> {
        &self.search.walk
    }

    #[inline(always)]
    fn passes(&self, id: u32) -> bool {
        self.passing.get((id >> 5) as usize) >> (id & 31) & 1 != 0
    }

    /// Entry `i`: of the walk, then of this search.
    #[inline(always)]
    fn entry(&self, i: u32) -> u32 {
        let walk = self.walk();
        if i < walk.entry_count {
            Search::entry(walk, i as usize)
        } else {
            self.entries.get((i - walk.entry_count) as usize)
        }
    }

    /// Enters `id`, unless it is `NO_ID` or does not pass, as one of the step's new ids. The whole
    /// warp calls this.
    #[inline(always)]
    fn take(&self, room: &Room<T>, id: u32) {
        let is_new = id != NO_ID && self.passes(id) && self.walk().insert(room.table, id);
        append(is_new, room.new_count, |place| room.ids.set(place as usize, id));
    }

    /// Divides the shared memory that follows `room`.
    #[inline(always)]
    fn others(&self, room: &Room<T>) -> Others {
        let walk = self.walk();
        let slots = (walk.graph.degree * walk.width) as usize;
        let ids: Shared<u32> = room.slack.offset(1).cast();
        let others = Others { ids, rows: ids.offset(slots), count: ids.offset(2 * slots) };
        if thread_idx_x() == 0 {
            others.count.set(0, 0);
        }
        others
    }

    /// Enters the neighbours of the parents that pass, and finds the rows of the others. The whole
    /// block calls this; a barrier follows.
    #[inline(always)]
    fn follow<const PARTIAL: bool>(&self, room: &Room<T>, others: Others, parents: u32) {
        let (lane, graph) = (warp::lane_id(), &self.walk().graph);
        let mut parent = thread_idx_x() / 32;
        while parent < parents {
            keep_rolled();
            let row = room.parents.get(parent as usize);
            let ids = others.ids.offset((parent * graph.degree) as usize);
            let (mut passing, mut other) = (0, 0);
            let mut first = 0;
            while first < graph.degree {
                keep_rolled();
                let i = first + lane;
                let id = if i < graph.degree { graph.neighbor(row, i) } else { NO_ID };
                let passes = id != NO_ID && self.passes(id);
                self.take(room, if passes { id } else { NO_ID });
                passing += warp::ballot(passes).count_ones();
                let is_other = id != NO_ID && !passes;
                let lanes = warp::ballot(is_other);
                if is_other {
                    ids.set((other + warp::lanes_before(lanes)) as usize, id);
                }
                other += lanes.count_ones();
                first += 32;
            }
            warp::sync();
            let (count, mut first) = (through(passing, other), 0);
            while first < count {
                keep_rolled();
                let i = first + lane;
                let id = if i < count { ids.get(i as usize) } else { NO_ID };
                let is_new = id != NO_ID && self.walk().insert(room.table, id);
                append(is_new, others.count, |place| {
                    let row = if PARTIAL { graph.places.get(id as usize) } else { id };
                    others.rows.set(place as usize, row);
                });
                first += 32;
            }
            parent += block_dim_x() / 32;
        }
    }

    /// Enters the ids of `rows` rows that pass, from number `at`, until the room for new ids may be
    /// full. Returns the number of the next id. The whole block calls this after a barrier; a
    /// barrier also ends it.
    #[inline(always)]
    fn gather(&self, room: &Room<T>, others: Others, mut at: u32, rows: u32) -> u32 {
        let graph = &self.walk().graph;
        let most = step_ids(graph.degree, self.walk().width);
        let (thread, threads) = (thread_idx_x(), block_dim_x());
        let at_once = if threads < most { threads } else { most };
        let ids = rows * graph.degree;
        while at < ids {
            keep_rolled();
            let held = room.new_count.get(0);
            // All threads have read the count before one changes it.
            sync_threads();
            if held + at_once > most {
                break;
            }
            let i = at + thread;
            let id = if thread < at_once && i < ids {
                let row = i.checked_div(graph.degree).unwrap_or(0);
                graph.neighbor(others.rows.get(row as usize), i - row * graph.degree)
            } else {
                NO_ID
            };
            self.take(room, id);
            at += at_once;
            sync_threads();
        }
        at
    }

    /// Searches for `point`; returns the beam, in the first warp, and the number of distances.
    #[inline(always)]
    fn find<const C: usize, const PARTIAL: bool, const LOADS: usize>(
        &self,
        point: &ListPoint<T>,
        room: &Room<T>,
    ) -> (Beam<C>, u32) {
        let (thread, walk) = (thread_idx_x(), self.walk());
        let most = step_ids(walk.graph.degree, walk.width);
        let entries = walk.entry_count + self.entry_count;
        let others = self.others(room);
        let mut beam = Beam::new(walk.beam);
        let mut counts = Counts::default();
        loop {
            keep_rolled();
            // The neighbours of the parents, and the first ids that rows lead to.
            if walk.is_full(counts.in_table + among_step_ids(most)) {
                walk.forget(beam, room.table);
                counts.in_table = walk.beam;
            }
            if counts.parents == 0 {
                let left = entries - counts.entered;
                let count = if left < most { left } else { most };
                let mut first = thread & !31;
                while first < count {
                    keep_rolled();
                    let i = first + warp::lane_id();
                    self.take(room, if i < count { self.entry(counts.entered + i) } else { NO_ID });
                    first += block_dim_x();
                }
                counts.entered += count;
            } else {
                self.follow::<PARTIAL>(room, others, counts.parents);
            }
            sync_threads();

            let rows = others.count.get(0);
            counts.in_table += rows;
            let mut at = 0;
            loop {
                keep_rolled();
                at = self.gather(room, others, at, rows);
                let new = room.new_count.get(0);
                walk.distances::<LOADS>(point, room.ids, room.keys, new, Threads::new(thread, block_dim_x()));
                sync_threads();
                counts.in_table += new;
                counts.computed += new;
                let is_last = at >= rows * walk.graph.degree;
                if thread < 32 {
                    beam.offer(room.keys, new);
                    if is_last {
                        let has_entered = counts.entered == entries;
                        walk.take_parents::<Search, C, PARTIAL>(&mut beam, room, counts, has_entered);
                    }
                    if thread == 0 {
                        room.new_count.set(0, 0);
                        others.count.set(0, 0);
                    }
                }
                sync_threads();
                if is_last {
                    break;
                }
                if walk.is_full(counts.in_table + most) {
                    walk.forget(beam, room.table);
                    counts.in_table = walk.beam;
                }
            }
            counts.parents = room.parent_count.get(0);
            if counts.parents == 0 && counts.entered == entries {
                return (beam, counts.computed);
            }
        }
    }

    /// Writes the keys that a search finds for the block's query.
    #[inline(always)]
    fn answer<const C: usize, const PARTIAL: bool, const LOADS: usize>(&self) {
        let (thread, query, p) = (thread_idx_x(), block_idx_x(), &self.search);
        let walk = &p.walk;
        let keys = step_ids(walk.graph.degree, walk.width);
        let room = Room::start(walk, keys, walk.slots, &p.queries, query);
        sync_threads();
        // Not by the functions of [`BeamSearch`]: the kernel of f16 would spill on sm_100.
        let point = p.queries.list_point(room.values, query, Metric::from_u32(walk.metric));
        let mut stop = walk.stop;
        if stop.takes_norm() {
            let [product] = p.queries.list_distances::<1, LOADS>(&point, [query]);
            stop = stop.of_query(sqrt(-product));
        }
        if thread == 0 {
            room.slack.set(0, stop.slack);
        }
        let (beam, computed) = self.find::<C, PARTIAL, LOADS>(&point, &room);
        if thread == 0 {
            p.computed.fetch_add((query % SEARCH_COUNTERS) as usize, computed as u64, Scope::Device);
        }
        if thread < 32 {
            let out = p.found.offset(query as usize * p.k as usize);
            beam.each(walk.beam, |rank, key| {
                if rank < p.k {
                    out.set(rank as usize, key);
                }
            });
        }
    }
}

macro_rules! among_kernels {
    ($($name:ident $type:ty, $keys:literal keys, $blocks:literal blocks, $partial:literal, $loads:literal loads;)*) => {$(
        /// Finds the nearest nodes that pass a filter (see [`BeamAmong`] and the module).
        ///
        #[doc = concat!("Keys per lane: ", stringify!($keys), ", a beam of up to 32 times as many nodes.")]
        #[doc = concat!("Graph over some of the nodes: ", $partial, ".")]
        ///
        /// Launch: a block per query, of any number of warps; [`among_shared_bytes`].
        ///
        /// # Safety
        /// - The views match the fields of [`BeamAmong`] and [`BeamSearch`].
        #[kernel(
            unsafe,
            block = 32..=SEARCH_THREADS,
            shared = among_shared_bytes(
                p.search.walk.base.dim, p.search.walk.graph.degree, p.search.walk.width, p.search.walk.slots
            ),
            blocks_per_multiprocessor = $blocks
        )]
        pub unsafe fn $name(p: BeamAmong<$type>) {
            p.answer::<$keys, $partial, $loads>();
        }
    )*};
}

among_kernels! {
    beam_among_128_f32 f32, 4 keys, 3 blocks, false, 2 loads;
    beam_among_128_f16 f16, 4 keys, 4 blocks, false, 2 loads;
    beam_among_128_u8 u8, 4 keys, 3 blocks, false, 2 loads;
    beam_among_128_i8 i8, 4 keys, 3 blocks, false, 2 loads;
    beam_among_512_f32 f32, 16 keys, 2 blocks, false, 4 loads;
    beam_among_512_f16 f16, 16 keys, 2 blocks, false, 4 loads;
    beam_among_512_u8 u8, 16 keys, 2 blocks, false, 2 loads;
    beam_among_512_i8 i8, 16 keys, 2 blocks, false, 2 loads;
    beam_among_layer_f32 f32, 2 keys, 3 blocks, true, 3 loads;
    beam_among_layer_f16 f16, 2 keys, 4 blocks, true, 2 loads;
    beam_among_layer_u8 u8, 2 keys, 4 blocks, true, 2 loads;
    beam_among_layer_i8 i8, 2 keys, 4 blocks, true, 2 loads;
}
