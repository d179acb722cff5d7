//! Merging the two lists of every node (paper section 6.1, Algorithm 3): waiting parcels and
//! finished rows.
//!
//! The paper stores the place of every node's list. Here the lists that two clusters share wait
//! together, as a *parcel*. The parcel of a list and its place in the parcel follow from the two
//! clusters, so nodes have no state. A parcel is written, read and checked as a whole.

use std::collections::BTreeMap;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex};

use tagore_device::key::{Key, NONE};

use super::local::{LocalIndex, ParcelPlaces};
use crate::Result;
use crate::memory::zeros;
use crate::outofcore::plan::{CacheUse, ClusterGraph};
use crate::outofcore::store::{Attempt, Bins, Checkpoint, Damage, Fault, Log, Pair, Piece, Reader};
use crate::parallel::locked;

/// Lists in memory: a part of lists that arrived together.
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

/// The waiting lists of the nodes that two clusters share.
struct Parcel {
    /// The lists, while they are in memory.
    keys: Option<Resident>,
    /// Place on disk, if written.
    piece: Option<Piece>,
    /// Being merged, so it is not written any more.
    taken: bool,
}

/// A parcel on its way to the second cluster.
pub(super) struct Waiting {
    pair: Pair,
    /// Nodes of the base.
    nodes: usize,
    /// Places of the members in the second cluster.
    pub places: Range<usize>,
    keys: Option<Resident>,
    piece: Option<Piece>,
}

impl Waiting {
    /// Reads the lists, from memory or from disk. Fails with [`Damage::Lists`] if they are damaged.
    pub(super) fn read(&self, spill: &mut Reader) -> Attempt<Resident> {
        if let Some(keys) = &self.keys {
            return Ok(keys.clone());
        }
        let lost = || Fault::Lost(Damage::Lists(self.pair));
        let piece = self.piece.ok_or_else(lost)?;
        let mut all: Vec<Key> = zeros(piece.bytes() as usize / size_of::<Key>())?;
        let sound = spill.read_to(piece, bytemuck::cast_slice_mut(&mut all))?;
        let is_known = |key: Key| key == NONE || (key as u32 as usize) < self.nodes;
        // Without an early end, so that the compiler takes several keys at a time.
        if !sound || !all.iter().fold(true, |known, &key| known & is_known(key)) {
            return Err(lost());
        }
        Ok(Resident { part: 0..all.len(), all: Arc::new(all) })
    }
}

/// The waiting parcels and the finished rows of a build.
pub(super) struct Merger {
    nodes: usize,
    degree: usize,
    nodes_per_bin: usize,
    /// The progress of the build. Its parcels and rows are only set by `checkpoint`: `parcels` and
    /// `rows` have the present ones.
    done: Checkpoint,
    parcels: BTreeMap<Pair, Parcel>,
    spill: Arc<Mutex<Log>>,
    rows: Bins,
}

/// The result of merging all lists.
pub(super) struct Merged {
    /// Finished rows by ranges of ids. A record is an id and `degree` ids.
    pub rows: Bins,
    /// Ids in the range of each bin.
    pub nodes_per_bin: usize,
    /// The entry point of each cluster.
    pub entries: Vec<u32>,
    /// The node nearest to the mean of the base.
    pub central: u32,
    /// Nodes far from all others of a cluster, ascending.
    pub lone: Vec<u32>,
    pub cache: CacheUse,
    /// Bytes of lists written to disk, and read again.
    pub spilled_bytes: u64,
}

impl Merger {
    /// Continues from the checkpoint `done` of a base of `nodes` nodes, with lists of `degree`
    /// neighbours. `spill` holds the written parcels, and `rows` the finished rows.
    pub(super) fn new(nodes: usize, degree: usize, done: Checkpoint, spill: Log, rows: Bins) -> Self {
        let on_disk = |piece| Parcel { keys: None, piece: Some(piece), taken: false };
        let parcels = done.waiting.iter().filter_map(|(&pair, piece)| Some((pair, on_disk((*piece)?))));
        Self {
            nodes,
            degree,
            nodes_per_bin: nodes.div_ceil(rows.count()),
            parcels: parcels.collect(),
            done,
            spill: Arc::new(Mutex::new(spill)),
            rows,
        }
    }

    /// A reader of written parcels.
    pub(super) fn spilled(&self) -> Result<Reader> {
        locked(&self.spill).reader()
    }

    fn is_merged(&self, a: u32, b: u32) -> bool {
        self.done.merged.contains(&(a.min(b), a.max(b)))
    }

    /// Adds the parcels of `cluster` for later clusters. `lists` are the lists of the first places.
    ///
    /// A cluster that is built again adds only its lost parcels. Clusters must call this in
    /// dispatch order.
    pub(super) fn add(&mut self, cluster: u32, parcels: &[ParcelPlaces], lists: Vec<Key>) {
        let all = Arc::new(lists);
        for ParcelPlaces { other, places } in parcels {
            let pair = (cluster, *other);
            if !self.is_merged(cluster, *other) {
                let part = places.start * self.degree..places.end * self.degree;
                let keys = Some(Resident { all: Arc::clone(&all), part });
                self.parcels.entry(pair).or_insert(Parcel { keys, piece: None, taken: false });
            }
        }
    }

    /// Takes the parcels of earlier clusters that wait for `cluster`.
    pub(super) fn take(&mut self, cluster: u32, parcels: &[ParcelPlaces]) -> Vec<Waiting> {
        let waiting = |ParcelPlaces { other, places }: &ParcelPlaces| {
            let pair = (*other, cluster);
            let parcel = self.parcels.get_mut(&pair)?;
            parcel.taken = true;
            let (keys, piece) = (parcel.keys.clone(), parcel.piece);
            Some(Waiting { pair, nodes: self.nodes, places: places.clone(), keys, piece })
        };
        parcels.iter().filter_map(waiting).collect()
    }

    /// Adds the finished rows of a merged parcel: records of an id and `degree` ids.
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
        self.done.second_visits += places.len() as u64;
        self.done.hits += if keys.is_some() { places.len() as u64 } else { 0 };
        Ok(())
    }

    /// Marks a cluster as built. It is built again only if one of its lists is lost.
    pub(super) fn mark_built(&mut self, local: &LocalIndex) {
        self.done.entries[local.cluster as usize] = Some(local.entry);
        self.done.central = self.done.central.nearer(local.central);
        self.done.lone.extend(&local.lone);
    }

    /// The parcels of `cluster` that wait in memory, and the file to write them to. Until
    /// [`left`](Self::left) they are in memory; nothing takes them meanwhile.
    pub(super) fn leaving(&self, cluster: u32) -> (Arc<Mutex<Log>>, Vec<(Pair, Resident)>) {
        let parcels = self.parcels.range((cluster, 0)..=(cluster, u32::MAX));
        let parcels = parcels.filter(|(_, parcel)| !parcel.taken);
        let leaving = parcels.filter_map(|(&pair, parcel)| Some((pair, parcel.keys.clone()?)));
        (Arc::clone(&self.spill), leaving.collect())
    }

    /// Frees a parcel that is written to `piece`.
    pub(super) fn left(&mut self, pair: Pair, piece: Piece) {
        if let Some(parcel) = self.parcels.get_mut(&pair) {
            (parcel.keys, parcel.piece) = (None, Some(piece));
        }
    }

    /// Writes all parcels that wait in memory.
    pub(super) fn evict_all(&mut self) -> Result<()> {
        for parcel in self.parcels.values_mut() {
            if let Some(keys) = parcel.keys.take() {
                parcel.piece = Some(locked(&self.spill).append(bytemuck::cast_slice(&keys))?);
            }
        }
        Ok(())
    }

    /// Returns a checkpoint, and a function that waits until the files of the checkpoint are on
    /// disk.
    pub(super) fn checkpoint(
        &mut self,
    ) -> Result<(Checkpoint, impl FnOnce() -> Result<()> + Send + 'static)> {
        self.done.waiting = self.parcels.iter().map(|(&pair, parcel)| (pair, parcel.piece)).collect();
        self.done.rows = self.rows.pieces()?.to_vec();
        let waits = self.done.waiting.values().any(Option::is_some);
        // Without a waiting parcel, nothing of the file of lists is needed.
        let mut spill = locked(&self.spill);
        self.done.list_bytes = if waits { spill.bytes() } else { 0 };
        self.done.row_bytes = self.rows.bytes();
        let lists = if waits { Some(spill.flushing()?) } else { None };
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
            return Err(Fault::Lost(Damage::Rows));
        }
        self.rows.pieces()?;
        let Checkpoint { entries, central, lone, second_visits, hits, .. } = self.done;
        Ok(Merged {
            rows: self.rows,
            nodes_per_bin: self.nodes_per_bin,
            entries: entries.into_iter().flatten().collect(),
            central: central.node,
            lone: lone.into_iter().collect(),
            cache: CacheUse { second_visits, hits },
            spilled_bytes: locked(&self.spill).bytes(),
        })
    }
}
