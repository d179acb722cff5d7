//! Statistics of pruning.

use crate::gpu::KernelTime;

/// What pruning took. Times of compiling and of kernels, and the peak of memory, are those of the
/// device meanwhile, as for [`DescentStats`](crate::DescentStats).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PruneStats {
    /// The device, such as `cpu` or `cuda:0`.
    pub device: String,
    /// The device's own name, such as `NVIDIA H200`, if it is a GPU.
    pub device_name: Option<String>,
    /// Wall time, without copies.
    pub seconds: f64,
    /// Seconds of copies to and from a device, beside these.
    pub copy: f64,
    /// Seconds of compiling kernels, of all of these.
    pub jit: f64,
    /// Of `seconds`, what it took to make every node reachable, on the CPU.
    pub connect: f64,
    /// Of `seconds`, what it took to see whether searches need layers above the index, and to build
    /// them.
    pub layers: f64,
    /// Nodes that were not reachable, and were attached.
    pub attached: u64,
    /// The most bytes of device memory that were taken at once.
    pub peak_gpu_bytes: u64,
    /// [`peak_host_bytes`](crate::peak_host_bytes) when it ended.
    pub peak_host_bytes: Option<u64>,
    /// The kernels' times; empty on the CPU.
    pub kernels: Vec<KernelTime>,
}

impl PruneStats {
    pub(crate) fn log(&self) {
        let Self { device, seconds, attached, .. } = self;
        tracing::info!(device, seconds, attached, "the graph is pruned");
    }
}
