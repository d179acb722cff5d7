//! Statistics of a graph.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::{Graph, Index};
use crate::loops::{at_least, numbered, reduce, try_fold, try_for_each};
use crate::vectors::Repeated;
use crate::{Progress, Result};

/// Minimum number of words of 64 nodes per thread; fewer do not pay for waking it.
const SCANNED: usize = 64;

/// Counts over a whole index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    /// Number of edges.
    pub edges: u64,
    /// The smallest degree.
    pub min_degree: usize,
    /// The largest degree found.
    pub max_degree: usize,
    /// Number of nodes of each degree, from 0 to the largest allowed.
    pub degrees: Vec<u64>,
    /// Edges from a node to itself.
    pub self_edges: u64,
    /// Repeated edges: second and later occurrences of an id in a row.
    pub duplicate_edges: u64,
    /// Nodes that no path from the entry points reaches.
    pub unreachable: u64,
}

/// Minimum number of nodes counted per thread.
const AT_ONCE: usize = 4096;

/// Edges to a node are counted up to this number.
const COUNTED: u8 = 16;

/// Longest row whose ids are compared with one another, many at a time; a longer one is sorted.
const COMPARED: usize = 96;

/// Counts over some of the nodes.
#[derive(Default)]
struct Counts {
    degrees: Vec<u64>,
    self_edges: u64,
    duplicate_edges: u64,
    /// Scratch: a node's neighbours, sorted.
    row: Vec<u32>,
}

impl Counts {
    fn add(&mut self, node: usize, neighbors: &[u32]) {
        self.degrees[neighbors.len()] += 1;
        self.self_edges += neighbors.iter().filter(|&&id| id as usize == node).count() as u64;
        self.duplicate_edges += if neighbors.len() <= COMPARED {
            let has = |ids: &[u32], id: u32| ids.iter().fold(false, |found, &other| found | (other == id));
            neighbors.iter().enumerate().filter(|&(place, &id)| has(&neighbors[..place], id)).count() as u64
        } else {
            self.row.clear();
            self.row.extend_from_slice(neighbors);
            self.row.sort_unstable();
            self.row.windows(2).filter(|pair| pair[0] == pair[1]).count() as u64
        };
    }

    fn merged(mut self, other: Self) -> Self {
        self.degrees.iter_mut().zip(&other.degrees).for_each(|(a, b)| *a += b);
        self.self_edges += other.self_edges;
        self.duplicate_edges += other.duplicate_edges;
        self
    }
}

impl Index {
    /// Counts degrees, edges, faulty edges and unreachable nodes.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub fn statistics(&self, progress: &Progress) -> Result<Statistics> {
        self.statistics_beside(None, progress)
    }

    /// [`statistics`](Self::statistics), with the number of `unreachable` nodes if it is known.
    pub(crate) fn statistics_beside(
        &self,
        unreachable: Option<u64>,
        progress: &Progress,
    ) -> Result<Statistics> {
        let none = || Counts { degrees: vec![0; self.max_degree() + 1], ..Counts::default() };
        let add = |mut counts: Counts, node: usize| {
            progress.check()?;
            counts.add(node, self.neighbors(node));
            Ok(counts)
        };
        let counts = try_fold(at_least(AT_ONCE, 0..self.len()), none, add, Counts::merged)?;
        let Counts { degrees, self_edges, duplicate_edges, .. } = counts;
        Ok(Statistics {
            edges: degrees.iter().zip(0..).map(|(&nodes, degree): (&u64, u64)| nodes * degree).sum(),
            min_degree: degrees.iter().position(|&nodes| nodes > 0).unwrap_or(0),
            max_degree: degrees.iter().rposition(|&nodes| nodes > 0).unwrap_or(0),
            degrees,
            self_edges,
            duplicate_edges,
            unreachable: unreachable.map_or_else(|| self.unreachable(progress), Ok)?,
        })
    }

    /// The number of edges to each node from others, counted up to [`COUNTED`].
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn edges_to(&self, progress: &Progress) -> Result<Vec<u8>> {
        edges_to(self, self.len(), self.repeated(), progress)
    }

    /// Counts the nodes without edges to them, entry points apart.
    pub(crate) fn without_edges(&self, edges_to: &[u8]) -> u64 {
        let mut is_entry = vec![false; self.len()];
        self.first_nodes().iter().for_each(|&node| is_entry[node as usize] = true);
        let is_node = |row: u32| !self.repeated().contains(row) && !self.is_left_out(row);
        let without = (0..self.len()).filter(|&node| edges_to[node] == 0 && !is_entry[node]);
        without.filter(|&node| is_node(node as u32)).count() as u64
    }

    /// Counts the nodes that no path from the entry points reaches. A repeated row is reached with
    /// the first row of its group; rows that were left out of the build are no nodes.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn unreachable(&self, progress: &Progress) -> Result<u64> {
        let reach = Reach { graph: self, nodes: self.len(), first: &self.first_nodes() };
        reach.unreachable(self.repeated(), self.absent.left_out(), progress)
    }
}

/// The number of edges to each of `nodes` nodes of `graph` from others, counted up to [`COUNTED`].
///
/// # Errors
/// If the work is cancelled.
pub(crate) fn edges_to(
    graph: &impl Graph,
    nodes: usize,
    repeated: &Repeated,
    progress: &Progress,
) -> Result<Vec<u8>> {
    let counts: Vec<AtomicU8> = (0..nodes).map(|_| AtomicU8::new(0)).collect();
    let count = |node: usize| {
        progress.check()?;
        // The row of a repeated row is that of its first row.
        if repeated.contains(node as u32) {
            return Ok(());
        }
        let ids = graph.neighbors(node as u32).iter().map(|&id| id as usize).filter(|&id| id != node);
        // An unknown id, in a damaged index, leads nowhere.
        for edges in ids.filter_map(|id| counts.get(id)) {
            // Most counts are full soon, and a load is cheaper than a write.
            let _ = edges.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |edges| {
                (edges < COUNTED).then_some(edges + 1)
            });
        }
        Ok(())
    };
    try_for_each(at_least(AT_ONCE, 0..nodes), count)?;
    Ok(counts.into_iter().map(AtomicU8::into_inner).collect())
}

/// A graph and the nodes where its searches may start.
pub(crate) struct Reach<'a, G> {
    pub graph: &'a G,
    /// Nodes of the graph.
    pub nodes: usize,
    pub first: &'a [u32],
}

impl<G: Graph> Reach<'_, G> {
    /// Counts the nodes that no path from the first nodes reaches. A repeated row is reached with
    /// the first row of its group, and rows that were `left_out` count as reached.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn unreachable(
        &self,
        repeated: &Repeated,
        left_out: impl Iterator<Item = u32>,
        progress: &Progress,
    ) -> Result<u64> {
        let mut reached = self.reached(repeated, progress)?;
        for row in left_out.map(|row| row as usize) {
            reached[row / 64] |= 1 << (row % 64);
        }
        Ok(self.nodes as u64 - reached.iter().map(|word| u64::from(word.count_ones())).sum::<u64>())
    }

    /// A bit for each node: whether a path from the first nodes reaches it. A repeated row is
    /// reached with the first row of its group.
    ///
    /// Takes two bits of memory per node and scans rows in order until a scan finds nothing new. A
    /// graph may be larger than memory, where a queue of nodes would read it at random.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn reached(&self, repeated: &Repeated, progress: &Progress) -> Result<Vec<u64>> {
        let Self { graph, nodes, first } = *self;
        let words = nodes.div_ceil(64);
        let reached: Vec<AtomicU64> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let reach = |ids: &[u32]| {
            // An unknown id, in a damaged index, leads nowhere.
            for id in ids.iter().map(|&id| id as usize).filter(|&id| id < nodes) {
                let (word, bit) = (&reached[id / 64], 1 << (id % 64));
                // Most nodes were reached before, and a load is cheaper than a write.
                if word.load(Ordering::Relaxed) & bit == 0 {
                    word.fetch_or(bit, Ordering::Relaxed);
                }
            }
        };
        // Nodes whose rows have been read.
        let mut followed = vec![0u64; words];
        // Timing decides which scan reads a row, but not the set of rows read in the end.
        let follow = |(word, followed): (usize, &mut u64)| {
            let before = *followed;
            loop {
                let mut new = reached[word].load(Ordering::Relaxed) & !*followed;
                if new == 0 || progress.is_cancelled() {
                    return *followed != before;
                }
                *followed |= new;
                while new != 0 {
                    reach(graph.neighbors((64 * word) as u32 + new.trailing_zeros()));
                    new &= new - 1;
                }
            }
        };
        reach(first);
        let mut scan = || {
            let stretches = at_least(SCANNED, numbered(&mut followed[..]));
            reduce(stretches, false, follow, |a, b| a | b)
        };
        // A cancelled scan finds nothing new.
        while scan() {}
        progress.check()?;
        for (row, first) in repeated.pairs().map(|(row, first)| (row as usize, first as usize)) {
            followed[row / 64] |= (followed[first / 64] >> (first % 64) & 1) << (row % 64);
        }
        Ok(followed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tagore_device::key::NO_ID;
    use tagore_device::random::{Draws, Stage};

    use super::*;
    use crate::index::PaddedRows;
    use crate::{Description, ElementType, Fingerprint, Metric, Vectors};

    fn description() -> Description {
        Description { kind: "nsg".to_owned(), metric: Metric::L2, seed: 0, parameters: [].into() }
    }

    #[test]
    fn unreachable_nodes_are_counted() {
        let n = 1000u32;
        let base = Vectors::from_u8(vec![0; n as usize], 1).unwrap();
        let unreachable = |rows: &[Vec<u32>], entries: &[u32]| {
            Index::from_rows(description(), &base, rows, entries.to_vec())
                .unwrap()
                .unreachable(&Progress::silent())
                .unwrap()
        };
        // One node per scan, against its direction, and in leaps that skip nodes.
        let back: Vec<Vec<u32>> = (0..n).map(|node| node.checked_sub(1).into_iter().collect()).collect();
        assert_eq!(unreachable(&back, &[n - 1]), 0);
        assert_eq!(unreachable(&back, &[400, 600]), 399);
        let leaps: Vec<Vec<u32>> = (0..n).map(|node| vec![(node + 650) % n]).collect();
        assert_eq!(unreachable(&leaps, &[7]), 980);
        assert_eq!(unreachable(&leaps, &(0..50).collect::<Vec<_>>()), 0);
        assert_eq!(unreachable(&vec![vec![]; n as usize], &[3]), 999);
    }

    #[test]
    fn repeated_edges_are_counted_in_rows_of_any_length() {
        let draws = Draws::new(1, Stage::Test, 1, 0);
        for degree in (0..10).chain([31, 32, COMPARED - 1, COMPARED, COMPARED + 1, 300]) {
            let row: Vec<u32> = (0..degree as u64).map(|i| draws.below(i, 60) as u32).collect();
            let mut counts = Counts { degrees: vec![0; degree + 1], ..Counts::default() };
            counts.add(1000, &row);
            let different: BTreeSet<u32> = row.iter().copied().collect();
            assert_eq!(counts.duplicate_edges, (degree - different.len()) as u64, "{degree}");
        }
    }

    #[test]
    fn faulty_edges_are_counted() {
        let fingerprint = Fingerprint { rows: 5, dim: 1, element: ElementType::U8, hash: 0 };
        // A self edge; an edge three times; an unknown id; no edge; a plain edge.
        let rows = [0, 1, NO_ID, 2, 2, 2, 9, 1, NO_ID, NO_ID, NO_ID, NO_ID, 3, NO_ID, NO_ID];
        let (degrees, neighbors) = (vec![2, 3, 2, 0, 1], rows.to_vec());
        let rows = PaddedRows { max_degree: 3, degrees, neighbors };
        let index = Index::owned(description(), fingerprint, rows, vec![0]);
        let statistics = index.statistics(&Progress::silent()).unwrap();
        assert_eq!(statistics.degrees, [1, 1, 2, 1]);
        assert_eq!((statistics.edges, statistics.min_degree, statistics.max_degree), (8, 0, 3));
        assert_eq!((statistics.self_edges, statistics.duplicate_edges), (1, 2));
        assert_eq!(statistics.unreachable, 2);
    }
}
