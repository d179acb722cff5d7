//! What a build did.

use crate::descent::{DescentStats, KnnSample};
use crate::gpu::KernelTime;

/// What building an index took.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BuildStats {
    /// Neighbours per node of the k-NN graph.
    pub knn: usize,
    /// The k-NN graph; of a graph that was there already, what it says of itself.
    pub descent: DescentStats,
    /// Pruning.
    pub prune: PruneStats,
    /// Lists of the k-NN graph, of the nodes that [`Builder::sample`](crate::Builder::sample) asked for.
    /// Empty if repeated rows were left out of the graph.
    pub sample: KnnSample,
    /// Rows that were left out of the graph since they repeat an earlier one; see
    /// [`Index::repeated`](crate::Index::repeated).
    pub repeated: u64,
}

/// What pruning took. Times of compiling and of kernels, and the peak of memory, are those of the device meanwhile, as
/// for [`DescentStats`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PruneStats {
    /// What ran it, such as `cpu` or `cuda:0`.
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
    pub(super) fn log(&self) {
        let Self { device, seconds, attached, .. } = self;
        tracing::info!(device, seconds, attached, "the graph is pruned");
    }
}
