//! Batches of queries on the CPU.

use std::sync::atomic::{AtomicU64, Ordering};

use tagore_device::descent::key;

use super::beam::{BeamSearch, Graph, Limits};
use crate::index::Index;
use crate::parallel::for_each_row;
use crate::vectors::space::{Queries, Space};
use crate::{Error, Progress, Result, Vectors};

/// What a batch of queries found: k ids and list distances per query, nearest first. A query that
/// reaches fewer than k nodes has `u32::MAX` and infinity in the last places.
#[derive(Clone, Debug)]
pub struct SearchResult {
    k: usize,
    ids: Vec<u32>,
    distances: Vec<f32>,
    computed: u64,
}

impl SearchResult {
    /// The number of queries.
    pub fn len(&self) -> usize {
        self.ids.len() / self.k
    }

    /// Whether there were no queries.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Results per query.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The ids found for `query`.
    ///
    /// # Panics
    /// If `query >= len()`.
    pub fn ids(&self, query: usize) -> &[u32] {
        &self.ids[query * self.k..][..self.k]
    }

    /// The distances of the ids found for `query`.
    ///
    /// # Panics
    /// If `query >= len()`.
    pub fn distances(&self, query: usize) -> &[f32] {
        &self.distances[query * self.k..][..self.k]
    }

    /// Distances computed for all queries together.
    pub fn computed(&self) -> u64 {
        self.computed
    }

    pub(crate) fn into_parts(self) -> (usize, Vec<u32>, Vec<f32>) {
        (self.k, self.ids, self.distances)
    }
}

impl Graph for Index {
    #[inline]
    fn neighbors(&self, node: u32) -> &[u32] {
        Self::neighbors(self, node as usize)
    }
}

/// An index and its base, checked and made ready once for any number of searches.
///
/// ```
/// use tagore::{Builder, Progress, Searcher, Strategy, Synth};
/// let synth = Synth::new(1000, 16, 1)?;
/// let (base, queries) = (synth.base(), synth.queries(10));
/// let index = Builder::new(Strategy::cagra()).build(&base)?;
/// let searcher = Searcher::new(&index, &base)?;
/// for beam in [20, 50] {
///     let result = searcher.search(&queries, 10, beam, &Progress::silent())?;
///     assert_eq!(result.ids(0).len(), 10);
/// }
/// # Ok::<(), tagore::Error>(())
/// ```
pub struct Searcher<'a> {
    index: &'a Index,
    space: Space<'a>,
}

impl<'a> Searcher<'a> {
    /// Checks that `index` was built over `base` and that both are sound, and normalises the base
    /// under cosine.
    ///
    /// # Errors
    /// If `index` was built over other data or holds an unknown id, or a value is not finite.
    pub fn new(index: &'a Index, base: &'a Vectors) -> Result<Self> {
        index.check_base(base)?;
        index.check_ids()?;
        Ok(Self { index, space: Space::new(base, index.metric())? })
    }

    /// Finds the `k` nearest rows of the base for each of `queries` by beam search, in parallel over
    /// queries. `beam` (the L of the literature) is how many nodes the search keeps: a wider beam
    /// finds more of the true neighbours and computes more distances.
    ///
    /// # Errors
    /// If the queries do not fit the base, `k` is not in 1..=n, `beam` is below `k`, a value is not
    /// finite, or the work is cancelled.
    pub fn search(
        &self,
        queries: &Vectors,
        k: usize,
        beam: usize,
        progress: &Progress,
    ) -> Result<SearchResult> {
        self.run(&self.space.queries(queries)?, k, beam, progress)
    }

    pub(crate) fn space(&self) -> &Space<'a> {
        &self.space
    }

    pub(crate) fn run(
        &self,
        queries: &Queries<'_>,
        k: usize,
        beam: usize,
        progress: &Progress,
    ) -> Result<SearchResult> {
        if k == 0 || k > self.index.len() {
            return Err(Error::argument(
                "k",
                k,
                format_args!("1 to the {} rows of the base", self.index.len()),
            ));
        }
        if beam < k {
            return Err(Error::argument("beam", beam, format_args!("at least k = {k}")));
        }
        let stage = progress.stage("search", queries.len() as u64);
        let computed = AtomicU64::new(0);
        let limits = Limits { beam, expansions: usize::MAX };
        let mut keys = vec![key::NONE; queries.len() * k];
        let scratch = || BeamSearch::new(self.index.len());
        for_each_row(&mut keys, k, &stage, scratch, |search, query, row| {
            let before = search.computed();
            let point = queries.point(query as usize);
            search.run(&self.space, self.index, point, self.index.entries(), limits, |_| ());
            row.iter_mut().zip(search.found()).for_each(|(slot, key)| *slot = key);
            computed.fetch_add(search.computed() - before, Ordering::Relaxed);
        })?;
        let distance = |&key: &u64| {
            if key == key::NONE { f32::INFINITY } else { key::distance(key) }
        };
        Ok(SearchResult {
            k,
            ids: keys.iter().map(|&key| key as u32).collect(),
            distances: keys.iter().map(distance).collect(),
            computed: computed.into_inner(),
        })
    }
}

/// One batch of queries: [`Searcher::new`] and [`Searcher::search`] in one.
///
/// # Errors
/// As those two.
pub fn search(
    index: &Index,
    base: &Vectors,
    queries: &Vectors,
    k: usize,
    beam: usize,
    progress: &Progress,
) -> Result<SearchResult> {
    Searcher::new(index, base)?.search(queries, k, beam, progress)
}
