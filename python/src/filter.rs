//! Sets of rows, for searches, builds and updates: a mask, or ids.

use numpy::ndarray::ArrayView1;
use numpy::{PyArray1, PyArrayDescrMethods, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use tagore::{IdSet, Ids};

use crate::errors::{self, Names};

const SETS: &str = "a 1-D array of bools or of ids";

/// The rows of an argument, `filter` of the given name: an array of bools, one per row, or of ids
/// as u64.
pub(crate) fn id_set(
    filter: &Bound<'_, PyAny>,
    name: &str,
    rows: usize,
    ids: Option<&Ids>,
) -> PyResult<IdSet> {
    let py = filter.py();
    let wrong = |found: String, expected: &str| Err(errors::argument(py, name, found, expected));
    if filter.cast::<PyUntypedArray>().is_ok_and(|array| array.dtype().kind() == b'b') {
        // Any byte but 0 is true to NumPy. A `bool` of Rust must be 0 or 1.
        let mask = filter.call_method1("view", ("u1",))?;
        let Ok(mask) = mask.cast::<PyArray1<u8>>() else {
            return wrong(format!("{}", filter.get_type()), SETS);
        };
        let mask = mask.readonly();
        let mask = mask.as_array();
        if mask.len() != rows {
            return wrong(format!("{} bools", mask.len()), &format!("{rows}, one per row"));
        }
        let set = rows_of(mask).collect::<Vec<_>>();
        return IdSet::from_ids(rows, set).map_err(|error| errors::exception(py, error, &Names::default()));
    }
    let Ok(given) = filter.cast::<PyArray1<u64>>() else {
        return wrong(format!("{}", filter.get_type()), SETS);
    };
    let given = given.readonly();
    let given = given.as_array();
    if given.len() == rows && given.iter().all(|&id| id < 2) {
        let expected = format!(
            "a mask of bools or the ids of the rows: call numpy.asarray({name}, dtype=bool) or numpy.flatnonzero({name})"
        );
        return wrong(format!("{rows} integers, one per row, all 0 or 1"), &expected);
    }
    let mut set = IdSet::new(rows);
    for &id in given {
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
            set.insert(row).map_err(|error| errors::exception(py, error, &Names::default()))?;
        }
    }
    Ok(set)
}

/// The rows whose byte is not 0.
fn rows_of(mask: ArrayView1<'_, u8>) -> impl Iterator<Item = u32> {
    mask.into_iter().zip(0u32..).filter(|&(&passes, _)| passes != 0).map(|(_, row)| row)
}
