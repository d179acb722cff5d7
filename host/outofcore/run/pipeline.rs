//! The pipeline of clusters: threads that read, and threads that build and merge.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread;

use super::local::LocalIndex;
use super::merge::Merger;
use super::parcels::merge_parcels;
use super::permits::Permits;
use super::trace::{Task, TaskKind, Trace};
use super::turns::Turns;
use crate::outofcore::partition::{Cluster, Partition};
use crate::outofcore::plan::{Crew, Dispatch};
use crate::outofcore::store::{Attempt, Checkpoints, Reader};
use crate::parallel::{join, locked, spawn};
use crate::progress::StageProgress;
use crate::vectors::embedding::Embedding;
use crate::{Builder, Device, Result};

/// The inputs of all clusters.
#[derive(Clone, Copy)]
pub(super) struct Pipeline<'a> {
    pub builder: &'a Builder,
    pub devices: &'a [Device],
    pub partition: &'a Partition,
    pub embedding: &'a Embedding,
    pub trace: &'a Trace,
    pub stage: &'a StageProgress<'a>,
    /// The turn of each cluster.
    pub turns: &'a [usize],
    /// Peak bytes of device memory so far.
    pub peak_gpu_bytes: &'a AtomicU64,
}

/// A dispatch and its turn.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub turn: usize,
    pub dispatch: Dispatch,
    /// The cluster was built by an earlier run: this step only evicts.
    pub built: bool,
}

/// A step and its cluster, on the way to a worker. No cluster if the step only evicts.
type Read = Attempt<(Step, Option<Cluster>)>;

/// State that one worker changes at a time.
pub(super) struct Merging<'a> {
    pub merger: &'a mut Merger,
    pub checkpoints: &'a mut Checkpoints,
}

/// The shared ends of all workers.
#[derive(Clone, Copy)]
struct Shared<'a> {
    turns: &'a Turns,
    merging: &'a Mutex<Merging<'a>>,
}

/// A thread that builds and merges.
struct Worker<'a> {
    pipeline: Pipeline<'a>,
    shared: Shared<'a>,
    device: Device,
    /// Number among the workers of the device.
    number: usize,
    /// The name in the trace, such as `cuda:0 a`.
    name: String,
    /// Permits to build on the device.
    permits: Arc<Permits>,
}

impl Pipeline<'_> {
    /// Builds and merges all clusters.
    ///
    /// One thread per device reads clusters, and the [`Crew`] of each device builds them. Read
    /// clusters and waiting parcels are handed over in the order of the steps, one cluster at a
    /// time. A row depends on which of its lists comes second, so this order makes the index
    /// independent of the devices.
    pub(super) fn run(self, steps: Vec<Step>, merging: Merging<'_>) -> Attempt<()> {
        let steps = &Mutex::new(steps.into_iter());
        let merging = &Mutex::new(merging);
        let (reads, builds) = (&Turns::new(), &Turns::new());
        let shared = Shared { turns: builds, merging };
        thread::scope(|scope| {
            let (send, clusters) = sync_channel::<Read>(0);
            for reader in 0..self.devices.len() {
                let send = send.clone();
                spawn(scope, move || self.read(steps, &send, reads, &format!("reader {reader}")))?;
            }
            drop(send);
            // Dropped with the last worker, so that no reader waits forever.
            let clusters = Arc::new(Mutex::new(clusters));
            let mut workers = self.devices.iter().flat_map(|&device| {
                let Crew { threads, builds } = Crew::for_device(device, self.devices.len());
                let permits = Arc::new(Permits::new(builds));
                (0..threads).map(move |number| {
                    let name = format!("{device} {}", char::from(b'a' + number as u8));
                    let permits = Arc::clone(&permits);
                    Worker { pipeline: self, shared, device, number, name, permits }
                })
            });
            // The first worker runs here, on the caller's rayon pool.
            let first = workers.next();
            let mut threads = Vec::new();
            for worker in workers {
                let clusters = Arc::clone(&clusters);
                // Without a free thread, fewer workers build.
                let Ok(thread) = spawn(scope, move || worker.run(&clusters)) else { break };
                threads.push(thread);
            }
            let mut result = first.map_or(Ok(()), |first| first.run(&clusters));
            drop(clusters);
            for thread in threads {
                result = result.and(join(thread));
            }
            result
        })
    }

    fn read(
        self,
        steps: &Mutex<impl Iterator<Item = Step>>,
        to: &SyncSender<Read>,
        turns: &Turns,
        thread: &str,
    ) {
        let stop = turns.stop();
        // A device gathers rows of the base on their way; a build on the CPU reads them often.
        let in_place = self.devices.iter().all(|device| *device != Device::Cpu);
        loop {
            let Some(step) = locked(steps).next() else {
                stop.cancel();
                return;
            };
            let number = step.dispatch.load;
            let task = self.trace.start(TaskKind::Read, thread, Some(number));
            let read = if step.built { Ok(None) } else { self.partition.read(number, in_place).map(Some) };
            if let Ok(Some(cluster)) = &read {
                task.end(cluster.bytes());
            }
            // A closed channel means that the build has failed.
            let failed = read.is_err();
            let send = || match to.send(read.map(|cluster| (step, cluster))) {
                Ok(()) if !failed => Ok(()),
                _ => Err(()),
            };
            if turns.take(step.turn, send) != Ok(Some(())) {
                return;
            }
        }
    }
}

impl Worker<'_> {
    fn run(self, clusters: &Mutex<Receiver<Read>>) -> Attempt<()> {
        let Self { pipeline, shared: Shared { turns, merging }, device, number, .. } = self;
        let stop = turns.stop();
        let descent = pipeline.builder.descent.clone().device(device);
        let descent = if number > 0 { descent.forked()? } else { descent };
        let builder = pipeline.builder.clone().descent(descent);
        let mut spilled = locked(merging).merger.spilled()?;
        loop {
            let permit = self.permits.take();
            let Ok(read) = locked(clusters).recv() else { break };
            let (step, cluster) = read?;
            // Equal vectors may leave clusters empty.
            let cluster = cluster.filter(|cluster| !cluster.ids.is_empty());
            let local = cluster.map(|cluster| self.build(&builder, cluster)).transpose()?;
            drop(permit);
            let has_turn = match local {
                Some(local) => self.merge(step, local, &mut spilled)?,
                None => turns.take(step.turn, || evict(merging, step))?.is_some(),
            };
            if !has_turn {
                return Ok(());
            }
            if !step.built {
                pipeline.stage.advance(1)?;
            }
        }
        stop.cancel();
        Ok(())
    }

    /// Builds the index of a cluster.
    fn build(&self, builder: &Builder, cluster: Cluster) -> Result<LocalIndex> {
        let Pipeline { embedding, partition, trace, turns, peak_gpu_bytes, .. } = self.pipeline;
        let mut begin = trace.now();
        let (number, bytes) = (cluster.number, cluster.bytes());
        let turn = turns[number as usize];
        let is_to_come = |other: u32| turns[other as usize] > turn;
        let local = LocalIndex::build(builder, cluster, embedding, &partition.mean, is_to_come)?;
        let (descent, prune) = (&local.descent, &local.prune);
        peak_gpu_bytes.fetch_max(descent.peak_gpu_bytes.max(prune.peak_gpu_bytes), Ordering::Relaxed);
        for (kind, seconds) in [
            (TaskKind::Copy, descent.copy + prune.copy),
            (TaskKind::Descent, descent.seconds),
            (TaskKind::Prune, prune.seconds),
        ] {
            let bytes = if kind == TaskKind::Copy { bytes } else { 0 };
            let (thread, end) = (self.name.clone(), begin + seconds);
            if seconds > 0.0 {
                trace.add(Task { kind, thread, cluster: Some(number), begin, end, bytes });
            }
            begin = end;
        }
        trace.start_at(begin, TaskKind::Lists, &self.name, Some(number)).end(0);
        Ok(local)
    }

    /// Merges the lists of a cluster with the parcels that wait for it, and leaves its own parcels
    /// for later clusters. Returns false if its turn will not come: the build has failed.
    fn merge(&self, step: Step, mut local: LocalIndex, spilled: &mut Reader) -> Attempt<bool> {
        let Shared { turns, merging } = self.shared;
        let Pipeline { trace, stage, turns: turn_of, .. } = self.pipeline;
        let (cluster, turn) = (local.cluster, step.turn);
        let start = |kind| trace.start(kind, &self.name, Some(cluster));
        let task = start(TaskKind::Lists);
        let parcels = std::mem::take(&mut local.parcels);
        let later = parcels.partition_point(|parcel| turn_of[parcel.other as usize] > turn);
        let (later, earlier) = parcels.split_at(later);
        let first = local.lists.get(0..later.last().map_or(0, |parcel| parcel.places.end))?;
        task.end(0);
        let hand_over = || -> Result<_> {
            let task = start(TaskKind::Spill);
            let bytes = evict(merging, step)?;
            let mut merging = locked(merging);
            merging.merger.add(cluster, later, first);
            let waiting = merging.merger.take(cluster, earlier);
            if bytes > 0 {
                task.end(bytes);
            }
            Ok(waiting)
        };
        let Some(waiting) = turns.take(turn, hand_over)? else { return Ok(false) };
        let task = start(TaskKind::Merge);
        task.end(merge_parcels(&mut *local.lists, waiting, merging, spilled, stage)?);
        let mut merging = locked(merging);
        merging.merger.mark_built(&local);
        let Merging { merger, checkpoints } = &mut *merging;
        if checkpoints.is_due() {
            let task = trace.start(TaskKind::Checkpoint, &self.name, None);
            let (checkpoint, sync) = merger.checkpoint()?;
            checkpoints.save(checkpoint, sync)?;
            task.end(0);
        }
        Ok(true)
    }
}

/// Writes the parcels of the cluster that leaves the cache at this step. Returns the bytes.
///
/// Only the thread that has the turn calls this. Meanwhile other threads may add finished rows.
fn evict(merging: &Mutex<Merging<'_>>, step: Step) -> Result<u64> {
    let Some(cluster) = step.dispatch.evict else { return Ok(0) };
    let (spill, leaving) = locked(merging).merger.leaving(cluster);
    let mut bytes = 0;
    for (pair, keys) in leaving {
        bytes += size_of_val(&keys[..]) as u64;
        let piece = locked(&spill).append(bytemuck::cast_slice(&keys))?;
        locked(merging).merger.left(pair, piece);
    }
    Ok(bytes)
}
