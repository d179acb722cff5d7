//! Start, end and thread of each task of a build.

use std::sync::Mutex;
use std::time::Instant;

use crate::parallel::{locked, unlocked};

/// The kind of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TaskKind {
    /// Writing all vectors to their clusters.
    Partition,
    /// Reading a cluster.
    Read,
    /// Copying a cluster to and from a device.
    Copy,
    /// Building the k-NN graph of a cluster.
    Descent,
    /// Pruning the k-NN graph of a cluster.
    Prune,
    /// Computing the distances of the index's neighbours, and copying waiting lists to the host.
    Lists,
    /// Writing waiting lists to disk.
    Spill,
    /// Merging the lists of a cluster with waiting lists, and gathering finished rows.
    Merge,
    /// Writing a checkpoint.
    Checkpoint,
    /// Writing the index.
    Write,
    /// Opening the data set, or opening and checking a device.
    Open,
    /// Compiling a kernel, or loading a compiled one.
    Compile,
    /// Measuring the index.
    Measure,
}

impl TaskKind {
    /// All kinds.
    pub const ALL: [Self; 13] = [
        Self::Partition,
        Self::Read,
        Self::Copy,
        Self::Descent,
        Self::Prune,
        Self::Lists,
        Self::Spill,
        Self::Merge,
        Self::Checkpoint,
        Self::Write,
        Self::Open,
        Self::Compile,
        Self::Measure,
    ];

    /// The name, such as `descent`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Partition => "partition",
            Self::Read => "read",
            Self::Copy => "copy",
            Self::Descent => "descent",
            Self::Prune => "prune",
            Self::Lists => "lists",
            Self::Spill => "spill",
            Self::Merge => "merge",
            Self::Checkpoint => "checkpoint",
            Self::Write => "write",
            Self::Open => "open",
            Self::Compile => "compile",
            Self::Measure => "measure",
        }
    }
}

/// A task of a build.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// The kind.
    pub kind: TaskKind,
    /// The thread, such as `cuda:0 a` or `reader 0`.
    pub thread: String,
    /// The cluster, if the task is about one.
    pub cluster: Option<u32>,
    /// Start, in seconds since the start of the build.
    pub begin: f64,
    /// End, in seconds since the start of the build.
    pub end: f64,
    /// Bytes read, copied or written; 0 if none.
    pub bytes: u64,
}

/// The tasks of all threads.
#[derive(Debug)]
pub(super) struct Trace {
    began: Instant,
    tasks: Mutex<Vec<Task>>,
}

/// A running task.
pub(super) struct Started<'a> {
    trace: &'a Trace,
    kind: TaskKind,
    thread: &'a str,
    cluster: Option<u32>,
    begin: f64,
}

impl Started<'_> {
    /// Records the task, which moved `bytes` bytes.
    pub(super) fn end(self, bytes: u64) {
        let Self { trace, kind, thread, cluster, begin } = self;
        trace.add(Task { kind, thread: thread.to_owned(), cluster, begin, end: trace.now(), bytes });
    }
}

impl Trace {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), tasks: Mutex::default() }
    }

    /// Seconds since the start of the build.
    pub(super) fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Starts a task now. It is recorded when it ends; a failed task is dropped.
    pub(super) fn start<'a>(&'a self, kind: TaskKind, thread: &'a str, cluster: Option<u32>) -> Started<'a> {
        self.start_at(self.now(), kind, thread, cluster)
    }

    /// Starts a task that began at `begin`, in seconds since the start of the build.
    pub(super) fn start_at<'a>(
        &'a self,
        begin: f64,
        kind: TaskKind,
        thread: &'a str,
        cluster: Option<u32>,
    ) -> Started<'a> {
        Started { trace: self, kind, thread, cluster, begin }
    }

    pub(super) fn add(&self, task: Task) {
        let Task { kind, thread, cluster, begin, end, bytes } = &task;
        tracing::debug!(task = kind.name(), thread, cluster, begin, end, bytes, "task done");
        locked(&self.tasks).push(task);
    }

    /// All tasks, ordered by their start.
    pub(super) fn tasks(self) -> Vec<Task> {
        let mut tasks = unlocked(self.tasks);
        tasks.sort_by(|a, b| a.begin.total_cmp(&b.begin));
        tasks
    }
}
