//! Reverse edges: counted, scanned and sorted, so that their order is fixed.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use tagore_device::key::Key;

use crate::Result;
use crate::gpu::MemoryPlan;
use crate::loops::{at_least, for_each};
use crate::memory::{collected, with_capacity};

/// In-degrees of all nodes whose edges are not reversed yet.
pub(crate) struct Incoming {
    counts: Vec<AtomicU32>,
}

/// Sources of the edges to each node of a range, sorted by rank, then by id.
pub(crate) struct Reverse {
    /// The first node of the range.
    first: usize,
    offsets: Vec<usize>,
    /// `rank << 32 | source`, sorted within each node.
    edges: Vec<u64>,
}

/// Calls `edges_of(source, visit)` for all sources, in parallel.
fn for_each_edge(
    nodes: usize,
    edges_of: impl Fn(u32, &mut dyn FnMut(u32, u32)) + Sync,
    visit: impl Fn(u32, u32, u32) + Sync,
) {
    let visit_all = |source| edges_of(source, &mut |target, rank| visit(source, target, rank));
    for_each(at_least(256, 0..nodes as u32), visit_all);
}

impl Incoming {
    /// Counts the edges of `nodes` nodes. `edges_of(source, visit)` calls `visit(target, rank)` for
    /// each edge of `source`, and must visit the same edges at every call.
    pub(crate) fn count(
        nodes: usize,
        edges_of: impl Fn(u32, &mut dyn FnMut(u32, u32)) + Sync,
    ) -> Result<Self> {
        let counts: Vec<AtomicU32> = collected((0..nodes).map(|_| AtomicU32::new(0)))?;
        for_each_edge(nodes, edges_of, |_, target, _| {
            counts[target as usize].fetch_add(1, Ordering::Relaxed);
        });
        Ok(Self { counts })
    }

    fn edges_to(&self, node: usize) -> usize {
        self.counts[node].load(Ordering::Relaxed) as usize
    }

    /// Splits the nodes into ranges of at most `most` incoming edges; a range of one node may have
    /// more.
    pub(crate) fn pieces(&self, most: usize) -> Vec<Range<usize>> {
        let (mut pieces, mut first, mut edges) = (Vec::new(), 0, 0);
        for node in 0..self.counts.len() {
            edges += self.edges_to(node);
            if edges > most && first < node {
                pieces.push(first..node);
                (first, edges) = (node, self.edges_to(node));
            }
        }
        pieces.push(first..self.counts.len());
        pieces
    }

    /// Reverses the edges to the nodes of a range. Each range is reversed once, with the `edges_of`
    /// of [`count`](Self::count).
    pub(crate) fn reverse(
        &self,
        range: Range<usize>,
        edges_of: impl Fn(u32, &mut dyn FnMut(u32, u32)) + Sync,
    ) -> Result<Reverse> {
        let mut offsets = with_capacity(range.len() + 1)?;
        let mut total = 0;
        offsets.push(0);
        for node in range.clone() {
            total += self.edges_to(node);
            offsets.push(total);
        }
        let slots: Vec<AtomicU64> = collected((0..total).map(|_| AtomicU64::new(0)))?;
        for_each_edge(self.counts.len(), edges_of, |source, target, rank| {
            let target = target as usize;
            if range.contains(&target) {
                let left = self.counts[target].fetch_sub(1, Ordering::Relaxed);
                let slot = offsets[target - range.start + 1] - left as usize;
                slots[slot].store((u64::from(rank) << 32) | u64::from(source), Ordering::Relaxed);
            }
        });
        let mut edges: Vec<u64> = slots.into_iter().map(AtomicU64::into_inner).collect();
        // Threads fill the slots in any order; sorting fixes the order.
        let mut rows = with_capacity(range.len())?;
        let mut rest = edges.as_mut_slice();
        for bounds in offsets.windows(2) {
            let (row, tail) = rest.split_at_mut(bounds[1] - bounds[0]);
            rows.push(row);
            rest = tail;
        }
        for_each(at_least(256, &mut rows[..]), |row| row.sort_unstable());
        Ok(Reverse { first: range.start, offsets, edges })
    }
}

impl Reverse {
    /// Host memory of reversing `edges` edges of `nodes` nodes.
    pub(crate) fn plan(nodes: usize, edges: usize) -> MemoryPlan {
        MemoryPlan::new()
            .with::<u64>("reverse edges", edges)
            .with::<usize>("reverse offsets", nodes + 1)
            .with::<u32>("reverse counts", nodes)
            .with::<&mut [u64]>("reverse rows", nodes)
    }

    /// Reverses all edges of `nodes` nodes; `edges_of` as in [`Incoming::count`].
    pub(crate) fn new(nodes: usize, edges_of: impl Fn(u32, &mut dyn FnMut(u32, u32)) + Sync) -> Result<Self> {
        Incoming::count(nodes, &edges_of)?.reverse(0..nodes, &edges_of)
    }

    /// The sources of the edges to `node`, smallest rank first.
    pub(crate) fn sources(&self, node: u32) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.keys(node).iter().map(|&edge| edge as u32)
    }

    /// The edges to `node`: the sources below their ranks, smallest first. Keys, if edges are
    /// ranked by distance.
    pub(crate) fn keys(&self, node: u32) -> &[Key] {
        let node = node as usize - self.first;
        &self.edges[self.offsets[node]..self.offsets[node + 1]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_sorted_by_rank_then_id() {
        let edges: [&[(u32, u32)]; 4] = [&[(1, 5), (3, 0)], &[(3, 2)], &[(1, 5), (3, 1)], &[(1, 1)]];
        let edges_of = |source: u32, visit: &mut dyn FnMut(u32, u32)| {
            edges[source as usize].iter().for_each(|&(target, rank)| visit(target, rank));
        };
        let reverse = Reverse::new(4, edges_of).unwrap();
        let sources = |node| reverse.sources(node).collect::<Vec<_>>();
        assert!(sources(0).is_empty());
        assert_eq!(sources(1), [3, 0, 2]);
        assert!(sources(2).is_empty());
        assert_eq!(sources(3), [0, 2, 1]);

        // Pieces give the same sources. No piece exceeds the limit, unless it is one node.
        for (most, expected) in [(0, vec![0..1, 1..2, 2..3, 3..4]), (5, vec![0..3, 3..4])] {
            let incoming = Incoming::count(4, edges_of).unwrap();
            assert_eq!(incoming.pieces(most), expected);
            for piece in expected {
                let part = incoming.reverse(piece.clone(), edges_of).unwrap();
                assert!(
                    piece.map(|node| node as u32).all(|node| part.sources(node).eq(reverse.sources(node)))
                );
            }
        }
    }
}
