//! Live indexes: rows come, go and change while searches run, and nothing acknowledged is lost.

mod block;
mod consolidation;
mod journal;
mod snapshot;
mod store;
mod version;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, TryLockError};

pub use snapshot::{LiveNeighbor, LiveResult, Snapshot};
use store::Store;
use version::Version;
use writer::{Writer, check_ids};

use crate::parallel::locked;
use crate::{Builder, Device, ElementType, Ids, Index, Progress, Result, Vectors};

/// An index in a folder, whose rows come, go and change while searches run.
///
/// Rows have the caller's ids, any `u64` but the largest. A change that has returned is on disk:
/// after a crash, [`open`](Self::open) finds the index as the last change left it. Changes take
/// turns; searches never wait for them. A search sees the index as it was when it began
/// ([`snapshot`](Self::snapshot)).
///
/// A graph holds nearly all rows. Searches compare recent ones one by one, and skip removed ones.
/// From time to time a change also brings the graph up to date
/// ([`consolidate`](Self::consolidate)), and then takes as long as an
/// [`IndexUpdate`](crate::IndexUpdate): after as many changes as a hundredth of the rows, but 1,024
/// at least and 8,192 at most; where a GPU searches, after a sixteenth, 8,192 at least and 131,072
/// at most. Other threads change rows meanwhile. A service that wants no change to take so long
/// calls `consolidate` in a thread of its own ([`set_automatic`](Self::set_automatic)). Once more
/// than half as many rows are gone as are there, graph and files are made anew.
///
/// ```
/// use tagore::{Builder, ElementType, LiveIndex, Progress, Search, Strategy, Synth};
/// # let folder = tempfile::tempdir()?;
/// # let folder = folder.path().join("products");
/// let index = LiveIndex::create(&folder, Builder::new(Strategy::nsg()), 16, ElementType::F32)?;
/// let rows = Synth::new(1000, 16, 1)?.base();
/// let ids: Vec<u64> = (0..1000).map(|row| 7_000_000_000 + row).collect();
/// index.insert(&ids, &rows, &Progress::silent())?;
/// index.remove(&ids[..3], &Progress::silent())?;
/// let found = index.snapshot().search_one(&rows.row_to_f32(5)?, Search::new(3))?;
/// assert_eq!((index.len(), found[0].id), (997, 7_000_000_005));
/// drop(index);
/// assert_eq!(LiveIndex::open(&folder)?.len(), 997);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LiveIndex {
    writer: Mutex<Writer>,
    /// Held while the graph is brought up to date. Taken before the writer.
    consolidating: Mutex<()>,
    /// Locked for as long as a pointer is copied.
    current: RwLock<Arc<Version>>,
}

impl LiveIndex {
    /// Makes an empty index in a new or empty folder: of the kind, metric and parameters of
    /// `builder`, for rows of `dim` components of a type. The device of the builder makes the
    /// graphs; a set of rows of the builder does not count.
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
        Writer::create(folder.as_ref(), builder, dim, element).map(Self::of_writer)
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
        let builder = Builder::like(index)?;
        let mut writer = Writer::create(folder.as_ref(), builder, base.dim(), base.element_type())?;
        match writer.adopt(index, base, ids.as_slice()) {
            Ok(()) => Ok(Self::of_writer(writer)),
            Err(error) => {
                writer.store.remove();
                Err(error)
            }
        }
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
        Self { writer: Mutex::new(writer), consolidating: Mutex::new(()), current }
    }

    /// Sets the device that makes the graphs; [`Device::Auto`] unless set.
    pub fn set_device(&self, device: Device) {
        let mut writer = self.writer();
        writer.builder = writer.builder.clone().device(device);
    }

    /// Sets the device that searches; [`Device::Cpu`] unless set. Every new graph is copied to a
    /// GPU, with its rows. Batches of queries are compared with recent rows there too, if these are
    /// many. Snapshots stay where they are.
    ///
    /// # Errors
    /// If the device is missing or lacks memory.
    pub fn set_search_device(&self, device: Device) -> Result<()> {
        let mut writer = self.writer();
        if let Some(graph) = writer.version.graph.clone() {
            writer.version.graph = Some(graph.on(device)?);
        }
        writer.search_device = device;
        self.publish(&writer);
        Ok(())
    }

    /// Sets whether changes bring the graph up to date by themselves; true unless set. If not,
    /// someone else calls [`consolidate`](Self::consolidate) now and then: recent rows take each
    /// search a comparison.
    pub fn set_automatic(&self, is_automatic: bool) {
        self.writer().is_automatic = is_automatic;
    }

    /// Sets whether a change waits until it is on disk; true unless set. Else a crash of the system
    /// may lose the last changes, but not that of the process.
    pub fn set_synced(&self, is_synced: bool) {
        self.writer().journal.is_synced = is_synced;
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        // A change that panicked has published nothing.
        locked(&self.writer)
    }

    fn publish(&self, writer: &Writer) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(writer.version.clone());
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
    /// replaces it. `progress` watches and cancels the work on the graph: before the change, which
    /// fails then, or after it, which stands then.
    ///
    /// # Errors
    /// If the rows do not fit the index, an id is repeated, the disk or the memory is full, or the
    /// graph cannot be brought up to date. Nothing is inserted then.
    pub fn insert(&self, ids: &[u64], rows: &Vectors, progress: &Progress) -> Result<()> {
        self.change(progress, |writer| writer.insert(ids, rows))
    }

    /// Removes the rows of `ids`, and returns how many there were. Ids without a row are no error.
    /// For `progress` see [`insert`](Self::insert).
    ///
    /// # Errors
    /// If the disk or the memory is full, or the graph cannot be brought up to date. Nothing is
    /// removed then.
    pub fn remove(&self, ids: &[u64], progress: &Progress) -> Result<usize> {
        self.change(progress, |writer| writer.remove(ids))
    }

    /// Brings the graph up to date with the rows as they are now, and returns whether there was
    /// anything to do. Rows come and go meanwhile: these changes wait for the next time. One thread
    /// does this at a time, others wait.
    ///
    /// # Errors
    /// As [`IndexUpdate::run`](crate::IndexUpdate::run), or if the files cannot be written. The
    /// index is as before then.
    pub fn consolidate(&self, progress: &Progress) -> Result<bool> {
        self.consolidate_in(locked(&self.consolidating), progress)
    }

    /// The right to bring the graph up to date, if no other thread has it.
    fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        match self.consolidating.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(turn)) => Some(turn.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn consolidate_in(&self, _turn: MutexGuard<'_, ()>, progress: &Progress) -> Result<bool> {
        let Some(consolidation) = self.writer().consolidation() else { return Ok(false) };
        let consolidated = consolidation.run(progress)?;
        let mut writer = self.writer();
        writer.install(consolidated)?;
        self.publish(&writer);
        Ok(true)
    }

    /// Makes a change, and brings the graph up to date before or after it if that is due and no
    /// other thread does so. With twice as many changes as are due, a change waits for the graph.
    fn change<R>(&self, progress: &Progress, change: impl FnOnce(&mut Writer) -> Result<R>) -> Result<R> {
        let is_due = |times| self.writer().is_due(times);
        let turn = if is_due(2) { Some(locked(&self.consolidating)) } else { self.turn() };
        if let Some(turn) = turn.filter(|_| is_due(1)) {
            self.consolidate_in(turn, progress)?;
        }
        let mut writer = self.writer();
        let result = change(&mut writer)?;
        self.publish(&writer);
        drop(writer);
        // The change is acknowledged whatever comes of this: the next one will tell.
        if let Some(turn) = self.turn().filter(|_| is_due(1)) {
            let _ = self.consolidate_in(turn, progress);
        }
        Ok(result)
    }
}

impl std::fmt::Debug for LiveIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.snapshot().fmt(f)
    }
}
