//! A build that is out of core, from end to end.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use rayon::prelude::*;

use super::checkpoint::{Checkpoint, Checkpoints, Shape};
use super::checksums::changed;
use super::entries::spread;
use super::fault::{Attempt, Damage, Fault};
use super::log::Bins;
use super::merge::{Merged, Merger};
use super::partition::{Partition, Table};
use super::pipeline::{Merging, Pipeline, Step};
use super::trace::{Task, TaskKind, Trace};
use super::turns::Turns;
use super::warm::warm;
use super::work::{Manifest, WorkFolder, save};
use super::{CHECKPOINT, CLUSTERS, CacheUse, ClusterPlan, Dispatcher, LISTS, Order, REPEATED, ROWS, TABLE};
use crate::atomic_file::with_suffix;
use crate::build::Below;
use crate::gpu::KernelTime;
use crate::index::IndexFile;
use crate::memory::zeros;
use crate::parallel::spawn;
use crate::prune::{Entry, random_entries};
use crate::search::beam::Start;
use crate::vectors::Access;
use crate::vectors::embedding::Embedding;
use crate::vectors::repeated::{KEPT_BYTES, PEAK_BYTES};
use crate::vectors::space::Space;
use crate::{Builder, DataShape, Device, Fingerprint, Index, Layer, Repeated, Result, Vectors};

/// Threads that sort finished rows, each a range at a time.
const SORTERS: usize = 4;

/// Entry points that the file of an index has room for, those of its highest layer too.
const ENTRIES: usize = 1024;

/// Builds an index cluster by cluster, with work files on disk.
///
/// ```
/// use tagore::outofcore::{ClusterPlan, Limits, OutOfCore};
/// use tagore::{Builder, Index, Strategy, Synth};
///
/// # let folder = tempfile::tempdir().map_err(|source| tagore::Error::Io { path: "tmp".into(), source })?;
/// # let path = folder.path().join("index.tagore");
/// let base = Synth::new(1000, 8, 0)?.base(); // or a file that is larger than memory
/// let builder = Builder::new(Strategy::vamana()).knn(20);
/// let limits = Limits { cluster_size: Some(400), ..Limits::default() };
/// if let Some(plan) = ClusterPlan::new(&builder, &base, &limits)? {
///     OutOfCore::new(builder, plan).build(&base, &path)?;
/// }
/// assert_eq!(Index::open(&path)?.len(), 1000);
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct OutOfCore {
    builder: Builder,
    plan: ClusterPlan,
    order: Order,
    work: Option<PathBuf>,
    resume: bool,
    stale: Vec<PathBuf>,
    checkpoint: Duration,
}

/// What a build took that was out of core.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutOfCoreStats {
    /// Clusters.
    pub clusters: usize,
    /// Of these, clusters that were built: less where the build went on with what was there, more where lists were
    /// lost.
    pub built: usize,
    /// Bytes of the clusters' files.
    pub cluster_bytes: u64,
    /// How often the first list of a node was in memory when the second came.
    pub cache: CacheUse,
    /// Bytes of lists that were written to disk, and read again.
    pub spilled_bytes: u64,
    /// Rows that are not nodes of the graph because they repeat an earlier row.
    pub repeated: u64,
    /// Nodes that no path from the entry points leads to.
    pub unreachable: u64,
    /// Work files that were found damaged, and what they held made again.
    pub repaired: Vec<&'static str>,
    /// Seconds of partitioning.
    pub partition: f64,
    /// Seconds of building clusters and merging their lists.
    pub build: f64,
    /// Seconds of writing the index.
    pub write: f64,
    /// Of these, seconds of finding out whether it needs layers, and of building them.
    pub layers: f64,
    /// The most bytes of device memory that were taken at once, of the device that took most.
    pub peak_gpu_bytes: u64,
    /// Of each GPU the kernels' times, while clusters were built: where kernels run at the same time, both take longer.
    pub kernels: Vec<Vec<KernelTime>>,
    /// Of each GPU the seconds in which kernels ran.
    pub busy: Vec<f64>,
    /// When each task ran, in the order in which they began.
    pub tasks: Vec<Task>,
    /// What it was built on.
    pub devices: Vec<Device>,
    /// All parameters, by the names of the command line.
    pub parameters: BTreeMap<String, String>,
}

impl OutOfCoreStats {
    /// The seconds that tasks of a kind took, all threads together, and the bytes that they moved.
    pub fn seconds(&self, kind: TaskKind) -> (f64, u64) {
        let tasks = self.tasks.iter().filter(|task| task.kind == kind);
        tasks.fold((0.0, 0), |(seconds, bytes), task| (seconds + task.end - task.begin, bytes + task.bytes))
    }
}

impl OutOfCore {
    /// Builds in the clusters of `plan`, which [`ClusterPlan::new`] has made with the same builder.
    pub fn new(builder: Builder, plan: ClusterPlan) -> Self {
        Self {
            builder,
            plan,
            order: Order::default(),
            work: None,
            resume: false,
            stale: Vec::new(),
            checkpoint: Duration::from_secs(30),
        }
    }

    /// The order in which clusters are built.
    #[must_use]
    pub fn order(self, order: Order) -> Self {
        Self { order, ..self }
    }

    /// The folder of the work files, which must not be there yet, or be empty; it is removed in the end. It belongs to
    /// the user alone: one of another user is refused. Unless set, it is beside the index: `x.work` for `x`.
    #[must_use]
    pub fn work_dir(self, folder: PathBuf) -> Self {
        Self { work: Some(folder), ..self }
    }

    /// Whether to go on with the work files of a build of the same that has not ended, if there are any. The index is the same,
    /// byte for byte. All of the base is read, and must be what it was when it was put into clusters.
    #[must_use]
    pub fn resume(self, resume: bool) -> Self {
        Self { resume, ..self }
    }

    /// The least time between two checkpoints, half a minute unless set. A build that is resumed goes on from the last.
    #[must_use]
    pub fn checkpoint(self, every: Duration) -> Self {
        Self { checkpoint: every, ..self }
    }

    /// Files to delete right before the index takes its place, such as a report of an older index.
    /// None unless set.
    #[must_use]
    pub fn stale(self, files: Vec<PathBuf>) -> Self {
        Self { stale: files, ..self }
    }

    /// The folder of the work files of a build that writes to `output`.
    pub fn work_folder(&self, output: &Path) -> PathBuf {
        self.work.clone().unwrap_or_else(|| with_suffix(output, ".work"))
    }

    /// Builds the index of `base`, of which a part is in memory at a time if it is mapped from a file, and writes it to `output`.
    /// Nodes that cannot be reached are counted, not connected. Once all vectors are in their clusters, work files stay
    /// if the build fails, for another that may [`resume`](Self::resume).
    ///
    /// # Errors
    /// As [`Builder::build`]; or if the plan does not fit the base, work files or the index cannot be written, there is not
    /// enough room on the disk, another build is at work in the folder, it belongs to another user, or it has files of
    /// another build.
    pub fn build(&self, base: &Vectors, output: &Path) -> Result<OutOfCoreStats> {
        let Self { builder, plan, .. } = self;
        builder.descent.k_for(base)?;
        builder.check_for(&DataShape::new(base.len(), base.dim(), base.element_type())?)?;
        let devices = builder.devices_for(plan.cluster_size)?;
        let mut manifest = Manifest { parameters: self.parameters(base, &devices)?, plan: *plan };
        let mut folder = WorkFolder::open(&self.work_folder(output), &mut manifest, self.resume)?;
        // Of the build that goes on, however much memory is free by now.
        let plan = manifest.plan;
        plan.check(base.len())?;
        folder.check_free(plan.disk_bytes)?;
        let trace = Trace::new();
        let parameters = manifest.parameters.clone();
        let mut stats = OutOfCoreStats { devices: devices.clone(), parameters, ..OutOfCoreStats::default() };
        let run = Run { settings: self, base, output, devices: &devices, plan: &plan, trace: &trace };
        // Each thing is made again once: a disk that loses it again is not one to build on.
        let mut repaired = BTreeSet::new();
        loop {
            match run.attempt(&mut folder, repaired.is_empty(), &mut stats) {
                Ok(()) => break,
                Err(Fault::Failed(error)) => return Err(error),
                Err(Fault::Damage(damage)) => {
                    if !repaired.insert(damage) {
                        return Err(damage.error(folder.path()));
                    }
                    tracing::warn!(
                        file = damage.file(),
                        "a work file is damaged; what it held is made again"
                    );
                    repaired.extend(run.forget(&folder, damage)?.into_iter().map(Damage::Lists));
                    stats.repaired.push(damage.file());
                }
            }
        }
        folder.remove();
        stats.tasks = trace.tasks();
        stats.unreachable = Index::open(output)?.unreachable(&builder.descent.progress)?;
        Ok(stats)
    }

    /// What the index depends on.
    fn parameters(&self, base: &Vectors, devices: &[Device]) -> Result<BTreeMap<String, String>> {
        let Self { builder, order, plan, .. } = self;
        let Fingerprint { rows, dim, element, hash } = Fingerprint::of(base);
        let mut parameters = builder.all_parameters(builder.descent.k_for(base)?);
        let kind = if devices.contains(&Device::Cpu) { "cpu" } else { "gpu" };
        let more = [
            ("input", format!("{rows} x {dim} {element}, hash {hash:016x}")),
            ("order", order.to_string()),
            ("device", kind.to_owned()),
            ("layers", builder.layered.to_string()),
        ];
        parameters.extend(more.map(|(name, value)| (name.to_owned(), value)));
        for (name, limit) in plan.limits.named() {
            parameters.extend(limit.map(|limit| (name.to_owned(), limit.to_string())));
        }
        Ok(parameters)
    }
}

/// What attempts at a build have in common.
struct Run<'a> {
    settings: &'a OutOfCore,
    base: &'a Vectors,
    output: &'a Path,
    devices: &'a [Device],
    plan: &'a ClusterPlan,
    trace: &'a Trace,
}

impl Run<'_> {
    /// Goes on from what is in the folder, which is of an earlier run if this is the `first` attempt.
    fn attempt(&self, folder: &mut WorkFolder, first: bool, stats: &mut OutOfCoreStats) -> Attempt<()> {
        let Self { settings: OutOfCore { builder, .. }, base, trace, .. } = *self;
        let began = Instant::now();
        let embedding = Embedding::new(base, builder.descent.metric, &builder.descent.progress)?;
        let partition = self.partition(folder, &embedding, first)?;
        folder.keep();
        stats.clusters = partition.graph.clusters();
        stats.cluster_bytes = partition.bytes();
        stats.partition += began.elapsed().as_secs_f64();

        let began = Instant::now();
        let (mut merged, mut checkpoints) = self.merge(folder, (&partition, &embedding), stats)?;
        stats.build += began.elapsed().as_secs_f64();
        (stats.cache, stats.spilled_bytes) = (merged.cache, merged.spilled_bytes);

        let (began, begin) = (Instant::now(), trace.now());
        let repeated = partition.repeated()?;
        stats.repeated = repeated.len() as u64;
        self.copy_rows(&mut merged, &repeated)?;
        let mut entries = match builder.strategy.entry {
            Entry::Medoid => spread(base, &embedding, &merged),
            Entry::Random => {
                let places = random_entries(base.len() - repeated.len(), builder.descent.seed);
                places.into_iter().map(|place| repeated.other(place)).collect()
            }
        };
        stats.layers = self.write(&merged, &repeated, &mut entries)?;
        let bytes = merged.rows.bytes();
        trace.ended(TaskKind::Write, "writer", None, begin, bytes);
        stats.write += began.elapsed().as_secs_f64();
        Ok(checkpoints.wait()?)
    }

    /// Forgets what is lost, so that it is made again. If lists are, all that wait are read: the pairs whose lists are.
    fn forget(&self, folder: &WorkFolder, damage: Damage) -> Result<BTreeSet<(u32, u32)>> {
        match damage {
            Damage::Clusters | Damage::Repeated => folder.forget(TABLE)?,
            Damage::Rows => folder.forget(CHECKPOINT)?,
            Damage::Lists(pair) => {
                if let Some(mut checkpoint) = folder.load::<Checkpoint>(CHECKPOINT)?
                    && let Some(lists) = folder.log(LISTS, checkpoint.bytes.0)?
                {
                    let mut lost = checkpoint.damaged(&lists, &self.settings.builder.descent.progress)?;
                    lost.insert(pair);
                    checkpoint.forget(&lost);
                    save(&folder.state(CHECKPOINT), &checkpoint)?;
                    return Ok(lost);
                }
            }
        }
        Ok(BTreeSet::new())
    }

    /// The clusters that are there, or new ones. Those of an `earlier` run must be of the base as it is.
    fn partition(&self, folder: &WorkFolder, embedding: &Embedding, earlier: bool) -> Attempt<Partition> {
        let Self { settings: OutOfCore { builder, .. }, base, plan, trace, devices, .. } = *self;
        if let Some(table) = folder.load::<Table>(TABLE)?
            && table.is_sound(base, embedding, plan.cluster_size)
            && let Some(log) = folder.log(CLUSTERS, table.bytes)?
            && let Some(repeated) = folder.log(REPEATED, table.repeated_bytes())?
        {
            if earlier {
                table.checksums.check(base, folder.path(), &builder.descent.progress)?;
            }
            return Ok(Partition::open(base, table, (log, repeated)));
        }
        folder.forget(TABLE)?;
        let begin = trace.now();
        let log = folder.log(CLUSTERS, 0)?.ok_or(Fault::Damage(Damage::Clusters))?;
        let repeated_log = folder.log(REPEATED, 0)?.ok_or(Fault::Damage(Damage::Repeated))?;
        let descent = &builder.descent;
        let mut partition = thread::scope(|scope| {
            for device in devices.iter().filter(|device| matches!(device, Device::Cuda(_))) {
                let builder = builder.clone().device(*device);
                // Without a thread for it, kernels are compiled when a cluster is built.
                let _ = spawn(scope, move || {
                    // Whatever is wrong is found again, and said, when a cluster is built.
                    if let Err(error) = warm(&builder, base, embedding, (plan.cluster_size, devices.len())) {
                        tracing::debug!(%error, "kernels were not compiled beforehand");
                    }
                });
            }
            let (logs, repeated) = ((log, repeated_log), self.repeated()?);
            let watched = (descent.seed, &descent.progress);
            Partition::new((base, &repeated), embedding, (plan, devices[0]), logs, watched)
        })?;
        let checksum = partition.checksums.digest();
        if folder.load::<Checkpoint>(CHECKPOINT)?.is_some_and(|done| done.base != checksum) {
            // An earlier table was lost, and with it the checksums of the blocks.
            return Err(changed(base, "other values", folder.path()).into());
        }
        save(&folder.state(TABLE), &partition.table()?)?;
        trace.ended(TaskKind::Partition, "partition", None, begin, partition.bytes());
        Ok(partition)
    }

    /// The rows of the base that are left out of the graph.
    fn repeated(&self) -> Result<Repeated> {
        let Self { settings: OutOfCore { builder, .. }, base, plan, .. } = *self;
        if !builder.grouped {
            return Ok(Repeated::default());
        }
        if !plan.groups {
            let needed = (PEAK_BYTES * base.len()).max(8 * KEPT_BYTES * base.len());
            tracing::warn!(needed, "equal rows are not looked for: too little host memory");
            return Ok(Repeated::default());
        }
        let repeated = Repeated::of_base(base, builder.descent.metric, &builder.descent.progress)?;
        if !repeated.pay(base.len()) {
            return Ok(Repeated::default());
        }
        let (rows, repeated_rows) = (base.len() - repeated.len(), repeated.len());
        tracing::info!(rows, repeated = repeated_rows, "equal rows are one node of the graph");
        Ok(repeated)
    }

    /// Gives repeated rows the neighbours of the first row of their group.
    fn copy_rows(&self, merged: &mut Merged, repeated: &Repeated) -> Attempt<()> {
        if repeated.is_empty() {
            return Ok(());
        }
        let Merged { rows, nodes_per_bin, .. } = merged;
        let (nodes_per_bin, progress) = (*nodes_per_bin, &self.settings.builder.descent.progress);
        let record_bytes = 4 + 4 * self.settings.builder.strategy.max_degree();
        let mut copy = vec![0; record_bytes];
        let sound = rows.grow(record_bytes, |piece, append| {
            progress.check()?;
            for record in piece.chunks_exact(record_bytes) {
                copy.copy_from_slice(record);
                for row in repeated.copies_of(bytemuck::pod_read_unaligned(&record[..4])) {
                    copy[..4].copy_from_slice(bytemuck::bytes_of(&row));
                    append(row as usize / nodes_per_bin, &copy)?;
                }
            }
            Ok(())
        })?;
        if sound { Ok(()) } else { Err(Fault::Damage(Damage::Rows)) }
    }

    /// Builds what is left of the clusters, and merges their lists. The last checkpoint is being saved.
    fn merge(
        &self,
        folder: &WorkFolder,
        (partition, embedding): (&Partition, &Embedding),
        stats: &mut OutOfCoreStats,
    ) -> Attempt<(Merged, Checkpoints)> {
        let Self { settings: OutOfCore { builder, order, checkpoint: every, .. }, plan, trace, .. } = *self;
        let graph = &partition.graph;
        let (row_bins, buffer) = plan.row_bins;
        let degree = builder.strategy.max_degree();
        let shape = Shape { graph, nodes: self.base.len(), degree, row_bins };
        let checksum = partition.checksums.digest();
        let done = folder.load::<Checkpoint>(CHECKPOINT)?;
        let done = done.filter(|done| done.base == checksum && done.is_sound(shape));
        let mut done = done.unwrap_or_else(|| Checkpoint::new(graph.clusters(), row_bins, checksum));
        // What was in memory is lost.
        done.forget(&BTreeSet::new());
        let lists = folder.log(LISTS, done.bytes.0)?;
        let rows = folder.log(ROWS, done.bytes.1)?.ok_or(Fault::Damage(Damage::Rows))?;
        // Which of them are lost is not known.
        let lists = lists.ok_or(Fault::Damage(Damage::Rows))?;
        let rows = Bins::open(rows, done.rows.clone(), buffer);
        let dispatcher = Dispatcher::new(*order).cache(plan.cache).seed(builder.descent.seed);
        let steps: Vec<Step> = (dispatcher.dispatch(graph)?.into_iter().enumerate())
            .map(|(turn, dispatch)| Step { turn, dispatch, built: done.is_built(graph, dispatch.load) })
            .collect();
        let left = steps.iter().filter(|step| !step.built).count();
        stats.built += left;
        let mut turns = vec![0; graph.clusters()];
        steps.iter().for_each(|step| turns[step.dispatch.load as usize] = step.turn);
        let mut merger = Merger::new((self.base.len(), degree), done, (lists, rows));
        let mut checkpoints = Checkpoints::new(folder.state(CHECKPOINT), *every);
        let stage = builder.descent.progress.stage("build", left as u64);
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
        if let Err(Fault::Failed(_)) = result {
            // So that nothing has to be built again. If this fails too, there is the last checkpoint.
            let _ = merger.evict_all().and_then(|()| merger.checkpoint()).and_then(|(checkpoint, sync)| {
                checkpoints.save(checkpoint, sync)?;
                checkpoints.wait()
            });
        }
        result?;
        stats.peak_gpu_bytes = stats.peak_gpu_bytes.max(peak_gpu_bytes.into_inner());
        for measurement in measurements {
            let measured = measurement.end()?;
            stats.kernels.push(measured.kernels);
            stats.busy.push(measured.busy_seconds);
        }
        // If writing the index is cut off, nothing has to be built again.
        let (checkpoint, sync) = merger.checkpoint()?;
        checkpoints.save(checkpoint, sync)?;
        Ok((merger.end(graph)?, checkpoints))
    }

    /// Writes the index, range by range, and in the end the layers that it needs. The seconds that
    /// these took.
    fn write(&self, merged: &Merged, repeated: &Repeated, entries: &mut Vec<u32>) -> Attempt<f64> {
        let Self { settings: OutOfCore { builder, .. }, base, .. } = *self;
        let Merged { rows, nodes_per_bin, .. } = merged;
        let degree = builder.strategy.max_degree();
        let stage = builder.descent.progress.stage("write", rows.count() as u64);
        let mut description = builder.description(builder.descent.k_for(base)?);
        let clusters = merged.entries.len();
        for (name, value) in [("clusters", clusters), ("cluster-size", self.plan.cluster_size)] {
            description.parameters.insert(name.to_owned(), value.to_string());
        }
        let shape = (base.len(), degree);
        let mut file = IndexFile::create(self.output, &description, Fingerprint::of(base), shape, ENTRIES)?;
        let sorted = &|bin: usize| {
            let first = bin * nodes_per_bin;
            let nodes = base.len().saturating_sub(first).min(*nodes_per_bin);
            let mut sorted: Vec<u32> = zeros(nodes * degree);
            sorted.fill(u32::MAX);
            // Of each node once, with ids of nodes: checksums do not say that.
            let mut missing = vec![true; nodes];
            let mut complete = true;
            let sound = rows.read(bin, |piece| {
                for record in piece.chunks_exact(4 + 4 * degree) {
                    let node: u32 = bytemuck::pod_read_unaligned(&record[..4]);
                    let place = (node as usize).wrapping_sub(first);
                    if !missing.get_mut(place).is_some_and(std::mem::take) {
                        complete = false;
                        continue;
                    }
                    let row = &mut sorted[place * degree..][..degree];
                    bytemuck::cast_slice_mut(row).copy_from_slice(&record[4..]);
                    complete &= row.iter().all(|&id| (id as usize) < base.len() || id == u32::MAX);
                }
            })?;
            if sound && complete && !missing.contains(&true) {
                Ok(sorted)
            } else {
                Err(Fault::Damage(Damage::Rows))
            }
        };
        // While a range is written, the next are read and sorted.
        let (next, turns) = (&AtomicUsize::new(0), &Turns::new());
        thread::scope(|scope| {
            let (send, ranges) = sync_channel::<Attempt<Vec<u32>>>(0);
            for _ in 0..SORTERS {
                let send = send.clone();
                spawn(scope, move || {
                    loop {
                        let bin = next.fetch_add(1, Ordering::Relaxed);
                        if bin >= rows.count() {
                            return;
                        }
                        let range = sorted(bin);
                        // Nobody receives any more once the file cannot be written.
                        if turns.take(bin, || send.send(range)).is_err() {
                            return;
                        }
                    }
                })?;
            }
            drop(send);
            for range in ranges {
                let range = range?;
                let degree_of = |row: &[u32]| row.iter().take_while(|&&id| id != u32::MAX).count() as u32;
                let degrees: Vec<u32> = range.par_chunks_exact(degree).map(degree_of).collect();
                file.append(&degrees, &range)?;
                stage.advance(1)?;
            }
            Ok::<(), Fault>(())
        })?;
        let began = Instant::now();
        let layers = self.layers(&mut file, repeated, entries)?;
        let seconds = began.elapsed().as_secs_f64();
        file.commit(Start { entries, layers: &layers }, repeated, &self.settings.stale)?;
        Ok(seconds)
    }

    /// The layers that searches of the index need, whose rows have all been written to `file`.
    fn layers(
        &self,
        file: &mut IndexFile,
        repeated: &Repeated,
        entries: &mut Vec<u32>,
    ) -> Result<Vec<Layer>> {
        let Self { settings: OutOfCore { builder, .. }, base, plan, devices, .. } = *self;
        if !builder.layered || plan.layer_nodes < 2 {
            return Ok(Vec::new());
        }
        let graph = &file.rows()?;
        graph.advise(Access::AtRandom);
        base.advise(Access::AtRandom);
        let space = &Space::unprepared(base, builder.descent.metric);
        let below = Below { base, space, graph, repeated, most: plan.layer_nodes };
        let layers = builder.clone().device(devices[0]).layers_over(&below, entries);
        base.advise(Access::Somehow);
        layers
    }
}
