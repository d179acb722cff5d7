//! The nodes of a layer: far apart in the graph below, by random draws.
//!
//! Nodes are near if one or two mutual edges lead from one to the other. A round takes the nodes
//! with smaller draws than all nodes that are left near them, and leaves out what is near these.
//!
//! # Algorithm
//!
//! ```text
//! layer_take:  for each node left, one warp:
//!                  take it if no node left that a mutual edge leads to has a smaller draw, nor one
//!                  that a second mutual edge leads to
//! layer_leave: for each node just taken, one warp: leave out it and what is near it
//! ```
//!
//! A mutual edge is one with an edge back: the warp reads the row of the edge's end for it. Only
//! ends with smaller draws are looked at, and the first one that has an edge back decides, so most
//! nodes take a few rows.
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `edges` | `count` rows of `degree` ids, [`NO_ID`] after the last |
//! | `left`, `first`, `taken` | a bit per node, in words of 32 |
//! | `found` | one number |
//!
//! # Speed
//!
//! Bound by reads of rows: 4 · `degree` bytes each.

use cuda_std::atomic::Scope;
use cuda_std::keep_rolled;
use cuda_std::prelude::*;

use crate::key::NO_ID;
use crate::random::{Draws, Stage};

/// Threads per block, one warp per node.
pub const LAYER_THREADS: u32 = 256;

/// Nodes per block.
pub const LAYER_NODES: u32 = LAYER_THREADS / 32;

/// Arguments of the kernels of layers.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct LayerNodes {
    /// In: `degree` ids per node, [`NO_ID`] after the last.
    pub edges: Global<u32>,
    /// Nodes that may still be taken: read by `layer_take`, updated by `layer_leave`.
    pub left: GlobalMut<u32>,
    /// Nodes taken in this round: updated by `layer_take`, read by `layer_leave`.
    pub first: GlobalMut<u32>,
    /// Nodes taken in any round: updated by `layer_take`.
    pub taken: GlobalMut<u32>,
    /// The number of nodes taken in this round: updated by `layer_take`.
    pub found: GlobalMut<u32>,
    /// The seed of the draws.
    pub seed: u64,
    /// Number of nodes.
    pub count: u32,
    /// Ids per node.
    pub degree: u32,
}

/// The random bits of a node; ties are broken by its id.
#[inline(always)]
pub const fn draw(seed: u64, node: u32) -> u64 {
    // Iteration 0 draws the entry points, iteration 1 the layers of exports.
    Draws::new(seed, Stage::Entry, 2, node as u64).bits(0)
}

#[inline(always)]
fn has(set: GlobalMut<u32>, node: u32) -> bool {
    set.get(node as usize / 32) >> (node % 32) & 1 != 0
}

impl LayerNodes {
    /// The node of the warp.
    #[inline(always)]
    fn node() -> u32 {
        thread::block_idx_x() * LAYER_NODES + thread::warp_idx()
    }

    #[inline(always)]
    fn row(&self, node: u32) -> Global<u32> {
        self.edges.offset(node as usize * self.degree as usize)
    }

    /// Whether the row of `from` has an edge to `to`. The whole warp calls this.
    #[inline(always)]
    fn leads(&self, from: u32, to: u32) -> bool {
        let row = self.row(from);
        let (mut is_there, mut i) = (false, warp::lane_id());
        while i < self.degree {
            keep_rolled();
            is_there |= row.get(i as usize) == to;
            i += 32;
        }
        warp::any(is_there)
    }

    /// Calls `visit` with each end of a mutual edge of `of` that `may_count` holds for, until it
    /// returns false. Returns whether it never did. The whole warp calls this.
    #[inline(always)]
    fn all_mutual(
        &self,
        of: u32,
        may_count: impl Fn(u32) -> bool,
        mut visit: impl FnMut(u32) -> bool,
    ) -> bool {
        let row = self.row(of);
        let mut slot = 0;
        while slot < self.degree {
            keep_rolled();
            let at = slot + warp::lane_id();
            let end = if at < self.degree { row.get(at as usize) } else { NO_ID };
            let mut ends = warp::ballot(end != NO_ID && may_count(end));
            while ends != 0 {
                keep_rolled();
                let end = warp::broadcast(end, ends.trailing_zeros());
                ends &= ends - 1;
                if self.leads(end, of) && !visit(end) {
                    return false;
                }
            }
            slot += 32;
        }
        true
    }

    /// Whether `node` has a smaller draw than all nodes left that a mutual edge of `of` leads to.
    /// The whole warp calls this.
    #[inline(always)]
    fn is_before_ends(&self, node: u32, of: u32) -> bool {
        let own = draw(self.seed, node);
        let is_before = |end: u32| {
            let other = draw(self.seed, end);
            other < own || other == own && end < node
        };
        self.all_mutual(of, |end| end != node && has(self.left, end) && is_before(end), |_| false)
    }
}

/// Takes the nodes with smaller draws than all that are left near them (see the module).
///
/// Launch: a block of [`LAYER_THREADS`] per [`LAYER_NODES`] nodes.
///
/// # Safety
/// - The views match the fields of [`LayerNodes`].
#[kernel(unsafe, block = LAYER_THREADS)]
pub unsafe fn layer_take(p: LayerNodes) {
    let node = LayerNodes::node();
    if node >= p.count || !has(p.left, node) {
        return;
    }
    let is_first =
        p.is_before_ends(node, node) && p.all_mutual(node, |_| true, |end| p.is_before_ends(node, end));
    if is_first && warp::lane_id() == 0 {
        p.first.fetch_or(node as usize / 32, 1 << (node % 32), Scope::Device);
        p.taken.fetch_or(node as usize / 32, 1 << (node % 32), Scope::Device);
        p.found.fetch_add(0, 1, Scope::Device);
    }
}

/// Leaves out the nodes just taken, and what is near them (see the module).
///
/// Launch: a block of [`LAYER_THREADS`] per [`LAYER_NODES`] nodes.
///
/// # Safety
/// - The views match the fields of [`LayerNodes`].
#[kernel(unsafe, block = LAYER_THREADS)]
pub unsafe fn layer_leave(p: LayerNodes) {
    let node = LayerNodes::node();
    if node >= p.count || !has(p.first, node) {
        return;
    }
    let leave = |node: u32| {
        if warp::lane_id() == 0 {
            p.left.fetch_and(node as usize / 32, !(1 << (node % 32)), Scope::Device);
        }
    };
    leave(node);
    let _ = p.all_mutual(
        node,
        |_| true,
        |near| {
            leave(near);
            p.all_mutual(
                near,
                |_| true,
                |far| {
                    leave(far);
                    true
                },
            )
        },
    );
}
