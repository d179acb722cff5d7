//! The end of every descent: exact distances.

use cuda_std::atomic::Scope;
use cuda_std::float::sqrt;
use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared};

use crate::block::copied;
use crate::block::element::{Element, GROUP};
use crate::block::exact::{Metric, Point, point_bytes};
use crate::block::sort::sort_block;
use crate::key::{self, Key, NONE};
use crate::search::exact::SETTLE_THREADS;

/// The end of a descent: distances become exact, and ids those of rows.
#[repr(C)]
pub struct Finish<T> {
    /// In: vectors of `dim` components, `stride` components apart.
    pub rows: Global<T>,
    /// In: the row of each node.
    pub order: Global<u32>,
    /// In: `k` keys of each node; none but at the end are [`NONE`].
    pub lists: Global<Key>,
    /// In: how far rounding moved each row, scaled.
    pub errors: Global<f32>,
    /// Out: `k` keys of each row: rows at their exact distances, ascending.
    pub nearest: GlobalMut<Key>,
    /// Out: in any order, rows whose lists are not full, or are not to be trusted: what rounding moved is no less than
    /// the L2 distance of the last over `least_per_error`. There is room for all.
    pub lacking: GlobalMut<u32>,
    /// In and out: how many these are.
    pub lacking_count: GlobalMut<u32>,
    /// Components from one vector to the next.
    pub stride: u32,
    /// Components per vector.
    pub dim: u32,
    /// Length of the lists, at least 1.
    pub k: u32,
    /// A [`Metric`].
    pub metric: u32,
    /// What a scaled error is multiplied by to be compared with a distance.
    pub least_per_error: f32,
    /// Nothing.
    pub padding: u32,
}

/// Bytes of dynamic shared memory of the finishing kernels.
pub const fn finish_shared_bytes(k: u32, dim: u32) -> u32 {
    point_bytes(dim) + 2 * k * 8
}

copied! {
    Finish<T>;
}

#[inline(always)]
fn finish<T: Element>(p: &Finish<T>) {
    let (thread, node) = (thread_idx_x(), block_idx_x() as usize);
    let k = p.k as usize;
    let values: Shared<T::Point> = shared::dynamic(0);
    let keys: Shared<Key> = shared::dynamic(point_bytes(p.dim) as usize);
    let spare = keys.offset(k);
    let list = p.lists.offset(node * k);
    let metric = Metric::from_u32(p.metric);
    let own = p.order.get(node) as usize;
    Point::load(values, p.rows.offset(own * p.stride as usize), p.dim, (thread, SETTLE_THREADS));
    sync_threads();
    let point = Point::<T>::new(values, p.dim);
    let mut first = thread / 32 * (32 / GROUP);
    while first < p.k {
        keep_rolled();
        let i = first + thread % 32 / GROUP;
        let old = if i < p.k { list.get(i as usize) } else { NONE };
        let row = if old != NONE { Some(p.order.get(key::id(old) as usize)) } else { None };
        let distance = point.distance(metric, row.map(|row| p.rows.offset(row as usize * p.stride as usize)));
        if i < p.k && thread % GROUP == 0 {
            keys.set(i as usize, row.map_or(NONE, |row| key::pack(distance, row)));
        }
        first += SETTLE_THREADS / GROUP;
    }
    sync_threads();
    // Empty slots come last, and stay there.
    let mut len = 0;
    while len < p.k && keys.get(len as usize) != NONE {
        len += 1;
    }
    sync_threads();
    let sorted = sort_block(keys, spare, len);
    let out = p.nearest.offset(own * k);
    let mut i = thread;
    while i < p.k {
        out.set(i as usize, if i < len { sorted.get(i as usize) } else { NONE });
        i += SETTLE_THREADS;
    }
    if thread == 0 {
        // Nothing is nearer than an equal vector; inner products have no such scale.
        let is_lacking = len < p.k || {
            let distance = key::distance(sorted.get(p.k as usize - 1));
            let squared = match metric {
                Metric::L2 => distance,
                Metric::Cosine => 2.0 * distance,
                Metric::InnerProduct => 0.0,
            };
            squared > 0.0 && p.errors.get(own) * p.least_per_error > sqrt(squared)
        };
        if is_lacking {
            p.lacking.set(p.lacking_count.fetch_add(0, 1, Scope::Device) as usize, own as u32);
        }
    }
}

macro_rules! finish_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Computes the exact distances of the lists, and sorts them (see [`Finish`]).
        ///
        /// Launch: a block of [`SETTLE_THREADS`] per node; [`finish_shared_bytes`].
        ///
        /// # Safety
        /// - The views hold what [`Finish`] says.
        #[kernel(block = SETTLE_THREADS, shared = finish_shared_bytes(p.k, p.dim))]
        pub unsafe fn $name(p: Finish<$type>) {
            finish(&p);
        }
    )*};
}

finish_kernels! {
    cells_finish_f32 f32;
    cells_finish_f16 f16;
    cells_finish_u8 u8;
    cells_finish_i8 i8;
}
