//! Live indexes: rows come, go and change while searches run, and nothing acknowledged is lost.

mod journal;
mod store;
mod version;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use journal::{Change, Journal, State, insertion, removal};
use store::{Store, StoredRows, damaged};
use tagore_device::key;
use version::{Block, Graph, NO_OWN_ID, RowKind, Version, bytes_of};

use crate::{
    Builder, Device, ElementType, Error, IdSet, Ids, Index, IndexUpdate, MAX_ROWS, Metric, Progress, Result,
    Search, Strategy, Vectors,
};

/// Changes, as a share of the rows, after which they go into the graph.
const CHANGED: f64 = 0.01;

/// The least and the largest number of changes for that.
const CHANGES: [usize; 2] = [1024, 16384];

/// An index in a folder, whose rows come, go and change while searches run.
///
/// Rows have the caller's ids, any `u64` but the largest. A change that has returned is on disk: after a
/// crash, [`open`](Self::open) finds the index as the last change left it. Changes take turns;
/// searches never wait for them. A search sees the index as it was when it began
/// ([`snapshot`](Self::snapshot)).
///
/// Most rows are in a graph. Searches compare the recent ones one by one, and skip those that were
/// removed. From time to time a change brings the graph up to date ([`consolidate`](Self::consolidate)),
/// and then takes as long as an [`IndexUpdate`]: after as many changes as a hundredth of the rows,
/// but 1,024 at least and 16,384 at most. Where two thirds of the rows in the files are gone, or as
/// many as half of the others, the files are written anew.
///
/// ```
/// use tagore::{Builder, ElementType, LiveIndex, Search, Strategy, Synth};
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path().join("products");
/// let index = LiveIndex::create(&folder, Builder::new(Strategy::nsg()), 16, ElementType::F32)?;
/// let rows = Synth::new(1000, 16, 1)?.base();
/// let ids: Vec<u64> = (0..1000).map(|row| 7_000_000_000 + row).collect();
/// index.insert(&ids, &rows)?;
/// index.remove(&ids[..3])?;
/// let found = index.snapshot().search_one(&rows.row_to_f32(5)?, Search::new(3))?;
/// assert_eq!((index.len(), found[0].id), (997, 7_000_000_005));
/// drop(index);
/// assert_eq!(LiveIndex::open(&folder)?.len(), 997);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LiveIndex {
    writer: Mutex<Writer>,
    /// Locked for as long as a pointer is copied.
    current: RwLock<Arc<Version>>,
}

/// A live index as it was at one time: changes since do not show. Clones share it.
#[derive(Clone)]
pub struct Snapshot(Arc<Version>);

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

/// What changes a live index, one at a time.
struct Writer {
    store: Store,
    journal: Journal,
    state: State,
    builder: Builder,
    progress: Progress,
    /// The next version to publish.
    version: Version,
    /// The row of each id.
    rows: HashMap<u64, u32>,
    /// Changes since the graph was made.
    changes: usize,
}

impl LiveIndex {
    /// Makes an empty index in a new or empty folder: of the kind, metric and parameters of
    /// `builder`, for rows of `dim` components of a type. The device of the builder makes the
    /// graphs.
    ///
    /// # Errors
    /// If the folder holds files or cannot be made, the dimension or the metric does not fit the
    /// type, or the builder has a rule of its own.
    pub fn create(
        folder: impl AsRef<Path>,
        builder: Builder,
        dim: usize,
        element: ElementType,
    ) -> Result<Self> {
        builder.strategy.kind.parse::<Strategy>()?;
        builder.strategy.check()?;
        builder.descent.metric.check(element)?;
        let kind = RowKind { dim, element, metric: builder.descent.metric };
        kind.copied(0, [])?;
        let store = Store::open(folder.as_ref(), true)?;
        let state = State {
            kind: builder.strategy.kind.clone(),
            parameters: builder.settings(),
            dim,
            element: element.to_string(),
            index: None,
            rows_file: 0,
            rows: 0,
            ids_crc: 0,
        };
        let journal = Journal::create(&store.journal(), &state, true)?;
        let version = Version::empty(kind);
        Ok(Self::of_writer(Writer {
            store,
            journal,
            state,
            progress: builder.descent.progress.clone(),
            builder,
            version,
            rows: HashMap::new(),
            changes: 0,
        }))
    }

    /// Makes an index in a new or empty folder of a finished `index` and its base, whose rows have
    /// these `ids`. Rows that are [left out](Index::left_out) do not come along.
    ///
    /// # Errors
    /// As [`create`](Self::create); if the base is another, or an id is repeated.
    pub fn create_from(folder: impl AsRef<Path>, index: &Index, base: &Vectors, ids: &Ids) -> Result<Self> {
        index.check_base(base)?;
        ids.check_len(base.len())?;
        let live = (0..base.len() as u32).filter(|&row| !index.is_left_out(row));
        check_ids(&live.filter_map(|row| ids.get(row)).collect::<Vec<u64>>())?;
        base.on_host()?;
        let own = Self::create(folder, Builder::like(index)?, base.dim(), base.element_type())?;
        let mut writer = own.writer();
        writer.adopt(index, base, ids.as_slice())?;
        own.publish(Arc::new(writer.version.clone()));
        drop(writer);
        Ok(own)
    }

    /// Opens the index in `folder`: as its last acknowledged change left it.
    ///
    /// # Errors
    /// If there is none, someone has it open, or a file is damaged or of another version.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self> {
        let store = Store::open(folder.as_ref(), false)?;
        Writer::open(store).map(Self::of_writer)
    }

    fn of_writer(writer: Writer) -> Self {
        let current = RwLock::new(Arc::new(writer.version.clone()));
        Self { writer: Mutex::new(writer), current }
    }

    /// Sets the device that makes the graphs; [`Device::Auto`] unless set.
    pub fn set_device(&self, device: Device) {
        let mut writer = self.writer();
        writer.builder = writer.builder.clone().device(device);
    }

    /// Sets the handle that watches and cancels the work on graphs. A change stays acknowledged if
    /// such work after it is cancelled.
    pub fn set_progress(&self, progress: Progress) {
        self.writer().progress = progress;
    }

    /// Sets whether a change waits until it is on disk; true unless set. Else a crash of the system
    /// may lose the last changes, but not that of the process.
    pub fn set_synced(&self, is_synced: bool) {
        self.writer().journal.is_synced = is_synced;
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        // A change that panicked has published nothing.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, version: Arc<Version>) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = version;
    }

    /// The index as it is now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot(Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner)))
    }

    /// The number of rows.
    pub fn len(&self) -> usize {
        self.snapshot().len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The kind of the graph, such as `nsg`.
    pub fn kind(&self) -> String {
        self.writer().state.kind.clone()
    }

    /// The folder.
    pub fn folder(&self) -> PathBuf {
        self.writer().store.path().to_owned()
    }

    /// Whether there is a row of this id.
    pub fn contains(&self, id: u64) -> bool {
        self.writer().rows.contains_key(&id)
    }

    /// Inserts rows, one for each of `ids`. A row of the same id that is there goes: the new one
    /// replaces it.
    ///
    /// # Errors
    /// If the rows do not fit the index, an id is repeated, the disk or the memory is full, or the
    /// graph cannot be brought up to date. Nothing is inserted then.
    pub fn insert(&self, ids: &[u64], rows: &Vectors) -> Result<()> {
        self.change(|writer| writer.insert(ids, rows))
    }

    /// Removes the rows of `ids`, and returns how many there were. Ids without a row are no error.
    ///
    /// # Errors
    /// If the disk or the memory is full, or the graph cannot be brought up to date. Nothing is
    /// removed then.
    pub fn remove(&self, ids: &[u64]) -> Result<usize> {
        self.change(|writer| writer.remove(ids))
    }

    /// Brings the graph up to date with all rows, and returns whether there was anything to do.
    /// Changes do so now and then: a service may, when it has time.
    ///
    /// # Errors
    /// As [`IndexUpdate::run`], or if the files cannot be written. The index is as before then.
    pub fn consolidate(&self) -> Result<bool> {
        let mut writer = self.writer();
        let has_changed = writer.consolidate()?;
        self.publish(Arc::new(writer.version.clone()));
        Ok(has_changed)
    }

    /// Makes a change, and brings the graph up to date before or after it if that is due.
    fn change<R>(&self, change: impl FnOnce(&mut Writer) -> Result<R>) -> Result<R> {
        let mut writer = self.writer();
        if writer.is_due() {
            writer.consolidate()?;
            self.publish(Arc::new(writer.version.clone()));
        }
        let result = change(&mut writer)?;
        self.publish(Arc::new(writer.version.clone()));
        // The change is acknowledged whatever comes of this: the next one will tell.
        if writer.is_due() && writer.consolidate().is_ok() {
            self.publish(Arc::new(writer.version.clone()));
        }
        Ok(result)
    }
}

impl std::fmt::Debug for LiveIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.snapshot().fmt(f)
    }
}

fn check_id(id: u64) -> Result<()> {
    if id == NO_OWN_ID { Err(Error::argument("ids", id, format_args!("below {NO_OWN_ID}"))) } else { Ok(()) }
}

/// Checks that each id is there once, and may be.
fn check_ids(ids: &[u64]) -> Result<()> {
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    sorted.last().copied().map_or(Ok(()), check_id)?;
    match sorted.windows(2).find(|two| two[0] == two[1]) {
        Some(two) => Err(Error::argument("ids", format_args!("{} twice", two[0]), "each id once")),
        None => Ok(()),
    }
}

impl Writer {
    /// The index of a folder, from its files.
    fn open(store: Store) -> Result<Self> {
        let path = store.journal();
        let (journal, state, records) = Journal::open(&path)?;
        let fault = |error: Error| damaged(&path, error, "a state");
        let strategy: Strategy = state.kind.parse().map_err(fault)?;
        let builder = Builder::new(strategy).set_all(&state.parameters).map_err(fault)?;
        let element: ElementType = state.element.parse().map_err(fault)?;
        let kind = RowKind { dim: state.dim, element, metric: builder.descent.metric };
        kind.metric.check(element).map_err(fault)?;
        kind.copied(0, []).map_err(fault)?;
        store.clean(&state);
        let mut writer = Self {
            store,
            journal,
            state,
            progress: Progress::silent(),
            builder,
            version: Version::empty(kind),
            rows: HashMap::new(),
            changes: 0,
        };
        if let Some(number) = writer.state.index {
            let Self { store, state, .. } = &writer;
            let index = store.open_index(number, &writer.progress)?;
            let stored = store.stored(state.rows_file, state.rows, kind)?;
            if crc32fast::hash(bytemuck::cast_slice(&stored.ids)) != state.ids_crc {
                return Err(damaged(
                    &store.path().join(format!("ids-{}", state.rows_file)),
                    "other ids",
                    "ids",
                ));
            }
            writer.version.graph = Some(Graph::new(index, stored)?);
            writer.number_rows(0);
        }
        for change in records.changes(kind.row_bytes()) {
            match change? {
                Change::Insert { ids, rows } => {
                    let rows = kind.copied(ids.len(), [rows])?;
                    let version = writer.with(Block::new(rows, ids.clone(), kind.metric)?)?;
                    writer.apply_insertion(version, &ids)?;
                }
                Change::Remove { ids } => writer.apply_removal(&ids).map(drop)?,
            }
        }
        Ok(writer)
    }

    /// Notes the rows of the graph from `first` on by their ids.
    fn number_rows(&mut self, first: usize) {
        let Some(graph) = &self.version.graph else { return };
        for (row, &id) in graph.ids.iter().enumerate().skip(first) {
            if !graph.searcher.index().is_left_out(row as u32) {
                self.rows.insert(id, row as u32);
            }
        }
    }

    /// Whether so much has changed that the graph should follow.
    fn is_due(&self) -> bool {
        let [least, most] = CHANGES;
        self.changes >= ((self.version.len() as f64 * CHANGED) as usize).clamp(least, most)
    }

    fn insert(&mut self, ids: &[u64], rows: &Vectors) -> Result<()> {
        if ids.len() != rows.len() {
            let expected = format_args!("{}, one per row", rows.len());
            return Err(Error::mismatch("ids", format_args!("{} ids", ids.len()), expected));
        }
        check_ids(ids)?;
        self.version.check_rows(rows)?;
        if self.version.rows() + ids.len() > MAX_ROWS {
            return Err(Error::argument(
                "rows",
                self.version.rows() + ids.len(),
                format_args!("at most {MAX_ROWS}"),
            ));
        }
        if ids.is_empty() {
            return Ok(());
        }
        rows.on_host()?;
        let kind = self.version.kind;
        // What can fail comes before anything is written.
        let block = Block::new(kind.copied(ids.len(), bytes_of(rows))?, ids.to_vec(), kind.metric)?;
        let version = self.with(block)?;
        self.append(&insertion(ids, rows)?)?;
        self.apply_insertion(version, ids)
    }

    /// The version with more recent rows.
    fn with(&self, block: Block) -> Result<Version> {
        let mut version = self.version.clone();
        version.push(block)?;
        Ok(version)
    }

    fn remove(&mut self, ids: &[u64]) -> Result<usize> {
        let mut known: Vec<u64> = ids.iter().copied().filter(|id| self.rows.contains_key(id)).collect();
        known.sort_unstable();
        known.dedup();
        if known.is_empty() {
            return Ok(0);
        }
        self.append(&removal(&known)?)?;
        self.apply_removal(&known)
    }

    /// Appends a record to the journal.
    fn append(&mut self, content: &[u8]) -> Result<()> {
        if !self.journal.is_current() {
            let expected = "the journal that was opened: open the index again";
            return Err(Error::file(&self.store.journal(), "another file", expected));
        }
        self.journal.append(content)
    }

    /// Goes on with `version`, which has rows of these ids at its end, without older rows of them.
    fn apply_insertion(&mut self, version: Version, ids: &[u64]) -> Result<()> {
        let first = self.version.rows() as u32;
        self.version = version;
        for (id, row) in ids.iter().zip(first..) {
            if let Some(old) = self.rows.insert(*id, row) {
                self.version.remove(old)?;
            }
        }
        self.changes += ids.len();
        Ok(())
    }

    /// Removes the rows of those of `ids` that have one, and returns how many.
    fn apply_removal(&mut self, ids: &[u64]) -> Result<usize> {
        let mut removed = 0;
        for id in ids {
            if let Some(row) = self.rows.remove(id) {
                self.version.remove(row)?;
                removed += 1;
            }
        }
        self.changes += removed;
        Ok(removed)
    }

    /// [`LiveIndex::consolidate`].
    fn consolidate(&mut self) -> Result<bool> {
        if self.changes == 0 {
            return Ok(false);
        }
        let Self { store, state, version, .. } = &*self;
        let (kind, live) = (version.kind, version.len());
        if live == 0 {
            let state =
                State { index: None, rows_file: state.rows_file + 1, rows: 0, ids_crc: 0, ..state.clone() };
            self.begin(state, None)?;
            self.rows.clear();
            return Ok(true);
        }
        let recent = version.live_recent_rows();
        let of_graph = version.live_graph_rows();
        let (known, gone) = (version.graph_rows(), version.graph_rows() - of_graph.len());
        // Then an update would be a build, or nearly.
        let is_anew = of_graph.is_empty() || gone > live / 2;
        let number = state.rows_file + u64::from(is_anew);
        let rows = match is_anew {
            true => {
                store.append(number, 0, kind.row_bytes(), version.rows_of_graph(of_graph).chain(recent))?
            }
            false => store.append(number, known, kind.row_bytes(), recent)?,
        };
        let stored = store.stored(number, rows, kind)?;
        let builder = self.builder.clone().progress(self.progress.clone());
        let index = match &version.graph {
            Some(graph) if !is_anew => {
                let update = IndexUpdate::with(graph.searcher.index(), builder);
                update.remove(IdSet::clone(&graph.removed)).run(&stored.rows)?.0
            }
            _ => builder.up_to(rows).build(&stored.rows)?,
        };
        self.install(number, index, stored, if is_anew { 0 } else { known })?;
        Ok(true)
    }

    /// Makes `index` the graph, over the rows of the files `number`. Those before `known` have
    /// their numbers from before.
    fn install(&mut self, number: u64, index: Index, stored: StoredRows, known: usize) -> Result<()> {
        let next = self.state.index.map_or(0, |number| number + 1);
        self.store.save_index(next, &index)?;
        let rows = stored.ids.len();
        let ids_crc = crc32fast::hash(bytemuck::cast_slice(&stored.ids));
        let state = State { index: Some(next), rows_file: number, rows, ids_crc, ..self.state.clone() };
        self.begin(state, Some(Graph::new(index, stored)?))?;
        self.number_rows(known);
        Ok(())
    }

    /// Begins a journal of `state`, with this graph and no recent rows.
    fn begin(&mut self, state: State, graph: Option<Graph>) -> Result<()> {
        self.journal = Journal::create(&self.store.journal(), &state, self.journal.is_synced)?;
        self.store.clean(&state);
        self.version = Version { graph, ..Version::empty(self.version.kind) };
        (self.state, self.changes) = (state, 0);
        Ok(())
    }

    /// Takes over a finished index of `base`, whose rows have these ids.
    fn adopt(&mut self, index: &Index, base: &Vectors, ids: &[u64]) -> Result<()> {
        let kind = self.version.kind;
        let rows = self.store.append(0, 0, kind.row_bytes(), ids.iter().copied().zip(bytes_of(base)))?;
        let stored = self.store.stored(0, rows, kind)?;
        self.install(0, index.clone(), stored, 0)
    }
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
