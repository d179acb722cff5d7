//! DLPack: capsules with arrays, read and made.

use std::ffi::{CStr, c_int, c_void};
use std::ptr::NonNull;

use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods};
use tagore::{Device, ElementType};

use crate::device_array::{CAPSULE, Values, pointer};

/// `kDLCPU`
const CPU: i32 = 1;

/// `kDLCUDA`
const CUDA: i32 = 2;

/// `kDLUInt` and `kDLFloat`; `kDLInt` is 0.
const UINT: u8 = 1;
const FLOAT: u8 = 2;

/// The name of a capsule of version 1.0 or later.
const VERSIONED: &CStr = c"dltensor_versioned";

/// The name of the capsule of a table of functions.
const EXCHANGE: &CStr = c"dlpack_exchange_api";

/// The default stream, whose work comes before the use of an array.
const DEFAULT_STREAM: u64 = 1;

/// `DLTensor`
#[repr(C)]
struct Tensor {
    data: *mut c_void,
    device: (i32, i32),
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`
#[repr(C)]
struct Managed {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

/// `DLManagedTensorVersioned`
#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    flags: u64,
    tensor: Tensor,
}

/// An array that another library lends.
pub(crate) struct Lent {
    pub address: u64,
    pub shape: Vec<i64>,
    /// Bytes; none without gaps.
    pub strides: Option<Vec<Option<i64>>>,
    /// None for a type that vectors do not have.
    pub values: Option<Values>,
    pub device: Device,
    pub stream: Option<u64>,
}

/// The array in a capsule that nobody has taken, which keeps it; none for another capsule, or an
/// array that is not on a CUDA device.
pub(crate) fn read(capsule: &Bound<'_, PyCapsule>) -> Option<Lent> {
    let named = |name: &CStr| capsule.pointer_checked(Some(name)).ok();
    // SAFETY: capsules of these names hold these structs, as DLPack has it, and keep them.
    let tensor = unsafe {
        match (named(CAPSULE), named(VERSIONED)) {
            (Some(managed), _) => &managed.cast::<Managed>().as_ref().tensor,
            (None, Some(managed)) => {
                let managed = managed.cast::<ManagedVersioned>().as_ref();
                if managed.major != 1 {
                    return None;
                }
                &managed.tensor
            }
            (None, None) => return None,
        }
    };
    lent(tensor, DEFAULT_STREAM)
}

/// The array of a tensor on a CUDA device, whose values work on `stream` writes.
fn lent(tensor: &Tensor, stream: u64) -> Option<Lent> {
    let (kind, number) = tensor.device;
    let device = Device::Cuda(u32::try_from(number).ok().filter(|_| kind == CUDA)?);
    let ndim = usize::try_from(tensor.ndim).ok()?;
    let numbers = |first: *mut i64| {
        // SAFETY: DLPack's arrays have `ndim` numbers.
        let slice = |first: NonNull<i64>| unsafe { std::slice::from_raw_parts(first.as_ptr(), ndim) };
        NonNull::new(first).map(|first| slice(first).to_vec())
    };
    let (size, lanes) = (i64::from(tensor.bits) / 8, tensor.lanes);
    let values = match (tensor.code, tensor.bits, lanes) {
        (FLOAT, 32, 1) => Some(Values::Vectors(ElementType::F32)),
        (FLOAT, 16, 1) => Some(Values::Vectors(ElementType::F16)),
        (UINT, 8, 1) => Some(Values::Vectors(ElementType::U8)),
        (0, 8, 1) => Some(Values::Vectors(ElementType::I8)),
        _ => None,
    };
    let strides = numbers(tensor.strides)
        .map(|strides| strides.iter().map(|stride| stride.checked_mul(size)).collect());
    let address = tensor.data.expose_provenance() as u64;
    let address = address.checked_add(tensor.byte_offset)?;
    let shape = if ndim == 0 { Vec::new() } else { numbers(tensor.shape)? };
    Some(Lent { address, shape, strides, values, device, stream: Some(stream) })
}

/// `DLPackExchangeAPI` of version 1.3: the functions of a type of arrays, for C.
#[repr(C)]
struct Exchange {
    major: u32,
    minor: u32,
    /// The table of an earlier version.
    previous: *const Exchange,
    _allocate: *const c_void,
    managed_of: Option<unsafe extern "C" fn(*mut pyo3::ffi::PyObject, *mut *mut ManagedVersioned) -> c_int>,
    _object_of: *const c_void,
    _tensor_of: *const c_void,
    stream: Option<unsafe extern "C" fn(c_int, i32, *mut *mut c_void) -> c_int>,
}

/// An array that its library keeps until this is dropped.
pub(crate) struct Kept(NonNull<ManagedVersioned>);

// SAFETY: DLPack lets any thread call the deleter.
unsafe impl Send for Kept {}
// SAFETY: nothing reads it.
unsafe impl Sync for Kept {}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: the producer made it for its only owner, which this is.
        unsafe {
            if let Some(delete) = self.0.as_ref().deleter {
                delete(self.0.as_ptr());
            }
        }
    }
}

/// The array `x` on a CUDA device by the table of its type, in less than a microsecond; none
/// without a table, or if it has no such array to lend.
pub(crate) fn exchange(x: &Bound<'_, PyAny>) -> Option<(Lent, Kept)> {
    let table = x.get_type().getattr(pyo3::intern!(x.py(), "__dlpack_c_exchange_api__")).ok()?;
    let table = table.cast::<PyCapsule>().ok()?.pointer_checked(Some(EXCHANGE)).ok()?;
    let mut table = table.cast::<Exchange>().as_ptr().cast_const();
    // SAFETY: tables live as long as the process, and each begins with its version and the one
    // before it. Those of version 1.3 and later have these fields. The functions take an object
    // of the type, and fill what they get a pointer to if they return 0.
    unsafe {
        while (*table).major != 1 {
            table = (*table).previous;
            if table.is_null() {
                return None;
            }
        }
        let Exchange { managed_of, stream, .. } = &*table;
        let (managed_of, stream_of) = ((*managed_of)?, (*stream)?);
        let mut managed = std::ptr::null_mut();
        if managed_of(x.as_ptr(), &raw mut managed) != 0 {
            // The slower way says what is wrong with it.
            drop(PyErr::take(x.py()));
            return None;
        }
        let kept = Kept(NonNull::new(managed)?);
        let tensor = &kept.0.as_ref().tensor;
        let ((kind, number), mut stream) = (tensor.device, std::ptr::null_mut());
        if kind != CUDA || kept.0.as_ref().major != 1 {
            return None;
        }
        if stream_of(kind, number, &raw mut stream) != 0 {
            drop(PyErr::take(x.py()));
            return None;
        }
        Some((lent(tensor, stream.expose_provenance() as u64)?, kept))
    }
}

/// What a capsule made here holds.
#[repr(C)]
struct Own {
    /// First, so that the addresses are the same.
    managed: Managed,
    shape: [i64; 2],
    strides: [i64; 2],
    _array: Py<PyAny>,
}

// SAFETY: the pointers are to the struct itself and to memory of a device; `Py` may be dropped on
// any thread.
unsafe impl Send for Own {}

/// Frees an array that was taken from a capsule.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: the taker calls this once, with the pointer of `make`.
    drop(unsafe { Box::from_raw(managed.cast::<Own>()) });
}

/// Frees an array that nobody has taken from its capsule.
unsafe extern "C" fn destroy(capsule: *mut pyo3::ffi::PyObject) {
    // SAFETY: a capsule of `make`; a taker has given it another name.
    unsafe {
        if pyo3::ffi::PyCapsule_IsValid(capsule, CAPSULE.as_ptr()) == 1 {
            delete(pyo3::ffi::PyCapsule_GetPointer(capsule, CAPSULE.as_ptr()).cast());
        }
    }
}

/// A device by kind and number.
pub(crate) fn device(device: Device) -> (i32, u32) {
    match device {
        Device::Cuda(number) => (CUDA, number),
        _ => (CPU, 0),
    }
}

/// A capsule with the values at `address` of `array`, which it keeps: a row every `stride` values.
pub(crate) fn make<'py>(
    array: Bound<'py, PyAny>,
    address: u64,
    on: Device,
    shape: [usize; 2],
    stride: usize,
    values: Values,
) -> PyResult<Bound<'py, PyCapsule>> {
    let (py, (kind, number), (letter, size)) = (array.py(), device(on), values.kind());
    let code = match letter {
        'f' => FLOAT,
        'u' => UINT,
        _ => 0,
    };
    let tensor = Tensor {
        data: pointer(address),
        device: (kind, number as i32),
        ndim: 2,
        code,
        bits: 8 * size as u8,
        lanes: 1,
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let managed = Managed { tensor, context: std::ptr::null_mut(), deleter: Some(delete) };
    let (shape, strides) = (shape.map(|count| count as i64), [stride as i64, 1]);
    let own = Box::into_raw(Box::new(Own { managed, shape, strides, _array: array.unbind() }));
    // SAFETY: `own` came from a box; the capsule's destructor or the taker frees it.
    unsafe {
        (*own).managed.tensor.shape = (&raw mut (*own).shape).cast();
        (*own).managed.tensor.strides = (&raw mut (*own).strides).cast();
        let capsule = pyo3::ffi::PyCapsule_New(own.cast(), CAPSULE.as_ptr(), Some(destroy));
        if capsule.is_null() {
            delete(own.cast());
            return Err(PyErr::fetch(py));
        }
        Ok(Bound::from_owned_ptr(py, capsule).cast_into_unchecked())
    }
}
