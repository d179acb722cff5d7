//! Merging the two lists of every node (paper section 6.1, Algorithm 3).
//!
//! The paper keeps for every node where its list is. Here the members of a cluster come in ascending order of ids with
//! the other cluster of each, so lists wait in *parcels*, one of each pair of clusters: which parcel a list is in, and
//! at which place, follows from the two clusters, and there is no state of nodes. A parcel is written, read and
//! checked as a whole.

use std::collections::BTreeMap;

use tagore_device::descent::key::{self, Key};

use super::CacheUse;
use super::local::{LocalLists, nearer};
use super::log::{Bins, Log, Piece};
use crate::Result;

/// The lists of the nodes that two clusters share, of the one that was built first.
enum Parcel {
    Resident(Vec<Key>),
    Spilled(Piece),
}

/// What gathers the lists of clusters.
pub(super) struct Merger {
    degree: usize,
    visited: Vec<bool>,
    /// By the cluster that was built and the one that is still to come.
    parcels: BTreeMap<(u32, u32), Parcel>,
    spill: Log,
    rows: Bins,
    nodes_per_bin: usize,
    merged: Vec<Key>,
    /// A node, and its padded row.
    record: Vec<u32>,
    entries: Vec<u32>,
    central: (f64, u32),
    found: CacheUse,
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
    /// Merges lists of at most `degree` neighbours of `nodes` nodes in `clusters` clusters.
    pub(super) fn new((nodes, clusters, degree): (usize, usize, usize), spill: Log, rows: Bins) -> Self {
        Self {
            degree,
            visited: vec![false; clusters],
            parcels: BTreeMap::new(),
            spill,
            nodes_per_bin: nodes.div_ceil(rows.count()),
            rows,
            merged: Vec::with_capacity(2 * degree),
            record: vec![u32::MAX; 1 + degree],
            entries: Vec::new(),
            central: (f64::INFINITY, u32::MAX),
            found: CacheUse::default(),
        }
    }

    /// Takes the lists of the next cluster.
    pub(super) fn take(&mut self, lists: &LocalLists) -> Result<()> {
        let mut order: Vec<u32> = (0..lists.ids.len() as u32).collect();
        order.sort_by_key(|&member| lists.others[member as usize]);
        let other_of = |member: u32| lists.others[member as usize];
        for members in order.chunk_by(|&a, &b| other_of(a) == other_of(b)) {
            let other = other_of(members[0]);
            if self.visited[other as usize] {
                self.merge(other, lists, members)?;
            } else {
                let rows = members.iter().flat_map(|&member| self.list(lists, member));
                self.parcels.insert((lists.cluster, other), Parcel::Resident(rows.copied().collect()));
            }
        }
        self.visited[lists.cluster as usize] = true;
        self.entries.push(lists.entry);
        self.central = nearer(self.central, lists.central);
        Ok(())
    }

    fn list<'a>(&self, lists: &'a LocalLists, member: u32) -> &'a [Key] {
        &lists.keys[member as usize * self.degree..][..self.degree]
    }

    /// Merges the lists of `members` with those that wait since cluster `other` was built.
    fn merge(&mut self, other: u32, lists: &LocalLists, members: &[u32]) -> Result<()> {
        self.found.second_visits += members.len() as u64;
        let waiting = match self.parcels.remove(&(other, lists.cluster)) {
            Some(Parcel::Resident(keys)) => {
                self.found.hits += members.len() as u64;
                keys
            }
            Some(Parcel::Spilled(piece)) => bytemuck::pod_collect_to_vec(&self.spill.read(piece)?),
            None => unreachable!("clusters name each other as those of the nodes that they share"),
        };
        for (&member, first) in members.iter().zip(waiting.chunks_exact(self.degree)) {
            nearest(first, self.list(lists, member), self.degree, &mut self.merged);
            self.finish(lists.ids[member as usize])?;
        }
        Ok(())
    }

    /// Appends what is merged as the row of `node`.
    fn finish(&mut self, node: u32) -> Result<()> {
        let record = &mut self.record;
        record.fill(u32::MAX);
        record[0] = node;
        record[1..].iter_mut().zip(&self.merged).for_each(|(id, &key)| *id = key::id(key));
        self.rows.append(node as usize / self.nodes_per_bin, &[bytemuck::cast_slice(record)])
    }

    /// Writes the lists that still wait in memory since `cluster` was built.
    pub(super) fn evict(&mut self, cluster: u32) -> Result<()> {
        for (_, parcel) in self.parcels.range_mut((cluster, 0)..=(cluster, u32::MAX)) {
            if let Parcel::Resident(keys) = parcel {
                *parcel = Parcel::Spilled(self.spill.append(bytemuck::cast_slice(keys))?);
            }
        }
        Ok(())
    }

    /// What has been merged, of all clusters.
    pub(super) fn end(mut self) -> Result<Merged> {
        debug_assert!(self.parcels.is_empty(), "a list was left");
        self.rows.finish()?;
        let Self { rows, nodes_per_bin, entries, central: (_, central), found, .. } = self;
        let spilled_bytes = self.spill.bytes();
        Ok(Merged { rows, nodes_per_bin, entries, central, cache: found, spilled_bytes })
    }
}

/// The nearest `degree` of two lists, nearest first, written to `merged`.
///
/// Each list has been pruned already, by a rule that asks for vectors, which are no longer there. What the rule kept
/// of either is worth keeping; if there is no room, long edges are lost, of which searches need few, since they begin at many
/// entry points.
fn nearest(a: &[Key], b: &[Key], degree: usize, merged: &mut Vec<Key>) {
    merged.clear();
    merged.extend(a.iter().chain(b).filter(|&&key| key != key::NONE));
    merged.sort_unstable();
    // The distance of a pair is the same in both clusters, so that what is twice there is one key twice.
    merged.dedup();
    merged.truncate(degree);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_of_both_lists_are_kept_once() {
        let list = |pairs: &[(f32, u32)]| -> Vec<Key> {
            let mut keys: Vec<Key> = pairs.iter().map(|&(distance, id)| key::pack(distance, id)).collect();
            keys.resize(3, key::NONE);
            keys
        };
        let mut merged = Vec::new();
        let mut ids = |a: &[(f32, u32)], b: &[(f32, u32)]| -> Vec<u32> {
            nearest(&list(a), &list(b), 3, &mut merged);
            merged.iter().map(|&key| key::id(key)).collect()
        };
        assert_eq!(ids(&[(1.0, 7), (3.0, 2)], &[(1.0, 7), (2.0, 9)]), [7, 9, 2]);
        assert_eq!(ids(&[(1.0, 7), (3.0, 2), (4.0, 1)], &[(1.0, 3)]), [3, 7, 2]);
        assert_eq!(ids(&[], &[(0.5, 1)]), [1]);
        assert!(ids(&[], &[]).is_empty());
    }
}
