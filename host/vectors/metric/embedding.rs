//! Embeddings whose squared L2 distances are the rule distances of a metric.

use crate::loops::{for_each, numbered, rows_mut};
use crate::vectors::mean::{common_mean, largest_square_less, less_mean};
use crate::vectors::norms::{largest_square, lift};
use crate::vectors::space::Space;
use crate::vectors::with_matrix;
use crate::{Metric, Progress, Result, Vectors};

/// The embedding of a base: unit vectors under cosine, lifted rows under inner product, the vectors
/// themselves under L2. Under inner product rows are moved if their mean is far from 0.
#[derive(Clone)]
pub(crate) struct Embedding {
    metric: Metric,
    /// Inner product: square of the largest norm, of moved rows if rows are moved.
    largest: f64,
    /// Inner product: what is subtracted from rows; empty if they are not moved.
    mean: Vec<f32>,
}

impl Embedding {
    /// Prepares the embedding; under inner product this reads all of `base`.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn new(base: &Vectors, metric: Metric, progress: &Progress) -> Result<Self> {
        let mean = common_mean(base, metric)?.unwrap_or_default();
        let largest = match metric {
            Metric::L2 | Metric::Cosine => 0.0,
            Metric::InnerProduct if mean.is_empty() => largest_square(base, progress)?,
            Metric::InnerProduct => largest_square_less(base, &mean, progress)?,
        };
        Ok(Self { metric, largest, mean })
    }

    /// The embedding with this [`largest_square`](Self::largest_square) and [`mean`](Self::mean).
    pub(crate) fn from_parts(metric: Metric, largest: f64, mean: Vec<f32>) -> Self {
        Self { metric, largest, mean }
    }

    /// The square of the largest norm under inner product, else 0.
    pub(crate) fn largest_square(&self) -> f64 {
        self.largest
    }

    /// What is subtracted from rows; empty if they are not moved.
    pub(crate) fn mean(&self) -> &[f32] {
        &self.mean
    }

    /// The rows whose graph is built: `members`, moved if rows are moved.
    pub(crate) fn moved(&self, members: Vectors) -> Result<Vectors> {
        if self.mean.is_empty() { Ok(members) } else { less_mean(&members, &self.mean) }
    }

    pub(crate) fn metric(&self) -> Metric {
        self.metric
    }

    /// The largest norm under inner product, else 0.
    pub(crate) fn largest_norm(&self) -> f32 {
        self.largest.sqrt() as f32
    }

    /// The [`moved`](Self::moved) members of a cluster as a space with the rule distances of the
    /// whole base.
    pub(crate) fn space(&self, members: Vectors, progress: &Progress) -> Result<Space<'static>> {
        Space::owned(members, self.metric, progress)?.lifted_to(self.largest, progress)
    }

    /// Inner product: the lift of each of the [`moved`](Self::moved) `members`, and the squared
    /// norm of lifted rows.
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
        row.iter_mut().zip(&self.mean).for_each(|(x, mean)| *x -= mean);
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
        let embed = |(index, out): (usize, &mut [f32])| self.embed(base, row(index), out);
        for_each(numbered(rows_mut(&mut values, dim)), embed);
        // A lift may exceed the range of a data set's values: `dense_f32` does not check it.
        Vectors::dense_f32(values, dim)
    }
}
