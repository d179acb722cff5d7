//! Edge lengths: the neighbours of an index's rows as keys (distance, id), in ascending order.
//!
//! # Algorithm
//!
//! ```text
//! for each list, one warp:
//!     load the list's row to shared memory
//!     for each run of 32 ids:
//!         keys = (order distance to the row, id), a lane each
//!         sort the 32 keys in registers, store the run
//!     for each key of each run:
//!         place = number of smaller keys in all runs     (binary search in each)
//!         out[place] = key
//! ```
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `rows` | base vectors, see [`Rows`] |
//! | `order` | `count` rows |
//! | `ids` | rows × `degree` ids, `NO_ID` after the last |
//! | `keys` | `count` × `degree` keys, [`NONE`] after the last |
//! | shared memory, per warp | one vector, `degree` keys rounded up to runs of 32 |
//!
//! # Optimisations
//!
//! 1. A run is sorted by shuffles, with no shared memory and no barrier. The whole warp takes part
//!    in every shuffle.
//! 2. Runs are not merged: each key counts the smaller keys of all runs. The ids of a list differ,
//!    so the keys differ and each place is taken once.
//!
//! # Speed
//!
//! The kernel gathers `degree` vectors per list and is bound by memory. Sorting takes some hundred
//! instructions of the warp.

use cuda_std::prelude::*;
use cuda_std::thread::block_idx_x;
use cuda_std::{keep_rolled, shared};

use crate::block::copied;
use crate::block::element::Element;
use crate::block::exact::query_bytes;
use crate::block::rows::Rows;
use crate::block::sort::{rank, sort_warp};
use crate::block::threads::Threads;
use crate::key::{self, Key, NO_ID, NONE};

/// Threads per block, one warp per list.
pub const LENGTH_THREADS: u32 = 128;

/// Lists per block.
pub const LENGTH_LISTS: u32 = LENGTH_THREADS / 32;

/// Arguments of the kernels `lists_lengths_*`.
#[repr(C)]
pub struct Lengths<T> {
    /// In: the base.
    pub rows: Rows<T>,
    /// In: `count` rows, one per list.
    pub order: Global<u32>,
    /// In: `degree` distinct ids per row, `NO_ID` after the last.
    pub ids: Global<u32>,
    /// Out: `degree` keys per list: ascending (order distance, row), then [`NONE`].
    pub keys: GlobalMut<Key>,
    /// Number of lists.
    pub count: u32,
    /// Ids per row.
    pub degree: u32,
}

copied! {
    Lengths<T>;
}

/// Dynamic shared memory in bytes: per warp a vector and the runs of keys.
pub const fn length_shared_bytes(dim: u32, degree: u32) -> u32 {
    LENGTH_LISTS * warp_bytes(dim, degree)
}

/// Shared memory of one warp, in bytes.
const fn warp_bytes(dim: u32, degree: u32) -> u32 {
    query_bytes(dim) + degree.next_multiple_of(32) * 8
}

#[inline(always)]
fn lengths<T: Element>(p: &Lengths<T>) {
    let (warp, lane) = (thread::warp_idx(), warp::lane_id());
    let list = block_idx_x() * LENGTH_LISTS + warp;
    if list >= p.count {
        return;
    }
    let values: Shared<T::Query> = shared::dynamic((warp * warp_bytes(p.rows.dim, p.degree)) as usize);
    let runs: Shared<Key> = values.cast::<u8>().offset(query_bytes(p.rows.dim) as usize).cast();
    let row = p.order.get(list as usize);
    p.rows.load(values, row, Threads::new(lane, 32));
    warp::sync();
    let point = p.rows.point(values, row);
    let ids = p.ids.offset(row as usize * p.degree as usize);
    let mut first = 0;
    while first < p.degree {
        keep_rolled();
        let slot = first + lane;
        let id = if slot < p.degree { ids.get(slot as usize) } else { NO_ID };
        // Ids fill the list from the front: lanes 0..count hold one.
        let count = warp::ballot(id != NO_ID).count_ones();
        let mut key = NONE;
        if count > 0 {
            let distance = p.rows.order_distances(&point, id, count);
            key = if lane < count { key::pack(distance, id) } else { NONE };
        }
        runs.set(slot as usize, sort_warp(key));
        first += 32;
    }
    warp::sync();
    let keys = p.keys.offset(list as usize * p.degree as usize);
    let (mut first, mut left) = (0, 0);
    while first < p.degree {
        keep_rolled();
        let key = runs.get((first + lane) as usize);
        // The number of smaller keys in all runs, its own included.
        let (mut place, mut run) = (0, 0);
        while run < p.degree {
            keep_rolled();
            place += rank(runs.offset(run as usize), 32, key);
            run += 32;
        }
        if key != NONE {
            keys.set(place as usize, key);
        }
        left += warp::ballot(key != NONE).count_ones();
        first += 32;
    }
    let mut slot = left + lane;
    while slot < p.degree {
        keep_rolled();
        keys.set(slot as usize, NONE);
        slot += 32;
    }
}

macro_rules! length_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Computes the keys of neighbour lists and sorts them (see [`Lengths`] and the module).
        ///
        /// Launch: a block of [`LENGTH_THREADS`] per [`LENGTH_LISTS`] lists;
        /// [`length_shared_bytes`].
        ///
        /// # Safety
        /// - The views match the fields of [`Lengths`]; ids are rows of the base.
        #[kernel(unsafe, block = LENGTH_THREADS, shared = length_shared_bytes(p.rows.dim, p.degree), blocks_per_multiprocessor = 8)]
        pub unsafe fn $name(p: Lengths<$type>) {
            lengths(&p);
        }
    )*};
}

length_kernels! {
    lists_lengths_f32 f32;
    lists_lengths_f16 f16;
    lists_lengths_u8 u8;
    lists_lengths_i8 i8;
}
