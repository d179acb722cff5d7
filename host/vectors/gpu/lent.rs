//! Rows in the memory of a device that another library owns, or that hold unit vectors of such
//! rows.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytemuck::Pod;
use cuda_std::f16;
use cuda_std::launch::Kernel;
use tagore_device::key::NO_ID;
use tagore_device::vectors::check::{Check, vectors_check_f16, vectors_check_f32};
use tagore_device::vectors::hash::{vectors_hash_bytes, vectors_hash_words};
use tagore_device::vectors::norms::{
    Unit, vectors_squares_f16, vectors_squares_f32, vectors_squares_i8, vectors_squares_u8, vectors_unit_f16,
    vectors_unit_f32, vectors_unit_i8, vectors_unit_u8,
};
use tagore_device::vectors::{Strided, VECTOR_ROWS, VECTOR_THREADS};

use super::{OnDevice, Pick, RowsAt, stage_kernels, stride};
use crate::gpu::{Borrowed, Buffer, Gpu};
use crate::memory::zeros;
use crate::vectors::hashes::least;
use crate::vectors::shape::with_device_type;
use crate::vectors::{ElementType, Layout};
use crate::{Device, Result};

stage_kernels! {
    /// Kernels of norms.
    pub(crate) trait NormKernels {
        Squares (Strided<Self>, cuda_std::memory::GlobalMut<f64>):
            vectors_squares_f32 vectors_squares_f16 vectors_squares_u8 vectors_squares_i8;
        Unit (Unit<Self>,): vectors_unit_f32 vectors_unit_f16 vectors_unit_u8 vectors_unit_i8;
    }
}

/// Maximum number of blocks of the check: several times the number that any device runs at a time.
const BLOCKS: usize = 2048;

/// Maximum bytes that a copy to the host holds on the device at a time.
const PIECE: usize = 64 << 20;

/// Rows that a device holds for another library.
pub(crate) struct Lent {
    gpu: Gpu,
    device: Device,
    address: u64,
    layout: Layout,
    /// Bytes from one row to the next.
    stride: usize,
    /// Whether all rows have been copied to the host: these, or rows made of them.
    mirrored: Arc<AtomicBool>,
    _owner: Box<dyn Any + Send + Sync>,
}

/// Results of the check of values.
pub(crate) struct Checked {
    /// The first row with a larger magnitude than allowed.
    pub faulty: Option<usize>,
    /// The largest magnitude of the other rows.
    pub largest: f32,
    /// Whether all values are whole numbers from 0 to 255.
    pub bytes: bool,
}

impl Lent {
    /// At least one row of `layout`, `stride` bytes apart from `address` on, kept by `owner`.
    ///
    /// # Safety
    /// - `owner` keeps the rows in the memory of the device of `gpu` (of the host, for the
    ///   emulator), and they do not change.
    /// - Address and stride are multiples of the element's size.
    pub(in crate::vectors) unsafe fn new(
        gpu: Gpu,
        device: Device,
        address: u64,
        layout: Layout,
        stride: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Self {
        Self { gpu, device, address, layout, stride, mirrored: Arc::default(), _owner: owner }
    }

    /// At least one row of `layout` in a buffer of the library, `stride` bytes apart.
    ///
    /// # Errors
    /// If the device fails.
    pub(in crate::vectors) fn of_buffer<T: Pod + Send + Sync>(
        gpu: &Gpu,
        rows: Buffer<T>,
        layout: Layout,
        stride: usize,
    ) -> Result<Self> {
        gpu.synchronize()?;
        let device = gpu.name().parse()?;
        let (address, _owner) = rows.lend()?;
        Ok(Self { gpu: gpu.clone(), device, address, layout, stride, mirrored: Arc::default(), _owner })
    }

    /// Rows made of these, in a buffer of the library, `stride` bytes apart.
    fn made<T: Pod + Send + Sync>(&self, rows: Buffer<T>, layout: Layout, stride: usize) -> Result<Self> {
        let made = Self::of_buffer(&self.gpu, rows, layout, stride)?;
        Ok(Self { device: self.device, mirrored: Arc::clone(&self.mirrored), ..made })
    }

    /// Whether all rows have been copied to the host: these, or rows made of them.
    pub(in crate::vectors) fn mirrored(&self) -> &AtomicBool {
        &self.mirrored
    }

    /// The device as the caller named it.
    pub(crate) fn device(&self) -> Device {
        self.device
    }

    /// Whether launches on `gpu` reach the rows.
    pub(crate) fn is_on(&self, gpu: &Gpu) -> bool {
        self.gpu.name() == gpu.name()
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.layout.rows
    }

    /// Bytes of the rows without gaps.
    pub(crate) fn bytes(&self) -> usize {
        self.layout.rows * self.layout.stride
    }

    /// The rows for launches on `gpu`, which is on the same device.
    pub(super) fn at(&self, gpu: &Gpu) -> Result<(Borrowed, RowsAt)> {
        let Layout { rows, dim, element, stride: row, .. } = self.layout;
        let bytes = (rows - 1) * self.stride + row;
        // SAFETY: the promise of `new`.
        let memory = unsafe { Borrowed::new(gpu, self.address, bytes) }?;
        let rows_at =
            RowsAt { values: memory.view(), stride: self.stride, count: rows, dim, size: element.size() };
        Ok((memory, rows_at))
    }

    /// Checks f32 or f16 values: faulty rows have a magnitude above `most`. Waits for all earlier
    /// work of `gpu`, a stream of the device: its own unless given.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn check(&self, gpu: Option<&Gpu>, most: f32) -> Result<Checked> {
        let gpu = gpu.unwrap_or(&self.gpu);
        match self.layout.element {
            ElementType::F16 => self.check_as::<f16, vectors_check_f16>(gpu, most),
            _ => self.check_as::<f32, vectors_check_f32>(gpu, most),
        }
    }

    fn check_as<T: OnDevice, K: Kernel<Arguments = (Check<T>,)>>(
        &self,
        gpu: &Gpu,
        most: f32,
    ) -> Result<Checked> {
        let (_memory, rows) = self.at(gpu)?;
        let mut found: Buffer<u32> = gpu.buffer("found", 3)?;
        found.upload(&[NO_ID, 0, 0])?;
        let p = Check { rows: rows.typed::<T>(), found: found.view_mut(), most: most.to_bits(), padding: 0 };
        let blocks = rows.count.div_ceil(VECTOR_ROWS as usize).min(BLOCKS) as u32;
        // SAFETY: the rows are borrowed, `found` holds 3 values; the download waits.
        unsafe { gpu.launch::<K>([blocks, 1, 1], VECTOR_THREADS, (p,))? };
        let mut values = [0; 3];
        found.download(&mut values)?;
        let [faulty, largest, others] = values;
        let faulty = (faulty != NO_ID).then_some(faulty as usize);
        Ok(Checked { faulty, largest: f32::from_bits(largest), bytes: others == 0 })
    }

    /// The squared norm of each row, summed in order.
    ///
    /// # Errors
    /// If the device lacks memory or fails.
    pub(crate) fn squares(&self) -> Result<Vec<f64>> {
        with_device_type!(self.layout.element, T => self.squares_as::<T>())
    }

    fn squares_as<T: NormKernels>(&self) -> Result<Vec<f64>> {
        let gpu = &self.gpu;
        let (_memory, rows) = self.at(gpu)?;
        let n = rows.count;
        let mut squares: Buffer<f64> = gpu.buffer("squares", n)?;
        let blocks = n.div_ceil(VECTOR_THREADS as usize) as u32;
        let arguments = (rows.typed::<T>(), squares.view_mut());
        // SAFETY: the rows are borrowed, `squares` holds one value each; the download waits.
        unsafe { gpu.launch::<T::Squares>([blocks, 1, 1], VECTOR_THREADS, arguments)? };
        let mut found = vec![0.0; n];
        squares.download(&mut found)?;
        Ok(found)
    }

    /// The unit vectors of rows with these norms; zero vectors stay as they are.
    ///
    /// # Errors
    /// If the device lacks memory or fails.
    pub(crate) fn unit(&self, norms: &[f64]) -> Result<Self> {
        with_device_type!(self.layout.element, T => self.unit_as::<T>(norms))
    }

    fn unit_as<T: NormKernels>(&self, norms: &[f64]) -> Result<Self> {
        let gpu = &self.gpu;
        let (_memory, rows) = self.at(gpu)?;
        let (n, dim) = (rows.count, rows.dim);
        let to_stride = stride::<f32>(dim);
        let (mut to, mut of_rows): (Buffer<f32>, Buffer<f64>) =
            (gpu.buffer("unit vectors", n * to_stride)?, gpu.buffer("norms", n)?);
        of_rows.upload(norms)?;
        let p = Unit {
            rows: rows.typed::<T>(),
            norms: of_rows.view(),
            to: to.view_mut(),
            to_stride: to_stride as u64,
        };
        // SAFETY: the rows are borrowed, and the buffers have room for each; `lend` waits.
        unsafe { gpu.launch::<T::Unit>([rows.blocks(n), 1, 1], VECTOR_THREADS, (p,))? };
        self.made(to, Layout::dense(ElementType::F32, n, dim), to_stride * size_of::<f32>())
    }

    /// Some rows, at least one, as rows of their own on the device.
    ///
    /// # Errors
    /// If the device lacks memory or fails.
    pub(crate) fn select(&self, ids: &[u32]) -> Result<Self> {
        let (gpu, row) = (&self.gpu, self.layout.stride);
        let (_memory, rows) = self.at(gpu)?;
        let stride = row.next_multiple_of(16);
        let mut to: Buffer<u8> = gpu.buffer("selected rows", ids.len() * stride)?;
        rows.copy(gpu, Pick::Ids(ids), to.view_mut(), stride, false)?;
        self.made(to, Layout::dense(self.layout.element, ids.len(), self.layout.dim), stride)
    }

    /// The layout of the rows on the host.
    pub(crate) fn layout(&self) -> Layout {
        self.layout
    }

    /// A hash of each row's values.
    ///
    /// # Errors
    /// If the device lacks memory or fails.
    pub(crate) fn hashes(&self) -> Result<Vec<u64>> {
        let gpu = &self.gpu;
        let (_memory, rows) = self.at(gpu)?;
        let mut hashes: Buffer<u64> = gpu.buffer("hashes", rows.count)?;
        let grid = [rows.blocks(rows.count), 1, 1];
        let least = least(self.layout.element);
        // SAFETY: the rows are borrowed, `hashes` holds one value each; the download waits.
        unsafe {
            match rows.words() {
                Some(words) => {
                    let arguments = (words, hashes.view_mut(), least);
                    gpu.launch::<vectors_hash_words>(grid, VECTOR_THREADS, arguments)?;
                }
                None => {
                    let arguments = (rows.in_bytes(), hashes.view_mut(), least);
                    gpu.launch::<vectors_hash_bytes>(grid, VECTOR_THREADS, arguments)?;
                }
            }
        }
        let mut found = vec![0; rows.count];
        hashes.download(&mut found)?;
        Ok(found)
    }

    /// Some rows on the host, without gaps, in whole words.
    ///
    /// # Errors
    /// If the device lacks memory or fails.
    pub(crate) fn fetch(&self, ids: &[u32]) -> Result<Vec<u64>> {
        self.to_host(ids.len(), |range| Pick::Ids(&ids[range.start..range.end]))
    }

    /// One row on the host, in whole words: one copy, without a kernel.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If there is no row `index`.
    pub(crate) fn row(&self, index: usize) -> Result<Vec<u64>> {
        assert!(index < self.rows(), "row {index} of {}", self.rows());
        let row = self.layout.stride;
        let mut words = vec![0u64; row.div_ceil(size_of::<u64>())];
        let address = self.address + (index * self.stride) as u64;
        // SAFETY: the promise of `new`, for one of the rows.
        let memory = unsafe { Borrowed::new(&self.gpu, address, row) }?;
        memory.download(&self.gpu, &mut bytemuck::cast_slice_mut(&mut words)[..row])?;
        Ok(words)
    }

    /// All rows on the host, without gaps, in whole words.
    ///
    /// # Errors
    /// If the device lacks memory or fails.
    pub(crate) fn download(&self) -> Result<Vec<u64>> {
        self.to_host(self.rows(), Pick::Range)
    }

    fn to_host<'p>(
        &self,
        count: usize,
        pick: impl Fn(std::ops::Range<usize>) -> Pick<'p>,
    ) -> Result<Vec<u64>> {
        let (gpu, row) = (&self.gpu, self.layout.stride);
        let mut words: Vec<u64> = zeros((count * row).div_ceil(size_of::<u64>()))?;
        if count == 0 {
            return Ok(words);
        }
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        let (_memory, rows) = self.at(gpu)?;
        let at_once = (PIECE / row).clamp(1, count);
        let mut room: Buffer<u8> = gpu.buffer("rows for the host", at_once * row)?;
        for first in (0..count).step_by(at_once) {
            let here = first..(first + at_once).min(count);
            let to = &mut bytes[first * row..here.end * row];
            rows.copy(gpu, pick(here), room.view_mut(), row, false)?;
            room.download(to)?;
        }
        Ok(words)
    }
}
