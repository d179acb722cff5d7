//! Memory of a device for results.

use std::any::Any;
use std::fmt;

use crate::gpu::{Buffer, Gpu};
use crate::{Device, Error, Result};

/// `len` values of 4 bytes in the memory of a GPU, such as ids (u32) or distances (f32), for
/// [`DeviceResults`](super::DeviceResults). Dropping it frees them.
pub struct DeviceMemory {
    device: Device,
    address: u64,
    len: usize,
    owner: Box<dyn Any + Send + Sync>,
}

impl DeviceMemory {
    /// `len` undefined values in the memory of `device`: a [`Device::Cuda`]. For tests, a
    /// [`Device::Emulated`] gives ordinary memory. Only a call of this library may write them
    /// before another use.
    ///
    /// # Errors
    /// If the device is no GPU, cannot be opened, or lacks memory.
    pub fn new(device: Device, len: usize) -> Result<Self> {
        let gpu = gpu(device)?;
        let mut values: Buffer<u32> = gpu.buffer("results", len)?;
        if !gpu.takes_ptx() {
            // The emulator refuses to read what nothing has written.
            values.fill(0)?;
        }
        let (address, owner) = values.lend()?;
        Ok(Self { device, address, len, owner })
    }

    /// The device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The address of the first value.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the values to the host, as bits.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self) -> Result<Vec<u32>> {
        if let Some(copy) = self.owner.downcast_ref::<Vec<u32>>() {
            return Ok(copy.clone());
        }
        let mut values = vec![0; self.len];
        if let Some(buffer) = self.owner.downcast_ref::<Buffer<u32>>() {
            buffer.download(&mut values)?;
        }
        Ok(values)
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceMemory {{ {} values on {} }}", self.len, self.device)
    }
}

/// The GPU whose memory holds values; `Auto` and `Cpu` name none.
pub(in crate::vectors) fn gpu(device: Device) -> Result<Gpu> {
    let gpu = match device {
        Device::Auto | Device::Cpu => None,
        device => device.gpu()?,
    };
    gpu.ok_or_else(|| Error::argument("device", device, "cuda:N, whose memory holds the values"))
}
