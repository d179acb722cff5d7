//! Known sets: which neighbours are in a node's list, by fingerprints.
//!
//! ```text
//! warp = node
//! hashes = bucket and fingerprint of each id of the list, in shared memory
//! each lane, for each of its buckets: word = the last four fingerprints of the bucket
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | `lists` | nodes x `k` keys |
//! | `sets` | nodes x `2^bits` words |
//! | shared memory, per node | `k` hashes, rounded up to a multiple of four |
//!
//! From the second clustering on, most near pairs are known: a cross-cell join looks a pair up
//! before it proposes it. One word of four fingerprints answers. A bucket of more than four ids
//! drops the nearest ones, so a known pair may be proposed again. One pair in about 90 is taken for
//! another, and waits for the next clustering.
//!
//! Bound by instruction issue: four instructions per id and bucket.

use cuda_std::prelude::*;
use cuda_std::shared;
use cuda_std::thread::block_idx_x;

use super::super::merge::{MERGE_NODES, MERGE_THREADS};
use crate::key::{self, Key, NONE};

/// The hash of an empty slot: no bucket has this number.
const NOTHING: u32 = u32::MAX;

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
    pub draw: u32,
}

/// Base-2 logarithm of the words of a known set for lists of `k` keys: about three fingerprints to
/// a word.
pub const fn known_bits(k: u32) -> u32 {
    if k <= 128 { 5 } else { 6 }
}

/// Bytes of dynamic shared memory of [`cells_known_sets()`].
pub const fn known_sets_shared_bytes(k: u32) -> u32 {
    MERGE_NODES * k.next_multiple_of(4) * 4
}

/// The bucket of `id`, above its fingerprint of 8 bits, not 0.
#[inline(always)]
pub const fn known_hash(id: u32, draw: u32, bits: u32) -> u32 {
    let mut mixed = (id ^ draw).wrapping_mul(0xc2b2_ae35);
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
#[kernel(block = MERGE_THREADS, shared = known_sets_shared_bytes(p.k))]
pub unsafe fn cells_known_sets(p: KnownSets) {
    let node = block_idx_x() * MERGE_NODES + thread::warp_idx();
    if node >= p.nodes {
        return;
    }
    let length = p.k.next_multiple_of(4);
    let hashes: Shared<u32> = shared::dynamic::<u32>(0).offset((thread::warp_idx() * length) as usize);
    let list = p.lists.offset(node as usize * p.k as usize);
    let mut i = warp::lane_id();
    while i < length {
        let key = if i < p.k { list.get(i as usize) } else { NONE };
        let hash = if key != NONE { known_hash(key::id(key), p.draw, p.bits) } else { NOTHING };
        hashes.set(i as usize, hash);
        i += 32;
    }
    warp::sync();
    let set = p.sets.offset((node as usize) << p.bits);
    let mut bucket = warp::lane_id();
    while bucket < 1 << p.bits {
        let (mut word, mut i) = (0, 0);
        while i < length {
            let four = hashes.get_quad(i as usize).0;
            unroll!(4, I => {
                if four[I] >> 8 == bucket {
                    word = word << 8 | four[I] & 0xff;
                }
            });
            i += 4;
        }
        set.set(bucket as usize, word);
        bucket += 32;
    }
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
