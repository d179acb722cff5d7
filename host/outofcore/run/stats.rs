//! Statistics of a build out of core.

use std::collections::BTreeMap;

use super::trace::{Task, TaskKind};
use crate::gpu::KernelTime;
use crate::outofcore::plan::CacheUse;
use crate::{Device, QueryStats};

/// Statistics of a build out of core.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OutOfCoreStats {
    /// Number of clusters.
    pub clusters: usize,
    /// Clusters built by this run: fewer than `clusters` in a resumed build, more if lists were
    /// lost.
    pub built: usize,
    /// Bytes of the file of clusters; 0 if a resumed build needed none of them.
    pub cluster_bytes: u64,
    /// Hits of the cluster cache.
    pub cache: CacheUse,
    /// Bytes of lists written to disk, and read again.
    pub spilled_bytes: u64,
    /// Rows outside the graph because they repeat an earlier row.
    pub repeated: u64,
    /// Nodes that no path from the entry points reaches.
    pub unreachable: u64,
    /// Damaged work files. The build made their content again.
    pub repaired: Vec<&'static str>,
    /// Seconds of the partition.
    pub partition: f64,
    /// Seconds of building and merging clusters.
    pub build: f64,
    /// Seconds of writing the index, layers included, without [`reach`](Self::reach).
    pub write: f64,
    /// What became of the sample of [queries](crate::Builder::queries), if there is one.
    pub queries: Option<QueryStats>,
    /// Seconds of testing for layers and building them.
    pub layers: f64,
    /// Seconds of finding and attaching nodes that cannot be reached, while the disk writes the
    /// index.
    pub reach: f64,
    /// Seconds of removing the work files.
    pub remove: f64,
    /// Peak bytes of device memory, the maximum over all devices.
    pub peak_gpu_bytes: u64,
    /// Kernel times of each GPU while clusters were built. Concurrent kernels slow each other down.
    pub kernels: Vec<Vec<KernelTime>>,
    /// Seconds in which kernels ran, for each GPU.
    pub busy: Vec<f64>,
    /// All tasks, ordered by their start.
    pub tasks: Vec<Task>,
    /// Devices of the build.
    pub devices: Vec<Device>,
    /// All parameters by their names on the command line.
    pub parameters: BTreeMap<String, String>,
}

impl OutOfCoreStats {
    /// Total seconds and bytes of all tasks of a kind, over all threads.
    pub fn seconds(&self, kind: TaskKind) -> (f64, u64) {
        let tasks = self.tasks.iter().filter(|task| task.kind == kind);
        tasks.fold((0.0, 0), |(seconds, bytes), task| (seconds + task.end - task.begin, bytes + task.bytes))
    }
}
