//! Statistics of a descent.

use crate::Result;
use crate::gpu::{Gpu, KernelTime, Measurement};
use crate::memory::peak_host_bytes;

/// What a descent did. Times of compiling and of kernels, and the peak of memory, are those of the
/// device from the descent's begin to its end: of several at once on one device each has a part of
/// the others'.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DescentStats {
    /// The device, such as `cpu` or `cuda:0`.
    pub device: String,
    /// The device's own name, such as `NVIDIA H200`, if it is a GPU.
    pub device_name: Option<String>,
    /// Distances computed: between nodes at the start, in both phases, and for `completed`.
    pub distances: u64,
    /// Of these, distances computed in phase 1.
    pub join_distances: u64,
    /// Of these, distances computed in phase 2.
    pub refine_distances: u64,
    /// Nodes whose lists descent left short of `k`, and whose neighbours were searched for exactly
    /// instead.
    pub completed: u64,
    /// Iterations run of phase 1 and of phase 2.
    pub iterations: (u32, u32),
    /// Wall time of the descent, without reading or checking the data.
    pub seconds: f64,
    /// Seconds of copies to and from a device, beside these.
    pub copy: f64,
    /// Seconds of compiling kernels, of all of these.
    pub jit: f64,
    /// Keys that each iteration of phase 1, then of phase 2, added to the lists; of a GPU alone.
    pub added: Vec<u64>,
    /// The most bytes of device memory that were taken at once.
    pub peak_gpu_bytes: u64,
    /// [`peak_host_bytes`](crate::peak_host_bytes) when it ended.
    pub peak_host_bytes: Option<u64>,
    /// The kernels' times; empty on the CPU.
    pub kernels: Vec<KernelTime>,
}

impl DescentStats {
    /// Takes what was measured of a descent on `gpu`.
    pub(super) fn measured(&mut self, gpu: &Gpu, measurement: Measurement) -> Result<()> {
        let measured = measurement.end()?;
        gpu.name().clone_into(&mut self.device);
        self.device_name = gpu.device_name().map(str::to_owned);
        self.jit = measured.jit_seconds;
        self.kernels = measured.kernels;
        self.peak_gpu_bytes = measured.peak_bytes;
        self.peak_host_bytes = peak_host_bytes();
        self.log();
        Ok(())
    }

    pub(super) fn log(&self) {
        let Self { device, distances, iterations: (join, refine), seconds, .. } = self;
        tracing::info!(device, seconds, distances, join, refine, "the k-NN graph is there");
    }
}
