//! Memory of a build out of core, as a function of the size of its clusters.

use super::crew::Crew;
use super::lists::{cluster_memory, list_bytes, row_bytes};
use super::{Limits, RowBins};
use crate::descent::steps;
use crate::gpu::Overhead;
use crate::vectors::shape::with_device_type;
use crate::{BuildPlan, Builder, DataShape, Error, Result, Target};

/// Sampled vectors per cluster: enough to predict sizes within about 5%.
pub(crate) const SAMPLE_PER_CLUSTER: usize = 256;

/// Bytes before the vector in a member's record: its id and the number of its other cluster.
pub(crate) const RECORD_HEAD: usize = 8;

/// Minimum for the size limit of clusters.
pub(super) const MIN_CLUSTER: usize = 16;

/// Average fill of clusters: k-means makes some larger than others.
const FILL: f64 = 0.75;

/// Minimum number of ranges of ids of finished rows: the first ones are soon sorted, so the disk
/// waits little for them when the index is written.
const ROW_BINS: usize = 128;

/// Maximum bytes of all buffers of work files.
const BUFFERS: u64 = 256 << 20;

/// Maximum bytes of a buffer of finished rows.
pub(super) const LARGEST_BUFFER: usize = 1 << 20;

/// A build, and estimates of its memory.
pub(super) struct MemoryModel<'a> {
    pub builder: &'a Builder,
    pub data: DataShape,
    /// Neighbours per node in clusters of more than `k` nodes.
    pub k: usize,
    pub target: Target,
    pub devices: u64,
}

/// Memory limits as numbers: `u64::MAX` without a limit.
#[derive(Clone, Copy)]
pub(super) struct Ceilings {
    pub device: u64,
    pub host: u64,
}

/// Bytes on the host while clusters are built.
pub(super) struct HostBytes {
    /// The program, the driver and pinned memory.
    pub process: u64,
    /// Vectors of clusters that are read or built.
    pub members: u64,
    pub builds: u64,
    /// Lists outside the cache.
    pub lists: u64,
}

impl HostBytes {
    pub(super) fn total(&self) -> u64 {
        let Self { process, members, builds, lists } = *self;
        [process, members, builds, lists].into_iter().fold(0, u64::saturating_add)
    }
}

impl MemoryModel<'_> {
    pub(super) fn ceilings(&self, limits: &Limits) -> Ceilings {
        let device = limits.gpu_memory.filter(|_| self.target.gpu.is_some());
        Ceilings { device: device.unwrap_or(u64::MAX), host: limits.host_memory.unwrap_or(u64::MAX) }
    }

    /// Whether a build in memory fits the limits.
    pub(super) fn fits(&self, limits: &Limits) -> bool {
        let Ceilings { device, host } = self.ceilings(limits);
        let n = self.data.rows;
        limits.cluster_size.is_none_or(|most| n <= most) && self.build(n).fits(device, host)
    }

    fn crew(&self) -> Crew {
        if self.target.gpu.is_some() { Crew::of_gpus(self.devices as usize) } else { Crew::CPU }
    }

    /// The plan of a build of `nodes` nodes in memory.
    fn build(&self, nodes: usize) -> BuildPlan {
        self.builder.of_clusters().plan_of(&self.data.part(nodes), self.k.min(nodes - 1), self.target)
    }

    /// Maximum of `bytes` over builds of up to `nodes` nodes. Just below a size at which descent
    /// changes its method, a build may take more than a larger one.
    fn most(&self, nodes: usize, bytes: impl Fn(&BuildPlan) -> u64) -> u64 {
        let sizes = steps(self.data.values(), self.builder.descent.metric)
            .into_iter()
            .filter(|&step| step < nodes)
            .chain([nodes]);
        sizes.map(|nodes| bytes(&self.build(nodes))).max().unwrap_or(0)
    }

    /// Bytes of a list with distances.
    pub(super) fn list(&self) -> u64 {
        list_bytes(self.builder.strategy.max_degree()) as u64
    }

    /// Bytes of a finished row: an id and its neighbours.
    pub(super) fn finished_row(&self) -> u64 {
        row_bytes(self.builder.strategy.max_degree()) as u64
    }

    /// Bytes of a member's record.
    pub(super) fn record(&self) -> u64 {
        (self.data.row_bytes() + RECORD_HEAD) as u64
    }

    /// Host memory for clusters of `nodes` nodes.
    pub(super) fn host(&self, nodes: usize) -> HostBytes {
        let Crew { threads, builds } = self.crew();
        let (builds, readers) = (self.devices * builds as u64, self.devices);
        let threads = self.devices * threads as u64;
        let staging = self.target.gpu.map_or(0, |Overhead { staging, .. }| staging);
        let process = self.build(nodes).process.bytes().saturating_add((threads - 1).saturating_mul(staging));
        let build_bytes = builds.saturating_mul(self.most(nodes, BuildPlan::peak_of_stages));
        let list = self.list() * nodes as u64;
        // With a GPU, each thread copies waiting lists to the host and reads spilled lists from
        // disk, and lists of the previous cluster may still be there. On the CPU, lists take the
        // memory of the finished build.
        let lists = match self.target.gpu {
            Some(_) => (threads + 1) * list,
            None => threads * list.max((3 * list).saturating_sub(build_bytes / builds)),
        };
        let members = (readers + builds) * self.record() * nodes as u64;
        HostBytes { process, members, builds: build_bytes, lists }
    }

    /// Memory of each device for clusters of `nodes` nodes.
    pub(super) fn device(&self, nodes: usize) -> u64 {
        let Some(overhead) = self.target.gpu else { return 0 };
        let (dim, degree) = (self.data.dim, self.builder.strategy.max_degree());
        let metric = self.builder.descent.metric;
        let lists = |plan: &BuildPlan| with_device_type!(plan.element, T => cluster_memory::<T>(nodes, dim, degree, metric));
        let Crew { threads, builds } = self.crew();
        let of_build = |plan: &BuildPlan| plan.peak_device_bytes().max(lists(plan).bytes());
        let merging = ((threads - builds) as u64).saturating_mul(lists(&self.build(nodes)).bytes());
        let buffers = (builds as u64).saturating_mul(self.most(nodes, of_build)).saturating_add(merging);
        // The caller chooses the target's numbers, so sums may overflow.
        overhead.context.saturating_add(overhead.pool(buffers)).saturating_add(buffers)
    }

    /// Host memory of the partition into `clusters` clusters, without the process and buffers.
    pub(super) fn partition(&self, clusters: usize) -> u64 {
        let values = clusters * SAMPLE_PER_CLUSTER * (self.data.dim + 1);
        // Most pairs of clusters share nothing, so a word per pair is ample.
        (values * size_of::<f32>() + clusters * clusters * size_of::<u64>()) as u64
    }

    /// The largest cluster size within the limits.
    ///
    /// # Errors
    /// If the limits are too small for clusters of [`MIN_CLUSTER`] vectors.
    pub(super) fn cluster_size(&self, limits: &Limits) -> Result<usize> {
        let Ceilings { device, host } = self.ceilings(limits);
        let most = limits.cluster_size.unwrap_or(self.data.rows).min(self.data.rows);
        if most < MIN_CLUSTER {
            return Err(Error::argument("cluster_size", most, format_args!("at least {MIN_CLUSTER}")));
        }
        let left = host - buffers(host);
        let (least_host, least_device) = (self.host(MIN_CLUSTER).total(), self.device(MIN_CLUSTER));
        if least_device > device {
            return Err(Error::argument("gpu_memory", device, format_args!("at least {least_device}")));
        }
        if least_host > left {
            let expected = format!("at least {}", with_buffers(least_host));
            return Err(Error::argument("host_memory", host, expected));
        }
        let fits = |nodes| self.host(nodes).total() <= left && self.device(nodes) <= device;
        let (mut size, mut too_many) = (MIN_CLUSTER, most + 1);
        while too_many - size > 1 {
            let middle = size.midpoint(too_many);
            if fits(middle) { size = middle } else { too_many = middle }
        }
        Ok(size)
    }

    /// Ranges of ids for the finished rows, each an eighth of the host memory `host` or less.
    pub(super) fn row_bins(&self, host: u64) -> RowBins {
        let n = self.data.rows;
        let bytes = n as u64 * self.finished_row();
        let count = usize::try_from(bytes.div_ceil((host / 8).max(1))).unwrap_or(n).max(ROW_BINS).min(n);
        let buffer = ((buffers(host) / 2 / count as u64) as usize).clamp(4 << 10, LARGEST_BUFFER);
        RowBins { count, buffer }
    }
}

/// Clusters of at most `size` members for `nodes` nodes.
///
/// One cluster more than the average fill needs, so that every vector finds two clusters with room.
pub(super) fn clusters(nodes: usize, size: usize) -> usize {
    (2.0 * nodes as f64 / (FILL * size as f64)).ceil() as usize + 1
}

/// Bytes of all buffers of work files within `host` bytes. The partition takes all of them, and
/// finished rows take half.
pub(super) fn buffers(host: u64) -> u64 {
    (host / 8).min(BUFFERS)
}

/// The host memory limit that leaves `bytes` bytes beside the buffers.
pub(super) fn with_buffers(bytes: u64) -> u64 {
    // Buffers are an eighth of the limit, so a seventh of the rest.
    bytes.saturating_add(bytes.div_ceil(7).min(BUFFERS))
}
