//! A list schedule of the tasks of a stage over workers that share a store.

use std::fmt;
use std::time::Duration;

use super::work::Work;
use crate::outofcore::tasks::TaskStage;

/// Machines that run the tasks of a build.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TaskMachines {
    /// Number of workers, each with a machine's network to itself; at least 1.
    pub workers: usize,
    /// Bytes per second between a worker and the store.
    pub network: f64,
    /// Bytes per second that the store reads and writes for all workers.
    pub store: f64,
    /// Time of a request beside its bytes.
    pub latency: Duration,
}

/// One worker, 10 Gbit/s, a store of 5 GB/s, a millisecond.
impl Default for TaskMachines {
    fn default() -> Self {
        Self { workers: 1, network: 1.25e9, store: 5e9, latency: Duration::from_millis(1) }
    }
}

/// The time of a stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageTime {
    /// The stage.
    pub stage: TaskStage,
    /// Seconds from its first to its last task.
    pub seconds: f64,
    /// The resource that bounds it.
    pub bound: TaskBound,
}

/// The resource that bounds the time of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskBound {
    /// Work of the processors and GPUs.
    Work,
    /// The network of each worker.
    Network,
    /// The store that all workers share.
    Store,
    /// The time of requests beside their bytes.
    Requests,
    /// The longest task: other workers have none left.
    Tasks,
}

impl TaskBound {
    /// `work`, `network`, `store`, `requests` or `tasks`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::Network => "network",
            Self::Store => "store",
            Self::Requests => "requests",
            Self::Tasks => "tasks",
        }
    }
}

impl fmt::Display for TaskBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A part of a task.
#[derive(Clone, Copy)]
enum Part {
    /// Bytes to or from the store.
    Move(f64),
    /// Seconds beside the store: requests and work.
    Work(f64),
}

/// A worker's task: its parts that are left, the present one last.
type Running = Vec<Part>;

/// Differences below this share of a step end at the same time.
const SAME: f64 = 1e-9;

impl TaskMachines {
    /// The time of a stage of these tasks.
    pub(super) fn run(&self, stage: TaskStage, tasks: &[Work]) -> StageTime {
        StageTime { stage, seconds: self.schedule(tasks), bound: self.bound(tasks) }
    }

    fn parts(&self, task: &Work) -> Running {
        let requests = task.requests as f64 * self.latency.as_secs_f64();
        vec![
            Part::Move(task.written as f64),
            Part::Work(requests + task.seconds),
            Part::Move((task.base + task.read) as f64),
        ]
    }

    fn schedule(&self, tasks: &[Work]) -> f64 {
        let mut waiting = tasks.iter().map(|task| self.parts(task));
        let mut running: Vec<Running> = waiting.by_ref().take(self.workers.max(1)).collect();
        let mut now = 0.0;
        while !running.is_empty() {
            let moving = running.iter().filter(|task| matches!(task.last(), Some(Part::Move(_)))).count();
            let rate = self.network.min(self.store / moving.max(1) as f64);
            let seconds = |task: &Running| match task.last() {
                Some(Part::Move(bytes)) => bytes / rate,
                Some(Part::Work(seconds)) => *seconds,
                None => 0.0,
            };
            let step = running.iter().map(seconds).fold(f64::INFINITY, f64::min);
            now += step;
            for task in &mut running {
                let is_done = seconds(task) <= step * (1.0 + SAME);
                match task.last_mut() {
                    _ if is_done => drop(task.pop()),
                    Some(Part::Move(bytes)) => *bytes -= step * rate,
                    Some(Part::Work(seconds)) => *seconds -= step,
                    None => (),
                }
                if task.is_empty() {
                    *task = waiting.next().unwrap_or_default();
                }
            }
            running.retain(|task| !task.is_empty());
        }
        now
    }

    /// The resource whose lower bound on the time is the largest.
    fn bound(&self, tasks: &[Work]) -> TaskBound {
        let Self { network, store, latency, .. } = *self;
        let workers = self.workers.max(1) as f64;
        let alone = |task: &Work| {
            let latency = task.requests as f64 * latency.as_secs_f64();
            task.seconds + latency + task.bytes() as f64 / network.min(store)
        };
        let sum = |of: &dyn Fn(&Work) -> f64| tasks.iter().map(of).sum::<f64>();
        let bytes = sum(&|task| task.bytes() as f64);
        let longest = tasks.iter().map(alone).fold(0.0, f64::max);
        let (all, stored) = (sum(&alone) / workers, bytes / store);
        if longest >= all.max(stored) {
            return TaskBound::Tasks;
        }
        if stored >= all {
            return TaskBound::Store;
        }
        let work = sum(&|task| task.seconds);
        let requests = sum(&|task| task.requests as f64) * latency.as_secs_f64();
        let moved = bytes / network;
        if work >= requests.max(moved) {
            TaskBound::Work
        } else if moved >= requests {
            TaskBound::Network
        } else {
            TaskBound::Requests
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(seconds: f64, bytes: u64) -> Work {
        Work { base: 0, read: bytes, written: 0, requests: 0, seconds }
    }

    fn machines(workers: usize) -> TaskMachines {
        TaskMachines { workers, network: 100.0, store: 300.0, latency: Duration::ZERO }
    }

    fn run(workers: usize, tasks: &[Work]) -> (f64, TaskBound) {
        let StageTime { seconds, bound, .. } = machines(workers).run(TaskStage::Build, tasks);
        ((seconds * 1e6).round() / 1e6, bound)
    }

    #[test]
    fn a_free_worker_takes_the_next_task() {
        let tasks = [3.0, 1.0, 1.0, 2.0].map(|seconds| task(seconds, 0));
        assert_eq!(run(1, &tasks), (7.0, TaskBound::Work));
        // 3 + 0 beside 1 + 1 + 2.
        assert_eq!(run(2, &tasks), (4.0, TaskBound::Work));
        assert_eq!(run(9, &tasks), (3.0, TaskBound::Tasks));
        assert_eq!(run(9, &[]).0, 0.0);
    }

    #[test]
    fn workers_share_the_store_within_their_networks() {
        // 600 bytes each: 6 s by the network; more than three workers share the store.
        assert_eq!(run(1, &[task(0.0, 600); 6]), (36.0, TaskBound::Network));
        assert_eq!(run(2, &[task(0.0, 600); 6]), (18.0, TaskBound::Network));
        assert_eq!(run(3, &[task(0.0, 600); 6]).0, 12.0);
        assert_eq!(run(6, &[task(0.0, 600); 6]), (12.0, TaskBound::Store));
        // A task that only works leaves its share to others: six move 1,800 bytes at 300 a second.
        let mixed: Vec<Work> =
            (0..12).map(|i| if i % 2 == 0 { task(6.0, 0) } else { task(0.0, 300) }).collect();
        assert_eq!(run(12, &mixed).0, 6.0);
    }

    #[test]
    fn requests_take_their_latency() {
        let machines = TaskMachines { latency: Duration::from_millis(500), ..machines(2) };
        let task = Work { requests: 4, ..task(1.0, 0) };
        let time = machines.run(TaskStage::Merge, &[task; 4]);
        assert_eq!((time.seconds, time.bound), (6.0, TaskBound::Requests));
    }
}
