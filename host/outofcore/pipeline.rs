//! Building all clusters: threads that read, and threads that build and merge.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};

use super::Dispatch;
use super::checkpoint::Checkpoints;
use super::fault::Attempt;
use super::lists::Lists;
use super::local::LocalIndex;
use super::log::Reader;
use super::merge::{Merger, Waiting};
use super::partition::{Cluster, Partition};
use super::permits::Permits;
use super::trace::{Task, TaskKind, Trace};
use super::turns::Turns;
use crate::parallel::spawn;
use crate::progress::StageProgress;
use crate::vectors::embedding::Embedding;
use crate::{Builder, Device, Result};

/// Nodes whose lists are merged together, at least.
const GROUP: usize = 1 << 16;

/// The threads of a device.
#[derive(Clone, Copy)]
pub(super) struct Crew {
    /// Those that build and merge.
    pub threads: usize,
    /// Of these, those that build at the same time.
    pub builds: usize,
}

impl Crew {
    /// A build takes all threads of the CPU.
    pub(super) const CPU: Self = Self { threads: 1, builds: 1 };

    /// Of each of so many GPUs: while the host is busy with one build, the device works on another, and while lists are
    /// merged, which takes less memory, one more begins. With several GPUs the host is busier, and each has one more to
    /// work on.
    pub(super) fn of_gpus(count: usize) -> Self {
        let builds = if count > 1 { 3 } else { 2 };
        Self { threads: builds + 1, builds }
    }

    fn of(device: Device, devices: usize) -> Self {
        if device == Device::Cpu { Self::CPU } else { Self::of_gpus(devices) }
    }
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
    /// The turn of each cluster.
    pub turns: &'a [usize],
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

/// A thread that builds.
struct Place {
    device: Device,
    thread: usize,
    permits: Arc<Permits>,
}

/// A cluster that has been read, if it is to be built, on its way to a thread that builds it.
type Read = Attempt<(Step, Option<Cluster>)>;

/// What all threads that build share: one of them has it at a time.
pub(super) struct Merging<'a> {
    pub merger: &'a mut Merger,
    pub checkpoints: &'a mut Checkpoints,
}

impl Pipeline<'_> {
    /// Builds and merges clusters. A thread per device reads clusters, and its [`Crew`] builds them. What is read is handed
    /// on in the order of the steps, one at a time, and waits until it is taken; and in their order clusters come to those
    /// that wait for them.
    pub(super) fn run(self, steps: Vec<Step>, merging: Merging<'_>) -> Attempt<()> {
        let steps = &Mutex::new(steps.into_iter());
        let merging = &Mutex::new(merging);
        // What is merged into a row depends on which of its lists comes last: the order is the same on any devices.
        let (reads, builds) = (&Turns::new(), &Turns::new());
        thread::scope(|scope| {
            let (send, clusters) = sync_channel::<Read>(0);
            for reader in 0..self.devices.len() {
                let send = send.clone();
                spawn(scope, move || self.read(steps, &send, reads, &format!("reader {reader}")))?;
            }
            drop(send);
            // Shared by those that build, and gone with the last of them, so that readers do not wait in vain.
            let clusters = Arc::new(Mutex::new(clusters));
            let mut places = self.devices.iter().flat_map(|&device| {
                let Crew { threads, builds } = Crew::of(device, self.devices.len());
                let permits = Arc::new(Permits::new(builds));
                (0..threads).map(move |thread| Place { device, thread, permits: Arc::clone(&permits) })
            });
            // On the threads of the caller's pool.
            let first = places.next();
            let mut builders = Vec::new();
            for place in places {
                let clusters = Arc::clone(&clusters);
                // Fewer build, where the system has no thread left.
                let Ok(builder) = spawn(scope, move || self.build(place, &clusters, builds, merging)) else {
                    break;
                };
                builders.push(builder);
            }
            let mut result = first.map_or(Ok(()), |first| self.build(first, &clusters, builds, merging));
            drop(clusters);
            for builder in builders {
                result = result.and(join(builder));
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
        loop {
            let Some(step) = lock(steps).next() else { return };
            let begin = self.trace.now();
            let number = step.dispatch.load;
            let read = if step.built { Ok(None) } else { self.partition.read(number).map(Some) };
            if let Ok(Some(cluster)) = &read {
                self.trace.ended(TaskKind::Read, thread, Some(number), begin, cluster.bytes());
            }
            // Nobody receives any more once something else has failed.
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

    fn build(
        self,
        Place { device, thread, permits }: Place,
        clusters: &Mutex<Receiver<Read>>,
        turns: &Turns,
        merging: &Mutex<Merging<'_>>,
    ) -> Attempt<()> {
        let stop = turns.stop();
        let descent = self.builder.descent.clone().device(device);
        let descent = if thread > 0 { descent.forked()? } else { descent };
        let builder = self.builder.clone().descent(descent);
        let thread = format!("{device} {}", char::from(b'a' + thread as u8));
        let mut spilled = lock(merging).merger.spilled()?;
        loop {
            let permit = permits.take();
            let Ok(read) = lock(clusters).recv() else { break };
            let (step, cluster) = read?;
            // Where vectors are equal, clusters may be empty.
            let cluster = cluster.filter(|cluster| !cluster.ids.is_empty());
            let local = cluster.map(|cluster| self.local(&builder, cluster, &thread)).transpose()?;
            drop(permit);
            let came = match local {
                Some(local) => self.merge(step, local, (turns, merging), (&mut spilled, &thread))?,
                None => turns.take(step.turn, || lock(merging).evict(step))?.is_some(),
            };
            if !came {
                return Ok(());
            }
            if !step.built {
                self.stage.advance(1)?;
            }
        }
        stop.cancel();
        Ok(())
    }

    fn local(self, builder: &Builder, cluster: Cluster, thread: &str) -> Result<LocalIndex> {
        let mut begin = self.trace.now();
        let (number, bytes) = (cluster.number, cluster.bytes());
        let turn = self.turns[number as usize];
        let is_to_come = |other: u32| self.turns[other as usize] > turn;
        let local = LocalIndex::build(builder, cluster, (self.embedding, &self.partition.mean), is_to_come)?;
        let (descent, prune) = (&local.stats.descent, &local.stats.prune);
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
        Ok(local)
    }

    /// Merges the lists of a cluster with those that wait for them, and leaves those that have to wait. False if its turn
    /// will not come.
    fn merge(
        self,
        step: Step,
        mut local: LocalIndex,
        (turns, merging): (&Turns, &Mutex<Merging<'_>>),
        (spilled, thread): (&mut Reader, &str),
    ) -> Attempt<bool> {
        let (begin, cluster, turn) = (self.trace.now(), local.cluster, step.turn);
        let parcels = std::mem::take(&mut local.parcels);
        let to_come = parcels.partition_point(|&(other, _)| self.turns[other as usize] > turn);
        let (to_come, come) = parcels.split_at(to_come);
        let first = local.lists.get(0..to_come.last().map_or(0, |(_, places)| places.end))?;
        self.trace.ended(TaskKind::Lists, thread, Some(cluster), begin, 0);
        let hand_over = || -> Result<_> {
            let begin = self.trace.now();
            let mut merging = lock(merging);
            let bytes = merging.evict(step)?;
            merging.merger.add(cluster, to_come, first);
            let waiting = merging.merger.take(cluster, come);
            if bytes > 0 {
                self.trace.ended(TaskKind::Spill, thread, Some(cluster), begin, bytes);
            }
            Ok(waiting)
        };
        let Some(waiting) = turns.take(turn, hand_over)? else { return Ok(false) };
        let (begin, mut bytes) = (self.trace.now(), 0);
        for group in groups(waiting) {
            bytes += merge_group(&mut *local.lists, group, merging, spilled)?;
        }
        self.trace.ended(TaskKind::Merge, thread, Some(cluster), begin, bytes);
        let mut merging = lock(merging);
        merging.merger.came(&local);
        let Merging { merger, checkpoints } = &mut *merging;
        if checkpoints.is_due() {
            let begin = self.trace.now();
            let (checkpoint, sync) = merger.checkpoint()?;
            checkpoints.save(checkpoint, sync)?;
            self.trace.ended(TaskKind::Checkpoint, thread, None, begin, 0);
        }
        Ok(true)
    }
}

impl Merging<'_> {
    /// Writes the lists of the cluster that leaves at this step. The bytes written.
    fn evict(&mut self, step: Step) -> Result<u64> {
        step.dispatch.evict.map_or(Ok(0), |cluster| self.merger.evict(cluster))
    }
}

/// What has waited, in groups of [`GROUP`] nodes or a few more.
fn groups(mut waiting: Vec<Waiting>) -> impl Iterator<Item = Vec<Waiting>> {
    std::iter::from_fn(move || {
        let mut nodes = 0;
        let count = waiting.iter().take_while(|next| {
            let has_room = nodes < GROUP;
            nodes += next.places.len();
            has_room
        });
        let count = count.count();
        (count > 0).then(|| waiting.drain(..count).collect())
    })
}

/// Merges lists with those that have waited for them. The bytes of the rows.
fn merge_group(
    lists: &mut dyn Lists,
    group: Vec<Waiting>,
    merging: &Mutex<Merging<'_>>,
    spilled: &mut Reader,
) -> Attempt<u64> {
    let first = group.iter().map(|waiting| waiting.read(spilled)).collect::<Attempt<Vec<_>>>()?;
    let both: Vec<_> =
        group.iter().zip(&first).map(|(waiting, first)| (waiting.places.clone(), &first[..])).collect();
    let records = lists.merge(&both)?;
    let nodes: usize = group.iter().map(|waiting| waiting.places.len()).sum();
    let (mut merging, mut rest) = (lock(merging), &records[..]);
    for waiting in group {
        let (rows, after) = rest.split_at(records.len() / nodes * waiting.places.len());
        merging.merger.finish(waiting, rows)?;
        rest = after;
    }
    Ok(size_of_val(&records[..]) as u64)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The result of a thread; its panic goes on here.
pub(super) fn join<T, E>(thread: ScopedJoinHandle<'_, Result<T, E>>) -> Result<T, E> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
