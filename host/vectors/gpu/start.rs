//! The least that any command with a device takes: opening it, and copying the data to it.

use std::time::Instant;

use super::{OnDevice, Origin, Pick};
use crate::gpu::Gpu;
use crate::vectors::Vectors;
use crate::vectors::shape::{wide, with_device_type};
use crate::{Device, Progress, Result};

/// Opens `device` and copies the values of `base` to it, as they are; bf16 as f32, and bits as
/// bytes. Returns the seconds of both. This is the least time of a command that builds or searches
/// on the device.
///
/// # Errors
/// If `device` is no GPU, cannot be opened, or lacks memory.
pub fn start_seconds(device: Device, base: &Vectors) -> Result<(f64, f64)> {
    let opening = Instant::now();
    let gpu = device
        .gpu()?
        .ok_or_else(|| crate::Error::argument("device", device, "a GPU: cuda, cuda:N or emulated"))?;
    let open = opening.elapsed().as_secs_f64();
    let copying = Instant::now();
    let base = wide(base, &Progress::silent())?;
    with_device_type!(base.element_type(), T => copy::<T>(&gpu, &base)?);
    Ok((open, copying.elapsed().as_secs_f64()))
}

fn copy<T: OnDevice>(gpu: &Gpu, base: &Vectors) -> Result<()> {
    let (n, dim) = (base.len(), base.dim());
    let mut values = gpu.buffer::<T>("rows", n * dim)?;
    Origin::new(gpu, base)?.copy(gpu, Pick::Range(0..n), &mut values, dim)?;
    gpu.synchronize()
}
