//! Pruning a k-NN graph into an index by Collect-Filter-Store (paper section 5).

mod collect;
mod cpu;
mod filter;
#[cfg_attr(not(test), expect(dead_code, reason = "its parts come one by one"))]
pub(crate) mod gpu;
mod reach;
mod rows;
mod rule;
mod strategy;

use std::collections::BTreeMap;

pub use rule::CustomRule;
pub use strategy::{Collect, Filter, MAX_CANDIDATES, MAX_DEGREE, Strategy};

use crate::descent::{Descent, KnnGraph};
use crate::index::{Description, Fingerprint, Index};
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
    strategy: Strategy,
    descent: Descent,
}

impl Builder {
    /// A builder of the strategy's index with the defaults of [`Descent`].
    pub fn new(strategy: Strategy) -> Self {
        Self { strategy, descent: Descent::new() }
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

    /// The handle that watches and cancels the work.
    pub fn progress(self, progress: Progress) -> Self {
        self.with(|descent| descent.progress(progress))
    }

    fn with(mut self, change: impl FnOnce(Descent) -> Descent) -> Self {
        self.descent = change(self.descent);
        self
    }

    /// Builds the index of `base`.
    ///
    /// # Errors
    /// As [`Descent::build`]; or if a parameter of the strategy is out of its range.
    pub fn build(&self, base: &Vectors) -> Result<Index> {
        self.strategy.check()?;
        let k = self.descent.k_for(base)?;
        let space = Space::new(base, self.descent.metric)?;
        let graph = self.descent.build_in(&space, k)?;
        self.prune(base, &space, &graph)
    }

    /// Builds the index of `base` from a k-NN graph of it that is there already.
    ///
    /// # Errors
    /// If the graph is not one of `base` under this builder's metric, a parameter of the strategy is
    /// out of its range, or the work is cancelled.
    pub fn build_from(&self, base: &Vectors, graph: &KnnGraph) -> Result<Index> {
        self.strategy.check()?;
        self.descent.k_for(base)?;
        if graph.len() != base.len() {
            let expected = format!("{} rows as {} has", base.len(), base.describe());
            return Err(Error::mismatch("k-NN graph", format_args!("{} nodes", graph.len()), expected));
        }
        if graph.metric() != self.descent.metric {
            return Err(Error::mismatch("k-NN graph", graph.metric(), self.descent.metric));
        }
        self.prune(base, &Space::new(base, self.descent.metric)?, graph)
    }

    fn prune(&self, base: &Vectors, space: &Space<'_>, graph: &KnnGraph) -> Result<Index> {
        let descent = &self.descent;
        self.strategy.check_list(graph.k(), graph.len())?;
        let (rows, entries) = cpu::prune(space, graph, &self.strategy, descent.seed, &descent.progress)?;
        let (degrees, neighbors) = rows.into_parts();
        let description = Description {
            kind: self.strategy.kind.clone(),
            metric: descent.metric,
            seed: descent.seed,
            parameters: self.parameters(graph),
        };
        Ok(Index::new(description, Fingerprint::of(base), self.strategy.degree, degrees, neighbors, entries))
    }

    /// What made the index, by the names of the command line.
    fn parameters(&self, graph: &KnnGraph) -> BTreeMap<String, String> {
        let strategy = &self.strategy;
        let (join, refine) = graph.stats().iterations;
        let mut parameters = BTreeMap::from([
            ("knn".to_owned(), graph.k().to_string()),
            ("iterations".to_owned(), format!("{join},{refine}")),
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
        if matches!(strategy.filter, Filter::Rank) {
            parameters.insert("strict-detours".to_owned(), strategy.strict_detours.to_string());
        }
        parameters
    }
}
