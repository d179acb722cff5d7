//! Pruning a k-NN graph into an index by Collect-Filter-Store (paper section 5).

pub(crate) mod collect;
mod cpu;
mod estimate;
mod filter;
pub(crate) mod gpu;
mod layers;
mod plan;
mod reach;
mod rows;
mod rule;
mod stats;
mod strategy;

use std::collections::BTreeMap;
use std::time::Instant;

pub(crate) use cpu::random_entries;
pub(crate) use layers::Below;
pub use plan::{BuildPlan, Target};
pub use rule::CustomRule;
pub use stats::{BuildStats, PruneStats};
pub(crate) use strategy::Entry;
pub use strategy::{Collect, Filter, MAX_CANDIDATES, MAX_DEGREE, Strategy};

use self::gpu::Pruning;
use self::rows::Rows;
use crate::descent::{Descent, DescentStats, KnnGraph, KnnSample, Sampling, sampled};
use crate::gpu::Gpu;
use crate::index::{Description, Fingerprint, Index, Layer, PaddedRows};
use crate::memory::peak_host_bytes;
use crate::vectors::Repeated;
use crate::vectors::gpu::DeviceBase;
use crate::vectors::space::Space;
use crate::{Device, Error, Iterations, Metric, Progress, Result, Start, Vectors};

/// Builds a graph index: the k-NN graph by GNN-Descent, then the strategy's pruning.
///
/// ```
/// use tagore::{Builder, Device, Strategy, Synth};
/// let base = Synth::new(1000, 16, 1)?.base();
/// let index = Builder::new(Strategy::nsg()).knn(32).device(Device::auto()).build(&base)?;
/// assert_eq!(index.len(), 1000);
/// assert!(index.neighbors(0).len() <= 50);
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    pub(crate) strategy: Strategy,
    pub(crate) descent: Descent,
    /// Devices beside that of the descent.
    others: Vec<Device>,
    plain: bool,
    /// Nodes whose lists are kept.
    sample: usize,
    pub(crate) layered: bool,
    /// Whether layers are built whatever searches find: of a layer.
    stacked: bool,
    pub(crate) grouped: bool,
}

/// An index, what it took, and the base on the GPU that it was built on, if there is one.
pub(crate) struct Built {
    pub index: Index,
    pub stats: BuildStats,
    pub on_device: Option<(Gpu, DeviceBase)>,
}

/// Rows of ids, and where searches enter.
type Pruned = (Rows, Vec<u32>);

impl Builder {
    /// A builder of the strategy's index with the defaults of [`Descent`].
    pub fn new(strategy: Strategy) -> Self {
        let (descent, others) = (Descent::new(), Vec::new());
        Self {
            strategy,
            descent,
            others,
            plain: false,
            sample: 0,
            layered: true,
            stacked: false,
            grouped: true,
        }
    }

    /// The strategy.
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// Uses all settings of `descent` for the k-NN graph.
    pub fn descent(mut self, descent: Descent) -> Self {
        self.descent = descent;
        self
    }

    /// Neighbours per node of the k-NN graph; see [`Descent::knn`].
    pub fn knn(self, k: usize) -> Self {
        self.with(|descent| descent.knn(k))
    }

    /// The metric; see [`Descent::metric`].
    pub fn metric(self, metric: Metric) -> Self {
        self.with(|descent| descent.metric(metric))
    }

    /// How long descent runs; see [`Descent::iterations`].
    pub fn iterations(self, iterations: Iterations) -> Self {
        self.with(|descent| descent.iterations(iterations))
    }

    /// Where descent starts from; see [`Descent::start`].
    pub fn start(self, start: Start) -> Self {
        self.with(|descent| descent.start(start))
    }

    /// The seed: the same seed, input and parameters give the same index, byte for byte, on any
    /// number of threads.
    pub fn seed(self, seed: u64) -> Self {
        self.with(|descent| descent.seed(seed))
    }

    /// Where the work runs.
    pub fn device(self, device: Device) -> Self {
        self.with(|descent| descent.device(device))
    }

    /// Where the work runs: out of core on all of `devices` at once, in memory on the first.
    pub fn devices(mut self, devices: &[Device]) -> Self {
        let (first, others) = devices.split_first().unwrap_or((&Device::Auto, &[]));
        self.others = others.to_vec();
        self.device(*first)
    }

    /// The devices that parts of `nodes` nodes are built on.
    pub(crate) fn devices_for(&self, nodes: usize) -> Result<Vec<Device>> {
        let devices = std::iter::once(&self.descent.device).chain(&self.others);
        devices.map(|device| device.for_graph(nodes)).collect()
    }

    /// The handle that watches and cancels the work.
    pub fn progress(self, progress: Progress) -> Self {
        self.with(|descent| descent.progress(progress))
    }

    fn with(mut self, change: impl FnOnce(Descent) -> Descent) -> Self {
        self.descent = change(self.descent);
        self
    }

    /// Prunes by the kernels that published code has, to compare with: a warp per node that takes one candidate after
    /// another (distance filters), a warp per edge that counts its detours (CAGRA). The result is the same. No other
    /// filter has such a kernel, nor has the CPU.
    pub fn plain(mut self, plain: bool) -> Self {
        self.plain = plain;
        self
    }

    /// Keeps the lists that so many seeded random nodes have in the k-NN graph, as [`BuildStats::sample`], for a
    /// [`Report`](crate::Report); none unless set. On a GPU nothing else of the graph comes to the host.
    pub fn sample(mut self, nodes: usize) -> Self {
        self.sample = nodes;
        self
    }

    /// Whether layers may be built above the index; true unless set. They are built where searches
    /// for a sample of the nodes go astray, as they do between clusters that lie apart. See
    /// [`Layer`](crate::Layer).
    pub fn layers(mut self, layered: bool) -> Self {
        self.layered = layered;
        self
    }

    /// Whether repeated rows are left out of the graph.
    pub(crate) fn grouped(mut self, grouped: bool) -> Self {
        self.grouped = grouped;
        self
    }

    /// Builds the index of `base`. On a GPU the k-NN graph stays there until it has been pruned.
    ///
    /// If at least one row in 100 repeats an earlier row, the graph is built over one row of each
    /// group of equal rows, and searches return the others with it; see [`Index::repeated`].
    ///
    /// # Errors
    /// As [`Descent::build`]; or if a parameter of the strategy is out of its range.
    pub fn build(&self, base: &Vectors) -> Result<Index> {
        Ok(self.build_with_stats(base, None)?.0)
    }

    /// Builds the index of `base` from a k-NN graph of it that is there already.
    ///
    /// # Errors
    /// If the graph is not one of `base` under this builder's metric, a parameter of the strategy is
    /// out of its range, or the work is cancelled.
    pub fn build_from(&self, base: &Vectors, graph: &KnnGraph) -> Result<Index> {
        Ok(self.build_with_stats(base, Some(graph))?.0)
    }

    /// Builds the index of `base`, from a k-NN graph of it if there is one, and says what it took.
    ///
    /// # Errors
    /// As [`build`](Self::build) and [`build_from`](Self::build_from).
    pub fn build_with_stats(&self, base: &Vectors, graph: Option<&KnnGraph>) -> Result<(Index, BuildStats)> {
        let Built { index, stats, .. } = self.build_and_keep(base, graph)?;
        Ok((index, stats))
    }

    /// As [`build_with_stats`](Self::build_with_stats); the base stays where it is.
    pub(crate) fn build_and_keep(&self, base: &Vectors, graph: Option<&KnnGraph>) -> Result<Built> {
        self.strategy.check()?;
        let k = self.descent.k_for(base)?;
        let k = graph.map_or(Ok(k), |graph| self.check_graph(base, graph))?;
        self.strategy.check_list(k, base.len())?;
        let space = Space::new(base, self.descent.metric, &self.descent.progress)?;
        if self.grouped && graph.is_none() {
            let repeated = Repeated::of(&space, &self.descent.progress)?;
            if repeated.pay(base.len()) {
                drop(space);
                return self.build_without(base, repeated);
            }
        }
        let nodes = sampled(base.len(), self.sample, self.descent.seed);
        let (sample, mut pruned, descent, mut prune, on_device) = match self.gpu(base, k)? {
            Some(gpu) => {
                if graph.is_none() {
                    self.check_fits(&gpu, base, k)?;
                }
                let pruning = self.pruning(&gpu, &space);
                let (sample, (pruned, descent, prune, on_device)) = match graph {
                    Some(graph) => (KnnSample::of(graph, &nodes), pruning.prune(graph)?),
                    None => {
                        let sampling = Sampling { nodes: &nodes, next: pruning };
                        self.descent.build_then(&gpu, &space, k, sampling)?
                    }
                };
                (sample, pruned, descent, prune, Some((gpu, on_device)))
            }
            None => {
                let (sample, (pruned, descent, prune)) = match graph {
                    Some(graph) => (KnnSample::of(graph, &nodes), self.prune_on_cpu(&space, graph)?),
                    None => {
                        let graph = self.descent.build_in(&space, k)?;
                        let sample = KnnSample::of(&graph, &nodes);
                        // Pruning asks for ids alone.
                        (sample, self.prune_on_cpu(&space, &graph.without_distances())?)
                    }
                };
                (sample, pruned, descent, prune, None)
            }
        };
        let layers = self.finish(base, &space, &mut pruned, &mut prune)?;
        let stats = BuildStats { knn: k, descent, prune, sample, repeated: 0 };
        let index = self.index(base, pruned, &stats).with_layers(layers);
        Ok(Built { index, stats, on_device })
    }

    /// Builds the index of `base` over the rows that repeat no other.
    fn build_without(&self, base: &Vectors, repeated: Repeated) -> Result<Built> {
        let rows = repeated.others(0..base.len());
        tracing::info!(rows = rows.len(), repeated = repeated.len(), "equal rows are one node of the graph");
        let count = repeated.len() as u64;
        let descent = self.descent.of_part(rows.len()).progress(self.descent.progress.clone());
        // Lists of the k-NN graph would lack the repeated rows.
        let builder = self.clone().descent(descent).grouped(false).sample(0);
        let Built { index, stats, .. } = builder.build_and_keep(&base.select(&rows), None)?;
        let index = index.expanded(base, &rows, repeated);
        let stats = BuildStats { sample: KnnSample::default(), repeated: count, ..stats };
        Ok(Built { index, stats, on_device: None })
    }

    /// The length of the lists of a graph of `base`.
    fn check_graph(&self, base: &Vectors, graph: &KnnGraph) -> Result<usize> {
        if graph.len() != base.len() {
            let expected = format!("{} rows as {} has", base.len(), base.describe());
            return Err(Error::mismatch("k-NN graph", format_args!("{} nodes", graph.len()), expected));
        }
        if graph.metric() != self.descent.metric {
            return Err(Error::mismatch("k-NN graph", graph.metric(), self.descent.metric));
        }
        Ok(graph.k())
    }

    /// The GPU to prune lists of `k` on, if any.
    fn gpu(&self, base: &Vectors, k: usize) -> Result<Option<Gpu>> {
        let gpu = self.descent.gpu(base.len())?.filter(|gpu| k > 0 && self.strategy.filters_on(gpu));
        let shape = gpu::Shape::new(&self.strategy, (base.len(), base.dim()), k, self.descent.metric);
        Ok(gpu.filter(|gpu| {
            let (requested, allowed) = (shape.block_bytes(), gpu.shared_memory());
            if requested > allowed {
                let device = gpu.name();
                tracing::warn!(
                    device,
                    requested,
                    allowed,
                    "pruning runs on the CPU: too little shared memory"
                );
            }
            requested <= allowed
        }))
    }

    fn pruning<'a>(&'a self, gpu: &'a Gpu, space: &'a Space<'a>) -> Pruning<'a> {
        let Self { strategy, descent, plain, .. } = self;
        Pruning { gpu, space, strategy, plain: *plain, seed: descent.seed, progress: &descent.progress }
    }

    fn prune_on_cpu(
        &self,
        space: &Space<'_>,
        graph: &KnnGraph,
    ) -> Result<(Pruned, DescentStats, PruneStats)> {
        let began = Instant::now();
        let Descent { seed, progress, .. } = &self.descent;
        let pruned = cpu::prune(space, graph, &self.strategy, *seed, progress)?;
        let mut prune = PruneStats { device: "cpu".to_owned(), ..PruneStats::default() };
        prune.seconds = began.elapsed().as_secs_f64();
        prune.peak_host_bytes = peak_host_bytes();
        Ok((pruned, graph.stats().clone(), prune))
    }

    /// Builds the layers that searches need, and makes nodes reachable: from the entry points if
    /// the kind promises it, from the layers if there are any.
    fn finish(
        &self,
        base: &Vectors,
        space: &Space<'_>,
        pruned: &mut Pruned,
        stats: &mut PruneStats,
    ) -> Result<Vec<Layer>> {
        let began = Instant::now();
        let layers = if self.layered {
            let (graph, entries) = (&pruned.0, &mut pruned.1);
            let repeated = &Repeated::default();
            self.layers_over(&Below { base, space, graph, repeated, most: usize::MAX }, entries)?
        } else {
            Vec::new()
        };
        stats.layers = began.elapsed().as_secs_f64();
        let began = Instant::now();
        let (rows, entries) = pruned;
        let from = match (self.strategy.connect, layers.first(), self.strategy.entry) {
            (false, None, _) => None,
            (false, Some(lowest), _) => Some(lowest.nodes()),
            // Formats of other systems hold one entry point of such an index.
            (true, _, Entry::Medoid) => Some(&entries[..1]),
            (true, _, Entry::Random) => Some(&entries[..]),
        };
        if let Some(from) = from {
            stats.attached = reach::connect(space, rows, from, &self.descent.progress)? as u64;
        }
        stats.connect = began.elapsed().as_secs_f64();
        stats.seconds += stats.layers + stats.connect;
        stats.log();
        Ok(layers)
    }

    fn index(&self, base: &Vectors, (rows, entries): Pruned, stats: &BuildStats) -> Index {
        let (degrees, neighbors) = rows.into_parts();
        let mut description = self.description(stats.knn);
        let (join, refine) = stats.descent.iterations;
        description.parameters.insert("iterations".to_owned(), format!("{join},{refine}"));
        let rows = PaddedRows { max_degree: self.strategy.degree, degrees, neighbors };
        Index::new(description, Fingerprint::of(base), rows, entries)
    }

    /// What an index is that is pruned from a graph of `knn` neighbours.
    pub(crate) fn description(&self, knn: usize) -> Description {
        Description {
            kind: self.strategy.kind.clone(),
            metric: self.descent.metric,
            seed: self.descent.seed,
            parameters: self.parameters(knn),
        }
    }

    /// All that it depends on beside its base, by the names of the command line.
    pub(crate) fn all_parameters(&self, knn: usize) -> BTreeMap<String, String> {
        let mut parameters = self.parameters(knn);
        parameters.extend(self.descent.parameters());
        parameters.insert("index".to_owned(), self.strategy.kind.clone());
        parameters
    }

    /// What makes it, by the names of the command line.
    pub(crate) fn parameters(&self, knn: usize) -> BTreeMap<String, String> {
        let strategy = &self.strategy;
        let mut parameters = BTreeMap::from([
            ("knn".to_owned(), knn.to_string()),
            ("degree".to_owned(), strategy.degree.to_string()),
            ("candidates".to_owned(), strategy.candidates.to_string()),
            ("collect".to_owned(), strategy.collect.name().to_owned()),
            ("filter".to_owned(), strategy.filter.name().to_owned()),
        ]);
        if let Some(threshold) = strategy.threshold {
            parameters.insert("threshold".to_owned(), threshold.to_string());
        }
        if let Filter::AlphaConvergent(rule) = strategy.filter {
            parameters.insert("alpha".to_owned(), rule.alpha.to_string());
        }
        if strategy.counts_detours() {
            parameters.insert("strict-detours".to_owned(), strategy.strict_detours.to_string());
        }
        parameters
    }
}
