//! Live indexes.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tagore::{Device, ElementType, IdSet, Progress, Search};

use crate::array::{self, Bytes};
use crate::errors::{self, Names};
use crate::options::{BUILD, Options};
use crate::process::process;

const ROWS: Names = Names { vectors: "x", renamed: &[] };
const QUERIES: Names = Names { vectors: "q", renamed: &[] };

/// Ids and distances, the number of distances computed, and of queries that found fewer than k.
type Found<'py> = (Bound<'py, PyArray2<u64>>, Bound<'py, PyArray2<f32>>, u64, usize);

/// A live index, until it is closed.
#[pyclass(frozen, module = "tagore_ann._tagore")]
pub(crate) struct LiveIndex(RwLock<Option<Arc<tagore::LiveIndex>>>);

impl LiveIndex {
    fn new(index: tagore::LiveIndex) -> Self {
        Self(RwLock::new(Some(Arc::new(index))))
    }

    fn index(&self, py: Python<'_>) -> PyResult<Arc<tagore::LiveIndex>> {
        let index = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let expected = "an open one: LiveIndex.open(folder)";
        index.clone().ok_or_else(|| errors::argument(py, "index", "a closed index", expected))
    }

    /// Runs a change.
    fn change<T: Send>(
        &self,
        options: &Bound<'_, PyDict>,
        change: impl FnOnce(&tagore::LiveIndex, &Progress) -> tagore::Result<T> + Send,
    ) -> PyResult<T> {
        let (py, options) = (options.py(), Options(options));
        let index = self.index(py)?;
        options.call(ROWS)?.run(py, |progress| change(&index, progress))
    }
}

/// What an opened index takes from options.
struct Settings {
    device: Device,
    search_device: Device,
    is_synced: bool,
    is_automatic: bool,
}

impl Settings {
    fn new(options: &Options<'_, '_>) -> PyResult<Self> {
        Ok(Self {
            device: options.device()?,
            search_device: options.named("search_device")?.unwrap_or(Device::Cpu),
            is_synced: options.flag("synced")?.unwrap_or(true),
            is_automatic: options.flag("automatic")?.unwrap_or(true),
        })
    }

    fn apply(&self, index: &tagore::LiveIndex) -> tagore::Result<()> {
        index.set_device(self.device);
        index.set_search_device(self.search_device)?;
        index.set_synced(self.is_synced);
        index.set_automatic(self.is_automatic);
        for device in [self.device, self.search_device] {
            let device = if device == Device::Auto { Device::auto() } else { device };
            process().ran_on(&device.to_string());
        }
        Ok(())
    }
}

#[pymethods]
impl LiveIndex {
    #[staticmethod]
    fn create(py: Python<'_>, folder: PathBuf, dim: usize, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let options = Options(options);
        let builder = options.builder(&[options.device()?])?;
        let element: ElementType = options.named("dtype")?.unwrap_or(ElementType::F32);
        let settings = Settings::new(&options)?;
        options.call(BUILD)?.run(py, |_| {
            let index = tagore::LiveIndex::create(&folder, builder, dim, element)?;
            settings.apply(&index)?;
            Ok(Self::new(index))
        })
    }

    #[staticmethod]
    fn open(py: Python<'_>, folder: PathBuf, options: &Bound<'_, PyDict>) -> PyResult<Self> {
        let options = Options(options);
        let settings = Settings::new(&options)?;
        options.call(BUILD)?.run(py, |_| {
            let index = tagore::LiveIndex::open(&folder)?;
            settings.apply(&index)?;
            Ok(Self::new(index))
        })
    }

    /// Kind, metric, dimension, type, rows, and those outside the graph.
    fn about(&self, py: Python<'_>) -> PyResult<(String, String, usize, String, usize, usize)> {
        let index = self.index(py)?;
        let now = index.snapshot();
        let kind = py.detach(|| index.kind());
        let (metric, element) = (now.metric().to_string(), now.element_type().to_string());
        Ok((kind, metric, now.dim(), element, now.len(), now.recent()))
    }

    fn contains(&self, py: Python<'_>, id: u64) -> PyResult<bool> {
        let index = self.index(py)?;
        Ok(py.detach(|| index.contains(id)))
    }

    fn insert(
        &self,
        ids: &Bound<'_, PyArray1<u64>>,
        x: &Bound<'_, PyAny>,
        options: &Bound<'_, PyDict>,
    ) -> PyResult<()> {
        let element = self.index(x.py())?.snapshot().element_type();
        let rows = array::vectors(x, "x", Bytes::of_type(element))?;
        let ids = ids.readonly().as_array().to_vec();
        self.change(options, |index, progress| index.insert(&ids, &rows, progress))
    }

    fn remove(&self, ids: &Bound<'_, PyArray1<u64>>, options: &Bound<'_, PyDict>) -> PyResult<usize> {
        let ids = ids.readonly().as_array().to_vec();
        self.change(options, |index, progress| index.remove(&ids, progress))
    }

    fn consolidate(&self, options: &Bound<'_, PyDict>) -> PyResult<bool> {
        self.change(options, tagore::LiveIndex::consolidate)
    }

    fn search<'py>(
        &self,
        q: &Bound<'py, PyAny>,
        k: usize,
        options: &Bound<'py, PyDict>,
    ) -> PyResult<Found<'py>> {
        let (py, options) = (q.py(), Options(options));
        let snapshot = self.index(py)?.snapshot();
        let queries = array::queries(q, "q", Bytes::of_type(snapshot.element_type()))?;
        let ids: Option<Vec<u64>> = match options.value("filter")? {
            Some(ids) => Some(ids.cast::<PyArray1<u64>>()?.readonly().as_array().to_vec()),
            None => None,
        };
        let (beam, radius) = (options.count("beam")?, options.float("radius")?);
        let found = options.call(QUERIES)?.run(py, |progress| {
            let set: Option<IdSet> = ids.map(|ids| snapshot.rows_of(&ids));
            let search = beam.map_or(Search::new(k), |beam| Search::new(k).beam(beam));
            let search = radius.map_or(search, |radius| search.radius(radius));
            let search = set.as_ref().map_or(search, |set| search.among(set));
            snapshot.search(&queries, search, progress)
        })?;
        let (computed, short) = (found.computed(), found.short());
        let (ids, distances) = found.into_parts();
        Ok((array::matrix(py, k, ids)?, array::matrix(py, k, distances)?, computed, short))
    }

    /// Closes the files once no call uses them any more.
    fn close(&self, py: Python<'_>) {
        let index = self.0.write().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(index));
    }
}
