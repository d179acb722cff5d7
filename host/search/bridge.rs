//! The edges that a graph would have in place of those to a node that is taken out.
//!
//! A build without the node gives its neighbours other edges: to nodes that it kept out of their
//! rows, being nearer. So each edge to the node is replaced by edges to the node's own neighbours,
//! nearest first, as a deletion repairs a graph (Singh et al., *FreshDiskANN*, 2021): a neighbour
//! is taken unless another edge of the row occludes it, as long as the row has room. Without them a
//! graph is worse than one that was built without the node; with all of them it is better.

use std::ops::Range;

use tagore_device::key::{self, Key};

use crate::Metric;
use crate::index::Graph;
use crate::vectors::space::Space;

/// The growth of distances above which occlusion has slack, the slack per growth, and the most.
/// Chosen by the recall of new queries (benches/results/rows-left-out.md): where
/// distances grow fast, as in few dimensions, a build has more edges than occlusion alone leaves.
const MIN_GROWTH: f32 = 0.1;
const PER_GROWTH: f32 = 0.7;
const MAX_SLACK: f32 = 1.05;

/// Edges whose distances to a neighbour are computed at a time.
const AT_ONCE: usize = 8;

/// Finds the edges in place of those to one node, with buffers that are kept.
#[derive(Default)]
pub(crate) struct Bridges {
    /// The edges found so far, and whose they are: the address of the row, and their places.
    found: Vec<u32>,
    found_of: Vec<(usize, Range<usize>)>,
    ids: Vec<u32>,
    keys: Vec<Key>,
    distances: Vec<f32>,
    row: Vec<u32>,
}

/// The factor of squared distances by which an edge is nearer to a neighbour that it occludes, in a
/// graph with this growth of list distances.
fn slack(growth: Option<f32>, metric: Metric) -> f32 {
    match (growth, metric) {
        (Some(growth), Metric::L2 | Metric::Cosine) => {
            (1.0 + PER_GROWTH * (growth - MIN_GROWTH)).clamp(1.0, MAX_SLACK)
        }
        _ => 1.0,
    }
}

impl Bridges {
    /// Forgets the edges that were found in place of those to another node.
    pub(crate) fn forget(&mut self) {
        self.found.clear();
        self.found_of.clear();
    }

    /// The edges of `node` in place of that to `gone`, in a graph with this growth. They are kept
    /// for searches with other beams until they are [forgotten](Self::forget).
    pub(crate) fn replacements(
        &mut self,
        space: &Space<'_>,
        graph: &impl Graph,
        growth: Option<f32>,
        node: u32,
        gone: u32,
    ) -> &[u32] {
        let slack = slack(growth, space.metric());
        let Self { found, found_of, ids, keys, distances, row } = self;
        let edges = graph.neighbors(node);
        // A row of this graph or of one of its layers.
        let address = edges.as_ptr().addr();
        if let Some((_, places)) = found_of.iter().find(|(of, _)| *of == address) {
            return &found[places.clone()];
        }
        row.clear();
        row.extend(edges.iter().filter(|&&id| id != gone));
        let kept = row.len();
        ids.clear();
        ids.extend(graph.neighbors(gone).iter().filter(|&id| *id != node && !edges.contains(id)));
        space.order_distances(node, ids, distances);
        keys.clear();
        keys.extend(ids.iter().zip(&*distances).map(|(&id, &distance)| key::pack(distance, id)));
        keys.sort_unstable();
        for &key in &*keys {
            if row.len() >= graph.degree() {
                break;
            }
            let id = key as u32;
            let away = space.rule_distance(node, id, key::distance(key));
            let is_occluded = row.chunks(AT_ONCE).any(|some| {
                space.rule_distances(id, some, distances);
                distances.iter().any(|&distance| slack * distance < away)
            });
            if !is_occluded {
                row.push(id);
            }
        }
        let places = found.len()..found.len() + row.len() - kept;
        found.extend_from_slice(&row[kept..]);
        found_of.push((address, places.clone()));
        &found[places]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Progress, Vectors};

    /// Edges, and the most of a node.
    struct Rows(Vec<Vec<u32>>, usize);

    impl Graph for Rows {
        fn neighbors(&self, node: u32) -> &[u32] {
            &self.0[node as usize]
        }

        fn degree(&self) -> usize {
            self.1
        }
    }

    #[test]
    fn neighbours_that_no_edge_occludes_replace_a_node() {
        // Node 1 goes. Of its neighbours 4 is nearest to node 0; 4 occludes 5, and edge 2 occludes
        // 3; 6 lies on the other side.
        let rows = [[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [0.2, 2.4], [2.0, 0.0], [3.0, 0.0], [0.0, -4.0]];
        let base = Vectors::from_rows(rows).unwrap();
        let edges = vec![vec![1, 2], vec![0, 2, 3, 4, 5, 6], vec![], vec![], vec![], vec![], vec![]];
        let mut bridges = Bridges::default();
        for metric in [Metric::L2, Metric::InnerProduct] {
            let space = Space::new(&base, metric, &Progress::silent()).unwrap();
            let mut replace = |degree| {
                let graph = Rows(edges.clone(), degree);
                bridges.forget();
                let first = bridges.replacements(&space, &graph, None, 0, 1).to_vec();
                assert_eq!(bridges.replacements(&space, &graph, None, 0, 1), first, "kept");
                first
            };
            if metric == Metric::L2 {
                assert_eq!(replace(9), [4, 6]);
                assert_eq!(replace(2), [4]);
            }
            assert!(replace(9).iter().all(|&id| id > 2), "a node or an edge that is there");
            assert_eq!(replace(1), Vec::<u32>::new(), "a full row");
        }
    }

    #[test]
    fn occlusion_has_slack_where_distances_grow_fast() {
        let growths = [None, Some(0.05), Some(0.15), Some(1.0)];
        let slacks = growths.map(|growth| slack(growth, Metric::L2));
        assert!(slacks[0] == 1.0 && slacks[1] == 1.0 && slacks[3] == MAX_SLACK);
        assert!((slacks[2] - 1.035).abs() < 1e-6, "{slacks:?}");
        assert_eq!(slack(Some(1.0), Metric::InnerProduct), 1.0);
    }
}
