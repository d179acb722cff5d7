//! Recall against exact search, by distance (a result counts if it is no farther than the k-th true
//! neighbour, so ties count) and by id.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::truth_check::{CheckedTruth, TruthCheck, exact_keys};
use crate::descent::{ExactLists, KnnGraph, KnnSample, sampled};
use crate::held::Held;
use crate::index::Index;
use crate::search::exact::ExactSearch;
use crate::search::{Engine, Search, SearchResult, Searcher};
use crate::vectors::space::Space;
use crate::{Device, Error, GroundTruth, IdSet, Metric, Progress, Result, Vectors};

/// Quality and speed of an index at one beam.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// The beam.
    pub beam: usize,
    /// Neighbours per query.
    pub k: usize,
    /// Recall@k by distance, 0 to 1: the share of the k results no farther than the k-th true
    /// neighbour. Of rows at equal distance any counts.
    pub recall: f64,
    /// Recall@k by id, 0 to 1: the share of the k true ids found. Of rows at equal distance only
    /// those in the ground truth count.
    pub recall_ids: f64,
    /// Queries per second on all threads, from queries to results in host memory; the median of
    /// several runs if they are short.
    pub qps: f64,
    /// On a GPU, queries per second of the kernel alone, with queries and results on the device, in
    /// the run of `qps`; of several GPUs, on all together.
    pub device_qps: Option<f64>,
    /// On a GPU, a lower bound on the bytes of the base that the kernel reads per second; of
    /// several GPUs, on each.
    pub device_bytes: Option<f64>,
    /// Distances computed per query, including those to the entry points.
    pub distances: f64,
}

/// Queries with their exact nearest neighbours.
#[derive(Clone, Copy, Debug)]
pub struct TestQueries<'a> {
    /// The queries.
    pub queries: &'a Vectors,
    /// At least `k` ids per query, nearest first.
    pub truth: &'a GroundTruth,
    /// Neighbours searched per query.
    pub k: usize,
    /// The rows that searches may find; all if none.
    pub among: Option<&'a IdSet>,
}

impl<'a> TestQueries<'a> {
    /// Queries with their exact neighbours, for searches that return `k` neighbours each.
    pub fn new(queries: &'a Vectors, truth: &'a GroundTruth, k: usize) -> Self {
        Self { queries, truth, k, among: None }
    }

    /// Measures searches that find rows of `ids` only, a set of the rows of the base.
    #[must_use]
    pub fn among(mut self, ids: &'a IdSet) -> Self {
        self.among = Some(ids);
        self
    }
}

/// Searches on the CPU with each of `beams` and measures recall: [`Searcher::new`] and
/// [`Searcher::evaluate`] in one.
///
/// # Errors
/// As these two.
pub fn evaluate(
    index: &Index,
    base: &Vectors,
    test: TestQueries<'_>,
    beams: &[usize],
    progress: &Progress,
) -> Result<Vec<Evaluation>> {
    Engine::new(Held::Borrowed(index), Held::Borrowed(base), progress)?.evaluate(test, beams, progress)
}

impl Searcher {
    /// Searches with each of `beams` and compares the results with the ground truth.
    ///
    /// Rows that no search may find, since the index [leaves them out](Index::left_out) or they are
    /// not [among](TestQueries::among) those asked for, do not count: a truth may hold them beside
    /// enough others.
    ///
    /// Once, before the searches, the ids of the truth are checked by exact search of at most 64 of
    /// the queries (fewer for a large base without a GPU); its distances may follow any convention
    /// ([`Searcher::distance_convention`]).
    ///
    /// # Errors
    /// As [`Searcher::search`], or if the truth does not belong to these queries and this base: it
    /// has another number of rows, an id is unknown or there twice, too few ids may be found,
    /// or a row of the base is nearer, by more than 1e-4 of the distance (1e-3 for a base in f16)
    /// and by the metric of the index, than the one in its place.
    pub fn evaluate(
        &self,
        test: TestQueries<'_>,
        beams: &[usize],
        progress: &Progress,
    ) -> Result<Vec<Evaluation>> {
        self.engine().evaluate(test, beams, progress)
    }

    /// The recall of `found`, the results of a search for `queries` among some rows or all, by
    /// distance ([`Evaluation::recall`]): exact search on the CPU for some of the queries says what
    /// they should hold. It takes a second of a core at most, so it looks at fewer than `most`
    /// queries where the base is large.
    ///
    /// None if that would be fewer than 8 queries, unless there are fewer, or fewer rows than were
    /// asked for may be found.
    ///
    /// # Errors
    /// If `queries` are not those of `found` or do not fit the base, the base is in the memory of a
    /// device, or the work is cancelled.
    pub fn sampled_recall(
        &self,
        queries: &Vectors,
        found: &SearchResult,
        among: Option<&IdSet>,
        most: usize,
        progress: &Progress,
    ) -> Result<Option<f64>> {
        /// Multiply-adds of the exact search, and the fewest queries that tell anything.
        const WORK: usize = 1 << 31;
        const FEWEST: usize = 8;
        if queries.len() != found.len() {
            let expected = format!("{}, one per query", queries.len());
            return Err(Error::mismatch("found", format_args!("{} results", found.len()), expected));
        }
        let (k, rows) = (found.k(), self.index().searched(among));
        let searched = rows.as_ref().map_or(self.base().len(), IdSet::len);
        let count = queries.len().min(most).min(WORK / (searched * self.base().dim()).max(1));
        if k == 0 || k > searched || count < FEWEST.min(queries.len()).max(1) {
            return Ok(None);
        }
        let sample = sampled(queries.len(), count, 0);
        let exact = ExactSearch::new(k).device(Device::Cpu).progress(progress.unwatched());
        let keys = exact_keys(self.engine(), &queries.select(&sample)?, exact, rows.as_ref())?;
        let exact = ExactLists { sample, k, keys };
        let lists = exact.sample.iter().map(|&query| found.distances(query as usize));
        Ok(Some(exact.recall_at(k, lists)))
    }
}

impl Engine<'_> {
    /// [`Searcher::evaluate`].
    fn evaluate(
        &self,
        test: TestQueries<'_>,
        beams: &[usize],
        progress: &Progress,
    ) -> Result<Vec<Evaluation>> {
        let TestQueries { queries, truth, k, among } = test;
        let space = self.space();
        let prepared = space.queries(queries, progress)?;
        if queries.is_empty() {
            return Err(Error::mismatch(queries.describe(), "0 rows", "at least 1"));
        }
        let search = among.into_iter().fold(Search::new(k), Search::among);
        among.map_or(Ok(()), |ids| ids.check("filter", self.base()))?;
        let rows = self.index().searched(among);
        let of_rows = rows.as_ref().map(|rows| truth.among(rows, k)).transpose()?;
        let truth = of_rows.as_ref().unwrap_or(truth);
        let check = TruthCheck { engine: self, queries, prepared: &prepared, truth, k, rows: rows.as_ref() };
        let truth = CheckedTruth::new(&check, progress)?;
        let count = queries.len() as f64;
        let evaluation = |&beam: &usize| {
            let (result, seconds) = timed(|| self.run(&prepared, search.beam(beam), progress))?;
            let hits = |query| truth.hits(query, result.ids(query), result.distances(query));
            let sum = |(near, same): (usize, usize), found: (usize, usize)| (near + found.0, same + found.1);
            let (near, same) = (0..queries.len()).map(hits).fold((0, 0), sum);
            let share = |hits: usize| hits as f64 / (count * k as f64);
            let device_seconds = result.device_seconds();
            let bytes: u64 = result.kernels().iter().map(|time| time.bytes).sum();
            let of_all: f64 = result.kernels().iter().map(|time| time.seconds).sum();
            Ok(Evaluation {
                beam,
                k,
                recall: share(near),
                recall_ids: share(same),
                qps: count / seconds,
                device_qps: device_seconds.map(|seconds| count / seconds),
                device_bytes: device_seconds.map(|_| bytes as f64 / of_all),
                distances: result.computed() as f64 / count,
            })
        };
        beams.iter().map(evaluation).collect()
    }
}

/// What `search` finds and the seconds it takes: of a short run, which may be disturbed by
/// anything, the median of several.
fn timed(search: impl Fn() -> Result<SearchResult>) -> Result<(SearchResult, f64)> {
    const RUNS: usize = 5;
    const LONG: f64 = 1.0;
    let mut runs = Vec::with_capacity(RUNS);
    loop {
        let began = Instant::now();
        let result = search()?;
        runs.push((result, began.elapsed().as_secs_f64()));
        if runs.len() == RUNS || runs[0].1 > LONG {
            runs.sort_by(|a, b| a.1.total_cmp(&b.1));
            return Ok(runs.swap_remove(runs.len() / 2));
        }
    }
}

/// A seeded random sample of nodes, whose exact neighbours are searched.
#[derive(Clone, Debug)]
pub struct RecallSample {
    /// Nodes of the sample: all nodes if the base has no more. The default is 1000.
    pub nodes: usize,
    /// Seed of the sample.
    pub seed: u64,
    /// Device of the exact search.
    pub device: Device,
    /// Progress of the exact search.
    pub progress: Progress,
}

impl Default for RecallSample {
    fn default() -> Self {
        Self { nodes: 1000, seed: 0, device: Device::Auto, progress: Progress::silent() }
    }
}

/// The exact neighbours of sampled nodes, to compare k-NN graphs of one base with.
///
/// ```
/// use tagore::{Descent, KnnTruth, Metric, RecallSample, Synth};
/// let base = Synth::new(300, 8, 1)?.base();
/// let sample = RecallSample { nodes: 100, ..RecallSample::default() };
/// let truth = KnnTruth::new(&base, Metric::L2, 10, &sample)?;
/// let graph = Descent::new().knn(10).build(&base)?;
/// assert!(truth.recall(&graph, &[1, 10])?[1] > 0.9);
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct KnnTruth {
    /// Number of rows of the base.
    of: usize,
    metric: Metric,
    lists: ExactLists,
}

impl KnnTruth {
    /// Finds the `k` nearest neighbours of the nodes of `sample` by exact search.
    ///
    /// # Errors
    /// If the sample has no nodes, `k` is not below the rows of `base` or too large for the device,
    /// a value is not finite, or the work is cancelled.
    pub fn new(base: &Vectors, metric: Metric, k: usize, sample: &RecallSample) -> Result<Self> {
        let of = base.len();
        let &RecallSample { nodes, seed, device, ref progress } = sample;
        if nodes == 0 {
            return Err(Error::argument("nodes", nodes, "at least 1"));
        }
        if k >= of {
            let expected = format!("less than the {of} rows of {}", base.describe());
            return Err(Error::argument("k", k, expected));
        }
        let search = ExactSearch::new(k).device(device).progress(progress.clone());
        Self::of_nodes(&Space::new(base, metric, progress)?, sampled(of, nodes, seed), k, &search)
    }

    /// Finds the `k` nearest neighbours of `nodes` with `search`, an exact search for that many
    /// queries.
    pub(crate) fn of_nodes(
        space: &Space<'_>,
        nodes: Vec<u32>,
        k: usize,
        search: &ExactSearch,
    ) -> Result<Self> {
        let keys = search.neighbors_of(space, &nodes)?;
        Ok(Self { of: space.len(), metric: space.metric(), lists: ExactLists { sample: nodes, k, keys } })
    }

    /// The number of sampled nodes.
    pub fn len(&self) -> usize {
        self.lists.sample.len()
    }

    /// Whether there are no sampled nodes.
    pub fn is_empty(&self) -> bool {
        self.lists.sample.is_empty()
    }

    /// The recall of `graph` at each of `ks`, capped at the graph's k and at this k.
    ///
    /// # Errors
    /// If the graph has another number of nodes or another metric.
    pub fn recall(&self, graph: &KnnGraph, ks: &[usize]) -> Result<Vec<f64>> {
        if graph.len() != self.of {
            let expected = format!("{} as in the base", self.of);
            return Err(Error::mismatch("k-NN graph", format_args!("{} nodes", graph.len()), expected));
        }
        if graph.metric() != self.metric {
            let expected = format!("{} as in the exact search", self.metric);
            return Err(Error::mismatch("k-NN graph", format_args!("metric {}", graph.metric()), expected));
        }
        Ok(self.recall_of_sample(&KnnSample::take(graph, &self.lists.sample), ks))
    }

    /// The recall of the lists of `sample` at each of `ks`.
    pub(crate) fn recall_of_sample(&self, sample: &KnnSample, ks: &[usize]) -> Vec<f64> {
        debug_assert_eq!(sample.nodes(), self.lists.sample);
        let most = sample.k().min(self.lists.k);
        ks.iter().map(|&at| self.lists.recall_at(at.min(most), sample.lists())).collect()
    }

    /// The exact lists of the nodes.
    pub(crate) fn lists(&self) -> &ExactLists {
        &self.lists
    }
}

/// The recall of a k-NN graph at each of `ks` (at most its k), over the nodes of `sample`.
///
/// # Errors
/// If the sample has no nodes, the graph is not one of `base`, or the work is cancelled.
pub fn knn_recall(graph: &KnnGraph, base: &Vectors, ks: &[usize], sample: &RecallSample) -> Result<Vec<f64>> {
    if graph.len() != base.len() {
        let expected = format!("{} as in the base", base.len());
        return Err(Error::mismatch("k-NN graph", format_args!("{} nodes", graph.len()), expected));
    }
    KnnTruth::new(base, graph.metric(), graph.k(), sample)?.recall(graph, ks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descent::hits;

    // The mean of no recalls was NaN.
    #[test]
    fn an_empty_sample_is_refused() {
        let base = crate::Synth::new(50, 4, 1).unwrap().base();
        let graph = crate::Descent::new().knn(5).device(Device::Cpu).build(&base).unwrap();
        let none = RecallSample { nodes: 0, ..RecallSample::default() };
        let error = knn_recall(&graph, &base, &[5], &none).unwrap_err();
        assert_eq!(error.to_string(), "nodes: found 0, expected at least 1");
    }

    #[test]
    fn a_tie_with_the_last_true_neighbour_counts() {
        assert_eq!(hits(&[1.0, 2.0, 2.0, 3.0], 2.0), 3);
        assert_eq!(hits(&[1.0, f32::INFINITY], 2.0), 1);
    }
}
