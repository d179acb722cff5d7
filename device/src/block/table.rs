//! Hash set of ids in shared memory, with open addressing and double hashing.

use cuda_std::prelude::*;

use crate::key::NO_ID;

/// Slots of a table of up to `ids` ids; it is at most two thirds full.
pub const fn slots(ids: u32) -> u32 {
    (ids * 3 / 2).next_power_of_two()
}

/// Inserts an id into a table of `mask + 1` slots; returns whether it is new. The table has a free
/// slot, or holds the id.
#[inline(always)]
pub fn insert(table: Shared<u32>, mask: u32, id: u32) -> bool {
    place(table, mask, id).1
}

/// As [`insert`], also the slot of the id.
#[inline(always)]
pub fn place(table: Shared<u32>, mask: u32, id: u32) -> (u32, bool) {
    let hash = id.wrapping_mul(0x9e37_79b1);
    // Steps that differ between ids prevent clusters. An odd step visits every slot.
    let (mut place, step) = (hash >> 7, hash >> 16 | 1);
    loop {
        place &= mask;
        let there = table.compare_exchange(place as usize, NO_ID, id);
        if there == NO_ID || there == id {
            return (place, there == NO_ID);
        }
        place = place.wrapping_add(step);
    }
}
