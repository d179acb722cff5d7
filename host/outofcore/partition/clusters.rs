//! The clusters of a base.

use bytemuck::pod_read_unaligned;

use super::table::Table;
use crate::memory::zeros;
use crate::outofcore::plan::{ClusterGraph, RECORD_HEAD};
use crate::outofcore::store::{Attempt, Bins, Checksums, Damage, Fault, Log, RepeatedFile};
use crate::vectors::Access;
use crate::vectors::shape::with_type;
use crate::{Component, ElementType, Metric, Repeated, Result, Vectors};

/// The clusters of a base.
pub(crate) struct Partition {
    pub(super) members: Members,
    pub graph: ClusterGraph,
    /// The mean of all embedded rows.
    pub mean: Vec<f64>,
    /// Checksums of the base.
    pub checksums: Checksums,
    /// Rows outside all clusters.
    pub(super) repeated: RepeatedFile,
    pub(super) rows: usize,
    pub(super) element: ElementType,
    pub(super) dim: usize,
    pub(super) metric: Metric,
}

/// The members of clusters, as records.
pub(super) enum Members {
    /// With their vectors.
    Vectors(Bins),
    /// Ids and other clusters alone: the vectors are rows of this base.
    Ids(Bins, Vectors),
}

impl Members {
    fn bins(&self) -> &Bins {
        match self {
            Self::Vectors(bins) | Self::Ids(bins, _) => bins,
        }
    }

    fn bins_mut(&mut self) -> &mut Bins {
        match self {
            Self::Vectors(bins) | Self::Ids(bins, _) => bins,
        }
    }
}

/// A small cluster has less than one in this many of the mean members.
const SMALL: usize = 16;

/// The members of a cluster.
pub(crate) struct Cluster {
    pub number: u32,
    /// Ids in ascending order.
    pub ids: Vec<u32>,
    /// The other cluster of each member.
    pub others: Vec<u32>,
    pub vectors: Vectors,
    /// Whether it is far smaller than most: rows far from all others make such clusters.
    pub is_small: bool,
}

impl Cluster {
    /// Bytes of its records on disk.
    pub(crate) fn bytes(&self) -> u64 {
        let row = self.vectors.element_type().row_bytes(self.vectors.dim());
        (self.ids.len() * (RECORD_HEAD + row)) as u64
    }
}

impl Partition {
    /// Opens the clusters of `base` by their sound `table`. The logs hold the members and the
    /// repeated rows.
    pub(crate) fn open(base: &Vectors, metric: Metric, table: Table, [log, repeated]: [Log; 2]) -> Self {
        let clusters = table.members.len();
        if table.reads_base {
            base.advise(Access::AtRandom);
        }
        // No buffer: nothing is appended.
        let bins = Bins::open(log, table.members, 0);
        Self {
            members: if table.reads_base { Members::Ids(bins, base.clone()) } else { Members::Vectors(bins) },
            graph: ClusterGraph::new(clusters, table.shared),
            mean: table.mean.into_iter().map(f64::from_bits).collect(),
            checksums: table.checksums,
            repeated: RepeatedFile::open(repeated, table.repeated, base.len()),
            rows: base.len(),
            element: base.element_type(),
            dim: base.dim(),
            metric,
        }
    }

    /// Returns the table that opens the clusters again, and a function that waits until their files
    /// are on disk.
    pub(crate) fn table(&mut self) -> Result<(Table, impl FnOnce() -> Result<()> + Send + 'static + use<>)> {
        let Self { members, graph, mean, checksums, repeated, .. } = self;
        let reads_base = matches!(members, Members::Ids(..));
        let files = members.bins_mut();
        let members = files.pieces()?.to_vec();
        let (members_on_disk, repeated_on_disk) = (files.flushing()?, repeated.flushing()?);
        let repeated = repeated.pieces()?;
        let pairs_of = |a: u32| graph.neighbors(a).iter().map(move |&(b, nodes)| (a, b, nodes));
        let shared = (0..graph.clusters() as u32).flat_map(pairs_of).filter(|&(a, b, _)| a < b).collect();
        let mean = mean.iter().map(|x| x.to_bits()).collect();
        let (bytes, checksums) = (files.bytes(), checksums.clone());
        let table = Table { members, reads_base, bytes, shared, mean, checksums, repeated };
        Ok((table, move || members_on_disk().and_then(|()| repeated_on_disk())))
    }

    /// Bytes of all records.
    pub(crate) fn bytes(&self) -> u64 {
        self.members.bins().bytes()
    }

    /// Reads the repeated rows. Fails with [`Damage::Repeated`] if they are damaged.
    pub(crate) fn repeated(&self) -> Attempt<Repeated> {
        self.repeated.read()
    }

    /// Reads a cluster. With `in_place`, vectors of the base stay where they are. Fails with
    /// [`Damage::Clusters`] if it is damaged.
    pub(crate) fn read(&self, number: u32, in_place: bool) -> Attempt<Cluster> {
        let &Self { ref graph, rows, element, dim, metric, .. } = self;
        let shape = ClusterShape { graph, number, rows, element, dim, metric };
        let records = &MembersOf(self.members.bins(), number);
        let cluster = match &self.members {
            Members::Vectors(_) => shape.read(records)?,
            Members::Ids(_, base) => shape.read_from(base, in_place, records)?,
        };
        cluster.ok_or(Fault::Lost(Damage::Clusters))
    }
}

/// The records of a cluster's members, in pieces of whole records.
pub(crate) trait MemberRecords {
    /// Reads all pieces, maybe on several threads. `room` gets the bytes of each piece in ascending
    /// order of ids, and returns its destination. `take` copies the piece there. Returns false if a
    /// piece is damaged.
    fn read<R: Send>(&self, room: impl FnMut(usize) -> R, take: impl Fn(&[u8], R) + Sync) -> Result<bool>;
}

/// A cluster of a partition on disk.
struct MembersOf<'a>(&'a Bins, u32);

impl MemberRecords for MembersOf<'_> {
    fn read<R: Send>(&self, room: impl FnMut(usize) -> R, take: impl Fn(&[u8], R) + Sync) -> Result<bool> {
        self.0.read_into(self.1 as usize, room, take)
    }
}

/// A cluster to be read: its number, and the shape of the base.
#[derive(Clone, Copy)]
pub(crate) struct ClusterShape<'a> {
    pub graph: &'a ClusterGraph,
    pub number: u32,
    /// Rows of the base.
    pub rows: usize,
    pub element: ElementType,
    pub dim: usize,
    pub metric: Metric,
}

impl ClusterShape<'_> {
    /// Reads the cluster from its records; `None` if they are damaged.
    pub(crate) fn read(self, records: &impl MemberRecords) -> Result<Option<Cluster>> {
        with_type!(self.element, T => self.read_as::<T>(records))
    }

    /// Reads the cluster from records of ids and other clusters, and its vectors from `base`;
    /// `None` if the records are damaged.
    fn read_from(
        self,
        base: &Vectors,
        in_place: bool,
        records: &impl MemberRecords,
    ) -> Result<Option<Cluster>> {
        let mut members = vec![[0u32; 2]; self.members()];
        let mut left = &mut members[..];
        let room = |bytes| left.split_off_mut(..bytes / RECORD_HEAD).unwrap_or_default();
        let sound = records.read(room, |piece, members| {
            bytemuck::cast_slice_mut(members).copy_from_slice(piece);
        })?;
        let (ids, others): (Vec<u32>, Vec<u32>) = members.into_iter().map(|[id, other]| (id, other)).unzip();
        if !sound || !self.are_members(&ids, &others) {
            return Ok(None);
        }
        let vectors = if in_place { base.only(&ids)? } else { base.select(&ids)? };
        // A resumed build has checked the sums of the base alone; its values were checked before.
        vectors.validated(0.0);
        let is_small = self.is_small();
        Ok(Some(Cluster { number: self.number, ids, others, vectors, is_small }))
    }

    /// The number of members.
    fn members(self) -> usize {
        self.graph.neighbors(self.number).iter().map(|&(_, nodes)| nodes).sum::<u64>() as usize
    }

    /// Whether the cluster has less than a share of the mean of all, each node in two clusters.
    fn is_small(self) -> bool {
        let members = (SMALL * self.members() * self.graph.clusters()) as u64;
        members < 2 * self.graph.nodes()
    }

    fn read_as<T: Component>(self, records: &impl MemberRecords) -> Result<Option<Cluster>> {
        let Self { number, .. } = self;
        let width = self.element.values(self.dim);
        let row = width * size_of::<T>();
        let members = self.members();
        let (mut ids, mut others) = (vec![0u32; members], vec![0u32; members]);
        let mut values: Vec<T> = zeros(members * width)?;
        let (mut of_ids, mut of_others, mut of_values) = (&mut ids[..], &mut others[..], &mut values[..]);
        let room = |bytes| {
            let count = bytes / (RECORD_HEAD + row);
            (
                of_ids.split_off_mut(..count).unwrap_or_default(),
                of_others.split_off_mut(..count).unwrap_or_default(),
                of_values.split_off_mut(..count * width).unwrap_or_default(),
            )
        };
        let sound = records.read(room, |piece, (ids, others, values)| {
            let records = piece.chunks_exact(RECORD_HEAD + row).zip(values.chunks_exact_mut(width));
            for ((record, values), (id, other)) in records.zip(ids.iter_mut().zip(others)) {
                *id = pod_read_unaligned(&record[..4]);
                *other = pod_read_unaligned(&record[4..RECORD_HEAD]);
                bytemuck::cast_slice_mut(values).copy_from_slice(&record[RECORD_HEAD..]);
            }
        })?;
        if !sound || !self.are_members(&ids, &others) {
            return Ok(None);
        }
        let vectors = Vectors::from_owner(values, self.dim)?;
        // Checksums do not prove that these are rows of the base.
        if vectors.validate_rows(0..members, |row| row, self.metric).is_err() {
            return Ok(None);
        }
        // Small values are fine beside the largest values of the base.
        vectors.validated(0.0);
        Ok(Some(Cluster { number, ids, others, vectors, is_small: self.is_small() }))
    }

    /// Checks the members.
    ///
    /// `ids` must ascend strictly and stay below the number of rows. `others`, the other cluster of
    /// each member, must agree with the weights of the cluster graph.
    fn are_members(self, ids: &[u32], others: &[u32]) -> bool {
        let mut left = vec![0u64; self.graph.clusters()];
        self.graph.neighbors(self.number).iter().for_each(|&(other, nodes)| left[other as usize] = nodes);
        let mut take = |other: u32| {
            let left = left.get_mut(other as usize)?;
            *left = left.checked_sub(1)?;
            Some(())
        };
        // The number of members is the sum of the weights, so no weight is left over.
        ids.is_sorted_by(|a, b| a < b)
            && ids.last().is_none_or(|&last| (last as usize) < self.rows)
            && others.iter().all(|&other| take(other).is_some())
    }
}
