//! Codes of the edges of a graph, see [`super`].
//!
//! # Algorithm
//!
//! ```text
//! for each node p, one block:
//!     from = p less the center, rotated
//!     for each edge to o:
//!         u    = o - p, rotated
//!         bits = where u is positive, 32 to a word, by a vote of each warp
//!         sums over u, 128 of each, added as a tree: the order of the CPU backend
//!         factor and offset of the edge
//! ```
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `base` | nodes × dim, see [`Rows`] |
//! | `ids` | nodes × `degree` ids, [`NO_ID`] is no edge |
//! | `center` | dim |
//! | `codes` | nodes × [`row_words`]; slots without an edge stay as they are |
//! | shared memory | two vectors in f32, and 128 of each sum |
//!
//! # Speed
//!
//! An edge waits for about 20 barriers of its block, 2 us, and 16 blocks share a multiprocessor:
//! 32 million edges of 128 dimensions take 30 ms on 132 of these. It is done once per index.

use cuda_std::prelude::*;
use cuda_std::thread::{block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared};

use super::{Sums, row_words, slots, words};
use crate::block::copied;
use crate::block::element::{Element, Wide};
use crate::block::exact::Metric;
use crate::block::rows::Rows;
use crate::key::NO_ID;
use crate::vectors::code::{CODE_THREADS, Rotation};

/// Kinds of sums.
const SUMS: usize = 4;

/// Dynamic shared memory in bytes.
pub const fn edge_code_shared_bytes(dim: u32) -> u32 {
    (2 * dim + SUMS as u32 * CODE_THREADS) * 4
}

/// Arguments of the kernels `edge_code_*`.
#[repr(C)]
pub struct EdgeCoding<T> {
    /// In: the vectors of the nodes.
    pub base: Rows<T>,
    /// In: `degree` ids per node.
    pub ids: Global<u32>,
    /// In: the center of the rows.
    pub center: Global<f32>,
    /// In: the rotation.
    pub rotation: Rotation,
    /// Out: the codes.
    pub codes: GlobalMut<u32>,
    /// Edges of a node.
    pub degree: u32,
    /// A [`Metric`].
    pub metric: u32,
}

copied! {
    EdgeCoding<T>;
}

/// Adds the 128 sums of each kind as a tree. The whole block calls this; a barrier ends it.
#[inline(always)]
fn add(sums: Shared<f32>, mine: Sums) -> Sums {
    let thread = thread_idx_x();
    let place = |kind: usize, of: u32| kind * CODE_THREADS as usize + of as usize;
    let Sums { square, magnitude, signed, product } = mine;
    sums.set(place(0, thread), square);
    sums.set(place(1, thread), magnitude);
    sums.set(place(2, thread), signed);
    sums.set(place(3, thread), product);
    let mut half = CODE_THREADS / 2;
    while half > 0 {
        keep_rolled();
        sync_threads();
        if thread < half {
            for kind in 0..SUMS {
                let sum = sums.get(place(kind, thread)) + sums.get(place(kind, thread + half));
                sums.set(place(kind, thread), sum);
            }
        }
        half /= 2;
    }
    sync_threads();
    let of = |kind: usize| sums.get(place(kind, 0));
    Sums { square: of(0), magnitude: of(1), signed: of(2), product: of(3) }
}

#[inline(always)]
fn code<T: Element>(p: &EdgeCoding<T>) {
    let (thread, node, dim) = (thread_idx_x(), block_idx_x(), p.base.dim);
    let from: Shared<f32> = shared::dynamic(0);
    let difference: Shared<f32> = shared::dynamic(dim as usize * 4);
    let sums: Shared<f32> = shared::dynamic(2 * dim as usize * 4);
    let row = p.base.row(node);
    let mut i = thread;
    while i < dim {
        keep_rolled();
        from.set(i as usize, row.get(i as usize).wide().to_f32() - p.center.get(i as usize));
        i += CODE_THREADS;
    }
    sync_threads();
    p.rotation.apply(from, dim);

    let slots = slots(p.degree) as usize;
    let codes = p.codes.offset(node as usize * row_words(dim, p.degree) as usize);
    let mut edge = 0;
    while edge < p.degree {
        keep_rolled();
        let id = p.ids.get(node as usize * p.degree as usize + edge as usize);
        if id == NO_ID {
            break;
        }
        let to = p.base.row(id);
        let mut mine = Sums::default();
        let mut i = thread;
        while i < dim {
            keep_rolled();
            let (to, from) = (to.get(i as usize).wide().to_f32(), row.get(i as usize).wide().to_f32());
            difference.set(i as usize, to - from);
            mine.product += p.center.get(i as usize) * (to - from);
            i += CODE_THREADS;
        }
        sync_threads();
        p.rotation.apply(difference, dim);
        let mut i = thread;
        while i < words(dim) * 32 {
            keep_rolled();
            let is_component = i < dim;
            let u = if is_component { difference.get(i as usize) } else { 0.0 };
            let bits = warp::ballot(u > 0.0);
            if i % 32 == 0 {
                codes.set((i / 32) as usize * slots + edge as usize, bits);
            }
            if is_component {
                let from = from.get(i as usize);
                mine.square += u * u;
                mine.magnitude += if u > 0.0 { u } else { -u };
                mine.signed += if u > 0.0 { from } else { -from };
            }
            i += CODE_THREADS;
        }
        let all = add(sums, mine);
        if thread == 0 {
            let (factor, offset) = all.terms(Metric::from_u32(p.metric));
            let terms = words(dim) as usize * slots + edge as usize;
            codes.set(terms, factor.to_bits());
            codes.set(terms + slots, offset.to_bits());
        }
        edge += 1;
    }
}

macro_rules! edge_code_kernels {
    ($($name:ident $type:ty;)*) => {$(
        /// Codes the edges of nodes (see [`EdgeCoding`] and the module).
        ///
        /// Launch: a block of [`CODE_THREADS`] per node; [`edge_code_shared_bytes`].
        ///
        /// # Safety
        /// - The views match the fields of [`EdgeCoding`].
        #[kernel(
            unsafe,
            block = CODE_THREADS,
            shared = edge_code_shared_bytes(p.base.dim),
            blocks_per_multiprocessor = 12
        )]
        pub unsafe fn $name(p: EdgeCoding<$type>) {
            code(&p);
        }
    )*};
}

edge_code_kernels! {
    edge_code_f32 f32;
    edge_code_f16 f16;
    edge_code_u8 u8;
    edge_code_i8 i8;
}
