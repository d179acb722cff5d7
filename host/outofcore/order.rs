//! The orders in which clusters are dispatched.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::str::FromStr;

use tagore_device::random::{Draws, Stage};

use super::ClusterGraph;
use crate::{Error, Result};

/// What decides which cluster is next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Their numbers.
    Sequential,
    /// The seed.
    Random,
    /// Nodes shared with the last few (Wei et al., *Speedup Graph Processing by Graph Ordering*, SIGMOD 2016).
    Gorder,
    /// Nodes shared with those in the cache; what is evicted is chosen together with what is loaded: the paper's
    /// Algorithm 4.
    #[default]
    Cluster,
}

impl Order {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Sequential, Self::Random, Self::Gorder, Self::Cluster];
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Sequential => "sequential",
            Self::Random => "random",
            Self::Gorder => "gorder",
            Self::Cluster => "cluster",
        })
    }
}

impl FromStr for Order {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let named = Self::ALL.into_iter().find(|order| order.to_string() == name);
        named.ok_or_else(|| Error::argument("order", name, "sequential, random, gorder or cluster"))
    }
}

/// One step: a cluster is loaded, once another has left the cache if there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// The cluster that is built.
    pub load: u32,
    /// The cluster whose lists leave memory before.
    pub evict: Option<u32>,
}

/// Puts clusters in order.
///
/// The same graph gives the same order: ties go to the smaller number; but of clusters that Algorithm 4 could evict
/// equally well, to the one that shares fewest nodes with clusters that are still to come, which it leaves open.
#[derive(Clone, Copy, Debug)]
pub struct Dispatcher {
    order: Order,
    cache: usize,
    window: usize,
    seed: u64,
}

impl Dispatcher {
    /// Dispatches by `order`, with a cache of 32 clusters.
    pub fn new(order: Order) -> Self {
        Self { order, cache: 32, window: 5, seed: 0 }
    }

    /// Clusters whose lists are in memory at once, the one at work among them; at least 1.
    #[must_use]
    pub fn cache(self, clusters: usize) -> Self {
        Self { cache: clusters, ..self }
    }

    /// Clusters that Gorder looks back at; at least 1. The default, 5, is its authors'.
    #[must_use]
    pub fn window(self, clusters: usize) -> Self {
        Self { window: clusters, ..self }
    }

    /// Another seed gives another random order.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// The steps, one of each cluster.
    ///
    /// # Errors
    /// If the cache or the window is 0.
    pub fn dispatch(&self, graph: &ClusterGraph) -> Result<Vec<Dispatch>> {
        for (what, found) in [("cache", self.cache), ("window", self.window)] {
            if found == 0 {
                return Err(Error::argument(what, found, "at least 1"));
            }
        }
        let sequence = match self.order {
            Order::Sequential => (0..graph.clusters() as u32).collect(),
            Order::Random => shuffled(graph.clusters() as u32, self.seed),
            Order::Gorder => gorder(graph, self.window),
            Order::Cluster => return Ok(Greedy::new(graph).run(self.cache)),
        };
        Ok(oldest_first(sequence, self.cache))
    }
}

/// A sequence of which the oldest in the cache is evicted.
fn oldest_first(sequence: Vec<u32>, cache: usize) -> Vec<Dispatch> {
    let mut resident = VecDeque::with_capacity(cache.min(sequence.len()));
    let step = |load| {
        let evict = if resident.len() == cache { resident.pop_front() } else { None };
        resident.push_back(load);
        Dispatch { load, evict }
    };
    sequence.into_iter().map(step).collect()
}

/// The numbers below `count`, shuffled.
fn shuffled(count: u32, seed: u64) -> Vec<u32> {
    let key = |cluster: u32| Draws::new(seed, Stage::Dispatch, 0, cluster.into()).bits(0);
    let mut sequence: Vec<u32> = (0..count).collect();
    sequence.sort_by_key(|&cluster| key(cluster));
    sequence
}

/// The cluster that waits of the greatest `value`; of several the first.
fn best<V: Ord>(waiting: &BTreeSet<u32>, value: impl Fn(u32) -> V) -> Option<u32> {
    waiting.iter().copied().max_by_key(|&cluster| (value(cluster), Reverse(cluster)))
}

/// Always the cluster that shares most nodes with the last `window`. The first is cluster 0, as it is of Algorithm 4.
fn gorder(graph: &ClusterGraph, window: usize) -> Vec<u32> {
    let mut waiting: BTreeSet<u32> = (0..graph.clusters() as u32).collect();
    let mut scores = vec![0; graph.clusters()];
    let mut sequence = Vec::with_capacity(graph.clusters());
    while let Some(next) = best(&waiting, |cluster| scores[cluster as usize]) {
        waiting.remove(&next);
        sequence.push(next);
        for &(other, nodes) in graph.neighbours(next) {
            scores[other as usize] += nodes;
        }
        if let Some(left) = sequence.len().checked_sub(window.saturating_add(1)) {
            for &(other, nodes) in graph.neighbours(sequence[left]) {
                scores[other as usize] -= nodes;
            }
        }
    }
    sequence
}

/// What a cluster shares with those in the cache.
#[derive(Clone, Default)]
struct Share {
    /// Nodes in all.
    nodes: u64,
    /// Nodes with each, least first; clusters without any are left out.
    with: BTreeSet<(u64, u32)>,
}

/// The paper's Algorithm 4. What clusters share with the cache is kept up to date, so that a step takes a look at
/// each cluster that waits, and a change of the cache one at each neighbour of the cluster that comes or goes.
struct Greedy<'a> {
    graph: &'a ClusterGraph,
    waiting: BTreeSet<u32>,
    resident: BTreeSet<u32>,
    shares: Vec<Share>,
    /// Nodes that each cluster shares with those that wait.
    pending: Vec<u64>,
}

impl<'a> Greedy<'a> {
    fn new(graph: &'a ClusterGraph) -> Self {
        let clusters = 0..graph.clusters() as u32;
        let nodes = |cluster| graph.neighbours(cluster).iter().map(|&(_, nodes)| nodes).sum();
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

    /// Nodes that `cluster` shares with those that would be in the cache of `cache` clusters with it: in a full one, all
    /// but that with which it shares least.
    fn gain(&self, cluster: u32, cache: usize) -> u64 {
        let Share { nodes, with } = &self.shares[cluster as usize];
        match with.first() {
            // No cluster in the full cache is without shared nodes.
            Some(&(least, _)) if with.len() == cache => nodes - least,
            _ => *nodes,
        }
    }

    /// The cluster in the cache that shares least with `load`, which waits.
    fn victim(&self, load: u32) -> Option<u32> {
        let loss = |cluster| (self.graph.shared(load, cluster), self.pending[cluster as usize], cluster);
        self.resident.iter().copied().min_by_key(|&cluster| loss(cluster))
    }

    fn load(&mut self, cluster: u32) {
        self.waiting.remove(&cluster);
        self.resident.insert(cluster);
        for &(other, nodes) in self.graph.neighbours(cluster) {
            let share = &mut self.shares[other as usize];
            share.nodes += nodes;
            share.with.insert((nodes, cluster));
            self.pending[other as usize] -= nodes;
        }
    }

    fn evict(&mut self, cluster: u32) {
        self.resident.remove(&cluster);
        for &(other, nodes) in self.graph.neighbours(cluster) {
            let share = &mut self.shares[other as usize];
            share.nodes -= nodes;
            share.with.remove(&(nodes, cluster));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(order: Order, cache: usize, graph: &ClusterGraph) -> Vec<Dispatch> {
        Dispatcher::new(order).cache(cache).window(3).seed(9).dispatch(graph).unwrap()
    }

    /// A graph of `clusters` clusters, of which a share of 1 in `sparse` pairs is connected, with small weights.
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

    /// Algorithm 4 as it is written: all pairs of a cluster to be loaded and one to be evicted.
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
    fn cluster_order_is_algorithm_4() {
        // Dense ones with many ties, and sparse ones with clusters that share nothing.
        for (clusters, sparse) in [(1, 1), (2, 1), (12, 1), (13, 2), (20, 3), (25, 12)] {
            for seed in 0..4 {
                let graph = random_graph(clusters, sparse, seed);
                for cache in [1, 2, 3, 7, clusters as usize, 40] {
                    let expected = algorithm_4(&graph, cache);
                    assert_eq!(
                        steps(Order::Cluster, cache, &graph),
                        expected,
                        "{clusters} clusters, cache {cache}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_shape_of_the_papers_example() {
        // Six clusters and a cache of three: C0, C2 and C3 come first, then C5 for C0. The weights are not the paper.s.
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
        let found = steps(Order::Cluster, 3, &ClusterGraph::new(6, edges));
        let expected = [(0, None), (2, None), (3, None), (5, Some(0)), (4, Some(2)), (1, Some(3))];
        assert_eq!(found, expected.map(|(load, evict)| Dispatch { load, evict }));
    }

    /// Gorder by its definition.
    fn gorder_by_definition(graph: &ClusterGraph, window: usize) -> Vec<u32> {
        let mut sequence = vec![0];
        while sequence.len() < graph.clusters() {
            let last = &sequence[sequence.len().saturating_sub(window)..];
            let score = |&cluster: &u32| last.iter().map(|&other| graph.shared(cluster, other)).sum::<u64>();
            let waiting = (0..graph.clusters() as u32).filter(|cluster| !sequence.contains(cluster));
            let next = waiting.rev().max_by_key(score).unwrap();
            sequence.push(next);
        }
        sequence
    }

    #[test]
    fn gorder_looks_back_at_its_window() {
        for (clusters, sparse) in [(1, 1), (15, 1), (30, 4)] {
            let graph = random_graph(clusters, sparse, 7);
            for window in [1, 3, 30, usize::MAX] {
                assert_eq!(gorder(&graph, window), gorder_by_definition(&graph, window));
            }
        }
    }

    #[test]
    fn every_cluster_is_loaded_once_and_evicted_at_most_once() {
        let graph = random_graph(30, 3, 1);
        for order in Order::ALL {
            for cache in [1, 4, 29, 30, 31] {
                let dispatches = steps(order, cache, &graph);
                let mut resident = BTreeSet::new();
                for (step, &Dispatch { load, evict }) in dispatches.iter().enumerate() {
                    assert_eq!(evict.is_some(), step >= cache, "{order}: only a full cache evicts");
                    assert!(
                        evict.is_none_or(|evict| resident.remove(&evict)),
                        "{order}: {evict:?} is not there"
                    );
                    assert!(resident.insert(load) && resident.len() <= cache);
                }
                let mut loaded: Vec<u32> = dispatches.iter().map(|dispatch| dispatch.load).collect();
                loaded.sort_unstable();
                assert!(loaded.into_iter().eq(0..30), "{order}");
            }
        }
    }

    #[test]
    fn the_seed_decides_a_random_order() {
        let graph = ClusterGraph::new(50, []);
        let run = |seed| Dispatcher::new(Order::Random).seed(seed).dispatch(&graph).unwrap();
        assert!(run(1) == run(1) && run(1) != run(2));
        let sequential = Dispatcher::new(Order::Sequential).dispatch(&graph).unwrap();
        assert!(sequential.iter().map(|dispatch| dispatch.load).eq(0..50));
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for order in Order::ALL {
            assert_eq!(order.to_string().parse::<Order>().unwrap(), order);
        }
        assert!("greedy".parse::<Order>().is_err());
    }

    #[test]
    fn sizes_of_nothing_are_refused() {
        let graph = ClusterGraph::new(3, []);
        for dispatcher in [Dispatcher::new(Order::Cluster).cache(0), Dispatcher::new(Order::Gorder).window(0)]
        {
            assert!(
                dispatcher
                    .dispatch(&graph)
                    .unwrap_err()
                    .to_string()
                    .ends_with("found 0, expected at least 1")
            );
        }
    }
}
