//! The beam: the nearest nodes of a search, sorted in the registers of a warp.

use cuda_std::keep_rolled;
use cuda_std::prelude::*;

use crate::key::{Key, NONE};

/// A node of the beam: the bits of the key's distance, the id, and [`EXPANDED`] in the lowest bit.
///
/// Ids differ, so slots sort as their keys do. An empty slot is [`NONE`], which counts as expanded.
pub type Slot = u64;

/// The flag of an expanded node.
pub const EXPANDED: Slot = 1;

/// An unused slot, which sorts before all others.
pub(super) const UNUSED: Slot = EXPANDED;

/// The slot of a node that has not been expanded.
#[inline(always)]
pub fn slot(key: Key) -> Slot {
    key & !0xffff_ffff | ((key as u32) << 1) as u64
}

/// The id of the node in a slot.
#[inline(always)]
pub fn id(slot: Slot) -> u32 {
    slot as u32 >> 1
}

/// Slots `i` and `i + 1`, at a multiple of 16 bytes.
#[inline(always)]
pub(super) fn two(slots: Shared<Slot>, i: u32) -> (Slot, Slot) {
    let [a, b, c, d] = slots.get_quad(i as usize).0;
    (a as u64 | (b as u64) << 32, c as u64 | (d as u64) << 32)
}

/// The key of the node in a slot; [`NONE`] of an empty slot.
#[inline(always)]
pub(super) fn key(slot: Slot) -> Key {
    if slot == NONE { NONE } else { slot & !0xffff_ffff | id(slot) as u64 }
}

/// Up to 32 C nodes, ascending: slot C l + i is number i of lane l.
///
/// A shorter beam leaves its first slots unused, so its last node is always in the last slot of
/// lane 31. The whole warp calls all functions.
#[derive(Clone, Copy)]
pub struct Beam<const C: usize> {
    slots: [Slot; C],
}

impl<const C: usize> Beam<C> {
    /// An empty beam for `len` nodes, 1 to 32 C.
    #[inline(always)]
    pub fn new(len: u32) -> Self {
        let unused = Self::unused(len);
        let mut slots = [NONE; C];
        for (i, slot) in slots.iter_mut().enumerate() {
            if Self::place(i) < unused {
                *slot = UNUSED;
            }
        }
        Self { slots }
    }

    /// Unused slots of a beam for `len` nodes.
    #[inline(always)]
    fn unused(len: u32) -> u32 {
        (32 * C as u32).saturating_sub(len)
    }

    /// The place of the lane's slot `i`.
    #[inline(always)]
    fn place(i: usize) -> u32 {
        warp::lane_id() * C as u32 + i as u32
    }

    /// Inserts each of the first `len` of `keys` that is nearer than the beam's last node. The
    /// beam holds none of them yet.
    #[inline(always)]
    pub fn offer(&mut self, keys: Shared<Key>, len: u32) {
        let mut first = 0;
        while first < len {
            keep_rolled();
            let i = first + warp::lane_id();
            let offered = if i < len { slot(keys.get(i as usize)) } else { NONE };
            let mut near = warp::ballot(offered < warp::broadcast(self.slots[C - 1], 31));
            while near != 0 {
                keep_rolled();
                self.insert(warp::broadcast(offered, near.trailing_zeros()));
                near &= near - 1;
            }
            first += 32;
        }
    }

    /// The first `count` of `keys`, ascending and of different nodes, in a beam for `len` nodes.
    #[inline(always)]
    pub fn load(keys: Global<Key>, count: u32, len: u32) -> Self {
        let (mut slots, unused) = ([NONE; C], Self::unused(len));
        for i in 0..C {
            // Not unrolled: each slot comes in at the end.
            keep_rolled();
            let rank = Self::place(i).wrapping_sub(unused);
            let key = if rank < count { keys.get(rank as usize) } else { NONE };
            for j in 1..C {
                slots[j - 1] = slots[j];
            }
            slots[C - 1] = match key {
                _ if Self::place(i) < unused => UNUSED,
                NONE => NONE,
                key => slot(key),
            };
        }
        Self { slots }
    }

    /// The last slot.
    #[inline(always)]
    pub(super) fn last(&self) -> Slot {
        warp::broadcast(self.slots[C - 1], 31)
    }

    /// Calls `with` with each of the lane's slots in use.
    #[inline(always)]
    pub(super) fn each_slot(mut self, mut with: impl FnMut(Slot)) {
        for _ in 0..C {
            // Not unrolled: the next slot moves to the front.
            keep_rolled();
            if self.slots[0] != UNUSED && self.slots[0] != NONE {
                with(self.slots[0]);
            }
            for j in 1..C {
                self.slots[j - 1] = self.slots[j];
            }
        }
    }

    /// Inserts the slots of the lanes where `is_new` holds, one after another, where they are below
    /// the beam's last one. Each takes the place of `old`, if the beam holds it, which is above;
    /// else the last one drops out. The beam holds none of them yet.
    #[inline(always)]
    pub(super) fn replace(&mut self, is_new: bool, slot: Slot, old: Slot) {
        let mut lanes = warp::ballot(is_new);
        while lanes != 0 {
            keep_rolled();
            let from = lanes.trailing_zeros();
            let (slot, old) = (warp::broadcast(slot, from), warp::broadcast(old, from));
            lanes &= lanes - 1;
            let before = warp::shuffle_up(self.slots[C - 1], 1);
            let mut before = if warp::lane_id() == 0 { 0 } else { before };
            for i in 0..C {
                let here = self.slots[i];
                if here <= old {
                    self.slots[i] = here.min(before.max(slot));
                }
                before = here;
            }
        }
    }

    /// Inserts a slot in order and drops the last one. All lanes pass the same slot.
    #[inline(always)]
    fn insert(&mut self, slot: Slot) {
        // Slots after the insertion point move up by one: each becomes the larger of the slot
        // before it and the new one, unless it is smaller than both.
        let before = warp::shuffle_up(self.slots[C - 1], 1);
        let mut before = if warp::lane_id() == 0 { 0 } else { before };
        for i in 0..C {
            let here = self.slots[i];
            self.slots[i] = here.min(before.max(slot));
            before = here;
        }
    }

    /// The high word of the key of rank `rank`, in all lanes; that of [`NONE`] if the beam is
    /// shorter. `len` is that of [`new`](Self::new), and `rank < len`.
    #[inline(always)]
    pub fn distance_bits(&self, len: u32, rank: u32) -> u32 {
        let place = Self::unused(len) + rank;
        let mut mine = (self.slots[0] >> 32) as u32;
        for i in 1..C {
            if place % C as u32 == i as u32 {
                mine = (self.slots[i] >> 32) as u32;
            }
        }
        warp::broadcast(mine, place / C as u32)
    }

    /// Marks the nearest unexpanded node as expanded; returns its id in all lanes. None if no node
    /// up to the key `last` is left.
    #[inline(always)]
    pub fn take(&mut self, last: Key) -> Option<u32> {
        let mut mine = NONE as u32;
        for i in (0..C).rev() {
            if self.slots[i] & EXPANDED == 0 && self.slots[i] <= last {
                mine = self.slots[i] as u32;
            }
        }
        let lanes = warp::ballot(mine != NONE as u32);
        // With no lane, `nearest` is unused.
        let nearest = warp::broadcast(mine, lanes.trailing_zeros() % 32);
        if lanes == 0 {
            return None;
        }
        for i in 0..C {
            if self.slots[i] as u32 == nearest {
                self.slots[i] |= EXPANDED;
            }
        }
        Some(id(nearest as Slot))
    }

    /// Calls `with` with the rank and the key of each of the lane's slots; the key of an empty slot
    /// is [`NONE`]. `len` is that of [`new`](Self::new): not storing it saves a register in the
    /// search.
    #[inline(always)]
    pub fn each(mut self, len: u32, with: impl Fn(u32, Key)) {
        for i in 0..C {
            // Not unrolled: the next slot moves to the front.
            keep_rolled();
            let (place, slot) = (Self::place(i), self.slots[0]);
            if slot != UNUSED {
                with(place.wrapping_sub(Self::unused(len)), key(slot));
            }
            for j in 1..C {
                self.slots[j - 1] = self.slots[j];
            }
        }
    }
}
