//! Embeddings whose squared L2 distances are the rule distances of a metric.

use rayon::prelude::*;

use super::norms::{largest_square, lift};
use super::space::Space;
use super::with_matrix;
use crate::{Metric, Progress, Result, Vectors};

/// The embedding of a base: unit vectors under cosine, lifted rows under inner product, the vectors
/// themselves under L2.
#[derive(Clone, Copy)]
pub(crate) struct Embedding {
    metric: Metric,
    /// Inner product: square of the largest norm.
    largest: f64,
}

impl Embedding {
    /// Prepares the embedding; under inner product this reads all of `base`.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn new(base: &Vectors, metric: Metric, progress: &Progress) -> Result<Self> {
        let largest = if metric == Metric::InnerProduct { largest_square(base, progress)? } else { 0.0 };
        Ok(Self { metric, largest })
    }

    /// The embedding of a base whose largest squared norm is `largest` under inner product, else 0.
    pub(crate) fn of(metric: Metric, largest: f64) -> Self {
        Self { metric, largest }
    }

    /// The square of the largest norm under inner product, else 0.
    pub(crate) fn largest_square(&self) -> f64 {
        self.largest
    }

    pub(crate) fn metric(&self) -> Metric {
        self.metric
    }

    /// The largest norm under inner product, else 0.
    pub(crate) fn largest_norm(&self) -> f32 {
        self.largest.sqrt() as f32
    }

    /// The members of a cluster as a space with the rule distances of the whole base.
    pub(crate) fn space(&self, members: Vectors, progress: &Progress) -> Result<Space<'static>> {
        Space::owned(members, self.metric, progress)?.lifted_to(self.largest, progress)
    }

    /// Inner product: the lift of each of `members`, and the squared norm of lifted rows.
    pub(crate) fn lifts(&self, members: &Vectors, progress: &Progress) -> Result<Option<(Vec<f32>, f32)>> {
        let lifts = || Ok((lift(members, self.largest, progress)?, self.largest as f32));
        (self.metric == Metric::InnerProduct).then(lifts).transpose()
    }

    /// Components per embedded row, for rows of `dim` components.
    pub(crate) fn dim(&self, dim: usize) -> usize {
        dim + usize::from(self.metric == Metric::InnerProduct)
    }

    /// Writes the embedding of row `index` of `base` to `out`.
    pub(crate) fn embed(&self, base: &Vectors, index: usize, out: &mut [f32]) {
        let (row, lift) = out.split_at_mut(base.dim());
        with_matrix!(base.rows(), m => row.iter_mut().zip(m.components(index)).for_each(|(out, x)| *out = x));
        let square = |row: &[f32]| row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>();
        match self.metric {
            Metric::L2 => {}
            Metric::InnerProduct => lift[0] = (self.largest - square(row)).max(0.0).sqrt() as f32,
            Metric::Cosine => {
                let norm = square(row).sqrt();
                if norm > 0.0 {
                    row.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
                }
            }
        }
    }

    /// The embeddings of the rows of `base` given by `row`.
    pub(crate) fn rows(
        &self,
        base: &Vectors,
        count: usize,
        row: impl Fn(usize) -> usize + Sync + Send,
    ) -> Vectors {
        let dim = self.dim(base.dim());
        let mut values = vec![0f32; count * dim];
        let rows = values.par_chunks_exact_mut(dim).enumerate();
        rows.for_each(|(index, out)| self.embed(base, row(index), out));
        // A lift may exceed the range of a data set's values: `dense_f32` does not check it.
        Vectors::dense_f32(values, dim)
    }
}
