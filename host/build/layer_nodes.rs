//! The nodes of a layer: far apart in the graph below, or random ones.

use std::sync::atomic::{AtomicU64, Ordering};

use super::layers::LowerGraph;
use crate::index::Graph;
use crate::loops::{filter, for_each, map};
use crate::prune::gpu::layer_nodes;
use crate::{Progress, Result};

/// A layer has at most a sixth of the nodes below it. Under inner product few edges are mutual, and
/// without a limit a layer would be nearly as large as the graph.
pub(super) const MIN_STEP: usize = 6;

/// Rounds in which nodes are taken.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Rounds {
    /// One: fewer nodes, far from some others.
    First,
    /// Until every node of the graph is taken or has a taken one near.
    All,
    /// None: random nodes, near each other or not, as many as a layer may have. They lead past rows
    /// that are near to all others, which hold up searches that begin farther away.
    Random,
}

/// The nodes of the layer above a graph, in ascending order. But for random ones, no two are near
/// each other: nodes are near if one or two mutual edges lead from one to the other. Mutual edges
/// are those with an edge back.
///
/// Every node has a random draw. A round takes the nodes with smaller draws than all nodes that are
/// left near them, and leaves out what is near these. So all rounds take a node if, in the order of
/// draws, none near it was taken before.
///
/// Edges in one direction do not count: kinds that collect candidates on paths have edges from
/// everywhere to the same few nodes near the medoid. One small draw among these would keep all
/// other parts of the graph from having a node in the layer.
///
/// If fewer nodes fit, those with the smallest draws are taken. Nodes with larger draws are then
/// skipped, since the graph may be larger than memory.
pub(super) fn nodes_above(
    below: &LowerGraph<'_, impl Graph>,
    rounds: Rounds,
    seed: u64,
    progress: &Progress,
) -> Result<Vec<u32>> {
    let limit = below.nodes() / MIN_STEP;
    let (is_bounded, most) = (below.most < limit, below.most.min(limit));
    let share = 2.0 * most as f64 / below.nodes() as f64;
    let mut bound = if is_bounded { (share * u64::MAX as f64) as u64 } else { u64::MAX };
    let gpu = below.gpu().filter(|_| !is_bounded && below.repeated.is_empty());
    loop {
        let mut taken = match (&gpu, below.searches()) {
            (Some(gpu), Some(search)) if rounds != Rounds::Random => {
                layer_nodes(gpu, search.edges(below.nodes()), rounds == Rounds::All, seed, progress)?
            }
            _ => Choice::new(below, seed, bound).take(rounds, progress)?,
        };
        if bound == u64::MAX || taken.len() >= most {
            if taken.len() > most {
                taken.select_nth_unstable_by_key(most, |&node| draw(seed, node));
                taken.truncate(most);
            }
            taken.sort_unstable();
            return Ok(taken);
        }
        bound = bound.saturating_mul(4);
    }
}

/// The draw of a node; no two are equal.
fn draw(seed: u64, node: u32) -> (u64, u32) {
    (tagore_device::prune::layer_nodes::draw(seed, node), node)
}

/// Nodes that may still be taken.
struct Choice<'a, G> {
    graph: &'a G,
    seed: u64,
    left: RemainingNodes,
}

impl<'a, G: Graph> Choice<'a, G> {
    /// Among the nodes with draws up to `bound`.
    fn new(below: &'a LowerGraph<'_, G>, seed: u64, bound: u64) -> Self {
        let may_be_taken = |node| draw(seed, node).0 <= bound && !below.repeated.contains(node);
        Self { graph: below.graph, seed, left: RemainingNodes::new(below.base.len(), may_be_taken) }
    }

    fn take(self, rounds: Rounds, progress: &Progress) -> Result<Vec<u32>> {
        if rounds == Rounds::Random {
            return Ok(filter(0..self.left.n, |&node| self.left.contains(node)));
        }
        let mut taken = Vec::new();
        loop {
            let is_first =
                |&node: &u32| self.left.contains(node) && !progress.is_cancelled() && self.is_first(node);
            let first = filter(0..self.left.n, is_first);
            progress.check()?;
            if rounds == Rounds::First || first.is_empty() {
                taken.extend(first);
                return Ok(taken);
            }
            for_each(&first[..], |&node| self.leave_out(node));
            taken.extend(first);
        }
    }

    /// Whether a node has a smaller draw than all that are left near it.
    fn is_first(&self, node: u32) -> bool {
        let own = draw(self.seed, node);
        // Rows are read last: most draws decide without.
        let before_mutual_neighbors = |of: u32| {
            self.graph.neighbors(of).iter().all(|&near| {
                let may_go_before = near != node && self.left.contains(near);
                !may_go_before || own < draw(self.seed, near) || !self.is_mutual(of, near)
            })
        };
        before_mutual_neighbors(node) && self.mutual_neighbors(node).all(before_mutual_neighbors)
    }

    /// Leaves out a taken node, and what is near it.
    fn leave_out(&self, node: u32) {
        self.left.remove(node);
        for near in self.mutual_neighbors(node) {
            self.left.remove(near);
            self.mutual_neighbors(near).for_each(|far| self.left.remove(far));
        }
    }

    /// The ends of the mutual edges of a node.
    fn mutual_neighbors(&self, node: u32) -> impl Iterator<Item = u32> {
        self.graph.neighbors(node).iter().copied().filter(move |&near| self.is_mutual(node, near))
    }

    /// Whether an edge leads back from a neighbour of `node`.
    fn is_mutual(&self, node: u32, neighbor: u32) -> bool {
        self.graph.neighbors(neighbor).contains(&node)
    }
}

/// A set of ids that threads take from.
struct RemainingNodes {
    words: Vec<AtomicU64>,
    /// All ids are below.
    n: u32,
}

impl RemainingNodes {
    /// The ids below `n` that are `in_set`.
    fn new(n: usize, in_set: impl Fn(u32) -> bool + Sync) -> Self {
        let word = |word: usize| {
            let ids = 64 * word..(64 * word + 64).min(n);
            let bits = ids.filter(|&id| in_set(id as u32)).map(|id| 1 << (id % 64));
            AtomicU64::new(bits.fold(0, |bits, bit: u64| bits | bit))
        };
        Self { words: map(0..n.div_ceil(64), word), n: n as u32 }
    }

    fn contains(&self, id: u32) -> bool {
        self.words[id as usize / 64].load(Ordering::Relaxed) & 1 << (id % 64) != 0
    }

    fn remove(&self, id: u32) {
        self.words[id as usize / 64].fetch_and(!(1 << (id % 64)), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use tagore_device::random::{Draws, Stage};

    use super::*;
    use crate::prune::GraphRows;
    use crate::prune::gpu::testing::{devices, upload};
    use crate::search::gpu::EdgeRows;
    use crate::vectors::Repeated;
    use crate::vectors::space::Space;
    use crate::{Metric, Synth, Vectors};

    const SEED: u64 = 5;

    /// Rows of `degree` random nodes each; few edges are mutual in a large graph.
    fn random_graph(n: u32, degree: u32, seed: u64) -> GraphRows {
        let mut rows = GraphRows::new(n as usize, degree as usize);
        for node in 0..n {
            let draws = Draws::new(seed, Stage::Entry, 9, node.into());
            let mut to: Vec<u32> = (0..degree.into()).map(|i| draws.below(i, n.into()) as u32).collect();
            to.sort_unstable();
            to.dedup();
            to.into_iter().filter(|&to| to != node).for_each(|to| _ = rows.push(node, to));
        }
        rows
    }

    /// Rows to the nodes at these distances on a ring, in both directions: all edges are mutual.
    fn ring(n: u32) -> GraphRows {
        let mut rows = GraphRows::new(n as usize, 6);
        for node in 0..n {
            for step in [1, 37, 101, n - 101, n - 37, n - 1] {
                rows.push(node, (node + step) % n);
            }
        }
        rows
    }

    /// What is near a node, by the definition.
    fn near(rows: &GraphRows, node: u32) -> Vec<u32> {
        let mutual_neighbors = |node: u32| {
            let back = move |&near: &u32| rows.row(near).contains(&node);
            rows.row(node).iter().copied().filter(back)
        };
        mutual_neighbors(node)
            .flat_map(|near| mutual_neighbors(near).chain([near]))
            .filter(|&near| near != node)
            .collect()
    }

    fn layer(rows: &GraphRows, rounds: Rounds, repeated: &Repeated, most: usize) -> Vec<u32> {
        let base: Vectors = Synth::new(rows.len(), 2, 0).unwrap().base();
        let space = Space::unprepared(&base, Metric::L2);
        let below = LowerGraph {
            base: &base,
            space: &space,
            graph: rows,
            repeated,
            remote: &[],
            most,
            on_device: None,
        };
        nodes_above(&below, rounds, SEED, &Progress::silent()).unwrap()
    }

    /// All rounds, one node after another in the order of draws.
    fn reference(rows: &GraphRows, repeated: &Repeated) -> Vec<u32> {
        let mut order: Vec<u32> = (0..rows.len() as u32).filter(|&node| !repeated.contains(node)).collect();
        order.sort_by_key(|&node| draw(SEED, node));
        let mut is_taken = vec![false; rows.len()];
        for node in order {
            is_taken[node as usize] = near(rows, node).iter().all(|&near| !is_taken[near as usize]);
        }
        (0..rows.len() as u32).filter(|&node| is_taken[node as usize]).collect()
    }

    fn with_smallest_draws(mut nodes: Vec<u32>, most: usize) -> Vec<u32> {
        nodes.sort_by_key(|&node| draw(SEED, node));
        nodes.truncate(most);
        nodes.sort_unstable();
        nodes
    }

    #[test]
    fn all_rounds_take_nodes_in_the_order_of_draws() {
        let none = Repeated::default();
        for rows in [ring(10_000), random_graph(900, 20, 1), random_graph(1_001, 60, 2)] {
            let expected = with_smallest_draws(reference(&rows, &none), rows.len() / MIN_STEP);
            let first = layer(&rows, Rounds::First, &none, usize::MAX);
            let all = layer(&rows, Rounds::All, &none, usize::MAX);
            assert_eq!(all, expected);
            assert!(!first.is_empty() && first.len() <= all.len());
            for &node in &first {
                let own = draw(SEED, node);
                assert!(near(&rows, node).iter().all(|&near| own < draw(SEED, near)), "{node}");
            }
        }
    }

    #[test]
    fn a_gpu_takes_the_same_nodes() {
        // A row of more than 32 edges, some of them missing; edges to the node itself.
        let mut short = random_graph(301, 40, 3);
        short.push(7, 7);
        for rows in [ring(500), random_graph(301, 20, 1), short] {
            let (nodes, degree) = (rows.len(), rows.stride());
            for gpu in devices() {
                let ids = upload(&gpu, rows.padded());
                let edges = EdgeRows { ids: &ids, nodes, degree };
                for rounds in [Rounds::First, Rounds::All] {
                    let silent = Progress::silent();
                    let found = layer_nodes(&gpu, edges, rounds == Rounds::All, SEED, &silent).unwrap();
                    let found = with_smallest_draws(found, nodes / MIN_STEP);
                    assert_eq!(found, layer(&rows, rounds, &Repeated::default(), usize::MAX));
                }
            }
        }
    }

    #[test]
    fn every_node_has_one_near_that_is_taken() {
        let rows = ring(10_000);
        let all = layer(&rows, Rounds::All, &Repeated::default(), usize::MAX);
        for node in 0..10_000 {
            let taken = near(&rows, node).iter().filter(|near| all.contains(near)).count();
            assert!(all.contains(&node) != (taken > 0), "{node}");
        }
    }

    #[test]
    fn a_limited_layer_has_the_smallest_draws() {
        let rows = ring(10_000);
        for rounds in [Rounds::First, Rounds::All] {
            let all = layer(&rows, rounds, &Repeated::default(), usize::MAX);
            for most in [2, 3, 100, 200] {
                let expected = with_smallest_draws(all.clone(), most);
                assert_eq!(layer(&rows, rounds, &Repeated::default(), most), expected, "{most}");
            }
        }
        for (most, expected) in [(20, 20), (usize::MAX, 10_000 / MIN_STEP)] {
            let expected = with_smallest_draws((0..10_000).collect(), expected);
            assert_eq!(layer(&rows, Rounds::Random, &Repeated::default(), most), expected, "{most}");
        }
    }

    #[test]
    fn repeated_rows_are_not_taken() {
        let rows = ring(10_000);
        let all = layer(&rows, Rounds::All, &Repeated::default(), usize::MAX);
        let repeated = Repeated::read(&[all[1], 0, all[3], 0], rows.len()).unwrap();
        assert_eq!(layer(&rows, Rounds::All, &repeated, usize::MAX), reference(&rows, &repeated));
        let random = layer(&rows, Rounds::Random, &Repeated::default(), usize::MAX);
        let repeated = Repeated::read(&[random[1], 0, random[3], 0], rows.len()).unwrap();
        let others = layer(&rows, Rounds::Random, &repeated, usize::MAX);
        assert!(others.len() == random.len() && others.iter().all(|&node| !repeated.contains(node)));
    }
}
