//! The devices of the machine.

use std::ffi::{CStr, c_int};

use crate::driver::table;
use crate::error::{CudaResult, check};

/// A GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    raw: c_int,
}

/// Attributes of [`Device::get_attribute`], with the driver's numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(i32)]
pub enum DeviceAttribute {
    /// Maximum number of threads per block.
    MaxThreadsPerBlock = 1,
    /// Maximum number of blocks per grid in x.
    MaxGridDimX = 5,
    /// Maximum number of blocks per grid in y.
    MaxGridDimY = 6,
    /// Maximum number of blocks per grid in z.
    MaxGridDimZ = 7,
    /// Default limit of shared memory per block, in bytes.
    MaxSharedMemoryPerBlock = 8,
    /// Threads per warp.
    WarpSize = 10,
    /// Clock of the processors in kHz.
    ClockRate = 13,
    /// Streaming multiprocessors.
    MultiprocessorCount = 16,
    /// Clock of the memory in kHz.
    MemoryClockRate = 36,
    /// Width of the memory bus in bits.
    GlobalMemoryBusWidth = 37,
    /// Bytes of the L2 cache.
    L2CacheSize = 38,
    /// Major compute capability.
    ComputeCapabilityMajor = 75,
    /// Minor compute capability.
    ComputeCapabilityMinor = 76,
    /// Bytes of shared memory per multiprocessor.
    MaxSharedMemoryPerMultiprocessor = 81,
    /// Limit of shared memory per block with opt-in, in bytes.
    MaxSharedMemoryPerBlockOptin = 97,
    /// Whether stream-ordered allocation is available.
    MemoryPoolsSupported = 115,
}

impl Device {
    /// The number of devices.
    ///
    /// # Errors
    /// If there is no usable driver.
    pub fn num_devices() -> CudaResult<u32> {
        let mut count = 0;
        // SAFETY: the pointer is to a local variable.
        check(unsafe { (table()?.device_get_count)(&mut count) }, "counting devices")?;
        Ok(count.unsigned_abs())
    }

    /// Device number `ordinal`, from 0.
    ///
    /// # Errors
    /// If there are fewer devices.
    pub fn get_device(ordinal: u32) -> CudaResult<Self> {
        let mut raw = 0;
        let ordinal = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        // SAFETY: the pointer is to a local variable.
        check(unsafe { (table()?.device_get)(&mut raw, ordinal) }, "opening a device")?;
        Ok(Self { raw })
    }

    /// All devices.
    ///
    /// # Errors
    /// If there is no usable driver.
    pub fn devices() -> CudaResult<Vec<Self>> {
        (0..Self::num_devices()?).map(Self::get_device).collect()
    }

    /// The name, such as `NVIDIA H200`.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn name(self) -> CudaResult<String> {
        let mut name = [0; 256];
        let length = name.len() as c_int - 1;
        // SAFETY: the driver writes at most `length` characters to the array, which stays
        // zero-terminated.
        check(unsafe { (table()?.device_get_name)(name.as_mut_ptr(), length, self.raw) }, "naming a device")?;
        // SAFETY: the last element of the array is zero.
        Ok(unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned())
    }

    /// Bytes of memory on the device.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn total_memory(self) -> CudaResult<usize> {
        let mut bytes = 0;
        // SAFETY: the pointer is to a local variable.
        check(unsafe { (table()?.device_total_mem)(&mut bytes, self.raw) }, "asking for a device's memory")?;
        Ok(bytes)
    }

    /// An attribute of the device.
    ///
    /// # Errors
    /// If the driver does not know the attribute.
    pub fn get_attribute(self, attribute: DeviceAttribute) -> CudaResult<i32> {
        let mut value = 0;
        // SAFETY: the pointer is to a local variable.
        let code = unsafe { (table()?.device_get_attribute)(&mut value, attribute as c_int, self.raw) };
        check(code, "asking for a device's attribute")?;
        Ok(value)
    }

    /// The compute capability, as (major, minor).
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn compute_capability(self) -> CudaResult<(i32, i32)> {
        let major = self.get_attribute(DeviceAttribute::ComputeCapabilityMajor)?;
        Ok((major, self.get_attribute(DeviceAttribute::ComputeCapabilityMinor)?))
    }

    /// Whether this device can read and write the memory of `peer`.
    ///
    /// # Errors
    /// If the driver refuses.
    pub fn can_access_peer(self, peer: Self) -> CudaResult<bool> {
        let mut can = 0;
        // SAFETY: the pointer is to a local variable.
        let code = unsafe { (table()?.device_can_access_peer)(&mut can, self.raw, peer.raw) };
        check(code, "asking for peer access")?;
        Ok(can != 0)
    }

    /// The driver's handle of the device.
    pub fn as_raw(&self) -> i32 {
        self.raw
    }
}
