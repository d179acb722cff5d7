//! Dispatch orders.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::str::FromStr;

use tagore_device::random::{Draws, Stage};

use super::ClusterGraph;
use crate::{Error, Result};

/// The rule for the next cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// Ascending numbers.
    Sequential,
    /// A permutation drawn from the seed.
    Random,
    /// Maximum number of nodes shared with the last few clusters (Wei et al., *Speedup Graph
    /// Processing by Graph Ordering*, SIGMOD 2016).
    Gorder,
    /// Maximum number of nodes shared with the cache. The evicted cluster is chosen together with
    /// the loaded one (the paper's Algorithm 4).
    #[default]
    Cluster,
}

impl Order {
    /// All orders.
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

/// A dispatch step: evicts a cluster from a full cache, and loads another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// The cluster to build.
    pub load: u32,
    /// The cluster that leaves the cache first.
    pub evict: Option<u32>,
}

/// Computes a dispatch order.
///
/// The same graph gives the same order. Ties go to the smaller number. Algorithm 4 leaves open
/// which of several equally good clusters is evicted. Here it is the cluster that shares fewest
/// nodes with the remaining clusters.
#[derive(Clone, Copy, Debug)]
pub struct Dispatcher {
    order: Order,
    cache: usize,
    window: usize,
    seed: u64,
}

impl Dispatcher {
    /// Dispatches by `order` with a cache of 32 clusters.
    pub fn new(order: Order) -> Self {
        Self { order, cache: 32, window: 5, seed: 0 }
    }

    /// Sets the clusters in the cache, the current one included; at least 1.
    #[must_use]
    pub fn cache(self, clusters: usize) -> Self {
        Self { cache: clusters, ..self }
    }

    /// Sets the number of clusters that Gorder looks back at; at least 1. The default is 5, as its
    /// authors choose.
    #[must_use]
    pub fn window(self, clusters: usize) -> Self {
        Self { window: clusters, ..self }
    }

    /// Sets the seed of the random order.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// The steps, one per cluster.
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

/// The steps of `sequence` with the oldest cluster evicted.
fn oldest_first(sequence: Vec<u32>, cache: usize) -> Vec<Dispatch> {
    let mut resident = VecDeque::with_capacity(cache.min(sequence.len()));
    let step = |load| {
        let evict = if resident.len() == cache { resident.pop_front() } else { None };
        resident.push_back(load);
        Dispatch { load, evict }
    };
    sequence.into_iter().map(step).collect()
}

/// A random permutation of the numbers below `count`.
fn shuffled(count: u32, seed: u64) -> Vec<u32> {
    let key = |cluster: u32| Draws::new(seed, Stage::Dispatch, 0, cluster.into()).bits(0);
    let mut sequence: Vec<u32> = (0..count).collect();
    sequence.sort_by_key(|&cluster| key(cluster));
    sequence
}

/// The waiting cluster of the greatest `value`; ties go to the smaller number.
fn best<V: Ord>(waiting: &BTreeSet<u32>, value: impl Fn(u32) -> V) -> Option<u32> {
    waiting.iter().copied().max_by_key(|&cluster| (value(cluster), Reverse(cluster)))
}

/// Gorder: the next cluster shares most nodes with the last `window` clusters. Cluster 0 is first,
/// as in Algorithm 4.
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
    fn cluster_order_is_algorithm_4() {
        // Dense graphs with many ties, and sparse graphs with isolated clusters.
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
        let found = steps(Order::Cluster, 3, &ClusterGraph::new(6, edges));
        let expected = [(0, None), (2, None), (3, None), (5, Some(0)), (4, Some(2)), (1, Some(3))];
        assert_eq!(found, expected.map(|(load, evict)| Dispatch { load, evict }));
    }

    /// Gorder as defined.
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
                    assert_eq!(evict.is_some(), step >= cache, "{order}: eviction from a cache with room");
                    assert!(
                        evict.is_none_or(|evict| resident.remove(&evict)),
                        "{order}: {evict:?} evicted but not in the cache"
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
    fn names_parse_to_their_orders() {
        for order in Order::ALL {
            assert_eq!(order.to_string().parse::<Order>().unwrap(), order);
        }
        assert!("greedy".parse::<Order>().is_err());
    }

    #[test]
    fn zero_sizes_are_errors() {
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
