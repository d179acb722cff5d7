//! Memory limits of a build.

use serde::{Deserialize, Serialize};

/// Limits on memory and on the size of clusters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of host memory, without the mapped base; no limit unless set.
    pub host_memory: Option<u64>,
    /// Bytes of memory of each device, its context included; no limit unless set.
    pub gpu_memory: Option<u64>,
    /// Maximum number of vectors in a cluster; no limit but memory unless set.
    pub cluster_size: Option<usize>,
}

impl Limits {
    /// These limits, with those of `other` in place of missing ones, such as
    /// [`available`](Self::available) memory.
    pub fn or(self, other: Self) -> Self {
        Self {
            host_memory: self.host_memory.or(other.host_memory),
            gpu_memory: self.gpu_memory.or(other.gpu_memory),
            cluster_size: self.cluster_size.or(other.cluster_size),
        }
    }

    /// The limits by their names on the command line.
    pub(crate) fn named(&self) -> [(&'static str, Option<u64>); 3] {
        [
            ("host-memory", self.host_memory),
            ("gpu-memory", self.gpu_memory),
            ("cluster-size", self.cluster_size.map(|size| size as u64)),
        ]
    }
}
