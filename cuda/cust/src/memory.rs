//! Device memory and pinned host memory.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut, Range};

/// Types with the same bytes on host and device: plain old data.
pub use bytemuck::Pod as DeviceCopy;

use crate::context::Context;
use crate::driver::{DevicePtr, Table, table};
use crate::error::{CudaError, CudaResult, Failure, check};
use crate::stream::Stream;

/// A device address, as an argument of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct DevicePointer<T> {
    raw: DevicePtr,
    of: PhantomData<*mut T>,
}

impl<T> DevicePointer<T> {
    /// The address.
    pub fn as_raw(&self) -> u64 {
        self.raw
    }
}

/// `len` values of `T` on a device. The buffer keeps its context alive; any thread may drop it.
///
/// All copies are stream-ordered.
#[derive(Debug)]
pub struct DeviceBuffer<T> {
    raw: DevicePtr,
    len: usize,
    context: Context,
    /// The stream of a stream-ordered allocation.
    stream: Option<Stream>,
    of: PhantomData<T>,
}

// SAFETY: only the driver uses the address, and any thread may call it.
unsafe impl<T: Send> Send for DeviceBuffer<T> {}
// SAFETY: `&DeviceBuffer` gives no access to values on the host, and copies through it are calls of
// the driver, which synchronises them.
unsafe impl<T: Sync> Sync for DeviceBuffer<T> {}

impl<T: DeviceCopy> DeviceBuffer<T> {
    /// Allocates `len` uninitialised values.
    ///
    /// # Safety
    /// - A copy or a kernel writes the values before they are read.
    ///
    /// # Errors
    /// If the device has less free memory; the error gives required and free bytes.
    pub unsafe fn uninitialized(context: &Context, len: usize) -> CudaResult<Self> {
        // SAFETY: the pointer is to a local variable, and the context is current.
        Self::allocated(context, len, None, |table, raw, bytes| unsafe { (table.mem_alloc)(raw, bytes) })
    }

    /// Allocates `len` uninitialised values from the device's memory pool, in the order of
    /// `stream`.
    ///
    /// Dropping the buffer frees it in the same order, so neither waits. Work on other streams may
    /// use it once it has waited for the earlier work on this stream.
    ///
    /// # Safety
    /// - As [`uninitialized`](Self::uninitialized).
    /// - No work on other streams uses the buffer when it is dropped.
    ///
    /// # Errors
    /// As [`uninitialized`](Self::uninitialized); if the device has no pools
    /// ([`MemoryPoolsSupported`](crate::device::DeviceAttribute::MemoryPoolsSupported)).
    pub unsafe fn uninitialized_async(len: usize, stream: &Stream) -> CudaResult<Self> {
        Self::allocated(stream.context(), len, Some(stream.clone()), |table, raw, bytes| {
            // SAFETY: the pointer is to a local variable, and the stream is alive.
            unsafe { (table.mem_alloc_async)(raw, bytes, stream.as_raw()) }
        })
    }

    fn allocated(
        context: &Context,
        len: usize,
        stream: Option<Stream>,
        allocate: impl FnOnce(&Table, &mut DevicePtr, usize) -> u32,
    ) -> CudaResult<Self> {
        let table = context.bind()?;
        let bytes = bytes::<T>(len)?;
        let mut raw = 0;
        // The driver refuses empty allocations; the null address is never dereferenced.
        if bytes > 0 {
            check(allocate(table, &mut raw, bytes), "allocating device memory").map_err(|failure| {
                failure.with_detail(|| match context.mem_get_info() {
                    Ok((free, _)) => format!("needs {bytes} bytes, free {free}"),
                    Err(_) => format!("needs {bytes} bytes"),
                })
            })?;
        }
        Ok(Self { raw, len, context: context.clone(), stream, of: PhantomData })
    }

    /// Allocates `len` values and enqueues setting their bytes to zero on `stream`.
    ///
    /// # Errors
    /// As [`uninitialized`](Self::uninitialized).
    pub fn zeroed(len: usize, stream: &Stream) -> CudaResult<Self> {
        // SAFETY: the values are set below, before anything else in the stream can read them.
        let mut buffer = unsafe { Self::uninitialized(stream.context(), len) }?;
        buffer.set_8(0, stream)?;
        Ok(buffer)
    }

    /// Allocates a buffer and copies `values` to it.
    ///
    /// # Errors
    /// As [`uninitialized`](Self::uninitialized), or if the copy fails.
    pub fn from_slice(values: &[T], stream: &Stream) -> CudaResult<Self> {
        // SAFETY: the values are copied below, before anything else in the stream can read them.
        let mut buffer = unsafe { Self::uninitialized(stream.context(), values.len()) }?;
        buffer.copy_from(values, stream)?;
        Ok(buffer)
    }

    /// Enqueues setting every byte to `value`.
    ///
    /// # Errors
    /// If the stream is of another context or earlier work failed.
    pub fn set_8(&mut self, value: u8, stream: &Stream) -> CudaResult<()> {
        if self.len == 0 {
            return Ok(());
        }
        let table = self.context.bind()?;
        // SAFETY: the range is the buffer's own.
        let code = unsafe { (table.memset_d8_async)(self.raw, value, self.size(), stream.as_raw()) };
        check(code, "setting device memory")
    }

    /// Copies `values` to the buffer and waits for the stream.
    ///
    /// # Errors
    /// If the lengths differ or the copy fails.
    pub fn copy_from(&mut self, values: &[T], stream: &Stream) -> CudaResult<()> {
        // SAFETY: the borrow lasts until the stream is done, below.
        unsafe { self.async_copy_from(values, stream) }?;
        stream.synchronize()
    }

    /// Copies the buffer to `values` and waits for the stream.
    ///
    /// # Errors
    /// If the lengths differ or the copy fails.
    pub fn copy_to(&self, values: &mut [T], stream: &Stream) -> CudaResult<()> {
        // SAFETY: the borrow lasts until the stream is done, below.
        unsafe { self.async_copy_to(0..self.len, values, stream) }?;
        stream.synchronize()
    }

    /// Copies all values to the host, in the order of `stream`, and waits for it.
    ///
    /// # Errors
    /// If the copy fails.
    pub fn as_host_vec(&self, stream: &Stream) -> CudaResult<Vec<T>> {
        let mut values = vec![T::zeroed(); self.len];
        self.copy_to(&mut values, stream)?;
        Ok(values)
    }

    /// Enqueues a copy of `values` to the buffer.
    ///
    /// # Safety
    /// - `values` stays alive and unchanged until the copy is done.
    ///
    /// # Errors
    /// If the lengths differ or the driver refuses.
    pub unsafe fn async_copy_from(&mut self, values: &[T], stream: &Stream) -> CudaResult<()> {
        same_length("copying to a device", values.len(), self.len)?;
        if values.is_empty() {
            return Ok(());
        }
        let table = self.context.bind()?;
        let source = values.as_ptr().cast::<c_void>();
        // SAFETY: both ranges hold `size` bytes, and the caller leaves `values` unchanged.
        let code = unsafe { (table.memcpy_htod_async)(self.raw, source, self.size(), stream.as_raw()) };
        check(code, "copying to a device")
    }

    /// Enqueues a copy of the buffer's `range` to `values`.
    ///
    /// # Safety
    /// - `values` stays alive and is not accessed until the copy is done.
    ///
    /// # Errors
    /// If the range is not in the buffer, the lengths differ, or the driver refuses.
    pub unsafe fn async_copy_to(
        &self,
        range: Range<usize>,
        values: &mut [T],
        stream: &Stream,
    ) -> CudaResult<()> {
        if range.start > range.end || range.end > self.len {
            let found = format!("values {range:?}");
            return Err(Failure::argument("copying from a device", found, format_args!("0..{}", self.len)));
        }
        same_length("copying from a device", values.len(), range.len())?;
        if values.is_empty() {
            return Ok(());
        }
        let table = self.context.bind()?;
        let source = self.raw + (range.start * size_of::<T>()) as u64;
        let target = values.as_mut_ptr().cast::<c_void>();
        // SAFETY: both ranges hold the same number of bytes, and the caller keeps away from
        // `values`.
        let code = unsafe { (table.memcpy_dtoh_async)(target, source, size_of_val(values), stream.as_raw()) };
        check(code, "copying from a device")
    }

    /// Enqueues a copy of `source`, of the same length, to the buffer.
    ///
    /// # Safety
    /// - `source` is not dropped until the copy is done.
    ///
    /// # Errors
    /// If the lengths differ or the driver refuses.
    pub unsafe fn async_copy_from_device(&mut self, source: &Self, stream: &Stream) -> CudaResult<()> {
        same_length("copying on a device", source.len, self.len)?;
        if self.len == 0 {
            return Ok(());
        }
        let table = self.context.bind()?;
        // SAFETY: both buffers hold `size` bytes and differ, since one is borrowed mutably.
        let code = unsafe { (table.memcpy_dtod_async)(self.raw, source.raw, self.size(), stream.as_raw()) };
        check(code, "copying on a device")
    }

    fn size(&self) -> usize {
        self.len * size_of::<T>()
    }
}

impl<T> DeviceBuffer<T> {
    /// The number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of the first value, for kernels; null if there are no values.
    pub fn as_device_ptr(&self) -> DevicePointer<T> {
        DevicePointer { raw: self.raw, of: PhantomData }
    }
}

impl<T> Drop for DeviceBuffer<T> {
    fn drop(&mut self) {
        if self.raw != 0
            && let Ok(table) = self.context.bind()
        {
            // Errors, of a lost context, are ignored: nothing can be done.
            match &self.stream {
                // SAFETY: the memory is freed once, after the work on its stream; the allocation's
                // safety section covers other streams.
                Some(stream) => unsafe { (table.mem_free_async)(self.raw, stream.as_raw()) },
                // SAFETY: the memory is freed once; the driver waits for work that uses it.
                None => unsafe { (table.mem_free)(self.raw) },
            };
        }
    }
}

/// Values in pinned host memory, which a device copies at full speed while the host goes on.
#[derive(Debug)]
pub struct LockedBuffer<T> {
    values: Vec<T>,
    context: Context,
}

/// `CU_MEMHOSTREGISTER_PORTABLE`: pinned for every context.
const PORTABLE: u32 = 1;

impl<T: DeviceCopy> LockedBuffer<T> {
    /// Pins `values` where they are. Once their pages were touched, that takes a ninth of the time
    /// of new pinned memory, and a twentieth on huge pages.
    ///
    /// # Errors
    /// If the system cannot pin the memory.
    pub fn from_vec(context: &Context, mut values: Vec<T>) -> CudaResult<Self> {
        let table = context.bind()?;
        let (start, bytes) = (values.as_mut_ptr(), size_of_val(&values[..]));
        if bytes > 0 {
            // SAFETY: the memory is that of `values`, which the buffer keeps and never grows, until
            // it is unpinned; the context is current.
            check(unsafe { (table.mem_host_register)(start.cast(), bytes, PORTABLE) }, "pinning host memory")
                .map_err(|failure| failure.with_detail(|| format!("needs {bytes} bytes")))?;
        }
        Ok(Self { values, context: context.clone() })
    }

    /// Allocates `len` copies of `value`.
    ///
    /// # Errors
    /// If the system cannot pin the memory.
    pub fn new(context: &Context, value: &T, len: usize) -> CudaResult<Self> {
        Self::from_vec(context, vec![*value; len])
    }

    /// Allocates a copy of `values`.
    ///
    /// # Errors
    /// If the system cannot pin the memory.
    pub fn from_slice(context: &Context, values: &[T]) -> CudaResult<Self> {
        Self::from_vec(context, values.to_vec())
    }
}

impl<T> Deref for LockedBuffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.values
    }
}

impl<T> DerefMut for LockedBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.values
    }
}

impl<T> Drop for LockedBuffer<T> {
    fn drop(&mut self) {
        if size_of_val(&self.values[..]) > 0
            && let Ok(table) = self.context.bind()
        {
            // SAFETY: the memory was pinned once, on allocation, and still is. Errors are ignored:
            // nothing can be done.
            unsafe { (table.mem_host_unregister)(self.values.as_mut_ptr().cast()) };
        }
    }
}

/// Enqueues a copy of `source` to the device address `target`.
///
/// # Safety
/// - `target` is the address of as many bytes of device memory in the stream's context.
/// - `source` stays alive and unchanged until the copy is done.
///
/// # Errors
/// If the driver refuses.
pub unsafe fn memcpy_htod_async(target: u64, source: &[u8], stream: &Stream) -> CudaResult<()> {
    let table = stream.context().bind()?;
    // SAFETY: the caller's guarantee.
    let code =
        unsafe { (table.memcpy_htod_async)(target, source.as_ptr().cast(), source.len(), stream.as_raw()) };
    check(code, "copying to a device")
}

/// Enqueues a copy from the device address `source` to `target`.
///
/// # Safety
/// - `source` is the address of as many bytes of device memory in the stream's context.
/// - `target` stays alive and is not accessed until the copy is done.
///
/// # Errors
/// If the driver refuses.
pub unsafe fn memcpy_dtoh_async(target: &mut [u8], source: u64, stream: &Stream) -> CudaResult<()> {
    let table = stream.context().bind()?;
    let len = target.len();
    // SAFETY: the caller's guarantee.
    let code = unsafe { (table.memcpy_dtoh_async)(target.as_mut_ptr().cast(), source, len, stream.as_raw()) };
    check(code, "copying from a device")
}

/// Enqueues a copy of `bytes` bytes from the device address `source`, of any device, to `target`.
/// It passes through the host unless the device may read the memory of the other
/// ([`MemoryPool::allow`](crate::pool::MemoryPool::allow)).
///
/// # Safety
/// - `target` is the address of as many bytes of device memory in the stream's context, and
///   `source` of memory of a device that this process has opened.
/// - All work of the other device on these bytes is done, and none follows before the copy is done.
///
/// # Errors
/// If the driver refuses.
pub unsafe fn memcpy_peer_async(target: u64, source: u64, bytes: usize, stream: &Stream) -> CudaResult<()> {
    let table = stream.context().bind()?;
    // SAFETY: the caller's guarantee. The driver finds the device of an address.
    let code = unsafe { (table.memcpy_async)(target, source, bytes, stream.as_raw()) };
    check(code, "copying from another device")
}

/// Enqueues setting `bytes` bytes from the device address `target` on to `value`.
///
/// # Safety
/// - `target` is the address of `bytes` bytes of device memory in the stream's context.
///
/// # Errors
/// If the driver refuses.
pub unsafe fn memset_d8_async(target: u64, value: u8, bytes: usize, stream: &Stream) -> CudaResult<()> {
    let table = stream.context().bind()?;
    // SAFETY: the caller's guarantee.
    check(unsafe { (table.memset_d8_async)(target, value, bytes, stream.as_raw()) }, "setting device memory")
}

/// A piece of memory that the driver knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownMemory {
    /// Whether it is memory of a device; else memory of the host.
    pub is_device: bool,
    /// The device that owns it.
    pub ordinal: u32,
    /// The first address after it.
    pub end: u64,
}

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`, `_DEVICE_ORDINAL`, `_RANGE_START_ADDR` and `_RANGE_SIZE`.
const MEMORY_TYPE: i32 = 2;
const DEVICE_ORDINAL: i32 = 9;
const RANGE_START: i32 = 11;
const RANGE_SIZE: i32 = 12;

/// `CU_MEMORYTYPE_DEVICE`
const TYPE_DEVICE: u32 = 2;

/// The memory at an address of any library; none if the driver does not know it. The address is
/// not dereferenced. No context need be current.
///
/// # Errors
/// If there is no driver, or it fails in another way.
pub fn known_memory(address: u64) -> CudaResult<Option<KnownMemory>> {
    let table = table()?;
    let (mut kind, mut ordinal, mut start, mut size) = (0u32, 0i32, 0u64, 0usize);
    let mut asked = [MEMORY_TYPE, DEVICE_ORDINAL, RANGE_START, RANGE_SIZE];
    let mut answers: [*mut c_void; 4] =
        [(&raw mut kind).cast(), (&raw mut ordinal).cast(), (&raw mut start).cast(), (&raw mut size).cast()];
    // SAFETY: the arrays are of the count's length; the answers go to local variables of the
    // attributes' types.
    let code =
        unsafe { (table.pointer_get_attributes)(4, asked.as_mut_ptr(), answers.as_mut_ptr(), address) };
    if code == CudaError::InvalidValue as u32 {
        return Ok(None);
    }
    check(code, "asking for the memory at an address")?;
    // An address that the driver does not know has no type.
    if kind == 0 {
        return Ok(None);
    }
    let (is_device, ordinal) = (kind == TYPE_DEVICE, ordinal.unsigned_abs());
    Ok(Some(KnownMemory { is_device, ordinal, end: start.saturating_add(size as u64) }))
}

fn bytes<T>(len: usize) -> CudaResult<usize> {
    len.checked_mul(size_of::<T>())
        .ok_or_else(|| Failure::argument("allocating", format_args!("{len} values"), "fewer than 2^64 bytes"))
}

fn same_length(doing: &'static str, found: usize, expected: usize) -> CudaResult<()> {
    if found == expected {
        Ok(())
    } else {
        Err(Failure::argument(doing, format_args!("{found} values"), format_args!("{expected}")))
    }
}
