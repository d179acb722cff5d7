//! Options of a search.

use std::fmt;

use tagore_device::random::{Draws, Stage};

use crate::{Error, IdSet, Result, Vectors};

/// The beam unless set, if k is not larger.
const BEAM: usize = 100;

/// Nodes that a search on codes reranks unless set, if 2 k are not more.
const RERANK: usize = 128;

/// Ids that tell the share of the ids that a predicate accepts.
const SAMPLE: u64 = 1024;

/// Distances of an exact search that take as long as one node of a beam: its neighbours lie far
/// apart in memory, and it has to be kept in order (docs/measurements.md).
const ROWS_PER_NODE: f64 = 20.0;

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
/// A search among some ids walks the whole graph, and only rows that pass enter the answer. Its
/// beam is widened by the share of rows that pass, so that as many of its nodes pass as an
/// unfiltered beam has. Exact search over the passing rows takes its place
///
/// - if there are at most 20 passing rows per node of that beam, where it takes about as long (of
///   1,000,000 rows at beam 100: 5 % or less);
/// - for a query whose beam holds fewer than `k` passing rows.
///
/// So a search returns `k` rows if as many pass.
#[derive(Clone, Copy)]
pub struct Search<'a> {
    pub(super) k: usize,
    beam: Option<usize>,
    pub(super) radius: f32,
    pub(super) filter: Option<Filter<'a>>,
}

/// The ids that a search may return.
#[derive(Clone, Copy)]
pub(super) enum Filter<'a> {
    Among(&'a IdSet),
    Accept(&'a (dyn Fn(u32) -> bool + Sync)),
}

/// The way of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Way {
    /// Beam search with a beam of this width.
    Walk(usize),
    /// Exact search over the passing rows.
    Exact,
}

impl<'a> Search<'a> {
    /// A search for the `k` nearest rows, with a beam of 100, or of `k` if that is more.
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

    /// Returns only rows whose id `accepts`. The search asks about 1,024 random ids for the share
    /// that passes, then about the nodes of each query's beam, and in exact search about all ids:
    /// the answer for an id must not change meanwhile. A set ([`among`](Self::among)) needs no
    /// sample.
    #[must_use]
    pub fn accept(mut self, accepts: &'a (dyn Fn(u32) -> bool + Sync)) -> Self {
        self.filter = Some(Filter::Accept(accepts));
        self
    }

    /// The beam before a filter widens it.
    pub(super) fn narrow_beam(&self) -> usize {
        self.beam.unwrap_or(BEAM.max(self.k))
    }

    /// The nodes reranked of a beam of this width: those of the caller, or the usual number.
    pub(super) fn reranked(&self, beam: usize, rerank: Option<usize>) -> usize {
        if self.filter.is_some() {
            return beam;
        }
        rerank.unwrap_or_else(|| RERANK.max(self.k.saturating_mul(2))).max(self.k).min(beam)
    }

    /// Checks the options against the base.
    pub(super) fn check(&self, base: &Vectors) -> Result<()> {
        let (n, k, beam) = (base.len(), self.k, self.narrow_beam());
        if k == 0 || k > n {
            return Err(Error::argument("k", k, format_args!("1 to the {n} rows of the base")));
        }
        if beam < k {
            return Err(Error::argument("beam", beam, format_args!("at least k = {k}")));
        }
        if self.radius.is_nan() {
            return Err(Error::argument("radius", self.radius, "a distance"));
        }
        match self.filter {
            Some(Filter::Among(ids)) => ids.check("filter", base),
            _ => Ok(()),
        }
    }

    /// The way of this search among `n` rows.
    pub(super) fn way(&self, n: usize) -> Way {
        let Some(filter) = self.filter else { return Way::Walk(self.narrow_beam().min(n)) };
        let share = filter.share(n);
        // The beam never holds more than all nodes.
        let beam = widened(self.narrow_beam(), share).min(n as f64);
        if share * n as f64 <= ROWS_PER_NODE * beam { Way::Exact } else { Way::Walk(beam as usize) }
    }

    /// The widest beam of this search that is at most `most` after widening.
    pub(super) fn widest(&self, n: usize, most: usize) -> usize {
        let share = self.filter.map_or(1.0, |filter| filter.share(n));
        (0..=most).rev().find(|&beam| widened(beam, share) <= most as f64).unwrap_or(0)
    }
}

/// The width at which `beam` nodes pass in nearly all searches, three standard deviations above
/// the mean, if nodes pass by chance; infinite if none do.
fn widened(beam: usize, share: f64) -> f64 {
    let beam = beam as f64;
    ((beam + 3.0 * (beam * (1.0 - share)).sqrt()) / share).ceil()
}

impl Filter<'_> {
    pub(super) fn passes(&self, id: u32) -> bool {
        match self {
            Self::Among(ids) => ids.contains(id),
            Self::Accept(accepts) => accepts(id),
        }
    }

    /// The share of `n` ids that pass: of all ids, or of a sample.
    fn share(&self, n: usize) -> f64 {
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
        let beam = self.narrow_beam();
        write!(f, "Search {{ k: {k}, beam: {beam}, radius: {radius}, filter: {filter} }}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_widens_the_beam_until_exact_search_is_faster() {
        let way = |passing: usize| {
            let ids = IdSet::from_ids(1_000_000, 0..passing as u32).unwrap();
            Search::new(10).beam(100).among(&ids).way(1_000_000)
        };
        assert_eq!(way(1_000_000), Way::Walk(100));
        assert_eq!(way(500_000), Way::Walk(243));
        assert_eq!(way(100_000), Way::Walk(1285));
        assert_eq!([50_000, 1, 0].map(way), [Way::Exact; 3]);
        assert_eq!(Search::new(10).beam(2000).way(1000), Way::Walk(1000));
        let half = IdSet::from_ids(1_000_000, 0..500_000).unwrap();
        let search = Search::new(10).among(&half);
        let widest = search.widest(1_000_000, 512);
        let walks = |beam| match search.beam(beam).way(1_000_000) {
            Way::Walk(wide) => wide,
            Way::Exact => panic!("exact"),
        };
        assert!(walks(widest) <= 512 && walks(widest + 1) > 512);
    }

    #[test]
    fn a_sample_tells_the_share_of_a_predicate() {
        for n in [1000, 20_480, 20_461, 1 << 24] {
            let share = Filter::Accept(&|id| id % 4 == 0).share(n);
            assert!((0.2..0.3).contains(&share), "{share} of {n}");
        }
        assert_eq!(Search::new(1).accept(&|_| false).way(1 << 20), Way::Exact);
    }
}
