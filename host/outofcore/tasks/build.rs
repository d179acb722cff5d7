//! `build` and `merge`: lists of clusters.

use std::cell::RefCell;

use serde::{Deserialize, Serialize};
use tagore_device::key::{Key, NONE};

use super::assign::{Clusters, read_clusters};
use super::context::{Context, Input, Outcome};
use super::id::{TaskId, TaskStage};
use crate::outofcore::partition::{Cluster, ClusterShape, MemberRecords};
use crate::outofcore::plan::RECORD_HEAD;
use crate::outofcore::run::{ClusterLists, HostLists, LocalIndex, Members, WaitingLists, parcels};
use crate::outofcore::store::{CentralNode, Fault};
use crate::{Error, Result};

/// The description of `build`.
#[derive(Serialize, Deserialize)]
pub(super) struct BuiltCluster {
    pub members: usize,
    pub central: CentralNode,
    /// An entry point of the index; none of an empty cluster.
    pub entry: Option<u32>,
    /// Nodes far from all other members.
    pub lone: Vec<u32>,
}

/// A cluster's records in the objects of `write`.
struct WrittenMembers<'a> {
    context: &'a Context<'a>,
    cluster: u32,
    /// The first fault. Readers of records know no lost objects.
    fault: RefCell<Option<Fault<TaskId>>>,
}

impl WrittenMembers<'_> {
    fn read_pieces<R>(&self, mut room: impl FnMut(usize) -> R, take: impl Fn(&[u8], R)) -> Outcome<()> {
        let base = self.context.base;
        let record = RECORD_HEAD + base.element_type().row_bytes(base.dim());
        for range in 0..self.context.plan.ranges() {
            self.context.builder.descent.progress.check()?;
            let input: Input<()> = self.context.store.input(TaskId::new(TaskStage::Write, range))?;
            if !input.object.piece_bytes(self.cluster).is_multiple_of(record) {
                return Err(input.lost());
            }
            let piece = input.piece(self.cluster)?;
            take(&piece, room(piece.len()));
        }
        Ok(())
    }
}

impl MemberRecords for WrittenMembers<'_> {
    fn read<R: Send>(&self, room: impl FnMut(usize) -> R, take: impl Fn(&[u8], R) + Sync) -> Result<bool> {
        let fault = self.read_pieces(room, take).err();
        let sound = fault.is_none();
        *self.fault.borrow_mut() = fault;
        Ok(sound)
    }
}

impl Context<'_> {
    /// Reads the members of a cluster.
    fn members(&self, clusters: &Clusters, number: u32) -> Outcome<Cluster> {
        let (base, graph) = (self.base, &clusters.graph);
        let (rows, element, dim) = (base.len(), base.element_type(), base.dim());
        let written = WrittenMembers { context: self, cluster: number, fault: RefCell::new(None) };
        let metric = self.builder.descent.metric;
        let shape = ClusterShape { graph, number, rows, element, dim, metric };
        match (shape.read(&written)?, written.fault.into_inner()) {
            (_, Some(fault)) => Err(fault),
            (Some(cluster), None) => Ok(cluster),
            // Each object is sound, so they do not belong together.
            (None, None) => Err(Error::file(
                self.store.folder(),
                format_args!("members of cluster {number} at odds with `place`"),
                "objects of one build: delete the folder and plan again",
            )
            .into()),
        }
    }

    /// Builds a cluster. Writes its lists, a piece for each other cluster of its members.
    pub(super) fn build(&self, number: u32) -> Outcome<()> {
        let clusters = read_clusters(self.plan, self.store)?;
        let cluster = self.members(&clusters, number)?;
        let (id, members) = (TaskId::new(TaskStage::Build, number as usize), cluster.ids.len());
        if members == 0 {
            let empty = BuiltCluster { members, central: CentralNode::NONE, entry: None, lone: Vec::new() };
            return self.put(id, empty, &[]);
        }
        let mut local = LocalIndex::build(self.builder, cluster, self.embedding, &clusters.mean, |_| true)?;
        let lists = local.lists.get(0..members)?;
        let degree = self.builder.strategy.max_degree();
        let piece = |places: &std::ops::Range<usize>| {
            bytemuck::cast_slice(&lists[places.start * degree..places.end * degree])
        };
        let pieces: Vec<(u32, &[u8])> =
            local.parcels.iter().map(|parcel| (parcel.other, piece(&parcel.places))).collect();
        let LocalIndex { central, entry, lone, .. } = local;
        let built = BuiltCluster { members, central, entry: Some(entry), lone };
        self.put(id, built, &pieces)
    }

    pub(super) fn built(&self, cluster: u32) -> Outcome<Input<BuiltCluster>> {
        let built: Input<BuiltCluster> = self.store.input(TaskId::new(TaskStage::Build, cluster as usize))?;
        let BuiltCluster { members, central, entry, ref lone } = built.more;
        let is_node = |node: u32| (node as usize) < self.base.len();
        let sound =
            if members == 0 { entry.is_none() } else { entry.is_some_and(is_node) && is_node(central.node) };
        if sound && lone.iter().all(|&node| is_node(node)) { Ok(built) } else { Err(built.lost()) }
    }

    /// Reads the lists of `cluster` for the nodes that it shares with `other`: keys of ids.
    fn lists(&self, cluster: &Input<BuiltCluster>, other: u32, nodes: usize) -> Outcome<Vec<Key>> {
        let lists: Vec<Key> = cluster.numbers(other)?;
        let is_known = |&key: &Key| key == NONE || (key as u32 as usize) < self.base.len();
        let sound = lists.len() == nodes * self.builder.strategy.max_degree() && lists.iter().all(is_known);
        if sound { Ok(lists) } else { Err(cluster.lost()) }
    }

    /// Merges the lists of a cluster with those of the clusters before it. Writes finished rows, a
    /// piece for each range of ids.
    ///
    /// Merges on the host: a GPU merges to the same bits.
    pub(super) fn merge(&self, number: u32) -> Outcome<()> {
        let clusters = read_clusters(self.plan, self.store)?;
        let before = clusters.before(number);
        let id = TaskId::new(TaskStage::Merge, number as usize);
        if before.is_empty() {
            return self.put(id, (), &[]);
        }
        let Cluster { ids, others, vectors, .. } = self.members(&clusters, number)?;
        let (mut parcels, mut order) = parcels(&others, |other| before.contains(&other));
        parcels.truncate(before.len());
        order.truncate(parcels.last().map_or(0, |parcel| parcel.places.end));
        let (own, degree) = (self.built(number)?, self.builder.strategy.max_degree());
        let mut keys: Vec<Key> = Vec::with_capacity(order.len() * degree);
        for parcel in &parcels {
            keys.extend(self.lists(&own, parcel.other, parcel.places.len())?);
        }
        let members = Members { ids, order };
        if !keys.iter_mut().all(|key| members.to_member(key)) {
            return Err(own.lost());
        }
        let vectors = self.embedding.moved(vectors)?;
        let space = self.embedding.space(vectors, &self.builder.descent.progress)?;
        let mut lists = HostLists::of_keys(space, degree, members, keys);
        let mut rows: Vec<Vec<u32>> = vec![Vec::new(); self.plan.ranges()];
        for parcel in parcels {
            self.builder.descent.progress.check()?;
            let other = self.built(parcel.other)?;
            let waiting = self.lists(&other, number, parcel.places.len())?;
            let records = lists.merge(&[WaitingLists { places: parcel.places, lists: &waiting }])?;
            for record in records.chunks_exact(1 + degree) {
                rows[record[0] as usize / self.plan.range_rows].extend_from_slice(record);
                // Repeated rows get the neighbours of the first row of their group.
                for copy in self.shared.repeated.copies_of(record[0]) {
                    let rows = &mut rows[copy as usize / self.plan.range_rows];
                    rows.push(copy);
                    rows.extend_from_slice(&record[1..]);
                }
            }
        }
        let pieces: Vec<(u32, &[u8])> =
            (0..).zip(&rows).map(|(range, rows)| (range, bytemuck::cast_slice(rows))).collect();
        self.put(id, (), &pieces)
    }
}
