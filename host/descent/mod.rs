//! The k-NN graph by two-phase GNN-Descent (paper section 4).

mod all_pairs;
mod build;
mod cells;
mod cpu;
pub(crate) mod gpu;
mod graph;
mod iterations;
mod lists;
mod plan;
pub(crate) mod reverse;
mod sample;
mod settle;
mod start;
mod stats;
pub(crate) mod table;

use tagore_device::key::MAX_NODES;

pub use gpu::CellSettings;
pub(crate) use gpu::{DeviceGraph, GpuLists};
pub use graph::KnnGraph;
pub use iterations::{Iterations, MAX_ITERATIONS};
pub use plan::DevicePlan;
pub(crate) use plan::{most_knn, on_cpu, steps};
pub use sample::KnnSample;
pub(crate) use sample::{ExactLists, hits, sampled};
use settle::{Settling, unsettled};
pub use start::Start;
pub use stats::DescentStats;

use crate::gpu::{Gpu, PlannedStage};
use crate::vectors::DataShape;
use crate::vectors::shape::{device_type, exact_type, is_narrowed, with_device_type};
use crate::vectors::space::Space;
use crate::{Device, DeviceResults, Error, Metric, Progress, Result, Vectors};

/// Default neighbours per node.
pub const DEFAULT_KNN: usize = 96;

/// Maximum number of neighbours per node.
pub const MAX_KNN: usize = 1024;

/// Builds a k-NN graph.
///
/// ```
/// use tagore::{Descent, Synth};
/// let base = Synth::new(500, 16, 1)?.base();
/// let graph = Descent::new().knn(10).seed(7).build(&base)?;
/// assert_eq!((graph.len(), graph.k()), (500, 10));
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Descent {
    knn: Option<usize>,
    pub(crate) metric: Metric,
    pub(crate) iterations: Iterations,
    pub(crate) start: Start,
    pub(crate) expand: usize,
    pub(crate) settings: CellSettings,
    pub(crate) seed: u64,
    pub(crate) device: Device,
    /// A fork of the device, used instead of `device`.
    fork: Option<Gpu>,
    /// Whether the vectors are codes, which tiles read without rounding them.
    of_codes: bool,
    purpose: Purpose,
    settling: Settling,
    pub(crate) progress: Progress,
}

/// What lists are built for, which decides how many neighbours a start from cells looks for on a
/// GPU, if no numbers are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// For themselves.
    Lists,
    /// An index that is pruned from them.
    Index,
    /// An index out of core. A node has a list in each of two clusters, and the better neighbours
    /// of both stay, so two clusterings and no expansion are enough (docs/outofcore.md).
    Cluster,
}

impl Default for Descent {
    fn default() -> Self {
        Self {
            knn: None,
            metric: Metric::L2,
            iterations: Iterations::Auto,
            start: Start::Auto,
            expand: 4,
            settings: CellSettings::default(),
            seed: 0,
            device: Device::Auto,
            fork: None,
            of_codes: false,
            purpose: Purpose::Lists,
            settling: Settling::None,
            progress: Progress::silent(),
        }
    }
}

impl Descent {
    /// A descent with defaults: [`DEFAULT_KNN`] neighbours (fewer for fewer nodes), L2, seed 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the neighbours per node: 1..=1024 and below the number of nodes.
    pub fn knn(mut self, k: usize) -> Self {
        self.knn = Some(k);
        self
    }

    /// Sets the metric; L2 unless set.
    pub fn metric(mut self, metric: Metric) -> Self {
        self.metric = metric;
        self
    }

    /// Sets the iterations; the default is to run until the lists converge.
    pub fn iterations(mut self, iterations: Iterations) -> Self {
        self.iterations = iterations;
        self
    }

    /// Sets the start.
    pub fn start(mut self, start: Start) -> Self {
        self.start = start;
        self
    }

    /// Sets the neighbours whose lists a node gathers per iteration of phase 2 (the paper's m): 1
    /// to 64, 4 unless set.
    pub fn expand(mut self, neighbours: usize) -> Self {
        self.expand = neighbours;
        self
    }

    /// Sets the parameters of a start from cells.
    pub fn cells(mut self, cells: CellSettings) -> Self {
        self.settings = cells;
        self
    }

    /// Sets the seed. The same seed and input give the same graph on any number of threads.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets the device.
    pub fn device(self, device: Device) -> Self {
        Self { device, fork: None, ..self }
    }

    /// Sets the handle that watches and cancels the descent.
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Builds the graph of `base`.
    ///
    /// # Errors
    /// If `base` is empty or holds a value that is not finite, a parameter is out of its range, an
    /// explicit `knn` is not below the number of nodes, or the work is cancelled.
    pub fn build(&self, base: &Vectors) -> Result<KnnGraph> {
        let k = self.k_for(base)?;
        self.build_in(&Space::new(base, self.metric, &self.progress)?, k)
    }

    /// As [`build`](Self::build), and leaves the graph in the memory of a device: ids and distances
    /// of the k neighbours of each node, nearest first. A graph built on that device never comes to
    /// the host. Returns once it is written.
    ///
    /// # Errors
    /// As [`build`](Self::build), or if the device of the results cannot be opened or its memory
    /// has too little room for them.
    pub fn build_into(&self, base: &Vectors, results: &DeviceResults) -> Result<DescentStats> {
        let k = self.k_for(base)?;
        results.check(base.len().saturating_mul(k))?;
        let space = Space::new(base, self.metric, &self.progress)?;
        if let Some(gpu) = self.gpu(base.len(), base.dim())?.filter(|gpu| k > 0 && results.is_on(gpu)) {
            let mut graph = self.build_on_device(&gpu, &space, k)?;
            if self.misses_many(&gpu, &space, k, |nodes| KnnSample::on_device(&gpu, &graph.lists, nodes))? {
                drop(graph);
                graph = self.clone().start(Start::AllPairs).build_on_device(&gpu, &space, k)?;
            }
            let DeviceGraph { lists, stats, .. } = graph;
            results.write(&gpu, &lists.keys, 0, base.len() * k)?;
            gpu.synchronize()?;
            return Ok(stats);
        }
        let graph = self.build_in(&space, k)?;
        results.write_keys(&graph.keys())?;
        Ok(graph.stats().clone())
    }

    /// Plans the memory of a build of the graph of `base` on a GPU. Needs no GPU. Reads f32 values
    /// ([`DataShape::inspect`]), since whole numbers from 0 to 255 go to the device as bytes.
    ///
    /// # Errors
    /// As [`build`](Self::build), except for values that are not finite.
    pub fn plan(&self, base: &Vectors) -> Result<DevicePlan> {
        self.k_for(base)?;
        self.plan_for(&DataShape::inspect(base, &self.progress)?)
    }

    /// As [`plan`](Self::plan), for data of this shape.
    ///
    /// # Errors
    /// As [`plan`](Self::plan).
    pub fn plan_for(&self, data: &DataShape) -> Result<DevicePlan> {
        Ok(self.plan_of(data, self.check_for(data)?))
    }

    /// Checks all parameters against `data`; returns the neighbours per node.
    pub(crate) fn check_for(&self, data: &DataShape) -> Result<usize> {
        self.check_parameters()?;
        let k = self.k_of(data.rows, "the data set")?;
        // The fields are public, so a caller may have set them out of range.
        DataShape::new(data.rows, data.dim, data.element)?;
        self.metric.check(data.element)?;
        self.device.for_dim(data.dim)?;
        Ok(k)
    }

    /// The plan of a build on a GPU, with checked parameters.
    pub(crate) fn plan_of(&self, data: &DataShape, k: usize) -> DevicePlan {
        let longer = self.unsettled(k, data.rows);
        let shape = self.shape_on_gpu(data, longer);
        let element =
            if shape.is_descent() { device_type(data, self.metric) } else { exact_type(data, self.metric) };
        let mut plan = with_device_type!(element, T => shape.plan::<T>());
        if self.has_residuals() && k > 0 {
            let &DataShape { rows: n, dim, .. } = data;
            let settle = gpu::SettleShape { n, dim, longer, k, metric: self.metric };
            plan.stages.extend(settle.stages());
            plan.k = k;
        }
        plan
    }

    /// The shape of a build on a GPU.
    fn shape_on_gpu(&self, data: &DataShape, k: usize) -> gpu::DescentShape {
        let &Self { metric, start, iterations, settings, of_codes, purpose, .. } = self;
        let (narrowed, stored) = (is_narrowed(data, metric), data.element);
        let &DataShape { rows: n, dim, .. } = data;
        let sizes = gpu::DescentShape {
            n,
            dim,
            k,
            metric,
            start,
            iterations,
            settings,
            narrowed,
            stored,
            of_codes,
            purpose,
        };
        sizes.with_start()
    }

    /// Whether a build of `k` neighbours per node on a GPU starts from cells.
    pub(crate) fn starts_from_cells(&self, data: &DataShape, k: usize) -> bool {
        k > 0 && self.shape_on_gpu(data, self.unsettled(k, data.rows)).start == Start::Cells
    }

    /// The stages of a build on the CPU with `threads` threads, with their host buffers beyond the
    /// space.
    pub(crate) fn stages_on_cpu(&self, data: &DataShape, k: usize, threads: usize) -> Vec<PlannedStage> {
        let start = self.start_on_cpu(data, k);
        let longer = self.unsettled(k, data.rows);
        let mut stages = plan::stages_on_cpu(data, longer, self, start, threads);
        if self.has_residuals() {
            stages.push(plan::settling_on_cpu(data.rows, longer, k));
        }
        stages.push(plan::graph_on_cpu(data.rows, k));
        stages
    }

    /// Neighbours per node of lists that end with `k`, before they are settled.
    fn unsettled(&self, k: usize, nodes: usize) -> usize {
        if self.has_residuals() { unsettled(k, nodes) } else { k }
    }

    /// Whether lists are settled.
    pub(crate) fn has_residuals(&self) -> bool {
        !matches!(self.settling, Settling::None)
    }

    /// The start on the CPU, for lists of `k`; never `Auto`.
    pub(crate) fn start_on_cpu(&self, data: &DataShape, k: usize) -> Start {
        let all_pairs = plan::most_pairs(data.values(), self.metric);
        match self.start {
            // Lists of all others need no descent.
            _ if data.rows <= self.unsettled(k, data.rows) + 1 => Start::AllPairs,
            Start::Auto if data.rows <= all_pairs => Start::AllPairs,
            // Cells are L2 balls.
            Start::Auto if self.metric == Metric::InnerProduct => Start::Random,
            Start::Auto => Start::Cells,
            start => start,
        }
    }

    /// Whether a build on the CPU with this `start` compares all pairs of `data` where cells would
    /// leave out neighbours.
    fn may_compare_all(&self, data: &DataShape, start: Start) -> bool {
        self.start == Start::Auto && start == Start::Cells && data.rows <= plan::MAX_HARD_PAIRS
    }

    pub(crate) fn check_parameters(&self) -> Result<()> {
        if !(1..=64).contains(&self.expand) {
            return Err(Error::argument("expand", self.expand, "1 to 64"));
        }
        self.iterations.check()?;
        self.settings.check()
    }

    /// The GPU for a graph of `nodes` nodes of `dim` components; none for the CPU.
    pub(crate) fn gpu(&self, nodes: usize, dim: usize) -> Result<Option<Gpu>> {
        let gpu = self.device.for_dim(dim)?.gpu_for_graph(nodes)?;
        Ok(gpu.map(|gpu| self.fork.clone().unwrap_or(gpu)))
    }

    /// This descent for vectors that are codes, in bytes if `have_rests`: lists are then settled by
    /// the rests.
    pub(crate) fn of_codes(self, have_rests: bool) -> Self {
        let settling = if have_rests { Settling::Planned } else { Settling::None };
        Self { of_codes: true, settling, ..self }
    }

    /// This descent for codes with these rests, if any.
    pub(crate) fn settled_by(self, rests: Option<Vectors>) -> Self {
        Self { settling: rests.map_or(Settling::None, Settling::By), ..self }
    }

    /// This descent on a fork of its device, if a GPU: forks of a device run concurrently.
    pub(crate) fn forked(self) -> Result<Self> {
        let fork = self.device.gpu()?.map(|gpu| gpu.fork()).transpose()?;
        Ok(Self { fork, ..self })
    }

    /// This descent on `gpu`.
    #[cfg(test)]
    pub(crate) fn on(self, gpu: &Gpu) -> Self {
        Self { fork: Some(gpu.clone()), ..self.device(Device::Emulated) }
    }

    /// This descent for a part of its base with `nodes` nodes, at least 1, whose lists are not
    /// settled. Clamps `k` and reports no progress.
    pub(crate) fn of_part(&self, nodes: usize) -> Self {
        let (settling, progress) = (Settling::None, self.progress.unwatched());
        Self { settling, progress, ..self.clone().up_to(nodes) }.or_knn(DEFAULT_KNN, nodes)
    }

    /// This descent with at most as many neighbours per node as there are other ones of `nodes`.
    pub(crate) fn up_to(self, nodes: usize) -> Self {
        Self { knn: self.knn.filter(|_| nodes > 1).map(|k| k.min(nodes - 1)), ..self }
    }

    /// The neighbours per node, if they were set.
    pub(crate) fn given_knn(&self) -> Option<usize> {
        self.knn
    }

    /// This descent for another purpose.
    pub(crate) fn purpose(self, purpose: Purpose) -> Self {
        Self { purpose, ..self }
    }

    /// This descent for an index, unless it is that of a cluster.
    pub(crate) fn for_index(self) -> Self {
        let purpose = if self.is_of_cluster() { Purpose::Cluster } else { Purpose::Index };
        self.purpose(purpose)
    }

    /// Whether this is the descent of a cluster.
    pub(crate) fn is_of_cluster(&self) -> bool {
        self.purpose == Purpose::Cluster
    }

    /// This descent with `default` neighbours per node, clamped to `nodes` nodes, if none are set.
    pub(crate) fn or_knn(self, default: usize, nodes: usize) -> Self {
        let default = (nodes > 1).then(|| default.min(nodes - 1));
        Self { knn: self.knn.or(default), ..self }
    }

    /// The neighbours per node for `base`: the number set, or the default clamped to the nodes.
    pub(crate) fn k_for(&self, base: &Vectors) -> Result<usize> {
        self.k_of(base.len(), &base.describe())
    }

    /// The neighbours per node for a data set of `nodes` rows; errors call it `name`.
    pub(crate) fn k_of(&self, nodes: usize, name: &str) -> Result<usize> {
        if nodes == 0 {
            return Err(Error::mismatch(name, "0 rows", "at least 1"));
        }
        if nodes as u64 > MAX_NODES {
            return Err(Error::mismatch(
                name,
                format_args!("{nodes} rows"),
                format_args!("at most {MAX_NODES}"),
            ));
        }
        match self.knn {
            None => Ok(DEFAULT_KNN.min(nodes - 1)),
            Some(k) if k == 0 || k > MAX_KNN => {
                Err(Error::argument("knn", k, format_args!("1 to {MAX_KNN}")))
            }
            Some(k) if k >= nodes => {
                Err(Error::argument("knn", k, format_args!("less than the {nodes} rows of {name}")))
            }
            Some(k) => Ok(k),
        }
    }
}
