//! Updates of an index.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use tagore::{Device, Error, IdSet, IndexUpdate};

use crate::array;
use crate::build;
use crate::errors::Names;
use crate::filter;
use crate::index::Index;
use crate::options::Options;
use crate::process::process;

/// Makes the index of `base`, of the file of the option `base`, or of the index's own base: its
/// first rows are those of the index.
#[pyfunction]
pub(crate) fn update(
    index: &Bound<'_, Index>,
    base: Option<&Bound<'_, PyAny>>,
    options: &Bound<'_, PyDict>,
) -> PyResult<Index> {
    let (py, options, index) = (index.py(), Options(options), index.get());
    let set = |name: &'static str| -> PyResult<Option<IdSet>> {
        let Some(rows) = options.value(name)? else { return Ok(None) };
        filter::id_set(&rows, name, index.index.len(), index.ids.as_ref()).map(Some)
    };
    let (removed, replaced) = (set("remove")?, set("replace")?);
    let (file, device) = (options.path("base")?, options.device()?);
    let call = options.call(Names { vectors: "base", renamed: &[] })?;
    let base = match (file, base) {
        (Some(file), _) => Arc::new(call.run(py, |_| build::open(&file, None))?),
        (None, Some(base)) => Arc::new(array::vectors(base, "base", index.bytes())?),
        (None, None) => call.run(py, |_| index.known_base().map(Arc::clone))?,
    };
    let ids = Index::ids_of(options, base.len())?;
    let updated = call.run(py, |progress| {
        let update = IndexUpdate::new(&index.index).map_err(|_| Error::Argument {
            parameter: "index",
            found: format!("an index of {} from another system", index.index.kind()),
            expected: "one that tagore has built: call build(x)".to_owned(),
        })?;
        let update = removed.into_iter().fold(update.device(device), IndexUpdate::remove);
        let update = replaced.into_iter().fold(update, IndexUpdate::replace);
        let (updated, _) = update.progress(progress.clone()).run(&base)?;
        let device = if device == Device::Auto { Device::auto() } else { device };
        process().ran_on(&device.to_string());
        Ok(updated)
    })?;
    Ok(Index::over(updated, base, ids))
}
