//! Collect: the candidates of one node (paper section 5.1).

use tagore_device::key::{self, Key};

use super::strategy::Collect;
use crate::descent::KnnGraph;
use crate::index::{Graph, Start};
use crate::search::beam::{BeamLimits, BeamSearch, BeamTask};
use crate::search::visited::Visited;
use crate::vectors::space::Space;

/// 2-hop collection reads the first `HOP` entries of the lists of the `HOP` nearest neighbours.
pub(crate) const HOP: usize = 32;

/// Beam and most expansions of path collection.
pub(crate) const PATH: BeamLimits = BeamLimits { expansions: 10, ..BeamLimits::all_of(32) };

impl Graph for KnnGraph {
    fn neighbors(&self, node: u32) -> &[u32] {
        Self::neighbors(self, node as usize)
    }
}

/// Collects candidates on the CPU, one node at a time.
pub(super) struct Collector<'a> {
    space: &'a Space<'a>,
    graph: &'a KnnGraph,
    entries: &'a [u32],
    mode: Collect,
    limit: usize,
    search: BeamSearch,
    visited: Visited,
    ids: Vec<u32>,
    distances: Vec<f32>,
}

impl<'a> Collector<'a> {
    pub(super) fn new(
        space: &'a Space<'a>,
        graph: &'a KnnGraph,
        entries: &'a [u32],
        mode: Collect,
        limit: usize,
    ) -> Self {
        // No path leads to a nearer node than those of such a list.
        let mode = if graph.has_nearest(limit) { Collect::OneHop } else { mode };
        let nodes = if mode == Collect::Path { space.len() } else { 0 };
        Self {
            space,
            graph,
            entries,
            mode,
            limit,
            search: BeamSearch::new(nodes),
            visited: Visited::new(space.len()),
            ids: Vec::new(),
            distances: Vec::new(),
        }
    }

    /// Writes to `candidates` the keys (order distance, id) of the nearest candidates of `node`,
    /// nearest first, distinct and without `node` itself.
    pub(super) fn collect(&mut self, node: u32, candidates: &mut Vec<Key>) {
        let Self { space, graph, visited, ids, .. } = self;
        if self.mode == Collect::OneHop && graph.is_settled() {
            // Its distances are order distances, and finer than those computed from the codes.
            candidates.clear();
            candidates.extend(graph.keys_of(node as usize).take(self.limit));
            return;
        }
        let own = graph.neighbors(node as usize);
        visited.clear();
        visited.insert(node);
        ids.clear();
        ids.extend(own.iter().copied().filter(|&id| visited.insert(id)));
        match self.mode {
            Collect::OneHop => {}
            Collect::TwoHop => {
                for &via in own.iter().take(HOP) {
                    let list = graph.neighbors(via as usize).iter().take(HOP);
                    ids.extend(list.copied().filter(|&id| visited.insert(id)));
                }
            }
            Collect::Path => {
                let start = Start::at(self.entries);
                let task = BeamTask { query: space.query(node), start, limits: PATH, among: None };
                self.search.run(space, *graph, task, |key| {
                    let id = key as u32;
                    if visited.insert(id) {
                        ids.push(id);
                    }
                })
            }
        }
        space.order_distances(node, ids, &mut self.distances);
        candidates.clear();
        candidates.extend(ids.iter().zip(&self.distances).map(|(&id, &distance)| key::pack(distance, id)));
        if candidates.len() > self.limit {
            candidates.select_nth_unstable(self.limit - 1);
            candidates.truncate(self.limit);
        }
        candidates.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::descent::Descent;
    use crate::vectors::{Metric, Synth, Vectors};
    use crate::{Device, Progress};
    use tagore_device::random::{Draws, Stage};

    #[test]
    fn exact_lists_hold_all_candidates() {
        for (n, k, limit) in [(600, 40, 40), (600, 40, 13), (30, 29, 200)] {
            // Few values: ties abound.
            let draws = Draws::new(2, Stage::Test, 5, n as u64);
            let base =
                Vectors::from_u8((0..n * 4).map(|i| draws.below(i as u64, 5) as u8).collect(), 4).unwrap();
            for metric in [Metric::L2, Metric::Cosine, Metric::InnerProduct] {
                let space = Space::new(&base, metric, &Progress::silent()).unwrap();
                let exact = Descent::new().metric(metric).knn(k).device(Device::Cpu).build(&base).unwrap();
                assert!(exact.has_nearest(limit) && !(n > 40 && exact.has_nearest(k + 1)));
                let stats = exact.stats().clone();
                let keys: Vec<Key> = (0..n)
                    .flat_map(|node| exact.neighbors(node).iter().zip(exact.distances(node)))
                    .map(|(&id, &distance)| key::pack(distance, id))
                    .collect();
                let given = KnnGraph::from_keys(k, metric, n, &keys, stats).unwrap();
                for mode in [Collect::OneHop, Collect::TwoHop, Collect::Path] {
                    let collected = |graph: &KnnGraph| -> Vec<Vec<Key>> {
                        let mut collector = Collector::new(&space, graph, &[0], mode, limit);
                        let mut candidates = Vec::new();
                        let collect = |node| {
                            collector.collect(node, &mut candidates);
                            candidates.clone()
                        };
                        (0..n as u32).map(collect).collect()
                    };
                    assert!(!given.has_nearest(1));
                    assert_eq!(collected(&exact), collected(&given), "{mode:?}, {metric}, {k}, {limit}");
                }
            }
        }
    }

    #[test]
    fn each_mode_collects_its_candidates() {
        let base = Synth::new(600, 11, 5).unwrap().base();
        let space = Space::new(&base, Metric::L2, &Progress::silent()).unwrap();
        let graph = Descent::new().knn(40).start(crate::Start::Random).build(&base).unwrap();
        let entries = [space.medoid(&Progress::silent()).unwrap()];
        for mode in [Collect::OneHop, Collect::TwoHop, Collect::Path] {
            for limit in [5, 10_000] {
                let mut collector = Collector::new(&space, &graph, &entries, mode, limit);
                for node in [0u32, 17, 599] {
                    let mut candidates = Vec::new();
                    collector.collect(node, &mut candidates);
                    assert!(candidates.windows(2).all(|pair| pair[0] < pair[1]), "sorted, no duplicates");
                    assert!(candidates.len() <= limit && candidates.iter().all(|&key| key as u32 != node));
                    let found: BTreeSet<u32> = candidates.iter().map(|&key| key as u32).collect();
                    let own = graph.neighbors(node as usize);
                    assert!(
                        own[..5.min(limit)].iter().all(|id| found.contains(id)),
                        "{mode:?} omits the node's own list"
                    );
                    if limit < 10_000 {
                        continue;
                    }
                    let mut expected: BTreeSet<u32> = own.iter().copied().collect();
                    if mode == Collect::TwoHop {
                        for &via in &own[..HOP] {
                            expected.extend(&graph.neighbors(via as usize)[..HOP]);
                        }
                        expected.remove(&node);
                    }
                    if mode == Collect::Path {
                        assert!(found.is_superset(&expected) && found.len() > expected.len());
                    } else {
                        assert_eq!(found, expected, "{mode:?}");
                    }
                }
            }
        }
    }
}
