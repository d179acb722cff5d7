//! PruneFilter by a rule, as a wavefront (paper section 5.2): accept one candidate, test all that are left against it.
//!
//! A block has one node. The candidates are dealt to its warps, and each warp keeps those of its own that are
//! left in their order, in shared memory: it closes gaps without the others, which learn from it only who its next
//! one is. A lane decides on a candidate, four lanes compute its distance. Each candidate meets the accepted ones in
//! the serial order, so the result is the serial one.

use cuda_std::prelude::*;
use cuda_std::thread::{block_dim_x, block_idx_x, sync_threads, thread_idx_x};
use cuda_std::{keep_rolled, shared};

use super::rule::{Form, Rule, survives};
use crate::block::copied;
use crate::block::element::Element;
use crate::block::exact::point_bytes;
use crate::block::rows::Rows;
use crate::descent::key::{self, Key, NONE};

/// The most threads of a block, which has one node; any number of warps up to it.
pub const FILTER_THREADS: u32 = 256;

/// The most warps of a block.
const WARPS: u32 = FILTER_THREADS / 32;

/// The filtering of the candidates of nodes.
#[repr(C)]
pub struct PruneFilter<T> {
    /// In: the base.
    pub rows: Rows<T>,
    /// In: the row of each node.
    pub nodes: Global<u32>,
    /// In: `stride` keys of each node: ascending (order distance, row), then [`NONE`].
    pub candidates: Global<Key>,
    /// Out: `most` keys of each row among the nodes, in the order in which they were accepted, then [`NONE`].
    pub forward: GlobalMut<Key>,
    /// Keys from the candidates of one node to those of the next, at least 1.
    pub stride: u32,
    /// The most candidates that are accepted, at least 1.
    pub most: u32,
    /// The threshold, as [`Rule::prepare`] gives it.
    pub threshold: f32,
    /// Whether nodes of at most `most` candidates keep them all.
    pub pass_short: u32,
}

copied! {
    PruneFilter<T>;
}

/// Bytes of dynamic shared memory of the kernels of a rule of this form.
pub const fn filter_shared_bytes(stride: u32, dim: u32, form: Form) -> u32 {
    // The accepted row, each warp's next, candidates, and what they stand at.
    let lists = match form {
        Form::Keep => 1,
        Form::Score => 2,
    };
    point_bytes(dim) + WARPS * 8 + lists * stride * 8
}

impl<T: Element> PruneFilter<T> {
    /// The candidates of the block's node, where its neighbours go, and its lift.
    #[inline(always)]
    pub(super) fn node(&self) -> (Global<Key>, GlobalMut<Key>, f32) {
        let row = self.nodes.get(block_idx_x() as usize);
        let candidates = self.candidates.offset(block_idx_x() as usize * self.stride as usize);
        (candidates, self.forward.offset(row as usize * self.most as usize), self.rows.lift(row))
    }

    /// Says that a node has no more than the first `accepted` neighbours; the whole block calls this.
    #[inline(always)]
    pub(super) fn end(&self, out: GlobalMut<Key>, accepted: u32) {
        let mut i = accepted + thread_idx_x();
        while i < self.most {
            out.set(i as usize, NONE);
            i += block_dim_x();
        }
    }
}

/// The body of the kernels that [`rule_kernels!`](crate::rule_kernels) makes.
#[inline(always)]
pub fn wavefront<T: Element, R: Rule>(p: &PruneFilter<T>, rule: &R) {
    let (thread, threads, lane) = (thread_idx_x(), block_dim_x(), warp::lane_id());
    let (warp, warps) = (thread / 32, threads / 32);
    let (candidates, out, lift) = p.node();
    if p.pass_short != 0 && (p.stride <= p.most || candidates.get(p.most as usize) == NONE) {
        let mut i = thread;
        while i < p.most {
            out.set(i as usize, if i < p.stride { candidates.get(i as usize) } else { NONE });
            i += threads;
        }
        return;
    }
    let values: Shared<T::Point> = shared::dynamic(0);
    let nexts: Shared<Key> = shared::dynamic(point_bytes(p.rows.dim) as usize);
    let keys = nexts.offset(WARPS as usize);
    // Scores, with the places of the candidates: the smallest is the next.
    let standings = keys.offset(p.stride as usize);
    // Where candidate `i` of this warp lies.
    let place = |i: u32| (i * warps + warp) as usize;

    let (mut left, mut first) = (0, 0);
    while place(first) < p.stride as usize {
        let at = place(first + lane);
        let key = if at < p.stride as usize { candidates.get(at) } else { NONE };
        if key != NONE {
            keys.set(at, key);
            if rule.form() == Form::Score {
                standings.set(at, key::pack(0.0, at as u32));
            }
        }
        left += warp::ballot(key != NONE).count_ones();
        first += 32;
    }
    warp::sync();
    let first_of = |list: Shared<Key>, left: u32| if left > 0 { list.get(place(0)) } else { NONE };
    let mut next = match rule.form() {
        Form::Keep => first_of(keys, left),
        Form::Score => first_of(standings, left),
    };
    let mut accepted = 0;
    loop {
        if lane == 0 {
            nexts.set(warp as usize, next);
        }
        sync_threads();
        let mut i = 0;
        while i < warps {
            keep_rolled();
            let other = nexts.get(i as usize);
            next = if other < next { other } else { next };
            i += 1;
        }
        if next == NONE {
            break;
        }
        let neighbour = match rule.form() {
            Form::Keep => next,
            Form::Score => candidates.get(key::id(next) as usize),
        };
        if thread == 0 {
            out.set(accepted as usize, neighbour);
        }
        accepted += 1;
        if accepted == p.most {
            break;
        }
        p.rows.load(values, key::id(neighbour), (thread, threads));
        sync_threads();

        let point = p.rows.point(values, key::id(neighbour));
        let d_pa = p.rows.rule_distance(lift, neighbour);
        let (mut stay, mut first) = (0, 0);
        next = NONE;
        while first < left {
            keep_rolled();
            let i = first + lane;
            let candidate = if i < left { keys.get(place(i)) } else { NONE };
            let is_other = candidate != NONE && candidate != neighbour;
            let count = if left - first < 32 { left - first } else { 32 };
            let d_ac = p.rows.distances(&point, key::id(candidate), count);
            let d_pc = if candidate == NONE { 0.0 } else { p.rows.rule_distance(lift, candidate) };
            let mut standing = NONE;
            let stays = is_other
                && match rule.form() {
                    Form::Keep => survives(rule, d_pc, d_pa, d_ac, p.threshold),
                    Form::Score => {
                        let before = standings.get(place(i));
                        let score = key::distance(before) + rule.score(d_pc, d_pa, d_ac, p.threshold);
                        standing = key::pack(score, key::id(before));
                        true
                    }
                };
            next = if standing < next { standing } else { next };
            // All have read before one writes.
            let staying = warp::ballot(stays);
            warp::sync();
            if stays {
                let to = place(stay + (staying & ((1 << lane) - 1)).count_ones());
                keys.set(to, candidate);
                if rule.form() == Form::Score {
                    standings.set(to, standing);
                }
            }
            stay += staying.count_ones();
            first += 32;
        }
        left = stay;
        warp::sync();
        match rule.form() {
            Form::Keep => next = first_of(keys, left),
            Form::Score => {
                let mut lanes = 1;
                while lanes < 32 {
                    let other = warp::shuffle_xor(next, lanes);
                    next = if other < next { other } else { next };
                    lanes *= 2;
                }
            }
        }
    }
    p.end(out, accepted);
}
