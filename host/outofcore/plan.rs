//! Whether a build is out of core, and in how many clusters of what size.

use serde::{Deserialize, Serialize};

use super::partition::RECORD_HEAD;
use super::pipeline::{WAITING, builds_on};
use crate::{Builder, Device, Error, Metric, Result, Vectors};

/// What a build may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of host memory, beside the mapped base; no limit unless set.
    pub host_memory: Option<u64>,
    /// Bytes of memory of each device; no limit unless set.
    pub gpu_memory: Option<u64>,
    /// The most vectors of a cluster, if memory allows as many; no limit unless set.
    pub cluster_size: Option<usize>,
}

impl Limits {
    /// The limits by the names of the command line.
    pub(super) fn named(&self) -> [(&'static str, Option<u64>); 3] {
        [
            ("host-memory", self.host_memory),
            ("gpu-memory", self.gpu_memory),
            ("cluster-size", self.cluster_size.map(|size| size as u64)),
        ]
    }
}

/// The clusters of a build that is out of core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterPlan {
    /// What was asked for: a build that goes on must ask for the same.
    pub limits: Limits,
    /// Clusters to begin with; those that a sample predicts too large are split.
    pub clusters: usize,
    /// The most vectors of a cluster.
    pub cluster_size: usize,
    /// Clusters whose lists are in memory at once, the one at work among them.
    pub cache: usize,
    /// Bytes of host memory that are planned for, beside the mapped base.
    pub host_bytes: u64,
    /// Bytes of work files and of the index, at most.
    pub disk_bytes: u64,
    /// Bytes of memory that vectors pass through on their way to the files of clusters.
    pub(super) partition_bytes: usize,
    /// Ranges of ids that finished rows are sorted into, and the bytes that gather those of a range.
    pub(super) row_bins: (usize, usize),
}

/// The smallest limit of a cluster's size.
const LEAST_CLUSTER: usize = 16;

/// How full clusters are on average: k-means makes some larger than others.
const FILL: f64 = 0.75;

/// Bytes per node of small tables of a build on the CPU, measured.
const TABLES: u64 = 128;

/// What a device takes beside the plan of the k-NN graph, while rows are pruned.
const PRUNING: f64 = 1.25;

/// Bytes per node of a build.
struct PerNode {
    /// A vector as it lies in the base.
    row: u64,
    /// A list with distances.
    list: u64,
    /// All that a build of a cluster has in memory.
    build: u64,
    /// All that builds at work have on a device, if there is one.
    device: Option<f64>,
    /// Builds at work, and clusters that are being read, at the same time.
    builds: u64,
    readers: u64,
}

impl PerNode {
    fn of(builder: &Builder, base: &Vectors) -> Result<Self> {
        let k = builder.descent.k_for(base)? as u64;
        let degree = builder.strategy.max_degree() as u64;
        let row = (base.dim() * base.element_type().size()) as u64;
        let normalised = if builder.descent.metric == Metric::Cosine { 4 * base.dim() as u64 } else { 0 };
        // Keys of the lists as they become a graph; then the graph, edges forward and backward, and rows.
        let lists = (16 * k).max(8 * k + 24 * degree);
        let devices = builder.devices_for(base.len())?;
        let builds = devices.iter().map(|&device| builds_on(device) as u64);
        let device = match devices.iter().find(|&&device| device != Device::Cpu) {
            Some(&device) => {
                let bytes = PRUNING * builder.descent.plan(base)?.bytes_per_vector();
                Some(builds_on(device) as f64 * bytes)
            }
            None => None,
        };
        Ok(Self {
            row,
            list: 8 * degree,
            build: normalised + lists + TABLES,
            device,
            builds: builds.sum(),
            readers: devices.len() as u64,
        })
    }

    /// Bytes of host memory per vector of a cluster, with all at work.
    fn out_of_core(&self) -> u64 {
        // Vectors are read, built with, wait, and are merged with; lists come from builds, wait, are merged, and are
        // copied as they become parcels.
        let (record, waiting) = (self.row + RECORD_HEAD as u64, WAITING as u64);
        (self.readers + self.builds + waiting + 1) * record
            + self.builds * self.build
            + (self.builds + waiting + 2) * self.list
    }
}

impl ClusterPlan {
    /// The clusters of `base`; none if all of it fits the limits, or a cluster.
    ///
    /// # Errors
    /// If the base is empty, a parameter is out of its range, or the limits are too small for any cluster.
    pub fn new(builder: &Builder, base: &Vectors, limits: &Limits) -> Result<Option<Self>> {
        let n = base.len();
        let per_node = PerNode::of(builder, base)?;
        let host = limits.host_memory.unwrap_or(u64::MAX);
        let fits_device = |nodes: usize| match (per_node.device, limits.gpu_memory) {
            (Some(bytes), Some(limit)) => nodes as f64 * bytes <= limit as f64,
            _ => true,
        };
        let most = limits.cluster_size.unwrap_or(n);
        if n as u64 <= host / per_node.build && fits_device(n) && n <= most {
            return Ok(None);
        }
        // Buffers take an eighth: all of it those of the partition and then, half of it, those of finished rows.
        let buffers = (host / 8).min(256 << 20);
        let left = host - buffers;
        let per_member = per_node.out_of_core();
        let of_host = usize::try_from(left / per_member).unwrap_or(usize::MAX);
        let of_device = match (per_node.device, limits.gpu_memory) {
            (Some(bytes), Some(limit)) => (limit as f64 / bytes) as usize,
            _ => usize::MAX,
        };
        let size = most.min(of_host).min(of_device);
        if size < LEAST_CLUSTER {
            let (what, found, expected) = if most < LEAST_CLUSTER {
                ("cluster-size", most as u64, LEAST_CLUSTER as u64)
            } else if of_device < LEAST_CLUSTER {
                let bytes = LEAST_CLUSTER as f64 * per_node.device.unwrap_or(0.0);
                ("gpu-memory", limits.gpu_memory.unwrap_or(0), bytes.ceil() as u64)
            } else {
                // A seventh on top of what is not a buffer makes up for the buffers' eighth.
                ("host-memory", host, (LEAST_CLUSTER as u64 * per_member * 8).div_ceil(7))
            };
            return Err(Error::argument(what, found, format_args!("at least {expected}")));
        }
        // One more than are filled on average: a vector finds two that are not full.
        let clusters = (2.0 * n as f64 / (FILL * size as f64)).ceil() as usize + 1;
        let cluster_lists = size as u64 * per_node.list;
        let of_build = size as u64 * per_member;
        let cache = (left.saturating_sub(of_build) / cluster_lists).saturating_add(1);
        let cache = usize::try_from(cache).unwrap_or(usize::MAX).min(clusters);
        let row = 4 + 4 * builder.strategy.max_degree() as u64;
        let index_bytes = n as u64 * row;
        let row_bins = usize::try_from(index_bytes.div_ceil((host / 8).max(1))).unwrap_or(n).clamp(8, n);
        let buffer = |count: usize| ((buffers / 2 / count as u64) as usize).clamp(4 << 10, 1 << 20);
        let members = 2 * n as u64 * (RECORD_HEAD as u64 + per_node.row);
        Ok(Some(Self {
            limits: *limits,
            clusters,
            cluster_size: size,
            cache,
            host_bytes: buffers + of_build + (cache as u64 - 1) * cluster_lists,
            disk_bytes: members + n as u64 * per_node.list + 2 * index_bytes,
            partition_bytes: buffers as usize,
            row_bins: (row_bins, buffer(row_bins)),
        }))
    }
}
