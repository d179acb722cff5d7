//! Known sets: which neighbours are in a node's list, by fingerprints.
//!
//! ```text
//! warp = node
//! for each 32 ids of the list: bucket and fingerprint of each
//!     lanes of the same bucket = by votes on the bits of its number
//!     shift the bucket's word by their number; put in the last four fingerprints
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | `lists` | nodes x `k` keys |
//! | `sets` | nodes x `2^bits` words |
//! | shared memory, per node | `2^bits` words |
//!
//! From the second clustering on, most near pairs are known: a cross-cell join looks a pair up
//! before it proposes it. One word of four fingerprints answers. A bucket of more than four ids
//! drops the nearest ones, so a known pair may be proposed again. One pair in about 90 is taken for
//! another, and waits for the next clustering.
//!
//! Bound by memory: lists are read once, sets written.

use cuda_std::prelude::*;
use cuda_std::thread::block_idx_x;
use cuda_std::{keep_rolled, shared};

use super::super::merge::{MERGE_NODES, MERGE_THREADS};
use crate::block::peers::peers;
use crate::key::{self, Key, NONE};

/// Known sets of all nodes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct KnownSets {
    /// In: `k` keys per node.
    pub lists: Global<Key>,
    /// Out: `2^bits` words per node.
    pub sets: GlobalMut<u32>,
    /// Number of nodes.
    pub nodes: u32,
    /// Length of the lists, at least 1.
    pub k: u32,
    /// Base-2 logarithm of the words per node; see [`known_bits`].
    pub bits: u32,
    /// Salt of the hash.
    pub salt: u32,
}

/// Base-2 logarithm of the words of a known set for lists of `k` keys: about three fingerprints to
/// a word.
pub const fn known_bits(k: u32) -> u32 {
    if k <= 128 { 5 } else { 6 }
}

/// Bytes of dynamic shared memory of [`cells_known_sets()`].
pub const fn known_sets_shared_bytes(bits: u32) -> u32 {
    (MERGE_NODES << bits) * 4
}

/// The bucket of `id`, above its fingerprint of 8 bits, not 0.
#[inline(always)]
pub const fn known_hash(id: u32, salt: u32, bits: u32) -> u32 {
    let mut mixed = (id ^ salt).wrapping_mul(0xc2b2_ae35);
    mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0x85eb_ca6b);
    let fingerprint = mixed >> 8 & 0xff;
    mixed >> (32 - bits) << 8 | if fingerprint == 0 { 1 } else { fingerprint }
}

/// Whether a word holds the fingerprint of a [`known_hash`].
#[inline(always)]
pub const fn word_holds(word: u32, hash: u32) -> bool {
    let differences = word ^ ((hash & 0xff) * 0x0101_0101);
    differences.wrapping_sub(0x0101_0101) & !differences & 0x8080_8080 != 0
}

/// Makes the known sets of all nodes from their lists (see [`KnownSets`]).
///
/// Launch: a block of [`MERGE_THREADS`] per [`MERGE_NODES`] nodes; [`known_sets_shared_bytes`].
///
/// # Safety
/// - The views have the shapes of [`KnownSets`].
#[kernel(unsafe, block = MERGE_THREADS, shared = known_sets_shared_bytes(p.bits))]
pub unsafe fn cells_known_sets(p: KnownSets) {
    let node = block_idx_x() * MERGE_NODES + thread::warp_idx();
    if node >= p.nodes {
        return;
    }
    let words: Shared<u32> = shared::dynamic::<u32>(0).offset((thread::warp_idx() as usize) << p.bits);
    let list = p.lists.offset(node as usize * p.k as usize);
    let set = p.sets.offset((node as usize) << p.bits);
    let lane = warp::lane_id();
    let mut bucket = lane;
    while bucket < 1 << p.bits {
        words.set(bucket as usize, 0);
        bucket += 32;
    }
    warp::sync();
    let mut first = 0;
    while first < p.k {
        keep_rolled();
        let i = first + lane;
        let key = if i < p.k { list.get(i as usize) } else { NONE };
        add(words, known_hash(key::id(key), p.salt, p.bits), p.bits, key != NONE);
        first += 32;
    }
    let mut bucket = lane;
    while bucket < 1 << p.bits {
        set.set(bucket as usize, words.get(bucket as usize));
        bucket += 32;
    }
}

/// Adds the hashes of the lanes that have one to the words of their buckets, in the order of lanes.
/// The whole warp calls this, after a barrier of its own, and finds one after the result.
#[inline(always)]
fn add(words: Shared<u32>, hash: u32, bits: u32, is_there: bool) {
    let bucket = hash >> 8;
    let same = peers(bucket, bits, is_there);
    let equal_after = (same & (u32::MAX << warp::lane_id() << 1)).count_ones();
    if is_there && equal_after == 0 {
        let count = same.count_ones();
        words.set(bucket as usize, if count < 4 { words.get(bucket as usize) << (8 * count) } else { 0 });
    }
    warp::sync();
    if is_there && equal_after < 4 {
        words.fetch_or(bucket as usize, (hash & 0xff) << (8 * equal_after));
    }
    warp::sync();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_hold_what_was_put_into_them() {
        let mut wrong = 0;
        for id in 0..4000u32 {
            let hash = known_hash(id, 7, 5);
            assert!(hash >> 8 < 32 && hash & 0xff != 0);
            let word = (0..4).fold(0, |word, i| word << 8 | known_hash(id + i * 5000, 7, 5) & 0xff);
            assert!((0..4).all(|i| word_holds(word, known_hash(id + i * 5000, 7, 5))));
            wrong += u32::from(word_holds(word, known_hash(id + 90_000, 7, 5)));
        }
        // Four fingerprints of 255.
        assert!((30..=100).contains(&wrong), "{wrong}");
    }
}
