//! How far a build has come, as it is on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tagore_device::key::Key;

use super::ClusterGraph;
use super::log::{Log, Piece};
use super::work::save;
use crate::parallel::no_thread;
use crate::{Progress, Result};

/// Pairs of clusters, and where the lists of the first are.
type Waiting = BTreeMap<(u32, u32), Option<Piece>>;

/// The central node, as long as no cluster has come.
const NO_CENTRE: (u64, u32) = (f64::INFINITY.to_bits(), u32::MAX);

/// Lists that have been merged, and that wait. A node is in two clusters, so that what is known of a pair of clusters is
/// known of every node that they share.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(super) struct Checkpoint {
    /// Of each cluster whose lists have come, a node that its index is entered at.
    pub entries: Vec<Option<u32>>,
    /// The bits of the least squared distance of a node to the mean of all, and the node.
    pub central: (u64, u32),
    /// Pairs of clusters whose lists have been merged, the smaller number first.
    pub merged: BTreeSet<(u32, u32)>,
    /// The cluster whose lists wait, the one that they wait for, and where they are; none if they were in memory.
    #[serde(with = "pairs")]
    pub waiting: Waiting,
    /// Finished rows, by ranges of ids.
    pub rows: Vec<Vec<Piece>>,
    /// Bytes of the files of lists and of rows.
    pub bytes: (u64, u64),
    /// Second visits so far, and hits.
    pub found: (u64, u64),
    /// One number for the checksums of the base.
    pub base: u32,
}

/// Sizes that a checkpoint must fit.
#[derive(Clone, Copy)]
pub(super) struct Shape<'a> {
    pub graph: &'a ClusterGraph,
    pub nodes: usize,
    pub degree: usize,
    /// Ranges of ids that finished rows are sorted into.
    pub row_bins: usize,
}

impl Shape<'_> {
    /// Bytes of a finished row: an id, and as many ids as the degree allows.
    fn row_bytes(self) -> usize {
        4 + 4 * self.degree
    }

    /// Bytes of a list that waits: a key for each neighbour.
    fn list_bytes(self) -> usize {
        size_of::<Key>() * self.degree
    }

    /// The nodes that two clusters share; none for numbers that no two clusters have.
    fn shared(self, (a, b): (u32, u32)) -> Option<u64> {
        let known = (a.max(b) as usize) < self.graph.clusters();
        Some(if known { self.graph.shared(a, b) } else { 0 }).filter(|&nodes| nodes > 0)
    }
}

impl Checkpoint {
    /// Of no cluster.
    pub(super) fn new(clusters: usize, row_bins: usize, base: u32) -> Self {
        Self {
            entries: vec![None; clusters],
            central: NO_CENTRE,
            rows: vec![Vec::new(); row_bins],
            base,
            ..Self::default()
        }
    }

    /// Whether it can be a checkpoint of such a build: all numbers are within their ranges and fit one another.
    pub(super) fn is_sound(&self, shape: Shape<'_>) -> bool {
        let is_node = |node: u32| (node as usize) < shape.nodes;
        let Self { entries, central, merged, waiting, rows, bytes, .. } = self;
        let is_list = |(&pair, piece): (&(u32, u32), &Option<Piece>)| {
            let bytes_of = |nodes: u64| nodes * shape.list_bytes() as u64;
            let fits = |piece: &Piece| {
                piece.is_sound(bytes.0, shape.list_bytes())
                    && shape.shared(pair).map(bytes_of) == Some(piece.bytes())
            };
            shape.shared(pair).is_some() && piece.as_ref().is_none_or(fits)
        };
        // No more than there are nodes, if all are known.
        let finished = merged.iter().map(|&pair| shape.shared(pair).filter(|_| pair.0 < pair.1));
        let finished = finished.sum::<Option<u64>>().map(|nodes| nodes * shape.row_bytes() as u64);
        let rows_sound = rows.iter().flatten().all(|piece| piece.is_sound(bytes.1, shape.row_bytes()));
        let written = rows.iter().flatten().try_fold(0u64, |bytes, piece| bytes.checked_add(piece.bytes()));
        entries.len() == shape.graph.clusters()
            && entries.iter().flatten().all(|&node| is_node(node))
            && (is_node(central.1) || *central == NO_CENTRE && entries.iter().all(Option::is_none))
            && waiting.iter().all(is_list)
            && rows.len() == shape.row_bins
            && rows_sound
            && finished.is_some()
            && finished == written
    }

    /// Forgets the lists that were in memory, and those of `lost`.
    pub(super) fn forget(&mut self, lost: &BTreeSet<(u32, u32)>) {
        self.waiting.retain(|pair, piece| piece.is_some() && !lost.contains(pair));
    }

    /// The pairs whose lists in `log`, which wait, are not what was written.
    pub(super) fn damaged(&self, log: &Log, progress: &Progress) -> Result<BTreeSet<(u32, u32)>> {
        let mut reader = log.reader()?;
        let mut damaged = BTreeSet::new();
        for (&pair, piece) in &self.waiting {
            progress.check()?;
            if let Some(piece) = *piece
                && (!piece.is_sound(log.bytes(), 1) || reader.read(piece)?.is_none())
            {
                damaged.insert(pair);
            }
        }
        Ok(damaged)
    }

    /// Whether `cluster` need not be built: its lists have come, and none of them is lost.
    pub(super) fn is_built(&self, graph: &ClusterGraph, cluster: u32) -> bool {
        let waits = |a: u32, b: u32| self.waiting.contains_key(&(a, b));
        let is_there = |&(other, _): &(u32, u64)| {
            let pair = (cluster.min(other), cluster.max(other));
            self.merged.contains(&pair) || waits(cluster, other) || waits(other, cluster)
        };
        self.entries[cluster as usize].is_some() && graph.neighbours(cluster).iter().all(is_there)
    }
}

/// A map of pairs as JSON, whose objects have only names as keys: as a list.
mod pairs {
    use super::*;

    pub(super) fn serialize<S: Serializer>(map: &Waiting, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Waiting, D::Error> {
        Ok(Vec::deserialize(deserializer)?.into_iter().collect())
    }
}

/// Saves checkpoints from time to time, on a thread of its own: what is appended to files meanwhile is cut off when the
/// build is resumed.
pub(super) struct Checkpoints {
    path: PathBuf,
    every: Duration,
    last: Instant,
    running: Option<JoinHandle<Result<()>>>,
}

impl Checkpoints {
    pub(super) fn new(path: PathBuf, every: Duration) -> Self {
        Self { path, every, last: Instant::now(), running: None }
    }

    /// Whether it is time for the next, and the last has been saved.
    pub(super) fn is_due(&self) -> bool {
        self.last.elapsed() >= self.every && self.running.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Begins to save `checkpoint`, once `sync` has brought to the disk what it names.
    pub(super) fn save(
        &mut self,
        checkpoint: Checkpoint,
        sync: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.wait()?;
        self.last = Instant::now();
        let path = self.path.clone();
        let saving = std::thread::Builder::new().spawn(move || {
            sync()?;
            save(&path, &checkpoint)
        });
        self.running = Some(saving.map_err(no_thread)?);
        Ok(())
    }

    /// Waits for the one that is being saved.
    pub(super) fn wait(&mut self) -> Result<()> {
        match self.running.take() {
            Some(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            None => Ok(()),
        }
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        // What goes wrong with it then is of no use to a build that has failed already.
        let _ = self.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece() -> Option<Piece> {
        serde_json::from_str(r#"{"offset":0,"bytes":0,"crc":0}"#).unwrap()
    }

    #[test]
    fn what_was_in_memory_is_built_again() {
        // A square with a diagonal.
        let graph = ClusterGraph::new(4, [(0, 1, 5), (1, 2, 6), (2, 3, 7), (0, 3, 8), (0, 2, 9)]);
        let left = |state: &Checkpoint| -> Vec<u32> {
            (0..4).filter(|&cluster| !state.is_built(&graph, cluster)).collect()
        };
        let mut state = Checkpoint::new(4, 8, 0);
        assert_eq!(left(&state), [0, 1, 2, 3]);
        // Clusters 0 and 1 have come: what they share is merged; the rest of 0 is on disk but for what 3 waits for.
        state.entries = vec![Some(1), Some(2), None, None];
        state.merged = [(0, 1)].into();
        state.waiting = BTreeMap::from([((0, 2), piece()), ((0, 3), None), ((1, 2), piece())]);
        state.forget(&[].into());
        assert_eq!(left(&state), [0, 2, 3]);
        // If a list on disk is lost, its cluster is built again too.
        state.forget(&[(1, 2)].into());
        assert_eq!(left(&state), [0, 1, 2, 3]);
        state.merged = [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)].into();
        state.entries = vec![Some(0); 4];
        assert!(left(&state).is_empty());
    }

    #[test]
    fn one_is_saved_at_a_time_and_only_once_files_are_on_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let mut checkpoints = Checkpoints::new(path.clone(), Duration::ZERO);
        assert!(checkpoints.is_due());
        let (go, wait) = std::sync::mpsc::channel::<()>();
        let missing = path.clone();
        let sync = move || {
            wait.recv().unwrap();
            assert!(!missing.exists());
            Ok(())
        };
        checkpoints.save(Checkpoint::new(1, 1, 0), sync).unwrap();
        assert!(!checkpoints.is_due());
        go.send(()).unwrap();
        checkpoints.wait().unwrap();
        assert!(path.exists());
        checkpoints.save(Checkpoint::new(1, 1, 0), || Err(crate::Error::Cancelled)).unwrap();
        assert!(matches!(checkpoints.wait(), Err(crate::Error::Cancelled)));
    }

    #[test]
    fn numbers_that_do_not_fit_are_told() {
        let graph = ClusterGraph::new(3, [(0, 1, 5), (1, 2, 6)]);
        let shape = Shape { graph: &graph, nodes: 11, degree: 2, row_bins: 2 };
        let json = |text: &str| serde_json::from_str::<Piece>(text).unwrap();
        let (row, list) = (shape.row_bytes(), shape.list_bytes());
        let piece =
            |offset: u64, bytes: usize| json(&format!(r#"{{"offset":{offset},"bytes":{bytes},"crc":0}}"#));
        // Clusters 0 and 1 have come, so that what they share is merged; the rest of 1 waits for 2.
        let mut sound = Checkpoint::new(3, 2, 0);
        assert!(sound.is_sound(shape));
        sound.entries = vec![Some(10), Some(2), None];
        sound.central = (0.5f64.to_bits(), 7);
        sound.merged = [(0, 1)].into();
        sound.waiting = [((1, 2), Some(piece(8, 6 * list)))].into();
        sound.rows = vec![vec![piece(0, 3 * row)], vec![piece(3 * row as u64, 2 * row)]];
        sound.bytes = (8 + 6 * list as u64, 5 * row as u64);
        assert!(sound.is_sound(shape));
        type Change = fn(&mut Checkpoint);
        let changes: [Change; 17] = [
            |state| state.entries[0] = Some(11),
            |state| state.entries.push(None),
            |state| state.central.1 = u32::MAX,
            |state| state.central = NO_CENTRE,
            |state| state.merged = [(1, 0)].into(),
            |state| state.merged = [(0, 2)].into(),
            |state| state.merged = [(0, 3)].into(),
            |state| state.merged = [].into(),
            |state| state.waiting = [((0, 1), state.waiting[&(1, 2)])].into(),
            |state| state.waiting = [((u32::MAX, 1), None)].into(),
            |state| state.waiting = [((0, 2), None)].into(),
            |state| state.bytes.0 -= 1,
            |state| state.bytes.1 -= 1,
            |state| state.rows.truncate(1),
            |state| state.rows.push(Vec::new()),
            |state| state.rows[0].clear(),
            |state| state.rows.iter_mut().for_each(|pieces| *pieces = pieces.repeat(2)),
        ];
        for (number, change) in changes.into_iter().enumerate() {
            let mut changed = sound.clone();
            change(&mut changed);
            assert!(!changed.is_sound(shape), "change {number}");
        }
        for (offset, bytes) in [(0, usize::MAX / row * row), (u64::MAX, 3 * row), (0, 3 * row - 1)] {
            let mut changed = sound.clone();
            changed.rows[0] = vec![piece(offset, bytes)];
            assert!(!changed.is_sound(shape), "{offset}, {bytes}");
        }
    }
}
