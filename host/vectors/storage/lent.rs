//! Data sets in the memory of a device that another library owns.
//!
//! Work on the device that holds the rows asks for an `Origin` ([`crate::vectors::gpu`]), and
//! kernels copy them from there. All other work reads a copy in host memory, which the first
//! reader makes. A build on that device needs none: kernels check, hash and normalise the rows
//! (`device/src/vectors/`), and searches for nodes of the new graph run on the device too.

use std::any::Any;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use crate::gpu::{Buffer, Gpu};
use crate::vectors::construct::{check_dim, check_rows};
use crate::vectors::gpu::{self, Lent, OnDevice, Replicas};
use crate::vectors::shape::sums_are_exact;
use crate::vectors::storage::Storage;
use crate::vectors::{ElementType, FINITE, Largest, Layout, Metric, Vectors, range};
use crate::{Device, Error, Result};

/// Rows in the memory of a GPU, such as a tensor of another library, for
/// [`Vectors::from_device`].
#[derive(Clone, Copy, Debug)]
pub struct DeviceRows {
    address: u64,
    rows: usize,
    dim: usize,
    element: ElementType,
    device: Device,
    stride: Option<usize>,
    stream: Option<u64>,
}

impl DeviceRows {
    /// `rows` rows of `dim` values of type `element`, without gaps, from `address` on in the memory
    /// of `device`: a [`Device::Cuda`]. For tests, a [`Device::Emulated`] takes an address of
    /// ordinary memory.
    pub fn new(address: u64, rows: usize, dim: usize, element: ElementType, device: Device) -> Self {
        Self { address, rows, dim, element, device, stride: None, stream: None }
    }

    /// Sets the bytes from one row to the next, as in the first columns of a wider array.
    #[must_use]
    pub fn stride(mut self, bytes: usize) -> Self {
        self.stride = Some(bytes);
        self
    }

    /// Sets the CUDA stream whose work writes the values, by the driver's handle; 0 or 1 is the
    /// default stream, 2 that of the calling thread. [`Vectors::from_device`] waits for it. Without
    /// a stream the values must be there already.
    #[must_use]
    pub fn stream(mut self, handle: u64) -> Self {
        self.stream = Some(handle);
        self
    }
}

/// An array of another library on a device, its values on the host once something asks for them.
pub(in crate::vectors) struct LentMemory {
    pub array: Lent,
    /// The rows without gaps; words, so that every type is aligned.
    mirror: OnceLock<Vec<u64>>,
}

impl LentMemory {
    pub(in crate::vectors) fn new(array: Lent) -> Self {
        Self { array, mirror: OnceLock::new() }
    }

    /// Copies the rows to the host, once.
    fn mirror(&self) -> Result<&[u64]> {
        if let Some(mirror) = self.mirror.get() {
            return Ok(mirror);
        }
        tracing::debug!(rows = self.array.rows(), "the rows of a device are copied to the host");
        let words = self.array.download()?;
        self.array.mirrored().store(true, Ordering::Relaxed);
        Ok(self.mirror.get_or_init(|| words))
    }
}

impl crate::vectors::storage::Memory for LentMemory {
    #[expect(clippy::expect_used, reason = "fallible callers ask for the values beforehand")]
    fn bytes(&self) -> &[u8] {
        let words = self.mirror().expect("the device of the vectors has failed");
        let bytes: &[u8] = bytemuck::cast_slice(words);
        &bytes[..self.array.bytes()]
    }

    fn lent(&self) -> Option<&LentMemory> {
        Some(self)
    }
}

impl fmt::Debug for LentMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes on {}", self.array.bytes(), self.array.device())
    }
}

impl Vectors {
    /// A data set whose values lie in the memory of a GPU, where another library keeps them. Builds
    /// and searches on that GPU read them there. All else, such as a build on the CPU, copies them
    /// to the host once. `owner` is kept until the last clone of the data set is dropped.
    ///
    /// The address is checked: it must be memory of that device, with room for all rows.
    ///
    /// ```no_run
    /// use tagore::{Device, DeviceRows, ElementType, Vectors};
    /// # let (address, stream, tensor) = (0, 0, ());
    /// let rows = DeviceRows::new(address, 1_000_000, 128, ElementType::F32, Device::Cuda(0));
    /// // SAFETY: `tensor` keeps the memory, and nothing writes to it.
    /// let base = unsafe { Vectors::from_device(rows.stream(stream), tensor) }?;
    /// # Ok::<(), tagore::Error>(())
    /// ```
    ///
    /// # Safety
    /// - `owner` keeps the rows in memory, and they do not change while the data set exists.
    /// - The stream, if any, exists and belongs to the device.
    /// - For an emulator, the address is one of ordinary memory.
    ///
    /// # Errors
    /// If the device is no GPU or cannot be opened, `dim` is not in 1..=4096, there are more than
    /// [`MAX_ROWS`](crate::vectors::MAX_ROWS) rows, address or stride do not suit the type, the
    /// address is not one of the device's memory or that memory is too small, or work of the stream
    /// failed.
    pub unsafe fn from_device(rows: DeviceRows, owner: impl Any + Send + Sync) -> Result<Self> {
        let DeviceRows { address, rows, dim, element, device, stride, stream } = rows;
        check_dim(dim, element)?;
        check_rows(rows)?;
        if matches!(element, ElementType::Bf16 | ElementType::B1) {
            return Err(Error::argument("type", element, "f32, f16, u8 or i8 in memory of a device"));
        }
        let (size, row) = (element.size(), dim * element.size());
        let stride = stride.unwrap_or(row);
        if stride < row || !stride.is_multiple_of(size) {
            let expected = format!("a multiple of {size} bytes, at least the {row} of a row");
            return Err(Error::argument("stride", stride, expected));
        }
        if !address.is_multiple_of(size as u64) {
            let expected = format!("a multiple of {size}, the bytes of {element}");
            return Err(Error::argument("address", format_args!("{address:#x}"), expected));
        }
        let gpu = gpu::memory::gpu(device)?;
        let layout = Layout::dense(element, rows, dim);
        if rows == 0 {
            return Ok(Self::new(Storage::owned(Vec::<u64>::new()), layout, None));
        }
        let needed = (rows - 1).checked_mul(stride).and_then(|gaps| gaps.checked_add(row));
        let needed = needed.filter(|&needed| address.checked_add(needed as u64).is_some());
        let needed = needed.ok_or_else(|| {
            Error::argument("rows", rows, format_args!("those of memory, {stride} bytes each"))
        })?;
        if address == 0 {
            return Err(Error::argument(
                "address",
                "null",
                format_args!("that of {needed} bytes of {device}"),
            ));
        }
        gpu.check_lent(address, needed)?;
        if let Some(stream) = stream {
            // SAFETY: the caller's promise.
            unsafe { gpu.wait_for(stream) }?;
        }
        // SAFETY: the caller's promise.
        let array = unsafe { Lent::new(gpu, device, address, layout, stride, Box::new(owner)) };
        Ok(Self::of_lent(array, layout))
    }

    pub(in crate::vectors) fn of_lent(array: Lent, layout: Layout) -> Self {
        Self::new(Storage::new(LentMemory::new(array)), layout, None)
    }

    /// Rows that kernels on `gpu` have written to a buffer, with the stride of their type.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn in_buffer<T: OnDevice + bytemuck::Pod>(
        gpu: &Gpu,
        rows: Buffer<T>,
        count: usize,
        dim: usize,
    ) -> Result<Self> {
        let layout = Layout::dense(T::TYPE, count, dim);
        let stride = gpu::stride::<T>(dim) * size_of::<T>();
        Ok(Self::of_lent(Lent::of_buffer(gpu, rows, layout, stride)?, layout))
    }

    /// The values, moved to host memory if they lie on a device.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn into_host(self) -> Result<Self> {
        match self.lent() {
            Some(lent) => Ok(Self::new(Storage::owned(lent.download()?), self.layout, None)),
            None => Ok(self),
        }
    }

    /// The GPU whose memory holds the values; none for host memory and files.
    pub fn device(&self) -> Option<Device> {
        self.storage.lent().map(|memory| memory.array.device())
    }

    /// Whether the values of a [device](Self::device), or unit vectors made of them, have been
    /// copied to the host.
    pub fn is_mirrored(&self) -> bool {
        self.lent().is_some_and(|lent| lent.mirrored().load(Ordering::Relaxed))
    }

    /// The array on a device that holds the values.
    pub(crate) fn lent(&self) -> Option<&Lent> {
        self.storage.lent().map(|memory| &memory.array)
    }

    /// The array on the device of `gpu` that holds the values, and the numbers of their rows unless
    /// they are all: the caller's memory, or a [replica](Self::with_replicas).
    pub(in crate::vectors) fn on(&self, gpu: &Gpu) -> Option<(&Lent, Option<&[u32]>)> {
        if let Some(lent) = self.lent().filter(|lent| lent.is_on(gpu)) {
            return Some((lent, None));
        }
        Some((self.replicas.as_ref()?.on(gpu)?, self.picked.as_deref()))
    }

    /// This data set with copies of its rows on devices. Builds on those devices read the copies
    /// instead of the host's rows, also where they take [some of the rows](Self::only). The data
    /// set itself must not be some of the rows of another.
    pub(crate) fn with_replicas(self, replicas: Replicas) -> Self {
        debug_assert!(self.picked.is_none(), "replicas of picked rows");
        Self { replicas: Some(Arc::new(replicas)), ..self }
    }

    /// Whether the values are in host memory, if not there alone.
    pub(crate) fn is_readable(&self) -> bool {
        self.storage.lent().is_none_or(|memory| memory.mirror.get().is_some())
    }

    /// Copies values of a device to the host, once, so that reading them cannot fail.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn on_host(&self) -> Result<()> {
        self.storage.lent().map_or(Ok(()), |memory| memory.mirror().map(drop))
    }

    /// Whether a check has found that all values are f32, but whole numbers from 0 to 255.
    pub(crate) fn are_bytes(&self) -> bool {
        self.bytes.get() == Some(&true)
    }

    /// Checks the values on the device that holds them, as [`validate_for`](Self::validate_for)
    /// does; none if they lie elsewhere, are known to be in range, or every byte is a valid value.
    /// The largest magnitude, and whether all values are bytes, are known from here on.
    ///
    /// # Errors
    /// If the device fails, or a value is not finite or out of range.
    pub(in crate::vectors) fn check_on_device(&self, metric: Option<Metric>) -> Result<Option<f32>> {
        self.check_on(metric, None)
    }

    /// [`check_on_device`](Self::check_on_device) by `gpu` if given, a stream of the device that
    /// holds the values.
    ///
    /// # Errors
    /// As [`check_on_device`](Self::check_on_device).
    pub(in crate::vectors) fn check_on(
        &self,
        metric: Option<Metric>,
        gpu: Option<&Gpu>,
    ) -> Result<Option<f32>> {
        let Some((lent, most)) = self.to_check_on_device(metric) else { return Ok(None) };
        let checked = lent.check(gpu, most)?;
        if let Some(row) = checked.faulty {
            let faulty = self.select(&[row as u32])?;
            return Err(match faulty.check_rows(0..1, metric, &Largest::default()).err() {
                Some(Error::Value { path, dim, value, expected, .. }) => {
                    Error::Value { path, row, dim, value, expected }
                }
                // The values have changed since.
                _ => self.bad_value(row, 0, "another", FINITE),
            });
        }
        let is_f32 = self.element_type() == ElementType::F32;
        let largest = if is_f32 { checked.largest } else { 0.0 };
        self.bytes.get_or_init(|| is_f32 && checked.bytes && sums_are_exact(self.dim()));
        self.validated(largest);
        Ok(Some(largest))
    }

    /// Values that their device is to check, and the largest magnitude allowed.
    pub(crate) fn to_check_on_device(&self, metric: Option<Metric>) -> Option<(&Lent, f32)> {
        let lent = self.lent().filter(|_| self.known_largest(metric).is_none())?;
        match self.element_type() {
            ElementType::F32 => Some((lent, range::most(metric, self.dim()))),
            // Every finite f16 is in range.
            ElementType::F16 => Some((lent, f32::MAX)),
            ElementType::Bf16 | ElementType::U8 | ElementType::I8 | ElementType::B1 => None,
        }
    }
}
