//! The least of the keys that two devices have found, where few slots hold keys.
//!
//! ```text
//! reduce_marks: warp = 32 words of marks, each of 32 keys
//!     bit = whether the slot holds a key
//! reduce_min:   warp = 32 words of marks of the other device
//!     for each 8 words
//!         lanes with a bit load the other key, all before the first is compared
//!         keys[i] = min(keys[i], other)
//! ```
//!
//! Keys are found by an atomic minimum on each device, so the minimum over the devices is what one
//! of them would have found alone. Bound by memory: the marks take a read of all slots, and the
//! minimum reads the link between the devices only where there are keys, by sectors of four.

use cuda_std::prelude::*;
use cuda_std::thread::block_idx_x;
use cuda_std::{keep_rolled, unroll, warp};

use crate::key::{Key, NONE};

/// Threads of a block.
pub const REDUCE_THREADS: u32 = 256;

/// Keys of a word of marks.
pub const MARKED_KEYS: u32 = 32;

/// Keys of a warp.
const WARP_KEYS: u32 = 32 * MARKED_KEYS;

/// Keys of a block.
pub const REDUCE_KEYS: u32 = REDUCE_THREADS / 32 * WARP_KEYS;

/// The first key of this warp.
#[inline(always)]
fn first_key() -> u32 {
    block_idx_x() * REDUCE_KEYS + thread::warp_idx() * WARP_KEYS
}

/// The word of marks of this lane; none behind the last.
#[inline(always)]
fn own_word(count: u32) -> Option<usize> {
    let word = first_key() / MARKED_KEYS + warp::lane_id();
    (word < count.div_ceil(MARKED_KEYS)).then_some(word as usize)
}

/// Marks which of `count` slots hold keys, a bit each.
///
/// Launch: a block of [`REDUCE_THREADS`] per [`REDUCE_KEYS`] keys.
///
/// # Safety
/// - `keys` holds `count` keys, and `marks` a word for each [`MARKED_KEYS`] of them.
#[kernel(unsafe, block = REDUCE_THREADS)]
pub unsafe fn reduce_marks(keys: Global<Key>, marks: GlobalMut<u32>, count: u32) {
    let (first, lane) = (first_key(), warp::lane_id());
    let mut own = 0;
    let mut word = 0;
    while word < 32 {
        keep_rolled();
        unroll!(8, I => {
            let i = first + (word + I as u32) * MARKED_KEYS + lane;
            let bits = warp::ballot(i < count && keys.get(i as usize) != NONE);
            if lane == word + I as u32 {
                own = bits;
            }
        });
        word += 8;
    }
    if let Some(place) = own_word(count) {
        marks.set(place, own);
    }
}

/// Replaces each of `count` keys by the key of `others` at its place, if that is marked and less.
///
/// Launch: a block of [`REDUCE_THREADS`] per [`REDUCE_KEYS`] keys.
///
/// # Safety
/// - `keys` holds `count` keys, and `marks` a word for each [`MARKED_KEYS`] of them.
/// - `others` holds the marked ones of `count` keys, and does not overlap `keys`.
#[kernel(unsafe, block = REDUCE_THREADS)]
pub unsafe fn reduce_min(keys: GlobalMut<Key>, others: Global<Key>, marks: Global<u32>, count: u32) {
    let (first, lane) = (first_key(), warp::lane_id());
    let own = own_word(count).map_or(0, |place| marks.get(place));
    let mut word = 0;
    while word < 32 {
        keep_rolled();
        let mut found = [NONE; 8];
        unroll!(8, I => {
            let i = first + (word + I as u32) * MARKED_KEYS + lane;
            if warp::broadcast(own, word + I as u32) >> lane & 1 != 0 {
                found[I] = others.get(i as usize);
            }
        });
        unroll!(8, I => {
            let i = (first + (word + I as u32) * MARKED_KEYS + lane) as usize;
            if found[I] != NONE && found[I] < keys.get(i) {
                keys.set(i, found[I]);
            }
        });
        word += 8;
    }
}
