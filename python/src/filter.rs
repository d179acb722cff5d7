//! Sets of rows, for searches and builds: a mask, or ids.

use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use tagore::{IdSet, Ids};

use crate::errors::{self, Names};

/// The rows of a set, the argument `name`: an array of bools, one per row, or of ids as u64.
pub(crate) fn id_set(
    (name, filter): (&str, &Bound<'_, PyAny>),
    rows: usize,
    ids: Option<&Ids>,
) -> PyResult<IdSet> {
    let py = filter.py();
    let wrong = |found: String, expected: &str| Err(errors::argument(py, name, found, expected));
    if let Ok(mask) = filter.cast::<PyArray1<bool>>() {
        let mask = mask.readonly();
        let mask = mask.as_array();
        if mask.len() != rows {
            return wrong(format!("{} bools", mask.len()), &format!("{rows}, one per row"));
        }
        let set = rows_of(mask).collect::<Vec<_>>();
        return IdSet::from_ids(rows, set).map_err(|error| errors::of(py, error, &Names::default()));
    }
    let Ok(given) = filter.cast::<PyArray1<u64>>() else {
        return wrong(format!("{}", filter.get_type()), "a 1-D array of bools or of ids");
    };
    let mut set = IdSet::new(rows);
    for &id in given.readonly().as_array() {
        let row = match ids {
            Some(ids) => ids.row_of(id),
            None => u32::try_from(id).ok().filter(|&row| (row as usize) < rows),
        };
        match row {
            Some(row) => _ = set.insert(row),
            None if ids.is_some() => return wrong(format!("the id {id}"), "ids of the index"),
            None => return wrong(format!("the id {id}"), &format!("ids below {rows}")),
        }
    }
    // Several rows may have one id.
    if let Some(ids) = ids.filter(|ids| set.len() < ids.len()) {
        let repeated = (0..rows as u32).filter(|&row| {
            ids.get(row).and_then(|id| ids.row_of(id)).is_some_and(|first| set.contains(first))
        });
        for row in repeated.collect::<Vec<_>>() {
            set.insert(row).map_err(|error| errors::of(py, error, &Names::default()))?;
        }
    }
    Ok(set)
}

/// The rows whose bit is set.
fn rows_of(mask: numpy::ndarray::ArrayView1<'_, bool>) -> impl Iterator<Item = u32> {
    mask.into_iter().zip(0u32..).filter(|&(&passes, _)| passes).map(|(_, row)| row)
}
