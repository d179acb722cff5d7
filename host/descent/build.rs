//! Builds of a graph in a prepared space, on the CPU or on a GPU.

use std::time::Instant;

use super::gpu::{self, DeviceGraph};
use super::sample::ExactLists;
use super::settle::{self, Settling};
use super::{Descent, DescentStats, KnnGraph, KnnSample, Start, all_pairs, cpu};
use crate::gpu::{Communicator, Gpu, SharedTimes};
use crate::memory::{check_room, peak_host_bytes};
use crate::vectors::DataShape;
use crate::vectors::space::Space;
use crate::{Progress, Result};

/// Time of settling lists on the CPU, in times of finding them, for progress.
const SETTLING: f64 = 0.05;

impl Descent {
    /// Builds the graph in a prepared space.
    pub(crate) fn build_in(&self, space: &Space<'_>, k: usize) -> Result<KnnGraph> {
        let (nodes, metric) = (space.len(), self.metric);
        match self.gpu(nodes, space.dim())? {
            Some(gpu) => {
                self.check_parameters()?;
                if self.has_residuals() && k > 0 {
                    let DeviceGraph { lists, stats, .. } = self.build_on_device(&gpu, space, k)?;
                    return Ok(KnnGraph::from_keys(k, metric, nodes, &lists.download()?, stats)?.settled());
                }
                let gpus = std::slice::from_ref(&gpu);
                let measurements = SharedTimes::begin(gpus)?;
                let run = |descent: &Self| {
                    descent.on_gpu(Communicator::alone(&gpu), space, k, &self.progress).run()
                };
                let (mut keys, mut stats) = run(self)?;
                let lists = |nodes: &[u32]| Ok(KnnSample::of_keys(&keys, k, nodes));
                if self.misses_many(&gpu, space, k, lists)? {
                    (keys, stats) = run(&self.clone().start(Start::AllPairs))?;
                }
                stats.measured(gpus, measurements)?;
                KnnGraph::from_keys(k, metric, nodes, &keys, stats)
            }
            None => {
                space.vectors().on_host()?;
                let data = DataShape::new(nodes, space.dim(), space.vectors().element_type())?;
                let stages = self.stages_on_cpu(&data, k, rayon::current_num_threads());
                check_room(stages.iter().map(|stage| stage.buffers.bytes()).max().unwrap_or(0))?;
                self.build_on_cpu(space, &data, k)
            }
        }
    }

    /// Whether a start from cells missed so many neighbours that all pairs must be compared.
    /// Exact search of a few nodes tells, whose lists `lists` gives.
    pub(super) fn misses_many(
        &self,
        gpu: &Gpu,
        space: &Space<'_>,
        k: usize,
        lists: impl FnOnce(&[u32]) -> Result<KnnSample>,
    ) -> Result<bool> {
        let data = shape_there(space);
        if self.start != Start::Auto
            || data.rows > gpu::ALL_PAIRS_OF_PRODUCTS
            || !self.starts_from_cells(&data, k)
        {
            return Ok(false);
        }
        let exact = ExactLists::on_gpu(gpu, space, k, self.seed, &self.progress)?;
        Ok(exact.recall_at(k, lists(&exact.sample)?.lists()) < cpu::FOUND)
    }

    /// Builds the graph on a GPU and leaves it there; `k` is not 0.
    pub(crate) fn build_on_device(&self, gpu: &Gpu, space: &Space<'_>, k: usize) -> Result<DeviceGraph> {
        let graph = self.build_on_devices(std::slice::from_ref(gpu), space, k, |_| Ok(true))?.pop();
        graph.ok_or_else(|| gpu.error("built no graph"))
    }

    /// Builds the graph on all of `gpus` together, at least one, and leaves it on each; `k` is not
    /// 0. Where rounding leaves lists unreliable, `completes` decides whether exact search replaces
    /// them.
    pub(crate) fn build_on_devices(
        &self,
        gpus: &[Gpu],
        space: &Space<'_>,
        k: usize,
        completes: impl Fn(&DeviceGraph) -> Result<bool> + Sync,
    ) -> Result<Vec<DeviceGraph>> {
        self.check_parameters()?;
        let measurements = SharedTimes::begin(gpus)?;
        let unwatched = self.progress.unwatched();
        let mut graphs = Communicator::run(gpus, vec![(); gpus.len()], |devices, ()| {
            let progress = if devices.is_first() { &self.progress } else { &unwatched };
            let build = self.on_gpu(devices, space, self.unsettled(k, space.len()), progress);
            let mut graph = build.run_on_device()?;
            // The first device decides for all.
            let decides = devices.is_first() && (!graph.is_lacking() || completes(&graph)?);
            let mut decided = [u64::from(decides)];
            devices.all_reduce_sum(&mut decided)?;
            if decided[0] > 0 {
                build.complete(&mut graph)?;
            }
            if let Settling::By(rests) = &self.settling {
                graph.settle(devices.gpu(), rests, k)?;
            }
            Ok(graph)
        })?;
        if let Some(first) = graphs.first_mut() {
            first.stats.measured(gpus, measurements)?;
        }
        Ok(graphs)
    }

    fn on_gpu<'a>(
        &'a self,
        devices: Communicator<'a>,
        space: &'a Space<'a>,
        k: usize,
        progress: &'a Progress,
    ) -> gpu::Build<'a> {
        let data = shape_there(space);
        let (gpu, shape) = (devices.gpu(), self.shape_on_gpu(&data, k));
        gpu::Build { gpu, devices, space, shape, expand: self.expand, seed: self.seed, progress }
    }

    fn build_on_cpu(&self, space: &Space<'_>, data: &DataShape, k: usize) -> Result<KnnGraph> {
        self.check_parameters()?;
        let began = Instant::now();
        let (nodes, metric) = (space.len(), self.metric);
        let start = self.start_on_cpu(data, k);
        let mut all_pairs = start == Start::AllPairs;
        if k > 0 && self.may_compare_all(data, start) {
            all_pairs = cpu::needs_all_pairs(space, self.settings, k, self.seed, &self.progress)?;
        }
        let longer = self.unsettled(k, nodes);
        let [finding, settling] =
            self.progress.parts([1.0, if self.has_residuals() { SETTLING } else { 0.0 }]);
        let (mut keys, mut stats) = if all_pairs {
            (all_pairs::all_pairs(space, longer, &finding)?, DescentStats::default())
        } else {
            let &Self { iterations, expand, seed, settings: cells, .. } = self;
            let plan = cpu::CpuDescent { k: longer, start, cells, iterations, expand, seed };
            cpu::descend(space, &plan, &finding)?
        };
        if stats.distances == 0 {
            stats.distances = nodes as u64 * (nodes as u64 - 1) / 2;
        }
        if let Settling::By(rests) = &self.settling {
            stats.distances += keys.len() as u64;
            keys = settle::settle(keys, k, metric, space.vectors(), rests, &settling)?;
        }
        stats.seconds = began.elapsed().as_secs_f64();
        stats.peak_host_bytes = peak_host_bytes();
        "cpu".clone_into(&mut stats.device);
        stats.log();
        let graph = KnnGraph::from_keys(k, metric, nodes, &keys, stats)?;
        Ok(if self.has_residuals() {
            graph.settled()
        } else if all_pairs {
            graph.exact()
        } else {
            graph
        })
    }
}

/// The shape of the rows of `space`, which knows itself how a device takes its values.
fn shape_there(space: &Space<'_>) -> DataShape {
    DataShape { rows: space.len(), dim: space.dim(), element: space.vectors().element_type(), bytes: false }
}
