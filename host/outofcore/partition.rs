//! Putting every vector into the files of its two nearest clusters, in one pass.
//!
//! Three threads pass the work on: one, with those of the pool, compares chunks of rows with the centres, one
//! gathers their records in the order of the rows, and one writes full buffers. What is on its way is bounded, so that
//! reading waits for writing where the disk is slower than the work.

use std::sync::mpsc::{channel, sync_channel};
use std::thread;

use bytemuck::pod_read_unaligned;
use half::f16;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::centres::centres;
use super::checksums::{Checksums, Summing};
use super::fault::{Attempt, Damage, Fault};
use super::log::{Bins, Gather, Log, Piece};
use super::pipeline::join;
use super::place::{Chunk, Placing};
use super::{ClusterGraph, ClusterPlan};
use crate::memory::zeros;
use crate::parallel::spawn;
use crate::vectors::embedding::Embedding;
use crate::vectors::range::check_smallest;
use crate::vectors::{Access, Element};
use crate::{Device, ElementType, Error, Progress, Repeated, Result, Vectors};

/// The most rows of a chunk.
const MOST_ROWS: usize = 1 << 14;

/// Rows that a task adds up: sums are the same for chunks of any number of such blocks.
const BLOCK: usize = 64;

/// Chunks in memory: one is compared, one waits, one is being placed.
const CHUNKS: usize = 3;

/// Chunks that the system is asked to read ahead.
const AHEAD: usize = 2;

/// Full buffers that wait to be written or are empty again.
const WRITING: usize = 8;

/// Bytes of a repeated row and the first of its group in their file.
const PAIR: usize = 8;

/// Bytes that gather such pairs.
const PAIRS: usize = 1 << 20;

/// Bytes before the row in the record of a member: its id, and the number of its other cluster.
pub(super) const RECORD_HEAD: usize = 8;

/// The clusters of a base on disk.
pub(super) struct Partition {
    files: Bins,
    /// The clusters, and the nodes that they share.
    pub graph: ClusterGraph,
    /// The mean of all embedded rows.
    pub mean: Vec<f64>,
    /// Of the base.
    pub checksums: Checksums,
    /// The rows that are in no cluster, as pairs.
    repeated: Bins,
    rows: usize,
    element: ElementType,
    dim: usize,
}

/// What is known of clusters that are on disk.
#[derive(Serialize, Deserialize)]
pub(super) struct Table {
    members: Vec<Vec<Piece>>,
    /// Bytes of the file of members.
    pub bytes: u64,
    /// Pairs of clusters, and the nodes that they share.
    shared: Vec<(u32, u32, u64)>,
    /// The bits of the mean's values.
    mean: Vec<u64>,
    /// Of the base.
    pub checksums: Checksums,
    /// Repeated rows, all in the file of these.
    repeated: Vec<Piece>,
}

impl Table {
    /// Bytes of the file of repeated rows.
    pub(super) fn repeated_bytes(&self) -> u64 {
        self.repeated.iter().fold(0, |bytes, piece| bytes.saturating_add(piece.bytes()))
    }

    /// Whether it can be the table of clusters of `base`, each of at most `most` members: all numbers are within their
    /// ranges and fit one another.
    pub(super) fn is_sound(&self, base: &Vectors, embedding: &Embedding, most: usize) -> bool {
        let clusters = self.members.len();
        let mut counts = vec![0u64; clusters];
        let mut nodes = 0u64;
        for &(a, b, shared) in &self.shared {
            // No cluster has more members than there are nodes, so that nothing overflows.
            if a >= b || b as usize >= clusters || !(1..=base.len() as u64).contains(&shared) {
                return false;
            }
            nodes += shared;
            if nodes > base.len() as u64 {
                return false;
            }
            counts[a as usize] += shared;
            counts[b as usize] += shared;
        }
        let repeated_bytes = self.repeated_bytes();
        let repeated = self.repeated.iter().all(|piece| piece.is_sound(repeated_bytes, PAIR));
        let record = record_bytes(base);
        let is_cluster = |(pieces, &count): (&Vec<Piece>, &u64)| {
            let bytes = pieces.iter().try_fold(0u64, |bytes, piece| bytes.checked_add(piece.bytes()));
            let sound = pieces.iter().all(|piece| piece.is_sound(self.bytes, record));
            sound && count <= most as u64 && bytes == Some(count * record as u64)
        };
        repeated
            && nodes.checked_add(repeated_bytes / PAIR as u64) == Some(base.len() as u64)
            && self.members.iter().zip(&counts).all(is_cluster)
            && self.mean.len() == embedding.dim(base.dim())
            && self.checksums.is_of(base.len())
    }
}

/// Bytes of the record of a member.
fn record_bytes(base: &Vectors) -> usize {
    RECORD_HEAD + base.dim() * base.element_type().size()
}

/// The members of a cluster.
pub(super) struct Cluster {
    pub number: u32,
    /// Their ids, in ascending order.
    pub ids: Vec<u32>,
    /// The other cluster that each is in.
    pub others: Vec<u32>,
    pub vectors: Vectors,
}

impl Cluster {
    /// Bytes that it was read from.
    pub(super) fn bytes(&self) -> u64 {
        let row = self.vectors.dim() * self.vectors.element_type().size();
        (self.ids.len() * (RECORD_HEAD + row)) as u64
    }
}

impl Partition {
    /// Finds the clusters of all rows but the `repeated` ones on `device`. Writes members to the
    /// first log and repeated rows to the second.
    pub(super) fn new(
        (base, repeated): (&Vectors, &Repeated),
        embedding: &Embedding,
        (plan, device): (&ClusterPlan, Device),
        (log, repeated_log): (Log, Log),
        (seed, progress): (u64, &Progress),
    ) -> Result<Self> {
        let (n, nodes) = (base.len(), base.len() - repeated.len());
        let clusters = if repeated.is_empty() { plan.clusters } else { plan.clusters_for(nodes) };
        let plan = &ClusterPlan { clusters, ..*plan };
        let stage = progress.stage("partition", nodes as u64);
        let mut pairs = Bins::new(repeated_log, 1, PAIRS);
        pairs.extend(0, bytemuck::cast_slice(repeated.words()), PAIR)?;
        pairs.pieces()?;
        let mut mean = vec![0f64; embedding.dim(base.dim())];
        // A quarter of the memory has rows with their centres, the rest records.
        let rows = plan.partition_bytes / (4 * CHUNKS * (4 * mean.len() + size_of::<[u32; 2]>()));
        let rows = (rows / BLOCK * BLOCK).clamp(BLOCK, MOST_ROWS);
        let (centres, mut assigner) =
            centres((base, repeated), embedding, (plan, device, rows), (seed, progress))?;
        let mut nearest = assigner.with(&centres)?;
        let clusters = centres.count();
        let buffer = (plan.partition_bytes / 4 * 3 / (clusters + WRITING)).clamp(4 << 10, 1 << 20);
        let mut files = Bins::new(log, clusters, buffer);
        let mut placing = Placing {
            base,
            centres: &centres,
            most: plan.cluster_size,
            sizes: vec![0; clusters],
            shared: [].into(),
            records: Gather::new(clusters, buffer),
        };
        let mut checksums = Summing::default();
        let (files, shared, largest) = thread::scope(|scope| {
            let (send_chunk, chunks) = sync_channel(CHUNKS - 2);
            let (send_full, full) = sync_channel::<(usize, Vec<u8>)>(WRITING - 2);
            let (send_empty, empty) = channel();
            let writing = spawn(scope, move || {
                for (bin, mut buffer) in full {
                    files.put(bin, &buffer)?;
                    buffer.clear();
                    // In the end nobody needs it any more.
                    let _ = send_empty.send(buffer);
                }
                Ok(files)
            })?;
            let placing = spawn(scope, move || {
                let mut write = |bin, buffer: &mut Vec<u8>| {
                    let records = std::mem::replace(buffer, empty.try_recv().unwrap_or_default());
                    // Nobody receives it once writing has failed, which has an error of its own.
                    send_full.send((bin, records)).map_err(|_| Error::Cancelled)
                };
                for chunk in chunks {
                    placing.place(&chunk, &mut write)?;
                }
                placing.records.finish(write)?;
                Ok(placing.shared)
            })?;
            let mut assign = || {
                let mut largest = 0f32;
                base.advise(Access::InOrder);
                base.prefetch(0..AHEAD * rows);
                for first in (0..n).step_by(rows) {
                    base.prefetch(first + AHEAD * rows..first + (AHEAD + 1) * rows);
                    let end = n.min(first + rows);
                    let checked = (first..end).into_par_iter().with_min_len(1024);
                    largest = largest.max(base.validate_rows(checked, embedding.metric())?);
                    checksums.add(base, end);
                    let ids = repeated.others(first..end);
                    if ids.is_empty() {
                        continue;
                    }
                    let rows = embedding.rows(base, ids.len(), |index| ids[index] as usize);
                    let nearest = nearest.two(&rows, &stage)?;
                    add_sums(&rows, &mut mean);
                    if send_chunk.send(Chunk { ids, rows, nearest }).is_err() {
                        break;
                    }
                }
                check_smallest(base, largest, embedding.metric()).map(|()| largest)
            };
            let assigned = assign();
            drop(send_chunk);
            let files = join(writing)?;
            let shared = join(placing)?;
            assigned.map(|largest| (files, shared, largest))
        })?;
        base.validated(largest);
        mean.iter_mut().for_each(|sum| *sum /= nodes as f64);
        let graph = ClusterGraph::new(clusters, shared.into_iter().map(|((a, b), nodes)| (a, b, nodes)));
        let checksums = checksums.finish();
        let (element, dim) = (base.element_type(), base.dim());
        Ok(Self { files, graph, mean, checksums, repeated: pairs, rows: n, element, dim })
    }

    /// Opens the clusters of `base` by their `table`, which is sound. The logs hold the members and
    /// the repeated rows.
    pub(super) fn open(base: &Vectors, table: Table, (log, repeated): (Log, Log)) -> Self {
        let clusters = table.members.len();
        Self {
            // Nothing is appended.
            files: Bins::open(log, table.members, 0),
            graph: ClusterGraph::new(clusters, table.shared),
            mean: table.mean.into_iter().map(f64::from_bits).collect(),
            checksums: table.checksums,
            repeated: Bins::open(repeated, vec![table.repeated], 0),
            rows: base.len(),
            element: base.element_type(),
            dim: base.dim(),
        }
    }

    /// What opens it again, once all is on the disk.
    pub(super) fn table(&mut self) -> Result<Table> {
        let members = self.files.pieces()?.to_vec();
        self.files.flushing()?()?;
        let repeated = self.repeated.pieces()?.concat();
        self.repeated.flushing()?()?;
        let Self { files, graph, mean, checksums, .. } = self;
        let pairs_of = |a: u32| graph.neighbours(a).iter().map(move |&(b, nodes)| (a, b, nodes));
        let shared = (0..graph.clusters() as u32).flat_map(pairs_of).filter(|&(a, b, _)| a < b).collect();
        let mean = mean.iter().map(|x| x.to_bits()).collect();
        Ok(Table { members, bytes: files.bytes(), shared, mean, checksums: checksums.clone(), repeated })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.files.bytes()
    }

    /// Reads the repeated rows; [`Damage::Repeated`] if they are not what was written.
    pub(super) fn repeated(&self) -> Attempt<Repeated> {
        let mut words: Vec<u32> = Vec::with_capacity((self.repeated.bytes() / 4) as usize);
        let take = |piece: &[u8]| words.extend_from_slice(&bytemuck::pod_collect_to_vec::<u8, u32>(piece));
        let sound = self.repeated.read(0, take)?;
        let repeated = Repeated::read(&words, self.rows).ok().filter(|_| sound);
        repeated.ok_or(Fault::Damage(Damage::Repeated))
    }

    /// Reads a cluster; [`Damage::Clusters`] if it is not what was written.
    pub(super) fn read(&self, number: u32) -> Attempt<Cluster> {
        match self.element {
            ElementType::F32 => self.read_as(number, Vectors::from_f32),
            ElementType::F16 => self.read_as::<f16>(number, Vectors::from_f16),
            ElementType::U8 => self.read_as(number, Vectors::from_u8),
            ElementType::I8 => self.read_as(number, Vectors::from_i8),
        }
    }

    fn read_as<T: Element>(
        &self,
        number: u32,
        vectors: impl FnOnce(Vec<T>, usize) -> Result<Vectors>,
    ) -> Attempt<Cluster> {
        let row = self.dim * size_of::<T>();
        let members = self.graph.neighbours(number).iter().map(|&(_, nodes)| nodes).sum::<u64>() as usize;
        let (mut ids, mut others) = (vec![0u32; members], vec![0u32; members]);
        let mut values: Vec<T> = zeros(members * self.dim);
        let (mut of_ids, mut of_others, mut of_values) = (&mut ids[..], &mut others[..], &mut values[..]);
        let room = |bytes| {
            let count = bytes / (RECORD_HEAD + row);
            (
                of_ids.split_off_mut(..count).unwrap_or_default(),
                of_others.split_off_mut(..count).unwrap_or_default(),
                of_values.split_off_mut(..count * self.dim).unwrap_or_default(),
            )
        };
        let sound = self.files.read_into(number as usize, room, |piece, (ids, others, values)| {
            let records = piece.chunks_exact(RECORD_HEAD + row).zip(values.chunks_exact_mut(self.dim));
            for ((record, values), (id, other)) in records.zip(ids.iter_mut().zip(others)) {
                *id = pod_read_unaligned(&record[..4]);
                *other = pod_read_unaligned(&record[4..RECORD_HEAD]);
                bytemuck::cast_slice_mut(values).copy_from_slice(&record[RECORD_HEAD..]);
            }
        })?;
        if !sound || !self.are_members(number, &ids, &others) {
            return Err(Fault::Damage(Damage::Clusters));
        }
        let vectors = vectors(values, self.dim)?;
        // They were checked as rows of the base: beside its largest values small ones are fine.
        vectors.validated(0.0);
        Ok(Cluster { number, ids, others, vectors })
    }

    /// Checks the members of cluster `number`. `ids` must ascend strictly and stay below the number
    /// of rows. `others` holds each member's second cluster: as many members in each as the cluster
    /// graph says the two share.
    fn are_members(&self, number: u32, ids: &[u32], others: &[u32]) -> bool {
        let mut left = vec![0u64; self.graph.clusters()];
        self.graph.neighbours(number).iter().for_each(|&(other, nodes)| left[other as usize] = nodes);
        let mut take = |other: u32| {
            let left = left.get_mut(other as usize)?;
            *left = left.checked_sub(1)?;
            Some(())
        };
        // As many as all of them share are read, so that nothing is left.
        ids.is_sorted_by(|a, b| a < b)
            && ids.last().is_none_or(|&last| (last as usize) < self.rows)
            && others.iter().all(|&other| take(other).is_some())
    }
}

/// Adds all rows to `sums`, in an order that does not depend on threads.
fn add_sums(rows: &Vectors, sums: &mut [f64]) {
    let sum_of = |block: usize| {
        let mut sum = vec![0f64; rows.dim()];
        for row in block * BLOCK..((block + 1) * BLOCK).min(rows.len()) {
            sum.iter_mut().zip(rows.row(row).iter()).for_each(|(sum, &x)| *sum += f64::from(x));
        }
        sum
    };
    let blocks: Vec<Vec<f64>> = (0..rows.len().div_ceil(BLOCK)).into_par_iter().map(sum_of).collect();
    for block in blocks {
        sums.iter_mut().zip(block).for_each(|(sum, x)| *sum += x);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::super::folder::Folder;
    use super::super::plan::Limits;
    use super::super::{CLUSTERS, REPEATED};
    use super::*;
    use crate::{Builder, Metric, Strategy, Synth};

    fn open(folder: &Path) -> (Log, Log) {
        let folder = Arc::new(Folder::open(folder).unwrap());
        let log = |name| Log::open(&folder, name, 0).unwrap().unwrap();
        (log(CLUSTERS), log(REPEATED))
    }

    /// The members of every cluster with the other that each is in, and the mean.
    type Found = (Vec<(Vec<u32>, Vec<u32>)>, Vec<f64>);

    fn partition(
        base: &Vectors,
        metric: Metric,
        size: usize,
        device: Device,
        change: impl Fn(&mut ClusterPlan),
    ) -> Found {
        let builder = Builder::new(Strategy::vamana()).metric(metric).device(Device::Cpu);
        let limits = Limits { cluster_size: Some(size), ..Limits::default() };
        let mut plan = ClusterPlan::new(&builder, base, &limits).unwrap().unwrap();
        change(&mut plan);
        let folder = tempfile::tempdir().unwrap();
        let logs = open(folder.path());
        let embedding = Embedding::new(base, metric, &Progress::silent()).unwrap();
        let watched = (3, &Progress::silent());
        let all = (base, &Repeated::default());
        let found = Partition::new(all, &embedding, (&plan, device), logs, watched).unwrap();
        let members = |number| {
            let Cluster { ids, others, vectors, .. } =
                found.read(number).unwrap_or_else(|_| panic!("damage"));
            assert!(ids.len() <= size && ids.is_sorted());
            ids.iter().zip(0..).for_each(|(&id, row)| assert_eq!(vectors.row(row), base.row(id as usize)));
            (ids, others)
        };
        ((0..found.graph.clusters() as u32).map(members).collect(), found.mean)
    }

    #[test]
    fn a_device_makes_the_clusters_of_the_cpu() {
        // Clumps of a few places each, in no order: what f16 rounds away decides nowhere which centre is nearer.
        let place = |i: usize| {
            [0.0, 20.0, 43.0, 70.0, 104.0, 150.0][i * i % 97 % 6] + [0.0, 1.0, 2.3, 3.9, 5.8][i % 5]
        };
        let base = Vectors::from_f32((0..400).flat_map(|i| [place(i), 3.0]).collect(), 2).unwrap();
        for metric in [Metric::L2, Metric::InnerProduct] {
            let cpu = partition(&base, metric, 250, Device::Cpu, |_| ());
            let device = partition(&base, metric, 250, Device::Emulated, |_| ());
            assert!(device == cpu, "{metric}");
        }
    }

    #[test]
    fn little_memory_makes_the_same_clusters() {
        let base = Synth::new(3000, 10, 2).unwrap().base();
        let expected = partition(&base, Metric::L2, 700, Device::Cpu, |_| ());
        assert_eq!(expected.0.iter().map(|members| members.0.len()).sum::<usize>(), 6000);
        // Chunks of 64 rows, and buffers that are full again and again.
        assert!(partition(&base, Metric::L2, 700, Device::Cpu, |plan| plan.partition_bytes = 1) == expected);
    }
}
