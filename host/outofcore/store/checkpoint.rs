//! Checkpoints: the progress of a build, on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tagore_device::key::NO_ID;

use super::sealed::save;
use super::{CHECKPOINT, Log, Pair, Piece};
use crate::outofcore::plan::{ClusterGraph, list_bytes, row_bytes};
use crate::parallel::{new_thread, no_thread};
use crate::{Progress, Result};

/// Waiting parcels: the cluster of the lists, the cluster built later, and the place on disk.
type Waiting = BTreeMap<Pair, Option<Piece>>;

/// The node nearest to the mean of the base.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CentralNode {
    /// Bits of its squared distance to the mean: JSON keeps them exactly.
    distance: u64,
    pub node: u32,
}

impl CentralNode {
    /// Farther than any node.
    pub(crate) const NONE: Self = Self { distance: f64::INFINITY.to_bits(), node: NO_ID };

    /// `node` at a squared distance of `distance` from the mean.
    pub(crate) fn new(distance: f64, node: u32) -> Self {
        Self { distance: distance.to_bits(), node }
    }

    /// The nearer of two nodes; ties go to the smaller id.
    pub(crate) fn nearer(self, other: Self) -> Self {
        let [a, b] = [self, other].map(|central| f64::from_bits(central.distance));
        if a.total_cmp(&b).then(self.node.cmp(&other.node)).is_le() { self } else { other }
    }
}

impl Default for CentralNode {
    fn default() -> Self {
        Self::NONE
    }
}

/// The merged pairs of clusters, and the waiting parcels.
///
/// Each node is in two clusters, so the state of a pair is the state of all nodes that it shares.
#[derive(Clone, Default, Serialize, Deserialize)]
pub(crate) struct Checkpoint {
    /// The entry point of each built cluster.
    pub entries: Vec<Option<u32>>,
    pub central: CentralNode,
    /// Nodes far from all others of a built cluster.
    pub lone: BTreeSet<u32>,
    /// Merged pairs of clusters, the smaller number first.
    pub merged: BTreeSet<Pair>,
    /// Waiting parcels; without a piece if the parcel is only in memory.
    #[serde(with = "pairs")]
    pub waiting: Waiting,
    /// Finished rows by ranges of ids.
    pub rows: Vec<Vec<Piece>>,
    /// Bytes of the file of lists.
    pub list_bytes: u64,
    /// Bytes of the file of rows.
    pub row_bytes: u64,
    pub second_visits: u64,
    pub hits: u64,
    /// Digest of the checksums of the base.
    pub base: u32,
}

/// Sizes of a build, which its checkpoints must fit.
#[derive(Clone, Copy)]
pub(crate) struct CheckpointShape<'a> {
    pub graph: &'a ClusterGraph,
    pub nodes: usize,
    pub degree: usize,
    /// Ranges of ids of finished rows.
    pub row_bins: usize,
}

impl CheckpointShape<'_> {
    /// The number of nodes that a pair shares; `None` if no such clusters share nodes.
    fn shared(self, a: u32, b: u32) -> Option<u64> {
        let known = (a.max(b) as usize) < self.graph.clusters();
        Some(if known { self.graph.shared(a, b) } else { 0 }).filter(|&nodes| nodes > 0)
    }
}

impl Checkpoint {
    /// The state before the first cluster.
    pub(crate) fn new(clusters: usize, row_bins: usize, base: u32) -> Self {
        Self { entries: vec![None; clusters], rows: vec![Vec::new(); row_bins], base, ..Self::default() }
    }

    /// Whether all numbers are in range and fit one another and `shape`.
    pub(crate) fn is_sound(&self, shape: CheckpointShape<'_>) -> bool {
        let is_node = |node: u32| (node as usize) < shape.nodes;
        let Self { entries, central, lone, merged, waiting, rows, .. } = self;
        let is_list = |(&(a, b), piece): (&Pair, &Option<Piece>)| {
            let bytes_of = |nodes: u64| nodes * list_bytes(shape.degree) as u64;
            let fits = |piece: &Piece| {
                piece.is_sound(self.list_bytes, list_bytes(shape.degree))
                    && shape.shared(a, b).map(bytes_of) == Some(piece.bytes())
            };
            shape.shared(a, b).is_some() && piece.as_ref().is_none_or(fits)
        };
        // The sum is at most the number of nodes if all pairs are known, so nothing overflows.
        let finished = merged.iter().map(|&(a, b)| shape.shared(a, b).filter(|_| a < b));
        let finished = finished.sum::<Option<u64>>().map(|nodes| nodes * row_bytes(shape.degree) as u64);
        let rows_sound =
            rows.iter().flatten().all(|piece| piece.is_sound(self.row_bytes, row_bytes(shape.degree)));
        let written = rows.iter().flatten().try_fold(0u64, |bytes, piece| bytes.checked_add(piece.bytes()));
        entries.len() == shape.graph.clusters()
            && entries.iter().flatten().chain(lone).all(|&node| is_node(node))
            && (is_node(central.node) || *central == CentralNode::NONE && entries.iter().all(Option::is_none))
            && waiting.iter().all(is_list)
            && rows.len() == shape.row_bins
            && rows_sound
            && finished.is_some()
            && finished == written
    }

    /// Removes the waiting parcels that were only in memory, and the parcels of `lost`.
    pub(crate) fn forget(&mut self, lost: &BTreeSet<Pair>) {
        self.waiting.retain(|pair, piece| piece.is_some() && !lost.contains(pair));
    }

    /// The pairs whose waiting parcels in `log` are damaged.
    pub(crate) fn damaged(&self, log: &Log, progress: &Progress) -> Result<BTreeSet<Pair>> {
        let mut reader = log.reader()?;
        let mut damaged = BTreeSet::new();
        for (&pair, piece) in &self.waiting {
            progress.check()?;
            if let Some(piece) = *piece
                && (!piece.is_sound(log.bytes(), 1) || reader.read(piece, |_| ())?.is_none())
            {
                damaged.insert(pair);
            }
        }
        Ok(damaged)
    }

    /// Whether `cluster` was built and none of its lists is lost.
    pub(crate) fn is_built(&self, graph: &ClusterGraph, cluster: u32) -> bool {
        let waits = |a: u32, b: u32| self.waiting.contains_key(&(a, b));
        let is_there = |&(other, _): &(u32, u64)| {
            let pair = (cluster.min(other), cluster.max(other));
            self.merged.contains(&pair) || waits(cluster, other) || waits(other, cluster)
        };
        self.entries[cluster as usize].is_some() && graph.neighbors(cluster).iter().all(is_there)
    }
}

/// A map with pairs as keys, as a JSON list: keys of JSON objects are strings.
mod pairs {
    use super::*;

    pub(super) fn serialize<S: Serializer>(map: &Waiting, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(map)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Waiting, D::Error> {
        Ok(Vec::deserialize(deserializer)?.into_iter().collect())
    }
}

/// Saves checkpoints on a thread of its own, if there is a path for them. Files may grow meanwhile:
/// a resumed build cuts them to the lengths of the checkpoint.
pub(crate) struct Checkpoints {
    path: Option<PathBuf>,
    every: Duration,
    last: Instant,
    running: Option<JoinHandle<Result<()>>>,
}

impl Checkpoints {
    pub(crate) fn new(path: Option<PathBuf>, every: Duration) -> Self {
        Self { path, every, last: Instant::now(), running: None }
    }

    /// Whether checkpoints are saved at all.
    pub(crate) fn is_kept(&self) -> bool {
        self.path.is_some()
    }

    /// Whether the interval has passed and the last checkpoint is saved.
    pub(crate) fn is_due(&self) -> bool {
        self.is_kept()
            && self.last.elapsed() >= self.every
            && self.running.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Starts to save `checkpoint`. `sync` first waits until its files are on disk.
    pub(crate) fn save(
        &mut self,
        checkpoint: Checkpoint,
        sync: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.last = Instant::now();
        let Some(path) = self.path.clone() else { return Ok(()) };
        self.run(move || {
            sync()?;
            save(&path, CHECKPOINT, &checkpoint)
        })
    }

    /// Runs `saving` on the thread, after the running save. Its error comes from the next save, or
    /// from [`wait`](Self::wait).
    pub(crate) fn run(&mut self, saving: impl FnOnce() -> Result<()> + Send + 'static) -> Result<()> {
        self.wait()?;
        self.running = Some(new_thread().spawn(saving).map_err(no_thread)?);
        Ok(())
    }

    /// Waits for the running save.
    pub(crate) fn wait(&mut self) -> Result<()> {
        match self.running.take() {
            Some(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            None => Ok(()),
        }
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        // Only a failed build drops it while saving, and has an error of its own.
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
    fn parcels_in_memory_are_built_again() {
        // A square with a diagonal.
        let graph = ClusterGraph::new(4, [(0, 1, 5), (1, 2, 6), (2, 3, 7), (0, 3, 8), (0, 2, 9)]);
        let left = |state: &Checkpoint| -> Vec<u32> {
            (0..4).filter(|&cluster| !state.is_built(&graph, cluster)).collect()
        };
        let mut state = Checkpoint::new(4, 8, 0);
        assert_eq!(left(&state), [0, 1, 2, 3]);
        // Clusters 0 and 1 are built and merged. The parcels of cluster 0 are on disk, except the
        // parcel for cluster 3.
        state.entries = vec![Some(1), Some(2), None, None];
        state.merged = [(0, 1)].into();
        state.waiting = BTreeMap::from([((0, 2), piece()), ((0, 3), None), ((1, 2), piece())]);
        state.forget(&[].into());
        assert_eq!(left(&state), [0, 2, 3]);
        // The loss of a parcel on disk means building its cluster again.
        state.forget(&[(1, 2)].into());
        assert_eq!(left(&state), [0, 1, 2, 3]);
        state.merged = [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)].into();
        state.entries = vec![Some(0); 4];
        assert!(left(&state).is_empty());
    }

    #[test]
    fn checkpoints_are_saved_one_at_a_time_after_their_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("checkpoint");
        let mut checkpoints = Checkpoints::new(Some(path.clone()), Duration::ZERO);
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
    fn checkpoints_with_wrong_numbers_are_unsound() {
        let graph = ClusterGraph::new(3, [(0, 1, 5), (1, 2, 6)]);
        let shape = CheckpointShape { graph: &graph, nodes: 11, degree: 2, row_bins: 2 };
        let json = |text: &str| serde_json::from_str::<Piece>(text).unwrap();
        let (row, list) = (row_bytes(shape.degree), list_bytes(shape.degree));
        let piece =
            |offset: u64, bytes: usize| json(&format!(r#"{{"offset":{offset},"bytes":{bytes},"crc":0}}"#));
        // Clusters 0 and 1 are built and merged. A parcel of cluster 1 waits for cluster 2.
        let mut sound = Checkpoint::new(3, 2, 0);
        assert!(sound.is_sound(shape));
        sound.entries = vec![Some(10), Some(2), None];
        sound.central = CentralNode::new(0.5, 7);
        sound.merged = [(0, 1)].into();
        sound.waiting = [((1, 2), Some(piece(8, 6 * list)))].into();
        sound.rows = vec![vec![piece(0, 3 * row)], vec![piece(3 * row as u64, 2 * row)]];
        (sound.list_bytes, sound.row_bytes) = (8 + 6 * list as u64, 5 * row as u64);
        assert!(sound.is_sound(shape));
        type Change = fn(&mut Checkpoint);
        let changes: [Change; 17] = [
            |state| state.entries[0] = Some(11),
            |state| state.entries.push(None),
            |state| state.central.node = u32::MAX,
            |state| state.central = CentralNode::NONE,
            |state| state.merged = [(1, 0)].into(),
            |state| state.merged = [(0, 2)].into(),
            |state| state.merged = [(0, 3)].into(),
            |state| state.merged = [].into(),
            |state| state.waiting = [((0, 1), state.waiting[&(1, 2)])].into(),
            |state| state.waiting = [((u32::MAX, 1), None)].into(),
            |state| state.waiting = [((0, 2), None)].into(),
            |state| state.list_bytes -= 1,
            |state| state.row_bytes -= 1,
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
