//! Changes of a live index: each goes to the journal, then to the next version.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::block::Block;
use super::consolidation::{Consolidated, Consolidation};
use super::journal::{Change, Extent, Journal, State, insertion, removal};
use super::store::{Store, damaged};
use super::version::{Graph, NO_OWN_ID, RowKind, Version, bytes_of};
use crate::{Builder, Device, ElementType, Error, Index, MAX_ROWS, Progress, Result, Strategy, Vectors};

/// Changes after which they go into the graph: as a share of the rows, and at least and at most.
const CHANGED: (f64, [usize; 2]) = (0.01, [1024, 8192]);

/// The same where a GPU searches: it compares recent rows sooner, and is better used to make few
/// graphs of many.
const CHANGED_ON_GPU: (f64, [usize; 2]) = (1.0 / 16.0, [8192, 1 << 17]);

/// What changes a live index, one at a time.
pub(super) struct Writer {
    pub store: Arc<Store>,
    pub journal: Journal,
    pub state: State,
    pub builder: Builder,
    /// Where searches run.
    pub search_device: Device,
    /// Whether a change brings the graph up to date once that is due.
    pub is_automatic: bool,
    /// The next version to publish.
    pub version: Version,
    /// The row of each id.
    pub rows: HashMap<u64, u32>,
    /// Changes since the graph was made.
    changes: usize,
}

fn check_id(id: u64) -> Result<()> {
    if id == NO_OWN_ID { Err(Error::argument("ids", id, format_args!("below {NO_OWN_ID}"))) } else { Ok(()) }
}

/// Checks that no id is repeated or reserved.
pub(super) fn check_ids(ids: &[u64]) -> Result<()> {
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    sorted.last().copied().map_or(Ok(()), check_id)?;
    match sorted.windows(2).find(|two| two[0] == two[1]) {
        Some(two) => Err(Error::argument("ids", format_args!("{} twice", two[0]), "each id once")),
        None => Ok(()),
    }
}

impl Writer {
    /// An empty index in a new folder ([`LiveIndex::create`](super::LiveIndex::create)).
    pub(super) fn create(path: &Path, builder: Builder, dim: usize, element: ElementType) -> Result<Self> {
        builder.strategy.kind.parse::<Strategy>()?;
        builder.strategy.check()?;
        let kind = RowKind { dim, element, metric: builder.descent.metric };
        kind.check()?;
        let store = Store::open(path, true)?;
        let state = State {
            kind: builder.strategy.kind.clone(),
            parameters: builder.settings(),
            dim,
            element: element.to_string(),
            index: None,
            rows_file: 0,
            stored: Extent::default(),
        };
        let journal = Journal::create(&store.journal(), &state, &[], true)?;
        Ok(Self::new(store, journal, state, builder, kind))
    }

    fn new(store: Store, journal: Journal, state: State, builder: Builder, kind: RowKind) -> Self {
        // Rows come and go: a set of them fits no graph.
        let (builder, version) = (builder.among(None), Version::empty(kind));
        Self {
            store: Arc::new(store),
            journal,
            state,
            builder,
            search_device: Device::Cpu,
            is_automatic: true,
            version,
            rows: HashMap::new(),
            changes: 0,
        }
    }

    /// The index of a folder, from its files.
    pub(super) fn open(store: Store) -> Result<Self> {
        let path = store.journal();
        let (journal, state, records) = Journal::open(&path)?;
        let fault = |error: Error| damaged(&path, error, "a state");
        let strategy: Strategy = state.kind.parse().map_err(fault)?;
        let builder = Builder::new(strategy).set_all(&state.parameters).map_err(fault)?;
        let element: ElementType = state.element.parse().map_err(fault)?;
        let kind = RowKind { dim: state.dim, element, metric: builder.descent.metric };
        kind.check().map_err(fault)?;
        store.clean(&state);
        let mut writer = Self::new(store, journal, state, builder, kind);
        if let Some(number) = writer.state.index {
            let Self { store, state, .. } = &writer;
            let index = store.open_index(number, &Progress::silent())?;
            let stored = store.stored(state.rows_file, state.stored, kind)?;
            store.check(state.rows_file, state.stored, &stored)?;
            writer.version.graph = Some(Graph::new(index, stored, writer.search_device)?);
            writer.number_rows();
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

    /// Notes the rows of the graph by their ids.
    fn number_rows(&mut self) {
        let Some(graph) = &self.version.graph else { return };
        for (row, &id) in graph.ids.iter().enumerate() {
            if !graph.searcher.index().is_left_out(row as u32) {
                self.rows.insert(id, row as u32);
            }
        }
    }

    /// Whether so much has changed that the graph should follow, `times` over.
    pub(super) fn is_due(&self, times: usize) -> bool {
        let is_on_gpu =
            self.version.graph.as_ref().is_some_and(|graph| graph.searcher.engine().gpus().is_some());
        let (share, [least, most]) = if is_on_gpu { CHANGED_ON_GPU } else { CHANGED };
        let due = ((self.version.len() as f64 * share) as usize).clamp(least, most);
        self.is_automatic && self.changes >= times * due
    }

    pub(super) fn insert(&mut self, ids: &[u64], rows: &Vectors) -> Result<()> {
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

    pub(super) fn remove(&mut self, ids: &[u64]) -> Result<usize> {
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

    /// What a consolidation begins with; none if nothing has changed.
    pub(super) fn consolidation(&self) -> Option<Consolidation> {
        (self.changes > 0).then(|| Consolidation {
            store: Arc::clone(&self.store),
            state: self.state.clone(),
            version: self.version.clone(),
            builder: self.builder.clone(),
            search_device: self.search_device,
        })
    }

    /// Goes on with a new graph: in a journal that names its files, and has the changes since it
    /// was begun.
    ///
    /// # Errors
    /// If the journal cannot be written, or the memory or the device of the searches fails. All is
    /// as before then.
    pub(super) fn install(&mut self, consolidated: Consolidated) -> Result<()> {
        let Consolidated { state, graph, search_device, known, version: before } = consolidated;
        let mut graph = match graph {
            Some(graph) if search_device != self.search_device => Some(graph.on(self.search_device)?),
            graph => graph,
        };
        let kind = self.version.kind;
        let (ids, rows): (Vec<u64>, Vec<&[u8]>) =
            self.version.live_recent_rows(before.removed.rows() as u32).unzip();
        let block = Block::new(kind.copied(ids.len(), rows)?, ids, kind.metric)?;
        let (there, gone) = match &graph {
            Some(graph) => self.since(graph, known, &before),
            None => Default::default(),
        };
        let mut removed = Vec::new();
        if let Some(graph) = &mut graph {
            let set = Arc::make_mut(&mut graph.removed);
            gone.iter().try_for_each(|&row| set.insert(row).map(drop))?;
            let ids = gone.iter().map(|&row| graph.ids[row as usize]);
            removed.extend(ids.filter(|id| !self.rows.contains_key(id)));
        }
        let mut changes = Vec::new();
        if !removed.is_empty() {
            changes.push(removal(&removed)?);
        }
        if !block.ids.is_empty() {
            changes.push(insertion(&block.ids, &block.rows)?);
        }
        let first = graph.as_ref().map_or(0, |graph| graph.ids.len()) as u32;
        let (renumbered, count) = (block.ids.clone(), removed.len() + block.ids.len());
        let mut version = Version { graph, ..Version::empty(kind) };
        if !renumbered.is_empty() {
            version.push(block)?;
        }
        self.journal = Journal::create(&self.store.journal(), &state, &changes, self.journal.is_synced)?;
        self.store.clean(&state);
        self.rows.extend(there);
        self.rows.extend(renumbered.into_iter().zip(first..));
        (self.version, self.state, self.changes) = (version, state, count);
        Ok(())
    }

    /// What becomes of the rows of a new `graph`, made of the version `before`. First the rows that
    /// are still there, with their ids: only those from `known` on, since earlier rows keep their
    /// numbers. Then the rows that have been removed or replaced since.
    fn since(&self, graph: &Graph, known: usize, before: &Version) -> (Vec<(u64, u32)>, Vec<u32>) {
        let (begin, index) = (before.rows() as u32, graph.searcher.index());
        let is_old = |id: &u64| self.rows.get(id).is_some_and(|&row| row < begin);
        let numbered = (0..).zip(&graph.ids[..]).skip(known).filter(|&(row, _)| !index.is_left_out(row));
        let (there, gone): (Vec<_>, Vec<_>) =
            numbered.map(|(row, &id)| (id, row)).partition(|(id, _)| is_old(id));
        let mut gone: Vec<u32> = gone.into_iter().map(|(_, row)| row).collect();
        if let (Some(now), Some(before)) = (&self.version.graph, &before.graph)
            && known > 0
        {
            gone.extend(now.removed.iter().filter(|&row| !before.removed.contains(row)));
        }
        (there, gone)
    }

    /// Takes over a finished index of `base`, whose rows have these ids.
    pub(super) fn adopt(&mut self, index: &Index, base: &Vectors, ids: &[u64]) -> Result<()> {
        let kind = self.version.kind;
        let rows = ids.iter().copied().zip(bytes_of(base));
        let extent = self.store.append(0, Extent::default(), kind.row_bytes(), rows)?;
        self.store.save_index(0, index)?;
        let stored = self.store.stored(0, extent, kind)?;
        let graph = Graph::new(index.clone(), stored, self.search_device)?;
        let state = State { index: Some(0), stored: extent, ..self.state.clone() };
        self.journal = Journal::create(&self.store.journal(), &state, &[], self.journal.is_synced)?;
        self.version.graph = Some(graph);
        self.state = state;
        self.number_rows();
        Ok(())
    }
}
