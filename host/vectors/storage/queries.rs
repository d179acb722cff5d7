//! Queries prepared for a space.

use std::borrow::Cow;
use std::ops::Range;

use crate::gpu::Gpu;
use crate::vectors::norms::normalised;
use crate::vectors::space::{Query, Space};
use crate::vectors::{Metric, Vectors, range};
use crate::{Error, Progress, Result};

/// Queries prepared for a space: in its element type, normalised under cosine.
pub(crate) struct Queries<'a> {
    vectors: Cow<'a, Vectors>,
    zero: Vec<bool>,
    /// Whether their values are still being checked.
    early: bool,
}

impl Space<'_> {
    /// Validates `queries` and prepares them.
    ///
    /// # Errors
    /// If they do not fit this space, a value is not finite, distances would overflow or vanish, or
    /// the work is cancelled.
    pub(crate) fn queries<'q>(&self, queries: &'q Vectors, progress: &Progress) -> Result<Queries<'q>> {
        if queries.dim() != self.dim() {
            return Err(Error::mismatch(
                queries.describe(),
                format_args!("dimension {}", queries.dim()),
                format_args!("{} as in the base", self.dim()),
            ));
        }
        if let Some(one) = queries.one_from_device()? {
            let Queries { vectors, zero, early } = self.queries(&one, progress)?;
            return Ok(Queries { vectors: Cow::Owned(vectors.into_owned()), zero, early });
        }
        let largest = queries.validate_for(self.metric(), progress)?;
        if self.metric() == Metric::InnerProduct {
            range::check_products(queries, largest, self.largest())?;
        }
        let (vectors, zero) = match self.metric() {
            Metric::Cosine => {
                normalised(queries, progress).map(|(vectors, zero)| (Cow::Owned(vectors), zero))?
            }
            Metric::L2 | Metric::InnerProduct => {
                (queries.cast(self.vectors().element_type(), progress)?, Vec::new())
            }
        };
        Ok(Queries { vectors, zero, early: false })
    }

    /// [`queries`](Self::queries) that are searched for before their device has checked them;
    /// [`check_early`](Self::check_early) must follow before anyone sees results. None for queries
    /// that the host prepares, or that need no check.
    pub(crate) fn early_queries<'q>(&self, queries: &'q Vectors) -> Option<Queries<'q>> {
        let fits = queries.dim() == self.dim() && queries.element_type() == self.vectors().element_type();
        let is_plain = self.metric() == Metric::L2 && fits && !queries.is_empty();
        let is_early = is_plain && queries.to_check_on_device(Some(self.metric())).is_some();
        is_early.then(|| Queries { vectors: Cow::Borrowed(queries), zero: Vec::new(), early: true })
    }

    /// Checks queries whose search has begun, on `gpu`: a stream of their device beside that of the
    /// search.
    ///
    /// # Errors
    /// As [`queries`](Self::queries).
    pub(crate) fn check_early(&self, queries: &Vectors, gpu: &Gpu) -> Result<()> {
        queries.check_on(Some(self.metric()), Some(gpu)).map(drop)
    }
}

impl Queries<'static> {
    /// Queries in the element type of their space, under L2 or inner product.
    pub(crate) fn owned(vectors: Vectors) -> Self {
        Self { vectors: Cow::Owned(vectors), zero: Vec::new(), early: false }
    }
}

impl Queries<'_> {
    pub(crate) fn len(&self) -> usize {
        self.vectors.len()
    }

    /// The queries: in the element type of the space, normalised under cosine.
    pub(crate) fn vectors(&self) -> &Vectors {
        &self.vectors
    }

    /// Whether their values are still being checked ([`Space::early_queries`]).
    pub(crate) fn are_early(&self) -> bool {
        self.early
    }

    /// Cosine: marks queries that are zero vectors; empty if there are none.
    pub(crate) fn zero(&self) -> &[bool] {
        &self.zero
    }

    /// The queries of `range`; some of a device are copied to the host. Fails if the device does.
    pub(crate) fn part(&self, range: Range<usize>) -> Result<Queries<'_>> {
        let zero = self.zero.get(range.clone()).unwrap_or_default().to_vec();
        let is_all = range.len() == self.len();
        let part = if is_all { Cow::Borrowed(&*self.vectors) } else { Cow::Owned(self.vectors.part(range)?) };
        Ok(Queries { vectors: part, zero, early: self.early })
    }

    pub(crate) fn query(&self, index: usize) -> Query<'_> {
        Query::row(&self.vectors, index, &self.zero)
    }
}
