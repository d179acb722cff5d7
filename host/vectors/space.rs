//! A data set under a metric: the distances that building and searching ask for.
//!
//! Two kinds of distance exist (they differ but for L2): *list* distances order neighbour lists and
//! results; *rule* distances, always squared L2, are what pruning rules and medoids compare.
//! Cosine: rows are normalised once; list distances are half the squared L2 distance of unit
//! vectors, which is 1 − cos without its cancellation between near vectors, and rule distances are
//! 2(1 − cos). Inner product: list distances are −⟨x, y⟩; rule distances are squared L2 after one
//! more coordinate `lift = sqrt(M² − |x|²)`, M the largest norm, has made all norms equal.
//!
//! *Order* distances are the keys of candidates and edges in pruning: rule distances, but under
//! inner product list distances. There the two orders differ: the nearest rows by rule distance are
//! of about the same norm, and a search needs edges to the rows of the largest products. A rule
//! distance follows from an order distance and two lifts, so nothing is computed twice.

use std::borrow::Cow;

use rayon::prelude::*;
use tagore_device::block::rows::lifted_distance;
use tagore_device::prune::medoid::SUM_ROWS;

use super::distance::{Dot, Product, SquaredL2, one_to_many};
use super::{Access, Element, Metric, TypedRows, Vectors, range, with_matrix};
use crate::gpu::MemoryPlan;
use crate::{Error, Progress, Result};

/// A base under a metric.
pub(crate) struct Space<'a> {
    vectors: Cow<'a, Vectors>,
    metric: Metric,
    /// The largest magnitude of a value of the base; 0 unless its type is f32.
    largest: f32,
    /// Inner product: the added coordinate of each row. Else empty.
    lift: Vec<f32>,
    /// Inner product: the square of the norm that lifts give all rows. Else -1.
    square: f32,
    /// Cosine: which rows are zero vectors; empty if none is.
    zero: Vec<bool>,
}

/// Query vectors made ready for a space: of its element type, normalised under cosine.
pub(crate) struct Queries<'a> {
    vectors: Cow<'a, Vectors>,
    zero: Vec<bool>,
}

/// A vector that distances are taken from: a query, or a row of the base.
#[derive(Clone, Copy)]
pub(crate) struct Query<'a> {
    rows: TypedRows<'a>,
    index: usize,
    zero: bool,
}

impl Space<'static> {
    /// As [`new`](Space::new), with the vectors.
    pub(crate) fn owned(base: Vectors, metric: Metric, progress: &Progress) -> Result<Self> {
        Self::of(Cow::Owned(base), metric, progress)
    }
}

impl<'a> Space<'a> {
    /// Validates `base` and prepares it for `metric`.
    ///
    /// # Errors
    /// If a value is not finite, distances under `metric` would overflow or vanish, or the work is
    /// cancelled.
    pub(crate) fn new(base: &'a Vectors, metric: Metric, progress: &Progress) -> Result<Self> {
        Self::of(Cow::Borrowed(base), metric, progress)
    }

    fn of(base: Cow<'a, Vectors>, metric: Metric, progress: &Progress) -> Result<Self> {
        let largest = base.validate_for(metric, progress)?;
        range::check_smallest(&base, largest, metric)?;
        let (lift, square) = match metric {
            Metric::InnerProduct => {
                let square = largest_square(&base, progress)?;
                (lift(&base, square, progress)?, square as f32)
            }
            Metric::L2 | Metric::Cosine => (Vec::new(), -1.0),
        };
        let (vectors, zero) = match metric {
            Metric::Cosine => {
                normalised(&base, progress).map(|(vectors, zero)| (Cow::Owned(vectors), zero))?
            }
            Metric::L2 | Metric::InnerProduct => (base, Vec::new()),
        };
        Ok(Self { vectors, metric, largest, lift, square, zero })
    }

    /// What it holds beside a base of `n` rows of `dim` components.
    pub(crate) fn plan(n: usize, dim: usize, metric: Metric) -> MemoryPlan {
        match metric {
            Metric::L2 => MemoryPlan::new(),
            Metric::InnerProduct => MemoryPlan::new().with::<f32>("lifts", n),
            Metric::Cosine => {
                MemoryPlan::new().with::<f32>("unit vectors", n * dim).with::<u8>("zero vectors", n)
            }
        }
    }

    /// Inner product: lifts the rows to the largest norm of another base, whose square this is,
    /// that these are rows of.
    pub(crate) fn lifted_to(mut self, largest: f64, progress: &Progress) -> Result<Self> {
        if self.metric == Metric::InnerProduct {
            self.lift = lift(&self.vectors, largest, progress)?;
            self.square = largest as f32;
        }
        Ok(self)
    }

    pub(crate) fn len(&self) -> usize {
        self.vectors.len()
    }

    pub(crate) fn dim(&self) -> usize {
        self.vectors.dim()
    }

    pub(crate) fn metric(&self) -> Metric {
        self.metric
    }

    /// The rows that list distances are computed from: normalised under cosine.
    pub(crate) fn rows(&self) -> TypedRows<'_> {
        self.vectors.rows()
    }

    /// Tells the system how rows are read from here on.
    pub(crate) fn advise(&self, access: Access) {
        self.vectors.advise(access);
    }

    /// Cosine: which rows are zero vectors; empty if none is.
    pub(crate) fn zero(&self) -> &[bool] {
        &self.zero
    }

    /// What the kernels of pruning take as the rows' lifts (`tagore_device::prune::rows`); empty if
    /// there are none.
    pub(crate) fn lifts(&self) -> Cow<'_, [f32]> {
        if self.zero.is_empty() {
            Cow::Borrowed(&self.lift)
        } else {
            self.zero.iter().map(|&zero| if zero { -1.0 } else { 0.0 }).collect()
        }
    }

    /// Inner product: the square of the norm that lifts give all rows. Other metrics: -1.
    pub(crate) fn square(&self) -> f32 {
        self.square
    }

    /// Validates `queries` and prepares them.
    ///
    /// # Errors
    /// If they do not fit this space, a value is not finite, distances would overflow or vanish, or
    /// the work is cancelled.
    pub(crate) fn queries<'q>(&self, queries: &'q Vectors, progress: &Progress) -> Result<Queries<'q>> {
        if queries.dim() != self.vectors.dim() {
            return Err(Error::mismatch(
                queries.describe(),
                format_args!("dimension {}", queries.dim()),
                format_args!("{} as the base has", self.vectors.dim()),
            ));
        }
        let largest = queries.validate_for(self.metric, progress)?;
        if self.metric == Metric::InnerProduct {
            range::check_products(queries, largest, self.largest)?;
        }
        let (vectors, zero) = match self.metric {
            Metric::Cosine => {
                normalised(queries, progress).map(|(vectors, zero)| (Cow::Owned(vectors), zero))?
            }
            Metric::L2 | Metric::InnerProduct => {
                (queries.cast(self.vectors.element_type(), progress)?, Vec::new())
            }
        };
        Ok(Queries { vectors, zero })
    }

    /// Bytes of one row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.vectors.dim() * self.vectors.element_type().size()
    }

    /// Row `node` of the base as a query.
    pub(crate) fn query(&self, node: u32) -> Query<'_> {
        let index = node as usize;
        Query { rows: self.vectors.rows(), index, zero: self.zero.get(index).copied().unwrap_or(false) }
    }

    /// The list distances from `query` to the rows `ids`.
    pub(crate) fn list_distances(&self, query: Query<'_>, ids: &[u32], out: &mut Vec<f32>) {
        match self.metric {
            Metric::L2 => self.products::<SquaredL2>(query, ids, out),
            Metric::InnerProduct => {
                self.products::<Dot>(query, ids, out);
                out.iter_mut().for_each(|d| *d = -*d);
            }
            Metric::Cosine => {
                self.unit_distances(query, ids, out);
                out.iter_mut().for_each(|d| *d *= 0.5);
            }
        }
    }

    /// The rule distances (squared L2) from `node` to the rows `ids`.
    pub(crate) fn rule_distances(&self, node: u32, ids: &[u32], out: &mut Vec<f32>) {
        match self.metric {
            Metric::L2 => self.products::<SquaredL2>(self.query(node), ids, out),
            Metric::Cosine => self.unit_distances(self.query(node), ids, out),
            Metric::InnerProduct => {
                self.products::<SquaredL2>(self.query(node), ids, out);
                let lift = self.lift[node as usize];
                for (distance, &id) in out.iter_mut().zip(ids) {
                    let difference = self.lift[id as usize] - lift;
                    *distance += difference * difference;
                }
            }
        }
    }

    /// The order distances from `node` to the rows `ids`: keys of its candidates and edges.
    pub(crate) fn order_distances(&self, node: u32, ids: &[u32], out: &mut Vec<f32>) {
        match self.metric {
            Metric::L2 | Metric::Cosine => self.rule_distances(node, ids, out),
            Metric::InnerProduct => self.list_distances(self.query(node), ids, out),
        }
    }

    /// The rule distance from `node` to row `id`, which is at this order distance.
    pub(crate) fn rule_distance(&self, node: u32, id: u32, order: f32) -> f32 {
        match self.metric {
            Metric::L2 | Metric::Cosine => order,
            Metric::InnerProduct => {
                lifted_distance(self.square, (self.lift[node as usize], self.lift[id as usize]), order)
            }
        }
    }

    /// Squared L2 distances of unit vectors; 2 where either is a zero vector.
    fn unit_distances(&self, query: Query<'_>, ids: &[u32], out: &mut Vec<f32>) {
        self.products::<SquaredL2>(query, ids, out);
        if query.zero {
            out.fill(2.0);
        } else if !self.zero.is_empty() {
            for (distance, &id) in out.iter_mut().zip(ids) {
                if self.zero[id as usize] {
                    *distance = 2.0;
                }
            }
        }
    }

    fn products<P: Product>(&self, query: Query<'_>, ids: &[u32], out: &mut Vec<f32>) {
        out.clear();
        out.resize(ids.len(), 0.0);
        match (query.rows, self.vectors.rows()) {
            (TypedRows::F32(p), TypedRows::F32(m)) => one_to_many::<P, _>(p.row(query.index), m, ids, out),
            (TypedRows::F16(p), TypedRows::F16(m)) => one_to_many::<P, _>(p.row(query.index), m, ids, out),
            (TypedRows::U8(p), TypedRows::U8(m)) => one_to_many::<P, _>(p.row(query.index), m, ids, out),
            (TypedRows::I8(p), TypedRows::I8(m)) => one_to_many::<P, _>(p.row(query.index), m, ids, out),
            _ => unreachable!("queries are cast to the element type of the base"),
        }
    }

    /// The row nearest to the mean of all rows by rule distance: the medoid that entry points use.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn medoid(&self, progress: &Progress) -> Result<u32> {
        let mean = self.mean(progress)?;
        let lift_mean = self.lift_mean().unwrap_or(0.0);
        let distance = |row: usize| {
            let spread = with_matrix!(self.vectors.rows(), m => {
                let terms = m.row(row).iter().zip(&mean).map(|(x, y)| (f64::from(x.to_f32()) - y).powi(2));
                terms.sum::<f64>()
            });
            spread + self.lift.get(row).map_or(0.0, |l| (f64::from(*l) - lift_mean).powi(2))
        };
        let measured = |row: usize| progress.check().map(|()| (distance(row), row as u32));
        let nearer = |a: (f64, u32), b: (f64, u32)| {
            Ok(if a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).is_le() { a } else { b })
        };
        let none = || (f64::INFINITY, u32::MAX);
        let (_, row) = (0..self.len()).into_par_iter().map(measured).try_reduce(none, nearer)?;
        Ok(if self.len() == 0 { 0 } else { row })
    }

    /// Inner product: the mean of the added coordinates.
    pub(crate) fn lift_mean(&self) -> Option<f64> {
        let lifts = self.lift.iter().map(|&lift| f64::from(lift));
        (!self.lift.is_empty()).then(|| lifts.sum::<f64>() / self.lift.len() as f64)
    }

    /// The mean of all rows, summed in fixed pieces: the same for any number of threads.
    fn mean(&self, progress: &Progress) -> Result<Vec<f64>> {
        const PIECE: usize = SUM_ROWS as usize;
        let sum_of = |piece: usize| {
            progress.check()?;
            let mut sum = vec![0f64; self.vectors.dim()];
            for row in piece * PIECE..((piece + 1) * PIECE).min(self.len()) {
                with_matrix!(self.vectors.rows(), m => {
                    m.row(row).iter().zip(&mut sum).for_each(|(x, s)| *s += f64::from(x.to_f32()));
                });
            }
            Ok(sum)
        };
        let pieces: Vec<Vec<f64>> =
            (0..self.len().div_ceil(PIECE)).into_par_iter().map(sum_of).collect::<Result<_>>()?;
        let mut mean = vec![0f64; self.vectors.dim()];
        for piece in pieces {
            mean.iter_mut().zip(piece).for_each(|(m, s)| *m += s);
        }
        mean.iter_mut().for_each(|m| *m /= self.len().max(1) as f64);
        Ok(mean)
    }
}

impl Queries<'_> {
    pub(crate) fn len(&self) -> usize {
        self.vectors.len()
    }

    pub(crate) fn rows(&self) -> TypedRows<'_> {
        self.vectors.rows()
    }

    /// Cosine: which queries are zero vectors; empty if none is.
    pub(crate) fn zero(&self) -> &[bool] {
        &self.zero
    }

    pub(crate) fn query(&self, index: usize) -> Query<'_> {
        Query { rows: self.vectors.rows(), index, zero: self.zero.get(index).copied().unwrap_or(false) }
    }
}

/// The rows scaled to unit length as f32, and which of them are zero vectors.
fn normalised(vectors: &Vectors, progress: &Progress) -> Result<(Vectors, Vec<bool>)> {
    let dim = vectors.dim();
    let mut values = vec![0f32; vectors.len() * dim];
    let mut zero = vec![false; vectors.len()];
    values.par_chunks_exact_mut(dim).zip(&mut zero).enumerate().try_for_each(|(index, (out, zero))| {
        progress.check()?;
        out.copy_from_slice(&vectors.row(index));
        *zero = !normalise(out);
        Ok(())
    })?;
    if !zero.contains(&true) {
        zero.clear();
    }
    Ok((Vectors::from_f32(values, dim)?, zero))
}

/// Scales a row to unit length; false if it is a zero vector, which stays as it is.
pub(crate) fn normalise(row: &mut [f32]) -> bool {
    // In f64 the squares of the smallest and the largest f32 neither vanish nor overflow.
    let norm = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    if norm > 0.0 {
        row.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
    }
    norm > 0.0
}

/// The added coordinate of each row under inner product, where `largest` is the square of the
/// largest norm.
pub(super) fn lift(base: &Vectors, largest: f64, progress: &Progress) -> Result<Vec<f32>> {
    let mut lifts = vec![0f32; base.len()];
    lifts.par_iter_mut().enumerate().try_for_each(|(row, lift)| {
        progress.check()?;
        *lift = (largest - square(base, row)).max(0.0).sqrt() as f32;
        Ok(())
    })?;
    Ok(lifts)
}

/// The square of the norm of a row.
fn square(base: &Vectors, row: usize) -> f64 {
    with_matrix!(base.rows(), m => m.row(row).iter().map(|x| f64::from(x.to_f32()).powi(2)).sum())
}

/// The square of the largest norm of `base`.
pub(crate) fn largest_square(base: &Vectors, progress: &Progress) -> Result<f64> {
    let square = |row| progress.check().map(|()| square(base, row));
    (0..base.len()).into_par_iter().map(square).try_reduce(|| 0.0, |a, b| Ok(f64::max(a, b)))
}
