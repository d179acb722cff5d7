//! Options of a search.

use std::fmt;

use tagore_device::random::{Draws, Stage};

use super::gpu::MAX_BEAM;
use crate::{Error, IdSet, Result, Vectors};

/// The least default beam.
const BEAM: usize = 100;

/// Nodes that a search on codes reranks unless set, if 2 k are not more.
const RERANK: usize = 128;

/// Ids that tell the share of the ids that a predicate accepts.
const SAMPLE: u64 = 1024;

/// Distances of an exact search that take as long as one node of a beam whose neighbours all pass a
/// filter: these lie far apart in memory (benches/results/filters.md).
pub(super) const ROWS_PER_NODE: f64 = 64.0;

/// The same on a GPU that holds the base, where a tensor core compares rows with many queries.
pub(super) const GPU_ROWS_PER_NODE: f64 = 1536.0;

/// The same where these rows are bytes.
pub(super) const GPU_BYTE_ROWS_PER_NODE: f64 = 4096.0;

/// The rows of other neighbours that take as long to go through as one node does.
const OTHERS_PER_NODE: f64 = 8.0;

/// The share of passing rows below which walks among them find too few ways.
const MIN_SHARE: f64 = 0.01;

/// Options of a search, of one query or of many, on any device.
///
/// ```
/// use tagore::{IdSet, Search};
/// let (first, even) = (IdSet::from_ids(1000, 0..100)?, |id: u32| id % 2 == 0);
/// let wide = Search::new(10).beam(200);
/// let near = Search::new(10).radius(0.5);
/// let of_some = [Search::new(10).among(&first), Search::new(10).accept(&even)];
/// # let _ = (wide, near, of_some);
/// # Ok::<(), tagore::Error>(())
/// ```
///
/// # Filters
///
/// A search among some ids keeps rows that pass alone. It walks from one to the next in the graph,
/// and through neighbours that do not pass to theirs that do, so it takes about as long and finds
/// as much as one of all rows with the same beam, wherever the rows lie that pass. Exact search
/// over the passing rows takes its place
///
/// - if there are so few of them that it takes no longer: 64 per node of the beam on a CPU, on a
///   GPU that holds the vectors 1,536, or 4,096 of bytes, and the more, the fewer pass; or fewer
///   than one row in 100;
/// - for a query whose walk found fewer than `k` rows.
///
/// So a search returns `k` rows if as many pass. Where a GPU compares rows one by one and a CPU
/// walks, the GPU finds more; walks find the same everywhere. Where fewer rows pass than one in the
/// graph's degree, the beam is wider than it is set.
#[derive(Clone, Copy)]
pub struct Search<'a> {
    pub(crate) k: usize,
    beam: Option<usize>,
    pub(crate) radius: f32,
    pub(crate) filter: Option<Filter<'a>>,
}

/// The ids that a search may return.
#[derive(Clone, Copy)]
pub(crate) enum Filter<'a> {
    Among(&'a IdSet),
    Accept(&'a (dyn Fn(u32) -> bool + Sync)),
}

impl<'a> Search<'a> {
    /// A search for the `k` nearest rows, with the default [beam](Self::beam_width).
    pub fn new(k: usize) -> Self {
        Self { k, beam: None, radius: f32::INFINITY, filter: None }
    }

    /// Sets the beam (L in the literature): about the number of nodes that a search expands, on
    /// average over queries (`docs/search.md`). A wider beam finds more of the true neighbours and
    /// computes more distances.
    #[must_use]
    pub fn beam(mut self, beam: usize) -> Self {
        self.beam = Some(beam);
        self
    }

    /// Returns only rows at this distance or nearer, still at most k. The radius is a distance as
    /// results have it ([`Metric`](crate::Metric)): a squared distance under L2, 1 − cos under
    /// cosine, and under inner product −⟨x, y⟩, so that a radius of −5 asks for products of at
    /// least 5.
    #[must_use]
    pub fn radius(mut self, radius: f32) -> Self {
        self.radius = radius;
        self
    }

    /// Returns only rows of `ids`, a set of the rows of the base.
    #[must_use]
    pub fn among(mut self, ids: &'a IdSet) -> Self {
        self.filter = Some(Filter::Among(ids));
        self
    }

    /// Returns only rows whose id `accepts`. The search asks about some 1,024 random ids for the
    /// share that passes, then on a CPU about the nodes that each query meets, on a GPU and in
    /// exact search about all ids: the answer for an id must not change meanwhile. A set
    /// ([`among`](Self::among)) needs no sample.
    #[must_use]
    pub fn accept(mut self, accepts: &'a (dyn Fn(u32) -> bool + Sync)) -> Self {
        self.filter = Some(Filter::Accept(accepts));
        self
    }

    /// The beam as it was set. The default is 2 k, between 100 and 512, the widest of a GPU; and k
    /// where that is more.
    pub fn beam_width(&self) -> usize {
        let twice = self.k.saturating_mul(2).min(MAX_BEAM);
        self.beam.unwrap_or(BEAM.max(twice).max(self.k))
    }

    /// The nodes reranked of a beam of this width: those of the caller, or the usual number.
    pub(super) fn reranked(&self, beam: usize, rerank: Option<usize>) -> usize {
        rerank.unwrap_or_else(|| RERANK.max(self.k.saturating_mul(2))).max(self.k).min(beam)
    }

    /// Checks the options against the base.
    pub(super) fn check(&self, base: &Vectors) -> Result<()> {
        let (n, k) = (base.len(), self.k);
        if k == 0 || k > n {
            return Err(Error::argument("k", k, format_args!("1 to the {n} rows of the base")));
        }
        self.check_width()?;
        match self.filter {
            Some(Filter::Among(ids)) => ids.check("filter", base),
            _ => Ok(()),
        }
    }

    /// Checks the beam against k, and the radius.
    pub(crate) fn check_width(&self) -> Result<()> {
        let (k, beam) = (self.k, self.beam_width());
        if beam < k {
            return Err(Error::argument("beam", beam, format_args!("at least k = {k}")));
        }
        if self.radius.is_nan() {
            return Err(Error::argument("radius", self.radius, "a distance"));
        }
        Ok(())
    }

    /// Whether so few of `n` rows pass, this share, that they are compared one by one, which takes
    /// as long for `per_node` rows as a walk takes for a node.
    pub(super) fn passes_few(&self, share: f64, n: usize, per_node: f64) -> bool {
        // The number that do not pass, for each row that does.
        let others = (1.0 - share) / share;
        let nodes = self.beam_width() as f64 * (1.0 + others / OTHERS_PER_NODE);
        share < MIN_SHARE || share * n as f64 <= per_node * nodes
    }
}

impl Filter<'_> {
    pub(crate) fn passes(&self, id: u32) -> bool {
        match self {
            Self::Among(ids) => ids.contains(id),
            Self::Accept(accepts) => accepts(id),
        }
    }

    /// The share of `n` ids that pass: of all ids, or of a sample.
    pub(super) fn share(&self, n: usize) -> f64 {
        match self {
            Self::Among(ids) => ids.len() as f64 / n as f64,
            Self::Accept(accepts) => {
                let draws = Draws::new(0, Stage::Verify, 0, 0);
                let passing = (0..SAMPLE).filter(|&i| accepts(draws.below(i, n as u64) as u32)).count();
                passing as f64 / SAMPLE as f64
            }
        }
    }

    /// Calls `with` with every passing id below `n`, ascending.
    pub(super) fn each(&self, n: usize, mut with: impl FnMut(u32)) {
        match self {
            Self::Among(ids) => ids.iter().for_each(with),
            Self::Accept(accepts) => (0..n as u32).filter(|&id| accepts(id)).for_each(&mut with),
        }
    }
}

impl fmt::Debug for Search<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { k, radius, filter, .. } = self;
        let filter = match filter {
            None => "none".to_owned(),
            Some(Filter::Among(ids)) => format!("{} of {} ids", ids.len(), ids.rows()),
            Some(Filter::Accept(_)) => "a predicate".to_owned(),
        };
        let beam = self.beam_width();
        write!(f, "Search {{ k: {k}, beam: {beam}, radius: {radius}, filter: {filter} }}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_passing_rows_are_compared_one_by_one() {
        let is_exact =
            |passing: f64, n: usize| Search::new(10).passes_few(passing / n as f64, n, ROWS_PER_NODE);
        assert!([0.0, 1.0, 6400.0].map(|passing| is_exact(passing, 100_000)).iter().all(|&is| is));
        assert!([15_000.0, 100_000.0].map(|passing| !is_exact(passing, 100_000)).iter().all(|&is| is));
        // More where a walk goes through many others.
        assert!(is_exact(20_000.0, 1_000_000) && !is_exact(40_000.0, 1_000_000));
        // A hundredth of many rows.
        assert!(is_exact(9_999_000.0, 1_000_000_000) && !is_exact(10_001_000.0, 1_000_000_000));
    }

    #[test]
    fn a_sample_tells_the_share_of_a_predicate() {
        for n in [1000, 20_480, 20_461, 1 << 24] {
            let share = Filter::Accept(&|id| id % 4 == 0).share(n);
            assert!((0.2..0.3).contains(&share), "{share} of {n}");
        }
        assert_eq!(Filter::Accept(&|_| false).share(1 << 20), 0.0);
    }
}
