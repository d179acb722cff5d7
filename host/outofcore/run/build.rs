//! The builder of indexes out of core.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::attempt::{Parts, Run};
use super::stats::OutOfCoreStats;
use super::trace::Trace;
use crate::atomic_file::with_suffix;
use crate::outofcore::plan::{ClusterPlan, Limits};
use crate::outofcore::store::{
    Damage, INPUT, Manifest, Parameters, Work, input, lost_again, or_lost, unfinished,
};
use crate::same_file::check_no_input;
use crate::vectors::space::Space;
use crate::{Builder, DataShape, Device, Result, Target, Vectors};

/// Builds an index cluster by cluster, with work files on disk or in memory.
///
/// ```
/// use tagore::outofcore::{ClusterPlan, Limits, OutOfCore};
/// use tagore::{Builder, Index, Strategy, Synth};
///
/// # let error = |source| tagore::Error::Io { path: "tmp".into(), source };
/// # let folder = tempfile::tempdir().map_err(error)?;
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
    pub(in crate::outofcore) builder: Builder,
    pub(in crate::outofcore) plan: ClusterPlan,
    work: Option<PathBuf>,
    in_memory: bool,
    resume: bool,
    pub(super) stale: Vec<PathBuf>,
    pub(super) checkpoint: Duration,
}

/// The work folder of a build that writes to `output`, unless
/// [`work_dir`](OutOfCore::work_dir) sets another: `output` with `.work` after its name.
pub fn default_work_folder(output: &Path) -> PathBuf {
    with_suffix(output, ".work")
}

impl OutOfCore {
    /// Builds in the clusters of `plan`, made by [`ClusterPlan::new`] with the same builder.
    pub fn new(builder: Builder, plan: ClusterPlan) -> Self {
        Self {
            builder,
            plan,
            work: None,
            in_memory: false,
            resume: false,
            stale: Vec::new(),
            checkpoint: Duration::from_secs(30),
        }
    }

    /// The build of `base` in clusters, if it exceeds the `given` limits or free memory; else
    /// `None`, for [`Builder::build`].
    ///
    /// # Errors
    /// As [`ClusterPlan::within`].
    pub fn within(builder: &Builder, base: &Vectors, given: &Limits) -> Result<Option<Self>> {
        Ok(ClusterPlan::within(builder, base, given)?.map(|plan| Self::new(builder.clone(), plan)))
    }

    /// Sets the work folder. It must be empty or absent, and is removed at the end. A folder of
    /// another user is refused. The default is beside the index: `x.work` for `x`.
    #[must_use]
    pub fn work_dir(self, folder: PathBuf) -> Self {
        Self { work: Some(folder), ..self }
    }

    /// Sets whether waiting lists and finished rows stay in memory, and vectors are read from the
    /// base alone: a build without work files, which cannot be resumed. It takes the memory of
    /// [`ClusterPlan::bytes_in_memory`], and makes the same index.
    #[must_use]
    pub fn in_memory(self, yes: bool) -> Self {
        Self { in_memory: yes, ..self }
    }

    /// Sets whether to resume an unfinished build of the same index from its work files.
    ///
    /// The index is the same, byte for byte. The build reads all of the base first, and refuses a
    /// changed one, or work files of another version of the program. Without work files, the build
    /// begins.
    #[must_use]
    pub fn resume(self, resume: bool) -> Self {
        Self { resume, ..self }
    }

    /// Sets the minimum time between two checkpoints, 30 seconds by default. A resumed build starts
    /// from the last checkpoint.
    #[must_use]
    pub fn checkpoint(self, every: Duration) -> Self {
        Self { checkpoint: every, ..self }
    }

    /// Sets files to delete just before the index takes its place, such as a report of an older
    /// index. None by default.
    #[must_use]
    pub fn stale(self, files: Vec<PathBuf>) -> Self {
        Self { stale: files, ..self }
    }

    /// Builds the index of `base` and writes it to `output`.
    ///
    /// Only a part of a mapped base is in memory at a time. Unreachable nodes are counted, not
    /// connected. If the build fails after the partition, its work files stay, and a later build
    /// may [`resume`](Self::resume).
    ///
    /// # Errors
    /// As [`Builder::build`]; or if `output` is the file of the base, the plan does not fit the
    /// base, work files or the index cannot be written, or the disk has too little room. A work
    /// folder is refused if another build uses it, if it belongs to another user, or if it has
    /// files of another build; that of an unfinished build also if this one needs no work files.
    pub fn build(&self, base: &Vectors, output: &Path) -> Result<OutOfCoreStats> {
        let Self { builder, plan, .. } = self;
        check_no_input(output, base.path())?;
        builder.check_out_of_core(base.len())?;
        builder.descent.k_for(base)?;
        builder.check_queries(&Space::unprepared(base, builder.descent.metric))?;
        builder.check_for(&DataShape::new(base.len(), base.dim(), base.element_type())?)?;
        let devices = builder.devices_for(plan.cluster_size)?;
        let folder = self.work.clone().unwrap_or_else(|| default_work_folder(output));
        let stopped =
            if self.in_memory { unfinished(&folder, base, &plan.limits, self.resume)? } else { None };
        let mut manifest =
            Manifest { parameters: self.parameters(base, &devices)?, plan: stopped.unwrap_or(*plan) };
        let mut work = if self.in_memory && stopped.is_none() {
            Work::in_memory()
        } else {
            Work::open(&folder, &mut manifest, self.resume)?
        };
        // A resumed build keeps its plan, whatever memory is free now.
        let plan = manifest.plan;
        plan.check(base.len())?;
        work.check_free(plan.disk_bytes)?;
        let progress = self.parts(base, &plan, &devices)?;
        let trace = Trace::new();
        let parameters = manifest.parameters.clone();
        let mut stats = OutOfCoreStats { devices: devices.clone(), parameters, ..OutOfCoreStats::default() };
        let run = Run {
            settings: self,
            base,
            output,
            devices: &devices,
            plan: &plan,
            trace: &trace,
            progress: &progress,
        };
        // Content is made again once. A second damage means a bad disk.
        let mut repaired = BTreeSet::new();
        loop {
            let ended = run.attempt(&mut work, repaired.is_empty(), &mut stats);
            let Err(damage) = or_lost(ended)? else { break };
            if !repaired.insert(damage) {
                return Err(lost_again(&work.path().join(damage.file()), 1));
            }
            tracing::warn!(file = damage.file(), "damaged work file; making its content again");
            repaired.extend(run.forget(&work, damage)?.into_iter().map(Damage::Lists));
            stats.repaired.push(damage.file());
        }
        stats.tasks = trace.tasks();
        let removing = Instant::now();
        work.remove();
        stats.remove = removing.elapsed().as_secs_f64();
        Ok(stats)
    }

    /// The parts of the build's progress, by their estimated times.
    fn parts(&self, base: &Vectors, plan: &ClusterPlan, devices: &[Device]) -> Result<Parts> {
        let Self { builder, .. } = self;
        let data = DataShape::new(base.len(), base.dim(), base.element_type())?;
        let target = if devices.contains(&Device::Cpu) { Target::cpu() } else { Target::cuda() };
        let seconds = plan.seconds(builder, &data, target).map(|stage| stage.1);
        let [partition, build, write] = builder.descent.progress.parts(seconds);
        Ok(Parts { partition, build, write })
    }

    /// The data set and all parameters that decide the index.
    pub(in crate::outofcore) fn parameters(&self, base: &Vectors, devices: &[Device]) -> Result<Parameters> {
        let Self { builder, plan, .. } = self;
        let mut parameters = builder.all_parameters(builder.descent.k_for(base)?);
        let kind = if devices.contains(&Device::Cpu) { "cpu" } else { "gpu" };
        let more = [
            (INPUT, input(base)?),
            ("device", kind.to_owned()),
            ("layers", builder.is_layered().to_string()),
        ];
        parameters.extend(more.map(|(name, value)| (name.to_owned(), value)));
        for (name, limit) in plan.limits.named() {
            parameters.extend(limit.map(|limit| (name.to_owned(), limit.to_string())));
        }
        Ok(parameters)
    }
}
