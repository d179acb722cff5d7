//! The order in which clusters are built (the paper's Algorithm 4).

use std::cmp::Reverse;
use std::collections::BTreeSet;

use super::ClusterGraph;
use crate::{Error, Result};

/// A dispatch step: evicts a cluster from a full cache, and loads another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// The cluster to build.
    pub load: u32,
    /// The cluster that leaves the cache first.
    pub evict: Option<u32>,
}

impl ClusterGraph {
    /// The steps that build each cluster once, with a cache of `cache` clusters, the current one
    /// included: the next cluster shares most nodes with the cache, and the evicted one is chosen
    /// together with it (the paper's Algorithm 4). Cluster 0 is first.
    ///
    /// The same graph gives the same order. Ties go to the smaller number. Algorithm 4 leaves open
    /// which of several equally good clusters is evicted. Here it is the cluster that shares fewest
    /// nodes with the remaining clusters.
    ///
    /// # Errors
    /// If the cache is 0.
    pub fn dispatch(&self, cache: usize) -> Result<Vec<Dispatch>> {
        if cache == 0 {
            return Err(Error::argument("cache", cache, "at least 1"));
        }
        Ok(Greedy::new(self).run(cache))
    }
}

/// The waiting cluster of the greatest `value`; ties go to the smaller number.
fn best<V: Ord>(waiting: &BTreeSet<u32>, value: impl Fn(u32) -> V) -> Option<u32> {
    waiting.iter().copied().max_by_key(|&cluster| (value(cluster), Reverse(cluster)))
}

/// Nodes that a cluster shares with the cache.
#[derive(Clone, Default)]
struct Share {
    /// Sum over the cache.
    nodes: u64,
    /// Shared nodes and cluster, fewest nodes first; clusters without shared nodes are absent.
    with: BTreeSet<(u64, u32)>,
}

/// The paper's Algorithm 4.
///
/// Shares with the cache are kept up to date. A step looks once at each waiting cluster. A change
/// of the cache looks once at each neighbour of the loaded or evicted cluster.
struct Greedy<'a> {
    graph: &'a ClusterGraph,
    waiting: BTreeSet<u32>,
    resident: BTreeSet<u32>,
    shares: Vec<Share>,
    /// Nodes that each cluster shares with the waiting clusters.
    pending: Vec<u64>,
}

impl<'a> Greedy<'a> {
    fn new(graph: &'a ClusterGraph) -> Self {
        let clusters = 0..graph.clusters() as u32;
        let nodes = |cluster| graph.neighbors(cluster).iter().map(|&(_, nodes)| nodes).sum();
        Self {
            graph,
            waiting: clusters.clone().collect(),
            resident: BTreeSet::new(),
            shares: vec![Share::default(); graph.clusters()],
            pending: clusters.map(nodes).collect(),
        }
    }

    fn run(mut self, cache: usize) -> Vec<Dispatch> {
        let mut dispatches = Vec::with_capacity(self.graph.clusters());
        while let Some(load) = best(&self.waiting, |cluster| self.gain(cluster, cache)) {
            let evict = if self.resident.len() == cache { self.victim(load) } else { None };
            if let Some(evict) = evict {
                self.evict(evict);
            }
            self.load(load);
            dispatches.push(Dispatch { load, evict });
        }
        dispatches
    }

    /// Nodes that `cluster` would share with a cache of `cache` clusters after it is loaded. A full
    /// cache evicts the cluster that shares fewest nodes with it.
    fn gain(&self, cluster: u32, cache: usize) -> u64 {
        let Share { nodes, with } = &self.shares[cluster as usize];
        match with.first() {
            // All clusters of a full cache share nodes with it.
            Some(&(least, _)) if with.len() == cache => nodes - least,
            _ => *nodes,
        }
    }

    /// The cluster to evict for `load`: it shares fewest nodes with `load`.
    fn victim(&self, load: u32) -> Option<u32> {
        let loss = |cluster| (self.graph.shared(load, cluster), self.pending[cluster as usize], cluster);
        self.resident.iter().copied().min_by_key(|&cluster| loss(cluster))
    }

    fn load(&mut self, cluster: u32) {
        self.waiting.remove(&cluster);
        self.resident.insert(cluster);
        for &(other, nodes) in self.graph.neighbors(cluster) {
            let share = &mut self.shares[other as usize];
            share.nodes += nodes;
            share.with.insert((nodes, cluster));
            self.pending[other as usize] -= nodes;
        }
    }

    fn evict(&mut self, cluster: u32) {
        self.resident.remove(&cluster);
        for &(other, nodes) in self.graph.neighbors(cluster) {
            let share = &mut self.shares[other as usize];
            share.nodes -= nodes;
            share.with.remove(&(nodes, cluster));
        }
    }
}

#[cfg(test)]
mod tests {
    use tagore_device::random::{Draws, Stage};

    use super::*;

    /// A graph of `clusters` clusters with small weights. One in `sparse` pairs is connected.
    fn random_graph(clusters: u32, sparse: u64, seed: u64) -> ClusterGraph {
        let edge = |a: u32, b: u32| {
            let draws = Draws::new(seed, Stage::Test, a, b.into());
            (draws.below(0, sparse) == 0).then(|| (a, b, 1 + draws.below(1, 4)))
        };
        ClusterGraph::new(
            clusters as usize,
            (0..clusters).flat_map(|a| (0..a).filter_map(move |b| edge(a, b))),
        )
    }

    /// Algorithm 4 as written: tries all pairs of a loaded and an evicted cluster.
    fn algorithm_4(graph: &ClusterGraph, cache: usize) -> Vec<Dispatch> {
        let mut waiting: Vec<u32> = (1..graph.clusters() as u32).collect();
        let mut buffer = vec![0];
        let mut dispatches = vec![Dispatch { load: 0, evict: None }];
        while !waiting.is_empty() {
            let evictions: Vec<Option<u32>> =
                if buffer.len() < cache { vec![None] } else { buffer.iter().copied().map(Some).collect() };
            let pairs =
                waiting.iter().flat_map(|&load| evictions.iter().map(move |&evict| Dispatch { load, evict }));
            let sum = |pair: &Dispatch| -> u64 {
                let stay = buffer.iter().filter(|&&cluster| Some(cluster) != pair.evict);
                stay.map(|&cluster| graph.shared(pair.load, cluster)).sum()
            };
            let pending = |cluster| waiting.iter().map(|&other| graph.shared(cluster, other)).sum::<u64>();
            let rank = |pair: &Dispatch| (Reverse(sum(pair)), pair.load, pair.evict.map(pending), pair.evict);
            let best = pairs.min_by_key(rank).unwrap();
            buffer.retain(|&cluster| Some(cluster) != best.evict);
            buffer.push(best.load);
            waiting.retain(|&cluster| cluster != best.load);
            dispatches.push(best);
        }
        dispatches
    }

    #[test]
    fn the_order_is_algorithm_4() {
        // Dense graphs with many ties, and sparse graphs with isolated clusters.
        for (clusters, sparse) in [(1, 1), (2, 1), (12, 1), (13, 2), (20, 3), (25, 12)] {
            for seed in 0..4 {
                let graph = random_graph(clusters, sparse, seed);
                for cache in [1, 2, 3, 7, clusters as usize, 40] {
                    let expected = algorithm_4(&graph, cache);
                    let found = graph.dispatch(cache).unwrap();
                    assert_eq!(found, expected, "{clusters} clusters, cache {cache}");
                }
            }
        }
    }

    #[test]
    fn the_papers_example_has_its_order() {
        // Six clusters, a cache of three. C0, C2 and C3 come first, then C5 replaces C0. The
        // weights are not the paper's.
        let edges = [
            (0, 2, 5),
            (0, 3, 2),
            (2, 3, 4),
            (3, 5, 4),
            (2, 5, 3),
            (5, 4, 4),
            (3, 4, 2),
            (4, 1, 3),
            (0, 1, 1),
        ];
        let found = ClusterGraph::new(6, edges).dispatch(3).unwrap();
        let expected = [(0, None), (2, None), (3, None), (5, Some(0)), (4, Some(2)), (1, Some(3))];
        assert_eq!(found, expected.map(|(load, evict)| Dispatch { load, evict }));
    }

    #[test]
    fn every_cluster_is_loaded_once_and_evicted_at_most_once() {
        let graph = random_graph(30, 3, 1);
        for cache in [1, 4, 29, 30, 31] {
            let dispatches = graph.dispatch(cache).unwrap();
            let mut resident = BTreeSet::new();
            for (step, &Dispatch { load, evict }) in dispatches.iter().enumerate() {
                assert_eq!(evict.is_some(), step >= cache, "eviction from a cache with room");
                assert!(
                    evict.is_none_or(|evict| resident.remove(&evict)),
                    "{evict:?} evicted but not in the cache"
                );
                assert!(resident.insert(load) && resident.len() <= cache);
            }
            let mut loaded: Vec<u32> = dispatches.iter().map(|dispatch| dispatch.load).collect();
            loaded.sort_unstable();
            assert!(loaded.into_iter().eq(0..30));
        }
    }

    #[test]
    fn a_cache_of_nothing_is_an_error() {
        let error = ClusterGraph::new(3, []).dispatch(0).unwrap_err();
        assert_eq!(error.to_string(), "cache: found 0, expected at least 1");
    }
}
