//! Arrays of NumPy as vectors, and results as arrays.

use numpy::ndarray::{ArrayView2, ShapeBuilder};
use numpy::{
    Element, PyArray1, PyArray2, PyArrayDescrMethods, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::prelude::*;
use pyo3::types::PyWeakrefReference;
use tagore::{Bits, Component, ElementType, Error, MAX_DIM, Vectors};

use crate::device_array::DeviceArray;
use crate::errors::{self, Names};

/// Values of an array, which lives as long as they do.
struct Values<T> {
    first: *const T,
    len: usize,
    _array: Py<PyAny>,
    _pins: Vec<Py<PyAny>>,
}

// SAFETY: `Py` may be dropped on any thread, and keeps the memory; the pins keep NumPy from moving
// it.
unsafe impl<T> Send for Values<T> {}
// SAFETY: all threads of the library only read. The documentation says that no thread of Python
// writes the values meanwhile. None can be kept from it, since NumPy lends any number of writable
// views; but every bits are a value of a `T`, and values address no memory, so a writer changes
// answers alone.
unsafe impl<T> Sync for Values<T> {}

impl<T> AsRef<[T]> for Values<T> {
    fn as_ref(&self) -> &[T] {
        // SAFETY: `Rows::vectors` has checked that the array holds `len` aligned values from here
        // on. The references below keep the array, and its memory where it is.
        unsafe { std::slice::from_raw_parts(self.first, self.len) }
    }
}

/// Weak references to `array` and to the arrays that it is a view of. NumPy moves no memory of an
/// array that has one. `resize(refcheck=False)` ignores all else: references, views and exported
/// buffers.
fn pins(array: &Bound<'_, PyAny>) -> PyResult<Vec<Py<PyAny>>> {
    let (mut pins, mut next) = (Vec::new(), Some(array.clone()));
    while let Some(array) = next {
        if array.is_instance_of::<PyUntypedArray>() {
            pins.push(PyWeakrefReference::new(&array)?.into_any().unbind());
        }
        // Of a view, and of a memoryview.
        let owner = array.getattr("base").or_else(|_| array.getattr("obj"));
        next = owner.ok().filter(|owner| !owner.is_none());
    }
    Ok(pins)
}

/// What the bytes of an array of u8 are.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Bytes {
    Values,
    /// Eight bits each.
    Bits,
}

impl Bytes {
    /// Those of vectors of a type.
    pub(crate) fn of_type(element: ElementType) -> Self {
        if element == ElementType::B1 { Self::Bits } else { Self::Values }
    }
}

/// The vectors of a 2-D array of NumPy or on a device, without a copy. `name` is its parameter. The
/// package in Python has made it fit, so that errors need no remedy.
///
/// # Errors
/// If the array has another shape, type or order than rows of 1 to 4,096 f32, f16, bf16, u8 or i8,
/// or than bytes of bits.
pub(crate) fn vectors(array: &Bound<'_, PyAny>, name: &'static str, bytes: Bytes) -> PyResult<Vectors> {
    vectors_or_copy(array, name, bytes, 0)
}

/// The vectors of a search, as [`vectors`] takes them; few of NumPy are copied, so that the
/// caller's other threads may use the array for the next queries.
///
/// # Errors
/// As of [`vectors`].
pub(crate) fn queries(array: &Bound<'_, PyAny>, name: &'static str, bytes: Bytes) -> PyResult<Vectors> {
    vectors_or_copy(array, name, bytes, COPIED)
}

/// Maximum bytes of queries that are copied: a copy takes far less time than the search.
const COPIED: usize = 1 << 20;

/// [`vectors`], copied if they have at most `copied` bytes.
fn vectors_or_copy(
    array: &Bound<'_, PyAny>,
    name: &'static str,
    bytes: Bytes,
    copied: usize,
) -> PyResult<Vectors> {
    let py = array.py();
    let wrong = |found: String, expected: &str| Err(errors::argument(py, name, found, expected));
    if let Ok(array) = array.cast::<DeviceArray>() {
        return DeviceArray::vectors(array, name);
    }
    let Ok(array) = array.cast::<PyUntypedArray>() else {
        return wrong(format!("a {}", array.get_type()), "an array of NumPy");
    };
    if array.ndim() != 2 {
        return wrong(format!("{} dimensions", array.ndim()), "2: rows and columns");
    }
    let dtype = array.dtype();
    let size = dtype.itemsize();
    let is_native = matches!(dtype.byteorder(), b'=' | b'|') || dtype.byteorder() == NATIVE;
    let element = match (dtype.kind(), size) {
        (b'f', 4) => ElementType::F32,
        (b'f', 2) => ElementType::F16,
        // Plain values of 2 bytes: those of `ml_dtypes.bfloat16`, and what NumPy loads of them.
        (b'V', 2) if !dtype.has_fields() => ElementType::Bf16,
        (b'u', 1) if bytes == Bytes::Bits => ElementType::B1,
        (b'u', 1) => ElementType::U8,
        (b'i', 1) => ElementType::I8,
        _ => return wrong(format!("values of {dtype}"), "float32, float16, bfloat16, uint8 or int8"),
    };
    if bytes == Bytes::Bits && element != ElementType::B1 {
        return wrong(format!("values of {dtype}"), "uint8 of eight bits each");
    }
    if !is_native {
        return wrong(format!("values of {dtype}"), "the byte order of this machine");
    }
    let (shape, strides) = (array.shape(), array.strides());
    let ([rows, dim], &[stride, step]) = ([shape[0], shape[1]], strides) else {
        return wrong("no strides".to_owned(), "2");
    };
    if !(1..=MAX_DIM).contains(&dim) {
        return wrong(format!("{dim} columns"), &format!("1 to {MAX_DIM}"));
    }
    let stride = if rows > 1 { stride } else { (dim * size).cast_signed() };
    let is_dense = step == size.cast_signed() || dim < 2;
    let fits = stride >= (dim * size).cast_signed() && (stride as usize).is_multiple_of(size);
    if !is_dense || !fits {
        let found = format!("strides of {stride} and {step} bytes");
        return wrong(found, "rows one after another");
    }
    let pins = pins(array.as_any())?;
    let given = Rows { array, pins, name, rows, columns: dim, stride: stride as usize / size };
    let made = match element {
        ElementType::F32 => given.vectors::<f32>(copied),
        ElementType::F16 => given.vectors::<half::f16>(copied),
        ElementType::Bf16 => given.vectors::<half::bf16>(copied),
        ElementType::U8 => given.vectors::<u8>(copied),
        ElementType::I8 => given.vectors::<i8>(copied),
        ElementType::B1 => given.vectors::<Bits>(copied),
    };
    made.map_err(|error| errors::exception(py, error, &Names { vectors: name, renamed: &[] }))
}

/// The character of this machine's byte order in NumPy.
const NATIVE: u8 = if cfg!(target_endian = "little") { b'<' } else { b'>' };

/// Rows of an array, one every `stride` values.
struct Rows<'a, 'py> {
    array: &'a Bound<'py, PyUntypedArray>,
    pins: Vec<Py<PyAny>>,
    name: &'static str,
    rows: usize,
    columns: usize,
    stride: usize,
}

impl Rows<'_, '_> {
    /// The rows as vectors, copied if they have at most `copied` bytes.
    fn vectors<T: Component>(self, copied: usize) -> tagore::Result<Vectors> {
        let Self { array, pins, name, rows, columns, stride } = self;
        let dim = if T::TYPE == ElementType::B1 { 8 * columns } else { columns };
        // SAFETY: the pointer of a live array.
        let first = unsafe { (*array.as_array_ptr()).fields.data }.cast::<T>().cast_const();
        if !first.is_aligned() {
            return Err(Error::Argument {
                parameter: name,
                found: format!("values at an address not aligned to {} bytes", size_of::<T>()),
                expected: "an aligned copy".to_owned(),
            });
        }
        let values = if rows == 0 || columns == 0 { 0 } else { (rows - 1) * stride + columns };
        // An empty array may lend no address.
        let first =
            if values == 0 { std::ptr::NonNull::<T>::dangling().as_ptr().cast_const() } else { first };
        let values = Values { first, len: values, _array: array.clone().into_any().unbind(), _pins: pins };
        let mut copy = Vec::new();
        // Where memory is short, they are lent.
        if size_of_val(values.as_ref()) <= copied && copy.try_reserve_exact(values.as_ref().len()).is_ok() {
            copy.extend_from_slice(values.as_ref());
            return Vectors::from_strided(copy, rows, dim, stride.max(columns));
        }
        Vectors::from_strided(values, rows, dim, stride.max(columns))
    }
}

/// Ids and distances, n x k each.
pub(crate) type Pair<'py> = (Bound<'py, PyArray2<u32>>, Bound<'py, PyArray2<f32>>);

/// A pair of arrays that takes over `ids` and `distances`.
pub(crate) fn pair(py: Python<'_>, k: usize, ids: Vec<u32>, distances: Vec<f32>) -> PyResult<Pair<'_>> {
    Ok((matrix(py, k, ids)?, matrix(py, k, distances)?))
}

/// An n x k array that takes over `values`.
pub(crate) fn matrix<T: Element>(
    py: Python<'_>,
    k: usize,
    values: Vec<T>,
) -> PyResult<Bound<'_, PyArray2<T>>> {
    let rows = values.len() / k.max(1);
    PyArray1::from_vec(py, values).reshape([rows, k])
}

/// A read-only array over `values` of `owner`: `rows` rows of `cols`, one every `stride` values.
///
/// # Safety
/// `owner` must keep the values, unchanged, as long as it lives.
pub(crate) unsafe fn view<'py, T: Element>(
    values: &[T],
    rows: usize,
    cols: usize,
    stride: usize,
    owner: Bound<'py, PyAny>,
) -> Bound<'py, PyArray2<T>> {
    // The last row needs no room after it, so the pointer is taken and not the slice.
    let shape = (rows, cols).strides((stride, 1));
    // SAFETY: the caller's slice holds every row.
    let view = unsafe { ArrayView2::from_shape_ptr(shape, values.as_ptr()) };
    // SAFETY: the caller's owner keeps the values.
    let array = unsafe { PyArray2::borrow_from_array(&view, owner) };
    drop(array.readwrite().make_nonwriteable());
    array
}
