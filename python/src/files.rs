//! Files of vectors as memory maps, and of ground truths.

use std::path::PathBuf;
use std::sync::Arc;

use half::slice::HalfFloatSliceExt;
use numpy::{Element, PyArray2, PyArrayMethods, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use tagore::{Bits, Component, ElementType, GroundTruth, Vectors};

use crate::array::Bytes;
use crate::errors::{self, Names};
use crate::options::Options;
use crate::{array, build};

/// The owner of mapped vectors.
#[pyclass(frozen)]
pub(crate) struct Mapped(pub Arc<Vectors>);

/// The rows of a file of vectors, mapped.
#[pyfunction]
pub(crate) fn read<'py>(
    py: Python<'py>,
    path: PathBuf,
    options: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let format = Options(options).named("format")?;
    let opened = build::open(&path, format).and_then(|vectors| {
        // The header of a damaged file may promise rows of other lengths.
        vectors.spot_check().map(|()| vectors)
    });
    let vectors = opened.map_err(|error| errors::exception(py, error, &Names::default()))?;
    array_of(&Bound::new(py, Mapped(Arc::new(vectors)))?)
}

/// The rows of mapped vectors.
pub(crate) fn array_of<'py>(owner: &Bound<'py, Mapped>) -> PyResult<Bound<'py, PyAny>> {
    match owner.get().0.element_type() {
        ElementType::F32 => viewed::<f32, _>(owner, |values| values),
        ElementType::F16 => viewed::<half::f16, _>(owner, |values| values),
        // NumPy has no such type: the caller makes one of the bits.
        ElementType::Bf16 => viewed::<half::bf16, u16>(owner, |values| values.reinterpret_cast()),
        ElementType::U8 => viewed::<u8, _>(owner, |values| values),
        ElementType::I8 => viewed::<i8, _>(owner, |values| values),
        // Bytes of eight bits, as of `numpy.packbits`.
        ElementType::B1 => viewed::<Bits, u8>(owner, Bits::as_bytes),
    }
}

/// The rows as an array of what `shown` makes of their values.
fn viewed<'py, T: Component, A: Element>(
    owner: &Bound<'py, Mapped>,
    shown: impl FnOnce(&[T]) -> &[A],
) -> PyResult<Bound<'py, PyAny>> {
    let vectors = &owner.get().0;
    let (values, stride) =
        vectors.strided_as::<T>().map_err(|error| errors::exception(owner.py(), error, &Names::default()))?;
    let columns = T::TYPE.row_bytes(vectors.dim()) / size_of::<T>();
    // SAFETY: the owner is frozen and holds the map, which is read only.
    Ok(unsafe { array::view(shown(values), vectors.len(), columns, stride, owner.clone().into_any()) }
        .into_any())
}

/// Writes the rows of `x`.
#[pyfunction]
pub(crate) fn write(path: PathBuf, x: &Bound<'_, PyAny>, options: &Bound<'_, PyDict>) -> PyResult<()> {
    let options = Options(options);
    let (vectors, format) = (array::vectors(x, "x", Bytes::Values)?, options.named("format")?);
    options.call(Names::default())?.run(x.py(), |progress| {
        let format = format.map_or_else(|| tagore::Format::from_path(&path), Ok)?;
        vectors.save_as(&path, format, progress)
    })
}

/// The ids of a ground truth, and its distances if it has them.
type Truth<'py> = (Bound<'py, PyArray2<u32>>, Option<Bound<'py, PyArray2<f32>>>);

/// Reads a ground truth.
#[pyfunction]
pub(crate) fn read_truth<'py>(
    py: Python<'py>,
    path: PathBuf,
    options: &Bound<'py, PyDict>,
) -> PyResult<Truth<'py>> {
    let call = Options(options).call(Names::default())?;
    let (k, ids, distances) =
        call.run(py, |progress| Ok(GroundTruth::open(&path, progress)?.into_parts()))?;
    let distances = distances.map(|distances| array::matrix(py, k, distances)).transpose()?;
    Ok((array::matrix(py, k, ids)?, distances))
}

/// Writes a ground truth.
#[pyfunction]
pub(crate) fn write_truth(
    path: PathBuf,
    ids: &Bound<'_, PyArray2<u32>>,
    distances: Option<&Bound<'_, PyArray2<f32>>>,
) -> PyResult<()> {
    let py = ids.py();
    let k = ids.shape()[1];
    let values = ids.readonly().as_array().iter().copied().collect();
    let distances = distances.map(|array| array.readonly().as_array().iter().copied().collect());
    let has_distances = distances.is_some();
    let written = GroundTruth::new(k, values, distances).and_then(|truth| {
        match tagore::Format::from_path(&path) {
            // A format of ids alone.
            Ok(format) if !has_distances => truth.save_ids(&path, format),
            _ => truth.save(&path),
        }
    });
    written.map_err(|error| errors::exception(py, error, &Names::default()))
}
