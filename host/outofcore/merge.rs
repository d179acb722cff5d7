//! Merging the two lists of every node (paper section 6.1, Algorithm 3): where lists wait, and what becomes of them.
//!
//! The paper keeps for every node where its list is. Here the lists that two clusters share wait together, as a *parcel*:
//! which parcel a list is in, and at which place, follows from the two clusters, and there is no state of nodes. A parcel
//! is written, read and checked as a whole.

use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::sync::Arc;

use tagore_device::key::{Key, NONE};

use super::checkpoint::Checkpoint;
use super::fault::{Attempt, Damage, Fault};
use super::local::{LocalIndex, nearer};
use super::log::{Bins, Log, Piece, Reader};
use super::{CacheUse, ClusterGraph};
use crate::Result;

/// Two clusters, the one that is built first before the other.
type Pair = (u32, u32);

/// Lists in memory: some of those that were brought there together.
#[derive(Clone)]
pub(super) struct Resident {
    all: Arc<Vec<Key>>,
    part: Range<usize>,
}

impl Deref for Resident {
    type Target = [Key];

    fn deref(&self) -> &[Key] {
        &self.all[self.part.clone()]
    }
}

/// The lists of the nodes that two clusters share, of the first.
struct Parcel {
    /// The lists, as long as they are in memory.
    keys: Option<Resident>,
    /// Where they are on disk, if they are.
    piece: Option<Piece>,
    /// Whether they are being merged: then they need not be written any more.
    taken: bool,
}

/// Lists that have waited for those at some places of the second cluster.
pub(super) struct Waiting {
    pair: Pair,
    /// Nodes of the base: ids are less.
    nodes: usize,
    pub places: Range<usize>,
    keys: Option<Resident>,
    piece: Option<Piece>,
}

impl Waiting {
    /// The lists.
    pub(super) fn read(&self, spill: &mut Reader) -> Attempt<Resident> {
        if let Some(keys) = &self.keys {
            return Ok(keys.clone());
        }
        let lost = || Fault::Damage(Damage::Lists(self.pair));
        let content = spill.read(self.piece.ok_or_else(lost)?)?.ok_or_else(lost)?;
        let all: Vec<Key> = bytemuck::pod_collect_to_vec(&content);
        let is_known = |&key: &Key| key == NONE || (key as u32 as usize) < self.nodes;
        if !all.iter().all(is_known) {
            return Err(lost());
        }
        Ok(Resident { part: 0..all.len(), all: Arc::new(all) })
    }
}

/// What gathers the lists of clusters.
pub(super) struct Merger {
    nodes: usize,
    degree: usize,
    nodes_per_bin: usize,
    /// What is done; where lists wait is in `parcels`, and where rows are the bins know.
    done: Checkpoint,
    parcels: BTreeMap<Pair, Parcel>,
    spill: Log,
    rows: Bins,
}

/// What there is once all lists have been merged.
pub(super) struct Merged {
    /// The finished rows, by ranges of ids: records of an id and as many ids as the degree allows.
    pub rows: Bins,
    /// Nodes in the range of a bin.
    pub nodes_per_bin: usize,
    /// A node that each local index is entered at.
    pub entries: Vec<u32>,
    /// The node nearest to the mean of the base.
    pub central: u32,
    pub cache: CacheUse,
    /// Bytes of lists that were written, and read again.
    pub spilled_bytes: u64,
}

impl Merger {
    /// Merges lists of at most `degree` neighbours of `nodes` nodes, from `done` on.
    pub(super) fn new((nodes, degree): (usize, usize), done: Checkpoint, (spill, rows): (Log, Bins)) -> Self {
        let on_disk = |piece| Parcel { keys: None, piece: Some(piece), taken: false };
        let parcels = done.waiting.iter().filter_map(|(&pair, piece)| Some((pair, on_disk((*piece)?))));
        Self {
            nodes,
            degree,
            nodes_per_bin: nodes.div_ceil(rows.count()),
            parcels: parcels.collect(),
            done,
            spill,
            rows,
        }
    }

    /// What reads lists that were written.
    pub(super) fn spilled(&self) -> Result<Reader> {
        self.spill.reader()
    }

    fn is_merged(&self, (a, b): Pair) -> bool {
        self.done.merged.contains(&(a.min(b), a.max(b)))
    }

    /// Takes the lists of `cluster` that wait for other clusters, those of the first places; those that were not lost when it
    /// was built before are there already. Clusters do this in the order of dispatch.
    pub(super) fn add(&mut self, cluster: u32, parcels: &[(u32, Range<usize>)], lists: Vec<Key>) {
        let all = Arc::new(lists);
        for (other, places) in parcels {
            let pair = (cluster, *other);
            if !self.is_merged(pair) {
                let part = places.start * self.degree..places.end * self.degree;
                let keys = Some(Resident { all: Arc::clone(&all), part });
                self.parcels.entry(pair).or_insert(Parcel { keys, piece: None, taken: false });
            }
        }
    }

    /// The lists that have waited for those of `cluster`, `parcels`, which come now.
    pub(super) fn take(&mut self, cluster: u32, parcels: &[(u32, Range<usize>)]) -> Vec<Waiting> {
        let waiting = |(other, places): &(u32, Range<usize>)| {
            let pair = (*other, cluster);
            let parcel = self.parcels.get_mut(&pair)?;
            parcel.taken = true;
            let (keys, piece) = (parcel.keys.clone(), parcel.piece);
            Some(Waiting { pair, nodes: self.nodes, places: places.clone(), keys, piece })
        };
        parcels.iter().filter_map(waiting).collect()
    }

    /// Takes the finished rows of what has waited: records of an id and as many ids as the degree allows.
    pub(super) fn finish(&mut self, waiting: Waiting, records: &[u32]) -> Result<()> {
        let record = 1 + self.degree;
        let bin_of = |record: &[u32]| record[0] as usize / self.nodes_per_bin;
        let mut rest = records;
        while !rest.is_empty() {
            let bin = bin_of(rest);
            let count = rest.chunks_exact(record).take_while(|record| bin_of(record) == bin).count();
            let (run, after) = rest.split_at(count * record);
            self.rows.extend(bin, bytemuck::cast_slice(run), 4 * record)?;
            rest = after;
        }
        let Waiting { pair: (a, b), places, keys, .. } = waiting;
        self.parcels.remove(&(a, b));
        self.done.merged.insert((a.min(b), a.max(b)));
        self.done.found.0 += places.len() as u64;
        self.done.found.1 += if keys.is_some() { places.len() as u64 } else { 0 };
        Ok(())
    }

    /// Says that a cluster need not be built again as long as none of its lists is lost.
    pub(super) fn came(&mut self, local: &LocalIndex) {
        self.done.entries[local.cluster as usize] = Some(local.entry);
        let central = nearer((f64::from_bits(self.done.central.0), self.done.central.1), local.central);
        self.done.central = (central.0.to_bits(), central.1);
    }

    /// Writes the lists of `cluster` that still wait in memory. The bytes written.
    pub(super) fn evict(&mut self, cluster: u32) -> Result<u64> {
        let parcels = self.parcels.range_mut((cluster, 0)..=(cluster, u32::MAX));
        write(&mut self.spill, parcels.map(|(_, parcel)| parcel).filter(|parcel| !parcel.taken))
    }

    /// Writes all lists that wait in memory.
    pub(super) fn evict_all(&mut self) -> Result<()> {
        write(&mut self.spill, self.parcels.values_mut()).map(drop)
    }

    /// How far it has come, and what brings to the disk what that names.
    pub(super) fn checkpoint(
        &mut self,
    ) -> Result<(Checkpoint, impl FnOnce() -> Result<()> + Send + 'static)> {
        self.done.waiting = self.parcels.iter().map(|(&pair, parcel)| (pair, parcel.piece)).collect();
        self.done.rows = self.rows.pieces()?.to_vec();
        self.done.bytes = (self.spill.bytes(), self.rows.bytes());
        let waits = self.done.waiting.values().any(Option::is_some);
        let lists = if waits { Some(self.spill.flushing()?) } else { None };
        let rows = self.rows.flushing()?;
        let sync = move || {
            lists.map_or(Ok(()), |sync| sync())?;
            rows()
        };
        Ok((self.done.clone(), sync))
    }

    /// Ends the merge and returns its rows, entry points and counters. Fails with [`Damage::Rows`]
    /// if an edge of `graph` has not been merged: the checkpoint then lost lists.
    pub(super) fn end(mut self, graph: &ClusterGraph) -> Attempt<Merged> {
        if self.done.merged.len() != graph.edges() {
            return Err(Fault::Damage(Damage::Rows));
        }
        self.rows.pieces()?;
        let Checkpoint { entries, central, found, .. } = self.done;
        Ok(Merged {
            rows: self.rows,
            nodes_per_bin: self.nodes_per_bin,
            entries: entries.into_iter().flatten().collect(),
            central: central.1,
            cache: CacheUse { second_visits: found.0, hits: found.1 },
            spilled_bytes: self.spill.bytes(),
        })
    }
}

/// Writes those of `parcels` that are in memory. The bytes written.
fn write<'a>(spill: &mut Log, parcels: impl Iterator<Item = &'a mut Parcel>) -> Result<u64> {
    let mut bytes = 0;
    for parcel in parcels {
        if let Some(keys) = parcel.keys.take() {
            bytes += size_of_val(&keys[..]) as u64;
            parcel.piece = Some(spill.append(bytemuck::cast_slice(&keys))?);
        }
    }
    Ok(bytes)
}
