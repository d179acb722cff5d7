//! Merges of indexes.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tagore::{Device, Error, IndexMerge};

use crate::array;
use crate::build;
use crate::errors::Names;
use crate::index::Index;
use crate::options::Options;
use crate::process::process;

/// Makes the index of `base`, or of the file of the option `base`: the rows of all `indexes`, of
/// which there is at least one.
#[pyfunction]
pub(crate) fn merge(
    indexes: Vec<Bound<'_, Index>>,
    base: Option<&Bound<'_, PyAny>>,
    options: &Bound<'_, PyDict>,
) -> PyResult<Index> {
    let (py, options) = (options.py(), Options(options));
    let parts: Vec<&Index> = indexes.iter().map(|index| index.get()).collect();
    let (file, device) = (options.path("base")?, options.device()?);
    let call = options.call(Names { vectors: "base", renamed: &[("parts", "indexes")] })?;
    let base = match (file, base, parts.first()) {
        (None, Some(base), Some(first)) => Arc::new(array::vectors(base, "base", first.bytes())?),
        (file, ..) => Arc::new(call.run(py, |_| build::open(&file.unwrap_or_default(), None))?),
    };
    let ids = Index::ids_of(options, base.len())?;
    let merged = call.run(py, |progress| {
        let parts: Vec<&tagore::Index> = parts.iter().map(|part| &*part.index).collect();
        let merge = IndexMerge::new(&parts).map_err(|_| Error::Argument {
            parameter: "indexes",
            found: format!("an index of {} from another system", parts[0].kind()),
            expected: "some that tagore has built: call build(x)".to_owned(),
        })?;
        let (merged, _) = merge.device(device).progress(progress.clone()).run(&base)?;
        let device = if device == Device::Auto { Device::auto() } else { device };
        process().ran_on(&device.to_string());
        Ok(merged)
    })?;
    Ok(Index::over(merged, base, ids))
}
