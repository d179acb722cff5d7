//! Filter by a pruning rule, candidate by candidate: the baseline of the wavefront.
//!
//! # Algorithm
//!
//! ```text
//! for each node, one warp:
//!     for each candidate c, nearest first, until the row is full:
//!         load c's vector to shared memory
//!         for each 8 accepted neighbours a:
//!             drop c unless rule.keep(d_pc, d_pa, distance(a, c)) holds for all
//!         append c if it was not dropped
//!     append the nearest dropped candidates, as the wavefront does
//! ```
//!
//! # Buffers
//!
//! As in [`super::filter`]. Shared memory holds one vector and `most` keys.
//!
//! # Optimisations
//!
//! None beyond eight distances at a time: published code works this way.
//!
//! # Speed
//!
//! As in [`super::filter`], but candidates wait for one another. On sift it takes 1.7 times as long
//! as the wavefront for NSG (docs/pruning.md).

use cuda_std::prelude::*;
use cuda_std::shared;

use super::filter::PruneFilter;
use super::rule::{Distance, Rule, survives};
use crate::block::element::{Element, GROUP};
use crate::block::exact::query_bytes;
use crate::block::threads::Threads;
use crate::key::{self, Key, NONE};

/// Dynamic shared memory in bytes: the candidate's vector and the accepted keys.
pub const fn serial_shared_bytes(most: u32, dim: u32) -> u32 {
    query_bytes(dim) + most * 8
}

/// Tests each candidate in turn, by a rule of the form [`Keep`](super::rule::Form::Keep).
#[inline(always)]
fn serial<T: Element, R: Rule>(p: &PruneFilter<T>, rule: &R) {
    let lane = warp::lane_id();
    let node = p.node();
    let values: Shared<T::Query> = shared::dynamic(0);
    let neighbours: Shared<Key> = shared::dynamic(query_bytes(p.rows.dim) as usize);
    let keep_all = p.keeps_all(node);
    let (mut accepted, mut place) = (0, 0);
    while place < p.stride && accepted < p.most {
        let candidate = node.candidates.get(place as usize);
        if candidate == NONE {
            break;
        }
        let mut stays = true;
        if !keep_all {
            p.rows.load(values, key::id(candidate), Threads::new(lane, 32));
            warp::sync();
            let point = p.rows.point(values, key::id(candidate));
            let d_pc = p.rows.rule_distance(node.lift, candidate);
            let mut first = 0;
            while first < accepted && stays {
                let i = first + lane / GROUP;
                let neighbour = if i < accepted { neighbours.get(i as usize) } else { NONE };
                let is_one = neighbour != NONE;
                let d_ac = p.rows.distance(&point, if is_one { Some(key::id(neighbour)) } else { None });
                let d_pa = if is_one { p.rows.rule_distance(node.lift, neighbour) } else { 0.0 };
                stays = !warp::any(is_one && !survives(rule, d_pc, d_pa, d_ac, p.threshold));
                first += 32 / GROUP;
            }
            warp::sync();
        }
        if stays {
            if lane == 0 {
                neighbours.set(accepted as usize, candidate);
                node.out.set(accepted as usize, candidate);
            }
            accepted += 1;
        }
        place += 1;
    }
    let written = p.fill(node, accepted);
    p.end(node, written);
}

macro_rules! serial_kernels {
    ($($name:ident $element:ty;)*) => {$(
        /// Filters candidates by [`Distance`] one after another (see [`PruneFilter`] and the
        /// module).
        ///
        /// Launch: a block of one warp per node; [`serial_shared_bytes`].
        ///
        /// # Safety
        /// - The views match the fields of [`PruneFilter`].
        #[kernel(unsafe, block = 32, shared = serial_shared_bytes(p.most, p.rows.dim))]
        pub unsafe fn $name(p: PruneFilter<$element>, rule: Distance) {
            serial(&p, &rule);
        }
    )*};
}

serial_kernels! {
    prune_serial_f32 f32;
    prune_serial_f16 f16;
    prune_serial_u8 u8;
    prune_serial_i8 i8;
}
