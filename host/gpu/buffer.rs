//! Typed memory of a device.

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use bytemuck::Pod;
use cuda_std::memory::{Global, GlobalMut};

use super::Gpu;
use super::machine::Allocation;
use crate::Result;

/// `len` values of `T` on a device.
///
/// Dropping a buffer frees its memory in the order of its device's stream, after all work queued
/// before. So a buffer may be dropped while launches still use it. Launches of a [fork](Gpu::fork)
/// are not in this order: wait for them first.
///
/// Until the work is done, the driver's pool gives the freed memory only to buffers of at most that
/// size. For a larger one it takes more from the device. [`Gpu::synchronize`] before the drop keeps
/// the peak as planned.
pub(crate) struct Buffer<T> {
    allocation: Box<dyn Allocation>,
    gpu: Gpu,
    len: usize,
    of: PhantomData<T>,
}

/// Memory of another library on a device, for a while.
pub(crate) struct Borrowed(Box<dyn Allocation>);

impl Borrowed {
    /// `bytes` bytes at `address`.
    ///
    /// # Safety
    /// - The memory holds as many bytes of the device of `gpu`, of memory of the host for the
    ///   emulator, and does not change while the value exists.
    pub(crate) unsafe fn new(gpu: &Gpu, address: u64, bytes: usize) -> Result<Self> {
        // SAFETY: the caller's promise.
        Ok(Self(unsafe { gpu.machine.borrow(address, bytes) }?))
    }

    /// The bytes as a kernel reads them. No launch may follow with the view once the value is
    /// dropped.
    pub(crate) fn view(&self) -> Global<u8> {
        // SAFETY: the memory lives as long as the value. Callers of `launch` guarantee the rest.
        unsafe { Global::new(self.0.address()) }
    }

    /// Waits for all earlier work of `gpu`, and fills `bytes` with the first bytes, which exist.
    pub(crate) fn download(&self, gpu: &Gpu, bytes: &mut [u8]) -> Result<()> {
        gpu.machine.download(self.0.address(), bytes)
    }

    /// The bytes as a kernel writes them, as of [`view`](Self::view).
    pub(crate) fn view_mut(&mut self) -> GlobalMut<u8> {
        // SAFETY: the memory lives as long as the value, and `self` is borrowed exclusively.
        // Callers of `launch` guarantee the rest.
        unsafe { GlobalMut::new(self.0.address()) }
    }

    /// Ends the use of memory at `address` that kernels have written: all its `bytes`.
    ///
    /// # Safety
    /// - The value was made of this memory, which nothing else uses.
    pub(crate) unsafe fn give_back(self, gpu: &Gpu, address: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { gpu.machine.give_back(&*self.0, address, bytes) }
    }
}

impl<T> fmt::Debug for Buffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).finish_non_exhaustive()
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        self.gpu.counts.subtract_buffer(self.len * size_of::<T>());
    }
}

impl<T: Pod + Send + Sync> Buffer<T> {
    /// The buffer as memory of another library: its address, and the owner of the memory. On the
    /// emulator that is a copy in memory of the host. Other streams must wait for the work that
    /// writes it.
    pub(crate) fn lend(self) -> Result<(u64, Box<dyn Any + Send + Sync>)> {
        if self.gpu.takes_ptx() {
            return Ok((self.address(0), Box::new(self)));
        }
        let mut values = vec![T::zeroed(); self.len];
        self.download(&mut values)?;
        Ok((values.as_ptr().expose_provenance() as u64, Box::new(values)))
    }
}

impl<T: Pod> Buffer<T> {
    /// `len` undefined values.
    pub(super) fn new(gpu: &Gpu, len: usize) -> Result<Self> {
        let allocation = gpu.machine.allocate((len * size_of::<T>()).max(1))?;
        gpu.counts.add_buffer(len * size_of::<T>());
        Ok(Self { allocation, gpu: gpu.clone(), len, of: PhantomData })
    }

    pub(super) fn address(&self, index: usize) -> u64 {
        self.allocation.address() + (index * size_of::<T>()) as u64
    }

    /// The values as a kernel reads them. No launch may follow with the view once the buffer is
    /// dropped.
    pub(crate) fn view(&self) -> Global<T> {
        // SAFETY: the memory lives as long as the buffer. Callers of `launch` guarantee the rest.
        unsafe { Global::new(self.address(0)) }
    }

    /// The values as a kernel reads and writes them. No launch may follow with the view once the
    /// buffer is dropped.
    pub(crate) fn view_mut(&mut self) -> GlobalMut<T> {
        // SAFETY: the memory lives as long as the buffer, which is borrowed exclusively. Callers of
        // `launch` guarantee the rest.
        unsafe { GlobalMut::new(self.address(0)) }
    }

    /// Copies `values` to the start of the buffer.
    ///
    /// # Panics
    /// If they do not fit.
    pub(crate) fn upload(&mut self, values: &[T]) -> Result<()> {
        self.upload_at(0, values)
    }

    /// Copies `values` to the buffer from index `first` on.
    ///
    /// # Panics
    /// If they do not fit.
    pub(crate) fn upload_at(&mut self, first: usize, values: &[T]) -> Result<()> {
        assert!(first + values.len() <= self.len, "{} values at {first} of {}", values.len(), self.len);
        let bytes: &[u8] = bytemuck::cast_slice(values);
        self.gpu.machine.upload(self.address(first), bytes.len(), 1, &|offset, piece| {
            piece.copy_from_slice(&bytes[offset..offset + piece.len()]);
        })
    }

    /// Copies `count` rows of `stride` values to the place of row `first` on. `rows` gives the
    /// values of at least the first of some rows: at most `stride` of one, and the rest of the row
    /// is zero; or `stride` each of several. The processor takes half the time for few long copies.
    ///
    /// # Panics
    /// If the rows do not fit.
    pub(crate) fn upload_rows<'r>(
        &mut self,
        first: usize,
        count: usize,
        stride: usize,
        rows: impl Fn(Range<usize>) -> &'r [T] + Sync,
    ) -> Result<()> {
        let unit = stride * size_of::<T>();
        self.write_pieces(first, count, stride, |first, piece| {
            let end = first + piece.len() / unit;
            let mut place = first;
            while place < end {
                let bytes: &[u8] = bytemuck::cast_slice(rows(place..end));
                let count = bytes.len().div_ceil(unit).max(1);
                let room = &mut piece[(place - first) * unit..][..count * unit];
                room[..bytes.len()].copy_from_slice(bytes);
                room[bytes.len()..].fill(0);
                place += count;
            }
        })
    }

    /// Lets `write` write the bytes of `count` rows of `stride` values, all of them, from the place
    /// of row `first` on, by way of host memory.
    ///
    /// # Panics
    /// If the rows do not fit.
    pub(crate) fn write_rows(
        &mut self,
        first: usize,
        count: usize,
        stride: usize,
        write: impl Fn(usize, &mut [u8]) + Sync,
    ) -> Result<()> {
        self.write_pieces(first, count, stride, |first, piece| {
            for (index, room) in piece.chunks_exact_mut(stride * size_of::<T>()).enumerate() {
                write(first + index, room);
            }
        })
    }

    /// As [`write_rows`](Self::write_rows), some rows at a time, from the place given on.
    fn write_pieces(
        &mut self,
        first: usize,
        count: usize,
        stride: usize,
        write: impl Fn(usize, &mut [u8]) + Sync,
    ) -> Result<()> {
        assert!((first + count) * stride <= self.len, "{count} rows of {stride} values to {}", self.len);
        let unit = stride * size_of::<T>();
        let write = |offset: usize, piece: &mut [u8]| write(offset / unit, piece);
        self.gpu.machine.upload(self.address(first * stride), count * unit, unit, &write)
    }

    /// The number of values.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Waits for all earlier work and copies the first values to `values`.
    ///
    /// # Panics
    /// If `values` exceeds the buffer.
    pub(crate) fn download(&self, values: &mut [T]) -> Result<()> {
        self.download_from(0, values)
    }

    /// Waits for all earlier work and copies the values from index `first` on to `values`.
    ///
    /// # Panics
    /// If `values` exceeds the buffer.
    pub(crate) fn download_from(&self, first: usize, values: &mut [T]) -> Result<()> {
        assert!(first + values.len() <= self.len, "{} values at {first} of {}", values.len(), self.len);
        self.gpu.machine.download(self.address(first), bytemuck::cast_slice_mut(values))
    }

    /// Sets every byte to `byte`.
    pub(crate) fn fill(&mut self, byte: u8) -> Result<()> {
        self.fill_range(0..self.len, byte)
    }

    /// Sets every byte of a range of values to `byte`.
    ///
    /// # Panics
    /// If the range exceeds the buffer.
    pub(super) fn fill_range(&mut self, range: Range<usize>, byte: u8) -> Result<()> {
        assert!(range.end <= self.len, "{range:?} of {} values", self.len);
        if range.is_empty() {
            return Ok(());
        }
        self.gpu.machine.fill(self.address(range.start), byte, range.len() * size_of::<T>())
    }

    /// Copies a range of values of a buffer of `peer` that begins at `address`, whose work is done,
    /// to the same range of this one.
    ///
    /// # Panics
    /// If the range exceeds the buffer.
    pub(super) fn copy_from(&mut self, range: Range<usize>, peer: &Gpu, address: u64) -> Result<()> {
        assert!(range.end <= self.len, "{range:?} of {} values", self.len);
        if range.is_empty() {
            return Ok(());
        }
        let from = address + (range.start * size_of::<T>()) as u64;
        let bytes = range.len() * size_of::<T>();
        self.gpu.machine.copy_from(self.address(range.start), &*peer.machine, from, bytes)
    }
}
