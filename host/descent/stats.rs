//! Statistics of a descent.

use serde::Serialize;

use crate::Result;
use crate::gpu::{Gpu, KernelTime, Measurement, SharedTimes};
use crate::memory::peak_host_bytes;

/// Statistics of a descent. `jit`, `kernels` and `peak_gpu_bytes` count all work of the device
/// during the descent: concurrent builds on one device are counted into each other's.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DescentStats {
    /// The device, such as `cpu` or `cuda:0`, or all of several, separated by commas.
    pub device: String,
    /// The device's own name, such as `NVIDIA H200`, if it is a GPU.
    pub device_name: Option<String>,
    /// Distances computed: at the start, in both phases, and for `completed`; or all pairs, which
    /// the CPU compares roughly first.
    pub distances: u64,
    /// Of these, distances computed in phase 1.
    pub join_distances: u64,
    /// Of these, distances computed in phase 2.
    pub refine_distances: u64,
    /// Nodes whose lists exact search completed, since descent left them short of `k` or rounding
    /// made them unreliable.
    pub completed: u64,
    /// Iterations of phase 1 and of phase 2.
    pub iterations: (u32, u32),
    /// Wall seconds of the descent, without reading or checking the data.
    pub seconds: f64,
    /// Seconds of copies to and from a device, not part of `seconds`.
    pub copy: f64,
    /// Seconds of compiling kernels, part of `seconds` and `copy`.
    pub jit: f64,
    /// Keys added to the lists by each iteration of phase 1, then of phase 2; empty on the CPU.
    pub added: Vec<u64>,
    /// Peak bytes of device memory.
    pub peak_gpu_bytes: u64,
    /// [`peak_host_bytes`](crate::peak_host_bytes) at the end.
    pub peak_host_bytes: Option<u64>,
    /// Kernel times; empty on the CPU.
    pub kernels: Vec<KernelTime>,
}

impl DescentStats {
    /// Adds those of another part of the rows, whose lists were found after these.
    pub(crate) fn add(&mut self, part: Self) {
        self.distances += part.distances;
        self.join_distances += part.join_distances;
        self.refine_distances += part.refine_distances;
        self.completed += part.completed;
        self.seconds += part.seconds;
        self.copy += part.copy;
        self.jit += part.jit;
        self.peak_gpu_bytes = self.peak_gpu_bytes.max(part.peak_gpu_bytes);
        self.peak_host_bytes = part.peak_host_bytes;
        (self.device, self.device_name) = (part.device, part.device_name);
        (self.iterations, self.added) = (part.iterations, part.added);
        KernelTime::add_all(&mut self.kernels, part.kernels);
    }

    /// Adds the measurements of a descent on `gpus`.
    pub(super) fn measured(&mut self, gpus: &[Gpu], measurements: Vec<Measurement>) -> Result<()> {
        let measured = SharedTimes::end(measurements)?;
        (self.device, self.device_name) = Gpu::names(gpus);
        self.jit = measured.jit_seconds;
        self.kernels = measured.kernels;
        self.peak_gpu_bytes = measured.peak_bytes;
        self.peak_host_bytes = peak_host_bytes();
        self.log();
        Ok(())
    }

    pub(super) fn log(&self) {
        let Self { device, distances, iterations: (join, refine), seconds, .. } = self;
        tracing::info!(device, seconds, distances, join, refine, "k-NN graph built");
    }
}
