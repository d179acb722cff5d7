//! The places of ids in a list, in a table in shared memory.

use cuda_std::keep_rolled;
use cuda_std::prelude::*;
use cuda_std::thread::sync_threads;

/// Slots of the largest table: twice as many as the longest list has ids.
const MOST_SLOTS: u32 = 1 << 14;

/// The longest list.
pub const MOST_PLACES: u32 = MOST_SLOTS / 2;

/// Slots per id of a list that is not too long for it: of forty ids one then shares its slot.
const SPREAD: u32 = 32;

/// Twice an odd number: ids are hashed to even numbers, different ones differently, since they are below 2^31.
const FACTOR: u32 = 0x9e37_79b1 << 1;

/// The flag of a word behind which there are others of its slot.
const MORE: u32 = 1;

/// The slots for a list of `len` ids: a power of two.
const fn slots(len: u32) -> u32 {
    let slots = len.next_power_of_two() * SPREAD;
    if slots < MOST_SLOTS { slots } else { MOST_SLOTS }
}

/// Words of shared memory of a table for `len` ids, at most [`MOST_PLACES`]: a multiple of 4.
pub const fn table_words(len: u32) -> u32 {
    slots(len) + len.next_multiple_of(4)
}

/// A table from ids to their places in a list.
///
/// With 2^b slots, the upper b bits of an id's hash are its slot, and the others, which therefore tell it from all
/// ids of that slot, are the upper bits of its word. Below are, from bit b down: whether the slot is empty, the
/// place, and whether there are more words of the slot, which are chained. So one load settles nearly every look-up,
/// and no id is compared.
#[derive(Clone, Copy)]
pub struct Places {
    /// The first word of each slot.
    heads: Shared<u32>,
    /// By places, the word behind that of the place.
    next: Shared<u32>,
    bits: u32,
}

impl Places {
    /// A table in the [`table_words`] of `room`, which begins at a multiple of 16 bytes.
    #[inline(always)]
    pub fn new(room: Shared<u32>, len: u32) -> Self {
        let slots = slots(len);
        Self { heads: room, next: room.offset(slots as usize), bits: slots.trailing_zeros() }
    }

    #[inline(always)]
    fn hash(id: u32) -> u32 {
        id.wrapping_mul(FACTOR)
    }

    #[inline(always)]
    fn slot(&self, hash: u32) -> usize {
        (hash >> (32 - self.bits)) as usize
    }

    /// The word of an id if it is alone in its slot.
    #[inline(always)]
    fn word(&self, hash: u32, place: u32) -> u32 {
        hash << self.bits | place << 1
    }

    #[inline(always)]
    fn empty(&self) -> u32 {
        1 << self.bits
    }

    /// Empties the table. The `threads` threads of a block call this; a barrier follows.
    #[inline(always)]
    pub fn clear(&self, (thread, threads): (u32, u32)) {
        let mut i = thread * 4;
        while i < 1 << self.bits {
            keep_rolled();
            self.heads.set_quad(i as usize, Quad([self.empty(); 4]));
            i += threads * 4;
        }
    }

    /// Enters the first `len` of `ids`, all different, with their places. The `threads` threads of the block call
    /// this after a barrier; another follows.
    #[inline(always)]
    pub fn enter(&self, ids: Shared<u32>, len: u32, (thread, threads): (u32, u32)) {
        let mut place = thread;
        while place < len {
            keep_rolled();
            let hash = Self::hash(ids.get(place as usize));
            let word = self.word(hash, place) | MORE;
            self.next.set(place as usize, self.heads.exchange(self.slot(hash), word));
            place += threads;
        }
        sync_threads();
        // Who is alone in a slot says so. No other looks at that slot here.
        let mut place = thread;
        while place < len {
            keep_rolled();
            let hash = Self::hash(ids.get(place as usize));
            let word = self.word(hash, place);
            if self.next.get(place as usize) == self.empty() && self.heads.get(self.slot(hash)) == word | MORE
            {
                self.heads.set(self.slot(hash), word);
            }
            place += threads;
        }
    }

    /// Calls `found` with the place of each of four ids that is in the table, if that is at least its `least`, a
    /// place.
    #[inline(always)]
    #[track_caller]
    pub fn find(&self, ids: Quad, least: [u32; 4], found: impl Fn(u32)) {
        let mask = self.empty() - 1;
        let (mut wanted, mut rests) = ([0; 4], [0; 4]);
        // All loads are under way before the first is used.
        unroll!(4, C => {
            let hash = Self::hash(ids.0[C]);
            wanted[C] = hash << self.bits;
            rests[C] = self.heads.get(self.slot(hash));
        });
        let mut others = 0;
        unroll!(4, C => {
            rests[C] ^= wanted[C];
            let is_other = rests[C] > mask;
            others |= if is_other { rests[C] } else { 0 };
            if !is_other & (rests[C] >= 2 * least[C]) {
                found(rests[C] >> 1);
            }
        });
        if others & MORE == 0 {
            return;
        }
        unroll!(4, C => {
            let mut rest = rests[C];
            while rest > mask && rest & MORE != 0 {
                keep_rolled();
                rest = self.next.get((((rest ^ wanted[C]) & mask) >> 1) as usize) ^ wanted[C];
                if rest <= mask && rest >= 2 * least[C] {
                    found(rest >> 1);
                }
            }
        });
    }
}
