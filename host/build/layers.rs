//! Whether searches of a graph find their way from its entry points, and the layers above it where
//! they do not.

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;
use tagore_device::descent::key;
use tagore_device::random::{Draws, Stage};

use super::Builder;
use crate::descent::{DescentStats, KnnGraph, sampled};
use crate::index::Layer;
use crate::prune::GraphRows;
use crate::search::beam::{BeamLimits, BeamSearch, BeamTask, Graph, Start};
use crate::search::exact::ExactSearch;
use crate::vectors::space::Space;
use crate::{Device, Index, Progress, Result, Strategy, Vectors};

/// Nodes that are searched for to see whether searches find their way.
const SAMPLE: usize = 1024;

/// So many of the sample may go astray, and nothing is done about it: one in 250.
const FEW: usize = SAMPLE / 250;

/// The beam that they are searched for with: narrow, since that is when the beginning matters.
const BEAM: usize = 32;

/// What the beam of a layer may be. The first is taken that loses at most one search more than the
/// best.
const LAYER_BEAMS: [usize; 5] = [4, 8, 16, 32, 64];

/// The degree of layers, and the neighbours per node that they are pruned from.
const DEGREE: usize = 32;
const KNN: usize = 64;

/// A layer with more than a sixth of the nodes below it is not built. Under inner product few
/// edges are mutual, and a layer would be nearly as large as the index.
const LEAST_STEP: usize = 6;

/// Fewer nodes than this need no layer: entry points are as many.
const LEAST: usize = 64;

/// Searches from `start` for a sample of the nodes of `graph`, and counts those that go astray:
/// what they find is farther than most of the node's own neighbours. Such a search ended in
/// another part of the data.
fn astray(
    space: &Space<'_>,
    graph: &impl Graph,
    start: Start<'_>,
    sample: &[u32],
    progress: &Progress,
) -> Result<usize> {
    let lost = AtomicUsize::new(0);
    let limits = BeamLimits { beam: BEAM, expansions: usize::MAX };
    sample.par_iter().try_for_each_init(
        || (BeamSearch::new(space.len()), Vec::new()),
        |(search, distances), &node| {
            progress.check()?;
            space.list_distances(space.query(node), graph.neighbors(node), distances);
            if distances.is_empty() {
                return Ok(());
            }
            let middle = distances.len() / 2;
            let (_, &mut median, _) = distances.select_nth_unstable_by(middle, f32::total_cmp);
            let task = BeamTask { query: space.query(node), start, limits };
            search.run(space, graph, task, |_| ());
            let nearest = search.found().next().map_or(f32::INFINITY, key::distance);
            lost.fetch_add(usize::from(nearest > median), Ordering::Relaxed);
            Ok(())
        },
    )?;
    Ok(lost.into_inner())
}

/// The nodes of the layer above a graph. Every node has a random draw. A node is in the layer if
/// its draw is smaller than those of all its mutual neighbours, which have an edge back to it. Such
/// nodes are few and lie far apart. Every part of the graph that no mutual edge leaves has at least
/// one, the node with the smallest draw.
///
/// Edges in one direction do not count: kinds that collect candidates on paths have edges from
/// everywhere to the same few nodes near the medoid. One small draw among these would keep all
/// other parts of the graph from having a node in the layer.
fn nodes_above(rows: &GraphRows, seed: u64) -> Vec<u32> {
    // Iteration 0 draws the entry points, iteration 1 the layers of exports.
    let draw = |node: u32| (Draws::new(seed, Stage::Entry, 2, node.into()).bits(0), node);
    let is_above = |&node: &u32| {
        let own = draw(node);
        let is_mutual = |neighbor: u32| rows.row(neighbor).contains(&node);
        rows.row(node).iter().all(|&neighbor| own < draw(neighbor) || !is_mutual(neighbor))
    };
    (0..rows.len() as u32).into_par_iter().filter(is_above).collect()
}

impl Builder {
    /// The layers that searches of the rows need, if they need any. The entry points become those
    /// of the highest layer.
    pub(super) fn layers_over(
        &self,
        base: &Vectors,
        space: &Space<'_>,
        rows: &GraphRows,
        entries: &mut Vec<u32>,
    ) -> Result<Vec<Layer>> {
        let (n, progress) = (rows.len(), &self.descent.progress);
        if n < LEAST {
            return Ok(Vec::new());
        }
        let sample = sampled(n, SAMPLE, self.descent.seed);
        let lost = |start: Start<'_>| astray(space, rows, start, &sample, progress);
        let without = lost(Start::at(entries))?;
        // A layer gets another in any case, up to a small one: hnswlib and FAISS enter at one node.
        if without <= FEW && !self.stacked {
            return Ok(Vec::new());
        }
        let nodes = nodes_above(rows, self.descent.seed);
        if nodes.len() < 2 || nodes.len() > n / LEAST_STEP {
            return Ok(Vec::new());
        }
        let above = self.layer_over(&base.select(&nodes))?;
        let mut layers = vec![Layer::over(&above, &nodes, LAYER_BEAMS[0])?];
        layers.extend(above.layers().iter().map(|layer| layer.clone().renamed(&nodes)));
        let highest: Vec<u32> = above.entries().iter().map(|&entry| nodes[entry as usize]).collect();

        let mut with = Vec::with_capacity(LAYER_BEAMS.len());
        for beam in LAYER_BEAMS {
            layers[0].set_beam(beam);
            with.push(lost(Start { entries: &highest, layers: &layers })?);
            if with.last().is_some_and(|&lost| lost == 0) {
                break;
            }
        }
        let fewest = with.iter().copied().min().unwrap_or(without);
        let first = with.iter().position(|&lost| lost <= fewest + 1).unwrap_or(0);
        layers[0].set_beam(LAYER_BEAMS[first]);
        let (nodes, beam) = (nodes.len(), LAYER_BEAMS[first]);
        tracing::info!(nodes, beam, without, with = with[first], "searches begin in layers");
        if fewest >= without && !self.stacked {
            return Ok(Vec::new());
        }
        *entries = highest;
        Ok(layers)
    }

    /// The index of a layer of these vectors, from exact lists: the same on any device.
    fn layer_over(&self, base: &Vectors) -> Result<Index> {
        let n = base.len();
        let k = KNN.min(n - 1);
        // The emulator would take hours for what the CPU does at once.
        let device = if self.descent.device.is_emulated() { Device::Cpu } else { self.descent.device };
        let descent = self.descent.clone().knn(k).device(device);
        let (metric, progress) = (descent.metric, &descent.progress);
        let space = Space::new(base, metric, progress)?;
        let search = ExactSearch::new(k).metric(metric).device(device).progress(progress.clone());
        let keys = search.neighbors_of(&space, &(0..n as u32).collect::<Vec<_>>())?;
        let graph = KnnGraph::from_keys(k, metric, n, &keys, DescentStats::default());
        let strategy = Strategy::cagra().degree(DEGREE.min(n - 1));
        let builder = Builder { stacked: true, ..Self::new(strategy).descent(descent) };
        builder.build_from(base, &graph)
    }
}
