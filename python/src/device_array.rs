//! Arrays in the memory of a GPU: those of other libraries, and results.

use std::ffi::{CStr, c_void};

use numpy::{PyArray1, PyArrayMethods};
use pyo3::exceptions::{PyAttributeError, PyBufferError};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict, PyTuple};
use tagore::{Device, DeviceMemory, DeviceRows, ElementType, Error, Vectors};

use crate::dlpack::{self, Kept, Lent};
use crate::errors::{self, Names};
use crate::process::process;

/// The type of the values of an array.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Values {
    Vectors(ElementType),
    Ids,
}

impl Values {
    /// By the kind of NumPy and the bytes per value.
    fn from_numpy(kind: u8, size: usize) -> Option<Self> {
        match (kind, size) {
            (b'f', 4) => Some(Self::Vectors(ElementType::F32)),
            (b'f', 2) => Some(Self::Vectors(ElementType::F16)),
            (b'u', 1) => Some(Self::Vectors(ElementType::U8)),
            (b'i', 1) => Some(Self::Vectors(ElementType::I8)),
            (b'u', 4) => Some(Self::Ids),
            _ => None,
        }
    }

    /// The kind of NumPy, and bytes per value.
    pub(crate) fn kind(self) -> (char, usize) {
        match self {
            Self::Vectors(ElementType::F32) => ('f', 4),
            Self::Vectors(ElementType::F16) => ('f', 2),
            // Arrays of a device are never bf16.
            Self::Vectors(ElementType::Bf16) => ('V', 2),
            Self::Vectors(ElementType::U8 | ElementType::B1) => ('u', 1),
            Self::Vectors(ElementType::I8) => ('i', 1),
            Self::Ids => ('u', 4),
        }
    }

    fn typestr(self) -> String {
        let (kind, size) = self.kind();
        format!("{}{kind}{size}", if size == 1 { '|' } else { '<' })
    }
}

/// The owner of an array's memory.
enum Owner {
    Python { _array: Py<PyAny> },
    DlPack { _array: Kept },
    Library(DeviceMemory),
}

/// An array of rows in the memory of a GPU: one that another library lends, or results.
///
/// It gives `__cuda_array_interface__` and DLPack, so `torch.from_dlpack(a)`, `cupy.asarray(a)`
/// and `numba.cuda.as_cuda_array(a)` take it where it lies. Results are there when the call that
/// made them returns, on every stream.
#[pyclass(frozen, module = "tagore_ann._tagore")]
pub(crate) struct DeviceArray {
    address: u64,
    shape: (usize, usize),
    /// Bytes from one row to the next.
    stride: usize,
    values: Values,
    device: Device,
    /// The CUDA stream whose work writes the values.
    stream: Option<u64>,
    owner: Owner,
}

/// An integer of an interface.
fn number<T: for<'a> FromPyObject<'a, 'a>>(value: &Bound<'_, PyAny>) -> Option<T> {
    value.extract().ok()
}

/// The array behind `__cuda_array_interface__` of `owner`; `name` is its parameter.
///
/// # Errors
/// If the array has another shape, type or order than rows of vectors, or is not in the memory of
/// a CUDA device.
#[pyfunction]
pub(crate) fn array_of_interface(
    interface: &Bound<'_, PyDict>,
    owner: Py<PyAny>,
    name: &str,
) -> PyResult<DeviceArray> {
    let py = interface.py();
    let wrong = |found: String, expected: &str| errors::argument(py, name, found, expected);
    let field = |key: &str| Ok::<_, PyErr>(interface.get_item(key)?.filter(|value| !value.is_none()));
    let broken = |key: &str| {
        wrong(format!("a CUDA array without {key}"), "__cuda_array_interface__ of version 2 or 3")
    };
    let shape: Vec<i64> = field("shape")?.and_then(|x| number(&x)).ok_or_else(|| broken("shape"))?;
    let typestr: String = field("typestr")?.and_then(|x| number(&x)).ok_or_else(|| broken("typestr"))?;
    let (address, _): (u64, bool) = field("data")?.and_then(|x| number(&x)).ok_or_else(|| broken("data"))?;
    let strides: Option<Vec<i64>> =
        field("strides")?.map(|x| number(&x).ok_or_else(|| broken("strides"))).transpose()?;
    if field("mask")?.is_some() {
        return Err(wrong("a mask".to_owned(), "an array without one"));
    }
    let stream: Option<u64> = match field("stream")? {
        Some(stream) => match number(&stream) {
            Some(stream) if stream != 0 => Some(stream),
            _ => return Err(wrong("stream 0".to_owned(), "1, 2 or the handle of a stream")),
        },
        None => None,
    };
    let bytes = typestr.as_bytes();
    let size = typestr.get(2..).and_then(|size| size.parse().ok()).unwrap_or(0);
    let is_native = bytes.first().is_some_and(|order| b"<|=".contains(order));
    let values = bytes.get(1).and_then(|&kind| Values::from_numpy(kind, size)).filter(|_| is_native);
    let values = values.ok_or_else(|| refused_type(py, name, &typestr))?;
    let device = if address == 0 && shape.contains(&0) {
        Ok(Device::Cuda(0))
    } else {
        py.detach(|| Device::holding(address))
    };
    let device = device.map_err(|error| exception(py, error, name))?;
    let strides = strides.map(|strides| strides.iter().map(|&stride| Some(stride)).collect());
    let lent = Lent { address, shape, strides, values: Some(values), device, stream };
    DeviceArray::new(py, lent, Owner::Python { _array: owner }, name)
}

/// The array `x` by the functions that its type has for C, if it has and lies on a CUDA device;
/// `name` is its parameter.
///
/// # Errors
/// As [`array_of_interface`].
#[pyfunction]
pub(crate) fn array_of_type(x: &Bound<'_, PyAny>, name: &str) -> PyResult<Option<DeviceArray>> {
    let Some((lent, kept)) = dlpack::exchange(x) else { return Ok(None) };
    DeviceArray::new(x.py(), lent, Owner::DlPack { _array: kept }, name).map(Some)
}

/// The array in a capsule of DLPack, on a CUDA device; `name` is its parameter.
///
/// # Errors
/// As [`array_of_interface`].
#[pyfunction]
pub(crate) fn array_of_capsule(capsule: &Bound<'_, PyCapsule>, name: &str) -> PyResult<DeviceArray> {
    let py = capsule.py();
    let lent = dlpack::read(capsule).ok_or_else(|| {
        errors::argument(py, name, "a capsule", "one of DLPack, with an array on a CUDA device")
    })?;
    let owner = Owner::Python { _array: capsule.clone().into_any().unbind() };
    DeviceArray::new(py, lent, owner, name)
}

fn refused_type(py: Python<'_>, name: &str, found: &str) -> PyErr {
    let expected = "float32, float16, uint8 or int8: convert it on the device";
    errors::argument(py, name, format!("values of {found}"), expected)
}

/// The exception for an array that the library refuses.
fn exception(py: Python<'_>, error: Error, name: &str) -> PyErr {
    match error {
        Error::Argument { parameter, found, expected } => {
            errors::argument(py, name, format!("{parameter} {found}"), &expected)
        }
        error => errors::exception(py, error, &Names::default()),
    }
}

impl DeviceArray {
    fn new(py: Python<'_>, lent: Lent, owner: Owner, name: &str) -> PyResult<Self> {
        let Lent { address, shape, strides, values, device, stream } = lent;
        let wrong = |found: String, expected: &str| Err(errors::argument(py, name, found, expected));
        let Some(values) = values else { return Err(refused_type(py, name, "another type")) };
        let &[rows, dim] = &shape[..] else {
            return wrong(format!("{} dimensions", shape.len()), "2: rows and columns");
        };
        let (Ok(rows), Ok(dim)) = (usize::try_from(rows), usize::try_from(dim)) else {
            return wrong(format!("the shape {shape:?}"), "a shape of numbers from 0");
        };
        let size = values.kind().1;
        let dense = dim.saturating_mul(size);
        let stride = match strides.as_deref() {
            None => Some(dense),
            Some(&[Some(stride), Some(step)]) if step == size as i64 || dim < 2 => {
                if rows < 2 {
                    Some(dense)
                } else {
                    usize::try_from(stride).ok().filter(|&stride| stride >= dense)
                }
            }
            Some(_) => None,
        };
        let Some(stride) = stride else {
            let strides: Vec<i64> = strides.into_iter().flatten().flatten().collect();
            return wrong(
                format!("strides of {strides:?} bytes"),
                &format!(
                    "rows one after another: call {name}.contiguous() or cupy.ascontiguousarray({name})"
                ),
            );
        };
        Ok(Self { address, shape: (rows, dim), stride, values, device, stream, owner })
    }

    /// Results in memory of the library, n x k.
    pub(crate) fn results(memory: DeviceMemory, k: usize, values: Values) -> Self {
        let (address, device) = (memory.address(), memory.device());
        let shape = (memory.len() / k.max(1), k);
        Self { address, shape, stride: k * 4, values, device, stream: None, owner: Owner::Library(memory) }
    }

    /// The vectors of the array, which lives as long as they do. `name` is its parameter.
    ///
    /// # Errors
    /// If the array does not hold vectors, or is not in memory of its device.
    pub(crate) fn vectors(slf: &Bound<'_, Self>, name: &str) -> PyResult<Vectors> {
        let (py, array) = (slf.py(), slf.get());
        let Values::Vectors(element) = array.values else {
            return Err(refused_type(py, name, "uint32"));
        };
        let (rows, dim) = array.shape;
        let rows = DeviceRows::new(array.address, rows, dim, element, array.device).stride(array.stride);
        let rows = array.stream.map_or(rows, |stream| rows.stream(stream));
        let owner = slf.clone().unbind();
        let made = process().device(array.device).and_then(|_| {
            // SAFETY: the owner keeps the array, which the caller does not change.
            py.detach(|| unsafe { Vectors::from_device(rows, owner) })
        });
        process().ran_on(&array.device.to_string());
        made.map_err(|error| exception(py, error, name))
    }

    fn is_cuda(&self) -> bool {
        matches!(self.device, Device::Cuda(_))
    }

    /// The interface of CUDA arrays, or that of arrays in host memory.
    fn interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("shape", self.shape)?;
        interface.set_item("typestr", self.values.typestr())?;
        interface.set_item("data", (self.address, false))?;
        interface.set_item("strides", (self.stride, self.values.kind().1))?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }
}

#[pymethods]
impl DeviceArray {
    /// Rows and columns.
    #[getter]
    fn shape(&self) -> (usize, usize) {
        self.shape
    }

    /// 2.
    #[getter]
    fn ndim(&self) -> usize {
        2
    }

    /// The type of the values.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("numpy")?.call_method1("dtype", (self.values.typestr(),))
    }

    /// The device that holds them, such as ``cuda:0``.
    #[getter]
    fn device(&self) -> String {
        self.device.to_string()
    }

    fn __len__(&self) -> usize {
        self.shape.0
    }

    fn __repr__(&self) -> String {
        let ((rows, dim), typestr) = (self.shape, self.values.typestr());
        format!("<tagore_ann.DeviceArray: {rows} x {dim} {typestr} on {}>", self.device)
    }

    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.is_cuda() {
            return self.interface(py);
        }
        Err(PyAttributeError::new_err("an array of the emulator is in host memory"))
    }

    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.is_cuda() {
            return Err(PyAttributeError::new_err("the array is not in host memory"));
        }
        self.interface(py)
    }

    fn __dlpack_device__(&self) -> (i32, u32) {
        dlpack::device(self.device)
    }

    #[pyo3(signature = (**_options))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        _options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let &Self { address, shape: (rows, dim), stride, values, device, .. } = slf.get();
        let size = values.kind().1;
        if !stride.is_multiple_of(size) {
            return Err(PyBufferError::new_err("the stride is no multiple of the size of a value"));
        }
        dlpack::make(slf.clone().into_any(), address, device, [rows, dim], stride / size, values)
    }

    /// The results as an array of NumPy, by a copy.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let Owner::Library(memory) = &self.owner else {
            return Err(errors::argument(py, "array", "one of another library", "results: copy it there"));
        };
        let values =
            py.detach(|| memory.read()).map_err(|error| errors::exception(py, error, &Names::default()))?;
        let shape = [self.shape.0, self.shape.1];
        let bits = PyArray1::from_vec(py, values).reshape(shape)?;
        bits.call_method1("view", PyTuple::new(py, [self.values.typestr()])?)
    }
}

/// The name of a capsule of DLPack, before someone has taken the array.
pub(crate) const CAPSULE: &CStr = c"dltensor";

/// An address as a pointer of C.
pub(crate) fn pointer(address: u64) -> *mut c_void {
    std::ptr::with_exposed_provenance_mut(address as usize)
}
