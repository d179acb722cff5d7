//! The default length of the k-NN lists under an index.

use super::Builder;
use crate::descent::DEFAULT_KNN;
use crate::{DataShape, Result, Start, Vectors};

/// Default lists of exact neighbours: at least and at most as long.
const EXACT: (usize, usize) = (32, 100);

/// Shortest default lists of exact neighbours whose detours are counted.
const DETOURS: usize = 64;

impl Builder {
    /// The neighbours per node of the k-NN graph in a build of `data` in memory, unless
    /// [`knn`](Self::knn) sets them. A data set of fewer nodes has shorter lists.
    ///
    /// - On a GPU, and on a CPU above 80,000 rows (under inner product above 200,000 rows or 40
    ///   million values), [`DEFAULT_KNN`]: lists may miss neighbours.
    /// - On a CPU a smaller graph is exact. A list as long as the candidates of a node then holds
    ///   them all, so it is that long, from 32 to 100: NSG, tau-MNG and alpha-CNG 72, NSSG 60,
    ///   Vamana 96, DPG 48.
    /// - CAGRA counts detours in the square of its lists. Exact lists are as long as the degree,
    ///   from 64 to [`DEFAULT_KNN`]; longer ones find at most 0.0011 more (docs/decisions.md).
    pub fn default_knn(&self, on_gpu: bool, data: &DataShape) -> usize {
        let strategy = &self.strategy;
        if on_gpu || self.descent.start_on_cpu(data, DEFAULT_KNN) != Start::AllPairs {
            DEFAULT_KNN
        } else if strategy.counts_detours() {
            strategy.degree.clamp(DETOURS, DEFAULT_KNN)
        } else {
            strategy.candidates.clamp(EXACT.0, EXACT.1)
        }
    }

    /// This builder with its default neighbours per node set, for a build of `data` in memory.
    pub(super) fn with_knn(&self, on_gpu: bool, data: &DataShape) -> Self {
        let default = self.default_knn(on_gpu, data);
        self.clone().descent(self.descent.clone().or_knn(default, data.rows))
    }

    /// The neighbours per node of a build of `base` in memory: those set by [`knn`](Self::knn), or
    /// the default.
    ///
    /// # Errors
    /// If `base` is empty or the number is out of its range, or the device cannot be opened.
    pub fn k_for(&self, base: &Vectors) -> Result<usize> {
        let on_gpu = self.descent.gpu(base.len(), base.dim())?.is_some();
        match DataShape::new(base.len(), base.dim(), base.element_type()) {
            Ok(data) => self.with_knn(on_gpu, &data).descent.k_for(base),
            // Its error says what is wrong.
            Err(_) => self.descent.k_for(base),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Builder, DataShape, ElementType, Metric, Start, Strategy};

    #[test]
    fn lists_of_exact_graphs_are_as_long_as_candidates() {
        let builder = |strategy| Builder::new(strategy).start(Start::Auto);
        let cagra = |rows, dim, metric| {
            let data = DataShape::new(rows, dim, ElementType::F32).unwrap();
            builder(Strategy::cagra()).metric(metric).default_knn(false, &data)
        };
        for (rows, dim, metric) in [
            (80_000, 200, Metric::L2),
            (80_000, 960, Metric::Cosine),
            (200_000, 200, Metric::InnerProduct),
            (41_000, 960, Metric::InnerProduct),
        ] {
            assert_eq!(cagra(rows, dim, metric), 64, "{rows} x {dim}, {metric}");
            assert_eq!(cagra(rows + 700, dim, metric), 96, "{rows} x {dim} and more, {metric}");
        }
        let data = DataShape::new(1000, 8, ElementType::F32).unwrap();
        assert_eq!(builder(Strategy::nssg()).default_knn(false, &data), 60);
        assert_eq!(builder(Strategy::nssg()).default_knn(true, &data), 96);
        assert_eq!(builder(Strategy::nssg()).start(Start::Random).default_knn(false, &data), 96);
    }
}
