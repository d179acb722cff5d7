//! Members of cells: each vector is a member of the cells of its nearest centres.
//!
//! ```text
//! member_keys: thread = vector; for each rank: key = centre | rank | vector
//! (a stable sort by centre)
//! members: thread = key: members[i] = its vector; starts[group] = i where a group begins
//! ```
//!
//! | buffer | shape |
//! | --- | --- |
//! | `keys` | vectors x `probes` |
//! | `members` | vectors x `probes`, cell by cell, and in a cell by rank |
//! | `starts` | cells x `probes` + 1 |
//!
//! Keys are written rank by rank in a shuffled order. The sort is stable, so every prefix of the
//! members of a cell and rank is a fair sample of them. Bound by memory.

use cuda_std::prelude::*;

use super::{ID_BITS, VALUE_THREADS};

/// Bits of the rank in a key, above the vector.
pub const RANK_BITS: u32 = 5;

/// Number `index` of a pseudo-random permutation of `0..n`. `index` is below `n`.
#[inline(always)]
pub fn shuffled(index: u32, n: u32) -> u32 {
    // A permutation of all numbers of as many bits as n - 1 has. From a number of n or more it is
    // applied again: its cycle began below n, and comes back there.
    let bits = if n > 2 { 32 - (n - 1).leading_zeros() } else { 1 };
    let mask = if bits < 32 { (1u32 << bits) - 1 } else { u32::MAX };
    let fold = bits.div_ceil(2);
    let mut x = index;
    loop {
        // The constant keeps zero from staying zero. Odd factors and right shifts have inverses.
        x = x.wrapping_add(0x9e37_79b9) & mask;
        x = (x ^ (x >> fold)).wrapping_mul(0x21f0_aaad) & mask;
        x = (x ^ (x >> fold)).wrapping_mul(0x735a_2d97) & mask;
        x = (x ^ (x >> fold)).wrapping_mul(0x846c_a68b) & mask;
        x ^= x >> fold;
        if x < n {
            return x;
        }
    }
}

/// Keys of members, from the top: centre, rank among the vector's centres, vector.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MemberKeys {
    /// In: `probes` centres per vector.
    pub nearest: Global<u32>,
    /// Out: `probes * count` keys: rank 0 first, then rank 1, and so on, each in the order of
    /// [`shuffled`].
    pub keys: GlobalMut<u64>,
    /// Number of vectors.
    pub count: u32,
    /// Centres per vector.
    pub probes: u32,
}

/// Makes the keys of members (see [`MemberKeys`]).
///
/// Launch: a thread per vector, blocks of [`VALUE_THREADS`]. A thread reads the centres of its
/// vector, which lie together, for all ranks.
///
/// # Safety
/// - The views have the shapes of [`MemberKeys`].
#[kernel(unsafe, block = VALUE_THREADS)]
pub unsafe fn cluster_member_keys(p: MemberKeys) {
    let i = thread::index_1d();
    if i >= p.count {
        return;
    }
    let vector = shuffled(i, p.count);
    let nearest = p.nearest.offset(vector as usize * p.probes as usize);
    let mut rank = 0;
    while rank < p.probes {
        let centre = nearest.get(rank as usize);
        let key = (centre as u64) << (ID_BITS + RANK_BITS) | (rank as u64) << ID_BITS | vector as u64;
        p.keys.set(rank as usize * p.count as usize + i as usize, key);
        rank += 1;
    }
}

/// Members of cells, from sorted keys.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Members {
    /// In: `count` keys of members, sorted by centre and rank.
    pub keys: Global<u64>,
    /// Out: the vector of each key.
    pub members: GlobalMut<u32>,
    /// Out: start of the members of each rank of each cell, and the end of the last:
    /// `cells * probes + 1` values.
    pub starts: GlobalMut<u32>,
    /// Number of keys, at least 1.
    pub count: u32,
    /// Number of cells.
    pub cells: u32,
    /// Centres per vector.
    pub probes: u32,
    /// Unused.
    pub padding: u32,
}

/// Extracts the members of sorted keys, and finds the start of each rank of each cell (see
/// [`Members`]).
///
/// Launch: a thread per key, blocks of [`VALUE_THREADS`].
///
/// # Safety
/// - The views have the shapes of [`Members`].
#[kernel(unsafe, block = VALUE_THREADS)]
pub unsafe fn cluster_members(p: Members) {
    let i = thread::index_1d();
    if i >= p.count {
        return;
    }
    let group = |i: u32| {
        let above = p.keys.get(i as usize) >> ID_BITS;
        (above >> RANK_BITS) as u32 * p.probes + (above as u32 & ((1 << RANK_BITS) - 1))
    };
    p.members.set(i as usize, p.keys.get(i as usize) as u32);
    // A group starts at its first key; an empty group starts where the next group does.
    let mut next = if i == 0 { 0 } else { group(i - 1) + 1 };
    let own = group(i);
    while next <= own {
        p.starts.set(next as usize, i);
        next += 1;
    }
    if i + 1 == p.count {
        while next <= p.cells * p.probes {
            p.starts.set(next as usize, p.count);
            next += 1;
        }
    }
}
