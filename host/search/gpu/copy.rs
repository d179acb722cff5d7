//! Copies of the base in fewer bytes, for walks.

use cuda_std::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

use super::Resident;
use super::launch::BeamKernels;
use super::rotation::Rotation;
use crate::Result;
use crate::gpu::Gpu;
use crate::search::SearchVectors;
use crate::vectors::gpu::{Base, OnDevice, Origin};
use crate::vectors::space::{Queries, Space};
use crate::vectors::{Element, ElementType, Metric, TypedRows, with_matrix};

/// Rows in the sample that decides the scale.
const SAMPLE: usize = 16_384;

/// Fewest rows coded per thread.
const AT_ONCE: usize = 16;

/// Share of the sampled rows whose components all fit; others are clamped.
const WITHIN: f64 = 0.999;

/// A type of copies.
pub(super) trait Code: OnDevice {
    /// The magnitude that fills the type, or enough of it.
    const MOST: f32;

    /// The largest magnitude of the type; larger values are clamped.
    const CLAMP: f32;

    /// Whether vectors are rotated: where the type has few values, components must vary alike.
    const ROTATED: bool;

    /// Rounds `values` to the type.
    fn codes(values: &[f32], codes: &mut [Self]);
}

impl Code for f16 {
    // Squares of larger values leave f32 less room.
    const MOST: f32 = 4096.0;

    const CLAMP: f32 = 65504.0;

    const ROTATED: bool = false;

    fn codes(values: &[f32], codes: &mut [Self]) {
        codes.convert_from_f32_slice(values);
    }
}

impl Code for i8 {
    const MOST: f32 = 127.0;

    const CLAMP: f32 = 127.0;

    const ROTATED: bool = true;

    fn codes(values: &[f32], codes: &mut [Self]) {
        // The cast cuts fractions off.
        codes.iter_mut().zip(values).for_each(|(code, &x)| *code = (x + 0.5f32.copysign(x)) as i32 as i8);
    }
}

/// A copy of the base on a device.
pub(super) enum AnyCopy {
    F16(BaseCopy<f16>),
    I8(BaseCopy<i8>),
}

/// A copy of the base in `T`. Under L2 and cosine distances of the copy are those of the base times
/// the square of the scale, under inner product products, but for rounding: the order is the same.
pub(super) struct BaseCopy<T: OnDevice> {
    pub resident: Resident<T>,
    coding: Coding,
    scale: f32,
    /// The metric of walks.
    pub metric: Metric,
}

/// What is done to rows before they are scaled and rounded.
struct Coding {
    /// Subtracted from all rows; 0 under inner product.
    mean: Vec<f32>,
    rotation: Option<Rotation>,
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
        space.vectors().on_host()?;
        let (rows, n, dim) = (space.rows(), space.len(), space.dim());
        let metric = if space.metric() == Metric::InnerProduct { Metric::InnerProduct } else { Metric::L2 };
        let mean = if metric == Metric::L2 { mean(rows, n) } else { vec![0.0; dim] };
        let coding = Coding { mean, rotation: T::ROTATED.then(|| Rotation::new(dim)) };
        let scale = scale::<T>(coding.largest(rows, n));
        let codes = Origin::Converted(coding.codes::<T>(rows, n, |_| scale), dim);
        let base = Base::plain(gpu, (n, dim), &codes)?;
        Ok(Self { resident: Resident::of(base), coding, scale, metric })
    }

    /// `queries` in the copy's form. Under inner product each has a scale of its own.
    pub(super) fn queries(&self, queries: &Queries<'_>) -> Result<Vec<T>> {
        queries.vectors().on_host()?;
        Ok(self.coding.codes(queries.vectors().rows(), queries.len(), |values| match self.metric {
            Metric::InnerProduct => scale::<T>(magnitude(values)),
            Metric::L2 | Metric::Cosine => self.scale,
        }))
    }
}

impl Coding {
    /// Writes row `row` to `values`, centred and rotated; `spare` is room for as many components.
    fn apply(&self, rows: TypedRows<'_>, row: usize, (values, spare): (&mut [f32], &mut [f32])) {
        with_matrix!(rows, m => {
            let row = m.row(row).iter().zip(&self.mean);
            values.iter_mut().zip(row).for_each(|(value, (x, mean))| *value = Element::to_f32(*x) - mean);
        });
        if let Some(rotation) = &self.rotation {
            rotation.apply(values, spare);
        }
    }

    fn room(&self) -> (Vec<f32>, Vec<f32>) {
        (vec![0.0; self.mean.len()], vec![0.0; self.mean.len()])
    }

    /// The magnitude that the components of nearly all rows of a sample stay within.
    fn largest(&self, rows: TypedRows<'_>, n: usize) -> f32 {
        let of = |(values, spare): &mut (Vec<f32>, Vec<f32>), row: usize| {
            self.apply(rows, row, (values, spare));
            magnitude(values)
        };
        let step = n.div_ceil(SAMPLE).max(1);
        let sample = (0..n).into_par_iter().step_by(step);
        let mut magnitudes: Vec<f32> = sample.map_init(|| self.room(), of).collect();
        magnitudes.sort_unstable_by(f32::total_cmp);
        let place = (magnitudes.len().saturating_sub(1) as f64 * WITHIN) as usize;
        magnitudes.get(place).copied().unwrap_or(0.0)
    }

    /// The first `count` rows as codes without gaps; `scale` gives the scale of a row's values.
    fn codes<T: Code>(
        &self,
        rows: TypedRows<'_>,
        count: usize,
        scale: impl Fn(&[f32]) -> f32 + Sync,
    ) -> Vec<T> {
        let dim = self.mean.len();
        let mut codes = vec![T::default(); count * dim];
        let chunks = codes.par_chunks_exact_mut(dim).enumerate().with_min_len(AT_ONCE);
        chunks.for_each_init(
            || self.room(),
            |(values, spare), (row, codes)| {
                self.apply(rows, row, (values, spare));
                let scale = scale(values);
                values.iter_mut().for_each(|x| *x = (*x * scale).clamp(-T::CLAMP, T::CLAMP));
                T::codes(values, codes);
            },
        );
        codes
    }
}

/// The mean of a sample of rows.
fn mean(rows: TypedRows<'_>, n: usize) -> Vec<f32> {
    with_matrix!(rows, m => {
        let sample = || (0..n).step_by(n.div_ceil(SAMPLE).max(1));
        let mut sums = vec![0f64; m.dim()];
        for row in sample() {
            m.row(row).iter().zip(&mut sums).for_each(|(x, sum)| *sum += f64::from(Element::to_f32(*x)));
        }
        let count = sample().count().max(1) as f64;
        sums.into_iter().map(|sum| (sum / count) as f32).collect()
    })
}

/// The largest magnitude of a component.
fn magnitude(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, x| x.abs().max(largest))
}

/// The factor that brings `largest` to the magnitude of the type.
fn scale<T: Code>(largest: f32) -> f32 {
    let scale = T::MOST / largest;
    // Zeros alone, or values whose factor would overflow: they are all near each other.
    if scale.is_finite() { scale } else { 1.0 }
}
