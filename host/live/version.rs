//! What a live index holds at one time, and searches of it.
//!
//! A version is a graph over most rows, and the recent rows, which searches compare one by one. The
//! rows are numbered from those of the graph on. Versions share all that does not change from one
//! to the next.

use std::borrow::Cow;
use std::sync::Arc;

use tagore_device::key::{self, Key, NO_ID};

use super::block::{Block, WORTH_A_GPU, numbered};
use super::store::StoredRows;
use crate::gpu::Gpus;
use crate::loops::{for_each, for_each_with, numbered as with_numbers, rows_mut};
use crate::memory::{collected, filled, zeros};
use crate::search::Filter;
use crate::search::beam::BeamSearch;
use crate::search::exact::gpu::MAX_K;
use crate::vectors::QueryBuffer;
use crate::{
    Device, ElementType, Error, IdSet, Index, Metric, Progress, Result, Search, SearchResult, Searcher,
    Vectors,
};

/// No id: in the empty slots of a result.
pub(super) const NO_OWN_ID: u64 = u64::MAX;

/// Rows below which blocks are compared together on a GPU.
const SMALL: usize = 1 << 14;

/// What all rows of a live index have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowKind {
    pub dim: usize,
    pub element: ElementType,
    pub metric: Metric,
}

/// A graph, and which of its rows are still there.
#[derive(Clone)]
pub(super) struct Graph {
    pub searcher: Searcher,
    pub ids: Arc<Vec<u64>>,
    /// Rows that were removed since the graph was made.
    pub removed: Arc<IdSet>,
}

/// The rows of a live index at one time.
#[derive(Clone)]
pub(super) struct Version {
    pub kind: RowKind,
    pub graph: Option<Graph>,
    /// Ever smaller ones, in the order of insertion.
    pub blocks: Vec<Arc<Block>>,
    /// The recent rows that were removed, from 0.
    pub removed: IdSet,
}

/// The bytes of each row in host memory.
pub(super) fn bytes_of(rows: &Vectors) -> impl Iterator<Item = &[u8]> {
    (0..rows.len()).map(|row| rows.bytes_of_row(row))
}

/// Bytes that are aligned for every type of values.
struct Aligned {
    words: Vec<u64>,
    len: usize,
}

impl AsRef<[u8]> for Aligned {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }
}

impl RowKind {
    /// Checks that there are such rows.
    pub(super) fn check(&self) -> Result<()> {
        self.metric.check(self.element)?;
        self.copied(0, []).map(drop)
    }

    pub(super) fn row_bytes(&self) -> usize {
        self.element.row_bytes(self.dim)
    }

    /// A copy of `count` rows, whose bytes follow one another in `parts`.
    ///
    /// # Errors
    /// If memory is short.
    pub(super) fn copied<'p>(
        &self,
        count: usize,
        parts: impl IntoIterator<Item = &'p [u8]>,
    ) -> Result<Vectors> {
        let len = count * self.row_bytes();
        let mut words: Vec<u64> = zeros(len.div_ceil(size_of::<u64>()))?;
        let mut rest: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        for part in parts {
            let (begin, after) = rest.split_at_mut(part.len());
            begin.copy_from_slice(part);
            rest = after;
        }
        Vectors::from_bytes(Aligned { words, len }, self.element, self.dim)
    }
}

impl Graph {
    /// A graph over stored rows that are all still there, searched on `device`.
    ///
    /// # Errors
    /// If they do not fit each other, a value cannot be used under the metric, or the device is
    /// missing or lacks memory.
    pub(super) fn new(index: Index, stored: StoredRows, device: Device) -> Result<Self> {
        let removed = Arc::new(IdSet::new(stored.ids.len()));
        let searcher = Searcher::new(index, stored.rows, &Progress::silent())?.device(device)?;
        Ok(Self { searcher, ids: Arc::new(stored.ids), removed })
    }

    /// The same, searched on `device`.
    ///
    /// # Errors
    /// If the device is missing or lacks memory.
    pub(super) fn on(self, device: Device) -> Result<Self> {
        Ok(Self { searcher: self.searcher.device(device)?, ..self })
    }
}

impl Version {
    /// No rows.
    pub(super) fn empty(kind: RowKind) -> Self {
        Self { kind, graph: None, blocks: Vec::new(), removed: IdSet::new(0) }
    }

    /// Rows of the graph, removed ones included.
    pub(super) fn graph_rows(&self) -> usize {
        self.graph.as_ref().map_or(0, |graph| graph.ids.len())
    }

    /// Row numbers in use, those of removed rows included.
    pub(super) fn rows(&self) -> usize {
        self.graph_rows() + self.removed.rows()
    }

    /// Rows that searches may return.
    pub(super) fn len(&self) -> usize {
        let of_graph = self.graph.as_ref().map_or(0, |graph| {
            let left_out = graph.searcher.index().left_out().map_or(0, IdSet::len);
            graph.ids.len() - left_out - graph.removed.len()
        });
        of_graph + self.recent()
    }

    /// Recent rows that searches may return.
    pub(super) fn recent(&self) -> usize {
        self.removed.rows() - self.removed.len()
    }

    /// The id of `row`, if there is such a row.
    pub(super) fn id(&self, row: u32) -> Option<u64> {
        let row = row as usize;
        if let Some(graph) = self.graph.as_ref().filter(|graph| row < graph.ids.len()) {
            return graph.ids.get(row).copied();
        }
        let mut place = row - self.graph_rows();
        for block in &self.blocks {
            match block.ids.get(place) {
                Some(&id) => return Some(id),
                None => place -= block.ids.len(),
            }
        }
        None
    }

    /// Whether searches may return `row`.
    pub(super) fn is_live(&self, row: u32) -> bool {
        match &self.graph {
            Some(graph) if (row as usize) < graph.ids.len() => {
                !graph.removed.contains(row) && !graph.searcher.index().is_left_out(row)
            }
            _ => !self.removed.contains(row - self.graph_rows() as u32),
        }
    }

    /// The rows of the graph that are there, ascending.
    pub(super) fn live_graph_rows(&self) -> Vec<u32> {
        (0..self.graph_rows() as u32).filter(|&row| self.is_live(row)).collect()
    }

    /// The ids and the bytes of some rows of the graph.
    pub(super) fn rows_of_graph(&self, rows: Vec<u32>) -> impl Iterator<Item = (u64, &[u8])> {
        rows.into_iter().filter_map(|row| {
            let (graph, row) = (self.graph.as_ref()?, row as usize);
            Some((graph.ids[row], graph.searcher.base().bytes_of_row(row)))
        })
    }

    /// The ids and the bytes of the recent rows from number `begin` on that are there.
    pub(super) fn live_recent_rows(&self, begin: u32) -> impl Iterator<Item = (u64, &[u8])> {
        numbered(&self.blocks).flat_map(move |(first, block)| {
            let rows = block.ids.iter().copied().zip(bytes_of(&block.rows)).zip(first..);
            let is_there = move |&(_, row): &(_, u32)| row >= begin && !self.removed.contains(row);
            rows.filter(is_there).map(|(row, _)| row)
        })
    }

    /// Adds recent rows.
    ///
    /// # Errors
    /// If memory is short; nothing is added then.
    pub(super) fn push(&mut self, block: Block) -> Result<()> {
        let rows = self.removed.rows() + block.ids.len();
        // Blocks are joined as the carries of a binary counter: each row is copied a few times, and
        // a search meets few blocks.
        let (mut kept, mut count) = (self.blocks.len(), block.ids.len());
        while kept > 0 && self.blocks[kept - 1].ids.len() <= count {
            kept -= 1;
            count += self.blocks[kept].ids.len();
        }
        let mut last = Arc::new(block);
        if kept < self.blocks.len() {
            let all = [&self.blocks[kept..], &[last]].concat();
            last = Arc::new(Block::joined(&all)?);
        }
        self.blocks.truncate(kept);
        self.blocks.push(last);
        self.removed.grow(rows);
        Ok(())
    }

    /// Removes a row that is there.
    pub(super) fn remove(&mut self, row: u32) -> Result<()> {
        let first_recent = self.graph_rows() as u32;
        match &mut self.graph {
            Some(graph) if row < first_recent => Arc::make_mut(&mut graph.removed).insert(row)?,
            _ => self.removed.insert(row - first_recent)?,
        };
        Ok(())
    }

    /// The blocks for a search of `count` queries on these GPUs, if any: small ones joined, since
    /// each block takes launches of its own there.
    fn blocks_for(&self, count: usize, gpus: Option<&Gpus>) -> Result<Cow<'_, [Arc<Block>]>> {
        let small = self.blocks.partition_point(|block| block.ids.len() >= SMALL);
        let rows: usize = self.blocks[small..].iter().map(|block| block.ids.len()).sum();
        if gpus.is_none() || self.blocks.len() < small + 2 || self.work(count, rows) < WORTH_A_GPU {
            return Ok(Cow::Borrowed(&self.blocks));
        }
        let joined = Arc::new(Block::joined(&self.blocks[small..])?);
        Ok(Cow::Owned([&self.blocks[..small], &[joined]].concat()))
    }

    /// Multiply-adds to compare `count` queries with `rows` rows.
    fn work(&self, count: usize, rows: usize) -> u64 {
        count as u64 * rows as u64 * self.kind.dim as u64
    }

    /// Checks that rows have the dimension and type of those of this index.
    pub(super) fn check_rows(&self, rows: &Vectors) -> Result<()> {
        let RowKind { dim, element, .. } = self.kind;
        if (rows.dim(), rows.element_type()) == (dim, element) {
            return Ok(());
        }
        let found = format_args!("rows of {} {}", rows.dim(), rows.element_type());
        Err(Error::mismatch(rows.describe(), found, format_args!("{dim} {element} as in the index")))
    }

    /// Checks a search for queries of `dim` components, `name` in an error.
    fn check(&self, name: &str, dim: usize, search: &Search<'_>) -> Result<()> {
        if search.k == 0 {
            return Err(Error::argument("k", 0, "at least 1"));
        }
        search.check_width()?;
        if dim != self.kind.dim {
            let expected = format_args!("{} as in the index", self.kind.dim);
            return Err(Error::mismatch(name, format_args!("dimension {dim}"), expected));
        }
        match search.filter {
            Some(Filter::Among(ids)) if ids.rows() != self.rows() => {
                let expected = format_args!("{} as the snapshot has", self.rows());
                Err(Error::mismatch("filter", format_args!("a set of {} rows", ids.rows()), expected))
            }
            _ => Ok(()),
        }
    }

    /// The places in a block, whose first row is `first` among the recent ones, that a search may
    /// return; none if it may return all.
    fn passing(&self, first: u32, block: &Block, filter: Option<Filter<'_>>) -> Option<Vec<u32>> {
        if filter.is_none() && self.removed.is_empty() {
            return None;
        }
        let before = self.graph_rows() as u32 + first;
        let passes = |&place: &u32| {
            !self.removed.contains(first + place) && filter.is_none_or(|filter| filter.passes(before + place))
        };
        Some((0..block.ids.len() as u32).filter(passes).collect())
    }

    /// The `search` of the graph, which has few enough rows, with its filter; `run` gets it.
    fn of_graph<R>(
        graph: &Graph,
        search: &Search<'_>,
        run: impl FnOnce(Search<'_>) -> Result<R>,
    ) -> Result<Option<R>> {
        let (n, removed) = (graph.ids.len(), &*graph.removed);
        let mut inside = search.beam(search.beam_width());
        inside.k = search.k.min(n);
        if removed.is_empty() && search.filter.is_none() {
            return run(inside).map(Some);
        }
        let (live, accepts);
        inside.filter = match search.filter {
            Some(Filter::Accept(_)) => {
                accepts = |row| !removed.contains(row) && search.filter.is_none_or(|f| f.passes(row));
                Some(Filter::Accept(&accepts))
            }
            Some(Filter::Among(ids)) => {
                live = ids.intersection(&removed.complement());
                Some(Filter::Among(&live))
            }
            None => {
                live = removed.complement();
                Some(Filter::Among(&live))
            }
        };
        if let Some(Filter::Among(ids)) = inside.filter
            && ids.is_empty()
        {
            return Ok(None);
        }
        run(inside).map(Some)
    }

    /// Searches for each of `queries`: rows of this version, `k` slots per query.
    pub(super) fn search(
        &self,
        queries: &Vectors,
        search: &Search<'_>,
        progress: &Progress,
    ) -> Result<SearchResult> {
        self.check(&queries.describe(), queries.dim(), search)?;
        let (k, count) = (search.k, queries.len());
        let (mut computed, mut lists): (u64, Vec<(usize, Vec<Key>)>) = (0, Vec::new());
        let gpus = self.graph.as_ref().and_then(|graph| graph.searcher.engine().gpus());
        if let Some(graph) = &self.graph {
            let run = |inside: Search<'_>| graph.searcher.search(queries, inside, progress);
            if let Some(found) = Self::of_graph(graph, search, run)? {
                computed += found.computed();
                lists.push((found.k(), found.keys()?));
            }
        }
        let gpus = gpus.filter(|_| k <= MAX_K);
        for (first, block) in numbered(&self.blocks_for(count, gpus)?) {
            let among = self.passing(first, block, search.filter);
            let rows = among.as_ref().map_or(block.ids.len(), Vec::len);
            let gpus = gpus.filter(|_| self.work(count, rows) >= WORTH_A_GPU);
            let mut keys = block.nearest(among.as_deref(), queries, k, gpus, progress)?;
            computed += count as u64 * rows as u64;
            let before = u64::from(self.graph_rows() as u32 + first);
            for_each(&mut keys[..], |key| *key += if *key == key::NONE { 0 } else { before });
            lists.push((k, keys));
        }
        let mut keys = filled(key::NONE, count * k)?;
        for_each_with(with_numbers(rows_mut(&mut keys, k)), Vec::new, |all, (query, slots)| {
            all.clear();
            for (k, list) in &lists {
                all.extend_from_slice(&list[query * k..][..*k]);
            }
            take_nearest(all, search, slots);
        });
        SearchResult::of_keys(k, &keys, computed)
    }

    /// As [`search`](Self::search) for one query, on the calling thread: the keys of the rows
    /// found, nearest first.
    pub(super) fn search_one(&self, query: &[f32], search: &Search<'_>) -> Result<Vec<Key>> {
        self.check("query", query.len(), search)?;
        let mut all: Vec<Key> = Vec::new();
        if let Some(graph) = &self.graph {
            let run = |inside: Search<'_>| graph.searcher.search_one(query, inside);
            let found = Self::of_graph(graph, search, run)?.unwrap_or_default();
            all.extend(found.iter().map(|near| key::pack(near.distance, near.id)));
        }
        let (mut scan, mut buffer) = (BeamSearch::default(), QueryBuffer::default());
        for (first, block) in numbered(&self.blocks) {
            let among = self.passing(first, block, search.filter);
            let own = block.space.query_of(query, &mut buffer)?;
            scan.scan(&block.space, own, search.k, |with| match &among {
                Some(places) => places.iter().copied().for_each(with),
                None => (0..block.ids.len() as u32).for_each(with),
            });
            let before = u64::from(self.graph_rows() as u32 + first);
            all.extend(scan.found().map(|key| key + before));
        }
        let mut keys = vec![key::NONE; search.k];
        take_nearest(&mut all, search, &mut keys);
        keys.truncate(keys.iter().take_while(|&&key| key != key::NONE).count());
        Ok(keys)
    }

    /// The ids of rows found; [`NO_OWN_ID`] for none.
    pub(super) fn ids(&self, rows: &[u32]) -> Result<Vec<u64>> {
        let id = |&row: &u32| if row == NO_ID { NO_OWN_ID } else { self.id(row).unwrap_or(NO_OWN_ID) };
        collected(rows.iter().map(id))
    }
}

/// Writes the nearest of `keys` within the radius of the search to `slots`, then empty ones.
fn take_nearest(keys: &mut [Key], search: &Search<'_>, slots: &mut [Key]) {
    keys.sort_unstable();
    let is_within = |&&key: &&Key| key != key::NONE && key::distance(key) <= search.radius;
    slots.fill(key::NONE);
    slots.iter_mut().zip(keys.iter().take_while(is_within)).for_each(|(slot, &key)| *slot = key);
}
