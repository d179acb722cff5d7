//! A table of ids in shared memory, with open addresses.

use cuda_std::prelude::*;

/// A slot that holds no id.
pub const EMPTY: u32 = u32::MAX;

/// Slots of a table of up to `ids` ids: two thirds full at most.
pub const fn slots(ids: u32) -> u32 {
    (ids * 3 / 2).next_power_of_two()
}

/// Puts an id into a table of `mask + 1` slots, of which one is free, or none but the id's own; returns whether it
/// was not there.
#[inline(always)]
pub fn insert(table: Shared<u32>, mask: u32, id: u32) -> bool {
    let hash = id.wrapping_mul(0x9e37_79b1);
    // Steps differ from id to id, so that full slots do not pile up; an odd one comes by every slot.
    let (mut place, step) = (hash >> 7, hash >> 16 | 1);
    loop {
        place &= mask;
        let there = table.compare_exchange(place as usize, EMPTY, id);
        if there == EMPTY || there == id {
            return there == EMPTY;
        }
        place = place.wrapping_add(step);
    }
}
