//! What the CUDA driver of this machine offers. No kernels run yet: everything is computed on the CPU.

/// The driver and its devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// The CUDA version that the driver supports, as (major, minor).
    pub driver: (u32, u32),
    /// The devices, in the driver's order.
    pub devices: Vec<GpuDevice>,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuDevice {
    /// The name, such as `NVIDIA H200`.
    pub name: String,
    /// The compute capability, as (major, minor).
    pub compute_capability: (i32, i32),
    /// Bytes of memory.
    pub memory: u64,
    /// Streaming multiprocessors.
    pub multiprocessors: i32,
}

/// Asks the driver; if there is none, or it is not usable, one line says why.
#[cfg(feature = "cuda")]
pub fn survey() -> Result<Survey, String> {
    use cust::device::{Device, DeviceAttribute};
    let ask = || {
        cust::init(cust::CudaFlags::empty())?;
        let device = |device: Device| {
            Ok(GpuDevice {
                name: device.name()?,
                compute_capability: device.compute_capability()?,
                memory: device.total_memory()? as u64,
                multiprocessors: device.get_attribute(DeviceAttribute::MultiprocessorCount)?,
            })
        };
        let devices =
            Device::devices()?.into_iter().map(device).collect::<Result<_, cust::error::Failure>>()?;
        Ok(Survey { driver: cust::driver_version()?, devices })
    };
    ask().map_err(|failure: cust::error::Failure| failure.to_string())
}

/// Says that this build has no CUDA.
#[cfg(not(feature = "cuda"))]
pub fn survey() -> Result<Survey, String> {
    Err("built without the feature cuda".to_owned())
}
