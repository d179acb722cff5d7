//! Builds in memory: k-NN graph, pruning, layers and reach, in that order. Plans and statistics of
//! builds.

mod compressed;
mod devices;
pub(crate) mod estimate;
mod far;
mod graph;
mod groups;
mod growth;
mod join;
mod kept;
mod knn;
mod layer_nodes;
mod layer_plan;
mod layers;
mod memory;
mod merge;
pub(crate) mod monotonic;
mod octaves;
mod plan;
mod plan_json;
mod prepare;
mod products;
mod queries;
mod recipe;
mod set;
mod spots;
mod stats;
mod target;
mod update;

use std::sync::Arc;

pub(crate) use graph::{OnDevice, PrunedRows};
pub(crate) use layers::LowerGraph;
use memory::Built;
pub(crate) use memory::BuiltCluster;
pub use merge::{IndexMerge, MergeStats};
pub use plan::BuildPlan;
pub use stats::BuildStats;
pub use target::Target;
pub use update::{IndexUpdate, UpdateStats};

use crate::descent::{Descent, Purpose};
use crate::index::Description;
use crate::quantize::Compression;
use crate::{Device, IdSet, Iterations, Metric, Progress, Start, Strategy, Vectors};

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
    /// Further devices.
    others: Vec<Device>,
    /// Number of nodes whose k-NN lists are kept.
    sample: usize,
    /// Whether the index and its base stay on the device.
    keep_on_device: bool,
    /// When layers are built.
    layering: Layering,
    pub(crate) dedupe: bool,
    /// The rows of the base that the graph is built over; all if none.
    pub(crate) among: Option<Arc<IdSet>>,
    /// The codes that the graph is built on; the vectors themselves if none.
    pub(crate) compression: Option<Compression>,
    /// On codes: the builder of graphs of the vectors themselves, and the vectors.
    of_vectors: Option<Arc<(Self, Vectors)>>,
    /// A sample of queries that do not look like the base.
    queries: Option<Arc<Vectors>>,
}

/// When a build adds layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layering {
    /// Never. The growth of distances is not measured either.
    Off,
    /// Never, but the growth of distances is measured.
    GrowthOnly,
    /// If searches for a sample of the nodes go astray.
    AsNeeded,
    /// As many as can be, as in the build of a layer.
    Always,
}

impl Builder {
    /// A builder of the strategy's index with the defaults of [`Descent`], but lists of
    /// [`default_knn`](Self::default_knn).
    pub fn new(strategy: Strategy) -> Self {
        let (descent, others) = (Descent::new().for_index(), Vec::new());
        Self {
            strategy,
            descent,
            others,
            sample: 0,
            keep_on_device: false,
            layering: Layering::AsNeeded,
            dedupe: true,
            among: None,
            compression: None,
            of_vectors: None,
            queries: None,
        }
    }

    /// The strategy.
    pub fn strategy(&self) -> &Strategy {
        &self.strategy
    }

    /// Uses all settings of `descent` for the k-NN graph. What they leave open is chosen for the
    /// index, which needs fewer of the farther neighbours than a k-NN graph for itself.
    pub fn descent(mut self, descent: Descent) -> Self {
        self.descent = descent.for_index();
        self
    }

    /// Sets the neighbours per node of the k-NN graph; see [`Descent::knn`].
    pub fn knn(self, k: usize) -> Self {
        self.with(|descent| descent.knn(k))
    }

    /// Sets the metric; see [`Descent::metric`].
    pub fn metric(self, metric: Metric) -> Self {
        self.with(|descent| descent.metric(metric))
    }

    /// Sets the iterations of descent; see [`Descent::iterations`].
    pub fn iterations(self, iterations: Iterations) -> Self {
        self.with(|descent| descent.iterations(iterations))
    }

    /// Sets the start of descent; see [`Descent::start`].
    pub fn start(self, start: Start) -> Self {
        self.with(|descent| descent.start(start))
    }

    /// Sets the seed. The same seed, input and parameters give the same index, byte for byte, on
    /// any number of threads.
    pub fn seed(self, seed: u64) -> Self {
        self.with(|descent| descent.seed(seed))
    }

    /// Sets the device.
    pub fn device(self, device: Device) -> Self {
        self.with(|descent| descent.device(device))
    }

    /// Sets the devices. A build in clusters ([`OutOfCore`](crate::outofcore::OutOfCore)) uses all
    /// of them at once, [`build`](Self::build) if it [shares](Self::shares) its work, else the
    /// first.
    pub fn devices(mut self, devices: &[Device]) -> Self {
        let (first, others) = devices.split_first().unwrap_or((&Device::Auto, &[]));
        self.others = others.to_vec();
        self.device(*first)
    }

    /// All devices, the first one first.
    fn all_devices(&self) -> impl Iterator<Item = Device> {
        std::iter::once(self.descent.device).chain(self.others.iter().copied())
    }

    /// Sets the handle that watches and cancels the build.
    pub fn progress(self, progress: Progress) -> Self {
        self.with(|descent| descent.progress(progress))
    }

    /// This builder for the clusters of a build out of core, whose lists are merged.
    pub(crate) fn of_clusters(&self) -> Self {
        self.clone().with(|descent| descent.purpose(Purpose::Cluster))
    }

    /// This builder with lists that fit `rows` rows.
    pub(crate) fn up_to(self, rows: usize) -> Self {
        self.with(|descent| descent.up_to(rows))
    }

    fn with(mut self, change: impl FnOnce(Descent) -> Descent) -> Self {
        self.descent = change(self.descent);
        self
    }

    /// Keeps the k-NN lists of `nodes` random nodes as [`BuildStats::sample`], for a
    /// [`Report`](crate::Report); 0 unless set. On a GPU the rest of the k-NN graph stays on the
    /// device.
    pub fn sample(mut self, nodes: usize) -> Self {
        self.sample = nodes;
        self
    }

    /// Sets whether a build on a GPU leaves the index and its base there, as
    /// [`BuildStats::resident`], for a [report](crate::Measure::resident) or a
    /// [searcher](crate::Searcher::resident); false unless set. Nothing stays of a build on a
    /// CPU, on codes, over a set of the rows, or of rows with a common direction under inner
    /// product, which are moved. An index of repeated rows stays if the GPU has room
    /// for a second copy of the base.
    pub fn keep_on_device(mut self, keep: bool) -> Self {
        self.keep_on_device = keep;
        self
    }

    /// Allows layers above the index; true unless set. The build adds layers if searches for a
    /// sample of the nodes go astray, as between clusters that lie apart. See
    /// [`Layer`](crate::Layer).
    pub fn layers(mut self, layered: bool) -> Self {
        self.layering = if layered { Layering::AsNeeded } else { Layering::Off };
        self
    }

    /// Whether searches of the index are tested, and layers may follow.
    pub(crate) fn is_layered(&self) -> bool {
        self.layering != Layering::Off
    }

    /// Builds over the rows of `ids` only, a set of the rows of the base; over all if `None`, as
    /// unless set. The index is that of a base of these rows alone, with the ids of the whole base.
    /// The other rows have no neighbours, no edge leads to them, and no search returns them
    /// ([`Index::left_out`](crate::Index::left_out)).
    ///
    /// Rows in host memory are read where they lie; those on a device are copied there. Not for a
    /// build from a given k-NN graph, nor out of core.
    ///
    /// ```
    /// use tagore::{Builder, IdSet, Progress, Search, Searcher, Strategy, Synth};
    /// let base = Synth::new(1000, 16, 1)?.base();
    /// let deleted = IdSet::from_ids(1000, [3, 17])?;
    /// let index = Builder::new(Strategy::cagra()).among(deleted.complement()).build(&base)?;
    /// let searcher = Searcher::new(index, base.clone(), &Progress::silent())?;
    /// let found = searcher.search_one(&base.row_to_f32(3)?, Search::new(10))?;
    /// assert!(found.iter().all(|neighbor| !deleted.contains(neighbor.id)));
    /// # Ok::<(), tagore::Error>(())
    /// ```
    pub fn among(mut self, ids: impl Into<Option<IdSet>>) -> Self {
        self.among = ids.into().map(Arc::new);
        self
    }

    /// Sets whether repeated rows are left out of the graph.
    pub(crate) fn dedupe(mut self, dedupe: bool) -> Self {
        self.dedupe = dedupe;
        self
    }

    /// The description of an index pruned from a graph of `knn` neighbours.
    pub(crate) fn description(&self, knn: usize) -> Description {
        Description {
            kind: self.strategy.kind.clone(),
            metric: self.descent.metric,
            seed: self.descent.seed,
            parameters: self.parameters(knn),
        }
    }
}
