//! When each task of a build ran, and on what.

use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// What is done in a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TaskKind {
    /// Putting all vectors into the files of their clusters.
    Partition,
    /// Reading a cluster.
    Read,
    /// Copies of a cluster to and from a device.
    Copy,
    /// Building the k-NN graph of a cluster.
    Descent,
    /// Pruning it.
    Prune,
    /// Distances of the neighbours that are left, and bringing those to the host that wait.
    Lists,
    /// Writing lists that wait and are not kept in memory.
    Spill,
    /// Merging a cluster's lists with those that have waited, and gathering the rows.
    Merge,
    /// Writing a checkpoint.
    Checkpoint,
    /// Writing the index.
    Write,
}

impl TaskKind {
    /// All of them.
    pub const ALL: [Self; 10] = [
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
    ];

    /// Its name, such as `descent`.
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
        }
    }
}

/// A task of a build that is out of core.
#[derive(Clone, Debug, PartialEq)]
pub struct Task {
    /// What was done.
    pub kind: TaskKind,
    /// The thread that did it, such as `cuda:0 a` or `reader 0`.
    pub thread: String,
    /// The cluster, if it was for one.
    pub cluster: Option<u32>,
    /// When it began, in seconds since the build did.
    pub begin: f64,
    /// When it ended, in seconds since the build began.
    pub end: f64,
    /// Bytes that it read, copied or wrote; 0 where nothing was moved.
    pub bytes: u64,
}

/// What gathers the tasks of all threads.
#[derive(Debug)]
pub(super) struct Trace {
    began: Instant,
    tasks: Mutex<Vec<Task>>,
}

impl Trace {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), tasks: Mutex::default() }
    }

    /// Seconds since the build began.
    pub(super) fn now(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Adds a task that began at `begin` and has just ended.
    pub(super) fn ended(&self, kind: TaskKind, thread: &str, cluster: Option<u32>, begin: f64, bytes: u64) {
        self.add(Task { kind, thread: thread.to_owned(), cluster, begin, end: self.now(), bytes });
    }

    pub(super) fn add(&self, task: Task) {
        let Task { kind, thread, cluster, begin, end, bytes } = &task;
        tracing::debug!(task = kind.name(), thread, cluster, begin, end, bytes, "a task is done");
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(task);
    }

    /// All tasks, in the order in which they began.
    pub(super) fn tasks(self) -> Vec<Task> {
        let mut tasks = self.tasks.into_inner().unwrap_or_else(PoisonError::into_inner);
        tasks.sort_by(|a, b| a.begin.total_cmp(&b.begin));
        tasks
    }
}
