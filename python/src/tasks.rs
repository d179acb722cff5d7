//! Builds in tasks: plans, and workers on folders that hold copies of objects.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tagore::outofcore::{
    ClusterPlan, ObjectBytes, OutOfCore, TaskFiles, TaskFolder, TaskId, TaskInput, TaskStage,
};
use tagore::{Device, Format};

use crate::errors::{self, Names};
use crate::options::{Options, check_metric};
use crate::process::process;

/// Parameters that Python names in another way.
const NAMES: Names = Names { vectors: "base", renamed: &[] };

/// Ranges of bytes or rows: where each begins and ends.
type Ranges = Vec<(u64, u64)>;

/// Bytes of an index, nodes that cannot be reached, repeated rows, and kinds of devices.
type Finished = (u64, u64, u64, Vec<String>);

/// The plan of a build in tasks, in a folder with objects or copies of them.
#[pyclass(frozen)]
pub(crate) struct Tasks(TaskFolder);

/// An input of a task.
#[pyclass(frozen)]
pub(crate) struct TaskObject(TaskInput);

#[pymethods]
impl TaskObject {
    /// The task that makes the object; `None` for the object of the plan.
    #[getter]
    fn task(&self) -> Option<String> {
        self.0.task.map(|task| task.to_string())
    }

    /// The name of the object.
    #[getter]
    fn name(&self) -> &str {
        &self.0.object
    }
}

/// The file of a plan's data set on this machine, and its name and that of the index in the plan.
struct Named {
    path: PathBuf,
    format: Format,
    base: PathBuf,
    output: PathBuf,
}

impl Named {
    fn read(options: Options<'_, '_>, path: PathBuf) -> PyResult<Self> {
        let file = |name| Ok::<_, PyErr>(options.path(name)?.unwrap_or_default());
        let format = options.named("format")?.unwrap_or(Format::Fbin);
        Ok(Self { path, format, base: file("base")?, output: file("output")? })
    }
}

/// Plans the tasks of a build of the file `path` in `folder`.
#[pyfunction]
pub(crate) fn plan_tasks(
    py: Python<'_>,
    path: PathBuf,
    folder: PathBuf,
    options: &Bound<'_, PyDict>,
) -> PyResult<Tasks> {
    let options = Options(options);
    let call = options.call(NAMES)?;
    let named = Named::read(options, path)?;
    let (builder, limits) = (options.builder(&[options.device()?])?, options.limits()?);
    let bytes = options.bytes()?;
    let range_rows = options.count("range_rows")?;
    let planned = call.run(py, |progress| {
        let base = crate::build::open(&named.path, Some(named.format))?;
        check_metric(bytes, &base)?;
        let builder = builder.progress(progress.clone());
        let Some(plan) = ClusterPlan::within(&builder, &base, &limits)? else { return Ok(None) };
        let build = OutOfCore::new(builder, plan);
        let range_rows = range_rows.unwrap_or(TaskFolder::usual_range_rows(base.len()));
        let files = TaskFiles { base: named.base, format: named.format, output: named.output, range_rows };
        TaskFolder::create(&folder, &build, &base, &files).map(Some)
    })?;
    planned.map(Tasks).ok_or_else(|| {
        let expected = "less than the build takes in memory: lower it, set cluster_size, or use build_file";
        errors::argument(py, "host_memory", "room for a build in memory", expected)
    })
}

/// Opens the plan in `folder`.
#[pyfunction]
pub(crate) fn open_tasks(py: Python<'_>, folder: PathBuf) -> PyResult<Tasks> {
    TaskFolder::open(&folder).map(Tasks).map_err(|error| errors::exception(py, error, &NAMES))
}

/// The format of a file of vectors, its rows, values per row, bytes of a value, and their type.
#[pyfunction]
pub(crate) fn shape(
    py: Python<'_>,
    path: PathBuf,
    options: &Bound<'_, PyDict>,
) -> PyResult<(String, usize, usize, usize, String)> {
    let given = Options(options).named("format")?;
    let opened = given.map_or_else(|| Format::from_path(&path), Ok).and_then(|format| {
        let vectors = crate::build::open(&path, Some(format))?;
        Ok((format, vectors))
    });
    let (format, vectors) = opened.map_err(|error| errors::exception(py, error, &NAMES))?;
    let element = vectors.element_type();
    Ok((format.to_string(), vectors.len(), vectors.dim(), element.size(), element.to_string()))
}

fn task(py: Python<'_>, name: &str) -> PyResult<TaskId> {
    name.parse().map_err(|error| errors::exception(py, error, &NAMES))
}

#[pymethods]
impl Tasks {
    /// The kind of device of the plan.
    #[getter]
    fn device(&self) -> &str {
        self.0.device()
    }

    /// Rows of the data set.
    #[getter]
    fn rows(&self) -> u64 {
        self.0.rows()
    }

    /// The name of the object of the plan.
    #[getter]
    fn plan_object(&self) -> String {
        // `assign` reads nothing else.
        let first = TaskId { stage: TaskStage::Assign, number: 0 };
        self.0
            .inputs(first)
            .ok()
            .and_then(|inputs| Some(inputs.into_iter().next()?.object))
            .unwrap_or_default()
    }

    /// The stages in their order: name, tasks, and bytes of host memory of a task.
    fn stages(&self) -> Vec<(&'static str, Vec<String>, u64)> {
        let folder = &self.0;
        let stage = |stage: TaskStage| {
            let tasks = folder.tasks_of(stage).map(|task| task.to_string()).collect();
            (stage.name(), tasks, folder.memory(stage))
        };
        TaskStage::ALL.into_iter().map(stage).collect()
    }

    /// The name of the object that a task makes.
    fn object(&self, py: Python<'_>, name: &str) -> PyResult<String> {
        Ok(self.0.object(task(py, name)?))
    }

    /// The objects that a task reads.
    fn inputs(&self, py: Python<'_>, name: &str) -> PyResult<Vec<TaskObject>> {
        let inputs = self.0.inputs(task(py, name)?).map_err(|error| errors::exception(py, error, &NAMES))?;
        Ok(inputs.into_iter().map(TaskObject).collect())
    }

    /// The length of an object and the byte ranges that its task reads, by its first bytes `begin`;
    /// `None` if these are too few.
    fn bytes_of(&self, py: Python<'_>, input: &TaskObject, begin: &[u8]) -> PyResult<Option<(u64, Ranges)>> {
        let bytes = self.0.bytes_of(&input.0, begin).map_err(|error| errors::exception(py, error, &NAMES))?;
        Ok(bytes.map(|ObjectBytes { length, ranges }| {
            (length, ranges.into_iter().map(|range| (range.start, range.end)).collect())
        }))
    }

    /// The rows of the fingerprint, which all workers read.
    fn fingerprint_rows(&self) -> Vec<u64> {
        self.0.fingerprint_rows().collect()
    }

    /// Ranges of further rows of the data set that a task reads; `None` if it cannot run, since an
    /// object is damaged.
    fn base_rows(&self, py: Python<'_>, name: &str) -> PyResult<Option<Ranges>> {
        let rows = self.0.base_rows(task(py, name)?).map_err(|error| errors::exception(py, error, &NAMES))?;
        Ok(rows.map(|rows| rows.into_iter().map(|rows| (rows.start, rows.end)).collect()))
    }

    /// Runs a task on the data set at `base`, or a copy of the rows that it reads. Returns the task
    /// whose object is damaged, if that is why it could not run.
    fn run(
        &self,
        py: Python<'_>,
        name: &str,
        base: PathBuf,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<Option<String>> {
        let options = Options(options);
        let task = task(py, name)?;
        let call = options.call(NAMES)?;
        let device: Device = options.device()?;
        let format = options.named("format")?.unwrap_or(Format::Fbin);
        let any_device = options.flag("any_device")?.unwrap_or_default();
        let output = options.path("output")?.unwrap_or_default();
        let done = call.run(py, |progress| {
            let base = crate::build::open(&base, Some(format))?;
            let worker = self.0.worker(base, device, any_device)?;
            process().ran_on(&device.to_string());
            worker.progress(progress.clone()).output(output).attempt(task)
        })?;
        Ok(done.err().map(|lost| lost.to_string()))
    }

    /// Compares the first page of the file `output` with that of the finished index. Returns its
    /// bytes, nodes that searches cannot reach, repeated rows, and kinds of devices; `None` if the
    /// index is not finished or not there.
    fn finished(&self, py: Python<'_>, output: PathBuf) -> PyResult<Option<Finished>> {
        let index = self.0.finished_at(&output).map_err(|error| errors::exception(py, error, &NAMES))?;
        Ok(index.map(|index| (index.bytes, index.unreachable, index.repeated, index.devices)))
    }
}
