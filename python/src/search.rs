//! Searches: by an index, and exact.

use numpy::{PyArray1, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::json;
use tagore::{
    Device, DeviceMemory, DeviceResults, ElementType, GroundTruth, IdSet, Neighbor, Progress, Search,
    Searcher, TestQueries, Vectors,
};

use crate::array;
use crate::array::Pair;
use crate::device_array::{DeviceArray, Values};
use crate::errors::{self, Names};
use crate::index::{Index, Place};
use crate::options::Options;
use crate::process::process;

const QUERIES: Names = Names { vectors: "q", renamed: &[] };

/// The settings of a search.
struct Settings {
    k: usize,
    beam: Option<usize>,
    radius: Option<f32>,
    width: Option<usize>,
    rerank: Option<usize>,
    place: Place,
    filter: Option<IdSet>,
}

impl Settings {
    fn read(index: &Index, k: usize, options: Options<'_, '_>) -> PyResult<Self> {
        Ok(Self {
            k,
            beam: options.count("beam")?,
            radius: options.float("radius")?,
            width: options.count("width")?,
            rerank: options.count("rerank")?,
            place: place(options)?,
            filter: options.filter(index.index.len(), index.ids.as_ref())?,
        })
    }

    fn search(&self) -> Search<'_> {
        let mut search = Search::new(self.k);
        if let Some(beam) = self.beam {
            search = search.beam(beam);
        }
        if let Some(radius) = self.radius {
            search = search.radius(radius);
        }
        match &self.filter {
            Some(ids) => search.among(ids),
            None => search,
        }
    }

    /// Whether a GPU answers this many queries before a signal has to be looked for. The CPU
    /// answers searches with wider beams than a GPU takes.
    fn is_short(&self, queries: usize) -> bool {
        let is_narrow = self.search().beam_width() <= WIDEST;
        queries <= MAX_UNWATCHED_QUERIES && is_narrow && self.filter.is_none()
    }

    /// The searcher with the settings that it has itself.
    fn set(&self, searcher: Searcher) -> tagore::Result<Searcher> {
        let searcher = self.rerank.map_or(searcher.clone(), |rerank| searcher.rerank(rerank));
        self.width.map_or(Ok(searcher.clone()), |width| searcher.width(width))
    }
}

/// Where searches run, and on what they walk.
fn place(options: Options<'_, '_>) -> PyResult<Place> {
    Ok(Place { devices: options.devices()?, codes: options.codes()? })
}

/// Own ids of rows, if an index has them.
type Own<'py> = Option<Bound<'py, PyArray1<u64>>>;

/// Ids and distances of one query, and own ids.
type One<'py> = (Bound<'py, PyArray1<u32>>, Bound<'py, PyArray1<f32>>, Own<'py>);

/// Own ids of `rows`; `u64::MAX` for none.
fn named<'py>(index: &Index, py: Python<'py>, rows: &[u32]) -> Own<'py> {
    let ids = index.ids.as_ref()?;
    Some(PyArray1::from_iter(py, rows.iter().map(|&row| ids.get(row).unwrap_or(u64::MAX))))
}

/// The searcher of the devices of a search, made by the first search on them.
fn searcher(
    py: Python<'_>,
    index: &Index,
    settings: &Settings,
    options: Options<'_, '_>,
) -> PyResult<Searcher> {
    if let Some(searcher) = index.known(&settings.place) {
        return Ok(searcher);
    }
    let call = options.call(Names { vectors: "base", renamed: &[] })?;
    call.run(py, |progress| index.searcher(&settings.place, progress))
}

/// Ids and distances on a device.
pub(crate) type ResidentResults = (DeviceArray, DeviceArray);

/// Memory of `device` for `rows` x `k` results, filled by `write`.
pub(crate) fn left(
    device: Device,
    rows: usize,
    k: usize,
    write: impl FnOnce(&DeviceResults) -> tagore::Result<()>,
) -> tagore::Result<ResidentResults> {
    let count = rows.saturating_mul(k);
    let (ids, distances) = (DeviceMemory::new(device, count)?, DeviceMemory::new(device, count)?);
    // SAFETY: both have room for all results, and nothing else knows them.
    write(&unsafe { DeviceResults::new(ids.address(), distances.address(), device) })?;
    let floats = Values::Vectors(ElementType::F32);
    Ok((DeviceArray::results(ids, k, Values::Ids), DeviceArray::results(distances, k, floats)))
}

/// The widest beam of a GPU.
const WIDEST: usize = 512;

/// Maximum number of queries that a GPU is searched for on the calling thread: a few milliseconds,
/// in which no signal has to be looked for.
const MAX_UNWATCHED_QUERIES: usize = 1 << 14;

/// Searches for each row of `q` on a GPU, and leaves ids and distances there.
#[pyfunction]
pub(crate) fn search_on_device(
    index: &Bound<'_, Index>,
    q: &Bound<'_, PyAny>,
    k: usize,
    options: &Bound<'_, PyDict>,
) -> PyResult<ResidentResults> {
    let (py, options, index) = (q.py(), Options(options), index.get());
    let queries = array::queries(q, "q", index.bytes())?;
    let settings = Settings::read(index, k, options)?;
    let (call, is_watched) = (options.call(QUERIES)?, options.is_given("progress")?);
    let searcher = searcher(py, index, &settings, options)?;
    let device = searcher.runs_on().parse::<Device>().unwrap_or_default();
    if device == Device::Cpu {
        let expected = "a GPU: pass device=\"cuda\", or output=\"numpy\"";
        return Err(errors::argument(py, "device", "a search on the CPU", expected));
    }
    let work = |progress: &Progress| search_there(&settings, &searcher, &queries, device, progress);
    if settings.is_short(queries.len()) && !is_watched { at_once(py, work) } else { call.run(py, work) }
}

/// Runs a search of few queries on the calling thread.
fn at_once<T: Send>(py: Python<'_>, work: impl FnOnce(&Progress) -> tagore::Result<T> + Send) -> PyResult<T> {
    py.detach(|| work(&Progress::silent())).map_err(|error| errors::exception(py, error, &QUERIES))
}

fn search_there(
    settings: &Settings,
    searcher: &Searcher,
    queries: &Vectors,
    device: Device,
    progress: &Progress,
) -> tagore::Result<ResidentResults> {
    let searcher = settings.set(searcher.clone())?;
    left(device, queries.len(), settings.k, |to| {
        searcher.search_into(queries, settings.search(), to, progress)
    })
}

/// Searches for each row of `q`: ids and distances, own ids in the same order, the number of
/// distances computed, and that of queries that found fewer than k rows.
#[pyfunction]
pub(crate) fn search<'py>(
    index: &Bound<'_, Index>,
    q: &Bound<'py, PyAny>,
    k: usize,
    options: &Bound<'py, PyDict>,
) -> PyResult<(Pair<'py>, Own<'py>, u64, usize)> {
    let (py, options, index) = (q.py(), Options(options), index.get());
    let queries = array::queries(q, "q", index.bytes())?;
    let settings = Settings::read(index, k, options)?;
    let (call, is_watched) = (options.call(QUERIES)?, options.is_given("progress")?);
    let searcher = searcher(py, index, &settings, options)?;
    let on_gpu = searcher.runs_on() != "cpu";
    let work = |progress: &Progress| settings.set(searcher)?.search(&queries, settings.search(), progress);
    let found = if on_gpu && settings.is_short(queries.len()) && !is_watched {
        at_once(py, work)
    } else {
        call.run(py, work)
    }?;
    let (computed, short) = (found.computed(), found.short());
    let (ids, distances) = found.into_parts();
    let own = named(index, py, &ids);
    Ok((array::pair(py, k, ids, distances)?, own, computed, short))
}

/// Searches for one query of f32, on the calling thread: ids and distances, without empty slots.
#[pyfunction]
pub(crate) fn search_one<'py>(
    index: &Bound<'_, Index>,
    q: &Bound<'py, PyArray1<f32>>,
    k: usize,
    options: &Bound<'py, PyDict>,
) -> PyResult<One<'py>> {
    let (py, options, index) = (q.py(), Options(options), index.get());
    let query = q.readonly().as_array().to_vec();
    let settings = Settings::read(index, k, options)?;
    let searcher = searcher(py, index, &settings, options)?;
    let search = || settings.set(searcher)?.search_one(&query, settings.search());
    let found = if settings.filter.is_some() {
        // Exact search may take its place, on all threads.
        options.call(QUERIES)?.run(py, |_| search())
    } else {
        at_once(py, |_| search())
    }?;
    let ids: Vec<u32> = found.iter().map(|found| found.id).collect();
    let distances = found.iter().map(|&Neighbor { distance, .. }| distance);
    let own = named(index, py, &ids);
    Ok((PyArray1::from_vec(py, ids), PyArray1::from_iter(py, distances), own))
}

/// Recall, queries per second and distances per query at `beams`, as JSON.
#[pyfunction]
pub(crate) fn evaluate(
    index: &Bound<'_, Index>,
    q: &Bound<'_, PyAny>,
    truth: &Bound<'_, numpy::PyArray2<u32>>,
    beams: Vec<usize>,
    options: &Bound<'_, PyDict>,
) -> PyResult<String> {
    let (py, options, index) = (q.py(), Options(options), index.get());
    let queries = array::queries(q, "q", index.bytes())?;
    let columns = truth.shape()[1];
    let values = truth.readonly().as_array().iter().copied().collect();
    let truth = GroundTruth::new(columns, values, None)
        .map_err(|error| errors::exception(py, error, &Names { vectors: "q", renamed: &[("k", "truth")] }))?;
    let k = options.count("k")?.unwrap_or_else(|| truth.k().min(10));
    let among = options.filter(index.index.len(), index.ids.as_ref())?;
    let (place, rerank) = (place(options)?, options.count("rerank")?);
    let names = Names { vectors: "q", renamed: &[("beam", "beams")] };
    let found = options.call(names)?.run(py, |progress| {
        let searcher = index.searcher(&place, progress)?;
        let searcher = rerank.map_or(searcher.clone(), |rerank| searcher.rerank(rerank));
        let test = TestQueries { among: among.as_ref(), ..TestQueries::new(&queries, &truth, k) };
        searcher.evaluate(test, &beams, progress)
    })?;
    Ok(json!(found).to_string())
}

/// Checks the values of `queries`, so that later errors are those of the base.
fn check(py: Python<'_>, queries: &Vectors, options: Options<'_, '_>) -> PyResult<()> {
    options.call(QUERIES)?.run(py, |progress| queries.validate(progress))
}

/// Finds the exact nearest rows of `base` for each row of `q`.
#[pyfunction]
pub(crate) fn exact<'py>(
    base: &Bound<'py, PyAny>,
    q: &Bound<'py, PyAny>,
    k: usize,
    options: &Bound<'py, PyDict>,
) -> PyResult<Pair<'py>> {
    let (py, options) = (base.py(), Options(options));
    let bytes = options.bytes()?;
    let (base, queries) = (array::vectors(base, "base", bytes)?, array::queries(q, "q", bytes)?);
    let search = options.exact(k, &base, &options.devices()?)?;
    check(py, &queries, options)?;
    let call = options.call(Names { vectors: "base", renamed: &[] })?;
    let truth = call.run(py, |progress| {
        let (truth, stats) = search.progress(progress.clone()).run(&base, &queries)?;
        process().ran_on(&stats.device);
        Ok(truth)
    })?;
    let (k, ids, distances) = truth.into_parts();
    array::pair(py, k, ids, distances.unwrap_or_default())
}

/// Finds the exact nearest rows of `base` for each row of `q`, and leaves them on the device.
#[pyfunction]
pub(crate) fn exact_on_device(
    base: &Bound<'_, PyAny>,
    q: &Bound<'_, PyAny>,
    k: usize,
    options: &Bound<'_, PyDict>,
) -> PyResult<ResidentResults> {
    let (py, options) = (base.py(), Options(options));
    let bytes = options.bytes()?;
    let (base, queries) = (array::vectors(base, "base", bytes)?, array::queries(q, "q", bytes)?);
    let device = options.device()?;
    let search = options.exact(k, &base, &[device])?;
    check(py, &queries, options)?;
    let call = options.call(Names { vectors: "base", renamed: &[] })?;
    call.run(py, |progress| {
        process().ran_on(&device.to_string());
        left(device, queries.len(), k, |to| {
            search.progress(progress.clone()).run_into(&base, &queries, to).map(drop)
        })
    })
}
