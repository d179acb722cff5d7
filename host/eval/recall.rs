//! Recall against exact search, allowing for ties: a result counts if it is not farther than the
//! k-th true neighbour, whatever its id.

use std::time::Instant;

use tagore_device::descent::key;
use tagore_device::random::{Draws, Stage};

use crate::descent::KnnGraph;
use crate::index::Index;
use crate::search::exact::ExactSearch;
use crate::search::{SearchResult, Searcher};
use crate::vectors::space::{Queries, Space};
use crate::{Device, Error, GroundTruth, Progress, Result, Vectors};

/// How an index does at one beam width.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The beam width.
    pub beam: usize,
    /// Neighbours asked for per query.
    pub k: usize,
    /// The share of the k true neighbours found, 0 to 1.
    pub recall: f64,
    /// Queries per second, all threads together; the median of several runs if they are short.
    pub qps: f64,
    /// Distances computed per query, those to the entry points included.
    pub distances: f64,
}

/// Searches with each of `beams` and compares with `truth`, whose rows hold at least `k` ids.
///
/// # Errors
/// As [`search`](crate::search), or if `truth` does not belong to these queries and this base.
pub fn evaluate(
    index: &Index,
    base: &Vectors,
    queries: &Vectors,
    truth: &GroundTruth,
    k: usize,
    beams: &[usize],
    progress: &Progress,
) -> Result<Vec<Evaluation>> {
    let searcher = Searcher::new(index, base)?;
    let space = searcher.space();
    let prepared = space.queries(queries)?;
    if queries.is_empty() {
        return Err(Error::mismatch(queries.describe(), "0 rows", "at least 1"));
    }
    let farthest = farthest_true(space, &prepared, truth, k)?;
    let mut evaluations = Vec::with_capacity(beams.len());
    for &beam in beams {
        let (result, seconds) = timed(|| searcher.run(&prepared, k, beam, progress))?;
        let hits: usize =
            farthest.iter().enumerate().map(|(query, &far)| hits(result.distances(query), far)).sum();
        let count = queries.len() as f64;
        evaluations.push(Evaluation {
            beam,
            k,
            recall: hits as f64 / (count * k as f64),
            qps: count / seconds,
            distances: result.computed() as f64 / count,
        });
    }
    Ok(evaluations)
}

/// What `search` finds and the seconds it takes: of a short run, which may be disturbed by anything,
/// the median of several.
fn timed(search: impl Fn() -> Result<SearchResult>) -> Result<(SearchResult, f64)> {
    const RUNS: usize = 5;
    const LONG: f64 = 1.0;
    let mut times = Vec::with_capacity(RUNS);
    loop {
        let began = Instant::now();
        let result = search()?;
        times.push(began.elapsed().as_secs_f64());
        if times.len() == RUNS || times[0] > LONG {
            times.sort_by(f64::total_cmp);
            return Ok((result, times[times.len() / 2]));
        }
    }
}

/// The distance of the k-th true neighbour of each query, computed as the search computes it.
fn farthest_true(
    space: &Space<'_>,
    queries: &Queries<'_>,
    truth: &GroundTruth,
    k: usize,
) -> Result<Vec<f32>> {
    if truth.len() != queries.len() {
        let expected = format!("{} as there are queries", queries.len());
        return Err(Error::mismatch("ground truth", format_args!("{} rows", truth.len()), expected));
    }
    if k == 0 || k > truth.k() {
        return Err(Error::argument("k", k, format_args!("1 to the {} of the ground truth", truth.k())));
    }
    let mut distances = Vec::new();
    let farthest = |query: usize| {
        let ids = &truth.ids(query)[..k];
        if let Some(&unknown) = ids.iter().find(|&&id| id as usize >= space.len()) {
            let expected = format!("an id below the {} rows of the base", space.len());
            return Err(Error::mismatch(
                "ground truth",
                format_args!("id {unknown} for query {query}"),
                expected,
            ));
        }
        space.list_distances(queries.point(query), ids, &mut distances);
        Ok(distances.iter().copied().fold(f32::NEG_INFINITY, f32::max))
    };
    (0..queries.len()).map(farthest).collect()
}

/// How many of the distances found (nearest first) reach the k-th true one.
fn hits(found: &[f32], farthest: f32) -> usize {
    found.partition_point(|&distance| distance <= farthest)
}

/// The recall of a k-NN graph at each of `ks` (at most its k), over `sample` seeded random nodes
/// compared with exact search on `device`, or over all nodes if there are no more.
///
/// # Errors
/// If the graph is not one of `base`, or the work is cancelled.
pub fn knn_recall(
    graph: &KnnGraph,
    base: &Vectors,
    sample: usize,
    ks: &[usize],
    seed: u64,
    device: Device,
    progress: &Progress,
) -> Result<Vec<f64>> {
    if graph.len() != base.len() {
        let expected = format!("{} as the base has", base.len());
        return Err(Error::mismatch("k-NN graph", format_args!("{} nodes", graph.len()), expected));
    }
    let space = Space::new(base, graph.metric())?;
    let nodes = sampled(base.len(), sample, seed);
    let k = graph.k();
    let search = ExactSearch::new(k).device(device).progress(progress.clone());
    let truth = search.neighbors_of(&space, &nodes)?;
    let recall = |at: usize| {
        let hits: usize = nodes
            .iter()
            .zip(truth.chunks_exact(k))
            .map(|(&node, truth)| hits(&graph.distances(node as usize)[..at], key::distance(truth[at - 1])))
            .sum();
        hits as f64 / (nodes.len() * at) as f64
    };
    // A graph without edges, of a single node, misses nothing.
    Ok(ks.iter().map(|&at| at.min(k)).map(|at| if at == 0 { 1.0 } else { recall(at) }).collect())
}

/// Different random nodes, sorted: `count` of them, or all.
fn sampled(nodes: usize, count: usize, seed: u64) -> Vec<u32> {
    if count >= nodes {
        return (0..nodes as u32).collect();
    }
    // Floyd's sampling: one draw a node, whatever the share.
    let mut picked = std::collections::BTreeSet::new();
    for last in nodes - count..nodes {
        let draw = Draws::new(seed, Stage::Verify, 0, last as u64).below(0, last as u64 + 1) as u32;
        if !picked.insert(draw) {
            picked.insert(last as u32);
        }
    }
    picked.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_the_size_asked_for() {
        for (nodes, count) in [(1, 1), (10, 3), (100, 99), (100, 100), (5, 50)] {
            let sample = sampled(nodes, count, 9);
            assert_eq!(sample.len(), count.min(nodes));
            assert!(sample.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(sample.iter().all(|&node| (node as usize) < nodes));
        }
    }

    #[test]
    fn a_tie_with_the_last_true_neighbour_counts() {
        assert_eq!(hits(&[1.0, 2.0, 2.0, 3.0], 2.0), 3);
        assert_eq!(hits(&[1.0, f32::INFINITY], 2.0), 1);
    }
}
