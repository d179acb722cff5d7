//! Merging the two lists of every node (paper section 6.1, Algorithm 3).
//!
//! The paper keeps for every node where its list is. Here the members of a cluster come in ascending order of ids with
//! the other cluster of each, so lists wait in *parcels*, one of each pair of clusters: which parcel a list is in, and
//! at which place, follows from the two clusters, and there is no state of nodes. A parcel is written, read and
//! checked as a whole.

use std::collections::BTreeMap;

use rayon::prelude::*;
use tagore_device::descent::key::{self, Key};

use super::checkpoint::Checkpoint;
use super::fault::{Attempt, Damage, Fault};
use super::local::{LocalLists, nearer};
use super::log::{Bins, Log, Piece};
use super::{CacheUse, ClusterGraph};
use crate::Result;
use crate::vectors::embedding::Embedding;
use crate::vectors::space::Space;

/// The lists of the nodes that two clusters share, of the one that was built first.
enum Parcel {
    Resident(Vec<Key>),
    Spilled(Piece),
}

/// What gathers the lists of clusters.
pub(super) struct Merger {
    degree: usize,
    embedding: Embedding,
    nodes_per_bin: usize,
    /// What is done; where lists wait is in `parcels`, and where rows are the bins know.
    done: Checkpoint,
    /// By the cluster that was built and the one that is still to come.
    parcels: BTreeMap<(u32, u32), Parcel>,
    /// Clusters of which no list stays in memory any more.
    evicted: Vec<bool>,
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
    pub(super) fn new(
        (nodes, degree): (usize, usize),
        embedding: Embedding,
        done: Checkpoint,
        (spill, rows): (Log, Bins),
    ) -> Self {
        let parcels =
            done.waiting.iter().filter_map(|(&pair, piece)| Some((pair, Parcel::Spilled((*piece)?))));
        Self {
            degree,
            embedding,
            nodes_per_bin: nodes.div_ceil(rows.count()),
            parcels: parcels.collect(),
            evicted: vec![false; done.entries.len()],
            done,
            spill,
            rows,
        }
    }

    /// Takes the lists of the next cluster; of one that has come before, those that were lost. The bytes that were
    /// written and read.
    pub(super) fn take(&mut self, lists: &LocalLists) -> Attempt<u64> {
        let cluster = lists.cluster;
        let other_of = |member: u32| lists.others[member as usize];
        let mut order: Vec<u32> = (0..lists.ids.len() as u32).collect();
        // Members are in ascending order of ids, and stay so beside each other.
        order.par_sort_unstable_by_key(|&member| (other_of(member), member));
        let space = self.embedding.space(&lists.vectors)?;
        let mut bytes = 0;
        for members in order.chunk_by(|&a, &b| other_of(a) == other_of(b)) {
            let other = other_of(members[0]);
            if self.done.merged.contains(&(cluster.min(other), cluster.max(other))) {
                continue;
            }
            if self.parcels.contains_key(&(other, cluster)) {
                bytes += self.merge(other, (lists, &space), members)?;
            } else if !self.parcels.contains_key(&(cluster, other)) {
                let mut keys = vec![key::NONE; members.len() * self.degree];
                let rows = keys.par_chunks_exact_mut(self.degree).zip(members);
                rows.for_each(|(row, &member)| {
                    row.iter_mut()
                        .zip(self.list(lists, member))
                        .for_each(|(to, &key)| *to = lists.of_base(key));
                });
                self.parcels.insert((cluster, other), Parcel::Resident(keys));
            }
        }
        self.done.entries[cluster as usize] = Some(lists.entry);
        let central = nearer((f64::from_bits(self.done.central.0), self.done.central.1), lists.central);
        self.done.central = (central.0.to_bits(), central.1);
        // Where several devices build, a cluster may have had to leave before it came.
        Ok(bytes + if self.evicted[cluster as usize] { self.evict(cluster)? } else { 0 })
    }

    fn list<'a>(&self, lists: &'a LocalLists, member: u32) -> &'a [Key] {
        &lists.keys[member as usize * self.degree..][..self.degree]
    }

    /// Merges the lists of `members` with those that wait since cluster `other` was built. The bytes read and
    /// written.
    fn merge(
        &mut self,
        other: u32,
        (lists, space): (&LocalLists, &Space<'_>),
        members: &[u32],
    ) -> Attempt<u64> {
        let pair = (other, lists.cluster);
        let record_bytes = 4 * (1 + self.degree);
        let mut bytes = (members.len() * record_bytes) as u64;
        let waiting = match self.parcels.remove(&pair) {
            Some(Parcel::Resident(keys)) => {
                self.done.found.1 += members.len() as u64;
                keys
            }
            Some(Parcel::Spilled(piece)) => {
                bytes += (members.len() * self.degree * size_of::<Key>()) as u64;
                let content = self.spill.read(piece)?.ok_or(Fault::Damage(Damage::Lists(pair)))?;
                bytemuck::pod_collect_to_vec(&content)
            }
            None => unreachable!("asked for where one waits"),
        };
        self.done.found.0 += members.len() as u64;
        let mut records = vec![u32::MAX; members.len() * (1 + self.degree)];
        let both = members.par_iter().zip(waiting.par_chunks_exact(self.degree));
        let rows = records.par_chunks_exact_mut(1 + self.degree).zip(both);
        rows.for_each_init(Room::default, |room, (record, (&member, first))| {
            record[0] = lists.ids[member as usize];
            let second = self.list(lists, member);
            room.merge((first, second), (lists, space), &mut record[1..]);
        });
        let bin_of = |record: &[u32]| record[0] as usize / self.nodes_per_bin;
        let mut rest = &records[..];
        while !rest.is_empty() {
            let bin = bin_of(rest);
            let count = rest.chunks_exact(1 + self.degree).take_while(|record| bin_of(record) == bin).count();
            let (run, after) = rest.split_at(count * (1 + self.degree));
            self.rows.extend(bin, bytemuck::cast_slice(run), record_bytes)?;
            rest = after;
        }
        self.done.merged.insert((pair.0.min(pair.1), pair.0.max(pair.1)));
        Ok(bytes)
    }

    /// Writes the lists of `cluster` that still wait in memory, now or when they come. The bytes written.
    pub(super) fn evict(&mut self, cluster: u32) -> Result<u64> {
        self.evicted[cluster as usize] = true;
        let mut bytes = 0;
        for (_, parcel) in self.parcels.range_mut((cluster, 0)..=(cluster, u32::MAX)) {
            if let Parcel::Resident(keys) = parcel {
                bytes += size_of_val(&keys[..]) as u64;
                *parcel = Parcel::Spilled(self.spill.append(bytemuck::cast_slice(keys))?);
            }
        }
        Ok(bytes)
    }

    /// Writes all lists that wait in memory.
    pub(super) fn evict_all(&mut self) -> Result<()> {
        (0..self.evicted.len() as u32).try_for_each(|cluster| self.evict(cluster).map(drop))
    }

    /// How far it has come, and what brings to the disk what that names.
    pub(super) fn checkpoint(
        &mut self,
    ) -> Result<(Checkpoint, impl FnOnce() -> Result<()> + Send + 'static)> {
        let piece = |parcel: &Parcel| match parcel {
            Parcel::Resident(_) => None,
            Parcel::Spilled(piece) => Some(*piece),
        };
        self.done.waiting = self.parcels.iter().map(|(&pair, parcel)| (pair, piece(parcel))).collect();
        self.done.rows = self.rows.pieces()?.to_vec();
        self.done.bytes = (self.spill.bytes(), self.rows.bytes());
        let waits = self.done.waiting.values().any(Option::is_some);
        let lists = if waits { Some(self.spill.to_sync()?) } else { None };
        let rows = self.rows.log().to_sync()?;
        let sync = move || {
            lists.map_or(Ok(()), |sync| sync())?;
            rows()
        };
        Ok((self.done.clone(), sync))
    }

    /// What has been merged, of all clusters of `graph`.
    pub(super) fn end(mut self, graph: &ClusterGraph) -> Result<Merged> {
        debug_assert_eq!(self.done.merged.len(), graph.edges(), "a list was left");
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

/// Accepted neighbours that are compared at a time.
const OCCLUDERS: usize = 8;

/// What merging the lists of a node works with.
#[derive(Default)]
struct Room {
    /// Members whose neighbours have been accepted, and the distances to them.
    accepted: Vec<u32>,
    distances: Vec<f32>,
    /// Neighbours that others stand before.
    occluded: Vec<u32>,
}

impl Room {
    /// Writes the ids of neighbours from two lists to `row`, as many as it has room for, `u32::MAX` behind them.
    ///
    /// Neighbours are taken by their distance. Each list has been pruned already, but for itself: one that is nearer
    /// to one of those taken before than to the node stands behind it, if the vectors of both are here, which those of the
    /// cluster built last are. Such ones only fill what is left.
    fn merge(
        &mut self,
        (a, b): (&[Key], &[Key]),
        (lists, space): (&LocalLists, &Space<'_>),
        row: &mut [u32],
    ) {
        self.accepted.clear();
        self.occluded.clear();
        let (mut a, mut b) = (a.iter().copied().peekable(), b.iter().copied().peekable());
        let mut count = 0;
        while count < row.len() {
            let first = a.peek().copied().unwrap_or(key::NONE);
            let second = b.peek().map_or(key::NONE, |&key| lists.of_base(key));
            let nearest = first.min(second);
            if nearest == key::NONE {
                break;
            }
            // The distance of a pair is the same in both clusters, so that what is twice there is one key twice.
            a.next_if(|_| first == nearest);
            let member = match b.next_if(|_| second == nearest) {
                Some(key) => Some(key as u32),
                None => lists.member(nearest as u32),
            };
            if let Some(member) = member {
                if self.is_occluded(member, key::distance(nearest), space) {
                    self.occluded.push(nearest as u32);
                    continue;
                }
                self.accepted.push(member);
            }
            row[count] = nearest as u32;
            count += 1;
        }
        row[count..].iter_mut().zip(&self.occluded).for_each(|(id, &occluded)| *id = occluded);
    }

    /// Whether `member`, so far from the node, is nearer to one that has been accepted.
    fn is_occluded(&mut self, member: u32, length: f32, space: &Space<'_>) -> bool {
        // Mostly one of the nearest is in the way.
        self.accepted.chunks(OCCLUDERS).any(|nearer| {
            space.rule_distances(member, nearer, &mut self.distances);
            self.distances.iter().any(|&distance| distance < length)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BuildStats, Metric, Vectors};

    /// Node 0 of a line with nodes at these places, all but the last `gone` of them members of the cluster.
    fn merged(places: &[f32], gone: usize, a: &[u32], b: &[u32]) -> [u32; 3] {
        let members = places.len() - gone;
        let vectors = Vectors::from_f32(places[..members].to_vec(), 1).unwrap();
        let lists = LocalLists {
            cluster: 0,
            ids: (0..members as u32).collect(),
            others: vec![0; members],
            keys: Vec::new(),
            vectors: vectors.clone(),
            central: (0.0, 0),
            entry: 0,
            stats: BuildStats::default(),
        };
        let keys = |ids: &[u32]| {
            let mut keys: Vec<Key> =
                ids.iter().map(|&id| key::pack((places[id as usize] - places[0]).powi(2), id)).collect();
            keys.sort_unstable();
            keys.resize(3, key::NONE);
            keys
        };
        let embedding = Embedding::new(&vectors, Metric::L2);
        let space = embedding.space(&vectors).unwrap();
        let mut row = [u32::MAX; 3];
        Room::default().merge((&keys(a), &keys(b)), (&lists, &space), &mut row);
        row
    }

    #[test]
    fn neighbours_behind_others_give_way() {
        const NONE: u32 = u32::MAX;
        let line = [0.0, 1.0, -1.5, 2.0, 3.0, -4.0];
        assert_eq!(merged(&line, 0, &[1, 2], &[1]), [1, 2, NONE], "what is in both is there once");
        assert_eq!(merged(&line, 0, &[2], &[1]), [1, 2, NONE]);
        assert_eq!(merged(&line, 0, &[3, 4], &[1]), [1, 3, 4], "what is behind fills what is left");
        assert_eq!(merged(&line, 0, &[3, 4, 5], &[1]), [1, 5, 3], "3 and 4 are nearer to 1 than to 0");
        assert_eq!(merged(&line, 2, &[3, 4], &[1]), [1, 4, 3], "of 4 there is no vector");
        assert_eq!(merged(&line, 0, &[], &[4, 5]), [4, 5, NONE]);
        assert_eq!(merged(&line, 4, &[3, 4, 5], &[1]), [1, 3, 4], "no more than there is room for");
        assert_eq!(merged(&line, 0, &[], &[]), [NONE; 3]);
    }
}
