//! Merging of a cluster's waiting parcels in groups: while one group is merged, a thread reads the
//! next one, and another adds the finished rows of the one before.

use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use tagore_device::key::Key;

use super::lists::{ClusterLists, WaitingLists};
use super::merge::{Resident, Waiting};
use super::pipeline::Merging;
use crate::outofcore::store::{Attempt, Reader};
use crate::parallel::{join, locked, spawn};
use crate::progress::StageProgress;

/// Minimum nodes of a merge.
const GROUP: usize = 1 << 16;

/// Parcels that are merged at once, with their lists.
type Group = Vec<(Waiting, Resident)>;

/// Parcels with their finished rows.
type Finished = (Vec<Waiting>, Vec<u32>);

/// Merges `lists` with the `waiting` parcels. Returns the bytes of the finished rows.
///
/// Lists of two groups are in memory at most, and rows of two: the plan counts the lists of all
/// members of the cluster, and a row takes about half of a list.
pub(super) fn merge_parcels(
    lists: &mut dyn ClusterLists,
    waiting: Vec<Waiting>,
    merging: &Mutex<Merging<'_>>,
    spilled: &mut Reader,
    stage: &StageProgress<'_>,
) -> Attempt<u64> {
    if waiting.is_empty() {
        return Ok(0);
    }
    thread::scope(|scope| {
        let (send, groups) = sync_channel(0);
        let reading = spawn(scope, move || read(waiting, spilled, &send))?;
        let (send, finished) = sync_channel(0);
        let adding = spawn(scope, move || add(finished, merging))?;
        let merged = merge(lists, groups, send, stage);
        // A thread whose channel is closed ends without an error of its own.
        let (read, added) = (join(reading), join(adding));
        let bytes = merged?;
        read.and(added).map(|()| bytes)
    })
}

fn read(waiting: Vec<Waiting>, spilled: &mut Reader, to: &SyncSender<Group>) -> Attempt<()> {
    for group in groups(waiting) {
        let read = |waiting: Waiting| waiting.read(spilled).map(|lists| (waiting, lists));
        let group = group.into_iter().map(read).collect::<Attempt<Group>>()?;
        if to.send(group).is_err() {
            break;
        }
    }
    Ok(())
}

fn merge(
    lists: &mut dyn ClusterLists,
    groups: Receiver<Group>,
    to: SyncSender<Finished>,
    stage: &StageProgress<'_>,
) -> Attempt<u64> {
    let mut bytes = 0;
    for group in groups {
        stage.check()?;
        let both: Vec<_> = group.iter().map(|(waiting, lists)| with_places(waiting, lists)).collect();
        let rows = lists.merge(&both)?;
        bytes += size_of_val(&rows[..]) as u64;
        let parcels = group.into_iter().map(|(waiting, _)| waiting).collect();
        if to.send((parcels, rows)).is_err() {
            break;
        }
    }
    Ok(bytes)
}

fn with_places<'a>(waiting: &Waiting, lists: &'a [Key]) -> WaitingLists<'a> {
    WaitingLists { places: waiting.places.clone(), lists }
}

fn add(finished: Receiver<Finished>, merging: &Mutex<Merging<'_>>) -> Attempt<()> {
    for (parcels, rows) in finished {
        let nodes: usize = parcels.iter().map(|waiting| waiting.places.len()).sum();
        let (row, mut rest) = (rows.len() / nodes, &rows[..]);
        for waiting in parcels {
            let (rows, after) = rest.split_at(row * waiting.places.len());
            // Other threads hand clusters over between two parcels.
            locked(merging).merger.finish(waiting, rows)?;
            rest = after;
        }
    }
    Ok(())
}

/// Divides parcels into groups of at least [`GROUP`] nodes.
fn groups(mut waiting: Vec<Waiting>) -> impl Iterator<Item = Vec<Waiting>> {
    std::iter::from_fn(move || {
        let mut nodes = 0;
        let count = waiting.iter().take_while(|next| {
            let has_room = nodes < GROUP;
            nodes += next.places.len();
            has_room
        });
        let count = count.count();
        (count > 0).then(|| waiting.drain(..count).collect())
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::ops::Range;
    use std::time::Duration;

    use super::super::local::ParcelPlaces;
    use super::super::merge::Merger;
    use super::*;
    use crate::outofcore::plan::ClusterGraph;
    use crate::outofcore::store::{Bins, Checkpoint, Checkpoints, Damage, Fault, Folder, Log};
    use crate::{Error, Progress, Result};

    /// The cluster whose parcels are merged; clusters with smaller numbers were built before it.
    const LAST: u32 = 6;

    /// Nodes of each parcel: two make a group.
    const NODES: usize = 40_000;

    /// Lists of one neighbour. A row has the neighbour of the waiting list.
    struct OneEach {
        /// Merges before an error.
        left: usize,
    }

    impl ClusterLists for OneEach {
        fn get(&mut self, _: Range<usize>) -> Result<Vec<Key>> {
            Ok(Vec::new())
        }

        fn merge(&mut self, waiting: &[WaitingLists<'_>]) -> Result<Vec<u32>> {
            self.left = self.left.checked_sub(1).ok_or(Error::Cancelled)?;
            let of_parcel = |waiting: &WaitingLists<'_>| {
                assert_eq!(waiting.lists.len(), waiting.places.len());
                let rows = waiting.places.clone().zip(waiting.lists);
                rows.flat_map(|(place, &key)| [place as u32, key as u32]).collect::<Vec<_>>()
            };
            Ok(waiting.iter().flat_map(of_parcel).collect())
        }
    }

    /// Merges the parcels of all clusters, those of even ones written before, after `damage` of the
    /// file of lists. Returns the neighbours of all nodes.
    fn merged(left: usize, progress: &Progress, damage: impl FnOnce(&mut [u8])) -> Attempt<Vec<u32>> {
        let folder = tempfile::tempdir().unwrap();
        let log = |name| Log::open(&std::sync::Arc::new(Folder::open(folder.path()).unwrap()), name, 0);
        let nodes = LAST as usize * NODES;
        let done = Checkpoint::new(LAST as usize + 1, 8, 0);
        let rows = Bins::new(log("rows")?.unwrap(), 8, 1 << 16);
        let mut merger = Merger::new(nodes, 1, done, log("lists")?.unwrap(), rows);
        let places = |cluster: u32| cluster as usize * NODES..(cluster as usize + 1) * NODES;
        for cluster in 0..LAST {
            let keys = places(cluster).map(|node| (nodes - 1 - node) as Key).collect();
            merger.add(cluster, &[ParcelPlaces { other: LAST, places: 0..NODES }], keys);
            if cluster % 2 == 0 {
                let (spill, leaving) = merger.leaving(cluster);
                for (pair, keys) in leaving {
                    let piece = locked(&spill).append(bytemuck::cast_slice(&keys))?;
                    merger.left(pair, piece);
                }
            }
        }
        let path = folder.path().join("lists");
        let mut lists = fs::read(&path).unwrap();
        damage(&mut lists);
        fs::write(&path, lists).unwrap();
        let earlier: Vec<_> = (0..LAST).map(|other| ParcelPlaces { other, places: places(other) }).collect();
        let (waiting, mut spilled) = (merger.take(LAST, &earlier), merger.spilled()?);
        let mut checkpoints = Checkpoints::new(None, Duration::ZERO);
        let merging = Mutex::new(Merging { merger: &mut merger, checkpoints: &mut checkpoints });
        let stage = progress.stage("build", 1);
        let bytes = merge_parcels(&mut OneEach { left }, waiting, &merging, &mut spilled, &stage)?;
        assert_eq!(bytes, 8 * nodes as u64);
        let graph = ClusterGraph::new(LAST as usize + 1, (0..LAST).map(|other| (other, LAST, NODES as u64)));
        let merged = merger.end(&graph)?;
        assert_eq!(merged.cache.hits, nodes as u64 / 2);
        let mut found = vec![u32::MAX; nodes];
        for bin in 0..8 {
            let sound = merged.rows.read(bin, |piece| {
                for row in piece.chunks_exact(8) {
                    let [node, neighbour]: [u32; 2] = bytemuck::pod_read_unaligned(row);
                    found[node as usize] = neighbour;
                }
            });
            assert!(sound?);
        }
        Ok(found)
    }

    #[test]
    fn parcels_from_memory_and_disk_are_merged_in_groups() {
        let found = merged(3, &Progress::silent(), |_| ()).ok().unwrap();
        assert!(found.into_iter().eq((0..LAST * NODES as u32).rev()));
    }

    #[test]
    fn errors_of_all_threads_end_the_merge() {
        for left in 0..3 {
            let error = merged(left, &Progress::silent(), |_| ()).err().unwrap();
            assert!(matches!(error, Fault::Failed(Error::Cancelled)), "after {left} merges");
        }
        let cancelled = Progress::silent();
        cancelled.cancel();
        let error = merged(3, &cancelled, |_| ()).err().unwrap();
        assert!(matches!(error, Fault::Failed(Error::Cancelled)));
        for (place, cluster) in [(5, 0), (NODES * 8 + 5, 2), (NODES * 24 - 1, 4)] {
            let error = merged(3, &Progress::silent(), |lists| lists[place] ^= 1).err().unwrap();
            assert!(matches!(error, Fault::Lost(Damage::Lists((found, LAST))) if found == cluster));
        }
    }
}
