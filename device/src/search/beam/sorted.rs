//! The beam of a warp's search: its slots in shared memory, ascending.
//!
//! A warp inserts up to 32 slots at once. Each finds its place by bisection, and its rank among the
//! others by comparing itself with each; a slot of the beam moves up by the number of new slots
//! below it. One by one, as in [`Beam`](super::list::Beam), each insertion waits for the one
//! before.

use cuda_std::prelude::*;
use cuda_std::warp::{FULL, WarpReductionOp, warp_match_any, warp_reduce};
use cuda_std::{keep_rolled, unroll};

use super::list::{EXPANDED, Slot, UNUSED, key, slot, two};
use crate::key::{Key, NONE};

/// Slots of the room in which a warp compares new slots: those of 32 lanes, and one after the last.
pub const SPARE_SLOTS: u32 = 34;

/// Up to 32 C nodes. A shorter beam leaves its first slots unused, so its last node is always in
/// the last slot. The whole warp calls all functions.
#[derive(Clone, Copy)]
pub struct Sorted<const C: usize> {
    slots: Shared<Slot>,
    /// [`SPARE_SLOTS`], at a multiple of 16 bytes.
    spare: Shared<Slot>,
    /// The number of unused slots.
    unused: u32,
}

/// An unexpanded node of the beam.
#[derive(Clone, Copy)]
pub struct Nearest {
    /// Its slot; [`NONE`] if all nodes are expanded.
    pub slot: Slot,
    /// The next unexpanded slot; [`NONE`] if there is none near by.
    pub next: Slot,
    /// Its place.
    pub place: u32,
}

impl<const C: usize> Sorted<C> {
    /// Slots of the beam.
    const LEN: u32 = 32 * C as u32;

    /// Slots of a lane that move at a time.
    const PART: usize = if C < 4 { C } else { 4 };

    /// An empty beam for `len` nodes, 1 to 32 C.
    #[inline(always)]
    pub fn new(slots: Shared<Slot>, spare: Shared<Slot>, len: u32) -> Self {
        let beam = Self { slots, spare, unused: Self::LEN.saturating_sub(len) };
        let mut place = warp::lane_id();
        while place < Self::LEN {
            keep_rolled();
            slots.set(place as usize, if place < beam.unused { UNUSED } else { NONE });
            place += 32;
        }
        warp::sync();
        beam
    }

    /// Takes the first `count` of `keys`, ascending and of different nodes, at most as many as the
    /// beam holds, into the empty beam. All lanes call `with` with their ids, or `NO_ID`.
    #[inline(always)]
    pub fn load(self, keys: Global<Key>, count: u32, with: impl Fn(u32)) {
        let len = Self::LEN - self.unused;
        let mut first = 0;
        while first < count && first < len {
            keep_rolled();
            let rank = first + warp::lane_id();
            let key = if rank < count && rank < len { keys.get(rank as usize) } else { NONE };
            if key != NONE {
                self.slots.set((self.unused + rank) as usize, slot(key));
            }
            // The id of NONE is NO_ID.
            with(key as u32);
            first += 32;
        }
        warp::sync();
    }

    /// The slot of rank `rank`, below the length.
    #[inline(always)]
    pub fn at_rank(self, rank: u32) -> Slot {
        self.slots.get((self.unused + rank) as usize)
    }

    /// The nearest unexpanded node at place `from` or above.
    #[inline(always)]
    pub fn nearest(self, from: u32) -> Nearest {
        let mut first = from & !31;
        while first < Self::LEN {
            keep_rolled();
            let here = self.slots.get((first + warp::lane_id()) as usize);
            let lanes = warp::ballot(here & EXPANDED == 0);
            if lanes != 0 {
                let (lane, after) = (lanes.trailing_zeros(), lanes & (lanes - 1));
                let next = warp::broadcast(here, after.trailing_zeros() % 32);
                let next = if after == 0 { NONE } else { next };
                return Nearest { slot: warp::broadcast(here, lane), next, place: first + lane };
            }
            first += 32;
        }
        Nearest { slot: NONE, next: NONE, place: Self::LEN }
    }

    /// Marks a node as expanded.
    #[inline(always)]
    pub fn expand(self, node: Nearest) {
        warp::sync();
        if warp::lane_id() == 0 {
            self.slots.set(node.place as usize, node.slot | EXPANDED);
        }
        warp::sync();
    }

    /// The number of slots below `slot`, which is at most the last one.
    #[inline(always)]
    fn place(self, slot: Slot) -> u32 {
        let (mut place, mut step) = (0, Self::LEN / 2);
        while step > 0 {
            place += if self.slots.get((place + step - 1) as usize) < slot { step } else { 0 };
            step /= 2;
        }
        place
    }

    /// Inserts the lanes' slots that are nearer than the beam's last one, and that it does not
    /// hold; [`NONE`] is no slot. Returns the first place that changes, or the number of places.
    #[inline(always)]
    pub fn offer(self, offered: Slot) -> u32 {
        let lane = warp::lane_id();
        let mut own = if offered < self.slots.get(Self::LEN as usize - 1) { offered } else { NONE };
        let place = self.place(own);
        if self.slots.get(place as usize) | EXPANDED == own | EXPANDED {
            own = NONE;
        }
        loop {
            keep_rolled();
            let lanes = warp::ballot(own != NONE);
            if lanes == 0 {
                return Self::LEN;
            }
            let count = lanes.count_ones();
            if own != NONE {
                self.spare.set(warp::lanes_before(lanes) as usize, own);
            }
            if lane == 0 {
                self.spare.set(count as usize, NONE);
            }
            warp::sync();
            let Some(rank) = self.move_up(own, count) else {
                // A row that names a node twice.
                // SAFETY: the whole warp is here.
                let same = unsafe { warp_match_any(FULL, own) };
                own = if same.trailing_zeros() == lane { own } else { NONE };
                warp::sync();
                continue;
            };
            let to = place + rank;
            if own != NONE && to < Self::LEN {
                self.slots.set(to as usize, own);
            }
            warp::sync();
            let first = if own == NONE { Self::LEN } else { place };
            // SAFETY: the whole warp is here.
            return unsafe { warp_reduce(FULL, first, WarpReductionOp::Min) };
        }
    }

    /// Moves each slot up by the number of the `count` new slots below it, from the last on.
    /// Returns the number of new slots below the lane's; None, and moves nothing, if two are equal.
    #[inline(always)]
    fn move_up(self, own: Slot, count: u32) -> Option<u32> {
        let mut first = Self::LEN - 32 * Self::PART as u32;
        loop {
            keep_rolled();
            let mut rank = 0;
            let at = first + warp::lane_id();
            let (mut here, mut below) = ([NONE; 4], [0; 4]);
            unroll!(4, P => if P < Self::PART {
                here[P] = self.slots.get((at + 32 * P as u32) as usize);
            });
            let mut i = 0;
            while i < count {
                keep_rolled();
                // The one after an odd last is NONE.
                let (a, b) = two(self.spare, i);
                rank += u32::from(a < own) + u32::from(b < own);
                unroll!(4, P => if P < Self::PART {
                    below[P] += u32::from(a < here[P]) + u32::from(b < here[P]);
                });
                i += 2;
            }
            if first + 32 * Self::PART as u32 == Self::LEN {
                let ranks = if own == NONE { 0 } else { rank };
                // SAFETY: the whole warp is here.
                let ranks = unsafe { warp_reduce(FULL, ranks, WarpReductionOp::Add) };
                if ranks != count * (count - 1) / 2 {
                    return None;
                }
            }
            warp::sync();
            unroll!(4, P => if P < Self::PART {
                let to = at + 32 * P as u32 + below[P];
                if below[P] > 0 && to < Self::LEN {
                    self.slots.set(to as usize, here[P]);
                }
            });
            if Self::PART == C || first == 0 || warp::broadcast(below[0], 0) == 0 {
                return Some(rank);
            }
            warp::sync();
            first -= 32 * Self::PART as u32;
        }
    }

    /// Calls `with` with the rank and the key of each of the lane's slots; the key of an empty slot
    /// is [`NONE`].
    #[inline(always)]
    pub fn each(self, with: impl Fn(u32, Key)) {
        let mut place = self.unused + warp::lane_id();
        while place < Self::LEN {
            keep_rolled();
            let slot = self.slots.get(place as usize);
            with(place - self.unused, key(slot));
            place += 32;
        }
    }
}
