//! A process that runs tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use super::assign::read_clusters;
use super::claims::{Claim, Claims};
use super::context::{Context, Outcome};
use super::folder::TaskFolder;
use super::id::{TaskId, TaskStage};
use super::plan::{Shared, device_kind};
use crate::atomic_file::remove;
use crate::outofcore::store::{Fault, lost_again, or_lost};
use crate::regular_file::is_missing;
use crate::same_file::check_no_input;
use crate::vectors::embedding::Embedding;
use crate::{Builder, Device, Error, Progress, Result, Vectors};

/// Maximum number of tasks named in an error.
const NAMED: usize = 5;

/// Times that a worker makes one object again before it gives up: a bad disk, or another program.
const REPAIRS: usize = 16;

/// Time between two looks at the tasks of other processes.
const WAIT: Duration = Duration::from_millis(200);

/// The objects and claims that a process has seen in the folder.
#[derive(Default)]
struct Search {
    /// Tasks of the present stage with objects.
    made: BTreeSet<TaskId>,
    claims: Claims,
}

/// The way in which a task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worked {
    /// The task has run.
    Made,
    /// Its object was there, and its checksums are right.
    Present,
}

/// A process that runs tasks of a folder: the data set, the device, and the object of the plan.
pub struct TaskWorker {
    folder: TaskFolder,
    shared: Shared,
    base: Vectors,
    builder: Builder,
    embedding: Embedding,
    device: Device,
    kind: String,
    any_device: bool,
    output: PathBuf,
}

impl TaskFolder {
    /// A worker with the data set `base` on `device`.
    ///
    /// `assign` and `build` refuse a device of another kind than the plan's, unless `any_device` is
    /// set. Then the index is as good, but its bytes are not those of a build on one kind of
    /// device. All other tasks make the same bytes on any device.
    ///
    /// # Errors
    /// If the data set is not the plan's, the device is missing, or the object of the plan is
    /// damaged.
    pub fn worker(&self, base: Vectors, device: Device, any_device: bool) -> Result<TaskWorker> {
        let plan = &self.plan;
        plan.check_base(&base)?;
        check_no_input(&plan.output, base.path())?;
        let device = device.for_graph(plan.limits.cluster_size)?;
        let kind = device_kind(device)?;
        let shared = Shared::read(plan, &self.store)?;
        let builder = plan.builder()?.device(device);
        let embedding = plan.embedding(&builder);
        let (folder, output) = (self.clone(), plan.output.clone());
        Ok(TaskWorker { folder, shared, base, builder, embedding, device, kind, any_device, output })
    }

    /// The clusters before `number` that share nodes with it; `None` before `place` has run.
    pub(super) fn before(&self, number: u32) -> Result<Option<Vec<u32>>> {
        let clusters = or_lost(read_clusters(&self.plan, &self.store))?;
        Ok(clusters.ok().map(|clusters| clusters.before(number)))
    }
}

impl TaskWorker {
    /// Sets the handle that watches and cancels the tasks.
    #[must_use]
    pub fn progress(self, progress: Progress) -> Self {
        Self { builder: self.builder.progress(progress), ..self }
    }

    /// Sets another file for the index than the plan's.
    #[must_use]
    pub fn output(self, output: PathBuf) -> Self {
        Self { output, ..self }
    }

    /// Runs a task, unless its object is there and all of its checksums are right.
    ///
    /// # Errors
    /// If the plan has no such task, an object that it reads is missing or damaged (the error names
    /// the task that makes it), its object cannot be written, or the work is cancelled.
    pub fn run(&self, task: TaskId) -> Result<Worked> {
        self.attempt(task)?.map_err(|lost| {
            let expected = format!("an intact object: delete it, run the task {lost} again, then {task}");
            Error::file(&self.folder.path().join(self.folder.object(lost)), "damage, or no file", expected)
        })
    }

    /// As [`run`](Self::run), but gives the task whose object is damaged, or vanishes meanwhile,
    /// for an engine that makes it again.
    ///
    /// # Errors
    /// As [`run`](Self::run) in all other cases.
    pub fn attempt(&self, task: TaskId) -> Result<Result<Worked, TaskId>> {
        if !self.folder.has(task) {
            let (stage, count) = (task.stage, self.folder.count(task.stage));
            return Err(Error::argument("task", task, format_args!("one of the {count} tasks of {stage}")));
        }
        if self.folder.is_made(task, &self.output, true)? {
            return Ok(Ok(Worked::Present));
        }
        self.check_inputs(task)?;
        or_lost(self.make(task).map(|()| Worked::Made))
    }

    /// Checks that all objects exist that `task` reads.
    fn check_inputs(&self, task: TaskId) -> Result<()> {
        let names = self.folder.store.names()?;
        let inputs = self.folder.inputs(task)?;
        let missing: Vec<TaskId> = inputs
            .iter()
            .filter(|input| !names.contains(&input.object))
            .filter_map(|input| input.task)
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        let named: Vec<String> = missing.iter().take(NAMED).map(TaskId::to_string).collect();
        let more = match missing.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let expected = format!("the objects of {}{more}: run these tasks before {task}", named.join(", "));
        Err(Error::file(self.folder.path(), format_args!("{} objects missing", missing.len()), expected))
    }

    /// Runs a task.
    fn make(&self, task: TaskId) -> Outcome<()> {
        let TaskFolder { plan, store } = &self.folder;
        let depends = matches!(task.stage, TaskStage::Assign | TaskStage::Build);
        if depends && self.kind != plan.device && !self.any_device {
            let expected = format!(
                "{}, the plan's, for {task}: others make other bytes, unless any_device is set",
                plan.device
            );
            return Err(Error::argument("device", &self.kind, expected).into());
        }
        let Self { shared, base, builder, embedding, device, kind, output, .. } = self;
        let context = Context { plan, shared, store, base, builder, embedding, device: *device, kind };
        let number = task.number;
        let made = match task.stage {
            TaskStage::Assign => context.assign(number),
            TaskStage::Place => context.place(),
            TaskStage::Write => context.write(number),
            TaskStage::Build => context.build(number),
            TaskStage::Merge => context.merge(number),
            TaskStage::Assemble => context.assemble(number),
            TaskStage::Finish => context.finish(output),
        };
        match made {
            // Another process has finished, and removed the temporary files of all others.
            Err(Fault::Failed(Error::Io { source, .. }))
                if source.kind() == ErrorKind::NotFound && self.folder.is_made(task, output, false)? =>
            {
                Ok(())
            }
            made => made,
        }
    }

    /// Runs the tasks of `stages` that have no objects, in the order of the stages, until all have,
    /// beside any number of such processes. [`TaskStage::ALL`] ends in the index. Calls `each`
    /// after each task.
    ///
    /// Each process begins at another place of a stage. It takes tasks that no other process
    /// seems to run, and waits for those of others; those of a stopped process it takes after some
    /// seconds. Two processes may run the same task, which does no harm. Damaged and missing
    /// objects are made again.
    ///
    /// # Errors
    /// As [`run`](Self::run); or if objects are damaged again and again.
    pub fn run_stages(&self, stages: &[TaskStage], mut each: impl FnMut(TaskId)) -> Result<()> {
        let mut search = Search::default();
        let mut losses = BTreeMap::new();
        if let Some(&first) = stages.first() {
            self.check_stage(first)?;
        }
        for &stage in stages {
            while let Some(task) = self.next(stage, &mut search)? {
                let Some(task) = task else {
                    thread::sleep(WAIT);
                    continue;
                };
                let claim = Claim::take(&self.folder.store, task);
                let lost = match self.make(task) {
                    Ok(()) => {
                        each(task);
                        search.made.insert(task);
                        continue;
                    }
                    Err(Fault::Lost(lost)) => lost,
                    // Its own file has vanished while it was written.
                    Err(Fault::Failed(error)) if is_missing(&error) => task,
                    Err(Fault::Failed(error)) => return Err(error),
                };
                drop(claim);
                self.make_again(lost, &mut losses)?;
                each(lost);
            }
        }
        Ok(())
    }

    /// Checks that the objects of earlier stages exist that the first task of `stage` without an
    /// object reads.
    fn check_stage(&self, stage: TaskStage) -> Result<()> {
        for task in self.folder.tasks_of(stage) {
            if !self.folder.is_made(task, &self.output, false)? {
                return self.check_inputs(task);
            }
        }
        Ok(())
    }

    /// Runs one task that has no object and whose inputs exist, and returns it; none if the index
    /// is complete, or if other processes run all such tasks, which takes some seconds to tell.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    pub fn run_next(&self) -> Result<Option<TaskId>> {
        let (mut search, began) = (Search::default(), Instant::now());
        for stage in TaskStage::ALL {
            while let Some(task) = self.next(stage, &mut search)? {
                let Some(task) = task else {
                    if began.elapsed() > Claims::LAPSE {
                        return Ok(None);
                    }
                    thread::sleep(WAIT);
                    continue;
                };
                let claim = Claim::take(&self.folder.store, task);
                self.run(task)?;
                drop(claim);
                return Ok(Some(task));
            }
        }
        Ok(None)
    }

    /// A task of a stage without an object. `None` if all have one, and `Some(None)` if other
    /// processes seem to run all others.
    fn next(&self, stage: TaskStage, search: &mut Search) -> Result<Option<Option<TaskId>>> {
        self.builder.descent.progress.check()?;
        let store = &self.folder.store;
        let names = store.names()?;
        let mut missing = Vec::new();
        for task in self.folder.tasks_of(stage) {
            if search.made.contains(&task) {
                continue;
            }
            if names.contains(&self.folder.object(task)) && self.folder.is_made(task, &self.output, false)? {
                search.made.insert(task);
            } else {
                missing.push(task);
            }
        }
        search.made.retain(|task| task.stage == stage);
        if missing.is_empty() {
            return Ok(None);
        }
        // Spreads processes of adjacent numbers over the list.
        let first = (std::process::id() as usize).wrapping_mul(0x9e37_79b1) % missing.len();
        missing.rotate_left(first);
        let is_free = |task: &&TaskId| {
            !names.contains(&Claims::name(store, **task)) || !search.claims.is_taken(store, **task)
        };
        Ok(Some(missing.iter().find(is_free).copied()))
    }

    /// Makes the object of the task `lost` again, after the missing objects that it needs. Counts
    /// the losses of each.
    fn make_again(&self, lost: TaskId, losses: &mut BTreeMap<TaskId, usize>) -> Result<()> {
        let mut left = vec![];
        let mut lose = |task: TaskId, left: &mut Vec<TaskId>| {
            let times = losses.entry(task).or_default();
            *times += 1;
            let path = self.folder.path().join(self.folder.object(task));
            if *times > REPAIRS {
                return Err(lost_again(&path, REPAIRS));
            }
            tracing::warn!(object = %path.display(), "damaged or missing object; making it again");
            // Its checksums are right, but not its numbers: it would stay.
            if *times > 1 && self.folder.is_made(task, &self.output, true)? {
                remove(&path)?;
            }
            left.push(task);
            Ok(())
        };
        lose(lost, &mut left)?;
        while let Some(&task) = left.last() {
            // Another process may have made it meanwhile.
            let made = self.folder.is_made(task, &self.output, true)?;
            match or_lost(if made { Ok(()) } else { self.make(task) })? {
                Ok(()) => drop(left.pop()),
                Err(earlier) => lose(earlier, &mut left)?,
            }
        }
        Ok(())
    }
}
