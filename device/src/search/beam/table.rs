//! The nodes that a search has met: a table of their ids in shared memory.

use cuda_std::prelude::*;
use cuda_std::thread::{block_dim_x, thread_idx_x};

/// An empty slot.
const EMPTY: u32 = u32::MAX;

/// A set of ids, of which there are always fewer than slots.
#[derive(Clone, Copy)]
pub struct Table {
    slots: Shared<u32>,
    mask: u32,
}

impl Table {
    /// A table of `count` slots, a power of two. It is not cleared.
    #[inline(always)]
    pub fn new(slots: Shared<u32>, count: u32) -> Self {
        Self { slots, mask: count - 1 }
    }

    /// Empties it; the whole block calls this, before a barrier.
    #[inline(always)]
    pub fn clear(&self) {
        let mut i = thread_idx_x();
        while i <= self.mask {
            self.slots.set(i as usize, EMPTY);
            i += block_dim_x();
        }
    }

    /// Puts in an id, not `u32::MAX`; returns whether it was not there.
    #[inline(always)]
    pub fn insert(&self, id: u32) -> bool {
        // Place and step come from different bits of the hash; an odd step meets every slot.
        let hash = id.wrapping_mul(0x9e37_79b1);
        let (mut place, step) = (hash >> 16, hash >> 3 | 1);
        loop {
            place &= self.mask;
            let there = self.slots.compare_exchange(place as usize, EMPTY, id);
            if there == EMPTY || there == id {
                return there == EMPTY;
            }
            place = place.wrapping_add(step);
        }
    }
}
