//! The index: what it holds, its files and its report.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::json;
use tagore::{BuildCost, Device, Ids, KnnSample, Measure, Progress, Report, SearchCodes, Searcher, Vectors};

use crate::array::{self, Bytes};
use crate::build;
use crate::errors::{self, Names};
use crate::files::{self, Mapped};
use crate::options::{Options, check_metric};
use crate::process::process;

/// Measurements of a build.
pub(crate) struct Built {
    pub sample: KnnSample,
    pub cost: BuildCost,
}

/// An index with its base and ids, if it has them.
#[pyclass(frozen, module = "tagore_ann._tagore")]
pub(crate) struct Index {
    pub(crate) index: Arc<tagore::Index>,
    pub(crate) base: Option<Arc<Vectors>>,
    pub(crate) ids: Option<Ids>,
    built: Option<Built>,
    /// Device of the build, for measurements.
    device: Device,
    /// Searchers made so far.
    searchers: Mutex<Vec<(Place, Searcher)>>,
}

/// Where searches run, and on what they walk.
#[derive(Clone, PartialEq)]
pub(crate) struct Place {
    pub devices: Vec<Device>,
    /// The codes; the vectors themselves if none.
    pub codes: Option<SearchCodes>,
}

impl Place {
    /// On the vectors themselves.
    pub(crate) fn full(devices: Vec<Device>) -> Self {
        Self { devices, codes: None }
    }
}

impl Index {
    /// An index with its base and ids.
    pub(crate) fn new(index: tagore::Index, base: Option<Vectors>, ids: Option<Ids>) -> Self {
        let (index, base) = (Arc::new(index), base.map(Arc::new));
        Self { index, base, ids, built: None, device: Device::Auto, searchers: Mutex::default() }
    }

    /// An index over vectors that others may share.
    pub(crate) fn over(index: tagore::Index, base: Arc<Vectors>, ids: Option<Ids>) -> Self {
        Self { base: Some(base), ..Self::new(index, None, ids) }
    }

    /// The base.
    ///
    /// # Errors
    /// If the index has none.
    pub(crate) fn known_base(&self) -> tagore::Result<&Arc<Vectors>> {
        self.base.as_ref().ok_or_else(|| tagore::Error::Argument {
            parameter: "base",
            found: "none".to_owned(),
            expected: "the vectors: Index.open(path, base=x)".to_owned(),
        })
    }

    /// With the measurements of its build on `device`.
    pub(crate) fn built(self, built: Built, device: Device) -> Self {
        Self { built: Some(built), device, ..self }
    }

    /// The option `ids`: an array of u64 or a file, with an id for each of `rows` rows.
    pub(crate) fn ids_of(options: Options<'_, '_>, rows: usize) -> PyResult<Option<Ids>> {
        let py = options.0.py();
        let Some(given) = options.0.get_item("ids")?.filter(|given| !given.is_none()) else {
            return Ok(None);
        };
        let Ok(array) = given.cast::<PyArray1<u64>>() else {
            let path = options.path("ids")?.unwrap_or_default();
            let ids = Self::ids_in(&path, rows).map(Some);
            return ids.map_err(|error| errors::exception(py, error, &Names::default()));
        };
        let values = array.readonly().as_array().to_vec();
        let ids = Ids::new(values).and_then(|ids| ids.check_len(rows).map(|()| ids));
        ids.map(Some).map_err(|error| errors::exception(py, error, &Names::default()))
    }

    /// The ids in a file.
    pub(crate) fn ids_in(path: &Path, rows: usize) -> tagore::Result<Ids> {
        Ids::open(path).and_then(|ids| ids.check_len(rows).map(|()| ids))
    }

    /// Refuses an output that is a file of the base or of the ids, or that cannot be written.
    fn check_output(&self, path: &Path) -> tagore::Result<()> {
        let base = self.base.as_ref().and_then(|base| base.path());
        tagore::check_output(path, base.into_iter().chain(self.ids.as_ref().and_then(Ids::path)))
    }

    /// What the bytes of queries are.
    pub(crate) fn bytes(&self) -> Bytes {
        Bytes::of_type(self.index.fingerprint().element)
    }

    /// The searcher at `place`, made by the first search.
    pub(crate) fn searcher(&self, place: &Place, progress: &Progress) -> tagore::Result<Searcher> {
        if let Some(known) = self.known(place) {
            return Ok(known);
        }
        let base = self.known_base()?;
        // All share what the CPU has checked and prepared, and its codes.
        let mut searcher = match self.known(&Place::full(vec![Device::Cpu])) {
            Some(searcher) => searcher,
            None => {
                let searcher = Searcher::new(Arc::clone(&self.index), Arc::clone(base), progress)?;
                self.keep(Place::full(vec![Device::Cpu]), searcher)
            }
        };
        if let Some(codes) = place.codes {
            let on_cpu = Place { devices: vec![Device::Cpu], codes: place.codes };
            searcher = match self.known(&on_cpu) {
                Some(searcher) => searcher,
                None => self.keep(on_cpu, searcher.compressed(codes)?),
            };
        }
        if place.devices == [Device::Cpu] {
            return Ok(searcher);
        }
        let searcher = searcher.devices(&place.devices)?;
        process().ran_on(searcher.runs_on());
        Ok(self.keep(place.clone(), searcher))
    }

    /// The searcher at `place`, if a search has made it.
    pub(crate) fn known(&self, place: &Place) -> Option<Searcher> {
        let searchers = self.searchers.lock().unwrap_or_else(PoisonError::into_inner);
        searchers.iter().find(|(known, _)| known == place).map(|(_, searcher)| searcher.clone())
    }

    fn keep(&self, place: Place, searcher: Searcher) -> Searcher {
        let mut searchers = self.searchers.lock().unwrap_or_else(PoisonError::into_inner);
        searchers.push((place, searcher.clone()));
        searcher
    }
}

/// The type of the vectors of a native index file; none for another file.
#[pyfunction]
pub(crate) fn index_element(py: Python<'_>, path: PathBuf) -> PyResult<Option<&'static str>> {
    if !tagore::Index::is_index(&path) {
        return Ok(None);
    }
    let index = build::open_index(&path).map_err(|error| errors::exception(py, error, &Names::default()))?;
    Ok(Some(index.fingerprint().element.name()))
}

/// Opens a file of an index: a native one, or with `base` one of another system. With the option
/// `in_memory` the file is read, and may be deleted.
#[pyfunction]
pub(crate) fn open(
    py: Python<'_>,
    path: PathBuf,
    base: Option<&Bound<'_, PyAny>>,
    options: &Bound<'_, PyDict>,
) -> PyResult<Index> {
    let options = Options(options);
    let (file, base_format) = (options.path("base")?, options.named("base_format")?);
    let call = options.call(Names { vectors: "base", renamed: &[] })?;
    let (format, metric) = (options.named("format")?, options.metric()?);
    let is_native = tagore::Index::is_index(&path);
    let foreign = format.filter(|&format| !is_native && format != tagore::IndexFormat::Tagore);
    let in_memory = options.flag("in_memory")?.unwrap_or_default();
    let open = || if in_memory { tagore::Index::open(&path) } else { build::open_index(&path) };
    let native = if foreign.is_none() { Some(call.run(py, |_| open())?) } else { None };
    let bytes = match &native {
        Some(index) if options.is_given("metric")? => {
            let (found, expected) = (metric, index.metric());
            if found != expected {
                let found = format!("{found} for {}", tagore_text::path_text(&path));
                return Err(errors::argument(py, "metric", found, &format!("{expected}, that of the file")));
            }
            Bytes::of_type(index.fingerprint().element)
        }
        Some(index) => Bytes::of_type(index.fingerprint().element),
        None => options.bytes()?,
    };
    let base = base.map(|base| array::vectors(base, "base", bytes)).transpose()?;
    let (index, base) = call.run(py, |progress| {
        let base = match file {
            Some(file) => Some(build::open(&file, base_format)?),
            None => base,
        };
        let index = match (native, foreign, &base) {
            (Some(index), ..) => index,
            (None, Some(format), Some(base)) => {
                check_metric(bytes, base)?;
                tagore::Index::import(&path, format, base, metric, progress)?
            }
            (None, ..) => build::open_index(&path)?,
        };
        if let Some(base) = &base {
            index.check_base(base)?;
        }
        Ok((index, base))
    })?;
    let ids = Index::ids_of(options, index.len())?.or_else(|| index.imported_ids().cloned());
    Ok(Index::new(index, base, ids))
}

#[pymethods]
impl Index {
    /// Everything but the rows, as JSON.
    fn describe(&self) -> String {
        let (index, description) = (&self.index, self.index.description());
        let base = index.fingerprint();
        json!({
            "kind": description.kind, "metric": description.metric.name_for(base.element), "seed": description.seed,
            "parameters": description.parameters, "n": index.len(), "dim": base.dim, "dtype": base.element,
            "degree": index.max_degree(), "entries": index.entries(), "repeated": index.repeated().len(),
            "left_out": index.left_out().map_or(0, tagore::IdSet::len),
            "layers": index.layers().len(),
        })
        .to_string()
    }

    /// The rows of the base, in place; bf16 as its bits.
    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Some(base) = &self.base else { return Ok(None) };
        files::array_of(&Bound::new(py, Mapped(Arc::clone(base)))?).map(Some)
    }

    /// Own ids of all rows.
    fn own_ids<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyArray1<u64>>> {
        let ids = self.ids.as_ref()?;
        Some(PyArray1::from_iter(py, (0..self.index.len() as u32).filter_map(|row| ids.get(row))))
    }

    fn mean_degree(&self) -> f64 {
        self.index.mean_degree()
    }

    /// The graph: n x R ids in place.
    fn graph<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray2<u32>>> {
        let index = &slf.get().index;
        let rows =
            index.padded_rows().map_err(|error| errors::exception(slf.py(), error, &Names::default()))?;
        let degree = index.max_degree();
        // SAFETY: this object is frozen and holds the index, whose rows never change.
        Ok(unsafe { array::view(rows, index.len(), degree, degree, slf.clone().into_any()) })
    }

    /// A copy of the neighbours of a node.
    fn neighbors<'py>(&self, py: Python<'py>, node: i64) -> PyResult<Bound<'py, PyArray1<u32>>> {
        let n = self.index.len();
        match usize::try_from(node).ok().filter(|&node| node < n) {
            Some(node) => Ok(PyArray1::from_slice(py, self.index.neighbors(node))),
            None => Err(errors::argument(py, "node", node, &format!("0 to {}", n - 1))),
        }
    }

    fn save(&self, py: Python<'_>, path: PathBuf, options: &Bound<'_, PyDict>) -> PyResult<()> {
        Options(options).call(Names::default())?.run(py, |_| {
            self.check_output(&path)?;
            self.index.save(&path)
        })
    }

    /// Writes the index in the format of another system.
    fn export(&self, py: Python<'_>, path: PathBuf, options: &Bound<'_, PyDict>) -> PyResult<()> {
        let options = Options(options);
        let Some(format) = options.named("format")? else {
            return Err(errors::argument(py, "format", "none", "a format of indexes"));
        };
        let (layers, chunks) = (options.flag("layers")?, options.count("pq_chunks")?);
        options.call(Names { vectors: "base", renamed: &[] })?.run(py, |progress| {
            self.check_output(&path)?;
            let mut export =
                self.index.export(format).layers(layers.unwrap_or_default()).progress(progress.clone());
            if let Some(base) = &self.base {
                export = export.base(base);
            }
            if let Some(chunks) = chunks {
                export = export.pq_chunks(chunks);
            }
            export.save(&path)
        })
    }

    /// Checks the whole file of the index.
    fn verify(&self, py: Python<'_>, options: &Bound<'_, PyDict>) -> PyResult<()> {
        Options(options).call(Names::default())?.run(py, |progress| self.index.verify(progress))
    }

    /// The report as JSON and as a page of HTML.
    fn report(&self, py: Python<'_>, options: &Bound<'_, PyDict>) -> PyResult<(String, String)> {
        let options = Options(options);
        let nodes = options.count("verify")?.unwrap_or(1000);
        let seed = self.index.description().seed;
        let device = process().device(self.device).unwrap_or(Device::Cpu);
        options.call(Names { vectors: "base", renamed: &[] })?.run(py, |progress| {
            let measure =
                Measure { nodes, seed, progress: progress.clone(), ..Measure::default() }.on(device);
            let none = KnnSample::default();
            let sample = self.built.as_ref().map_or(&none, |built| &built.sample);
            let mut report = Report::measure(&self.index, self.base.as_deref(), sample, &measure)?;
            report.build = self.built.as_ref().map(|built| built.cost.clone());
            Ok((json!(report).to_string(), tagore_cli::report_page(&report)?))
        })
    }
}
