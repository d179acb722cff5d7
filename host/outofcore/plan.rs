//! Whether a build is out of core, and in how many clusters of what size.

use serde::{Deserialize, Serialize};

use super::centres::SAMPLE_PER_CLUSTER;
use super::lists::DeviceLists;
use super::partition::RECORD_HEAD;
use super::pipeline::Crew;
use crate::descent::STEPS;
use crate::gpu::{MemoryPlan, Overhead};
use crate::index::IndexFile;
use crate::vectors::repeated::{KEPT_BYTES, PEAK_BYTES};
use crate::vectors::shape::with_type;
use crate::{BuildPlan, Builder, DataShape, Error, Result, Target, Vectors};

/// What a build may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of host memory, beside the mapped base; no limit unless set.
    pub host_memory: Option<u64>,
    /// Bytes of memory of each device, its context among them; no limit unless set.
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
    /// Bytes of memory that are planned for of each device, its context among them.
    pub device_bytes: u64,
    /// Bytes of work files and of the index, at most.
    pub disk_bytes: u64,
    /// What these bytes are for.
    pub(super) bytes: Bytes,
    /// Bytes of memory that vectors pass through on their way to the files of clusters.
    pub(super) partition_bytes: usize,
    /// Ranges of ids that finished rows are sorted into, and the bytes that gather those of a range.
    pub(super) row_bins: (usize, usize),
    /// Whether there is room to look for repeated rows.
    pub(super) groups: bool,
    /// The most nodes of the lowest layer; no layers are built if it has room for fewer than two.
    pub(super) layer_nodes: usize,
}

/// Bytes on the host, as long as clusters are built, and on the disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Bytes {
    process: u64,
    buffers: u64,
    members: u64,
    builds: u64,
    lists: u64,
    cache: u64,
    layers: u64,
    member_files: u64,
    list_files: u64,
    row_files: u64,
    index: u64,
}

impl ClusterPlan {
    /// Checks that its numbers fit a data set of `nodes` vectors: users can change them.
    ///
    /// # Errors
    /// [`Error::Argument`] for the first that does not.
    pub(super) fn check(&self, nodes: usize) -> Result<()> {
        let (row_bins, buffer) = self.row_bins;
        for (what, found, range) in [
            ("clusters", self.clusters, 2..=nodes),
            ("cluster_size", self.cluster_size, 1..=nodes),
            ("ranges of rows", row_bins, 1..=nodes),
            ("buffer of a range", buffer, 1..=LARGEST_BUFFER),
            ("nodes of a layer", self.layer_nodes, 0..=nodes),
        ] {
            if !range.contains(&found) {
                return Err(Error::argument(
                    what,
                    found,
                    format_args!("{} to {}", range.start(), range.end()),
                ));
            }
        }
        if self.cache == 0 {
            return Err(Error::argument("cache", 0, "at least 1"));
        }
        // So that there are always two that are not full, wherever vectors lie.
        let (others, places) = (self.clusters - 1, 2 * nodes);
        if others.saturating_mul(self.cluster_size) < places {
            let expected = format!("at least {} in {} clusters", places.div_ceil(others), self.clusters);
            return Err(Error::argument("cluster_size", self.cluster_size, expected));
        }
        Ok(())
    }

    /// Clusters to begin with if there are only so many nodes, at least one.
    pub(super) fn clusters_for(&self, nodes: usize) -> usize {
        self.clusters.min(clusters(nodes, self.cluster_size))
    }

    /// The host's memory while clusters are built.
    pub fn host(&self) -> MemoryPlan {
        let Bytes { process, buffers, members, builds, lists, cache, .. } = self.bytes;
        named(&[
            ("program and driver", process),
            ("buffers of files", buffers),
            ("vectors of clusters", members),
            ("builds", builds),
            ("lists at work", lists),
            ("lists in the cache", cache),
        ])
    }

    /// The host's memory while layers are built, if the index needs any: after all clusters.
    pub fn layers(&self) -> MemoryPlan {
        named(&[("layers", self.bytes.layers)])
    }

    /// The work files, and the index, at most.
    pub fn disk(&self) -> MemoryPlan {
        let Bytes { member_files, list_files, row_files, index, .. } = self.bytes;
        named(&[
            ("vectors of clusters", member_files),
            ("waiting lists", list_files),
            ("finished rows", row_files),
            ("index", index),
        ])
    }
}

fn named(buffers: &[(&'static str, u64)]) -> MemoryPlan {
    buffers.iter().fold(MemoryPlan::new(), |plan, &(name, bytes)| plan.with::<u8>(name, bytes as usize))
}

/// The smallest limit of a cluster's size.
const LEAST_CLUSTER: usize = 16;

/// The most devices of a build.
const MOST_DEVICES: usize = 1024;

/// How full clusters are on average: k-means makes some larger than others.
const FILL: f64 = 0.75;

/// The most bytes that gather what goes to files.
const BUFFERS: u64 = 256 << 20;

/// The largest buffer of finished rows.
const LARGEST_BUFFER: usize = 1 << 20;

/// What a build takes, by the size of its clusters.
struct Sizes<'a> {
    builder: &'a Builder,
    data: DataShape,
    /// Neighbours per node, in clusters of more nodes.
    k: usize,
    target: Target,
    devices: u64,
}

impl Sizes<'_> {
    /// Bytes of each device, and of the host.
    fn ceilings(&self, limits: &Limits) -> (u64, u64) {
        let device = limits.gpu_memory.filter(|_| self.target.gpu.is_some());
        (device.unwrap_or(u64::MAX), limits.host_memory.unwrap_or(u64::MAX))
    }

    /// Whether all of it can be built in memory.
    fn fits(&self, limits: &Limits) -> bool {
        let (device, host) = self.ceilings(limits);
        let n = self.data.rows;
        limits.cluster_size.is_none_or(|most| n <= most) && self.build(n).fits(device, host)
    }

    /// The threads of each device.
    fn crew(&self) -> Crew {
        if self.target.gpu.is_some() { Crew::of_gpus(self.devices as usize) } else { Crew::CPU }
    }

    /// The build of so many nodes.
    fn build(&self, nodes: usize) -> BuildPlan {
        self.builder.plan_of(&self.data.part(nodes), self.k.min(nodes - 1), self.target)
    }

    /// The most that builds of up to so many nodes take: where descent begins to work in another way, fewer take more.
    fn most(&self, nodes: usize, bytes: impl Fn(&BuildPlan) -> u64) -> u64 {
        let sizes = STEPS.into_iter().filter(|&step| step < nodes).chain([nodes]);
        sizes.map(|nodes| bytes(&self.build(nodes))).max().unwrap_or(0)
    }

    /// Bytes of a list with distances.
    fn list(&self) -> u64 {
        8 * self.builder.strategy.max_degree() as u64
    }

    /// Bytes on the host of what there is once, of vectors, of builds and of lists, for clusters of so many nodes.
    fn host(&self, nodes: usize) -> [u64; 4] {
        let Crew { threads, builds } = self.crew();
        let (builds, readers) = (self.devices * builds as u64, self.devices);
        let threads = self.devices * threads as u64;
        let staging = self.target.gpu.map_or(0, |Overhead { staging, .. }| staging);
        let process = self.build(nodes).process.bytes().saturating_add((threads - 1).saturating_mul(staging));
        let record = (self.data.row_bytes() + RECORD_HEAD) as u64;
        let (of_builds, list) =
            (builds.saturating_mul(self.most(nodes, BuildPlan::peak_of_stages)), self.list() * nodes as u64);
        // Those of the cluster before may still wait. Lists that wait are copied for it, and those that have waited are read
        // again from the disk; without a GPU there are the lists of the build itself, once it is over.
        let lists = match self.target.gpu {
            Some(_) => (threads + 1) * list,
            None => threads * list.max((3 * list).saturating_sub(of_builds / builds)),
        };
        // Vectors are read, and built with.
        [process, (readers + builds) * record * nodes as u64, of_builds, lists]
    }

    /// Bytes of a device for clusters of so many nodes.
    fn device(&self, nodes: usize) -> u64 {
        let Some(overhead) = self.target.gpu else { return 0 };
        let lists = |plan: &BuildPlan| {
            let (shape, degree) = ((nodes, self.data.dim), self.builder.strategy.max_degree());
            with_type!(plan.element, T => DeviceLists::<T>::plan(shape, degree, self.builder.descent.metric))
        };
        let Crew { threads, builds } = self.crew();
        let of_build = |plan: &BuildPlan| plan.peak_device_bytes().max(lists(plan).bytes());
        let merging = ((threads - builds) as u64).saturating_mul(lists(&self.build(nodes)).bytes());
        let buffers = (builds as u64).saturating_mul(self.most(nodes, of_build)).saturating_add(merging);
        // The target's numbers are the caller's.
        overhead.context.saturating_add(overhead.pool(buffers)).saturating_add(buffers)
    }

    /// Bytes on the host while vectors are put into their clusters, beside buffers.
    fn partition(&self, clusters: usize) -> u64 {
        let values = clusters * SAMPLE_PER_CLUSTER * (self.data.dim + 1);
        // Of the pairs of clusters most share nothing.
        (values * size_of::<f32>() + clusters * clusters * size_of::<u64>()) as u64
    }

    /// The largest number of nodes, up to `most`, that fits; at least [`LEAST_CLUSTER`].
    fn largest(&self, most: usize, fits: impl Fn(usize) -> bool) -> usize {
        let (mut size, mut too_many) = (LEAST_CLUSTER, most + 1);
        while too_many - size > 1 {
            let middle = size.midpoint(too_many);
            if fits(middle) { size = middle } else { too_many = middle }
        }
        size
    }
}

/// Clusters of at most `size` members for so many nodes: one more than are filled on average, so
/// that a vector finds two that are not full.
fn clusters(nodes: usize, size: usize) -> usize {
    (2.0 * nodes as f64 / (FILL * size as f64)).ceil() as usize + 1
}

/// The bytes of all buffers that gather what goes to files, where there are `host` bytes: all of it those of the
/// partition, then half of it those of finished rows.
fn buffers(host: u64) -> u64 {
    (host / 8).min(BUFFERS)
}

impl ClusterPlan {
    /// Plans the clusters of `base`; none if all of it fits the limits, or a cluster.
    ///
    /// # Errors
    /// If the base is empty, a parameter is out of its range, or the limits are too small for any cluster.
    pub fn new(builder: &Builder, base: &Vectors, limits: &Limits) -> Result<Option<Self>> {
        let k = builder.descent.k_for(base)?;
        // Values are only looked at where it matters whether they are bytes, which have a copy on the host.
        let any = DataShape::new(base.len(), base.dim(), base.element_type())?;
        builder.check_for(&any)?;
        let devices = builder.devices_for(base.len())?.len();
        let of = |nodes| Target::of(builder.descent.device, nodes);
        let whole = of(base.len())?;
        let copy = (base.len() * base.dim()) as u64;
        let host_memory = limits.host_memory.map(|bytes| bytes.saturating_sub(copy));
        if (Sizes { builder, data: any, k, target: whole, devices: 1 })
            .fits(&Limits { host_memory, ..*limits })
        {
            return Ok(None);
        }
        let data = DataShape::of(base, &builder.descent.progress)?;
        let plan = Self::on(builder, &data, limits, (whole, devices))?;
        // Clusters may be too small for a GPU to pay.
        let (target, size) = match plan {
            Some(plan) => (of(plan.cluster_size)?, Some(plan.cluster_size)),
            None => (whole, None),
        };
        if target.gpu == whole.gpu {
            return Ok(plan);
        }
        let small = Limits { cluster_size: size, ..*limits };
        let plan = Self::on(builder, &data, &small, (target, devices))?;
        Ok(plan.map(|plan| Self { limits: *limits, ..plan }))
    }

    /// As [`new`](Self::new), of such data, on 1 to 1,024 devices, which need not be there.
    ///
    /// # Errors
    /// As [`new`](Self::new); or if the number of devices is out of its range.
    pub fn on(
        builder: &Builder,
        data: &DataShape,
        limits: &Limits,
        (target, devices): (Target, usize),
    ) -> Result<Option<Self>> {
        let n = data.rows;
        let k = builder.check_for(data)?;
        if !(1..=MOST_DEVICES).contains(&devices) {
            return Err(Error::argument("devices", devices, format_args!("1 to {MOST_DEVICES}")));
        }
        let sizes = Sizes { builder, data: *data, k, target, devices: devices as u64 };
        let (device, host) = sizes.ceilings(limits);
        let most = limits.cluster_size.unwrap_or(n).min(n);
        if sizes.fits(limits) {
            return Ok(None);
        }
        if most < LEAST_CLUSTER {
            return Err(Error::argument("cluster_size", most, format_args!("at least {LEAST_CLUSTER}")));
        }
        let needs = |nodes: usize| sizes.host(nodes).into_iter().fold(0, u64::saturating_add);
        let left = host - buffers(host);
        let least = (needs(LEAST_CLUSTER), sizes.device(LEAST_CLUSTER));
        if least.1 > device {
            return Err(Error::argument("gpu_memory", device, format_args!("at least {}", least.1)));
        }
        // A seventh on top of what is not a buffer makes up for the buffers' eighth.
        let with_buffers = |bytes: u64| bytes.saturating_add(bytes.div_ceil(7).min(BUFFERS));
        if least.0 > left {
            let expected = format!("at least {}", with_buffers(least.0));
            return Err(Error::argument("host_memory", host, expected));
        }
        let size = sizes.largest(most, |nodes| needs(nodes) <= left && sizes.device(nodes) <= device);
        let clusters = clusters(n, size);
        let partition = sizes.host(size)[0].saturating_add(sizes.partition(clusters));
        if partition > left {
            let expected = format!("at least {} to find {clusters} clusters", with_buffers(partition));
            return Err(Error::argument("host_memory", host, expected));
        }
        // The degree, and so a list, is at least 1.
        let (buffers, cluster_lists) = (buffers(host), size as u64 * sizes.list());
        let [process, members, builds, lists] = sizes.host(size);
        let cached = (left - needs(size)) / cluster_lists;
        let cache = usize::try_from(cached).unwrap_or(usize::MAX).saturating_add(1).min(clusters);
        let row = 4 + 4 * builder.strategy.max_degree() as u64;
        let index_bytes = n as u64 * row;
        let row_bins = usize::try_from(index_bytes.div_ceil((host / 8).max(1))).unwrap_or(n).clamp(8, n);
        let buffer = |count: usize| ((buffers / 2 / count as u64) as usize).clamp(4 << 10, LARGEST_BUFFER);
        // Repeated rows are found before the partition, and stay in memory until it ends. They are
        // read again as the index is written.
        let (peak, kept) = ((PEAK_BYTES * n) as u64, (KEPT_BYTES * n) as u64);
        let finding = process.saturating_add(peak).max(partition.saturating_add(buffers + kept));
        // As the index is written, ranges of rows take more than half of the memory.
        let groups = finding <= host && kept <= host / 8;
        let (finding, kept) = if groups { (finding, kept) } else { (0, 0) };
        let layer = builder.largest_layer(data, target, (device, host - kept));
        let (layer_nodes, layers) =
            layer.map_or((0, 0), |(nodes, bytes)| (nodes, bytes.saturating_add(kept)));
        let layer_file = Builder::layer_file_bytes(layer_nodes);
        let bytes = Bytes {
            process,
            buffers,
            members,
            builds,
            lists,
            cache: (cache as u64 - 1) * cluster_lists,
            member_files: 2 * n as u64 * (RECORD_HEAD + data.row_bytes()) as u64,
            list_files: n as u64 * sizes.list(),
            row_files: index_bytes,
            index: (IndexFile::bytes(n, builder.strategy.max_degree()) + layer_file) as u64,
            layers,
        };
        let plan = Self {
            limits: *limits,
            clusters,
            cluster_size: size,
            cache,
            host_bytes: 0,
            device_bytes: sizes.device(size),
            disk_bytes: 0,
            bytes,
            partition_bytes: buffers as usize,
            row_bins: (row_bins, buffer(row_bins)),
            groups,
            layer_nodes,
        };
        let partition = partition.saturating_add(buffers).max(finding);
        let host_bytes = plan.host().bytes().max(partition).max(layers);
        Ok(Some(Self { host_bytes, disk_bytes: plan.disk().bytes(), ..plan }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Strategy, Synth};

    #[test]
    fn a_plan_that_was_changed_is_checked() {
        let base = Synth::new(1000, 4, 0).unwrap().base();
        let builder = Builder::new(Strategy::vamana()).knn(10).device(Device::Cpu);
        for size in [16, 100, 999] {
            let limits = Limits { cluster_size: Some(size), ..Limits::default() };
            ClusterPlan::new(&builder, &base, &limits).unwrap().unwrap().check(1000).unwrap();
        }
        let limits = Limits { cluster_size: Some(100), ..Limits::default() };
        let plan = ClusterPlan::new(&builder, &base, &limits).unwrap().unwrap();
        type Change = fn(&mut ClusterPlan);
        let changes: [(Change, &str); 10] = [
            (|plan| plan.clusters = 0, "clusters: found 0, expected 2 to 1000"),
            (|plan| plan.clusters = 1001, "clusters: found 1001, expected 2 to 1000"),
            (|plan| plan.clusters = 11, "cluster_size: found 100, expected at least 200 in 11 clusters"),
            (|plan| plan.cluster_size = 0, "cluster_size: found 0, expected 1 to 1000"),
            (
                |plan| plan.cluster_size = usize::MAX,
                "cluster_size: found 18446744073709551615, expected 1 to 1000",
            ),
            (|plan| plan.cache = 0, "cache: found 0, expected at least 1"),
            (|plan| plan.layer_nodes = 1001, "nodes of a layer: found 1001, expected 0 to 1000"),
            (|plan| plan.row_bins.0 = 0, "ranges of rows: found 0, expected 1 to 1000"),
            (|plan| plan.row_bins.0 = 1 << 40, "ranges of rows: found 1099511627776, expected 1 to 1000"),
            (
                |plan| plan.row_bins.1 = 1 << 40,
                "buffer of a range: found 1099511627776, expected 1 to 1048576",
            ),
        ];
        for (change, expected) in changes {
            let mut changed = plan;
            change(&mut changed);
            assert_eq!(changed.check(1000).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn layers_and_groups_are_planned_within_the_limits() {
        let data = DataShape::new(1_000_000, 64, crate::ElementType::F32).unwrap();
        let builder = Builder::new(Strategy::vamana()).device(Device::Cpu);
        let plan = |host| {
            let limits = Limits { host_memory: Some(host), ..Limits::default() };
            ClusterPlan::on(&builder, &data, &limits, (Target::cpu(), 1)).unwrap().unwrap()
        };
        let (small, large) = (plan(48 << 20), plan(256 << 20));
        assert!(!small.groups && large.groups);
        assert!(2 <= small.layer_nodes && small.layer_nodes < large.layer_nodes);
        for plan in [small, large] {
            assert!(plan.layers().bytes() <= plan.host_bytes);
            assert!(plan.host_bytes <= plan.limits.host_memory.unwrap(), "{plan:?}");
        }
        // All nodes that the rule may choose.
        assert_eq!(plan(900 << 20).layer_nodes, 1_000_000 / 6);
    }

    #[test]
    fn numbers_of_a_target_do_not_overflow() {
        let data = DataShape::new(1 << 31, 4096, crate::ElementType::F32).unwrap();
        let builder = Builder::new(Strategy::cagra().degree(512)).knn(1024);
        let gpu = Overhead { context: 1 << 62, driver: 1 << 62, staging: 1 << 62 };
        let target = Target { gpu: Some(gpu), ..Target::cpu() };
        let limits = Limits { gpu_memory: Some(1 << 30), host_memory: Some(1 << 30), cluster_size: None };
        ClusterPlan::on(&builder, &data, &limits, (target, 1024)).unwrap_err();
        for devices in [0, 1025, usize::MAX] {
            let error =
                ClusterPlan::on(&builder, &data, &limits, (Target::cpu(), devices)).unwrap_err().to_string();
            assert_eq!(error, format!("devices: found {devices}, expected 1 to 1024"));
        }
    }
}
