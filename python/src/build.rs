//! Builds: of an index, from a file to a file, and of a k-NN graph.

use std::path::{Path, PathBuf};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tagore::outofcore::{Limits, OutOfCore, OutOfCoreStats, default_work_folder, unfinished};
use tagore::{BuildCost, Builder, Device, KnnGraph, KnnSample, Metric, Progress, RecallSample, Vectors};

use crate::array::{self, Pair};
use crate::errors::Names;
use crate::index::{Built, Index};
use crate::options::{BUILD, Options, SAMPLE, check_metric};
use crate::process::process;
use crate::search::{ResidentResults, left};

/// Builds an index of the rows of `x`.
#[pyfunction]
pub(crate) fn build(x: &Bound<'_, PyAny>, options: &Bound<'_, PyDict>) -> PyResult<Index> {
    let (py, options) = (x.py(), Options(options));
    let base = array::vectors(x, "x", options.bytes()?)?;
    let devices = options.devices()?;
    let builder = options.builder(&devices)?.sample(options.count("verify")?.unwrap_or(1000));
    let (graph, metric) = (options.path("graph")?, options.metric()?);
    let call = options.call(BUILD)?;
    let ids = Index::ids_of(options, base.len())?;
    let sample = options.value("queries")?;
    let sample = sample.map(|sample| array::vectors(&sample, "queries", options.bytes()?)).transpose()?;
    if let Some(sample) = &sample {
        options.call(SAMPLE)?.run(py, |progress| sample.validate(progress))?;
    }
    let rows = options.filter(base.len(), ids.as_ref())?;
    let builder = builder.among(rows).queries(sample);
    let built = call.run(py, |progress| {
        let graph = graph.as_deref().map(|path| (path, metric));
        in_memory(builder, &base, graph, progress)
    })?;
    Ok(Index::new(built.0, Some(base), ids).built(built.1, devices[0]))
}

/// Builds an index of `base` in memory.
fn in_memory(
    builder: Builder,
    base: &Vectors,
    graph: Option<(&Path, Metric)>,
    progress: &Progress,
) -> tagore::Result<(tagore::Index, Built)> {
    let graph = graph.map(|(path, metric)| KnnGraph::open(path, base, metric, progress)).transpose()?;
    let builder = builder.progress(progress.clone());
    let (index, stats) = builder.build_with_stats(base, graph.as_ref())?;
    process().ran_on(&stats.prune.device);
    let cost = BuildCost::in_memory(&builder, &stats);
    Ok((index, Built { sample: stats.sample, cost }))
}

/// Builds an index from a file of vectors to a file, out of core where memory is too small.
#[pyfunction]
pub(crate) fn build_file(
    py: Python<'_>,
    x: PathBuf,
    path: PathBuf,
    options: &Bound<'_, PyDict>,
) -> PyResult<Index> {
    let options = Options(options);
    let (call, bytes) = (options.call(BUILD)?, options.bytes()?);
    let format = options.named("format")?;
    let devices = options.devices()?;
    let limits = options.limits()?;
    let builder = options.builder(&devices)?.sample(options.count("verify")?.unwrap_or(1000));
    let settings = Clusters {
        work_dir: options.path("work_dir")?,
        resume: options.flag("resume")?.unwrap_or_default(),
        checkpoint: Duration::from_secs(options.whole("checkpoint")?.unwrap_or(30)),
    };
    let (ids, sample) = (options.path("ids")?, options.path("queries")?);
    let ((index, base, built), ids) = call.run(py, |progress| {
        tagore::check_output(&path, [Some(&x), ids.as_ref(), sample.as_ref()].into_iter().flatten())?;
        let base = open(&x, format)?;
        check_metric(bytes, &base)?;
        let ids = ids.map(|ids| Index::ids_in(&ids, base.len())).transpose()?;
        let sample = sample.map(|sample| open(&sample, None)).transpose()?;
        let builder = builder.progress(progress.clone()).queries(sample);
        let builder = if settings.continues(&path) { builder } else { builder.fit(&base, &limits)?.0 };
        let Some(build) = settings.plan(&builder, &base, &path, &limits)? else {
            let (index, built) = in_memory(builder, &base, None, progress)?;
            index.save(&path)?;
            return Ok(((index, base, built), ids));
        };
        let stats = settings.build(build, &base, &path)?;
        stats.devices.iter().for_each(|device| process().ran_on(&device.to_string()));
        let (sample, cost) = (KnnSample::default(), BuildCost::out_of_core(&stats));
        Ok(((open_index(&path)?, base, Built { sample, cost }), ids))
    })?;
    // The index of a build out of core may not fit the device.
    Ok(Index::new(index, Some(base), ids).built(built, Device::Cpu))
}

/// Settings of a build out of core.
struct Clusters {
    work_dir: Option<PathBuf>,
    resume: bool,
    checkpoint: Duration,
}

impl Clusters {
    fn work(&self, path: &Path) -> PathBuf {
        self.work_dir.clone().unwrap_or_else(|| default_work_folder(path))
    }

    /// Whether an unfinished build of `path` is continued: it stays what it is.
    fn continues(&self, path: &Path) -> bool {
        self.resume && self.work(path).exists()
    }

    /// The build of `base` to `path` in clusters, where it needs them, or continues such a build.
    fn plan(
        &self,
        builder: &Builder,
        base: &Vectors,
        path: &Path,
        limits: &Limits,
    ) -> tagore::Result<Option<OutOfCore>> {
        if let Some(build) = OutOfCore::within(builder, base, limits)? {
            return Ok(Some(build));
        }
        let stopped = unfinished(&self.work(path), base, limits, self.resume)?;
        Ok(stopped.map(|plan| OutOfCore::new(builder.clone(), plan)))
    }

    fn build(self, build: OutOfCore, base: &Vectors, path: &Path) -> tagore::Result<OutOfCoreStats> {
        let build = build.resume(self.resume).checkpoint(self.checkpoint);
        match self.work_dir {
            Some(folder) => build.work_dir(folder).build(base, path),
            None => build.build(base, path),
        }
    }
}

/// Opens vectors in `format`, or in that of the extension.
pub(crate) fn open(path: &Path, format: Option<tagore::Format>) -> tagore::Result<Vectors> {
    // SAFETY: the documentation of the package says that no one changes a file in use. Python has
    // no way to promise that; its readers of NumPy files map them on the same terms.
    unsafe {
        match format {
            Some(format) => Vectors::map_as(path, format),
            None => Vectors::map(path),
        }
    }
}

/// Opens an index file of the library.
pub(crate) fn open_index(path: &Path) -> tagore::Result<tagore::Index> {
    // SAFETY: the documentation of the package says that no one changes a file in use.
    unsafe { tagore::Index::map(path) }
}

/// Recall below which a graph is worth a warning.
const LOW_RECALL: f64 = 0.9;

/// Builds the k-NN graph of the rows of `x`.
#[pyfunction]
pub(crate) fn knn_graph<'py>(x: &Bound<'py, PyAny>, options: &Bound<'py, PyDict>) -> PyResult<Pair<'py>> {
    let (py, options) = (x.py(), Options(options));
    let base = array::vectors(x, "x", options.bytes()?)?;
    let (device, verified) = (options.device()?, options.count("verify")?.unwrap_or(0));
    let descent = options.descent("k")?.device(device);
    let call = options.call(Names { vectors: "x", renamed: &[("knn", "k")] })?;
    let graph = call.run(py, |progress| {
        let graph = descent.progress(progress.clone()).build(&base)?;
        process().ran_on(&graph.stats().device);
        if verified > 0 && graph.k() > 0 {
            let sample = RecallSample { nodes: verified, device, progress: progress.clone(), ..Default::default() };
            let recall = tagore::knn_recall(&graph, &base, &[graph.k()], &sample)?[0];
            if recall < LOW_RECALL {
                tracing::warn!(
                    "the graph holds {recall:.2} of the neighbours: start=\"all-pairs\" finds all, at a cost that \
                     grows with the square of the rows"
                );
            }
        }
        Ok(graph)
    })?;
    let k = graph.k();
    let (ids, distances) = graph.into_parts();
    array::pair(py, k, ids, distances)
}

/// Builds the k-NN graph of the rows of `x` on a GPU, and leaves it there.
#[pyfunction]
pub(crate) fn knn_graph_on_device(
    x: &Bound<'_, PyAny>,
    options: &Bound<'_, PyDict>,
) -> PyResult<ResidentResults> {
    let (py, options) = (x.py(), Options(options));
    let base = array::vectors(x, "x", options.bytes()?)?;
    let device = options.device()?;
    let descent = options.descent("k")?.device(device);
    let k = options.count("k")?.unwrap_or(0);
    let call = options.call(Names { vectors: "x", renamed: &[("knn", "k")] })?;
    call.run(py, |progress| {
        process().ran_on(&device.to_string());
        left(device, base.len(), k, |to| descent.progress(progress.clone()).build_into(&base, to).map(drop))
    })
}
