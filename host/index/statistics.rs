//! What a graph looks like.

use rayon::prelude::*;

use super::Index;

/// Counts over a whole index.
#[derive(Clone, Debug, PartialEq)]
pub struct Statistics {
    /// Edges in all.
    pub edges: u64,
    /// The smallest degree.
    pub min_degree: usize,
    /// The largest degree that a node has.
    pub max_degree: usize,
    /// Nodes of each degree, from 0 to the largest that the index allows.
    pub degrees: Vec<u64>,
    /// Edges of a node to itself.
    pub self_edges: u64,
    /// Edges that a row holds more than once.
    pub duplicate_edges: u64,
    /// Nodes that no path from the entry points leads to.
    pub unreachable: u64,
}

/// Nodes that a thread counts at least.
const AT_ONCE: usize = 4096;

/// What is counted of some nodes.
#[derive(Default)]
struct Counts {
    degrees: Vec<u64>,
    self_edges: u64,
    duplicate_edges: u64,
    /// Scratch: the neighbours of a node, in order.
    row: Vec<u32>,
}

impl Counts {
    fn add(&mut self, node: usize, neighbors: &[u32]) {
        self.degrees[neighbors.len()] += 1;
        self.self_edges += neighbors.iter().filter(|&&id| id as usize == node).count() as u64;
        self.row.clear();
        self.row.extend_from_slice(neighbors);
        self.row.sort_unstable();
        self.duplicate_edges += self.row.windows(2).filter(|pair| pair[0] == pair[1]).count() as u64;
    }

    fn merged(mut self, other: Self) -> Self {
        self.degrees.iter_mut().zip(&other.degrees).for_each(|(a, b)| *a += b);
        self.self_edges += other.self_edges;
        self.duplicate_edges += other.duplicate_edges;
        self
    }
}

impl Index {
    /// Counts degrees, wrong edges, and nodes that cannot be reached.
    pub fn statistics(&self) -> Statistics {
        let none = || Counts { degrees: vec![0; self.max_degree() + 1], ..Counts::default() };
        let add = |mut counts: Counts, node| {
            counts.add(node, self.neighbors(node));
            counts
        };
        let nodes = (0..self.len()).into_par_iter().with_min_len(AT_ONCE);
        let counts = nodes.fold(none, add).reduce(none, Counts::merged);
        let Counts { degrees, self_edges, duplicate_edges, .. } = counts;
        Statistics {
            edges: degrees.iter().zip(0..).map(|(&nodes, degree): (&u64, u64)| nodes * degree).sum(),
            min_degree: degrees.iter().position(|&nodes| nodes > 0).unwrap_or(0),
            max_degree: degrees.iter().rposition(|&nodes| nodes > 0).unwrap_or(0),
            degrees,
            self_edges,
            duplicate_edges,
            unreachable: self.unreachable(),
        }
    }

    /// Nodes that no path from the entry points leads to.
    pub(crate) fn unreachable(&self) -> u64 {
        let mut seen = vec![false; self.len()];
        let mut queue = Vec::new();
        let mut reached = 0;
        let mut visit = |ids: &[u32], queue: &mut Vec<u32>| {
            for &id in ids {
                // An unknown id, in a damaged index, leads nowhere.
                if seen.get(id as usize) == Some(&false) {
                    seen[id as usize] = true;
                    reached += 1;
                    queue.push(id);
                }
            }
        };
        visit(self.entries(), &mut queue);
        while let Some(node) = queue.pop() {
            visit(self.neighbors(node as usize), &mut queue);
        }
        self.len() as u64 - reached
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Description, ElementType, Fingerprint, Metric};

    #[test]
    fn wrong_edges_are_counted() {
        let description =
            Description { kind: "nsg".to_owned(), metric: Metric::L2, seed: 0, parameters: [].into() };
        let fingerprint = Fingerprint { rows: 5, dim: 1, element: ElementType::U8, hash: 0 };
        let none = u32::MAX;
        // A self edge; an edge three times; an unknown id; nothing; an edge that leads on.
        let rows = [0, 1, none, 2, 2, 2, 9, 1, none, none, none, none, 3, none, none];
        let index = Index::owned(description, fingerprint, 3, vec![2, 3, 2, 0, 1], rows.to_vec(), vec![0]);
        let statistics = index.statistics();
        assert_eq!(statistics.degrees, [1, 1, 2, 1]);
        assert_eq!((statistics.edges, statistics.min_degree, statistics.max_degree), (8, 0, 3));
        assert_eq!((statistics.self_edges, statistics.duplicate_edges), (1, 2));
        assert_eq!(statistics.unreachable, 2);
    }
}
