//! Scalar quantization: one byte or two per component of a vector, for builds and searches.
//!
//! ```text
//! x is rotated first, if codes are bytes
//! code of x   = round((x - mean) * scale), component by component, cut at the ends of the type
//! inner product: the code of a query = round(x * scale of this query)
//! rest of x   = what its code in bytes lacks, in another byte
//! ```
//!
//! All components share one scale, so distances of codes are those of the vectors times a constant,
//! but for rounding. The rotation keeps distances, and gives all components about the same
//! variance, so that none wastes levels of a byte. Less the mean, products of a query with rows
//! change by the same number for all rows; builds, whose queries are rows, compare products of
//! the rows as they are.
//!
//! [`fit`](super::fit) chooses mean and scale, so that outliers do not make the others equal. A
//! row that is cut looks nearer to others than it is, never farther. So searches for rows that
//! codes hold meet every neighbour, and those for other rows have to walk on the vectors
//! ([`ScalarQuantizer::not_held`]).

use std::fmt;

use half::f16;
use tagore_device::vectors::code::Code;

use super::fit::{self, Fitted, MIN_RECALL};
use crate::gpu::Gpu;
use crate::loops::{numbered, rows_mut, try_for_each_with};
use crate::memory::zeros;
use crate::vectors::norms::squares;
use crate::vectors::rotation::Rotation;
use crate::vectors::{Component, Element, Vectors, with_matrix};
use crate::{ElementType, Error, Metric, Progress, Result};

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
const MIN_ON_GPU: usize = 256;

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

/// The use of codes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Searches for other vectors, on codes of rows.
    Search,
    /// Builds: searches for rows.
    Build,
    /// Builds on codes [with rests](ScalarQuantizer::with_rests).
    Settled,
}

/// Turns vectors into codes.
pub(crate) struct ScalarQuantizer {
    pub(super) compression: Compression,
    /// The metric of codes.
    pub(super) metric: Metric,
    pub(super) rotation: Option<Rotation>,
    /// What is taken off each component before the rotation, where f32 would lose the rows' spread
    /// beside it; else empty.
    pub(super) offset: Vec<f32>,
    /// What is taken off each component.
    pub(super) mean: Vec<f32>,
    /// What is taken off each component of vectors that stay as they are: zeros.
    pub(super) none: Vec<f32>,
    /// Largest distance of a component from its mean that is held.
    pub(super) range: f32,
    /// Largest sum of squares of a code that counts as held.
    pub(super) largest: f64,
    pub(super) recall: f64,
    /// The share of the rows that codes are fitted to.
    pub(super) share: f64,
}

impl ScalarQuantizer {
    /// A quantizer for searches of rows like those of `base`, which are unit vectors under cosine.
    ///
    /// # Errors
    /// If the vectors are no larger than their codes, or lie on a device that fails.
    pub(crate) fn for_search(base: &Vectors, metric: Metric, compression: Compression) -> Result<Self> {
        Self::fitted(Use::Search, base, metric, compression)
    }

    /// A quantizer for builds.
    ///
    /// # Errors
    /// As [`for_search`](Self::for_search).
    pub(crate) fn for_build(base: &Vectors, metric: Metric, compression: Compression) -> Result<Self> {
        Self::fitted(Use::Build, base, metric, compression)
    }

    /// As [`for_build`](Self::for_build), for codes [with rests](Self::with_rests).
    ///
    /// # Errors
    /// As [`for_search`](Self::for_search).
    pub(crate) fn for_settling(base: &Vectors, metric: Metric, compression: Compression) -> Result<Self> {
        Self::fitted(Use::Settled, base, metric, compression)
    }

    fn fitted(of: Use, base: &Vectors, metric: Metric, compression: Compression) -> Result<Self> {
        let element = base.element_type();
        if element.size() <= compression.bytes() {
            let found = format_args!("{compression} for a base of {element}");
            return Err(Error::argument("vectors", found, "full: codes would not be smaller"));
        }
        let Fitted { quantizer, .. } = fit::best(of, base, Self::metric_of(metric), compression)?;
        Ok(quantizer)
    }

    /// What codes lose, if that is too much for their use.
    pub(crate) fn warning(&self, of: Use) -> Option<String> {
        let (compression, recall, share) = (self.compression, self.recall, 100.0 * self.share);
        if recall < MIN_RECALL {
            return Some(format!(
                "codes in {compression} rank {recall:.3} of a sample's nearest rows among the nearest: use the \
                 full vectors"
            ));
        }
        (of != Use::Search && self.share < 1.0).then(|| {
            format!(
                "codes in {compression} hold {share} % of the rows; searches may miss rows far from these: use \
                 the full vectors"
            )
        })
    }

    /// The share of the ten nearest rows among the nearest by codes that a search reranks, over a
    /// sample of the rows; rows that codes do not hold count as found in searches.
    pub(crate) fn recall(&self) -> f64 {
        self.recall
    }

    /// The numbers of those of `codes` whose vectors codes do not hold, ascending.
    ///
    /// # Errors
    /// If the codes lie on a device that fails.
    pub(crate) fn not_held(&self, codes: &Vectors) -> Result<Vec<u32>> {
        if self.largest == f64::INFINITY {
            return Ok(Vec::new());
        }
        let squares = (0..).zip(squares(codes)?);
        Ok(squares.filter(|&(_, square)| !self.holds(square)).map(|(number, _)| number).collect())
    }

    /// Whether codes hold the vector of a code with this sum of squares.
    pub(crate) fn holds(&self, square: f64) -> bool {
        square <= self.largest
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

    /// The codes of a base. They lie on `gpu` if it made them, which takes less time unless there
    /// are few; every backend makes the same.
    ///
    /// # Errors
    /// If a device lacks memory or fails, or the work is cancelled.
    pub(crate) fn base(&self, base: &Vectors, gpu: Option<&Gpu>, progress: &Progress) -> Result<Vectors> {
        Ok(self.all(base, Role::Base, gpu, progress)?.codes)
    }

    /// As [`base`](Self::base), with the rests of codes in bytes.
    ///
    /// # Errors
    /// As [`base`](Self::base).
    pub(crate) fn with_rests(&self, base: &Vectors, gpu: Option<&Gpu>, progress: &Progress) -> Result<Codes> {
        self.all(base, Role::Settled, gpu, progress)
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
        Ok(self.all(queries, Role::Queries, gpu, progress)?.codes)
    }

    pub(super) fn all(
        &self,
        vectors: &Vectors,
        role: Role,
        gpu: Option<&Gpu>,
        progress: &Progress,
    ) -> Result<Codes> {
        // Kernels take off the mean alone.
        let has_offset = self.is_centred(role) && !self.offset.is_empty();
        if let Some(gpu) = gpu.filter(|_| vectors.len() >= MIN_ON_GPU && !has_offset) {
            return self.all_on(gpu, vectors, role, progress);
        }
        vectors.on_host()?;
        match self.compression {
            Compression::F16 => self.all_as::<f16>(vectors, role, progress),
            Compression::Int8 => self.all_as::<i8>(vectors, role, progress),
        }
    }

    fn all_as<T: Code + Component + Element>(
        &self,
        vectors: &Vectors,
        role: Role,
        progress: &Progress,
    ) -> Result<Codes> {
        let (dim, count) = (vectors.dim(), vectors.len());
        let mut codes: Vec<T> = zeros(count * dim)?;
        let mut rests: Vec<T> = zeros(if self.compression.has_rests(role) { count * dim } else { 0 })?;
        let stage = progress.stage("compress", count as u64);
        let rows = vectors.rows();
        let blocks = numbered(rows_mut(&mut codes, BLOCK * dim));
        let mut of_rests: Vec<&mut [T]> = rests.chunks_mut(BLOCK * dim).collect();
        of_rests.resize_with(blocks.0.len(), Default::default);
        let (blocks, room) = ((blocks, &mut of_rests[..]), || vec![[0f32; ROWS]; dim]);
        try_for_each_with(blocks, room, |room, ((block, codes), rests)| {
            stage.advance((codes.len() / dim) as u64)?;
            let mut rests = rests.chunks_mut(ROWS * dim);
            for (group, codes) in codes.chunks_mut(ROWS * dim).enumerate() {
                let first = block * BLOCK + group * ROWS;
                with_matrix!(rows, rows => {
                    for place in 0..codes.len() / dim {
                        let row = rows.components(first + place);
                        room.iter_mut().zip(row).for_each(|(room, x)| room[place] = x);
                    }
                });
                self.code(room, role, codes);
                if let Some(rests) = rests.next() {
                    rests_of(room, codes, rests);
                }
            }
            Ok(())
        })?;
        let rests = (!rests.is_empty()).then(|| Vectors::from_owner(rests, dim)).transpose()?;
        Ok(Codes { codes: Vectors::from_owner(codes, dim)?, rests })
    }

    /// Writes the codes of up to `N` vectors, which are given component by component and become
    /// the values that codes round.
    fn code<T: Code, const N: usize>(&self, vectors: &mut [[f32; N]], role: Role, codes: &mut [T]) {
        let dim = vectors.len();
        if self.is_centred(role) {
            for (component, offset) in vectors.iter_mut().zip(&self.offset) {
                component.iter_mut().for_each(|x| *x -= offset);
            }
        }
        self.rotation.iter().for_each(|rotation| rotation.apply(vectors));
        let mut scale = [self.scale::<T>(role); N];
        if scale == [0.0; N] {
            let mut largest = [0f32; N];
            for component in &*vectors {
                largest.iter_mut().zip(component).for_each(|(largest, x)| *largest = largest.max(x.abs()));
            }
            scale = largest.map(|largest| if largest > 0.0 { T::LARGEST / largest } else { 0.0 });
        }
        for (component, mean) in vectors.iter_mut().zip(self.mean(role)) {
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

    /// Whether the mean is taken off vectors of this role. A query without it has the same order of
    /// products.
    fn is_centred(&self, role: Role) -> bool {
        role != Role::Queries || self.metric != Metric::InnerProduct
    }

    /// What is taken off each component after the rotation.
    pub(super) fn mean(&self, role: Role) -> &[f32] {
        if self.is_centred(role) { &self.mean } else { &self.none }
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
