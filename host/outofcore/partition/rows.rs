//! The partition of a base that stays in memory: clusters are lists of its rows, found on all
//! devices. No vector is written.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use super::assign::{AssignedRange, Assigning, BlockSums, add_blocks};
use super::centres::{Found, find_centres};
use super::clusters::Members;
use super::pass::buffer_bytes;
use super::place::{Filling, distances};
use super::{Partition, PartitionInput, chunk_rows};
use crate::cluster::assigner::{Assigner, AssignerRoom};
use crate::gpu::Gpu;
use crate::outofcore::plan::{ClusterGraph, RECORD_HEAD};
use crate::outofcore::store::{Bins, Checksums, Log, RepeatedFile};
use crate::parallel::{join, spawn};
use crate::vectors::Access;
use crate::vectors::range::check_smallest;
use crate::{Device, Error, Metric, Repeated, Result, Vectors};

/// Rows of a range: ranges are assigned in any order, and placed in theirs. A multiple of
/// [`SUM_ROWS`](super::SUM_ROWS) and of the rows of a checksum.
const RANGE: usize = 1 << 17;

/// Threads that assign on a GPU: two embed rows while the GPU compares those of another.
const THREADS: usize = 3;

/// The clusters of a base, as lists of its rows.
pub(crate) struct RowLists {
    /// Of each cluster: ids in ascending order, each with the member's other cluster.
    members: Bins,
    graph: ClusterGraph,
    mean: Vec<f64>,
    checksums: Checksums,
    metric: Metric,
}

/// A range of rows with their nearest centres, and the checksums of its blocks.
type AssignedBlocks = (AssignedRange, Vec<u32>);

impl RowLists {
    /// Finds the clusters of all rows except the repeated ones, on all `devices`: those of
    /// [`Partition::new`] on the first. Writes members to `log`.
    pub(crate) fn find(input: &PartitionInput<'_>, devices: &[Device], log: Log) -> Result<Self> {
        let PartitionInput { base, repeated, embedding, plan, progress, .. } = *input;
        let n = base.len();
        let nodes = n - repeated.len();
        let dim = embedding.dim(base.dim());
        let piece = chunk_rows(plan, dim);
        let Found { centres, rounding, .. } = find_centres(input, piece)?;
        let clusters = centres.count();
        let stage = &progress.stage("partition", nodes as u64);
        let ranges: Vec<_> = (0..n).step_by(RANGE).map(|first| first..n.min(first + RANGE)).collect();
        let next = &AtomicUsize::new(0);
        let assign = |gpu: Option<Gpu>, to: Sender<(usize, AssignedBlocks)>| -> Result<()> {
            let room = AssignerRoom { piece, centres: clusters };
            let mut assigner = Assigner::new(gpu, &rounding, room)?;
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(rows) = ranges.get(number).cloned() else { return Ok(()) };
                let (nearest, sums) = (assigner.with(&centres)?, BlockSums::new(dim));
                let assigning = Assigning { base, repeated, embedding, nearest, stage, sums, largest: 0.0 };
                let done = (assigning.range(rows.clone(), piece)?, Checksums::of_blocks(base, rows));
                // A closed channel means that the rows cannot be placed.
                if to.send((number, done)).is_err() {
                    return Ok(());
                }
            }
        };
        base.advise(Access::InOrder);
        let mut filling = Filling::new(clusters, plan.cluster_size);
        // The disk reads the base meanwhile, so it writes members later.
        let mut members = Bins::new(log.deferred(), clusters, buffer_bytes(plan, clusters));
        let (mut mean, mut largest, mut checksums) = (vec![0f64; dim], 0f32, Checksums::default());
        let mut place = |rows: Range<usize>, (assigned, blocks): AssignedBlocks| -> Result<()> {
            progress.check()?;
            checksums.add(&blocks);
            largest = largest.max(assigned.largest);
            add_blocks(&mut mean, &assigned.sums);
            let ids = repeated.others(rows);
            let mut pairs = assigned.nearest;
            if !filling.put_all(&assigned.pairs) {
                filling.put(
                    &mut pairs,
                    |index| distances(&centres, embedding, base, ids[index]),
                    progress,
                )?;
            }
            let (records, ends) = by_cluster(&ids, &pairs, clusters);
            let mut first = 0;
            for (cluster, &end) in ends.iter().enumerate() {
                members.extend(cluster, bytemuck::cast_slice(&records[first..end]), RECORD_HEAD)?;
                first = end;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let (send, results) = channel();
            let mut threads = Vec::new();
            for gpu in workers(devices)? {
                let (assign, send, count) = (&assign, send.clone(), ranges.len());
                // After an error the other threads assign no more ranges.
                let stop = move |_: &Error| next.store(count, Ordering::Relaxed);
                threads.push(spawn(scope, move || assign(gpu, send).inspect_err(stop))?);
            }
            drop(send);
            // Ranges are placed in their order, whichever is assigned first.
            let (mut waiting, mut turn) = (BTreeMap::new(), 0);
            let placed = results.into_iter().try_for_each(|(number, done)| {
                waiting.insert(number, done);
                while let Some(done) = waiting.remove(&turn) {
                    place(ranges[turn].clone(), done)?;
                    turn += 1;
                }
                Ok(())
            });
            threads.into_iter().try_for_each(join).and(placed)
        })?;
        members.pieces()?;
        check_smallest(base, largest, embedding.metric())?;
        base.validated(largest);
        mean.iter_mut().for_each(|sum| *sum /= nodes as f64);
        let shared = filling.shared.into_iter().map(|((a, b), nodes)| (a, b, nodes));
        let graph = ClusterGraph::new(clusters, shared);
        Ok(Self { members, graph, mean, checksums, metric: embedding.metric() })
    }

    /// The partition with these lists. Writes the `repeated` rows to `repeated_log`.
    pub(crate) fn partition(
        self,
        base: &Vectors,
        repeated: &Repeated,
        repeated_log: Log,
    ) -> Result<Partition> {
        let Self { members, graph, mean, checksums, metric } = self;
        base.advise(Access::AtRandom);
        Ok(Partition {
            members: Members::Ids(members, base.clone()),
            graph,
            mean,
            checksums,
            repeated: RepeatedFile::write(repeated_log, repeated, base.len())?,
            rows: base.len(),
            element: base.element_type(),
            dim: base.dim(),
            metric,
        })
    }
}

/// The records of rows by cluster, in the order of the rows: ids, each with the row's other
/// cluster. Also returns the end of each cluster's records.
fn by_cluster(ids: &[u32], pairs: &[[u32; 2]], clusters: usize) -> (Vec<[u32; 2]>, Vec<usize>) {
    let mut ends = vec![0; clusters];
    pairs.iter().flatten().for_each(|&cluster| ends[cluster as usize] += 1);
    let mut begin = 0;
    for end in &mut ends {
        begin += std::mem::replace(end, begin);
    }
    let mut records = vec![[0; 2]; 2 * ids.len()];
    for (&id, &[a, b]) in ids.iter().zip(pairs) {
        for (cluster, other) in [(a, b), (b, a)] {
            let place = &mut ends[cluster as usize];
            records[*place] = [id, other];
            *place += 1;
        }
    }
    (records, ends)
}

/// The GPU of each thread that assigns; none on the CPU, which has all threads of the pool.
fn workers(devices: &[Device]) -> Result<Vec<Option<Gpu>>> {
    let mut workers = Vec::new();
    for device in devices {
        match device.gpu()? {
            Some(gpu) => {
                for _ in 1..THREADS {
                    workers.push(Some(gpu.fork()?));
                }
                workers.push(Some(gpu));
            }
            None => workers.push(None),
        }
    }
    Ok(workers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_grouped_by_cluster_in_the_order_of_rows() {
        let (records, ends) = by_cluster(&[3, 5, 8], &[[2, 0], [0, 2], [3, 2]], 5);
        assert_eq!(ends, [2, 2, 5, 6, 6]);
        assert_eq!(records, [[3, 2], [5, 2], [3, 0], [5, 0], [8, 3], [8, 2]]);
    }
}
