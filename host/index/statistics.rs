//! What a graph looks like.

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

impl Index {
    /// Counts degrees, wrong edges, and nodes that cannot be reached.
    pub fn statistics(&self) -> Statistics {
        let mut degrees = vec![0; self.max_degree() + 1];
        let (mut self_edges, mut duplicate_edges) = (0, 0);
        let mut row = Vec::new();
        for node in 0..self.len() {
            row.clear();
            row.extend_from_slice(self.neighbors(node));
            degrees[row.len()] += 1;
            self_edges += row.iter().filter(|&&id| id as usize == node).count() as u64;
            let edges = row.len();
            row.sort_unstable();
            row.dedup();
            duplicate_edges += (edges - row.len()) as u64;
        }
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
