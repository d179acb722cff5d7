//! The pass over the base that writes each vector to its two nearest clusters.
//!
//! It is a pipeline of three threads. One compares chunks of rows with the centres, on the device
//! or on the threads of the pool. One gathers the records of the chunks in the order of the rows.
//! One writes full buffers. Queues between the threads are bounded, so reading waits for a slow
//! disk.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;

use super::Partition;
use super::assign::{Assigning, BlockSums, CHUNK_STEP, Chunk, add_blocks};
use super::centres::{Found, find_centres};
use super::clusters::Members;
use super::place::{Filling, Placing, SharedNodes};
use crate::outofcore::plan::{ClusterGraph, ClusterPlan};
use crate::outofcore::store::{Bins, Gather, Log, RepeatedFile, Summing};
use crate::parallel::{join, spawn};
use crate::vectors::Access;
use crate::vectors::embedding::Embedding;
use crate::vectors::range::check_smallest;
use crate::{Device, Error, Progress, Repeated, Result, Vectors};

/// Maximum rows of a chunk.
const MAX_CHUNK_ROWS: usize = 1 << 14;

/// Chunks in memory: one compared, one waiting, one gathered.
const CHUNKS: usize = 3;

/// Chunks of read-ahead.
const AHEAD: usize = 2;

/// Buffers on their way to the disk and back.
const WRITING: usize = 8;

/// The input of a partition.
#[derive(Clone, Copy)]
pub(crate) struct PartitionInput<'a> {
    pub base: &'a Vectors,
    /// Rows that enter no cluster.
    pub repeated: &'a Repeated,
    pub embedding: &'a Embedding,
    pub plan: &'a ClusterPlan,
    /// The device that compares vectors with centres.
    pub device: Device,
    pub seed: u64,
    pub progress: &'a Progress,
}

/// A full buffer of a cluster, for the writing thread.
struct FullBuffer {
    cluster: usize,
    records: Vec<u8>,
}

/// Assigns all rows in their order, and takes sums over the whole base.
struct Pass<'a> {
    assigning: Assigning<'a>,
    chunk_rows: usize,
    checksums: Summing,
    /// The sum of all embedded rows.
    sums: Vec<f64>,
}

impl Partition {
    /// Finds the clusters of all rows except the repeated ones. Writes members to `log` and
    /// repeated rows to `repeated_log`.
    pub(crate) fn new(input: &PartitionInput<'_>, log: Log, repeated_log: Log) -> Result<Self> {
        let PartitionInput { base, repeated, embedding, plan, progress, .. } = *input;
        let nodes = base.len() - repeated.len();
        let stage = progress.stage("partition", nodes as u64);
        let repeated = RepeatedFile::write(repeated_log, repeated, base.len())?;
        let dim = embedding.dim(base.dim());
        let chunk_rows = chunk_rows(plan, dim);
        let Found { centres, mut assigner, .. } = find_centres(input, chunk_rows)?;
        let nearest = assigner.with(&centres)?;
        let clusters = centres.count();
        let buffer = buffer_bytes(plan, clusters);
        let files = Bins::new(log, clusters, buffer);
        let placing = Placing {
            base,
            embedding,
            centres: &centres,
            filling: Filling::new(clusters, plan.cluster_size),
            records: Gather::new(clusters, buffer),
            progress: input.progress,
        };
        let (sums, stage) = (BlockSums::new(dim), &stage);
        let repeated_rows = input.repeated;
        let assigning =
            Assigning { base, repeated: repeated_rows, embedding, nearest, stage, sums, largest: 0.0 };
        let (checksums, sums) = (Summing::default(), vec![0f64; dim]);
        let mut pass = Pass { assigning, chunk_rows, checksums, sums };
        let (files, shared) = thread::scope(|scope| {
            let (send_chunk, chunks) = sync_channel(CHUNKS - 2);
            let (send_full, full) = sync_channel(WRITING - 2);
            let (send_empty, empty) = channel();
            let writing = spawn(scope, move || write_buffers(files, full, &send_empty))?;
            let placing = spawn(scope, move || place_chunks(placing, chunks, &send_full, &empty))?;
            let assigned = pass.run(send_chunk);
            let files = join(writing)?;
            let shared = join(placing)?;
            assigned.map(|()| (files, shared))
        })?;
        let Pass { assigning: Assigning { sums, largest, .. }, checksums, sums: mut mean, .. } = pass;
        base.validated(largest);
        add_blocks(&mut mean, &sums.finish());
        mean.iter_mut().for_each(|sum| *sum /= nodes as f64);
        let graph = ClusterGraph::new(clusters, shared.into_iter().map(|((a, b), nodes)| (a, b, nodes)));
        let checksums = checksums.finish();
        let (rows, element, dim) = (base.len(), base.element_type(), base.dim());
        let members = Members::Vectors(files);
        let metric = embedding.metric();
        Ok(Self { members, graph, mean, checksums, repeated, rows, element, dim, metric })
    }
}

/// Rows of a chunk, of `dim` embedded components each: a quarter of the memory of the partition
/// is for rows with their centres, the rest holds records.
pub(crate) fn chunk_rows(plan: &ClusterPlan, dim: usize) -> usize {
    let rows = plan.partition_bytes / (4 * CHUNKS * (4 * dim + size_of::<[u32; 2]>()));
    (rows / CHUNK_STEP * CHUNK_STEP).clamp(CHUNK_STEP, MAX_CHUNK_ROWS)
}

/// Bytes of the buffer of each cluster.
pub(super) fn buffer_bytes(plan: &ClusterPlan, clusters: usize) -> usize {
    (plan.partition_bytes / 4 * 3 / (clusters + WRITING)).clamp(4 << 10, 1 << 20)
}

impl Pass<'_> {
    /// Sends all chunks in the order of their rows.
    fn run(&mut self, chunks: SyncSender<Chunk>) -> Result<()> {
        let Assigning { base, embedding, .. } = self.assigning;
        let (n, chunk_rows) = (base.len(), self.chunk_rows);
        base.advise(Access::InOrder);
        base.prefetch(0..AHEAD * chunk_rows);
        for first in (0..n).step_by(chunk_rows) {
            base.prefetch(first + AHEAD * chunk_rows..first + (AHEAD + 1) * chunk_rows);
            let end = n.min(first + chunk_rows);
            let chunk = self.assigning.assign(first..end)?;
            self.checksums.add(base, end);
            add_blocks(&mut self.sums, &self.assigning.sums.take());
            // A closed channel means that another thread has failed.
            if chunk.is_some_and(|chunk| chunks.send(chunk).is_err()) {
                break;
            }
        }
        check_smallest(base, self.assigning.largest, embedding.metric())
    }
}

/// Places all chunks into clusters. Full buffers go to `full`, and empty buffers come back.
fn place_chunks(
    mut placing: Placing<'_>,
    chunks: Receiver<Chunk>,
    full: &SyncSender<FullBuffer>,
    empty: &Receiver<Vec<u8>>,
) -> Result<SharedNodes> {
    let mut write = |cluster, buffer: &mut Vec<u8>| {
        let records = std::mem::replace(buffer, empty.try_recv().unwrap_or_default());
        // The channel closes only if writing failed, and that error counts.
        full.send(FullBuffer { cluster, records }).map_err(|_| Error::Cancelled)
    };
    for chunk in chunks {
        placing.place(chunk, &mut write)?;
    }
    placing.records.finish(write)?;
    Ok(placing.filling.shared)
}

/// Writes full buffers and returns them empty.
fn write_buffers(mut files: Bins, full: Receiver<FullBuffer>, empty: &Sender<Vec<u8>>) -> Result<Bins> {
    for FullBuffer { cluster, mut records } in full {
        files.put(cluster, &mut records)?;
        // Fails at the end, when the other thread is gone.
        let _ = empty.send(records);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::super::Cluster;
    use super::*;
    use crate::outofcore::plan::Limits;
    use crate::outofcore::store::{CLUSTERS, Folder, REPEATED};
    use crate::{Builder, Metric, Strategy, Synth};

    fn open(folder: &Path) -> (Log, Log) {
        let folder = Arc::new(Folder::open(folder).unwrap());
        let log = |name| Log::open(&folder, name, 0).unwrap().unwrap();
        (log(CLUSTERS), log(REPEATED))
    }

    /// Ids and other clusters of the members of each cluster, and the mean of all rows.
    #[derive(PartialEq)]
    struct Found {
        clusters: Vec<(Vec<u32>, Vec<u32>)>,
        mean: Vec<f64>,
    }

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
        let (log, repeated_log) = open(folder.path());
        let progress = &Progress::silent();
        let embedding = &Embedding::new(base, metric, progress).unwrap();
        let repeated = &Repeated::default();
        let input = PartitionInput { base, repeated, embedding, plan: &plan, device, seed: 3, progress };
        let found = Partition::new(&input, log, repeated_log).unwrap();
        let members = |number| {
            let Cluster { ids, others, vectors, .. } =
                found.read(number, false).unwrap_or_else(|_| panic!("damage"));
            assert!(ids.len() <= size && ids.is_sorted());
            ids.iter()
                .zip(0..)
                .for_each(|(&id, row)| assert_eq!(vectors.host_row(row), base.host_row(id as usize)));
            (ids, others)
        };
        let clusters = (0..found.graph.clusters() as u32).map(members).collect();
        Found { clusters, mean: found.mean }
    }

    #[test]
    fn a_device_makes_the_clusters_of_the_cpu() {
        // Shuffled clumps so far apart that rounding to f16 changes no nearest centre.
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
    fn small_buffers_make_the_same_clusters() {
        let base = Synth::new(3000, 10, 2).unwrap().base();
        let expected = partition(&base, Metric::L2, 700, Device::Cpu, |_| ());
        assert_eq!(expected.clusters.iter().map(|(ids, _)| ids.len()).sum::<usize>(), 6000);
        // Chunks of 64 rows, and buffers of 4 KiB.
        assert!(partition(&base, Metric::L2, 700, Device::Cpu, |plan| plan.partition_bytes = 1) == expected);
    }
}
