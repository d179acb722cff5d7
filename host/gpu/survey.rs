//! Survey of the CUDA driver and its devices, with a check of each.

/// The driver, its devices and the kernels.
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
    /// The reason why the device cannot be used; none if it passes its check, and compiles all
    /// kernels if that was asked for.
    pub problem: Option<String>,
}

/// Describes the kernels of this program, such as `PTX 7.0 for sm_80 by rustc 1.96.0, LLVM 22.1.8`.
#[cfg(feature = "cuda")]
pub fn kernels() -> String {
    super::ptx::description(super::ptx::PTX)
}

/// Describes the kernels of this program.
#[cfg(not(feature = "cuda"))]
pub fn kernels() -> String {
    "none: built without the feature cuda".to_owned()
}

/// Surveys the driver and its devices. Each device is opened, and runs one launch of each kind of
/// instruction against known answers. With `all`, it compiles all kernels too.
///
/// # Errors
/// If the driver is missing or unusable: one line with the reason.
#[cfg(feature = "cuda")]
pub fn survey(all: bool) -> Result<Survey, String> {
    use cust::device::{Device, DeviceAttribute};
    let ask = || {
        cust::init(cust::CudaFlags::empty())?;
        let device = |(ordinal, device): (u32, Device)| {
            let try_device = || {
                let machine = super::cuda::CudaMachine::open(ordinal)?;
                if all {
                    machine.try_all_kernels()?;
                }
                super::Gpu::new(machine).checked()
            };
            Ok(GpuDevice {
                name: device.name()?,
                compute_capability: device.compute_capability()?,
                memory: device.total_memory()? as u64,
                multiprocessors: device.get_attribute(DeviceAttribute::MultiprocessorCount)?,
                problem: try_device().err().map(|error| error.to_string()),
            })
        };
        let devices = (0..).zip(Device::devices()?).map(device);
        let devices = devices.collect::<Result<_, cust::error::Failure>>()?;
        Ok(Survey { driver: cust::driver_version()?, devices })
    };
    ask().map_err(|failure: cust::error::Failure| failure.to_string())
}

/// Fails: this build has no CUDA.
#[cfg(not(feature = "cuda"))]
pub fn survey(_all: bool) -> Result<Survey, String> {
    Err("built without the feature cuda".to_owned())
}
