//! The cluster graph (paper section 6.2).

use crate::{Error, MAX_ROWS, Result};

/// Clusters, and the number of nodes that each pair shares: a sparse, undirected, weighted graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterGraph {
    /// For each cluster: its neighbours in ascending order, each with the number of shared nodes.
    neighbours: Vec<Vec<(u32, u64)>>,
}

impl ClusterGraph {
    /// A graph of `clusters` clusters with `shared` edges: two clusters and their shared nodes.
    /// Equal pairs add up.
    pub(crate) fn new(clusters: usize, shared: impl IntoIterator<Item = (u32, u32, u64)>) -> Self {
        let mut neighbours = vec![Vec::new(); clusters];
        for (a, b, nodes) in shared {
            debug_assert!(a != b && nodes > 0, "an edge needs two clusters and a node");
            neighbours[a as usize].push((b, nodes));
            neighbours[b as usize].push((a, nodes));
        }
        for row in &mut neighbours {
            row.sort_unstable();
            row.dedup_by(|next, kept| {
                let same = next.0 == kept.0;
                if same {
                    kept.1 += next.1;
                }
                same
            });
        }
        Self { neighbours }
    }

    /// Scales the weights to about `nodes` nodes in all, and rounds them.
    ///
    /// # Errors
    /// If `nodes` exceeds [`MAX_ROWS`].
    pub fn scaled(mut self, nodes: u64) -> Result<Self> {
        if nodes > MAX_ROWS as u64 {
            return Err(Error::argument("nodes", nodes, format_args!("at most {MAX_ROWS}")));
        }
        let present = u128::from(self.nodes());
        for row in &mut self.neighbours {
            for (_, weight) in &mut *row {
                *weight = ((u128::from(*weight) * u128::from(nodes) + present / 2) / present) as u64;
            }
            row.retain(|&(_, weight)| weight > 0);
        }
        Ok(self)
    }

    /// The number of clusters.
    pub fn clusters(&self) -> usize {
        self.neighbours.len()
    }

    /// The number of nodes. Two clusters share each node.
    pub fn nodes(&self) -> u64 {
        self.neighbours.iter().flatten().map(|&(_, weight)| weight).sum::<u64>() / 2
    }

    /// The number of pairs of clusters that share nodes.
    pub fn edges(&self) -> usize {
        self.neighbours.iter().map(Vec::len).sum::<usize>() / 2
    }

    /// The clusters that share nodes with `cluster`, in ascending order, each with the number of
    /// nodes.
    pub fn neighbors(&self, cluster: u32) -> &[(u32, u64)] {
        &self.neighbours[cluster as usize]
    }

    /// The number of nodes that two clusters share.
    pub(crate) fn shared(&self, a: u32, b: u32) -> u64 {
        let row = self.neighbors(a);
        row.binary_search_by_key(&b, |&(cluster, _)| cluster).map_or(0, |place| row[place].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_add_up_both_ways() {
        let graph = ClusterGraph::new(5, [(3, 1, 2), (0, 1, 4), (1, 3, 5), (3, 4, 1)]);
        assert_eq!((graph.clusters(), graph.nodes(), graph.edges()), (5, 12, 3));
        assert_eq!(graph.neighbors(1), [(0, 4), (3, 7)]);
        assert_eq!((graph.shared(1, 3), graph.shared(3, 1), graph.shared(0, 4)), (7, 7, 0));
        assert!(graph.neighbors(2).is_empty());
    }

    #[test]
    fn weights_are_scaled_to_a_number_of_nodes() {
        let graph = ClusterGraph::new(4, [(0, 1, 5), (1, 2, 3), (2, 3, 2)]);
        let large = graph.clone().scaled(1_000_000_000).unwrap();
        assert_eq!(
            (large.shared(0, 1), large.shared(2, 1), large.nodes()),
            (500_000_000, 300_000_000, 1_000_000_000)
        );
        // Weights below a half disappear.
        assert_eq!(graph.clone().scaled(1).unwrap().edges(), 1);
        assert_eq!(ClusterGraph::new(2, []).scaled(7).unwrap().nodes(), 0);
        // Sums of larger weights would overflow 64 bits.
        let error = graph.scaled(u64::MAX).unwrap_err().to_string();
        assert_eq!(error, "nodes: found 18446744073709551615, expected at most 4294967294");
    }
}
