//! Changes of a live index: each goes to the journal, then to the next version.

use std::collections::HashMap;
use std::path::Path;

use super::journal::{Change, Extent, Journal, State, insertion, removal};
use super::store::{Store, StoredRows, damaged};
use super::version::{Block, Graph, NO_OWN_ID, RowKind, Version, bytes_of};
use crate::{
    Builder, ElementType, Error, IdSet, Index, IndexUpdate, MAX_ROWS, Progress, Result, Strategy, Vectors,
};

/// Changes, as a share of the rows, after which they go into the graph.
const CHANGED: f64 = 0.01;

/// The least and the largest number of changes for that.
const CHANGES: [usize; 2] = [1024, 8192];

/// What changes a live index, one at a time.
pub(super) struct Writer {
    pub store: Store,
    pub journal: Journal,
    pub state: State,
    pub builder: Builder,
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
        let journal = Journal::create(&store.journal(), &state, true)?;
        Ok(Self::new(store, journal, state, builder, kind))
    }

    fn new(store: Store, journal: Journal, state: State, builder: Builder, kind: RowKind) -> Self {
        // Rows come and go: a set of them fits no graph.
        let (builder, version) = (builder.among(None), Version::empty(kind));
        Self { store, journal, state, builder, version, rows: HashMap::new(), changes: 0 }
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
    pub(super) fn is_due(&self) -> bool {
        let [least, most] = CHANGES;
        self.changes >= ((self.version.len() as f64 * CHANGED) as usize).clamp(least, most)
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

    /// [`LiveIndex::consolidate`](super::LiveIndex::consolidate).
    pub(super) fn consolidate(&mut self, progress: &Progress) -> Result<bool> {
        if self.changes == 0 {
            return Ok(false);
        }
        let Self { store, state, version, .. } = &*self;
        let (kind, live) = (version.kind, version.len());
        if live == 0 {
            let (rows_file, stored) = (state.rows_file + 1, Extent::default());
            let state = State { index: None, rows_file, stored, ..state.clone() };
            self.begin(state, None)?;
            self.rows.clear();
            return Ok(true);
        }
        let recent = version.live_recent_rows();
        let of_graph = version.live_graph_rows();
        let gone = version.graph_rows() - of_graph.len();
        // Then an update would be a build, or nearly.
        let is_anew = of_graph.is_empty() || gone > live / 2;
        let number = state.rows_file + u64::from(is_anew);
        let known = if is_anew { Extent::default() } else { state.stored };
        let extent = match is_anew {
            true => store.append(
                number,
                known,
                kind.row_bytes(),
                version.rows_of_graph(of_graph).chain(recent),
            )?,
            false => store.append(number, known, kind.row_bytes(), recent)?,
        };
        let stored = store.stored(number, extent, kind)?;
        let builder = self.builder.clone().progress(progress.clone());
        let index = match &version.graph {
            Some(graph) if !is_anew => {
                let update = IndexUpdate::with(graph.searcher.index(), builder);
                update.remove(IdSet::clone(&graph.removed)).run(&stored.rows)?.0
            }
            _ => builder.up_to(extent.rows).build(&stored.rows)?,
        };
        let state = State { rows_file: number, stored: extent, ..state.clone() };
        self.install(state, index, stored, known.rows)?;
        Ok(true)
    }

    /// Makes `index` the graph of the stored rows, of which `state` tells the files. Rows before
    /// `known` have their numbers from before.
    fn install(&mut self, state: State, index: Index, stored: StoredRows, known: usize) -> Result<()> {
        let next = state.index.map_or(0, |number| number + 1);
        self.store.save_index(next, &index)?;
        let graph = Graph::new(index, stored)?;
        self.begin(State { index: Some(next), ..state }, Some(graph))?;
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
    pub(super) fn adopt(&mut self, index: &Index, base: &Vectors, ids: &[u64]) -> Result<()> {
        let kind = self.version.kind;
        let rows = ids.iter().copied().zip(bytes_of(base));
        let extent = self.store.append(0, Extent::default(), kind.row_bytes(), rows)?;
        let stored = self.store.stored(0, extent, kind)?;
        self.install(State { stored: extent, ..self.state.clone() }, index.clone(), stored, 0)
    }
}
