//! Keys as ids and distances, for results that stay on the device.
//!
//! # Algorithm
//!
//! For each key, one thread: its low word is the id, its high word the distance in another order of
//! bits.
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `keys`, `ids`, `distances` | `count` |
//!
//! # Speed
//!
//! Bound by memory: 16 bytes per key.

use cuda_std::prelude::*;
use cuda_std::thread::{grid_dim_x, index_1d};

use super::VECTOR_THREADS;
use crate::key::{self, Key};

/// Arguments of [`vectors_split()`].
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Split {
    /// In: keys without flags; [`NONE`](crate::key::NONE) in empty slots.
    pub keys: Global<Key>,
    /// Out: the ids; `NO_ID` for empty slots.
    pub ids: GlobalMut<u32>,
    /// Out: the distances; infinity for empty slots.
    pub distances: GlobalMut<f32>,
    /// Number of keys.
    pub count: u64,
}

/// Splits keys into ids and distances (see [`Split`]).
///
/// Launch: any grid in x; [`VECTOR_THREADS`] threads.
///
/// # Safety
/// - The views match the fields of [`Split`].
#[kernel(unsafe, block = VECTOR_THREADS)]
pub unsafe fn vectors_split(p: Split) {
    let mut i = index_1d() as u64;
    while i < p.count {
        let key = p.keys.get(i as usize);
        let distance = if key == key::NONE { f32::INFINITY } else { key::distance(key) };
        p.ids.set(i as usize, key as u32);
        p.distances.set(i as usize, distance);
        i += grid_dim_x() as u64 * VECTOR_THREADS as u64;
    }
}
