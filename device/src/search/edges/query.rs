//! Codes of queries for searches on [codes of edges](super).
//!
//! # Algorithm
//!
//! ```text
//! for each query, one block:
//!     values = the query less the center, rotated
//!     code of a component = value * 127 / largest magnitude, rounded
//!     planes = bit b of 32 components in a word, by a vote of each warp
//!     sum    = the weighed ones of all planes
//! ```
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `queries` | a query per block, see [`Rows`] |
//! | `center` | dim |
//! | `codes` | queries × [`query_words`] |
//! | shared memory | one vector in f32, the planes, and a word |
//!
//! # Speed
//!
//! A few microseconds for 10,000 queries: each takes its rotation's passes over shared memory.

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared};

use super::{PLANES, query_words, weighed, words};
use crate::block::copied;
use crate::block::element::{Element, Wide};
use crate::block::rows::Rows;
use crate::vectors::code::{CODE_THREADS, Code, Rotation};

/// Dynamic shared memory in bytes.
pub const fn edge_query_shared_bytes(dim: u32) -> u32 {
    (dim + query_words(dim)) * 4
}

/// Arguments of the kernels `edge_query_*`.
#[repr(C)]
pub struct EdgeQueries<T> {
    /// In: the queries.
    pub queries: Rows<T>,
    /// In: the center of the rows.
    pub center: Global<f32>,
    /// In: the rotation.
    pub rotation: Rotation,
    /// Out: the codes.
    pub codes: GlobalMut<u32>,
}

copied! {
    EdgeQueries<T>;
}

#[inline(always)]
fn code<T: Element>(p: &EdgeQueries<T>) {
    let (thread, query, dim) = (thread_idx_x(), block_idx_x(), p.queries.dim);
    let values: Shared<f32> = shared::dynamic(0);
    let planes: Shared<u32> = shared::dynamic(dim as usize * 4);
    let largest: Shared<u32> = planes.offset((words(dim) * PLANES) as usize);
    let row = p.queries.row(query);
    let mut i = thread;
    while i < dim {
        keep_rolled();
        values.set(i as usize, row.get(i as usize).wide().to_f32() - p.center.get(i as usize));
        i += CODE_THREADS;
    }
    if thread == 0 {
        largest.set(0, 0);
    }
    sync_threads();
    p.rotation.apply(values, dim);

    // Magnitudes are in the order of their bits.
    let (mut magnitude, mut i) = (0, thread);
    while i < dim {
        keep_rolled();
        let bits = values.get(i as usize).to_bits() & 0x7fff_ffff;
        magnitude = if bits > magnitude { bits } else { magnitude };
        i += CODE_THREADS;
    }
    largest.fetch_max(0, magnitude);
    sync_threads();
    let (scale, step) = levels(f32::from_bits(largest.get(0)));
    let mut i = thread;
    while i < words(dim) * 32 {
        keep_rolled();
        let code = if i < dim { i8::of(values.get(i as usize) * scale) } else { 0 };
        let mut plane = 0;
        while plane < PLANES {
            keep_rolled();
            let bits = warp::ballot(code as u32 >> plane & 1 == 1);
            if i % 32 == 0 {
                planes.set((i / 32 * PLANES + plane) as usize, bits);
            }
            plane += 1;
        }
        i += CODE_THREADS;
    }
    sync_threads();

    let codes = p.codes.offset(query as usize * query_words(dim) as usize);
    let (mut sum, mut i) = (0, thread);
    while i < words(dim) * PLANES {
        keep_rolled();
        codes.set(i as usize, planes.get(i as usize));
        i += CODE_THREADS;
    }
    if thread == 0 {
        let mut i = 0;
        while i < words(dim) * PLANES {
            keep_rolled();
            sum += weighed(planes.get(i as usize).count_ones(), i % PLANES);
            i += 1;
        }
        let after = (words(dim) * PLANES) as usize;
        codes.set(after, step.to_bits());
        codes.set(after + 1, sum as u32);
    }
}

/// Levels per unit of a query's code whose largest magnitude this is, and the units of a level.
#[inline(always)]
pub fn levels(largest: f32) -> (f32, f32) {
    let most = <i8 as Code>::LARGEST;
    (if largest > 0.0 { most / largest } else { 0.0 }, largest / most)
}

macro_rules! edge_query_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Codes queries (see [`EdgeQueries`] and the module).
        ///
        /// Launch: a block of [`CODE_THREADS`] per query; [`edge_query_shared_bytes`].
        ///
        /// # Safety
        /// - The views match the fields of [`EdgeQueries`].
        #[kernel(unsafe, block = CODE_THREADS, shared = edge_query_shared_bytes(p.queries.dim))]
        pub unsafe fn $name(p: EdgeQueries<$type>) {
            code(&p);
        }
    )*};
}

edge_query_kernels! {
    edge_query_f32 f32;
    edge_query_f16 f16;
    edge_query_u8 u8;
    edge_query_i8 i8;
}
