//! The breadth-first tree of a graph, which grows as nodes are attached to it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tagore_device::key::NO_ID;

use super::gpu::tree;
use super::rows::GraphRows;
use crate::Result;
use crate::loops::{at_least, filter, for_each, gather, map};
use crate::search::gpu::NodeSearch;

/// Levels with fewer nodes grow on one thread: waking others takes longer.
pub(super) const MIN_PARALLEL_NODES: usize = 256;

/// A breadth-first tree that grows from entry points.
pub(crate) struct Tree {
    /// The parent of each node; an entry point is its own parent.
    parents: Vec<AtomicU32>,
    /// Whether each node is reached. Nodes of the level being collected are not marked yet.
    reached: Vec<AtomicBool>,
}

impl Tree {
    /// The tree of all nodes reachable from `entries`, found on the device if that has the graph.
    pub(crate) fn new(rows: &GraphRows, entries: &[u32], on_device: Option<&NodeSearch>) -> Result<Self> {
        Ok(match on_device {
            Some(search) => Self::of_places(&tree(search.gpu(), search.edges(rows.len()), entries)?),
            None => Self::from_entries(rows, entries),
        })
    }

    /// The tree of all nodes reachable from `entries`.
    pub(crate) fn from_entries(rows: &GraphRows, entries: &[u32]) -> Self {
        let nodes = rows.len();
        let parents = map(0..nodes, |_| AtomicU32::new(NO_ID));
        let reached = map(0..nodes, |_| AtomicBool::new(false));
        let tree = Self { parents, reached };
        for &entry in entries {
            tree.parents[entry as usize].store(entry, Ordering::Relaxed);
        }
        tree.grow(rows, entries.to_vec());
        tree
    }

    /// The tree of these [places](tagore_device::prune::tree::place), one per node.
    fn of_places(places: &[u64]) -> Self {
        // The place of a node that is not reached has all bits set, so its parent is `NO_ID`.
        let parents = map(places, |&place| AtomicU32::new(place as u32));
        let reached = map(places, |&place| AtomicBool::new(place as u32 != NO_ID));
        Self { parents, reached }
    }

    pub(crate) fn parent(&self, node: u32) -> u32 {
        self.parents[node as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn is_reached(&self, node: u32) -> bool {
        self.reached[node as usize].load(Ordering::Relaxed)
    }

    /// The nodes that are not reached, ascending.
    pub(crate) fn unreached(&self) -> Vec<u32> {
        filter(0..self.reached.len() as u32, |&node| !self.is_reached(node))
    }

    /// Attaches `node` to `parent` and grows the tree from it.
    pub(crate) fn reach(&self, rows: &GraphRows, node: u32, parent: u32) {
        self.parents[node as usize].store(parent, Ordering::Relaxed);
        self.grow(rows, vec![node]);
    }

    /// Grows the tree level by level from nodes with parents. The parent of a node is the smallest
    /// node of the previous level with an edge to it, in any order of threads.
    fn grow(&self, rows: &GraphRows, mut level: Vec<u32>) {
        let look = |&node: &u32, next: &mut Vec<u32>| {
            for &neighbor in rows.row(node) {
                if !self.is_reached(neighbor)
                    && self.parents[neighbor as usize].fetch_min(node, Ordering::Relaxed) == NO_ID
                {
                    next.push(neighbor);
                }
            }
        };
        let mark = |&node: &u32| self.reached[node as usize].store(true, Ordering::Relaxed);
        while !level.is_empty() {
            if level.len() < MIN_PARALLEL_NODES {
                level.iter().for_each(mark);
                let mut next = Vec::new();
                level.iter().for_each(|node| look(node, &mut next));
                level = next;
            } else {
                let nodes = || at_least(MIN_PARALLEL_NODES / 4, &level[..]);
                for_each(nodes(), mark);
                level = gather(nodes(), look);
            }
        }
    }
}
