//! How far a build has come, as it is on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ClusterGraph;
use super::log::Piece;
use super::work::save;
use crate::Result;
use crate::parallel::no_thread;

/// Pairs of clusters, and where the lists of the first are.
type Waiting = BTreeMap<(u32, u32), Option<Piece>>;

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
}

impl Checkpoint {
    /// Of no cluster.
    pub(super) fn new(clusters: usize, row_bins: usize) -> Self {
        Self {
            entries: vec![None; clusters],
            central: (f64::INFINITY.to_bits(), u32::MAX),
            rows: vec![Vec::new(); row_bins],
            ..Self::default()
        }
    }

    /// Forgets the lists that were in memory, and those of `lost`.
    pub(super) fn forget(&mut self, lost: Option<(u32, u32)>) {
        self.waiting.retain(|&pair, piece| piece.is_some() && Some(pair) != lost);
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
        let mut state = Checkpoint::new(4, 8);
        assert_eq!(left(&state), [0, 1, 2, 3]);
        // Clusters 0 and 1 have come: what they share is merged; the rest of 0 is on disk but for what 3 waits for.
        state.entries = vec![Some(1), Some(2), None, None];
        state.merged = [(0, 1)].into();
        state.waiting = BTreeMap::from([((0, 2), piece()), ((0, 3), None), ((1, 2), piece())]);
        state.forget(None);
        assert_eq!(left(&state), [0, 2, 3]);
        // If a list on disk is lost, its cluster is built again too.
        state.forget(Some((1, 2)));
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
        checkpoints.save(Checkpoint::new(1, 1), sync).unwrap();
        assert!(!checkpoints.is_due());
        go.send(()).unwrap();
        checkpoints.wait().unwrap();
        assert!(path.exists());
        checkpoints.save(Checkpoint::new(1, 1), || Err(crate::Error::Cancelled)).unwrap();
        assert!(matches!(checkpoints.wait(), Err(crate::Error::Cancelled)));
    }
}
