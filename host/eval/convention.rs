//! Conventions for the distances in a ground truth.

use std::fmt;

use super::truth_check::{Tolerance, check_shape, sample};
use crate::search::Searcher;
use crate::{GroundTruth, Metric, Progress, Result, Vectors};

/// The function of a distance that a program wrote to a ground truth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DistanceConvention {
    /// Squared Euclidean distance, as [`Metric::L2`].
    SquaredL2,
    /// Euclidean distance.
    L2,
    /// −⟨q, x⟩, as [`Metric::InnerProduct`].
    NegatedInnerProduct,
    /// ⟨q, x⟩.
    InnerProduct,
    /// 1 − ⟨q, x⟩.
    OneMinusInnerProduct,
    /// 1 − cos, as [`Metric::Cosine`].
    OneMinusCosine,
    /// cos.
    Cosine,
    /// −cos.
    NegatedCosine,
    /// Squared Euclidean distance of unit vectors, 2 − 2 cos.
    SquaredUnitL2,
    /// Euclidean distance of unit vectors.
    UnitL2,
    /// None of these.
    Unknown,
}

/// A convention, and its map from a stored distance to a list distance.
type Known = (DistanceConvention, fn(f64) -> f64);

impl DistanceConvention {
    /// The convention of `metric`, which results and this library's files follow.
    pub const fn for_metric(metric: Metric) -> Self {
        match metric {
            Metric::L2 => Self::SquaredL2,
            Metric::InnerProduct => Self::NegatedInnerProduct,
            Metric::Cosine => Self::OneMinusCosine,
        }
    }

    /// The name, such as `squared l2`, `1 - cosine` or `unknown`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SquaredL2 => "squared l2",
            Self::L2 => "l2",
            Self::NegatedInnerProduct => "negated inner product",
            Self::InnerProduct => "inner product",
            Self::OneMinusInnerProduct => "1 - inner product",
            Self::OneMinusCosine => "1 - cosine",
            Self::Cosine => "cosine",
            Self::NegatedCosine => "negated cosine",
            Self::SquaredUnitL2 => "squared l2 of unit vectors",
            Self::UnitL2 => "l2 of unit vectors",
            Self::Unknown => "unknown",
        }
    }

    /// The conventions of a metric, this library's first.
    fn known(metric: Metric) -> &'static [Known] {
        match metric {
            Metric::L2 => &[(Self::SquaredL2, |d| d), (Self::L2, |d| d * d)],
            Metric::InnerProduct => &[
                (Self::NegatedInnerProduct, |d| d),
                (Self::InnerProduct, |d| -d),
                (Self::OneMinusInnerProduct, |d| d - 1.0),
            ],
            Metric::Cosine => &[
                (Self::OneMinusCosine, |d| d),
                (Self::Cosine, |d| 1.0 - d),
                (Self::NegatedCosine, |d| 1.0 + d),
                (Self::SquaredUnitL2, |d| d / 2.0),
                (Self::UnitL2, |d| d * d / 2.0),
            ],
        }
    }
}

impl fmt::Display for DistanceConvention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Searcher {
    /// Detects the convention of the distances in `truth` from the first `k` distances of at most
    /// 64 queries. None if `truth` has no distances.
    ///
    /// # Errors
    /// If the queries do not match the base, or `truth` has another number of rows, fewer than `k`
    /// neighbours or an unknown id.
    pub fn distance_convention(
        &self,
        queries: &Vectors,
        truth: &GroundTruth,
        k: usize,
    ) -> Result<Option<DistanceConvention>> {
        let space = self.engine().space();
        let prepared = space.queries(queries, &Progress::silent())?;
        check_shape(space, prepared.len(), truth, k)?;
        if !truth.has_distances() {
            return Ok(None);
        }
        let mut candidates = DistanceConvention::known(space.metric()).to_vec();
        let mut distances = Vec::new();
        for query in sample(truth.len(), usize::MAX) {
            let query = query as usize;
            let ids = &truth.ids(query)[..k];
            space.list_distances(prepared.query(query), ids, &mut distances);
            let nearest = distances.iter().copied().fold(f32::INFINITY, f32::min);
            let tolerance = Tolerance::new(self.engine(), &prepared, query, ids, nearest);
            let stored = truth.distances(query).unwrap_or_default();
            candidates.retain(|(_, ours)| {
                let mut pairs = stored.iter().zip(&distances);
                pairs
                    .all(|(&stored, &distance)| tolerance.equal(ours(f64::from(stored)), f64::from(distance)))
            });
        }
        Ok(Some(candidates.first().map_or(DistanceConvention::Unknown, |candidate| candidate.0)))
    }
}
