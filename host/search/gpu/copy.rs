//! Copies of the base in fewer bytes, for walks.

use cuda_std::f16;
use rayon::prelude::*;

use super::Resident;
use super::launch::BeamKernels;
use crate::Result;
use crate::gpu::Gpu;
use crate::search::SearchVectors;
use crate::vectors::gpu::{Base, OnDevice};
use crate::vectors::space::{Queries, Space};
use crate::vectors::{Element, ElementType, Matrix, Metric, TypedRows, with_matrix};

/// Rows in the sample that decides the scale.
const SAMPLE: usize = 16_384;

/// Share of the sampled rows whose components all fit; others are clamped.
const WITHIN: f64 = 0.999;

/// A type of copies.
pub(super) trait Code: OnDevice {
    /// The magnitude that fills the type, or enough of it.
    const MOST: f32;

    /// The nearest value of the type.
    fn code(x: f32) -> Self;
}

impl Code for f16 {
    // Squares of larger values leave f32 less room.
    const MOST: f32 = 4096.0;

    fn code(x: f32) -> Self {
        f16::from_f32(x.clamp(-65504.0, 65504.0))
    }
}

impl Code for i8 {
    const MOST: f32 = 127.0;

    fn code(x: f32) -> Self {
        x.round().clamp(-127.0, 127.0) as i8
    }
}

/// A copy of the base on a device.
pub(super) enum AnyCopy {
    F16(BaseCopy<f16>),
    I8(BaseCopy<i8>),
}

/// A copy of the base in `T`: `(x - mean) * scale`. Under inner product the mean is 0. Under L2 and
/// cosine distances of the copy are those of the base times `scale` squared, but for rounding, so
/// they have the same order.
pub(super) struct BaseCopy<T: OnDevice> {
    pub resident: Resident<T>,
    mean: Vec<f32>,
    scale: f32,
    /// The metric of walks.
    pub metric: Metric,
}

impl AnyCopy {
    /// The copy that a search of `space`, whose rows have type `own` on the device, walks on with
    /// these vectors; none if that is the base.
    pub(super) fn of(
        gpu: &Gpu,
        space: &Space<'_>,
        own: ElementType,
        vectors: SearchVectors,
    ) -> Result<Option<Self>> {
        Ok(match vectors.copy_of(own) {
            Some(ElementType::F16) => Some(Self::F16(BaseCopy::new(gpu, space)?)),
            Some(ElementType::I8) => Some(Self::I8(BaseCopy::new(gpu, space)?)),
            _ => None,
        })
    }
}

impl<T: Code + BeamKernels> BaseCopy<T> {
    fn new(gpu: &Gpu, space: &Space<'_>) -> Result<Self> {
        let (n, dim) = (space.len(), space.dim());
        let metric = if space.metric() == Metric::InnerProduct { Metric::InnerProduct } else { Metric::L2 };
        let mean = if metric == Metric::L2 { mean(space.rows(), n) } else { vec![0.0; dim] };
        let scale = scale::<T>(largest(space.rows(), n, &mean));
        let codes = codes::<T>(space.rows(), n, &mean, |_| scale);
        let base = Base::plain(gpu, n, Matrix::new(&codes, dim, dim))?;
        Ok(Self { resident: Resident::of(base), mean, scale, metric })
    }

    /// `queries` in the copy's form. Under inner product each has a scale of its own.
    pub(super) fn queries(&self, queries: &Queries<'_>) -> Vec<T> {
        let rows = queries.rows();
        codes(rows, queries.len(), &self.mean, |query| match self.metric {
            Metric::InnerProduct => scale::<T>(with_matrix!(rows, m => magnitude(m.row(query), &self.mean))),
            Metric::L2 | Metric::Cosine => self.scale,
        })
    }
}

/// The mean of a sample of rows.
fn mean(rows: TypedRows<'_>, n: usize) -> Vec<f32> {
    with_matrix!(rows, m => {
        let mut sums = vec![0f64; m.dim()];
        for row in sample(n) {
            m.row(row).iter().zip(&mut sums).for_each(|(x, sum)| *sum += f64::from(Element::to_f32(*x)));
        }
        let count = sample(n).count().max(1) as f64;
        sums.into_iter().map(|sum| (sum / count) as f32).collect()
    })
}

/// The magnitude that the components of nearly all rows of a sample stay within.
fn largest(rows: TypedRows<'_>, n: usize, mean: &[f32]) -> f32 {
    let of = |row| with_matrix!(rows, m => magnitude(m.row(row), mean));
    let mut magnitudes: Vec<f32> = sample(n).map(of).collect();
    magnitudes.sort_unstable_by(f32::total_cmp);
    let place = (magnitudes.len().saturating_sub(1) as f64 * WITHIN) as usize;
    magnitudes.get(place).copied().unwrap_or(0.0)
}

/// Evenly spread rows.
fn sample(n: usize) -> impl Iterator<Item = usize> {
    (0..n).step_by(n.div_ceil(SAMPLE).max(1))
}

/// The largest magnitude of a component of `row`, less the mean.
fn magnitude<E: Element>(row: &[E], mean: &[f32]) -> f32 {
    row.iter().zip(mean).map(|(x, mean)| (Element::to_f32(*x) - mean).abs()).fold(0.0, f32::max)
}

/// The factor that brings `largest` to the magnitude of the type.
fn scale<T: Code>(largest: f32) -> f32 {
    let scale = T::MOST / largest;
    // Zeros alone, or values whose factor would overflow: they are all near each other.
    if scale.is_finite() { scale } else { 1.0 }
}

/// The first `count` rows as codes without gaps, each with the scale of its number.
fn codes<T: Code>(
    rows: TypedRows<'_>,
    count: usize,
    mean: &[f32],
    scale: impl Fn(usize) -> f32 + Sync,
) -> Vec<T> {
    let mut codes = vec![T::zeroed(); count * mean.len()];
    with_matrix!(rows, m => {
        codes.par_chunks_exact_mut(mean.len()).enumerate().for_each(|(row, codes)| {
            let scale = scale(row);
            let values = m.row(row).iter().zip(mean);
            codes.iter_mut().zip(values).for_each(|(code, (x, mean))| {
                *code = T::code((Element::to_f32(*x) - mean) * scale);
            });
        });
    });
    codes
}
