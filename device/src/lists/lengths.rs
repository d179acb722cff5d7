//! The lists of an index: the ids of its rows with their distances, in ascending order.

use cuda_std::prelude::*;
use cuda_std::thread::block_idx_x;
use cuda_std::{keep_rolled, shared};

use crate::block::copied;
use crate::block::element::Element;
use crate::block::exact::query_bytes;
use crate::block::rows::Rows;
use crate::block::sort::{rank, sort_warp};
use crate::key::{self, Key, NONE};

/// Threads of a block, a warp per list.
pub const LENGTH_THREADS: u32 = 128;

/// Lists per block.
pub const LENGTH_LISTS: u32 = LENGTH_THREADS / 32;

/// The lists that are wanted.
#[repr(C)]
pub struct Lengths<T> {
    /// In: the base.
    pub rows: Rows<T>,
    /// In: the row that each list is of.
    pub order: Global<u32>,
    /// In: `degree` different ids of each row, `u32::MAX` behind the last.
    pub ids: Global<u32>,
    /// Out: `degree` keys of each list: ascending (order distance, row), then [`NONE`].
    pub keys: GlobalMut<Key>,
    /// How many lists.
    pub count: u32,
    /// Ids per row.
    pub degree: u32,
}

copied! {
    Lengths<T>;
}

/// Bytes of dynamic shared memory of the kernels: for each warp a vector, and runs of keys.
pub const fn length_shared_bytes(dim: u32, degree: u32) -> u32 {
    LENGTH_LISTS * warp_bytes(dim, degree)
}

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
    p.rows.load(values, row, (lane, 32));
    warp::sync();
    let point = p.rows.point(values, row);
    let ids = p.ids.offset(row as usize * p.degree as usize);
    // Runs of 32 keys, each of them sorted.
    let mut first = 0;
    while first < p.degree {
        keep_rolled();
        let slot = first + lane;
        let id = if slot < p.degree { ids.get(slot as usize) } else { u32::MAX };
        // The first lanes have those that there are.
        let count = warp::ballot(id != u32::MAX).count_ones();
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
        // As many are before it as there are in all runs.
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
        /// Computes the lists of an index (see [`Lengths`]).
        ///
        /// Launch: a block of [`LENGTH_THREADS`] per [`LENGTH_LISTS`] lists; [`length_shared_bytes`].
        ///
        /// # Safety
        /// - The views hold what [`Lengths`] says; ids are rows of the base.
        #[kernel(block = LENGTH_THREADS, shared = length_shared_bytes(p.rows.dim, p.degree), blocks_per_multiprocessor = 8)]
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
