//! A table from ids to their places in a list, in shared memory.
//!
//! # Algorithm
//!
//! Chained hashing with one word per entry. The hash is a bijection of 32 bits. With 2^b slots, the
//! upper b bits of an id's hash are its slot and the lower bits are stored: they tell the id from
//! all others of the slot, so no id is compared.
//!
//! # Optimisations
//!
//! 1. 32 slots per id, where memory allows: one of 40 ids then shares its slot, and one load
//!    decides nearly every look-up.
//! 2. The exclusive or of a word with the wanted hash leaves the place, or a number above all
//!    places if the word is empty or of another id. Comparisons with that number decide a look-up.
//! 3. [`Places::find`] takes four ids and starts their loads together, to hide latency.

use crate::block::threads::Threads;
use cuda_std::keep_rolled;
use cuda_std::prelude::*;
use cuda_std::thread::sync_threads;

/// Slots of the largest table: two per id of the longest list.
const MAX_SLOTS: u32 = 1 << 14;

/// Maximum number of ids of a list.
pub const MAX_PLACES: u32 = MAX_SLOTS / 2;

/// Slots per id, up to [`MAX_SLOTS`].
const SPREAD: u32 = 32;

/// Twice an odd number: hashes are even, and distinct for ids below 2^31.
const FACTOR: u32 = 0x9e37_79b1 << 1;

/// The flag of a word that is followed by another of its slot.
const MORE: u32 = 1;

/// Slots for a list of `len` ids: a power of two.
const fn slots(len: u32) -> u32 {
    let slots = len.next_power_of_two() * SPREAD;
    if slots < MAX_SLOTS { slots } else { MAX_SLOTS }
}

/// Words of shared memory for a table of `len` ids, at most [`MAX_PLACES`]: a multiple of 4.
pub const fn table_words(len: u32) -> u32 {
    slots(len) + len.next_multiple_of(4)
}

/// A table from ids to their places in a list.
///
/// A word holds the lower 32 - b bits of the hash above bit b, then from bit b down: whether the
/// slot is empty, the place, and `MORE`.
#[derive(Clone, Copy)]
pub struct Places {
    /// The first word of each slot.
    heads: Shared<u32>,
    /// Per place, the next word of its slot.
    next: Shared<u32>,
    bits: u32,
}

impl Places {
    /// A table in `room`, which has [`table_words`] and begins at a multiple of 16 bytes.
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

    /// The word of an id that is alone in its slot.
    #[inline(always)]
    fn word(&self, hash: u32, place: u32) -> u32 {
        hash << self.bits | place << 1
    }

    #[inline(always)]
    fn empty(&self) -> u32 {
        1 << self.bits
    }

    /// Empties the table. All threads of a block call this; a barrier follows.
    #[inline(always)]
    pub fn clear(&self, threads: Threads) {
        let mut i = threads.index * 4;
        while i < 1 << self.bits {
            keep_rolled();
            self.heads.set_quad(i as usize, Quad([self.empty(); 4]));
            i += threads.count * 4;
        }
    }

    /// Enters the first `len` of `ids`, all distinct, with their places. All threads of the
    /// block call this after a barrier; another follows.
    #[inline(always)]
    pub fn enter(&self, ids: Shared<u32>, len: u32, threads: Threads) {
        let mut place = threads.index;
        while place < len {
            keep_rolled();
            let hash = Self::hash(ids.get(place as usize));
            let word = self.word(hash, place) | MORE;
            self.next.set(place as usize, self.heads.exchange(self.slot(hash), word));
            place += threads.count;
        }
        sync_threads();
        // Clear MORE of ids that are alone in their slots. No other thread touches such a slot
        // here.
        let mut place = threads.index;
        while place < len {
            keep_rolled();
            let hash = Self::hash(ids.get(place as usize));
            let word = self.word(hash, place);
            if self.next.get(place as usize) == self.empty() && self.heads.get(self.slot(hash)) == word | MORE
            {
                self.heads.set(self.slot(hash), word);
            }
            place += threads.count;
        }
    }

    /// Calls `found` with the place of each of four ids, where the table holds it at a place of at
    /// least `least`.
    #[inline(always)]
    #[track_caller]
    pub fn find(&self, ids: Quad, least: [u32; 4], found: impl Fn(u32)) {
        let mask = self.empty() - 1;
        let (mut wanted, mut rests) = ([0; 4], [0; 4]);
        // All loads start before the first is used.
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
