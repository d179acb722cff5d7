//! Hits of the cluster cache.

use super::{ClusterGraph, Dispatch};

/// Second visits of nodes, and hits of the cluster cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheUse {
    /// Second visits of nodes, one per node.
    pub second_visits: u64,
    /// Second visits with the node's first cluster still in the cache.
    pub hits: u64,
}

impl CacheUse {
    /// Hits divided by second visits; 0 without visits.
    pub fn hit_ratio(&self) -> f64 {
        self.hits as f64 / self.second_visits.max(1) as f64
    }

    /// Lists written to disk. Each is read again once.
    pub fn misses(&self) -> u64 {
        self.second_visits.saturating_sub(self.hits)
    }

    /// Bytes written to disk for lists of `list_bytes` bytes each; as many are read again.
    /// Saturates.
    pub fn spilled_bytes(&self, list_bytes: u64) -> u64 {
        self.misses().saturating_mul(list_bytes)
    }
}

impl ClusterGraph {
    /// Counts the hits of `dispatches`.
    ///
    /// A cluster is evicted before the next is visited, as in the paper's Algorithm 4. A merged
    /// list leaves the cache. Clusters outside the graph share nothing and take no room.
    pub fn simulate(&self, dispatches: &[Dispatch]) -> CacheUse {
        let mut visited = vec![false; self.clusters()];
        let mut resident = vec![false; self.clusters()];
        let mut found = CacheUse::default();
        let is_known = |cluster: u32| (cluster as usize) < self.clusters();
        for &Dispatch { load, evict } in dispatches {
            if let Some(evict) = evict.filter(|&evict| is_known(evict)) {
                resident[evict as usize] = false;
            }
            if !is_known(load) {
                continue;
            }
            // Each node is in two clusters, so a shared node was visited with the other cluster.
            for &(other, nodes) in self.neighbors(load) {
                found.second_visits += if visited[other as usize] { nodes } else { 0 };
                found.hits += if resident[other as usize] { nodes } else { 0 };
            }
            visited[load as usize] = true;
            resident[load as usize] = true;
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use tagore_device::random::{Draws, Stage};

    use super::*;

    /// Place of a node's list.
    #[derive(Clone, Copy, PartialEq)]
    enum List {
        Nowhere,
        With(u32),
        OnDisk,
        Merged,
    }

    /// Hits, lists written and lists read, counted node by node.
    fn by_nodes(nodes: &[[u32; 2]], dispatches: &[Dispatch]) -> (u64, u64, u64) {
        let mut lists = vec![List::Nowhere; nodes.len()];
        let (mut hits, mut written, mut read) = (0, 0, 0);
        for &Dispatch { load, evict } in dispatches {
            for list in lists.iter_mut().filter(|list| evict.is_some_and(|evict| **list == List::With(evict)))
            {
                *list = List::OnDisk;
                written += 1;
            }
            for (list, _) in lists.iter_mut().zip(nodes).filter(|(_, clusters)| clusters.contains(&load)) {
                *list = match *list {
                    List::Nowhere => List::With(load),
                    List::With(_) => {
                        hits += 1;
                        List::Merged
                    }
                    List::OnDisk => {
                        read += 1;
                        List::Merged
                    }
                    List::Merged => unreachable!("third visit of a node"),
                };
            }
        }
        assert!(lists.iter().all(|&list| list == List::Merged), "unmerged list");
        (hits, written, read)
    }

    #[test]
    fn counts_equal_a_walk_over_all_nodes() {
        for (clusters, count) in [(2, 9), (9, 200), (40, 300)] {
            let draws = |node| Draws::new(1, Stage::Test, clusters, node);
            let pair = |node: u64| {
                let a = draws(node).below(0, clusters.into()) as u32;
                let b = draws(node).below(1, u64::from(clusters) - 1) as u32;
                [a, if b < a { b } else { b + 1 }]
            };
            let nodes: Vec<[u32; 2]> = (0..count).map(pair).collect();
            let graph = ClusterGraph::new(clusters as usize, nodes.iter().map(|&[a, b]| (a, b, 1)));
            for cache in [1, 2, 5, 40, 100] {
                let dispatches = graph.dispatch(cache).unwrap();
                let found = graph.simulate(&dispatches);
                let (hits, written, read) = by_nodes(&nodes, &dispatches);
                assert_eq!((found.hits, found.second_visits), (hits, count), "cache {cache}");
                assert_eq!((found.misses(), found.spilled_bytes(256)), (written, 256 * read));
                // A cache of one cluster never hits. A cache of all clusters always hits.
                assert!(cache > 1 || found.hits == 0);
                assert!(cache < clusters as usize || found.misses() == 0);
            }
        }
    }

    #[test]
    fn clusters_without_shared_nodes_have_no_second_visits() {
        let graph = ClusterGraph::new(3, []);
        let dispatches = graph.dispatch(2).unwrap();
        assert_eq!(graph.simulate(&dispatches), CacheUse::default());
        assert_eq!(CacheUse::default().hit_ratio(), 0.0);
    }

    #[test]
    fn numbers_of_users_do_not_overflow() {
        let found = CacheUse { second_visits: 4_294_967_294, hits: 0 };
        assert_eq!(found.spilled_bytes(8 * u64::from(u32::MAX)), u64::MAX);
        assert_eq!(CacheUse { second_visits: 1, hits: 2 }.misses(), 0);
        let graph = ClusterGraph::new(2, [(0, 1, 3)]);
        let step = |load, evict| Dispatch { load, evict };
        let found = graph.simulate(&[step(0, Some(9)), step(7, None), step(1, None)]);
        assert_eq!(found, CacheUse { second_visits: 3, hits: 3 });
    }
}
