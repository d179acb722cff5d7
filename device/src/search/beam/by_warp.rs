//! Beam search by one warp, a node per step: the beam of the CPU backend, bit for bit.
//!
//! # Algorithm
//!
//! ```text
//! ids = the entry nodes, 32 at a time; then the neighbours of the parent
//! repeat:
//!     new    = ids that the table does not hold; enter them
//!     slots  = (list distance to the query, id) of new
//!     ids    = the next 32, or the neighbours of the probable parent: the nearest of slots and of
//!              the unexpanded nodes of the beam; these loads go on meanwhile
//!     insert slots into the beam, drop what does not fit
//!     parent = the nearest unexpanded node of the beam, if the row of ids has ended; end if there
//!              is none or it is beyond the bound of `stop`
//! ```
//!
//! # Buffers
//!
//! Those of [`BeamWalk`]. Shared memory: query, new slots, beam, keys and ids of a step, table.
//!
//! # Optimisations
//!
//! 1. The table forgets. A place holds two ids; a new id pushes the older one out, so no lane looks
//!    further. A node that was forgotten is computed again, and the beam refuses it: it holds it,
//!    or its last node is nearer.
//! 2. The [beam](Sorted) takes all slots of a step at once.
//! 3. The row of edges of the next parent is under way while the beam takes the slots.
//! 4. Rows of up to 512 bytes are on their way before the first of 16 is read.
//! 5. Groups of 4 lanes compute exact distances, 16 at a time: two rows per group.

use cuda_std::prelude::*;
use cuda_std::warp::{FULL, WarpReductionOp, warp_match_any, warp_reduce};
use cuda_std::{keep_rolled, shared};

use super::list::{id, slot};
use super::purpose::{Purpose, Search};
use super::sorted::{SPARE_SLOTS, Sorted};
use super::stop::Stop;
use super::walk::BeamWalk;
use crate::block::element::Element;
use crate::block::exact::query_bytes;
use crate::block::rows::{ListPoint, Rows};
use crate::block::threads::Threads;
use crate::key::{Key, NO_ID, NONE};

/// Ids of a place of the table.
pub const WAYS: u32 = 2;

/// Maximum number of bytes of a row that is prefetched.
const PREFETCHED: u32 = 512;

/// Dynamic shared memory in bytes of a search whose beam has `kept` slots, a multiple of 32.
pub const fn warp_search_shared_bytes(dim: u32, kept: u32, slots: u32) -> u32 {
    query_bytes(dim) + (SPARE_SLOTS + kept + 32) * 8 + (34 + slots) * 4
}

/// Shared memory of a warp.
pub struct WarpRoom<T: Element, const C: usize> {
    /// The query's vector.
    pub values: Shared<T::Query>,
    /// The beam.
    pub beam: Sorted<C>,
    keys: Shared<Key>,
    ids: Shared<u32>,
    /// The stop's slack for the query. In a register it would spill.
    pub slack: Shared<f32>,
    /// Distances computed; of the first lane.
    pub computed: Shared<u32>,
    /// Places of [`WAYS`] ids, the later one in the low word.
    table: Shared<u64>,
}

impl<T: Element, const C: usize> WarpRoom<T, C> {
    /// Divides the dynamic shared memory, loads row `query` of `points`, and empties beam and
    /// table.
    #[inline(always)]
    pub fn start(walk: &BeamWalk<T>, points: &Rows<T>, query: u32) -> Self {
        let values = shared::dynamic(0);
        let spare: Shared<Key> = shared::dynamic(query_bytes(walk.base.dim) as usize);
        let slots = spare.offset(SPARE_SLOTS as usize);
        let keys = slots.offset(32 * C);
        let ids: Shared<u32> = keys.offset(32).cast();
        let (slack, computed, table) = (ids.offset(32).cast(), ids.offset(33), ids.offset(34));
        points.load(values, query, Threads::new(warp::lane_id(), 32));
        walk.clear(table);
        Self {
            values,
            beam: Sorted::new(slots, spare, walk.beam),
            keys,
            ids,
            slack,
            computed,
            table: table.cast(),
        }
    }
}

/// Enters the lanes' ids in a table of `places` places; returns whether the lane's is new, or was
/// forgotten. An id that two lanes have is new in both. `NO_ID` is no id. The whole warp calls this
/// after a barrier of the warp.
#[inline(always)]
fn enter(table: Shared<u64>, places: u32, id: u32) -> bool {
    let place = (id.wrapping_mul(0x9e37_79b1) >> 7 & (places - 1)) as usize;
    let held = table.get(place);
    let is_new = id != NO_ID && held as u32 != id && (held >> 32) as u32 != id;
    warp::sync();
    // SAFETY: the whole warp is here.
    let same = unsafe { warp_match_any(FULL, place as u32) };
    // Of the lanes of one place the last alone may write, the ids of the others are forgotten: the
    // order in which lanes write would decide how many distances are computed twice.
    if is_new && same >> warp::lane_id() == 1 {
        table.set(place, held << 32 | id as u64);
    }
    is_new
}

impl<T: Element> BeamWalk<T> {
    /// Starts to load row `id` of the base, if it is short.
    #[inline(always)]
    fn prefetch(&self, id: u32) {
        let bytes = self.base.dim * size_of::<T>() as u32;
        let row = self.base.row(id).cast::<u32>();
        let mut at = 0;
        while bytes <= PREFETCHED && at < bytes {
            keep_rolled();
            row.prefetch(at as usize / 4);
            at += 128;
        }
    }

    /// The slots of the ids that are new, in the first lanes. An id of `NO_ID` is none.
    #[inline(always)]
    fn slots_of_new<const C: usize, const LOADS: usize>(
        &self,
        point: &ListPoint<T>,
        room: &WarpRoom<T, C>,
        id: u32,
    ) -> Key {
        let lane = warp::lane_id();
        let is_new = enter(room.table, self.slots / WAYS, id);
        if is_new {
            self.prefetch(id);
        }
        let lanes = warp::ballot(is_new);
        let new = lanes.count_ones();
        if is_new {
            room.ids.set(warp::lanes_before(lanes) as usize, id);
        }
        if lane == 0 {
            room.computed.set(0, room.computed.get(0) + new);
        }
        warp::sync();
        self.distances::<LOADS>(point, room.ids, room.keys, new, Threads::new(lane, 32));
        warp::sync();
        if lane < new { slot(room.keys.get(lane as usize)) } else { NONE }
    }

    /// Searches for `point`; leaves the nodes in the beam of `room`, and the number of distances
    /// there. With `PARTIAL` the graph is one over some of the nodes, which
    /// `graph.places` maps to rows. `LOADS` loads of each row are under way at once.
    #[inline(always)]
    pub(super) fn search_by_warp<const C: usize, const PARTIAL: bool, const LOADS: usize>(
        &self,
        point: &ListPoint<T>,
        room: &WarpRoom<T, C>,
    ) {
        let (lane, beam) = (warp::lane_id(), room.beam);
        let row = |node: u32| if PARTIAL { self.graph.places.get(node as usize) } else { node };
        // The source of ids: entries, or a row of the graph.
        let (mut source, mut first, mut count) = (NO_ID, 0, self.entry_count);
        let load = |source: u32, i: u32, count: u32| match source {
            _ if i >= count => NO_ID,
            NO_ID => Search::entry(self, i as usize),
            row => self.graph.neighbor(row, i),
        };
        if let Some(keys) = self.keys() {
            beam.load(keys, count, |id| {
                enter(room.table, self.slots / WAYS, id);
            });
            count = 0;
        }
        let mut ids = load(source, lane, count);
        let (mut from, mut next) = (0, NONE);
        loop {
            keep_rolled();
            let offered = self.slots_of_new::<C, LOADS>(point, room, ids);
            first += 32;
            let ends = first >= count;
            // The probable parent.
            let mut guess = NO_ID;
            if ends {
                // SAFETY: the whole warp is here.
                let least = unsafe { warp_reduce(FULL, (offered >> 32) as u32, WarpReductionOp::Min) };
                let lanes = warp::ballot((offered >> 32) as u32 == least);
                let nearest = warp::broadcast(offered as u32, lanes.trailing_zeros());
                guess = id(if least < (next >> 32) as u32 { nearest as u64 } else { next & 0xffff_ffff });
                let is_node = least < u32::MAX || next != NONE;
                guess = if is_node { row(guess) } else { NO_ID };
                ids = if is_node { load(guess, lane, self.graph.degree) } else { NO_ID };
            } else {
                ids = load(source, first + lane, count);
            }
            let changed = beam.offer(offered);
            from = if changed < from { changed } else { from };
            if ends {
                let parent = beam.nearest(from);
                let stop = Stop { slack: room.slack.get(0), ..self.stop };
                let at_rank = (beam.at_rank(stop.rank) >> 32) as u32;
                if parent.slot == NONE || parent.slot > stop.last(at_rank) {
                    return;
                }
                beam.expand(parent);
                (source, first, count) = (row(id(parent.slot)), 0, self.graph.degree);
                (from, next) = (parent.place, parent.next);
                if source != guess {
                    ids = load(source, lane, count);
                }
            }
        }
    }
}
