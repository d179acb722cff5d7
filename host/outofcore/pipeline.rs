//! Building all clusters: threads that read, build and merge at the same time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};

use super::Dispatch;
use super::checkpoint::Checkpoints;
use super::fault::Attempt;
use super::local::LocalLists;
use super::merge::Merger;
use super::partition::{Cluster, Partition};
use super::trace::{Task, TaskKind, Trace};
use super::turns::Turns;
use crate::progress::StageProgress;
use crate::vectors::embedding::Embedding;
use crate::{Builder, Device, Result};

/// Builds at work on a GPU at the same time: while the host ends one, the device works on the other.
pub(super) const BUILDS_PER_GPU: usize = 2;

/// Lists that may wait to be merged, so that nobody waits where merging takes longer for some clusters than for others.
pub(super) const WAITING: usize = 1;

/// Builds at work on `device` at the same time. One takes all threads of the CPU.
pub(super) fn builds_on(device: Device) -> usize {
    if device == Device::Cpu { 1 } else { BUILDS_PER_GPU }
}

/// What clusters are built with and from.
#[derive(Clone, Copy)]
pub(super) struct Pipeline<'a> {
    pub builder: &'a Builder,
    pub devices: &'a [Device],
    pub partition: &'a Partition,
    pub embedding: &'a Embedding,
    pub trace: &'a Trace,
    pub stage: &'a StageProgress<'a>,
    /// The most bytes of device memory that were taken at once, so far.
    pub peak_gpu_bytes: &'a AtomicU64,
}

/// A cluster and its turn.
#[derive(Clone, Copy)]
pub(super) struct Step {
    pub turn: usize,
    pub dispatch: Dispatch,
    /// Whether it has been built already: then only the other is evicted.
    pub built: bool,
}

/// A cluster that has been read, if it is to be built, on its way to a thread that builds it.
type Read = Attempt<(Step, Option<Cluster>)>;

/// What it became, on its way to the thread that merges: the cluster to evict, and the lists unless there are none.
type Built = (Option<u32>, Option<LocalLists>);

impl Pipeline<'_> {
    /// Builds and merges clusters. A thread per device reads clusters, as many threads as [`builds_on`] says build them,
    /// one merges. Each hands on one at a time, in the order of the steps, and waits until it is taken.
    pub(super) fn run(
        self,
        steps: Vec<Step>,
        merger: &mut Merger,
        checkpoints: &mut Checkpoints,
    ) -> Attempt<()> {
        let steps = &Mutex::new(steps.into_iter());
        // What is merged into a row depends on which of its lists comes last: the order is the same on any devices.
        let (reads, builds) = (&Turns::new(), &Turns::new());
        thread::scope(|scope| {
            let (send, clusters) = sync_channel::<Read>(0);
            for reader in 0..self.devices.len() {
                let send = send.clone();
                scope.spawn(move || self.read(steps, &send, reads, &format!("reader {reader}")));
            }
            drop(send);
            let (send, lists) = sync_channel::<Built>(WAITING);
            let merging = scope.spawn(move || self.merge(&lists, merger, checkpoints));
            // Shared by those that build, and gone with the last of them, so that readers do not wait in vain.
            let clusters = Arc::new(Mutex::new(clusters));
            let places =
                self.devices.iter().flat_map(|&device| (0..builds_on(device)).map(move |i| (device, i)));
            let mut builders = Vec::new();
            for (device, build) in places.clone().skip(1) {
                let (clusters, send) = (Arc::clone(&clusters), send.clone());
                builders.push(scope.spawn(move || self.build((device, build), &clusters, &send, builds)));
            }
            // On the threads of the caller's pool.
            let first = places.into_iter().next().unwrap_or_default();
            let mut result = self.build(first, &clusters, &send, builds);
            drop((clusters, send));
            for builder in builders {
                result = result.and(join(builder));
            }
            // An error in merging comes first: others follow from it.
            join(merging).and(result)
        })
    }

    fn read(
        self,
        steps: &Mutex<impl Iterator<Item = Step>>,
        to: &SyncSender<Read>,
        turns: &Turns,
        thread: &str,
    ) {
        loop {
            let Some(step) = lock(steps).next() else { return };
            let begin = self.trace.now();
            let number = step.dispatch.load;
            let read = if step.built { Ok(None) } else { self.partition.read(number).map(Some) };
            if let Ok(Some(cluster)) = &read {
                self.trace.ended(TaskKind::Read, thread, Some(number), begin, cluster.bytes());
            }
            let failed = read.is_err();
            // Nobody receives any more once something else has failed.
            if !turns.take(step.turn, || to.send(read.map(|cluster| (step, cluster))).is_ok() && !failed) {
                return;
            }
        }
    }

    fn build(
        self,
        (device, build): (Device, usize),
        clusters: &Mutex<Receiver<Read>>,
        to: &SyncSender<Built>,
        turns: &Turns,
    ) -> Attempt<()> {
        let builder = self.builder.clone().device(device);
        let thread = format!("{device} {}", char::from(b'a' + build as u8));
        let run = || {
            loop {
                let Ok(read) = lock(clusters).recv() else { return Ok(()) };
                let (step, cluster) = read?;
                // Where vectors are equal, clusters may be empty.
                let cluster = cluster.filter(|cluster| !cluster.ids.is_empty());
                let lists = cluster.map(|cluster| self.lists(&builder, cluster, &thread)).transpose()?;
                if !turns.take(step.turn, || to.send((step.dispatch.evict, lists)).is_ok()) {
                    return Ok(());
                }
                if !step.built {
                    self.stage.advance(1)?;
                }
            }
        };
        let result = run();
        if result.is_err() {
            turns.stop();
        }
        result
    }

    fn lists(self, builder: &Builder, cluster: Cluster, thread: &str) -> Result<LocalLists> {
        let mut begin = self.trace.now();
        let (number, bytes) = (cluster.number, cluster.bytes());
        let lists = LocalLists::build(builder, cluster, self.embedding, &self.partition.mean)?;
        let (descent, prune) = (&lists.stats.descent, &lists.stats.prune);
        self.peak_gpu_bytes.fetch_max(descent.peak_gpu_bytes.max(prune.peak_gpu_bytes), Ordering::Relaxed);
        for (kind, seconds) in [
            (TaskKind::Copy, descent.copy + prune.copy),
            (TaskKind::Descent, descent.seconds),
            (TaskKind::Prune, prune.seconds),
        ] {
            let bytes = if kind == TaskKind::Copy { bytes } else { 0 };
            let (thread, end) = (thread.to_owned(), begin + seconds);
            if seconds > 0.0 {
                self.trace.add(Task { kind, thread, cluster: Some(number), begin, end, bytes });
            }
            begin = end;
        }
        self.trace.ended(TaskKind::Lists, thread, Some(number), begin, 0);
        Ok(lists)
    }

    fn merge(
        self,
        lists: &Receiver<Built>,
        merger: &mut Merger,
        checkpoints: &mut Checkpoints,
    ) -> Attempt<()> {
        while let Ok((evict, lists)) = lists.recv() {
            let begin = self.trace.now();
            let cluster = lists.as_ref().map(|lists| lists.cluster);
            let mut bytes = evict.map_or(Ok(0), |cluster| merger.evict(cluster))?;
            bytes += lists.map_or(Ok(0), |lists| merger.take(&lists))?;
            self.trace.ended(TaskKind::Merge, "merger", cluster, begin, bytes);
            if checkpoints.is_due() {
                let begin = self.trace.now();
                let (checkpoint, sync) = merger.checkpoint()?;
                checkpoints.save(checkpoint, sync)?;
                self.trace.ended(TaskKind::Checkpoint, "merger", None, begin, 0);
            }
        }
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of a thread; its panic goes on here.
pub(super) fn join<T, E>(thread: ScopedJoinHandle<'_, Result<T, E>>) -> Result<T, E> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
