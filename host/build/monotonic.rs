//! Monotonic graphs: from every node, an edge leads nearer to every other node.

use tagore_device::key::NO_ID;

use super::layers::{LAYER_BEAMS, LowerGraph};
use super::{Builder, Layering};
use crate::gpu::Gpu;
use crate::index::{Layer, Layered, random_entries};
use crate::loops::{map, rows, try_map_with};
use crate::memory::filled;
use crate::prune::{self, GraphRows};
use crate::vectors::Repeated;
use crate::vectors::space::Space;
use crate::{MAX_DEGREE, Metric, Progress, Result, Vectors};

/// The most edges that a node keeps. Without this limit, nodes in the middle of the data have over
/// 200.
pub(super) const DEGREE: usize = 128;

/// Maximum number of nodes of such a graph, of rows of up to [`DIM`] components: its edges take all
/// pairs of nodes, on a CPU. 15,500 x 64 take a second on 16 cores.
pub(super) const MAX_NODES: usize = 1 << 14;

/// Minimum number of nodes of such a graph. Fewer have so few edges that beams lose queries: 0.997
/// of them are found in 20,000 rows of 100 clusters, and 0.9999 through a layer from lists.
pub(super) const MIN_NODES: usize = 1 << 10;

/// Components of rows for which [`MAX_NODES`] nodes were measured. Fewer take hardly less time.
const DIM: usize = 64;

/// Maximum number of nodes of rows of `dim` components. Longer rows are fewer, so that all still
/// fit a core's cache.
pub(super) const fn max_nodes(dim: usize) -> usize {
    if dim <= DIM { MAX_NODES } else { MAX_NODES * DIM / dim }
}

/// A rule that removes long edges: an edge from p to r removes a longer one from p to q if `slack`
/// times the rule distance of r and q is less than that of p and q.
#[derive(Clone, Copy)]
struct Occlusion {
    /// Above 1, r must be nearer to q by that factor, so that more edges stay.
    slack: f32,
    /// Maximum number of edges of a node.
    degree: usize,
}

/// The rule for layers that searches of this library use.
const TIGHT: Occlusion = Occlusion { slack: 1.0, degree: DEGREE };

/// Maximum number of nodes of a layer for searches with a beam of one that has an edge between any
/// two, unless these coincide.
const COMPLETE: usize = MAX_DEGREE + 1;

/// Maximum number of nodes of such a layer whose steps get nearer by 15 %. Edges of more nodes take
/// long to build.
const SPARSE: usize = 1 << 12;

/// The rule for a layer of `nodes` nodes that is searched with a beam of one. A greedy search for a
/// node gets nearer with each step. A query is no node, so a search for it may stop where the next
/// step is hardly nearer. Fewer nodes lie farther from queries and need longer steps.
const fn for_greedy_search(nodes: usize) -> Occlusion {
    let slack = if nodes <= COMPLETE {
        f32::MAX
    } else if nodes <= SPARSE {
        1.15 * 1.15
    } else {
        1.06 * 1.06
    };
    Occlusion { slack, degree: MAX_DEGREE }
}

/// How many times [`most`] nodes a layer for searches with a beam of one may have: it is built for
/// a file that is asked for, and without it every query whose search stops early is lost.
const MAX_IN_FILES: usize = 2;

/// Buffers of one thread.
#[derive(Default)]
struct Scratch {
    left: Vec<u32>,
    from_node: Vec<f32>,
    from_near: Vec<f32>,
}

/// The monotonic relative neighbourhood graph of all rows (Fu et al. 2019, *NSG*, section 3.3): an
/// edge from p to q stays unless a shorter edge of p leads to a node nearer to q. Greedy search for
/// any node then never stops before it, as long as no node has as many edges as the rule allows.
/// NSG takes its candidates from lists of neighbours; here they are all nodes.
///
/// Distances are rule distances, and equal ones are ordered by id. A GPU and the CPU make the same
/// graph.
fn monotonic(
    space: &Space<'_>,
    occlusion: Occlusion,
    gpu: Option<&Gpu>,
    progress: &Progress,
) -> Result<GraphRows> {
    let edges: Vec<Vec<u32>> = match gpu {
        Some(gpu) => {
            let degree = occlusion.degree.min(space.len() - 1).max(1);
            let ids = prune::gpu::monotonic(gpu, space, occlusion.slack, degree)?;
            let ends = |row: &[u32]| row.iter().copied().take_while(|&end| end != NO_ID).collect();
            map(rows(&ids, degree), ends)
        }
        None => {
            let edges = |scratch: &mut Scratch, node: u32| {
                progress.check()?;
                Ok(edges(space, node, occlusion, scratch))
            };
            try_map_with(0..space.len() as u32, Scratch::default, edges)?
        }
    };
    let stride = edges.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let mut ids = filled(NO_ID, edges.len() * stride)?;
    for (row, edges) in ids.chunks_exact_mut(stride).zip(edges) {
        row[..edges.len()].copy_from_slice(&edges);
    }
    GraphRows::from_padded(ids, stride)
}

/// The edges of `node`, nearest first. Each takes away the nodes that are nearer to its end than to
/// `node`, so the distances left to compute halve, about, with every edge.
fn edges(
    space: &Space<'_>,
    node: u32,
    Occlusion { slack, degree }: Occlusion,
    scratch: &mut Scratch,
) -> Vec<u32> {
    let Scratch { left, from_node, from_near } = scratch;
    let mut edges = Vec::new();
    left.clear();
    left.extend((0..space.len() as u32).filter(|&other| other != node));
    space.rule_distances(node, left, from_node);
    while edges.len() < degree
        && let Some(place) =
            (0..left.len()).min_by(|&a, &b| from_node[a].total_cmp(&from_node[b]).then(left[a].cmp(&left[b])))
    {
        let near = left.swap_remove(place);
        from_node.swap_remove(place);
        edges.push(near);
        space.rule_distances(near, left, from_near);
        let mut kept = 0;
        for place in 0..left.len() {
            // Of nodes that coincide, one has an edge.
            if from_near[place] > 0.0 && slack * from_near[place] >= from_node[place] {
                (left[kept], from_node[kept]) = (left[place], from_node[place]);
                kept += 1;
            }
        }
        left.truncate(kept);
        from_node.truncate(kept);
    }
    edges
}

/// `layer` of an index of `base`, for searches with a beam of one; none if it has too many nodes,
/// or under inner product.
pub(crate) fn for_beam_of_one(
    base: &Vectors,
    metric: Metric,
    layer: &Layer,
    progress: &Progress,
) -> Result<Option<Layer>> {
    let nodes = layer.nodes();
    if metric == Metric::InnerProduct || nodes.len() > MAX_IN_FILES * max_nodes(base.dim()) {
        return Ok(None);
    }
    let vectors = base.select(nodes)?;
    let occlusion = for_greedy_search(nodes.len());
    let rows = monotonic(&Space::new(&vectors, metric, progress)?, occlusion, None, progress)?;
    Ok(Some(layer_of(rows, 1).renamed(nodes)))
}

/// The layer of all nodes of `rows`.
fn layer_of(rows: GraphRows, beam: usize) -> Layer {
    let (nodes, degree) = ((0..rows.len() as u32).collect(), rows.stride());
    let (_, neighbors) = rows.into_parts();
    Layer::new(nodes, degree, neighbors, beam)
}

impl Builder {
    /// Builds the monotonic graph of a layer of all rows, on `gpu` if given, and the layers above
    /// it.
    pub(super) fn monotonic_over(&self, base: &Vectors, gpu: Option<&Gpu>) -> Result<Layered> {
        let (n, progress) = (base.len(), &self.descent.progress);
        let space = Space::new(base, self.descent.metric, progress)?;
        let rows = monotonic(&space, TIGHT, gpu, progress)?;
        let repeated = &Repeated::default();
        let below =
            LowerGraph { base, space: &space, graph: &rows, repeated, remote: &[], most: n, on_device: None };
        let builder = Self { layering: Layering::Always, ..self.clone() };
        let mut layered = builder.layers_over(&below, random_entries(n, self.descent.seed))?;
        layered.layers.insert(0, layer_of(rows, LAYER_BEAMS[0]));
        Ok(layered)
    }
}

#[cfg(test)]
mod tests {
    use tagore_device::random::{Draws, Stage};

    use super::*;
    use crate::prune::gpu::testing::devices;
    use crate::{ElementType, Synth};

    fn distance(space: &Space<'_>, a: u32, b: u32) -> f32 {
        let mut out = Vec::new();
        space.rule_distances(a, &[b], &mut out);
        out[0]
    }

    /// The rule by its definition: all nodes, nearest first.
    fn reference(space: &Space<'_>, node: u32, Occlusion { slack, degree }: Occlusion) -> Vec<u32> {
        let mut others: Vec<u32> = (0..space.len() as u32).filter(|&other| other != node).collect();
        others
            .sort_by(|&a, &b| distance(space, node, a).total_cmp(&distance(space, node, b)).then(a.cmp(&b)));
        let mut edges: Vec<u32> = Vec::new();
        for other in others {
            let stays = |edge: u32| {
                let apart = distance(space, edge, other);
                apart > 0.0 && slack * apart >= distance(space, node, other)
            };
            if edges.iter().all(|&edge| stays(edge)) {
                edges.push(other);
            }
        }
        edges.truncate(degree);
        edges
    }

    #[test]
    fn rows_are_those_of_the_definition() {
        for (n, dim, metric) in
            [(1, 3, Metric::L2), (2, 3, Metric::L2), (301, 17, Metric::L2), (200, 24, Metric::Cosine)]
        {
            let base = Synth::new(n, dim, 7).unwrap().base();
            let space = Space::new(&base, metric, &Progress::silent()).unwrap();
            for occlusion in [TIGHT, for_greedy_search(SPARSE), for_greedy_search(SPARSE + 1)] {
                let rows = monotonic(&space, occlusion, None, &Progress::silent()).unwrap();
                for node in 0..n as u32 {
                    assert_eq!(rows.row(node), reference(&space, node, occlusion), "{n} {metric} {node}");
                }
            }
        }
    }

    #[test]
    fn a_gpu_makes_the_same_rows() {
        let gpus = devices();
        let check = |base: &Vectors, metric: Metric, occlusion: Occlusion| {
            let space = Space::new(base, metric, &Progress::silent()).unwrap();
            let rows = |gpu| monotonic(&space, occlusion, gpu, &Progress::silent()).unwrap().into_parts();
            let expected = rows(None);
            for gpu in &gpus {
                let (n, dim, element) = (base.len(), base.dim(), base.element_type());
                assert!(rows(Some(gpu)) == expected, "{n} x {dim} {element}, {metric}");
            }
        };
        // Ties, equal rows and zero vectors; rows that fill their edges.
        for (n, dim, degree) in [(2, 1, 128), (33, 5, 3), (70, 17, 128)] {
            let draws = Draws::new(n as u64, Stage::Test, 1, 0);
            let values = (0..n * dim).map(|i| draws.below(i as u64, 5) as u8).collect();
            let bytes = Vectors::from_u8(values, dim).unwrap();
            let floats = Synth::new(n, dim, 7).unwrap().base();
            let types = [
                (&bytes, ElementType::U8),
                (&bytes, ElementType::I8),
                (&floats, ElementType::F16),
                (&floats, ElementType::F32),
            ];
            for (base, element) in types {
                let base = base.cast(element, &Progress::silent()).unwrap();
                check(&base, Metric::L2, Occlusion { degree, ..TIGHT });
                check(&base, Metric::Cosine, Occlusion { degree, ..for_greedy_search(SPARSE) });
            }
        }
        // More rows than blocks.
        let many = Synth::new(514, 1, 7).unwrap().base();
        check(&many, Metric::L2, Occlusion { degree: 2, ..TIGHT });
    }

    #[test]
    fn small_layers_for_a_beam_of_one_are_complete() {
        let base = Synth::new(COMPLETE, 8, 5).unwrap().base();
        let nodes = (0..COMPLETE as u32).collect();
        let layer = Layer::new(nodes, 1, vec![NO_ID; COMPLETE], 2);
        let silent = Progress::silent();
        let widened = for_beam_of_one(&base, Metric::L2, &layer, &silent).unwrap().unwrap();
        assert!((0..COMPLETE).all(|place| widened.neighbors(place).len() == COMPLETE - 1));
        assert!(for_beam_of_one(&base, Metric::InnerProduct, &layer, &silent).unwrap().is_none());
    }

    #[test]
    fn longer_rows_have_smaller_graphs() {
        for (dim, nodes) in [(1, 16_384), (64, 16_384), (65, 16_131), (256, 4_096), (960, 1_092)] {
            assert_eq!(max_nodes(dim), nodes, "{dim}");
        }
    }

    #[test]
    fn greedy_search_reaches_every_node_from_every_node() {
        let base = Synth::new(400, 12, 3).unwrap().base();
        let space = Space::new(&base, Metric::L2, &Progress::silent()).unwrap();
        let rows = monotonic(&space, TIGHT, None, &Progress::silent()).unwrap();
        for (start, goal) in (0..400).flat_map(|start| (0..400).map(move |goal| (start, goal))) {
            let mut at = start;
            while at != goal {
                let next =
                    |&a: &u32, &b: &u32| distance(&space, a, goal).total_cmp(&distance(&space, b, goal));
                let nearest = *rows.row(at).iter().min_by(|a, b| next(a, b)).unwrap();
                assert!(distance(&space, nearest, goal) < distance(&space, at, goal), "{start} to {goal}");
                at = nearest;
            }
        }
    }

    #[test]
    fn a_node_amid_many_has_no_more_edges_than_the_degree() {
        // The centre of a ball has an edge to every direction.
        let dim = 2 * DEGREE;
        let ends = (0..dim).flat_map(|axis| [(axis, 1.0), (axis, -1.0)]);
        let point = |(axis, value)| {
            let mut point = vec![0f32; dim];
            point[axis] = value;
            point
        };
        let base = Vectors::from_rows([(0, 0.0)].into_iter().chain(ends).map(point)).unwrap();
        let space = Space::new(&base, Metric::L2, &Progress::silent()).unwrap();
        let rows = monotonic(&space, TIGHT, None, &Progress::silent()).unwrap();
        assert_eq!(rows.row(0), (1..=DEGREE as u32).collect::<Vec<_>>());
    }
}
