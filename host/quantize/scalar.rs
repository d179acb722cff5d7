//! Scalar quantization: one byte or two per component of a vector, for builds and searches.
//!
//! ```text
//! x is rotated first, if codes are bytes
//! code of x   = round((x - mean) * scale), component by component, cut at the ends of the type
//! inner product: without the mean; the code of a query = round(x * scale of this query)
//! rest of x   = what its code in bytes lacks, in another byte
//! ```
//!
//! All components share one scale, so distances of codes are those of the vectors times a constant,
//! but for rounding. The rotation keeps distances, and gives all components about the same
//! variance, so that none wastes levels of a byte.

use std::fmt;

use half::f16;
use rayon::prelude::*;
use tagore_device::vectors::code::Code;

use super::rotation::Rotation;
use crate::gpu::Gpu;
use crate::memory::zeros;
use crate::vectors::gpu::Pick;
use crate::vectors::{Component, Element, Vectors, with_matrix};
use crate::{ElementType, Error, Metric, Progress, Result};

/// The share of a sample's components, in order of magnitude, that codes hold without being cut.
const HELD: f64 = 0.9999;

/// As [`HELD`], for codes in bytes that have rests: [`least_noise`] chooses one. Where some rows
/// have neighbours far nearer than others have, smaller levels keep the order of near neighbours,
/// and rests tell how far cut components reach (docs/measurements.md).
const HELD_IF_SETTLED: [f64; 6] = [HELD, 0.999, 0.998, 0.995, 0.99, 0.98];

/// One row of a sample in this many is compared with all others for [`least_noise`].
const COMPARED: usize = 4;

/// How vectors are compressed for searches ([`Searcher::compressed`](crate::Searcher::compressed)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Two bytes per component, in half precision.
    F16,
    /// One byte per component: 255 levels between the ends of nearly all values.
    Int8,
}

impl Compression {
    /// What the option `vectors` names: `f16` or `int8`; none for `full`, the vectors themselves.
    ///
    /// # Errors
    /// If it is another name.
    pub fn named(name: &str) -> Result<Option<Self>> {
        match name {
            "full" => Ok(None),
            "f16" => Ok(Some(Self::F16)),
            "int8" => Ok(Some(Self::Int8)),
            _ => Err(Error::argument("vectors", name, "full, f16 or int8")),
        }
    }

    /// The name in options: `f16` or `int8`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Int8 => "int8",
        }
    }

    /// The type of codes.
    pub(crate) fn element(self) -> ElementType {
        match self {
            Self::F16 => ElementType::F16,
            Self::Int8 => ElementType::I8,
        }
    }

    /// Bytes per component.
    pub fn bytes(self) -> usize {
        self.element().size()
    }

    /// Whether codes of rows of this role have rests.
    pub(super) fn has_rests(self, role: Role) -> bool {
        role == Role::Settled && self == Self::Int8
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Fewer vectors are coded on the host.
const FEW: usize = 256;

/// Rows that are coded together.
const ROWS: usize = 8;

/// Rows that a thread codes before it reports progress.
const BLOCK: usize = 64 * ROWS;

/// Rows to code, by their use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Rows that searches walk on.
    Base,
    Queries,
    /// Nodes of a graph whose lists will be settled: codes in bytes have rests.
    Settled,
}

/// Codes, and the rests of codes in bytes if they are wanted.
pub(crate) struct Codes {
    pub codes: Vectors,
    pub rests: Option<Vectors>,
}

/// Turns vectors into codes.
pub(crate) struct ScalarQuantizer {
    compression: Compression,
    metric: Metric,
    rotation: Option<Rotation>,
    mean: Vec<f32>,
    /// Largest distance of a component from its mean that is held.
    range: f32,
}

impl ScalarQuantizer {
    /// A quantizer for searches of rows like those of `base`, which are unit vectors under cosine.
    ///
    /// # Errors
    /// If the vectors are no larger than their codes, or lie on a device that fails.
    pub(crate) fn fit(base: &Vectors, metric: Metric, compression: Compression) -> Result<Self> {
        Self::holding(&[HELD], base, metric, compression)
    }

    /// As [`fit`](Self::fit), for codes [with rests](Self::with_rests).
    ///
    /// # Errors
    /// As [`fit`](Self::fit).
    pub(crate) fn for_settling(base: &Vectors, metric: Metric, compression: Compression) -> Result<Self> {
        // Cut components would hide the largest products.
        let is_cut = compression == Compression::Int8 && metric != Metric::InnerProduct;
        Self::holding(if is_cut { &HELD_IF_SETTLED } else { &[HELD] }, base, metric, compression)
    }

    /// A quantizer that holds one of `shares`.
    fn holding(shares: &[f64], base: &Vectors, metric: Metric, compression: Compression) -> Result<Self> {
        let element = base.element_type();
        if element.size() <= compression.bytes() {
            let found = format_args!("{compression} for a base of {element}");
            return Err(Error::argument("vectors", found, "full: codes would not be smaller"));
        }
        let (sample, rows) = base.spread()?;
        let dim = base.dim();
        let rotation = (compression == Compression::Int8).then(|| Rotation::new(dim));
        let rotated = |row: usize| {
            let mut row: Vec<_> = sample.row(row).iter().map(|&x| [x]).collect();
            rotation.iter().for_each(|rotation| rotation.apply(&mut row));
            row.into_flattened()
        };
        let rows: Vec<Vec<f32>> = rows.into_par_iter().map(rotated).collect();
        let mut sums = vec![0f64; dim];
        for row in &rows {
            sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += f64::from(x));
        }
        // Products of centred rows are in another order than those of the rows.
        let count = if metric == Metric::InnerProduct { f64::INFINITY } else { rows.len().max(1) as f64 };
        let mean: Vec<f32> = sums.iter().map(|sum| (sum / count) as f32).collect();
        let deviations = rows.iter().flat_map(|row| row.iter().zip(&mean).map(|(x, mean)| (x - mean).abs()));
        let mut deviations: Vec<f32> = deviations.collect();
        let mut holding = |share: f64| match (deviations.len() as f64 * share) as usize {
            held if held < deviations.len() => *deviations.select_nth_unstable_by(held, f32::total_cmp).1,
            _ => 0.0,
        };
        let ranges: Vec<f32> = shares.iter().map(|&share| holding(share)).collect();
        let range = match ranges[..] {
            [range] => range,
            _ => least_noise(&rows, &mean, &ranges),
        };
        // Equal rows have equal codes at any scale.
        let range = if range > 0.0 { range } else { 1.0 };
        Ok(Self { compression, metric: Self::metric_of(metric), rotation, mean, range })
    }

    /// The metric under which codes are compared: squared L2 distances order unit vectors as cosine
    /// distances do.
    pub(crate) fn metric_of(metric: Metric) -> Metric {
        if metric == Metric::Cosine { Metric::L2 } else { metric }
    }

    /// The metric under which these codes are compared.
    pub(crate) fn metric(&self) -> Metric {
        self.metric
    }

    /// The way of compressing.
    pub(crate) fn compression(&self) -> Compression {
        self.compression
    }

    /// The codes of a base, or of those of its rows that `rows` names. They lie on `gpu` if it made
    /// them, which takes less time unless there are few; every backend makes the same.
    ///
    /// # Errors
    /// If a device lacks memory or fails, or the work is cancelled.
    pub(crate) fn base(
        &self,
        base: &Vectors,
        rows: Option<&[u32]>,
        gpu: Option<&Gpu>,
        progress: &Progress,
    ) -> Result<Vectors> {
        Ok(self.all((base, &Pick::of(base.len(), rows)), Role::Base, gpu, progress)?.codes)
    }

    /// As [`base`](Self::base), with the rests of codes in bytes.
    ///
    /// # Errors
    /// As [`base`](Self::base).
    pub(crate) fn with_rests(
        &self,
        base: &Vectors,
        rows: Option<&[u32]>,
        gpu: Option<&Gpu>,
        progress: &Progress,
    ) -> Result<Codes> {
        self.all((base, &Pick::of(base.len(), rows)), Role::Settled, gpu, progress)
    }

    /// The codes of queries, where [`base`](Self::base) says.
    ///
    /// # Errors
    /// As [`base`](Self::base).
    pub(crate) fn queries(
        &self,
        queries: &Vectors,
        gpu: Option<&Gpu>,
        progress: &Progress,
    ) -> Result<Vectors> {
        Ok(self.all((queries, &Pick::of(queries.len(), None)), Role::Queries, gpu, progress)?.codes)
    }

    pub(super) fn all(
        &self,
        (vectors, pick): (&Vectors, &Pick<'_>),
        role: Role,
        gpu: Option<&Gpu>,
        progress: &Progress,
    ) -> Result<Codes> {
        if let Some(gpu) = gpu.filter(|_| pick.len() >= FEW) {
            return self.all_on(gpu, (vectors, pick), role, progress);
        }
        vectors.on_host()?;
        match self.compression {
            Compression::F16 => self.all_as::<f16>((vectors, pick), role, progress),
            Compression::Int8 => self.all_as::<i8>((vectors, pick), role, progress),
        }
    }

    fn all_as<T: Code + Component + Element>(
        &self,
        (vectors, pick): (&Vectors, &Pick<'_>),
        role: Role,
        progress: &Progress,
    ) -> Result<Codes> {
        let (dim, count) = (vectors.dim(), pick.len());
        let mut codes: Vec<T> = zeros(count * dim)?;
        let mut rests: Vec<T> = zeros(if self.compression.has_rests(role) { count * dim } else { 0 })?;
        let stage = progress.stage("compress", count as u64);
        with_matrix!(vectors.rows(), rows => {
            let blocks = codes.par_chunks_mut(BLOCK * dim).enumerate();
            let mut of_rests: Vec<&mut [T]> = rests.chunks_mut(BLOCK * dim).collect();
            of_rests.resize_with(blocks.len(), Default::default);
            let blocks = blocks.zip(of_rests);
            blocks.try_for_each_init(|| vec![[0f32; ROWS]; dim], |room, ((block, codes), rests)| {
                stage.advance((codes.len() / dim) as u64)?;
                let mut rests = rests.chunks_mut(ROWS * dim);
                for (group, codes) in codes.chunks_mut(ROWS * dim).enumerate() {
                    let first = block * BLOCK + group * ROWS;
                    for place in 0..codes.len() / dim {
                        let row = rows.components(pick.row(first + place));
                        room.iter_mut().zip(row).for_each(|(room, x)| room[place] = x);
                    }
                    self.code(room, role, codes);
                    if let Some(rests) = rests.next() {
                        rests_of(room, codes, rests);
                    }
                }
                Ok::<(), Error>(())
            })?;
        });
        let rests = (!rests.is_empty()).then(|| Vectors::from_owner(rests, dim)).transpose()?;
        Ok(Codes { codes: Vectors::from_owner(codes, dim)?, rests })
    }

    /// Writes the codes of up to `N` vectors, which are given component by component and become
    /// the values that codes round.
    fn code<T: Code, const N: usize>(&self, vectors: &mut [[f32; N]], role: Role, codes: &mut [T]) {
        let dim = vectors.len();
        self.rotation.iter().for_each(|rotation| rotation.apply(vectors));
        let mut scale = [self.scale::<T>(role); N];
        if scale == [0.0; N] {
            let mut largest = [0f32; N];
            for component in &*vectors {
                largest.iter_mut().zip(component).for_each(|(largest, x)| *largest = largest.max(x.abs()));
            }
            scale = largest.map(|largest| if largest > 0.0 { T::LARGEST / largest } else { 0.0 });
        }
        for (component, mean) in vectors.iter_mut().zip(&self.mean) {
            component.iter_mut().zip(scale).for_each(|(x, scale)| *x = (*x - mean) * scale);
        }
        for (place, codes) in codes.chunks_exact_mut(dim).enumerate() {
            codes.iter_mut().zip(&*vectors).for_each(|(code, component)| *code = T::of(component[place]));
        }
    }

    /// The factor of all vectors; 0 if each has its own, so that its largest magnitude has the
    /// largest code.
    pub(super) fn scale<T: Code>(&self, role: Role) -> f32 {
        let of_each = role == Role::Queries && self.metric == Metric::InnerProduct;
        if of_each { 0.0 } else { T::LARGEST / self.range }
    }

    /// What is taken off each component.
    pub(super) fn mean(&self) -> &[f32] {
        &self.mean
    }

    /// The factors of the rotation's transforms, one transform after another, and the components of
    /// each transform, at least 1.
    pub(super) fn transforms(&self) -> (Vec<f32>, usize) {
        self.rotation.as_ref().map_or((Vec::new(), 1), Rotation::transforms)
    }

    /// Writes the code of a query, in the values of its space, which become something else.
    pub(crate) fn code_query<T: Code>(&self, query: &mut [[f32; 1]], code: &mut [T]) {
        self.code(query, Role::Queries, code);
    }
}

/// The one of `ranges` with the least noise of codes in bytes of `rows`: over a part of the rows,
/// the mean share of rounding and cutting in the squared distance of the nearest other row.
fn least_noise(rows: &[Vec<f32>], mean: &[f32], ranges: &[f32]) -> f32 {
    let compared: Vec<usize> = (0..rows.len()).step_by(COMPARED).collect();
    let noises = compared.into_par_iter().map(|number| {
        let others = rows.iter().enumerate().filter(|&(other, _)| other != number);
        let nearest = others.map(|(_, other)| f32::squared_l2(&rows[number], other)).fold(f32::MAX, f32::min);
        let noise = |&range: &f32| {
            let level = range / i8::LARGEST;
            let cut = |(x, mean): (&f32, &f32)| f64::from(((x - mean).abs() - range).max(0.0)).powi(2);
            let cut: f64 = rows[number].iter().zip(mean).map(cut).sum();
            let noise = cut + mean.len() as f64 * f64::from(level * level) / 12.0;
            noise / (noise + f64::from(nearest)).max(f64::MIN_POSITIVE)
        };
        ranges.iter().map(noise).collect::<Vec<f64>>()
    });
    let noises: Vec<Vec<f64>> = noises.collect();
    let sum = |place: usize| noises.iter().map(|noises| noises[place]).sum::<f64>();
    let sums: Vec<f64> = (0..ranges.len()).map(sum).collect();
    let least = (0..ranges.len()).min_by(|&a, &b| sums[a].total_cmp(&sums[b]));
    least.map_or(0.0, |place| ranges[place])
}

/// Writes the rests of `codes`, of vectors whose values are given component by component.
fn rests_of<T: Code, const N: usize>(values: &[[f32; N]], codes: &[T], rests: &mut [T]) {
    let dim = values.len();
    let rows = codes.chunks_exact(dim).zip(rests.chunks_exact_mut(dim));
    for (place, (codes, rests)) in rows.enumerate() {
        for ((rest, code), values) in rests.iter_mut().zip(codes).zip(values) {
            *rest = code.rest(values[place]);
        }
    }
}
