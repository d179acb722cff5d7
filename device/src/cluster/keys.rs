//! Sort keys: vectors in the order of one of their centres.
//!
//! ```text
//! thread = vector: key = centre << 32 | vector
//! ```
//!
//! Stable sorts by one centre after another, the least important first, give an order by several
//! centres. Bound by memory: a key read or written and a centre gathered per vector.

use cuda_std::prelude::*;

use super::{ID_BITS, VALUE_THREADS};

/// Keys for a sort by one centre of each vector.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Keys {
    /// In: `probes` centres per vector.
    pub nearest: Global<u32>,
    /// In, unless `fresh`: `count` keys with different vectors in their low [`ID_BITS`]. Out: keys
    /// of the same vectors at the same places, with the centre above.
    pub keys: GlobalMut<u64>,
    /// Number of vectors.
    pub count: u32,
    /// Centres per vector.
    pub probes: u32,
    /// The rank of the centre to sort by.
    pub rank: u32,
    /// Whether place `i` gets vector `i`.
    pub fresh: u32,
}

/// Makes the keys of one centre per vector (see [`Keys`]).
///
/// Launch: a thread per vector, blocks of [`VALUE_THREADS`].
///
/// # Safety
/// - The views have the shapes of [`Keys`].
#[kernel(unsafe, block = VALUE_THREADS)]
pub unsafe fn cluster_keys(p: Keys) {
    let i = thread::index_1d();
    if i < p.count {
        let vector = if p.fresh != 0 { i } else { p.keys.get(i as usize) as u32 };
        let centre = p.nearest.get(vector as usize * p.probes as usize + p.rank as usize);
        p.keys.set(i as usize, (centre as u64) << ID_BITS | vector as u64);
    }
}

/// Extracts the vectors of sorted keys: `ids[i]` is the low half of `keys[i]`.
///
/// Launch: a thread per key, blocks of [`VALUE_THREADS`]. `keys` and `ids` hold `count` values.
///
/// # Safety
/// - The views have the sizes above.
#[kernel(unsafe, block = VALUE_THREADS)]
pub unsafe fn cluster_ids(keys: Global<u64>, ids: GlobalMut<u32>, count: u32) {
    let i = thread::index_1d();
    if i < count {
        ids.set(i as usize, keys.get(i as usize) as u32);
    }
}
