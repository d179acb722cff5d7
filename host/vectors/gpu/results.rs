//! Results in the memory of a device that another library owns.

use tagore_device::key::Key;
use tagore_device::vectors::VECTOR_THREADS;
use tagore_device::vectors::split::{Split, vectors_split};

use super::memory::gpu;
use crate::gpu::{Borrowed, Buffer, Gpu};
use crate::{Device, Error, Result};

/// Maximum number of keys that are split at a time.
const PIECE: usize = 1 << 22;

/// Bytes of an id, and of a distance.
const RESULT: usize = 4;

/// Room for the ids (u32) and distances (f32) of results in the memory of a GPU, such as two
/// tensors of another library.
#[derive(Clone, Copy, Debug)]
pub struct DeviceResults {
    ids: u64,
    distances: u64,
    device: Device,
    stream: Option<u64>,
}

impl DeviceResults {
    /// Room for results at two addresses in the memory of `device`: a [`Device::Cuda`]. For tests,
    /// a [`Device::Emulated`] takes addresses of ordinary memory. Results lie without gaps: k per
    /// query or node.
    ///
    /// # Safety
    /// - Both have room for all results that they are used for, 4 bytes each, and nothing else uses
    ///   that memory until the call that writes the results returns.
    /// - For an emulator, the addresses are those of ordinary memory.
    pub unsafe fn new(ids: u64, distances: u64, device: Device) -> Self {
        Self { ids, distances, device, stream: None }
    }

    /// Sets the CUDA stream whose earlier work may still use the memory, by the driver's handle; 0
    /// or 1 is the default stream, 2 that of the calling thread. Results are written after that
    /// work.
    ///
    /// # Safety
    /// - The stream exists and belongs to the device.
    #[must_use]
    pub unsafe fn stream(mut self, handle: u64) -> Self {
        self.stream = Some(handle);
        self
    }

    /// Whether `gpu` is the device.
    pub(crate) fn is_on(&self, gpu: &Gpu) -> bool {
        gpu.name() == self.device.to_string()
    }

    /// Checks the room for `count` results, and waits for the stream.
    ///
    /// # Errors
    /// If the device is no GPU or cannot be opened, an address does not suit or is not one of as
    /// much memory of the device, no memory holds as many results, or work of the stream failed.
    pub(crate) fn check(&self, count: usize) -> Result<()> {
        let gpu = gpu(self.device)?;
        for (name, address) in [("ids", self.ids), ("distances", self.distances)] {
            if address == 0 || !address.is_multiple_of(RESULT as u64) {
                let expected =
                    format!("the address of {count} values of {RESULT} bytes in memory of {}", self.device);
                return Err(Error::argument(name, format_args!("{address:#x}"), expected));
            }
            let bytes = count.checked_mul(RESULT);
            let end = bytes.and_then(|bytes| usize::try_from(address).ok()?.checked_add(bytes));
            let (Some(bytes), Some(_)) = (bytes, end) else {
                let found = format_args!("room for {count} values of {RESULT} bytes at {address:#x}");
                return Err(Error::argument(name, found, "values that fit memory"));
            };
            gpu.check_lent(address, bytes)?;
        }
        match self.stream {
            // SAFETY: the promise of `stream`.
            Some(stream) => unsafe { gpu.wait_for(stream) },
            None => Ok(()),
        }
    }

    /// Writes `count` keys from the start of `keys` as results from number `first` on, in the order
    /// of the work on `gpu`, which the caller waits for. `gpu` [is](Self::is_on) the device, and
    /// [`check`](Self::check) has seen the room.
    ///
    /// # Errors
    /// If the device lacks memory or fails.
    pub(crate) fn write(&self, gpu: &Gpu, keys: &Buffer<Key>, first: usize, count: usize) -> Result<()> {
        let at_once = count.min(PIECE);
        if at_once == 0 {
            return Ok(());
        }
        for begin in (0..count).step_by(at_once) {
            let here = at_once.min(count - begin);
            // `check` has seen that the end of all results fits an address.
            let (offset, bytes) = (((first + begin) * RESULT) as u64, here * RESULT);
            let (to_ids, to_distances) = (self.ids + offset, self.distances + offset);
            let blocks = here.div_ceil(VECTOR_THREADS as usize) as u32;
            // SAFETY: the promise of `new` covers the room; `keys` holds as many.
            unsafe {
                let mut ids = Borrowed::new(gpu, to_ids, bytes)?;
                let mut distances = Borrowed::new(gpu, to_distances, bytes)?;
                let split = Split {
                    keys: keys.view().offset(begin),
                    ids: ids.view_mut().cast(),
                    distances: distances.view_mut().cast(),
                    count: here as u64,
                };
                gpu.launch::<vectors_split>([blocks, 1, 1], VECTOR_THREADS, (split,))?;
                ids.give_back(gpu, to_ids, bytes)?;
                distances.give_back(gpu, to_distances, bytes)?;
            }
        }
        Ok(())
    }

    /// Writes keys in host memory as all results, and waits for them.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub(crate) fn write_keys(&self, keys: &[Key]) -> Result<()> {
        let gpu = gpu(self.device)?;
        for (number, piece) in keys.chunks(PIECE).enumerate() {
            let mut on_device: Buffer<Key> = gpu.buffer("results", piece.len())?;
            on_device.upload(piece)?;
            self.write(&gpu, &on_device, number * PIECE, piece.len())?;
            gpu.synchronize()?;
        }
        Ok(())
    }
}
