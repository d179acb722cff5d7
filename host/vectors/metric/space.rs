//! A data set under a metric, with the distances for building and searching.
//!
//! There are two kinds of distance, equal under L2. *List* distances order neighbour lists and
//! results. *Rule* distances, always squared L2, are compared by pruning rules and medoids.
//!
//! - Cosine: rows are normalised once. List distances are half the squared L2 distance of unit
//!   vectors, which is 1 − cos without its cancellation between near vectors. Rule distances are
//!   2(1 − cos).
//! - Inner product: list distances are −⟨x, y⟩. Rule distances are squared L2 between lifted rows,
//!   whose added coordinate `lift = sqrt(M² − |x|²)`, with M the largest norm, makes all norms
//!   equal.
//!
//! Rows of bf16 are widened to f32 once, under every metric: everything behind this file, kernels
//! included, sees the f32 of the same values.
//!
//! *Order* distances are the keys of candidates and edges in pruning: rule distances, but list
//! distances under inner product. There the nearest rows by rule distance have about the same norm,
//! while a search needs edges to the rows of the largest products. A rule distance follows from an
//! order distance and two lifts, so no product is computed twice.

use std::borrow::Cow;
use std::sync::Arc;

use tagore_device::block::rows::lifted_distance;
use tagore_device::key::NO_ID;
use tagore_device::prune::medoid::SUM_ROWS;

use crate::gpu::{Gpu, MemoryPlan};
use crate::held::Held;
use crate::loops::{try_fold, try_map};
use crate::vectors::distance::{Dot, Product, SquaredL2, one_to_many};
use crate::vectors::norms::{largest_square, lift, normalise, normalised};
use crate::vectors::shape::{wide, with_type};
use crate::vectors::{Access, Element, ElementType, Matrix, Metric, TypedRows, Vectors, range, with_matrix};
use crate::{Progress, Result};

/// A base under a metric.
pub(crate) struct Space<'a> {
    vectors: Held<'a, Vectors>,
    metric: Metric,
    /// Largest magnitude in the base; 0 unless its type is f32 or bf16.
    largest: f32,
    /// Inner product: the added coordinate of each row. Else empty.
    lift: Vec<f32>,
    /// Inner product: the squared norm of lifted rows. Else -1.
    square: f32,
    /// Cosine: marks zero vectors; empty if there are none.
    zero: Vec<bool>,
    /// Cosine: whether rows are normalised on every read.
    raw: bool,
}

/// The vector that distances are computed from.
#[derive(Clone, Copy)]
pub(crate) struct Query<'a> {
    element: ElementType,
    values: &'a [u8],
    zero: bool,
}

impl Space<'static> {
    /// [`new`](Space::new) for vectors that the space will own.
    pub(crate) fn owned(base: Vectors, metric: Metric, progress: &Progress) -> Result<Self> {
        Self::prepare(Held::Shared(Arc::new(base)), metric, progress)
    }
}

impl<'a> Space<'a> {
    /// Validates `base` and prepares it for `metric`.
    ///
    /// # Errors
    /// If a value is not finite, distances under `metric` would overflow or vanish, or the work is
    /// cancelled.
    pub(crate) fn new(base: &'a Vectors, metric: Metric, progress: &Progress) -> Result<Self> {
        Self::prepare(Held::Borrowed(base), metric, progress)
    }

    /// [`new`](Self::new) for a base that may be shared.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn prepare(base: Held<'a, Vectors>, metric: Metric, progress: &Progress) -> Result<Self> {
        metric.check(base.element_type())?;
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
                let (vectors, zero) = normalised(&base, progress)?;
                (Held::Shared(Arc::new(vectors)), zero)
            }
            // Bits remain what they are: the CPU compares 64 of them at a time.
            Metric::L2 | Metric::InnerProduct if base.element_type() == ElementType::Bf16 => {
                (Held::Shared(Arc::new(wide(&base, progress)?.into_owned())), Vec::new())
            }
            Metric::L2 | Metric::InnerProduct => (base, Vec::new()),
        };
        Ok(Self { vectors, metric, largest, lift, square, zero, raw: false })
    }

    /// A space without data of its own, over a validated `base`, for list distances between its
    /// rows only. They equal those of [`new`](Self::new), but take longer under cosine.
    pub(crate) fn unprepared(base: &'a Vectors, metric: Metric) -> Self {
        let (vectors, raw) = (Held::Borrowed(base), metric == Metric::Cosine);
        Self { vectors, metric, largest: 0.0, lift: Vec::new(), square: -1.0, zero: Vec::new(), raw }
    }

    /// Memory beside a base of `n` rows of `dim` components of a type.
    pub(crate) fn plan(n: usize, dim: usize, element: ElementType, metric: Metric) -> MemoryPlan {
        let widened = match element {
            ElementType::Bf16 => MemoryPlan::new().with::<f32>("widened vectors", n * dim),
            _ => MemoryPlan::new(),
        };
        match metric {
            Metric::L2 => widened,
            Metric::InnerProduct => widened.with::<f32>("lifts", n),
            Metric::Cosine => {
                MemoryPlan::new().with::<f32>("unit vectors", n * dim).with::<u8>("zero vectors", n)
            }
        }
    }

    /// Inner product: lifts the rows to the largest norm, squared in `largest`, of the larger base
    /// that they come from.
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

    /// Largest magnitude in the base; 0 unless its type is f32 or bf16.
    pub(in crate::vectors) fn largest(&self) -> f32 {
        self.largest
    }

    /// The vectors of the rows for list distances: normalised under cosine.
    pub(crate) fn vectors(&self) -> &Vectors {
        &self.vectors
    }

    /// The rows for list distances: normalised under cosine.
    pub(crate) fn rows(&self) -> TypedRows<'_> {
        self.vectors.rows()
    }

    /// Advises the kernel of the access pattern from here on.
    pub(crate) fn advise(&self, access: Access) {
        self.vectors.advise(access);
    }

    /// Cosine: marks zero vectors; empty if there are none.
    pub(crate) fn zero(&self) -> &[bool] {
        &self.zero
    }

    /// The lifts for the kernels of pruning (`tagore_device::prune::rows`); empty if there are
    /// none.
    pub(crate) fn lifts(&self) -> Cow<'_, [f32]> {
        if self.zero.is_empty() {
            Cow::Borrowed(&self.lift)
        } else {
            self.zero.iter().map(|&zero| if zero { -1.0 } else { 0.0 }).collect()
        }
    }

    /// Inner product: the squared norm of lifted rows. Other metrics: -1.
    pub(crate) fn square(&self) -> f32 {
        self.square
    }

    /// Inner product: the lift of `node`, smaller for longer rows.
    pub(crate) fn lift(&self, node: u32) -> f32 {
        self.lift[node as usize]
    }

    /// Inner product: whether the squared norm of `node` is below 0.8 of the largest.
    pub(crate) fn is_short(&self, node: u32) -> bool {
        self.lift.get(node as usize).is_some_and(|lift| lift * lift > 0.2 * self.square)
    }

    /// Bytes per row on a device, unless rows are narrowed there: a bit is a byte.
    pub(crate) fn device_row_bytes(&self) -> usize {
        self.vectors.dim() * self.vectors.element_type().size()
    }

    /// Values per row: the dimension, or bytes of bits.
    pub(crate) fn values(&self) -> usize {
        self.vectors.element_type().values(self.vectors.dim())
    }

    /// Bytes per row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.vectors.element_type().row_bytes(self.vectors.dim())
    }

    /// Row `node` of the base as a query.
    pub(crate) fn query(&self, node: u32) -> Query<'_> {
        Query::row(&self.vectors, node as usize, &self.zero)
    }

    /// The norm of `query`, with the sums of list distances.
    pub(crate) fn norm(&self, query: Query<'_>) -> f32 {
        with_type!(query.element, T => T::dot(query.values(), query.values())).sqrt()
    }

    /// List distances from `query` to the rows `ids`.
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

    /// Rule distances (squared L2) from `node` to the rows `ids`.
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

    /// Copies some rows to host memory, as a space with the distances of this one.
    ///
    /// # Errors
    /// If the rows lie on a device that fails.
    pub(crate) fn part(&self, ids: &[u32]) -> Result<Space<'static>> {
        let vectors = Held::Shared(Arc::new(self.vectors.select(ids)?));
        let lift = ids.iter().filter_map(|&id| self.lift.get(id as usize)).copied().collect();
        let zero = ids.iter().filter_map(|&id| self.zero.get(id as usize)).copied().collect();
        let &Self { metric, largest, square, raw, .. } = self;
        Ok(Space { vectors, metric, largest, lift, square, zero, raw })
    }

    /// The same rows in memory of `gpu`; none if its kernels do not take their type as it is.
    ///
    /// # Errors
    /// If the device lacks memory or fails.
    pub(crate) fn copied_to(&self, gpu: &Gpu) -> Result<Option<Space<'static>>> {
        if matches!(self.vectors.element_type(), ElementType::Bf16 | ElementType::B1) {
            return Ok(None);
        }
        self.vectors.on_host()?;
        let replica = self.vectors.replica(gpu)?;
        let layout = replica.layout();
        let vectors = Vectors::of_lent(replica, layout);
        let (vectors, lift, zero) = (Held::Shared(Arc::new(vectors)), self.lift.clone(), self.zero.clone());
        let &Self { metric, largest, square, raw, .. } = self;
        Ok(Some(Space { vectors, metric, largest, lift, square, zero, raw }))
    }

    /// [`rule_distances`](Self::rule_distances); rows that lie on a device alone are fetched.
    ///
    /// # Errors
    /// If that device fails.
    pub(crate) fn fetched_rule_distances(&self, node: u32, ids: &[u32], out: &mut Vec<f32>) -> Result<()> {
        const AT_A_TIME: usize = 1 << 14;
        if self.vectors.is_readable() {
            self.rule_distances(node, ids, out);
            return Ok(());
        }
        out.clear();
        let mut found = Vec::new();
        for ids in ids.chunks(AT_A_TIME) {
            let part = self.part(&[&[node], ids].concat())?;
            part.rule_distances(0, &(1..=ids.len() as u32).collect::<Vec<_>>(), &mut found);
            out.extend_from_slice(&found);
        }
        Ok(())
    }

    /// Order distances from `node` to the rows `ids`: the keys of its candidates and edges.
    pub(crate) fn order_distances(&self, node: u32, ids: &[u32], out: &mut Vec<f32>) {
        match self.metric {
            Metric::L2 | Metric::Cosine => self.rule_distances(node, ids, out),
            Metric::InnerProduct => self.list_distances(self.query(node), ids, out),
        }
    }

    /// The rule distance from `node` to row `id`, given its order distance.
    pub(crate) fn rule_distance(&self, node: u32, id: u32, order: f32) -> f32 {
        match self.metric {
            Metric::L2 | Metric::Cosine => order,
            Metric::InnerProduct => {
                lifted_distance(self.square, self.lift[node as usize], self.lift[id as usize], order)
            }
        }
    }

    /// Squared L2 distances of unit vectors; 2 if either is a zero vector.
    fn unit_distances(&self, query: Query<'_>, ids: &[u32], out: &mut Vec<f32>) {
        if self.raw {
            return self.raw_unit_distances(query, ids, out);
        }
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

    /// [`unit_distances`](Self::unit_distances) in an unprepared space.
    fn raw_unit_distances(&self, query: Query<'_>, ids: &[u32], out: &mut Vec<f32>) {
        let dim = self.vectors.dim();
        let mut rows = vec![0f32; (ids.len() + 1) * dim];
        let (point, others) = rows.split_at_mut(dim);
        let unit = |row: usize, out: &mut [f32]| {
            out.copy_from_slice(&self.vectors.host_row(row));
            normalise(out)
        };
        query.components(point);
        let all = normalise(point) && !query.zero;
        let places: Vec<u32> = (0..ids.len() as u32).collect();
        let units = ids.iter().zip(others.chunks_exact_mut(dim)).map(|(&id, out)| unit(id as usize, out));
        let units: Vec<bool> = units.collect();
        out.clear();
        out.resize(ids.len(), 0.0);
        one_to_many::<SquaredL2, f32>(point, Matrix::new(others, dim, dim), &places, out);
        for (distance, unit) in out.iter_mut().zip(units) {
            if !(all && unit) {
                *distance = 2.0;
            }
        }
    }

    fn products<P: Product>(&self, query: Query<'_>, ids: &[u32], out: &mut Vec<f32>) {
        out.clear();
        out.resize(ids.len(), 0.0);
        with_matrix!(self.vectors.rows(), m => one_to_many::<P, _>(query.values(), m, ids, out));
    }

    /// The medoid: the row nearest to the mean of all rows by rule distance.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn medoid(&self, progress: &Progress) -> Result<u32> {
        let mean = self.mean(progress)?;
        let lift_mean = self.lift_mean().unwrap_or(0.0);
        let distance = |row: usize| {
            let spread = with_matrix!(self.vectors.rows(), m => {
                let terms = m.components(row).zip(&mean).map(|(x, y)| (f64::from(x) - y).powi(2));
                terms.sum::<f64>()
            });
            spread + self.lift.get(row).map_or(0.0, |l| (f64::from(*l) - lift_mean).powi(2))
        };
        let nearer = |a: (f64, u32), b: (f64, u32)| {
            if a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).is_le() { a } else { b }
        };
        let nearest = |near, row| progress.check().map(|()| nearer(near, (distance(row), row as u32)));
        let none = || (f64::INFINITY, NO_ID);
        let (_, row) = try_fold(0..self.len(), none, nearest, nearer)?;
        Ok(if self.len() == 0 { 0 } else { row })
    }

    /// Inner product: the mean of the lifts.
    pub(crate) fn lift_mean(&self) -> Option<f64> {
        let lifts = self.lift.iter().map(|&lift| f64::from(lift));
        (!self.lift.is_empty()).then(|| lifts.sum::<f64>() / self.lift.len() as f64)
    }

    /// The mean of all rows, summed in fixed pieces: the same on any number of threads.
    pub(crate) fn mean(&self, progress: &Progress) -> Result<Vec<f64>> {
        const PIECE: usize = SUM_ROWS as usize;
        let sum_of = |piece: usize| {
            progress.check()?;
            let mut sum = vec![0f64; self.vectors.dim()];
            for row in piece * PIECE..((piece + 1) * PIECE).min(self.len()) {
                with_matrix!(self.vectors.rows(), m => {
                    m.components(row).zip(&mut sum).for_each(|(x, s)| *s += f64::from(x));
                });
            }
            Ok(sum)
        };
        let mut mean = vec![0f64; self.vectors.dim()];
        for piece in try_map(0..self.len().div_ceil(PIECE), sum_of)? {
            mean.iter_mut().zip(piece).for_each(|(m, s)| *m += s);
        }
        mean.iter_mut().for_each(|m| *m /= self.len().max(1) as f64);
        Ok(mean)
    }
}

impl<'a> Query<'a> {
    /// A query of `values` in the element type of its space; under cosine a unit vector or `zero`.
    pub(crate) fn new<T: Element>(values: &'a [T], zero: bool) -> Self {
        Self { element: T::TYPE, values: bytemuck::cast_slice(values), zero }
    }

    /// Row `index` of `vectors`. `zero` tells for each row whether it is a zero vector; it may be
    /// empty if none is.
    pub(in crate::vectors) fn row(vectors: &'a Vectors, index: usize, zero: &[bool]) -> Self {
        let zero = zero.get(index).copied().unwrap_or(false);
        Self { element: vectors.element_type(), values: vectors.bytes_of_row(index), zero }
    }

    /// The values, in the element type of the space.
    ///
    /// # Panics
    /// If that is not the type of the query.
    #[inline]
    fn values<T: Element>(&self) -> &'a [T] {
        assert_eq!(self.element, T::TYPE, "the type of a query");
        bytemuck::cast_slice(self.values)
    }

    /// Copies the components, widened to f32.
    fn components(&self, out: &mut [f32]) {
        let widened = |(out, x): (&mut f32, f32)| *out = x;
        with_type!(self.element, T => out.iter_mut().zip(T::components(self.values())).for_each(widened));
    }

    /// The components, widened to f32, each by itself.
    pub(crate) fn widen(&self, out: &mut Vec<[f32; 1]>) {
        out.clear();
        with_type!(self.element, T => out.extend(T::components(self.values()).map(|x| [x])));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unprepared_list_distances_are_the_same() {
        let value = |i: usize| if i / 5 == 7 { 0.0 } else { (i * i % 97) as f32 - 40.0 };
        let base = Vectors::from_f32((0..100).map(value).collect(), 5).unwrap();
        let ids: Vec<u32> = (0..20).rev().collect();
        for metric in [Metric::L2, Metric::Cosine, Metric::InnerProduct] {
            let prepared = Space::new(&base, metric, &Progress::silent()).unwrap();
            let unprepared = Space::unprepared(&base, metric);
            for node in [0, 7, 19] {
                let (mut expected, mut found) = (Vec::new(), vec![1.0]);
                prepared.list_distances(prepared.query(node), &ids, &mut expected);
                unprepared.list_distances(unprepared.query(node), &ids, &mut found);
                assert_eq!(found, expected, "{metric}, from {node}");
            }
            let others = Vectors::from_f32((0..10).map(|x| x as f32 + 0.5).collect(), 5).unwrap();
            let silent = Progress::silent();
            let queries = [&prepared, &unprepared].map(|space| space.queries(&others, &silent).unwrap());
            let (mut expected, mut found) = (Vec::new(), Vec::new());
            prepared.list_distances(queries[0].query(1), &ids, &mut expected);
            unprepared.list_distances(queries[1].query(1), &ids, &mut found);
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found - expected).abs() <= 1e-6 * expected.abs(), "{metric}: {found}, {expected}");
            }
        }
    }
}
