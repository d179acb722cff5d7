//! Options from a dict of Python, and the settings of the library from options.

use std::path::PathBuf;
use std::str::FromStr;

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use tagore::outofcore::Limits;
use tagore::{
    Builder, CellSettings, Descent, Device, ExactSearch, IdSet, Ids, Iterations, Metric, SearchCodes, Start,
    Strategy, Vectors,
};

use crate::array::Bytes;
use crate::errors::{self, Names};
use crate::filter;
use crate::process::process;
use crate::watch::Call;

/// Options by name. A missing option has its default.
#[derive(Clone, Copy)]
pub(crate) struct Options<'a, 'py>(pub &'a Bound<'py, PyDict>);

const HAMMING: &str = "hamming";

/// Names of a build.
pub(crate) const BUILD: Names =
    Names { vectors: "x", renamed: &[("filter", "rule"), ("strict-detours", "strict_detours")] };

/// Names of a sample of queries.
pub(crate) const SAMPLE: Names = Names { vectors: "queries", renamed: &[] };

const WHOLE: &str = "a whole number from 0";

impl<'py> Options<'_, 'py> {
    pub(crate) fn value(self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.0.get_item(name)?.filter(|value| !value.is_none()))
    }

    /// Whether an option is given.
    pub(crate) fn is_given(self, name: &str) -> PyResult<bool> {
        Ok(self.value(name)?.is_some())
    }

    fn refused(self, name: &str, value: &Bound<'py, PyAny>, expected: &str) -> PyErr {
        let found = value.repr().map_or_else(|_| "a value".to_owned(), |text| text.to_string());
        errors::argument(self.0.py(), name, found, expected)
    }

    /// A number. `True` and `False` are none.
    fn number<T: for<'a> FromPyObject<'a, 'py>>(self, name: &str, expected: &str) -> PyResult<Option<T>> {
        let Some(value) = self.value(name)? else { return Ok(None) };
        let number = if value.is_instance_of::<PyBool>() { None } else { value.extract().ok() };
        number.map(Some).ok_or_else(|| self.refused(name, &value, expected))
    }

    /// A count.
    pub(crate) fn count(self, name: &str) -> PyResult<Option<usize>> {
        self.number(name, WHOLE)
    }

    /// A number of bytes or a seed.
    pub(crate) fn whole(self, name: &str) -> PyResult<Option<u64>> {
        self.number(name, WHOLE)
    }

    /// A number with a point.
    pub(crate) fn float(self, name: &str) -> PyResult<Option<f32>> {
        Ok(self.number::<f64>(name, "a number")?.map(|number| number as f32))
    }

    pub(crate) fn flag(self, name: &str) -> PyResult<Option<bool>> {
        let Some(value) = self.value(name)? else { return Ok(None) };
        value.extract().map(Some).map_err(|_| self.refused(name, &value, "True or False"))
    }

    /// A path: a string or a `pathlib.Path`.
    pub(crate) fn path(self, name: &str) -> PyResult<Option<PathBuf>> {
        let Some(value) = self.value(name)? else { return Ok(None) };
        value.extract().map(Some).map_err(|_| self.refused(name, &value, "a path"))
    }

    fn text(self, name: &str) -> PyResult<Option<String>> {
        let Some(value) = self.value(name)? else { return Ok(None) };
        value.extract().map(Some).map_err(|_| self.refused(name, &value, "a string"))
    }

    /// A value with a name, such as a metric.
    pub(crate) fn named<T: FromStr<Err = tagore::Error>>(self, name: &str) -> PyResult<Option<T>> {
        let Some(text) = self.text(name)? else { return Ok(None) };
        text.parse().map(Some).map_err(|error| self.unknown(name, error))
    }

    /// The exception of a text that names no value.
    fn unknown(self, name: &str, error: tagore::Error) -> PyErr {
        match error {
            tagore::Error::Argument { found, expected, .. }
            | tagore::Error::Mismatch { found, expected, .. } => {
                errors::argument(self.0.py(), name, found, &expected)
            }
            other => errors::exception(self.0.py(), other, &Names::default()),
        }
    }

    /// The metric; `hamming` is that of bits.
    pub(crate) fn metric(self) -> PyResult<Metric> {
        let name = self.text("metric")?.filter(|name| name != HAMMING);
        let metric =
            name.map(|name| name.parse().map_err(|error| self.unknown("metric", error))).transpose()?;
        Ok(metric.unwrap_or_default())
    }

    /// What bytes are under the metric.
    pub(crate) fn bytes(self) -> PyResult<Bytes> {
        Ok(if self.text("metric")?.as_deref() == Some(HAMMING) { Bytes::Bits } else { Bytes::Values })
    }

    fn iterations(self) -> PyResult<Option<Iterations>> {
        let expected = "\"auto\" or a pair of whole numbers, such as (8, 8)";
        let Some(value) = self.value("iterations")? else { return Ok(None) };
        if value.extract::<String>().is_ok_and(|text| text == "auto") {
            return Ok(Some(Iterations::Auto));
        }
        let (first, second) = value.extract().map_err(|_| self.refused("iterations", &value, expected))?;
        Ok(Some(Iterations::Fixed(first, second)))
    }

    /// The device of work that runs on one.
    pub(crate) fn device(self) -> PyResult<Device> {
        let device = self.named("device")?.unwrap_or_default();
        process().device(device).map_err(|error| errors::exception(self.0.py(), error, &Names::default()))
    }

    /// The devices of work that several may share: names separated by commas, or a list of names.
    pub(crate) fn devices(self) -> PyResult<Vec<Device>> {
        let Some(value) = self.value("device")? else { return Ok(vec![self.device()?]) };
        let expected = "a device, such as \"cuda:1\", or several, such as \"cuda:0,1\" or a list";
        let names = value.extract().or_else(|_| value.extract().map(|names: Vec<String>| names.join(",")));
        let names: String = names.map_err(|_: PyErr| self.refused("device", &value, expected))?;
        let devices = Device::list(&names).map_err(|error| self.unknown("device", error))?;
        let known = devices.into_iter().map(|device| process().device(device)).collect::<tagore::Result<_>>();
        known.map_err(|error| errors::exception(self.0.py(), error, &Names::default()))
    }

    /// How the call runs: `threads` and `progress`.
    pub(crate) fn call(self, names: Names) -> PyResult<Call> {
        let threads = self.count("threads")?;
        if let Some(found) = threads.filter(|threads| !(1..=1024).contains(threads)) {
            return Err(errors::argument(self.0.py(), "threads", found, "1 to 1024"));
        }
        Ok(Call { threads, callback: self.value("progress")?.map(Bound::unbind), names })
    }

    /// The settings of a k-NN graph of `knn` neighbours.
    pub(crate) fn descent(self, knn: &str) -> PyResult<Descent> {
        let cells = CellSettings {
            nodes_per_cell: self.count("nodes_per_cell")?,
            probes: self.count("probes")?,
            clusterings: self.count("clusterings")?,
        };
        let mut descent = Descent::new()
            .metric(self.metric()?)
            .cells(cells)
            .iterations(self.iterations()?.unwrap_or_default())
            .start(self.named::<Start>("start")?.unwrap_or_default())
            .seed(self.whole("seed")?.unwrap_or_default());
        if let Some(neighbours) = self.count("expand")? {
            descent = descent.expand(neighbours);
        }
        if let Some(k) = self.count(knn)? {
            descent = descent.knn(k);
        }
        Ok(descent)
    }

    /// The settings of a build on `devices`.
    pub(crate) fn builder(self, devices: &[Device]) -> PyResult<Builder> {
        fn given(name: &str, value: Option<impl ToString>) -> Option<(&str, String)> {
            Some((name, value?.to_string()))
        }
        let parameters = [
            given("degree", self.count("degree")?),
            given("candidates", self.count("candidates")?),
            given("collect", self.text("collect")?),
            given("filter", self.text("rule")?),
            given("alpha", self.float("alpha")?),
            given("angle", self.float("angle")?),
            given("threshold", self.float("threshold")?),
            given("strict-detours", self.flag("strict_detours")?),
            given("layers", self.flag("layers")?),
            given("vectors", self.text("vectors")?),
        ];
        let strategy: Strategy = self.named("kind")?.unwrap_or_else(Strategy::cagra);
        let descent = self.descent("knn")?.device(devices[0]);
        let builder = Builder::new(strategy).descent(descent).devices(devices);
        let builder = builder.set_all(parameters.into_iter().flatten());
        builder.map_err(|error| errors::exception(self.0.py(), error, &BUILD))
    }

    /// The codes of a search's option `vectors`; none for the vectors themselves.
    pub(crate) fn codes(self) -> PyResult<Option<SearchCodes>> {
        let vectors = self.text("vectors")?;
        let codes = vectors.as_deref().map(SearchCodes::named).transpose();
        Ok(codes.map_err(|error| self.unknown("vectors", error))?.flatten())
    }

    /// The settings of an exact search for `k` neighbours.
    pub(crate) fn exact(self, k: usize, base: &Vectors, devices: &[Device]) -> PyResult<ExactSearch> {
        let search = ExactSearch::new(k).metric(self.metric()?).devices(devices);
        Ok(search.among(self.filter(base.len(), None)?))
    }

    /// The rows of a base of `rows` rows, with `ids` of their own if any, that pass the filter; all
    /// if none.
    pub(crate) fn filter(self, rows: usize, ids: Option<&Ids>) -> PyResult<Option<IdSet>> {
        let given = self.value("filter")?;
        given.map(|given| filter::id_set(&given, "filter", rows, ids)).transpose()
    }

    /// Limits of a build.
    pub(crate) fn limits(self) -> PyResult<Limits> {
        Ok(Limits {
            host_memory: self.whole("host_memory")?,
            gpu_memory: self.whole("gpu_memory")?,
            cluster_size: self.count("cluster_size")?,
        })
    }
}

/// Checks that vectors of a type have the metric of `bytes`.
///
/// # Errors
/// If the metric is `hamming`, and they are no bits.
pub(crate) fn check_metric(bytes: Bytes, vectors: &Vectors) -> tagore::Result<()> {
    match bytes {
        Bytes::Bits => Metric::named(HAMMING, vectors.element_type()).map(drop),
        Bytes::Values => Ok(()),
    }
}
