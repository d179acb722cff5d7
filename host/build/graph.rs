//! The k-NN graph of a build, on the device that prunes it.

use std::borrow::Cow;
use std::time::Instant;

use super::Builder;
use super::spots::Odd;
use crate::descent::{DescentStats, DeviceGraph, KnnGraph, KnnSample};
use crate::gpu::{Buffer, Communicator, Gpu, SharedTimes};
use crate::memory::{peak_host_bytes, touched_zeros};
use crate::prune::gpu::Pruning;
use crate::prune::{GraphRows, Pruned, cpu, gpu};
use crate::vectors::gpu::{DeviceBase, with_typed};
use crate::vectors::space::Space;
use crate::{DeviceResults, Result, Vectors};

/// A pruned graph and its base on a device.
pub(crate) struct OnDevice {
    pub gpu: Gpu,
    pub base: DeviceBase,
    /// The padded rows of the pruned graph.
    pub edges: Buffer<u32>,
}

/// The rows of a pruned graph, where they were pruned.
pub(crate) enum PrunedRows {
    Host(GraphRows),
    Device(Box<OnDevice>),
}

/// A k-NN graph on the device that prunes it.
pub(super) enum Graph<'a> {
    Cpu(Cow<'a, KnnGraph>),
    Gpu {
        gpu: Gpu,
        graph: Box<DeviceGraph>,
        /// Further devices, with the same graph.
        others: Vec<(Gpu, DeviceGraph)>,
        /// Seconds of the upload of a given graph.
        copy: f64,
    },
}

impl<'a> Graph<'a> {
    /// Copies a given graph, and the rows of `space`, to a GPU.
    fn upload(gpu: Gpu, space: &Space<'_>, graph: &KnnGraph) -> Result<Self> {
        let copying = Instant::now();
        let graph = Box::new(DeviceGraph::upload(&gpu, space, graph)?);
        gpu.synchronize()?;
        Ok(Self::Gpu { gpu, graph, others: Vec::new(), copy: copying.elapsed().as_secs_f64() })
    }

    /// Statistics of the descent that built the graph.
    pub(super) fn stats(&self) -> &DescentStats {
        match self {
            Self::Cpu(graph) => graph.stats(),
            Self::Gpu { graph, .. } => &graph.stats,
        }
    }

    /// The lists of `nodes`, for a report.
    pub(super) fn sample(&self, nodes: &[u32]) -> Result<KnnSample> {
        match self {
            Self::Cpu(graph) => Ok(KnnSample::take(graph, nodes)),
            Self::Gpu { gpu, graph, .. } => KnnSample::on_device(gpu, &graph.lists, nodes),
        }
    }
}

impl Builder {
    /// Builds the k-NN graph of `base` that [`build_from`](Self::build_from) prunes, with this
    /// builder's neighbours per node.
    ///
    /// # Errors
    /// As [`Descent::build`](crate::Descent::build).
    pub fn knn_graph(&self, base: &Vectors) -> Result<KnnGraph> {
        self.descent.clone().knn(self.k_for(base)?).build(base)
    }

    /// As [`knn_graph`](Self::knn_graph), and leaves the graph in the memory of a device; see
    /// [`Descent::build_into`](crate::Descent::build_into).
    ///
    /// # Errors
    /// As [`Descent::build_into`](crate::Descent::build_into).
    pub fn knn_graph_into(&self, base: &Vectors, results: &DeviceResults) -> Result<DescentStats> {
        self.descent.clone().knn(self.k_for(base)?).build_into(base, results)
    }

    /// Builds the k-NN graph on all `gpus`, or on the CPU if there are none, or copies the given
    /// graph to the first.
    pub(super) fn graph_on<'g>(
        &self,
        space: &Space<'_>,
        k: usize,
        gpus: Vec<Gpu>,
        given: Option<&'g KnnGraph>,
    ) -> Result<Graph<'g>> {
        let first = gpus.first().cloned();
        match (first, given) {
            (Some(gpu), Some(graph)) => Graph::upload(gpu, space, graph),
            (Some(gpu), None) => {
                // The rows of dense spots get other lists.
                let completes = |graph: &DeviceGraph| Ok(Odd::on_device(&gpu, space, graph)?.spots.is_none());
                let graphs = self.descent.build_on_devices(&gpus, space, k, completes)?;
                let mut on_devices = gpus.into_iter().zip(graphs);
                let (gpu, graph) = on_devices.next().ok_or_else(|| gpu.error("built no graph"))?;
                let others = on_devices.collect();
                Ok(Graph::Gpu { gpu, graph: Box::new(graph), others, copy: 0.0 })
            }
            (None, Some(graph)) => Ok(Graph::Cpu(Cow::Borrowed(graph))),
            (None, None) => Ok(Graph::Cpu(Cow::Owned(self.descent.build_in(space, k)?))),
        }
    }

    /// Prunes the graph on its device, and copies the rows to the host. Returns what is on a GPU
    /// too.
    pub(super) fn prune(&self, space: &Space<'_>, graph: Graph<'_>) -> Result<(Pruned, Option<OnDevice>)> {
        let degree = self.strategy.degree;
        let mut room = Ok(Vec::new());
        let pruned = rayon::in_place_scope(|scope| {
            if let Graph::Gpu { .. } = &graph {
                // The host waits for the device, and its pages take as long as the copy.
                scope.spawn(|_| room = touched_zeros(space.len() * degree));
            }
            self.prune_there(space, graph)
        });
        let Pruned { rows, entries, mut stats } = pruned?;
        let (rows, on_device) = match rows {
            PrunedRows::Host(rows) => (rows, None),
            PrunedRows::Device(there) => {
                let copying = Instant::now();
                let rows = gpu::download(&there.edges, room?, degree)?;
                stats.copy += copying.elapsed().as_secs_f64();
                stats.peak_host_bytes = peak_host_bytes();
                (rows, Some(*there))
            }
        };
        Ok((Pruned { rows, entries, stats }, on_device))
    }

    /// Prunes the graph on its device, and leaves the rows there.
    pub(super) fn prune_there(&self, space: &Space<'_>, graph: Graph<'_>) -> Result<Pruned<PrunedRows>> {
        let Self { strategy, descent, .. } = self;
        let (seed, progress) = (descent.seed, &descent.progress);
        match graph {
            Graph::Cpu(graph) => {
                // Pruning reads ids alone, unless the lists are settled.
                let graph = match graph {
                    Cow::Owned(graph) if !graph.is_settled() => Cow::Owned(graph.without_distances()),
                    kept => kept,
                };
                let Pruned { rows, entries, stats } = cpu::prune(space, &graph, strategy, seed, progress)?;
                Ok(Pruned { rows: PrunedRows::Host(rows), entries, stats })
            }
            Graph::Gpu { gpu, graph, others, copy } => {
                let all = std::iter::once((gpu, *graph)).chain(others);
                let (mut gpus, graphs): (Vec<_>, Vec<_>) = all.unzip();
                let (k, unwatched) = (graphs[0].lists.k, progress.unwatched());
                let shape = self.pruning(space.len(), space.dim(), k);
                let measurements = SharedTimes::begin(&gpus)?;
                let mut pruned = Communicator::run(&gpus, graphs, |devices, graph| {
                    let DeviceGraph { base, lists, .. } = graph;
                    let progress = if devices.is_first() { progress } else { &unwatched };
                    let pruning = Pruning { devices, space, shape, seed, progress };
                    let pruned = with_typed!(&base, base => pruning.run(base, lists))?;
                    Ok(pruned.map(|pruned| (pruned, base)))
                })?;
                let first = pruned.swap_remove(0).ok_or_else(|| gpus[0].error("pruned nothing"))?;
                let (Pruned { rows: edges, entries, mut stats }, base) = first;
                stats.measured(&gpus, measurements)?;
                stats.copy += copy;
                let gpu = gpus.swap_remove(0);
                let there = Box::new(OnDevice { gpu, base, edges });
                Ok(Pruned { rows: PrunedRows::Device(there), entries, stats })
            }
        }
    }
}
