//! The members of cells: a cell of each centre, with every vector in the cells of its nearest centres.

use cuda_std::prelude::*;

use super::{ID_BITS, VALUE_THREADS};

/// Bits above a vector in the keys of members that hold the rank of its centre.
pub const RANK_BITS: u32 = 5;

/// Number `index` of an order of `0..n` that looks drawn: each number once. `index` is below `n`.
#[inline(always)]
pub fn shuffled(index: u32, n: u32) -> u32 {
    // A permutation of the numbers of as many bits as n - 1 has. Those from n on are followed to where they
    // go: the cycle comes back below n, where it began.
    let bits = if n > 2 { 32 - (n - 1).leading_zeros() } else { 1 };
    let mask = if bits < 32 { (1u32 << bits) - 1 } else { u32::MAX };
    let fold = bits.div_ceil(2);
    let mut x = index;
    loop {
        // A constant first, lest zero stay zero. Odd factors and shifts to the right have inverses.
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

/// Keys of members: `centre`, rank among the vector's centres, vector, from the top.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct MemberKeys {
    /// In: of each vector `probes` centres.
    pub nearest: Global<u32>,
    /// Out: `count * probes` keys: those of the first centres, then of the second, and so on, each time
    /// in the order of [`shuffled`].
    pub keys: GlobalMut<u64>,
    /// How many vectors.
    pub count: u32,
    /// Centres per vector.
    pub probes: u32,
}

/// Makes the keys of members (see [`MemberKeys`]). Sorted stably by the centre, they are the members cell by
/// cell; in a cell by rank; and of a rank in an order of which every beginning is a fair sample.
///
/// Launch: a thread per vector, blocks of [`VALUE_THREADS`]; grid y: one per membership.
///
/// # Safety
/// - The views hold what [`MemberKeys`] says.
#[kernel(block = VALUE_THREADS)]
pub unsafe fn cluster_member_keys(p: MemberKeys) {
    let (i, rank) = (thread::index_1d(), thread::block_idx_y());
    if i < p.count {
        let vector = shuffled(i, p.count);
        let centre = p.nearest.get(vector as usize * p.probes as usize + rank as usize);
        let key = (centre as u64) << (ID_BITS + RANK_BITS) | (rank as u64) << ID_BITS | vector as u64;
        p.keys.set(rank as usize * p.count as usize + i as usize, key);
    }
}

/// The members of sorted keys.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Members {
    /// In: `count` keys of members, sorted.
    pub keys: Global<u64>,
    /// Out: the vector of each key.
    pub members: GlobalMut<u32>,
    /// Out: where the members of each rank of each cell begin, and the end of the last:
    /// `cells * probes + 1` values.
    pub starts: GlobalMut<u32>,
    /// How many keys, at least 1.
    pub count: u32,
    /// How many cells.
    pub cells: u32,
    /// Centres per vector.
    pub probes: u32,
    /// Nothing.
    pub padding: u32,
}

/// Takes the members out of sorted keys, and finds where each rank of each cell begins (see [`Members`]).
///
/// Launch: a thread per key, blocks of [`VALUE_THREADS`].
///
/// # Safety
/// - The views hold what [`Members`] says.
#[kernel(block = VALUE_THREADS)]
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
    // A group begins where its first key is; one without keys, where the next one does.
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
