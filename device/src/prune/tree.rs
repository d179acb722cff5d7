//! The breadth-first tree of a graph.
//!
//! # Algorithm
//!
//! ```text
//! one launch per level; each warp looks at 32 nodes:
//!     for each node of the level: for each end of its edges, a lane each:
//!         place of the end = the lesser of its place and (next level, node)
//! ```
//!
//! So the parent of a node is the smallest node of the level above with an edge to it, in any order
//! of warps.
//!
//! # Buffers
//!
//! | buffer | shape |
//! | --- | --- |
//! | `edges` | `count` rows of `degree` ids, [`NO_ID`] after the last |
//! | `places` | per node: level in the upper word, parent in the lower; all ones if not reached |
//! | `deepest` | one number |
//!
//! # Speed
//!
//! Floor: each edge is read once, and updates one place in the L2 cache (32 million: under a
//! millisecond); each level reads all places.

use cuda_std::atomic::Scope;
use cuda_std::keep_rolled;
use cuda_std::prelude::*;

use crate::key::NO_ID;

/// Threads per block, a node each.
pub const TREE_THREADS: u32 = 256;

/// The place of a node that is not reached.
pub const UNREACHED: u64 = u64::MAX;

/// The place of a node of `level` with this parent.
#[inline(always)]
pub const fn place(level: u32, parent: u32) -> u64 {
    (level as u64) << 32 | parent as u64
}

/// Arguments of [`prune_tree()`].
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Tree {
    /// In: `degree` ids per node, [`NO_ID`] after the last.
    pub edges: Global<u32>,
    /// In and out: the place of each node.
    pub places: GlobalMut<u64>,
    /// In and out: the deepest level with a node.
    pub deepest: GlobalMut<u32>,
    /// Number of nodes.
    pub count: u32,
    /// Ids per node.
    pub degree: u32,
    /// The level whose edges are followed.
    pub level: u32,
    /// Unused.
    pub padding: u32,
}

/// Adds the next level to a tree (see [`Tree`]).
///
/// Launch: a block of [`TREE_THREADS`] per as many nodes.
///
/// # Safety
/// - The views match the fields of [`Tree`].
#[kernel(unsafe, block = TREE_THREADS)]
pub unsafe fn prune_tree(p: Tree) {
    let lane = warp::lane_id();
    let first = thread::index_1d() - lane;
    // Other warps update places meanwhile, but none of this level.
    let own = if first + lane < p.count {
        p.places.fetch_min((first + lane) as usize, UNREACHED, Scope::Device)
    } else {
        UNREACHED
    };
    let mut left = warp::ballot((own >> 32) as u32 == p.level);
    let mut has_added = false;
    while left != 0 {
        keep_rolled();
        let node = first + left.trailing_zeros();
        left &= left - 1;
        let row = p.edges.offset(node as usize * p.degree as usize);
        let mut i = lane;
        while i < p.degree {
            keep_rolled();
            let end = row.get(i as usize);
            if end != NO_ID {
                let before = p.places.fetch_min(end as usize, place(p.level + 1, node), Scope::Device);
                has_added |= (before >> 32) as u32 > p.level;
            }
            i += 32;
        }
    }
    if warp::any(has_added) && lane == 0 {
        p.deepest.fetch_max(0, p.level + 1, Scope::Device);
    }
}
