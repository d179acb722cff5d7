//! Statistics of pruning.

use serde::Serialize;

use crate::Result;
use crate::gpu::{Gpu, KernelTime, Measurement, SharedTimes};
use crate::memory::peak_host_bytes;

/// Statistics of pruning. `jit`, `kernels` and `peak_gpu_bytes` count all work of the device during
/// pruning, as for [`DescentStats`](crate::DescentStats).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PruneStats {
    /// The device, such as `cpu` or `cuda:0`, or all of several, separated by commas.
    pub device: String,
    /// The device's own name, such as `NVIDIA H200`, if it is a GPU.
    pub device_name: Option<String>,
    /// Wall seconds, without copies.
    pub seconds: f64,
    /// Seconds of copies to and from a device, not part of `seconds`.
    pub copy: f64,
    /// Seconds of compiling kernels, part of `seconds` and `copy`.
    pub jit: f64,
    /// Seconds of attaching unreachable nodes, on the CPU; part of `seconds`.
    pub connect: f64,
    /// Seconds of testing whether searches need layers and of building these; part of `seconds`.
    pub layers: f64,
    /// Unreachable nodes that were attached.
    pub attached: u64,
    /// Peak bytes of device memory.
    pub peak_gpu_bytes: u64,
    /// [`peak_host_bytes`](crate::peak_host_bytes) at the end.
    pub peak_host_bytes: Option<u64>,
    /// Kernel times; empty on the CPU.
    pub kernels: Vec<KernelTime>,
}

impl PruneStats {
    /// Adds those of another part of the rows, pruned after these.
    pub(crate) fn add(&mut self, part: Self) {
        self.seconds += part.seconds;
        self.copy += part.copy;
        self.jit += part.jit;
        self.connect += part.connect;
        self.layers += part.layers;
        self.attached += part.attached;
        self.peak_gpu_bytes = self.peak_gpu_bytes.max(part.peak_gpu_bytes);
        self.peak_host_bytes = part.peak_host_bytes;
        (self.device, self.device_name) = (part.device, part.device_name);
        KernelTime::add_all(&mut self.kernels, part.kernels);
    }

    /// Adds the measurements of pruning on `gpus`.
    pub(crate) fn measured(&mut self, gpus: &[Gpu], measurements: Vec<Measurement>) -> Result<()> {
        let measured = SharedTimes::end(measurements)?;
        (self.device, self.device_name) = Gpu::names(gpus);
        self.jit = measured.jit_seconds;
        self.kernels = measured.kernels;
        self.peak_gpu_bytes = measured.peak_bytes;
        self.peak_host_bytes = peak_host_bytes();
        Ok(())
    }

    pub(crate) fn log(&self) {
        let Self { device, seconds, attached, .. } = self;
        tracing::info!(device, seconds, attached, "graph pruned");
    }
}
