//! Reverse edges: counted, scanned and sorted, so that their order is fixed.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rayon::prelude::*;

use crate::gpu::Plan;

/// For every node, the nodes that have an edge to it, sorted by a rank and then by id.
pub(crate) struct Reverse {
    offsets: Vec<usize>,
    /// `rank << 32 | source`, sorted within each node.
    edges: Vec<u64>,
}

impl Reverse {
    /// The buffers of [`plan`](Self::plan) that stay.
    pub(crate) const KEPT: [&str; 2] = ["reverse edges", "reverse offsets"];

    /// What turning round `edges` edges of `nodes` nodes takes of the host's memory.
    pub(crate) fn plan(nodes: usize, edges: usize) -> Plan {
        Plan::new()
            .with::<u64>("reverse edges", edges)
            .with::<usize>("reverse offsets", nodes + 1)
            .with::<u32>("reverse counts", nodes)
            .with::<&mut [u64]>("reverse rows", nodes)
    }

    /// Turns round the edges of `nodes` nodes. `edges_of(source, visit)` calls `visit(target, rank)`
    /// for each edge of `source`, the same ones each time it is called.
    pub(crate) fn new(nodes: usize, edges_of: impl Fn(u32, &mut dyn FnMut(u32, u32)) + Sync) -> Self {
        let counts: Vec<AtomicU32> = (0..nodes).map(|_| AtomicU32::new(0)).collect();
        let sources = || (0..nodes as u32).into_par_iter().with_min_len(256);
        sources().for_each(|source| {
            edges_of(source, &mut |target, _| {
                counts[target as usize].fetch_add(1, Ordering::Relaxed);
            });
        });
        let mut offsets = Vec::with_capacity(nodes + 1);
        let mut total = 0;
        offsets.push(0);
        for count in &counts {
            total += count.load(Ordering::Relaxed) as usize;
            offsets.push(total);
        }
        let slots: Vec<AtomicU64> = (0..total).map(|_| AtomicU64::new(0)).collect();
        sources().for_each(|source| {
            edges_of(source, &mut |target, rank| {
                let filled = counts[target as usize].fetch_sub(1, Ordering::Relaxed);
                let slot = offsets[target as usize + 1] - filled as usize;
                slots[slot].store((u64::from(rank) << 32) | u64::from(source), Ordering::Relaxed);
            });
        });
        let mut edges: Vec<u64> = slots.into_iter().map(AtomicU64::into_inner).collect();
        // The slots were filled in whatever order the threads came; sorting makes it one order.
        let mut rows = Vec::with_capacity(nodes);
        let mut rest = edges.as_mut_slice();
        for bounds in offsets.windows(2) {
            let (row, tail) = rest.split_at_mut(bounds[1] - bounds[0]);
            rows.push(row);
            rest = tail;
        }
        rows.into_par_iter().with_min_len(256).for_each(|row| row.sort_unstable());
        Self { offsets, edges }
    }

    /// The sources of the edges to `node`, smallest rank first.
    pub(crate) fn sources(&self, node: u32) -> impl ExactSizeIterator<Item = u32> + '_ {
        let node = node as usize;
        self.edges[self.offsets[node]..self.offsets[node + 1]].iter().map(|&edge| edge as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_come_by_rank_and_then_by_id() {
        let edges: [&[(u32, u32)]; 4] = [&[(1, 5), (3, 0)], &[(3, 2)], &[(1, 5), (3, 1)], &[(1, 1)]];
        let reverse = Reverse::new(4, |source, visit| {
            edges[source as usize].iter().for_each(|&(target, rank)| visit(target, rank));
        });
        let sources = |node| reverse.sources(node).collect::<Vec<_>>();
        assert!(sources(0).is_empty());
        assert_eq!(sources(1), [3, 0, 2]);
        assert!(sources(2).is_empty());
        assert_eq!(sources(3), [0, 2, 1]);
    }
}
