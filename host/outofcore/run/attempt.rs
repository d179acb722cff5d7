//! An attempt at a build: from the work files to the finished index.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::Instant;

use super::build::OutOfCore;
use super::entries::{Reached, entry_points};
use super::merge::{Merged, Merger};
use super::pipeline::{Merging, Pipeline, Step};
use super::stats::OutOfCoreStats;
use super::trace::{TaskKind, Trace};
use super::warm::warm;
use crate::outofcore::partition::{Partition, PartitionInput, RowLists, Table, find_repeated};
use crate::outofcore::plan::{ClusterGraph, ClusterPlan};
use crate::outofcore::store::{
    Attempt, Bins, CHECKPOINT, CLUSTERS, Checkpoint, CheckpointShape, Checkpoints, Damage, Fault, LISTS, Log,
    Pair, REPEATED, ROWS, Saving, TABLE, Work, changed,
};
use crate::parallel::{join, spawn};
use crate::vectors::embedding::Embedding;
use crate::vectors::gpu::{Lent, Replicas};
use crate::{Device, Error, Progress, Repeated, Result, Vectors};

/// The constants of a build, shared by its attempts.
pub(super) struct Run<'a> {
    pub settings: &'a OutOfCore,
    pub base: &'a Vectors,
    pub output: &'a Path,
    pub devices: &'a [Device],
    pub plan: &'a ClusterPlan,
    pub trace: &'a Trace,
    pub progress: &'a Parts,
}

/// Progress of the stages of a build.
pub(super) struct Parts {
    pub partition: Progress,
    pub build: Progress,
    pub write: Progress,
}

/// The state of clusters at the start of an attempt.
struct Begun {
    checkpoint: Checkpoint,
    steps: Vec<Step>,
    /// The turn of each cluster.
    turns: Vec<usize>,
    /// Clusters to build.
    left: usize,
}

impl Run<'_> {
    /// Goes on from the work that is there. In the `first` attempt this is of an earlier run.
    pub(super) fn attempt(&self, work: &mut Work, first: bool, stats: &mut OutOfCoreStats) -> Attempt<()> {
        let Self { settings: OutOfCore { builder, .. }, base, .. } = *self;
        let began = Instant::now();
        let embedding = Embedding::new(base, builder.descent.metric, &self.progress.partition)?;
        if first {
            builder.warn_of_parts(base)?;
        }
        let (partition, table) = self.partition(work, &embedding, first)?;
        work.keep();
        stats.clusters = partition.graph.clusters();
        stats.cluster_bytes = partition.bytes();
        stats.partition += began.elapsed().as_secs_f64();

        let began = Instant::now();
        let (mut merged, mut checkpoints) = self.merge(work, &partition, table, &embedding, stats)?;
        stats.build += began.elapsed().as_secs_f64();
        (stats.cache, stats.spilled_bytes) = (merged.cache, merged.spilled_bytes);
        thread::scope(|scope| {
            // No list waits and no member is needed any more, so their files are emptied while the
            // index is written: large files take a while.
            let cutting = spawn(scope, || {
                checkpoints.wait()?;
                work.log(LISTS, 0)?;
                work.log(CLUSTERS, 0).map(drop)
            })?;
            self.finish(&mut merged, &partition, &embedding, stats)?;
            // The index is complete: what is left of the work harms nobody.
            if let Err(error) = join(cutting) {
                tracing::debug!(%error, "work files not emptied");
            }
            Ok(())
        })
    }

    /// Writes the index of the finished rows.
    fn finish(
        &self,
        merged: &mut Merged,
        partition: &Partition,
        embedding: &Embedding,
        stats: &mut OutOfCoreStats,
    ) -> Attempt<()> {
        let Self { settings: OutOfCore { builder, .. }, base, trace, .. } = *self;
        let began = Instant::now();
        let task = trace.start(TaskKind::Write, "writer", None);
        let repeated = partition.repeated()?;
        stats.repeated = repeated.len() as u64;
        self.copy_rows(merged, &repeated)?;
        let Merged { entries: clusters, central, .. } = merged;
        let nodes = Reached { clusters, central: *central };
        let entries = entry_points(builder, base, embedding, &repeated, nodes);
        self.write(merged, &repeated, embedding, entries, stats)?;
        task.end(merged.rows.bytes());
        stats.write += began.elapsed().as_secs_f64() - stats.reach;
        Ok(())
    }

    /// Removes the state of damaged content, so that the next attempt makes the content again.
    ///
    /// Damaged lists: checks all waiting parcels, and returns the pairs of damaged ones.
    pub(super) fn forget(&self, work: &Work, damage: Damage) -> Result<BTreeSet<Pair>> {
        match damage {
            Damage::Clusters | Damage::Repeated => work.forget(TABLE)?,
            Damage::Rows => work.forget(CHECKPOINT)?,
            Damage::Lists(pair) => {
                if let Some(mut checkpoint) = work.load::<Checkpoint>(CHECKPOINT)?
                    && let Some(lists) = work.log(LISTS, checkpoint.list_bytes)?
                {
                    let mut lost = checkpoint.damaged(&lists, &self.settings.builder.descent.progress)?;
                    lost.insert(pair);
                    checkpoint.forget(&lost);
                    work.save(CHECKPOINT, &checkpoint)?;
                    return Ok(lost);
                }
            }
        }
        Ok(BTreeSet::new())
    }

    /// Opens the clusters of earlier work, or makes new ones, whose table is still to be saved.
    /// Clusters of an `earlier` run must be of the unchanged base.
    fn partition(
        &self,
        work: &Work,
        embedding: &Embedding,
        earlier: bool,
    ) -> Attempt<(Partition, Option<Saving>)> {
        let Self { base, plan, .. } = *self;
        if let Some(table) = work.load::<Table>(TABLE)?
            && table.is_sound(base, embedding, plan.cluster_size)
            && let done = work.load::<Checkpoint>(CHECKPOINT)?
            && let bytes = if done.is_some_and(|done| table.is_merged(&done)) { 0 } else { table.bytes }
            && let Some(log) = work.log(CLUSTERS, bytes)?
            && let Some(repeated) = work.log(REPEATED, table.repeated_bytes())?
        {
            if earlier {
                table.checksums.check(base, work.path(), &self.progress.partition)?;
            }
            let metric = embedding.metric();
            return Ok((Partition::open(base, metric, table, [log, repeated]), None));
        }
        work.forget(TABLE)?;
        self.new_partition(work, embedding)
    }

    fn new_partition(&self, work: &Work, embedding: &Embedding) -> Attempt<(Partition, Option<Saving>)> {
        let Self { settings: OutOfCore { builder, .. }, base, plan, trace, devices, .. } = *self;
        let task = trace.start(TaskKind::Partition, "partition", None);
        let empty = |name, damage| work.log(name, 0)?.ok_or(Fault::Lost(damage));
        let log = || empty(CLUSTERS, Damage::Clusters);
        let repeated_log = empty(REPEATED, Damage::Repeated)?;
        let mut partition = thread::scope(|scope| {
            for device in devices.iter().filter(|device| matches!(device, Device::Cuda(_))) {
                let builder = builder.clone().device(*device);
                // Without this thread, kernels are compiled when the first cluster is built.
                let _ = spawn(scope, move || {
                    // A failure appears again as an error when a cluster is built.
                    if let Err(error) = warm(&builder, base, embedding, plan.cluster_size, devices.len()) {
                        tracing::debug!(%error, "kernels not compiled in advance");
                    }
                });
            }
            let input = PartitionInput {
                base,
                repeated: &Repeated::default(),
                embedding,
                plan,
                device: devices[0],
                seed: builder.descent.seed,
                progress: &self.progress.partition,
            };
            if plan.reads_base || work.is_in_memory() {
                self.row_lists(input, log, repeated_log)
            } else {
                let repeated = &find_repeated(builder, base, plan, input.progress)?;
                Ok(Partition::new(&PartitionInput { repeated, ..input }, log()?, repeated_log)?)
            }
        })?;
        let checksum = partition.checksums.digest();
        if work.load::<Checkpoint>(CHECKPOINT)?.is_some_and(|done| done.base != checksum) {
            // An earlier table was lost, and the checksums of the blocks with it.
            return Err(changed(base, "other values", work.path()).into());
        }
        let (table, on_disk) = partition.table()?;
        task.end(partition.bytes());
        Ok((partition, work.saving(TABLE, table, on_disk)))
    }

    /// Partitions a base that stays in memory. Repeated rows are looked for meanwhile, since most
    /// data has none; if it has, the rows are assigned again without them.
    fn row_lists(
        &self,
        input: PartitionInput<'_>,
        empty: impl Fn() -> Attempt<Log>,
        repeated_log: Log,
    ) -> Attempt<Partition> {
        let Self { settings: OutOfCore { builder, .. }, base, plan, devices, .. } = *self;
        let unwatched = input.progress.unwatched();
        base.read_ahead();
        let log = empty()?;
        let (repeated, lists, replicas) = thread::scope(|scope| -> Result<_> {
            let finding = spawn(scope, || find_repeated(builder, base, plan, &unwatched))?;
            let copying = devices.iter().filter(|_| plan.replicates);
            let copying: Vec<_> =
                copying.filter_map(|&to| spawn(scope, move || self.replica(to)).ok()).collect();
            let lists = RowLists::find(&input, devices, log);
            let repeated = join(finding);
            // Without its copy a device takes the rows of the host.
            let missing = |error: &Error| tracing::debug!(%error, "no copy of the base on a device");
            let copied = |thread| join(thread).inspect_err(missing).ok().flatten();
            let replicas: Replicas = copying.into_iter().filter_map(copied).collect();
            Ok((repeated?, lists?, replicas))
        })?;
        let base = &base.clone().with_replicas(replicas);
        let lists = if repeated.is_empty() {
            lists
        } else {
            // Progress has been reported once.
            let input = PartitionInput { repeated: &repeated, progress: &unwatched, ..input };
            RowLists::find(&input, devices, empty()?)?
        };
        Ok(lists.partition(base, &repeated, repeated_log)?)
    }

    /// A copy of the base on `device`. None if it has less memory than planned for the first one.
    fn replica(&self, device: Device) -> Result<Option<Lent>> {
        let Self { settings: OutOfCore { builder, .. }, base, plan, .. } = *self;
        let gpu = builder.descent.clone().device(device).gpu(plan.cluster_size, base.dim())?;
        match gpu {
            Some(gpu) if gpu.free_memory()? >= plan.device_bytes => base.replica(&gpu.fork()?).map(Some),
            _ => Ok(None),
        }
    }

    /// What checkpoints must fit.
    fn shape<'a>(&self, graph: &'a ClusterGraph) -> CheckpointShape<'a> {
        let (nodes, degree) = (self.base.len(), self.settings.builder.strategy.max_degree());
        CheckpointShape { graph, nodes, degree, row_bins: self.plan.row_bins.count }
    }

    /// Loads the last checkpoint, and computes the steps of all clusters.
    fn begin(&self, work: &Work, graph: &ClusterGraph, base_checksum: u32) -> Result<Begun> {
        let Self { plan, .. } = *self;
        let (shape, row_bins) = (self.shape(graph), plan.row_bins.count);
        let checkpoint = work.load::<Checkpoint>(CHECKPOINT)?;
        let checkpoint = checkpoint.filter(|done| done.base == base_checksum && done.is_sound(shape));
        let mut checkpoint =
            checkpoint.unwrap_or_else(|| Checkpoint::new(graph.clusters(), row_bins, base_checksum));
        // Parcels that were only in memory are lost.
        checkpoint.forget(&BTreeSet::new());
        let steps: Vec<Step> = (graph.dispatch(plan.cache)?.into_iter().enumerate())
            .map(|(turn, dispatch)| Step { turn, dispatch, built: checkpoint.is_built(graph, dispatch.load) })
            .collect();
        let left = steps.iter().filter(|step| !step.built).count();
        let mut turns = vec![0; graph.clusters()];
        steps.iter().for_each(|step| turns[step.dispatch.load as usize] = step.turn);
        Ok(Begun { checkpoint, steps, turns, left })
    }

    /// Builds the remaining clusters and merges their lists. The table of new clusters is saved
    /// meanwhile, before the first checkpoint. The last checkpoint may still be saving on return.
    fn merge(
        &self,
        work: &Work,
        partition: &Partition,
        table: Option<Saving>,
        embedding: &Embedding,
        stats: &mut OutOfCoreStats,
    ) -> Attempt<(Merged, Checkpoints)> {
        let Self { settings: OutOfCore { builder, checkpoint: every, .. }, plan, trace, .. } = *self;
        let graph = &partition.graph;
        let Begun { checkpoint, steps, turns, left } =
            self.begin(work, graph, partition.checksums.digest())?;
        stats.built += left;
        let lists = work.log(LISTS, checkpoint.list_bytes)?;
        let rows = work.log(ROWS, checkpoint.row_bytes)?.ok_or(Fault::Lost(Damage::Rows))?;
        // A short file of lists: any of them may be lost, so build all clusters again.
        let lists = lists.ok_or(Fault::Lost(Damage::Rows))?;
        let rows = Bins::open(rows, checkpoint.rows.clone(), plan.row_bins.buffer);
        let degree = builder.strategy.max_degree();
        let mut merger = Merger::new(self.base.len(), degree, checkpoint, lists, rows);
        let mut checkpoints = work.checkpoints(*every);
        table.map_or(Ok(()), |save| checkpoints.run(save))?;
        let stage = self.progress.build.stage("build", left as u64);
        let peak_gpu_bytes = AtomicU64::new(0);
        let pipeline = Pipeline {
            builder,
            devices: self.devices,
            partition,
            embedding,
            trace,
            stage: &stage,
            turns: &turns,
            peak_gpu_bytes: &peak_gpu_bytes,
        };
        let gpus = self.devices.iter().filter_map(|device| device.gpu().transpose());
        let measurements = gpus.map(|gpu| gpu?.watch()).collect::<Result<Vec<_>>>()?;
        let merging = Merging { merger: &mut merger, checkpoints: &mut checkpoints };
        let result = pipeline.run(steps, merging);
        if let (true, Err(Fault::Failed(_))) = (checkpoints.is_kept(), &result) {
            // A resumed build then builds no finished cluster again. On failure, the previous
            // checkpoint stays.
            let _ = merger.evict_all().and_then(|()| merger.checkpoint()).and_then(|(checkpoint, sync)| {
                // After a failed write, rows may be in the file whose pairs are not merged.
                if checkpoint.is_sound(self.shape(graph)) {
                    checkpoints.save(checkpoint, sync)?;
                }
                checkpoints.wait()
            });
        }
        result?;
        stats.peak_gpu_bytes = stats.peak_gpu_bytes.max(peak_gpu_bytes.into_inner());
        // An attempt after damage adds to those of the one before.
        stats.kernels.resize(measurements.len(), Vec::new());
        stats.busy.resize(measurements.len(), 0.0);
        for (measurement, (kernels, busy)) in
            measurements.into_iter().zip(stats.kernels.iter_mut().zip(&mut stats.busy))
        {
            let measured = measurement.end()?;
            kernels.extend(measured.kernels);
            *busy += measured.busy_seconds;
        }
        // A build that stops while writing the index then builds no cluster again.
        let (checkpoint, sync) = merger.checkpoint()?;
        checkpoints.save(checkpoint, sync)?;
        Ok((merger.end(graph)?, checkpoints))
    }
}
