//! Whether searches of a graph find their way from its entry points, and the layers above it where they do not.

use std::sync::atomic::{AtomicUsize, Ordering};

use rayon::prelude::*;
use tagore_device::descent::key;
use tagore_device::random::{Draws, Stage};

use super::rows::Rows;
use super::strategy::Strategy;
use super::{Builder, Pruned};
use crate::descent::{DescentStats, KnnGraph, sampled};
use crate::index::Layer;
use crate::search::beam::{BeamSearch, Graph, Limits, Start};
use crate::search::exact::ExactSearch;
use crate::vectors::space::Space;
use crate::{Device, Index, Progress, Result, Vectors};

/// Nodes that are searched for to see whether searches find their way.
const SAMPLE: usize = 1024;

/// So many of the sample may go astray, and nothing is done about it: one in 250.
const FEW: usize = SAMPLE / 250;

/// The beam that they are searched for with: narrow, since that is when the beginning matters.
const BEAM: usize = 32;

/// What the beam of a layer may be: the first of these that leads as many searches home as the last, but for one.
const LAYER_BEAMS: [usize; 5] = [4, 8, 16, 32, 64];

/// The degree of layers, and the neighbours per node that they are pruned from.
const DEGREE: usize = 32;
const KNN: usize = 64;

/// A layer has at most one in so many of the nodes below it. Under inner product few edges are mutual, and a layer would
/// be nearly as large as the index.
const LEAST_STEP: usize = 6;

/// Fewer nodes than this need no layer: entry points are as many.
const LEAST: usize = 64;

/// How many of a sample of the nodes of `graph` searches from `start` do not find: what they find is farther than most of
/// the node's own neighbours. Such a search ended in another part of the data.
fn astray(
    space: &Space<'_>,
    graph: &impl Graph,
    start: Start<'_>,
    sample: &[u32],
    progress: &Progress,
) -> Result<usize> {
    let lost = AtomicUsize::new(0);
    let limits = Limits { beam: BEAM, expansions: usize::MAX };
    sample.par_iter().try_for_each_init(
        || (BeamSearch::new(space.len()), Vec::new()),
        |(search, distances), &node| {
            progress.check()?;
            space.list_distances(space.point(node), graph.neighbors(node), distances);
            if distances.is_empty() {
                return Ok(());
            }
            let middle = distances.len() / 2;
            let (_, &mut median, _) = distances.select_nth_unstable_by(middle, f32::total_cmp);
            search.run(space, graph, space.point(node), start, limits, |_| ());
            let nearest = search.found().next().map_or(f32::INFINITY, key::distance);
            lost.fetch_add(usize::from(nearest > median), Ordering::Relaxed);
            Ok(())
        },
    )?;
    Ok(lost.into_inner())
}

/// The nodes of the layer above a graph: those whose draw is smaller than that of all neighbours that have them as
/// neighbours too. They are few and lie far apart. Every part of the graph that no such edges leave has one, the node
/// with its smallest draw, and so has every node that nobody else leads to.
///
/// Edges in one direction do not count: from wherever a node lies, paths have led some kinds to the same few nodes near the
/// middle, and one small draw there would leave all others without a node above.
fn nodes_above(rows: &Rows, seed: u64) -> Vec<u32> {
    // Where a search enters, as the entry points are; those are drawn in iteration 0, layers of exports in iteration 1.
    let draw = |node: u32| (Draws::new(seed, Stage::Entry, 2, node.into()).bits(0), node);
    let is_above = |&node: &u32| {
        let own = draw(node);
        let is_mutual = |neighbor: u32| rows.row(neighbor).contains(&node);
        rows.row(node).iter().all(|&neighbor| own < draw(neighbor) || !is_mutual(neighbor))
    };
    (0..rows.len() as u32).into_par_iter().filter(is_above).collect()
}

impl Builder {
    /// The layers that searches of the rows need, if they need any: the entry points are then those of the highest.
    pub(super) fn layers_over(
        &self,
        base: &Vectors,
        space: &Space<'_>,
        (rows, entries): &mut Pruned,
    ) -> Result<Vec<Layer>> {
        let (n, progress) = (rows.len(), &self.descent.progress);
        if n < LEAST {
            return Ok(Vec::new());
        }
        let sample = sampled(n, SAMPLE, self.descent.seed);
        let rows = &*rows;
        let lost = |start: Start<'_>| astray(space, rows, start, &sample, progress);
        let without = lost(Start::at(entries))?;
        // Where there is one layer there are all up to a small one: searches of hnswlib and FAISS enter at a single node.
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
            layers[0] = layers[0].clone().with_beam(beam);
            with.push(lost(Start { entries: &highest, layers: &layers })?);
            if with.last().is_some_and(|&lost| lost == 0) {
                break;
            }
        }
        let fewest = with.iter().copied().min().unwrap_or(without);
        let first = with.iter().position(|&lost| lost <= fewest + 1).unwrap_or(0);
        layers[0] = layers[0].clone().with_beam(LAYER_BEAMS[first]);
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
        let descent = self.descent.clone().knn(KNN.min(n - 1));
        // The emulator would take hours for what the CPU does at once.
        let device = if descent.device.is_emulated() { Device::Cpu } else { descent.device };
        let descent = descent.device(device);
        let (metric, progress, k) = (descent.metric, &descent.progress, KNN.min(n - 1));
        let space = Space::new(base, metric, progress)?;
        let search = ExactSearch::new(k).metric(metric).device(device).progress(progress.clone());
        let keys = search.neighbors_of(&space, &(0..n as u32).collect::<Vec<_>>())?;
        let graph = KnnGraph::from_keys(k, metric, n, &keys, DescentStats::default());
        let strategy = Strategy::cagra().degree(DEGREE.min(n - 1));
        let builder = Builder { stacked: true, ..Self::new(strategy).descent(descent) };
        builder.build_from(base, &graph)
    }
}
