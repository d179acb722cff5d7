//! The cost of a build in tasks on paper: bytes, requests and time of its stages on any number of
//! workers (`docs/tasks.md`).

mod bytes;
mod simulate;
mod work;

use crate::outofcore::plan::ClusterPlan;
use crate::{Builder, DataShape, Error, Result, Target};

use self::bytes::Sizes;
pub use self::simulate::{StageTime, TaskBound, TaskMachines};
use self::work::Work;
use super::id::TaskStage;
use super::plan::check_range;

/// The tasks of a build with the bytes, requests and seconds of each, before any of them exists.
///
/// Bytes follow from the formats of objects, for data without repeated rows. They are those of the
/// parts of objects that [`TaskFolder::inputs`](super::TaskFolder::inputs) names. Sizes of
/// clusters, and the pairs of clusters that share rows, are those of a mixture of Gaussians.
/// Seconds of work follow from rates measured on other machines and data.
///
/// ```
/// use tagore::outofcore::{ClusterPlan, Limits, TaskCosts, TaskMachines};
/// use tagore::{Builder, DataShape, Device, ElementType, Strategy, Target};
///
/// let data = DataShape::new(100_000_000, 96, ElementType::U8)?;
/// let builder = Builder::new(Strategy::vamana()).device(Device::Cpu);
/// let limits = Limits { cluster_size: Some(1_000_000), ..Limits::default() };
/// let plan = ClusterPlan::on(&builder, &data, &limits, Target::cpu(), 1)?.expect("clusters");
/// let costs = TaskCosts::new(&builder, &data, &plan, 262_144, Target::cpu())?;
/// let seconds = |workers| {
///     let machines = TaskMachines { workers, ..TaskMachines::default() };
///     costs.simulate(&machines).iter().map(|stage| stage.seconds).sum::<f64>()
/// };
/// assert!(seconds(4) < seconds(1) / 3.0);
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TaskCosts {
    /// The tasks of each stage, in the order of [`TaskStage::ALL`].
    tasks: Vec<Vec<Work>>,
    /// Rows of the data set.
    rows: usize,
}

/// The cost of all tasks of a stage.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StageCosts {
    /// The stage.
    pub stage: TaskStage,
    /// Number of tasks.
    pub tasks: usize,
    /// Bytes read of the data set.
    pub base: u64,
    /// Bytes read of objects.
    pub read: u64,
    /// Bytes of the objects written, and under `finish` of the index.
    pub written: u64,
    /// Requests: reads of a file's beginning, of a piece or of a range of rows, and writes.
    pub requests: u64,
    /// Seconds of work of one worker, without reading and writing.
    pub seconds: f64,
}

impl TaskCosts {
    /// The costs of a build of `data` in the clusters of `plan`, in ranges of `range_rows` rows, on
    /// workers that are each like `target`.
    ///
    /// # Errors
    /// If a parameter of `builder` is out of its range, `plan` does not fit `data`, or `range_rows`
    /// is no multiple of 1,024.
    pub fn new(
        builder: &Builder,
        data: &DataShape,
        plan: &ClusterPlan,
        range_rows: usize,
        target: Target,
    ) -> Result<Self> {
        builder.check_for(data)?;
        plan.check(data.rows)?;
        check_range(range_rows)?;
        let sizes = Sizes::new(builder, data, plan.clusters, range_rows);
        let tasks = TaskStage::ALL.map(|stage| work::of_stage(stage, &sizes, builder, target));
        Ok(Self { tasks: tasks.into(), rows: data.rows })
    }

    /// Sets the rate of `build`: rows of the data set per second of a worker, each in two clusters.
    /// A measured build of a part of the data tells it.
    ///
    /// # Errors
    /// If the rate is not positive.
    pub fn build_rate(mut self, rate: f64) -> Result<Self> {
        if rate.is_nan() || rate <= 0.0 {
            return Err(Error::argument("build_rate", rate, "more than 0 rows per second"));
        }
        let builds = &mut self.tasks[TaskStage::Build as usize];
        let planned: f64 = builds.iter().map(|task| task.seconds).sum();
        let factor = self.rows as f64 / rate / planned;
        builds.iter_mut().for_each(|task| task.seconds *= factor);
        Ok(self)
    }

    /// The costs of the stages, in their order.
    pub fn stages(&self) -> Vec<StageCosts> {
        let costs = |(stage, tasks): (TaskStage, &Vec<Work>)| {
            let sum = |of: fn(&Work) -> u64| tasks.iter().map(of).sum();
            StageCosts {
                stage,
                tasks: tasks.len(),
                base: sum(|task| task.base),
                read: sum(|task| task.read),
                written: sum(|task| task.written),
                requests: sum(|task| task.requests),
                seconds: tasks.iter().map(|task| task.seconds).sum(),
            }
        };
        TaskStage::ALL.into_iter().zip(&self.tasks).map(costs).collect()
    }

    /// The times of the stages on `machines`, in their order. A stage begins when the one before it
    /// has ended.
    ///
    /// In each stage, a free worker takes the next task, reads, works and writes. Workers that read
    /// or write at the same time share the store evenly, each within its network.
    pub fn simulate(&self, machines: &TaskMachines) -> Vec<StageTime> {
        TaskStage::ALL.into_iter().zip(&self.tasks).map(|(stage, tasks)| machines.run(stage, tasks)).collect()
    }

    /// The number of workers, a power of two, from which twice as many save less than a tenth of
    /// the time; with the times of the stages. `machines` has any number of workers.
    pub fn most_workers(&self, machines: &TaskMachines) -> (usize, Vec<StageTime>) {
        let total = |times: &[StageTime]| times.iter().map(|stage| stage.seconds).sum::<f64>();
        let simulate = |workers| self.simulate(&TaskMachines { workers, ..*machines });
        let (mut workers, mut times) = (1, simulate(1));
        while workers < MAX_WORKERS {
            let twice = simulate(2 * workers);
            if total(&twice) > 0.9 * total(&times) {
                break;
            }
            (workers, times) = (2 * workers, twice);
        }
        (workers, times)
    }
}

/// Maximum number of workers that [`TaskCosts::most_workers`] tries.
const MAX_WORKERS: usize = 4096;
