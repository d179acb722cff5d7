//! Searches of a live index as it was at one time.

use std::collections::HashSet;
use std::sync::Arc;

use tagore_device::key;

use super::version::{NO_OWN_ID, RowKind, Version};
use crate::{ElementType, IdSet, Metric, Progress, Result, Search, Vectors};

/// A live index as it was at one time: changes since do not show. Clones share it.
#[derive(Clone)]
pub struct Snapshot(pub(super) Arc<Version>);

/// A row that a search of a live index found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LiveNeighbor {
    /// The caller's id of the row.
    pub id: u64,
    /// Its list distance to the query, as the [`Metric`](crate::Metric) defines it.
    pub distance: f32,
}

/// Results of a batch of queries: k ids and list distances per query, nearest first. A query that
/// finds fewer than k rows has `u64::MAX` and infinity in the last slots.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveResult {
    k: usize,
    ids: Vec<u64>,
    distances: Vec<f32>,
    computed: u64,
}

impl Snapshot {
    /// The number of rows.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Components per row.
    pub fn dim(&self) -> usize {
        self.0.kind.dim
    }

    /// The type of the components.
    pub fn element_type(&self) -> ElementType {
        self.0.kind.element
    }

    /// The metric.
    pub fn metric(&self) -> Metric {
        self.0.kind.metric
    }

    /// The rows that searches compare one by one; the others are in the graph.
    pub fn recent(&self) -> usize {
        self.0.recent()
    }

    /// Rows, with the gaps of those that are gone. A filter of a search is a set of these, or is
    /// asked about them ([`id`](Self::id)).
    pub fn rows(&self) -> usize {
        self.0.rows()
    }

    /// The caller's id of `row`, below [`rows`](Self::rows); of a row that is gone, its last one.
    pub fn id(&self, row: u32) -> Option<u64> {
        self.0.id(row)
    }

    /// The rows of these ids, for a filter. Ids without a row are no error. Takes a pass over all
    /// ids.
    pub fn rows_of(&self, ids: &[u64]) -> IdSet {
        let ids: HashSet<u64> = ids.iter().copied().collect();
        let rows = self.0.rows();
        let has_id = |&row: &u32| self.0.is_live(row) && self.id(row).is_some_and(|id| ids.contains(&id));
        let mut set = IdSet::new(rows);
        (0..rows as u32).filter(has_id).for_each(|row| set.add(row));
        set
    }

    /// Finds the nearest rows for each of `queries`, k of them where there are as many, in parallel
    /// over queries. The graph is searched with the beam of `search`; recent rows are compared one
    /// by one.
    ///
    /// # Errors
    /// As [`Searcher::search`](crate::Searcher::search), but k may exceed the rows.
    pub fn search(&self, queries: &Vectors, search: Search<'_>, progress: &Progress) -> Result<LiveResult> {
        let found = self.0.search(queries, &search, progress)?;
        let computed = found.computed();
        let (rows, distances) = found.into_parts();
        Ok(LiveResult { k: search.k, ids: self.0.ids(&rows)?, distances, computed })
    }

    /// Finds the nearest rows for one `query`, nearest first, on the calling thread: the answer of
    /// [`search`](Self::search), without empty slots.
    ///
    /// # Errors
    /// As [`search`](Self::search).
    pub fn search_one(&self, query: &[f32], search: Search<'_>) -> Result<Vec<LiveNeighbor>> {
        let keys = self.0.search_one(query, &search)?;
        let rows: Vec<u32> = keys.iter().map(|&key| key as u32).collect();
        let ids = self.0.ids(&rows)?;
        let found = ids.iter().zip(&keys);
        Ok(found.map(|(&id, &key)| LiveNeighbor { id, distance: key::distance(key) }).collect())
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let RowKind { dim, element, metric } = self.0.kind;
        write!(f, "{} rows of {dim} {element} under {metric}", self.len())
    }
}

impl LiveResult {
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

    /// The ids found for `query`; `u64::MAX` in empty slots.
    ///
    /// # Panics
    /// If `query >= len()`.
    pub fn ids(&self, query: usize) -> &[u64] {
        &self.ids[query * self.k..][..self.k]
    }

    /// The distances of the ids found for `query`.
    ///
    /// # Panics
    /// If `query >= len()`.
    pub fn distances(&self, query: usize) -> &[f32] {
        &self.distances[query * self.k..][..self.k]
    }

    /// The number of queries that found fewer than [`k`](Self::k) rows.
    pub fn short(&self) -> usize {
        self.ids.chunks_exact(self.k).filter(|ids| ids.last() == Some(&NO_OWN_ID)).count()
    }

    /// Distances computed for all queries together.
    pub fn computed(&self) -> u64 {
        self.computed
    }

    /// All ids and distances, [`k`](Self::k) of each per query.
    pub fn into_parts(self) -> (Vec<u64>, Vec<f32>) {
        (self.ids, self.distances)
    }
}
