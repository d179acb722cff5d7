//! Keys that put vectors in the order of one of their centres.

use cuda_std::prelude::*;

use super::{ID_BITS, VALUE_THREADS};

/// Keys to be sorted.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Keys {
    /// In: of each vector `probes` centres.
    pub nearest: Global<u32>,
    /// In, unless `fresh`: `count` keys with different vectors in their low [`ID_BITS`]; out: the keys of the
    /// same vectors, in the same places, with the centre above.
    pub keys: GlobalMut<u64>,
    /// How many vectors.
    pub count: u32,
    /// Centres per vector.
    pub probes: u32,
    /// Which of a vector's centres is taken.
    pub rank: u32,
    /// Whether the vectors are taken in the order of their numbers.
    pub fresh: u32,
}

/// Makes keys of a centre each (see [`Keys`]). Sorted stably by one centre after another, the least
/// important first, the vectors are in the order of several.
///
/// Launch: a thread per vector, blocks of [`VALUE_THREADS`].
///
/// # Safety
/// - The views hold what [`Keys`] says.
#[kernel(block = VALUE_THREADS)]
pub unsafe fn cluster_keys(p: Keys) {
    let i = thread::index_1d();
    if i < p.count {
        let vector = if p.fresh != 0 { i } else { p.keys.get(i as usize) as u32 };
        let centre = p.nearest.get(vector as usize * p.probes as usize + p.rank as usize);
        p.keys.set(i as usize, (centre as u64) << ID_BITS | vector as u64);
    }
}

/// The vectors of sorted keys: `ids[i]` is the low half of `keys[i]`.
///
/// Launch: a thread per key, blocks of [`VALUE_THREADS`]. `keys` and `ids` hold `count` values.
///
/// # Safety
/// - The views hold what is said above.
#[kernel(block = VALUE_THREADS)]
pub unsafe fn cluster_ids(keys: Global<u64>, ids: GlobalMut<u32>, count: u32) {
    let i = thread::index_1d();
    if i < count {
        ids.set(i as usize, keys.get(i as usize) as u32);
    }
}
