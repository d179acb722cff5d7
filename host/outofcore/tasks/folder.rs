//! The folder of a build in tasks: its plan, its tasks, and their objects.

use std::path::{Path, PathBuf};

use super::finish::FinishedIndex;
use super::id::{TaskId, TaskStage};
use super::object::{ObjectBytes, ObjectPart, bytes_of};
use super::plan::{PLAN_OBJECT, Plan, TaskFiles};
use super::store::ObjectStore;
use crate::outofcore::partition::SUM_ROWS;
use crate::outofcore::run::OutOfCore;
use crate::outofcore::store::Flaw;
use crate::{Error, Format, Result, Vectors};

/// The folder of a build in tasks, which any number of processes share.
///
/// ```
/// use tagore::outofcore::{ClusterPlan, Limits, OutOfCore, TaskFiles, TaskFolder};
/// use tagore::{Builder, Device, Format, Index, Strategy, Synth};
///
/// # let error = |source| tagore::Error::Io { path: "tmp".into(), source };
/// # let folder = tempfile::tempdir().map_err(error)?;
/// # let folder = folder.path();
/// let base = Synth::new(1000, 8, 0)?.base();
/// base.save(folder.join("base.fbin"))?;
/// let builder = Builder::new(Strategy::vamana()).knn(20).device(Device::Cpu);
/// let limits = Limits { cluster_size: Some(400), ..Limits::default() };
/// let plan = ClusterPlan::new(&builder, &base, &limits)?.expect("clusters");
/// let files = TaskFiles {
///     base: folder.join("base.fbin"),
///     format: Format::Fbin,
///     output: folder.join("index.tagore"),
///     range_rows: 1024,
/// };
/// let shared = folder.join("tasks");
/// TaskFolder::create(&shared, &OutOfCore::new(builder, plan), &base, &files)?;
///
/// // On any machine that shares the folder:
/// let tasks = TaskFolder::open(&shared)?;
/// let worker = tasks.worker(tasks.open_base()?, Device::Cpu, false)?;
/// for task in tasks.tasks() {
///     worker.run(task)?;
/// }
/// assert_eq!(Index::open(folder.join("index.tagore"))?.len(), 1000);
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TaskFolder {
    pub(super) plan: Plan,
    pub(super) store: ObjectStore,
}

/// An input of a task: an object, or a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskInput {
    /// The task that makes the object; none for the object of the plan.
    pub task: Option<TaskId>,
    /// The name of the object.
    pub object: String,
    /// The part that the task reads.
    pub part: ObjectPart,
}

/// The progress of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StageStatus {
    /// The stage.
    pub stage: TaskStage,
    /// Number of tasks.
    pub tasks: usize,
    /// Tasks whose objects exist, with sound heads and of the right length.
    pub made: usize,
    /// The first tasks without such objects, ten at most.
    pub missing: Vec<TaskId>,
}

/// Maximum number of tasks named in a status.
const NAMED: usize = 10;

impl TaskFolder {
    /// Plans the tasks of `build` in the folder at `path`, which is made if it is absent: finds
    /// repeated rows and the centres of clusters, and writes `plan.json`.
    ///
    /// The same plan may be made again. Work folder, checkpoints and `resume` of `build` have no
    /// effect.
    ///
    /// # Errors
    /// As [`OutOfCore::build`]; or if the folder has another plan, the rule of the filter is not
    /// built in, or `range_rows` is no multiple of 1,024.
    pub fn create(path: &Path, build: &OutOfCore, base: &Vectors, files: &TaskFiles) -> Result<Self> {
        if path.exists() && !path.is_dir() {
            return Err(Error::file(path, "a file", "a folder, or none"));
        }
        let (plan, shared) = Plan::new(build, base, files)?;
        let store = plan.save(path, &shared)?;
        Ok(Self { plan, store })
    }

    /// The usual [`range_rows`](TaskFiles::range_rows) of a data set of `rows` rows: 262,144, or
    /// more for at most 256 ranges. Tasks of `build`, `merge` and `assemble` read a piece of each
    /// range, one after another.
    pub const fn usual_range_rows(rows: usize) -> usize {
        let few = rows.div_ceil(256).next_multiple_of(SUM_ROWS);
        if few > 1 << 18 { few } else { 1 << 18 }
    }

    /// Opens the folder at `path`.
    ///
    /// # Errors
    /// If it has no plan, or the plan is damaged or of another version of the program.
    pub fn open(path: &Path) -> Result<Self> {
        let (plan, store) = Plan::open(path)?;
        Ok(Self { plan, store })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.store.folder()
    }

    /// The file of the data set, and its format.
    pub fn base(&self) -> (&Path, Format) {
        (&self.plan.base, self.plan.format)
    }

    /// Reads the [data set](Self::base) to memory. [`Vectors::map_as`] maps a large one.
    ///
    /// # Errors
    /// As [`Vectors::open_as`].
    pub fn open_base(&self) -> Result<Vectors> {
        Vectors::open_as(&self.plan.base, self.plan.format)
    }

    /// The number of rows of the data set.
    pub fn rows(&self) -> u64 {
        self.plan.fingerprint.rows
    }

    /// The file of the index.
    pub fn output(&self) -> &Path {
        &self.plan.output
    }

    /// The kind of device that tasks run on: `cpu`, or a model of GPU.
    pub fn device(&self) -> &str {
        &self.plan.device
    }

    /// The number of clusters.
    pub fn clusters(&self) -> usize {
        self.plan.clusters
    }

    /// The number of ranges of rows.
    pub fn ranges(&self) -> usize {
        self.plan.ranges()
    }

    /// Host memory of a task of this stage in bytes, without the mapped data set.
    pub fn memory(&self, stage: TaskStage) -> u64 {
        self.plan.memory.get(stage.name()).copied().unwrap_or(0)
    }

    /// Device memory of a task of `build` in bytes, the context included; 0 on the CPU.
    pub fn device_memory(&self) -> u64 {
        self.plan.limits.device_bytes
    }

    /// The number of tasks of a stage.
    pub fn count(&self, stage: TaskStage) -> usize {
        match stage {
            TaskStage::Assign | TaskStage::Write | TaskStage::Assemble => self.ranges(),
            TaskStage::Build | TaskStage::Merge => self.clusters(),
            TaskStage::Place | TaskStage::Finish => 1,
        }
    }

    /// The tasks of a stage.
    pub fn tasks_of(&self, stage: TaskStage) -> impl Iterator<Item = TaskId> + use<> {
        (0..self.count(stage)).map(move |number| TaskId::new(stage, number))
    }

    /// All tasks, each after those whose objects it reads.
    pub fn tasks(&self) -> Vec<TaskId> {
        TaskStage::ALL.into_iter().flat_map(|stage| self.tasks_of(stage)).collect()
    }

    /// Whether the plan has this task.
    pub fn has(&self, task: TaskId) -> bool {
        (task.number as usize) < self.count(task.stage)
    }

    /// The name of the object that a task makes. It holds the hash of the plan, and so of all
    /// inputs, parameters, the version of the program and the kind of device.
    pub fn object(&self, task: TaskId) -> String {
        self.store.name(task)
    }

    /// The inputs of a task. All tasks read the object of the plan too.
    ///
    /// `merge` reads the objects of `build` of its cluster and of the clusters before it that share
    /// nodes with it. Before `place` has run these are unknown, and all of `build` are named.
    ///
    /// # Errors
    /// If the object of `place` cannot be read.
    pub fn inputs(&self, task: TaskId) -> Result<Vec<TaskInput>> {
        use ObjectPart::{Head, Piece, Whole};
        let number = task.number;
        let input = |id: TaskId, part| TaskInput { task: Some(id), object: self.object(id), part };
        let all = |stage, part| self.tasks_of(stage).map(move |id| input(id, part)).collect::<Vec<_>>();
        let one = |stage| input(TaskId { stage, number }, Whole);
        let place = |part| input(TaskId::PLACE, part);
        let mut inputs = vec![TaskInput { task: None, object: self.store.name(PLAN_OBJECT), part: Whole }];
        inputs.extend(match task.stage {
            TaskStage::Assign => Vec::new(),
            TaskStage::Place => all(TaskStage::Assign, Whole),
            TaskStage::Write => vec![one(TaskStage::Assign), place(Piece(number))],
            TaskStage::Build => [vec![place(Whole)], all(TaskStage::Write, Piece(number))].concat(),
            TaskStage::Merge => {
                let before: Vec<u32> = match self.before(number)? {
                    Some(before) => before,
                    None => (0..self.clusters() as u32).filter(|&other| other != number).collect(),
                };
                let build = |other| input(TaskId { stage: TaskStage::Build, number: other }, Piece(number));
                let before = before.into_iter().map(build).collect();
                [vec![place(Whole), one(TaskStage::Build)], all(TaskStage::Write, Piece(number)), before]
                    .concat()
            }
            TaskStage::Assemble => all(TaskStage::Merge, Piece(number)),
            TaskStage::Finish => {
                [vec![place(Head)], all(TaskStage::Build, Head), all(TaskStage::Assemble, Whole)].concat()
            }
        });
        Ok(inputs)
    }

    /// The bytes of an input that its task reads, by the first bytes `begin` of the object: for
    /// ranged reads from a store into a folder. `None` if `begin` is too short to tell; 64 KiB are
    /// enough for 2,000 clusters or ranges. Other bytes of the copy may be holes.
    ///
    /// # Errors
    /// If the object is none of this plan, or damaged.
    pub fn bytes_of(&self, input: &TaskInput, begin: &[u8]) -> Result<Option<ObjectBytes>> {
        let flaw = |flaw: Flaw| {
            let path = self.path().join(&input.object);
            flaw.error(&path, "an intact object of this plan", "run its task again")
        };
        bytes_of(input.part, self.store.plan, begin).map_err(flaw)
    }

    /// The finished index, if the task `finish` has run and its file is in place.
    ///
    /// # Errors
    /// If the object of `finish` cannot be read.
    pub fn finished(&self) -> Result<Option<FinishedIndex>> {
        self.finished_at(&self.plan.output.clone())
    }

    /// As [`finished`](Self::finished), with the index at `output`. Its length and its first page
    /// are compared; the rest may be a hole.
    ///
    /// # Errors
    /// As [`finished`](Self::finished).
    pub fn finished_at(&self, output: &Path) -> Result<Option<FinishedIndex>> {
        if !self.store.has(TaskId::FINISH, true)? {
            return Ok(None);
        }
        let index = self.store.open(TaskId::FINISH)?.and_then(|object| object.more::<FinishedIndex>());
        Ok(index.filter(|index| index.is_at(output)))
    }

    /// Whether the object of a task exists, with a sound head and of the right length, and under
    /// `finish` the index too. With `all`, checks all of its checksums.
    pub(super) fn is_made(&self, task: TaskId, output: &Path, all: bool) -> Result<bool> {
        if task == TaskId::FINISH {
            Ok(self.finished_at(output)?.is_some())
        } else {
            self.store.has(task, all)
        }
    }

    /// The progress of all stages, from a listing of the folder and the heads of its objects.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn status(&self) -> Result<Vec<StageStatus>> {
        let names = self.store.names()?;
        let output: &PathBuf = &self.plan.output;
        let stages = TaskStage::ALL.into_iter().map(|stage| {
            let mut missing = Vec::new();
            let mut made = 0;
            for task in self.tasks_of(stage) {
                if names.contains(&self.object(task)) && self.is_made(task, output, false)? {
                    made += 1;
                } else if missing.len() < NAMED {
                    missing.push(task);
                }
            }
            Ok(StageStatus { stage, tasks: self.count(stage), made, missing })
        });
        stages.collect()
    }
}
