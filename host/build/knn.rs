//! The default length of the k-NN lists under an index.

use super::Builder;
use crate::descent::DEFAULT_KNN;
use crate::{Result, Vectors};

/// Default lists of exact neighbours: at least and at most as long.
const EXACT: (usize, usize) = (32, 100);

/// Shortest default lists of exact neighbours whose detours are counted.
const DETOURS: usize = 64;

impl Builder {
    /// The neighbours per node of the k-NN graph in a build of `nodes` nodes in memory, unless
    /// [`knn`](Self::knn) sets them. A data set of fewer nodes has shorter lists.
    ///
    /// - On a GPU, and above 100,000 nodes on a CPU, [`DEFAULT_KNN`]: lists may miss neighbours.
    /// - On a CPU a smaller graph is exact. A list as long as the candidates of a node then holds
    ///   them all, so it is that long, from 32 to 100: NSG, tau-MNG and alpha-CNG 72, NSSG 60,
    ///   Vamana 96, DPG 48.
    /// - CAGRA counts detours in the square of its lists. Exact lists are as long as the degree,
    ///   from 64 to [`DEFAULT_KNN`]; longer ones find at most 0.0011 more (docs/measurements.md).
    pub fn default_knn(&self, on_gpu: bool, nodes: usize) -> usize {
        let strategy = &self.strategy;
        if on_gpu || !self.descent.compares_all_pairs_on_cpu(nodes, DEFAULT_KNN) {
            DEFAULT_KNN
        } else if strategy.counts_detours() {
            strategy.degree.clamp(DETOURS, DEFAULT_KNN)
        } else {
            strategy.candidates.clamp(EXACT.0, EXACT.1)
        }
    }

    /// This builder with its default neighbours per node set, for a build in memory of `nodes`
    /// nodes.
    pub(super) fn with_knn(&self, on_gpu: bool, nodes: usize) -> Self {
        let default = self.default_knn(on_gpu, nodes);
        self.clone().descent(self.descent.clone().or_knn(default, nodes))
    }

    /// The neighbours per node of a build of `base` in memory: those set by [`knn`](Self::knn), or
    /// the default.
    ///
    /// # Errors
    /// If `base` is empty or the number is out of its range, or the device cannot be opened.
    pub fn k_for(&self, base: &Vectors) -> Result<usize> {
        let on_gpu = self.descent.gpu(base.len(), base.dim())?.is_some();
        self.with_knn(on_gpu, base.len()).descent.k_for(base)
    }
}
