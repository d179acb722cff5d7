//! Fits a graph to queries that do not look like its rows, by a sample of them.
//!
//! The nearest rows of a query from elsewhere, as of a text among images, lie around the place
//! where it would be. They need not be near to one another, so few edges join them, and a search
//! that has found some of them does not come to the others. The exact lists of a sample show where
//! edges lack: a search that keeps L nodes finds those of the L nearest rows to which a path inside
//! them leads. Where none does, the row gets an edge from the nearest row that a path leads to
//! (after NGFix: Hua et al. 2025, who weigh all pairs of a list; a spanning tree each way is enough
//! here). Searches also begin at rows that are near to many queries.
//!
//! A sample need not tell anything of other queries, as where each has a neighbourhood of its own.
//! So some are held out, and edges and entry points stay only if searches for these find more.

mod edges;
mod trial;

use std::cmp::Reverse;
use std::time::Instant;

use edges::{PARTS, WithEdges};
use tagore_device::key::{Key, NO_ID};
use trial::{Trial, finds_more};

use crate::gpu::MemoryPlan;
use crate::index::{Graph, RANDOM_ENTRIES, Start};
use crate::loops::{Rows, map, rows};
use crate::vectors::queries::Queries;
use crate::vectors::space::Space;
use crate::{Metric, Progress, Result};

/// Nearest rows of a query that are looked at.
pub(crate) const NEAREST: usize = 64;

/// One query in this many is held out.
const HELD_OUT: usize = 10;

/// Minimum and maximum number of queries held out.
const HELD_OUT_BOUNDS: [usize; 2] = [200, 500];

/// Of a sample too small for the minimum, one query in this many is held out.
const HELD_OUT_OF_FEW: usize = 4;

/// Entry points for queries.
const ENTRIES: usize = RANDOM_ENTRIES / 2;

/// Maximum number of queries by which entry points are chosen.
const MAX_ASKED: usize = 1024;

/// Maximum number of rows that a query changes, on average over a sample, and their bytes beside
/// their edges.
const CHANGED: usize = 8;
const CHANGED_ROW: usize = 200;

/// Entry points, and edges, stay if they leave at most this share of the misses.
const LEFT_BY_ENTRIES: f64 = 0.95;
const LEFT_BY_EDGES: f64 = 0.9;

/// More edges are made if those of the first part of the sample leave at most this share.
const LEFT_BY_FIRST_EDGES: f64 = 0.98;

/// Host memory of fitting a graph of `n` rows of at most `degree` edges to `queries` queries.
pub(crate) fn plan(queries: usize, n: usize, degree: usize) -> MemoryPlan {
    let listed = queries.saturating_mul(NEAREST.min(n));
    let changed = n.min(queries.saturating_mul(CHANGED));
    MemoryPlan::new()
        .with::<Key>("keys of queries", listed)
        .with::<u32>("lists of queries", listed)
        .with::<u64>("edges for queries", listed / 2)
        .with::<u8>("changed rows", changed.saturating_mul(4 * degree + CHANGED_ROW))
}

/// The nearest rows of some queries, nearest first: `depth` ids each, `u32::MAX` after the last.
#[derive(Clone, Copy)]
struct Lists<'a> {
    ids: &'a [u32],
    depth: usize,
}

/// The ids of a list before the first `u32::MAX`.
fn known(list: &[u32]) -> &[u32] {
    &list[..list.iter().position(|&id| id == NO_ID).unwrap_or(list.len())]
}

impl<'a> Lists<'a> {
    /// The lists with the ids after their last.
    fn rows(self) -> Rows<&'a [u32]> {
        rows(self.ids, self.depth)
    }

    /// Rows that are near to many queries, ascending, without `others`: each is near to the most of
    /// those queries to which none before is near.
    fn entries(self, others: &[u32]) -> Vec<u32> {
        let mut lists = map(self.rows(), known);
        let step = lists.len().div_ceil(MAX_ASKED).max(1);
        lists = lists.into_iter().step_by(step).collect();
        let mut entries = Vec::with_capacity(ENTRIES);
        while entries.len() < ENTRIES {
            let mut counted: Vec<u32> = lists.concat();
            counted.sort_unstable();
            let same = counted.chunk_by(|a, b| a == b);
            let Some(&[entry, ..]) = same.max_by_key(|same| (same.len(), Reverse(same[0]))) else { break };
            lists.retain(|list| !list.contains(&entry));
            if !others.contains(&entry) {
                entries.push(entry);
            }
        }
        entries.sort_unstable();
        entries
    }
}

/// A sample of queries with their nearest rows.
pub(crate) struct QuerySample<'a> {
    pub space: &'a Space<'a>,
    pub queries: &'a Queries<'a>,
    /// `depth` keys per query, nearest first, [`NONE`](tagore_device::key::NONE) after the last.
    pub keys: &'a [Key],
    pub depth: usize,
    pub progress: &'a Progress,
}

/// A graph fitted to a sample of queries.
pub(crate) struct Fitted {
    /// The changed rows, by ascending node.
    pub rows: Vec<(u32, Vec<u32>)>,
    /// Entry points of the graph.
    pub entries: Vec<u32>,
    /// Those that were added, ascending.
    pub added_entries: Vec<u32>,
    pub stats: QueryStats,
}

/// What a build made of a sample of queries ([`Builder::queries`](crate::Builder::queries)).
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct QueryStats {
    /// Queries of the sample.
    pub queries: usize,
    /// Those of them that were held out to judge.
    pub held_out: usize,
    /// Edges that were added; 0 if searches for the held-out queries did not find more by them.
    pub edges: u64,
    /// Entry points that were added; 0 likewise.
    pub entries: usize,
    /// Recall@10 of the held-out queries at the end, at beams 16 and 128 without layers.
    pub recall: [f64; 2],
    /// As `recall`, before.
    pub recall_before: [f64; 2],
    /// Distances per query of the searches of `recall`.
    pub distances: [f64; 2],
    /// As `distances`, before.
    pub distances_before: [f64; 2],
    /// Seconds.
    pub seconds: f64,
}

impl QuerySample<'_> {
    /// The keys of the rows nearest to a query.
    fn keys_of(&self, query: u32) -> &[Key] {
        &self.keys[query as usize * self.depth..][..self.depth]
    }

    /// Fits a graph with rows of at most `degree` edges, which searches enter at `entries`, to the
    /// sample. The result does not depend on the number of threads.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn fit(&self, graph: &impl Graph, degree: usize, entries: &[u32]) -> Result<Fitted> {
        let &Self { space, queries, depth, progress, .. } = self;
        let [least, most] = HELD_OUT_BOUNDS;
        let held_out = (queries.len() / HELD_OUT).clamp(least, most).min(queries.len() / HELD_OUT_OF_FEW);
        let step = queries.len() / held_out.max(1);
        let (held_out, asked): (Vec<u32>, Vec<u32>) =
            (0..queries.len() as u32).partition(|&query| (query as usize).is_multiple_of(step));
        let ids: Vec<u32> =
            asked.iter().flat_map(|&query| self.keys_of(query)).map(|&key| key as u32).collect();
        let lists = Lists { ids: &ids, depth };
        let trial = Trial::new(self, &held_out);

        let began = Instant::now();
        let before = trial.run(graph, Start::at(entries))?;
        let mut after = before;
        let (mut entries, mut added_entries) = (entries.to_vec(), lists.entries(entries));
        let with = with_entries(&entries, &added_entries);
        let curve = trial.run(graph, Start::at(&with))?;
        if finds_more(&curve, &after, LEFT_BY_ENTRIES) {
            (entries, after) = (with, curve);
        } else {
            added_entries.clear();
        }
        log_stage("entry points for queries", began);
        let began = Instant::now();
        // Products do not tell how near rows are to one another.
        let by_l2 = Space::unprepared(space.vectors(), Metric::L2);
        let between = if space.metric() == Metric::InnerProduct { &by_l2 } else { space };
        let mut with = WithEdges::over(graph, degree);
        with.add(0, between, lists, progress)?;
        let mut curve = trial.run(&with, Start::at(&entries))?;
        // Where the first edges help none, the others do not.
        if finds_more(&curve, &after, LEFT_BY_FIRST_EDGES) {
            (1..PARTS).try_for_each(|part| with.add(part, between, lists, progress))?;
            curve = trial.run(&with, Start::at(&entries))?;
        }
        let (mut edges, mut rows) = (0, Vec::new());
        if finds_more(&curve, &after, LEFT_BY_EDGES) {
            (edges, rows, after) = (with.added() as u64, with.into_rows(), curve);
        }
        log_stage("edges for queries", began);
        let ends = |curve: &trial::Curve, of: fn(&trial::Outcome) -> f64| [of(&curve[0]), of(&curve[3])];
        let stats = QueryStats {
            queries: queries.len(),
            held_out: held_out.len(),
            edges,
            entries: added_entries.len(),
            recall: ends(&after, |outcome| outcome.recall),
            recall_before: ends(&before, |outcome| outcome.recall),
            distances: ends(&after, |outcome| outcome.distances),
            distances_before: ends(&before, |outcome| outcome.distances),
            seconds: 0.0,
        };
        Ok(Fitted { rows, entries, added_entries, stats })
    }
}

/// Logs the seconds of a stage that began at `began`.
fn log_stage(stage: &str, began: Instant) {
    tracing::debug!(stage, seconds = began.elapsed().as_secs_f64(), "a stage ends");
}

impl QueryStats {
    pub(crate) fn log(&self) {
        let Self { queries, edges, entries, recall, recall_before, seconds, .. } = self;
        tracing::info!(
            queries,
            edges,
            entries,
            ?recall_before,
            ?recall,
            seconds,
            "the graph fits the queries"
        );
    }
}

/// The first entry point stays the first: files of other systems hold one. Of random ones, as many
/// as there may be stay.
fn with_entries(entries: &[u32], added: &[u32]) -> Vec<u32> {
    let stay = RANDOM_ENTRIES.saturating_sub(added.len()).max(1);
    entries.iter().take(stay).chain(added).copied().collect()
}
