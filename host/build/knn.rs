//! The default length of the k-NN lists under an index.

use super::Builder;
use crate::descent::DEFAULT_KNN;
use crate::{Result, Strategy, Vectors};

/// Fewest default neighbours per node on a CPU.
const ON_CPU: usize = 64;

impl Strategy {
    /// The neighbours per node of the k-NN graph that an index of this kind is pruned from in
    /// memory, unless [`Builder::knn`] sets them: [`DEFAULT_KNN`] on a GPU. On a CPU pruning takes
    /// time in proportion to the length of the lists, or to its square, and shorter lists lose
    /// little: the degree, but at least 64 and at most [`DEFAULT_KNN`] (docs/measurements.md).
    ///
    /// A data set of fewer nodes has shorter lists. Builds out of core take [`DEFAULT_KNN`].
    pub fn default_knn(&self, on_gpu: bool) -> usize {
        if on_gpu { DEFAULT_KNN } else { self.max_degree().clamp(ON_CPU, DEFAULT_KNN) }
    }
}

impl Builder {
    /// This builder with its default neighbours per node set, for a build in memory of `nodes`
    /// nodes.
    pub(super) fn with_knn(&self, on_gpu: bool, nodes: usize) -> Self {
        let default = self.strategy.default_knn(on_gpu);
        self.clone().descent(self.descent.clone().or_knn(default, nodes))
    }

    /// The neighbours per node of a build of `base` in memory.
    pub(super) fn k_for(&self, base: &Vectors) -> Result<usize> {
        let on_gpu = self.descent.gpu(base.len())?.is_some();
        self.with_knn(on_gpu, base.len()).descent.k_for(base)
    }
}
