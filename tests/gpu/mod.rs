//! Kernels against the CPU backend: on the emulator and on a CUDA device, if any.

mod edges;
mod exact;
mod graphs;
mod indexes;
mod plans;
mod resident;
mod search;
mod several;

use tagore::{Device, Metric};

use crate::skip;

/// The devices to test: the emulator, and the first CUDA device.
pub(crate) fn devices() -> Vec<Device> {
    let mut devices = vec![Device::Emulated];
    match tagore::gpu::survey(false) {
        Ok(survey) if !survey.devices.is_empty() => devices.push(Device::Cuda(0)),
        Ok(_) => skip::no_cuda_device("the driver finds none"),
        Err(reason) => skip::no_cuda_device(&reason),
    }
    devices
}

const METRICS: [Metric; 3] = [Metric::L2, Metric::InnerProduct, Metric::Cosine];
