//! The lengths of an index's edges: the distances of its rows' ids.

use cuda_std::prelude::*;
use cuda_std::thread::block_idx_x;
use cuda_std::{keep_rolled, shared};

use crate::block::copied;
use crate::block::element::Element;
use crate::block::exact::point_bytes;
use crate::block::rows::Rows;
use crate::descent::key::{self, Key, NONE};

/// Threads of a block, a warp per row.
pub const LENGTH_THREADS: u32 = 128;

/// Rows per block.
pub const LENGTH_ROWS: u32 = LENGTH_THREADS / 32;

/// The rows whose lengths are wanted.
#[repr(C)]
pub struct Lengths<T> {
    /// In: the base.
    pub rows: Rows<T>,
    /// In: `stride` ids of each of the first `count` rows, `u32::MAX` behind the last.
    pub ids: Global<u32>,
    /// Out: as many keys of each, of the rule distance to the row and the id; [`NONE`] behind the last.
    pub keys: GlobalMut<Key>,
    /// How many rows.
    pub count: u32,
    /// Ids per row.
    pub stride: u32,
}

copied! {
    Lengths<T>;
}

/// Bytes of dynamic shared memory of the kernels: a vector for each warp.
pub const fn length_shared_bytes(dim: u32) -> u32 {
    LENGTH_ROWS * point_bytes(dim)
}

#[inline(always)]
fn lengths<T: Element>(p: &Lengths<T>) {
    let (warp, lane) = (thread::warp_idx(), warp::lane_id());
    let row = block_idx_x() * LENGTH_ROWS + warp;
    if row >= p.count {
        return;
    }
    let values: Shared<T::Point> = shared::dynamic((warp * point_bytes(p.rows.dim)) as usize);
    p.rows.load(values, row, (lane, 32));
    warp::sync();
    let point = p.rows.point(values, row);
    let ids = p.ids.offset(row as usize * p.stride as usize);
    let keys = p.keys.offset(row as usize * p.stride as usize);
    let mut first = 0;
    while first < p.stride {
        keep_rolled();
        let slot = first + lane;
        let id = if slot < p.stride { ids.get(slot as usize) } else { u32::MAX };
        // The first lanes have those that there are.
        let count = warp::ballot(id != u32::MAX).count_ones();
        let mut key = NONE;
        if count > 0 {
            let distance = p.rows.distances(&point, id, count);
            key = if lane < count { key::pack(distance, id) } else { NONE };
        }
        if slot < p.stride {
            keys.set(slot as usize, key);
        }
        first += 32;
    }
}

macro_rules! length_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Computes the lengths of edges (see [`Lengths`]).
        ///
        /// Launch: a block of [`LENGTH_THREADS`] per [`LENGTH_ROWS`] rows; [`length_shared_bytes`].
        ///
        /// # Safety
        /// - The views hold what [`Lengths`] says; ids are rows of the base.
        #[kernel(block = LENGTH_THREADS, shared = length_shared_bytes(p.rows.dim), blocks_per_multiprocessor = 8)]
        pub unsafe fn $name(p: Lengths<$type>) {
            lengths(&p);
        }
    )*};
}

length_kernels! {
    prune_lengths_f32 f32;
    prune_lengths_f16 f16;
    prune_lengths_u8 u8;
    prune_lengths_i8 i8;
}
