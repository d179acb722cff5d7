//! The plan of a build: the number and size of clusters within the limits.

use serde::{Deserialize, Serialize};

use super::Limits;
use super::available::stays_in_memory;
use super::sizes::{
    Ceilings, HostBytes, LARGEST_BUFFER, MemoryModel, RECORD_HEAD, buffers, clusters, with_buffers,
};
use crate::build::estimate;
use crate::gpu::MemoryPlan;
use crate::index::IndexFile;
use crate::vectors::repeated::{KEPT_BYTES, PEAK_BYTES};
use crate::{Builder, DataShape, Error, Result, Target, Vectors};

/// The maximum number of devices of a build.
const MAX_DEVICES: usize = 1024;

/// The clusters of a build out of core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterPlan {
    /// The given limits; a resumed build must have the same.
    pub limits: Limits,
    /// Clusters before splits: clusters that a sample predicts too large are split.
    pub clusters: usize,
    /// Maximum number of vectors in a cluster.
    pub cluster_size: usize,
    /// Clusters in the cache, the current one included.
    pub cache: usize,
    /// Planned bytes of host memory, without the mapped base.
    pub host_bytes: u64,
    /// Planned bytes of memory of each device, its context included.
    pub device_bytes: u64,
    /// Maximum bytes of work files and of the index.
    pub disk_bytes: u64,
    /// Whether clusters read their vectors from the base, and work files hold only the ids of their
    /// members; the index is the same. [`reading_base`](Self::reading_base) sets it.
    pub reads_base: bool,
    /// Whether each device holds a copy of the base, from which it takes the vectors of clusters
    /// that the host would read from the base; the index is the same. [`within`](Self::within) sets
    /// it where the copy fits the memory of the devices.
    pub replicates: bool,
    /// The bytes by purpose.
    pub(crate) bytes: PlannedBytes,
    /// Bytes of chunks and buffers of the partition.
    pub(crate) partition_bytes: usize,
    /// Ranges of ids for finished rows.
    pub(crate) row_bins: RowBins,
    /// Whether the memory allows a search for repeated rows.
    pub(crate) groups: bool,
    /// Maximum number of nodes of the lowest layer; no layers are built if it is below two.
    pub(crate) layer_nodes: usize,
}

/// Ranges of ids that finished rows are sorted into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RowBins {
    pub count: usize,
    /// Bytes of the buffer of each range.
    pub buffer: usize,
}

/// Bytes on the host while clusters are built, and on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlannedBytes {
    process: u64,
    buffers: u64,
    members: u64,
    builds: u64,
    lists: u64,
    cache: u64,
    layers: u64,
    /// Ids and other clusters of members, in memory.
    member_ids: u64,
    member_files: u64,
    list_files: u64,
    row_files: u64,
    index: u64,
}

impl ClusterPlan {
    /// Plans the clusters of `base`. Returns `None` if a build in memory fits the limits.
    ///
    /// # Errors
    /// If the base is empty, a parameter is out of its range, or the limits are too small for any
    /// cluster.
    pub fn new(builder: &Builder, base: &Vectors, limits: &Limits) -> Result<Option<Self>> {
        let k = builder.descent.k_for(base)?;
        // The values decide only whether the base has a copy as bytes, so assume one first and read
        // the values later.
        let any = DataShape::new(base.len(), base.dim(), base.element_type())?;
        builder.check_for(&any)?;
        let devices = builder.devices_for(base.len())?.len();
        let of = |nodes| Target::open(builder.descent.device, nodes);
        let whole = of(base.len())?;
        let copy = (base.len() * base.dim()) as u64;
        let host_memory = limits.host_memory.map(|bytes| bytes.saturating_sub(copy));
        let model = MemoryModel { builder, data: any, k, target: whole, devices: 1 };
        if model.fits(&Limits { host_memory, ..*limits }) {
            return Ok(None);
        }
        let data = DataShape::inspect(base, &builder.descent.progress)?;
        let plan = Self::on(builder, &data, limits, whole, devices)?;
        // Small clusters may be faster on the CPU.
        let (target, size) = match plan {
            Some(plan) => (of(plan.cluster_size)?, Some(plan.cluster_size)),
            None => (whole, None),
        };
        if target.gpu == whole.gpu {
            return Ok(plan);
        }
        let small = Limits { cluster_size: size, ..*limits };
        let plan = Self::on(builder, &data, &small, target, devices)?;
        Ok(plan.map(|plan| Self { limits: *limits, ..plan }))
    }

    /// As [`new`](Self::new), within free memory where `given` has no limit. A resumed build must
    /// agree in the given limits alone, since free memory varies: they are those of the plan.
    ///
    /// Clusters [read the base](Self::reading_base) if it fits the memory that the build leaves
    /// free.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn within(builder: &Builder, base: &Vectors, given: &Limits) -> Result<Option<Self>> {
        let limits = given.or(Limits::available(builder.descent.device, base.len())?);
        let plan = Self::new(builder, base, &limits)?.map(|plan| {
            let host = limits.host_memory.unwrap_or(u64::MAX);
            let reads = plan.assignment_fits(base.len(), host) && stays_in_memory(base, plan.host_bytes);
            let plan = plan.reading_base(reads);
            let plan = if reads { plan.replicating(builder, base, &limits) } else { plan };
            Self { limits: *given, ..plan }
        });
        Ok(plan)
    }

    /// Plans the clusters of data of this shape on a target, a machine with 1 to 1,024 `devices`.
    /// The devices need not exist. Returns `None` if a build in memory fits the limits.
    ///
    /// # Errors
    /// As [`new`](Self::new); or if the number of devices is out of its range.
    pub fn on(
        builder: &Builder,
        data: &DataShape,
        limits: &Limits,
        target: Target,
        devices: usize,
    ) -> Result<Option<Self>> {
        let k = builder.check_for(data)?;
        if !(1..=MAX_DEVICES).contains(&devices) {
            return Err(Error::argument("devices", devices, format_args!("1 to {MAX_DEVICES}")));
        }
        let model = MemoryModel { builder, data: *data, k, target, devices: devices as u64 };
        if model.fits(limits) {
            return Ok(None);
        }
        builder.check_full("out of core, since it exceeds the limits of memory")?;
        let size = model.cluster_size(limits)?;
        Self::with_size(&model, limits, size).map(Some)
    }

    /// Estimated seconds of the stages of a build, from rates measured on other machines and data.
    /// Takes the arguments of [`on`](Self::on).
    pub fn seconds(&self, builder: &Builder, data: &DataShape, target: Target) -> [(&'static str, f64); 3] {
        let [partition, build, write] =
            estimate::out_of_core(builder, data, self.clusters, self.cluster_size, target);
        [("partition", partition), ("build", build), ("write", write)]
    }

    /// Plans clusters of at most `size` vectors.
    fn with_size(model: &MemoryModel<'_>, limits: &Limits, size: usize) -> Result<Self> {
        let (builder, n) = (model.builder, model.data.rows);
        let Ceilings { host, .. } = model.ceilings(limits);
        let buffers = buffers(host);
        let left = host - buffers;
        let clusters = clusters(n, size);
        let needed = model.host(size);
        let total = needed.total();
        let HostBytes { process, members, builds, lists } = needed;
        let partition = process.saturating_add(model.partition(clusters));
        if partition > left {
            let expected = format!("at least {} to find {clusters} clusters", with_buffers(partition));
            return Err(Error::argument("host_memory", host, expected));
        }
        // The degree is at least 1, so lists are not empty.
        let cluster_lists = size as u64 * model.list();
        let cached = (left - total) / cluster_lists;
        let cache = usize::try_from(cached).unwrap_or(usize::MAX).saturating_add(1).min(clusters);
        let whole_base = WholeBase::new(model, limits, process, partition + buffers);
        let WholeBase { groups, grouping, layer_nodes, layers } = whole_base;
        let index = IndexFile::bytes(n, builder.strategy.max_degree());
        let bytes = PlannedBytes {
            process,
            buffers,
            members,
            builds,
            lists,
            cache: (cache as u64 - 1) * cluster_lists,
            member_ids: (2 * n * RECORD_HEAD) as u64,
            member_files: 2 * n as u64 * model.record(),
            list_files: n as u64 * model.list(),
            row_files: n as u64 * model.finished_row(),
            index: (index + Builder::layer_file_bytes(layer_nodes)) as u64,
            layers,
        };
        let plan = Self {
            limits: *limits,
            clusters,
            cluster_size: size,
            cache,
            host_bytes: 0,
            device_bytes: model.device(size),
            disk_bytes: 0,
            reads_base: false,
            replicates: false,
            bytes,
            partition_bytes: buffers as usize,
            row_bins: model.row_bins(host),
            groups,
            layer_nodes,
        };
        let partition = partition.saturating_add(buffers).max(grouping);
        let host_bytes = plan.host().bytes().max(partition).max(layers);
        Ok(Self { host_bytes, disk_bytes: plan.disk().bytes(), ..plan })
    }

    /// This plan with vectors of clusters read from the base, or written to work files. To read the
    /// base pays where its pages stay in memory: then no vector is written and read again.
    #[must_use]
    pub fn reading_base(self, yes: bool) -> Self {
        let plan = Self { reads_base: yes, ..self };
        Self { disk_bytes: plan.disk().bytes(), ..plan }
    }

    /// This plan with a copy of `base` on each device, if it fits the limit of device memory beside
    /// the builds.
    fn replicating(self, builder: &Builder, base: &Vectors, limits: &Limits) -> Self {
        let bytes = base.replica_bytes(builder.descent.metric).filter(|_| self.device_bytes > 0);
        let device_bytes = bytes.map(|bytes| self.device_bytes.saturating_add(bytes));
        match device_bytes.filter(|&bytes| limits.gpu_memory.is_some_and(|most| bytes <= most)) {
            Some(device_bytes) => Self { device_bytes, replicates: true, ..self },
            None => self,
        }
    }

    /// Whether the partition may hold the nearest centres of all rows in `host` bytes, beside the
    /// search for repeated rows: ranges of rows wait for the ranges before them.
    fn assignment_fits(&self, nodes: usize, host: u64) -> bool {
        let PlannedBytes { process, buffers, .. } = self.bytes;
        let search = if self.groups { PEAK_BYTES * nodes } else { 0 };
        let nearest = nodes * size_of::<[u32; 2]>();
        [buffers, search as u64, nearest as u64].into_iter().fold(process, u64::saturating_add) <= host
    }

    /// Bytes of host memory of a build [in memory](super::super::OutOfCore::in_memory), without the
    /// data set.
    pub fn bytes_in_memory(&self) -> u64 {
        let PlannedBytes { cache, list_files, row_files, member_ids, .. } = self.bytes;
        let lists = list_files.saturating_sub(cache);
        [lists, row_files, member_ids].into_iter().fold(self.host_bytes, u64::saturating_add)
    }

    /// Checks that the plan fits a data set of `nodes` vectors: its fields are public.
    ///
    /// # Errors
    /// [`Error::Argument`] for the first field that does not fit.
    pub(crate) fn check(&self, nodes: usize) -> Result<()> {
        let RowBins { count, buffer } = self.row_bins;
        for (what, found, range) in [
            ("clusters", self.clusters, 2..=nodes),
            ("cluster_size", self.cluster_size, 1..=nodes),
            ("ranges of rows", count, 1..=nodes),
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
        // Two clusters have room for each vector, wherever the others are.
        let (others, places) = (self.clusters - 1, 2 * nodes);
        if others.saturating_mul(self.cluster_size) < places {
            let expected = format!("at least {} in {} clusters", places.div_ceil(others), self.clusters);
            return Err(Error::argument("cluster_size", self.cluster_size, expected));
        }
        Ok(())
    }

    /// The number of clusters before splits if only `nodes` vectors are distinct; at least two.
    pub(crate) fn clusters_for(&self, nodes: usize) -> usize {
        self.clusters.min(clusters(nodes, self.cluster_size))
    }

    /// Host memory while clusters are built.
    pub fn host(&self) -> MemoryPlan {
        let PlannedBytes { process, buffers, members, builds, lists, cache, .. } = self.bytes;
        named(&[
            ("program and driver", process),
            ("buffers of files", buffers),
            ("vectors of clusters", members),
            ("builds", builds),
            ("lists being merged", lists),
            ("lists in the cache", cache),
        ])
    }

    /// Host memory while layers are built, after all clusters. An index may need no layers.
    pub fn layers(&self) -> MemoryPlan {
        named(&[("layers", self.bytes.layers)])
    }

    /// Maximum bytes of the work files and of the index.
    pub fn disk(&self) -> MemoryPlan {
        let PlannedBytes { member_ids, member_files, list_files, row_files, index, .. } = self.bytes;
        let members = if self.reads_base {
            ("members of clusters", member_ids)
        } else {
            ("vectors of clusters", member_files)
        };
        named(&[members, ("waiting lists", list_files), ("finished rows", row_files), ("index", index)])
    }
}

fn named(buffers: &[(&'static str, u64)]) -> MemoryPlan {
    buffers.iter().fold(MemoryPlan::new(), |plan, &(name, bytes)| plan.with::<u8>(name, bytes as usize))
}

/// Stages that work on the whole base: the search for repeated rows, and layers.
struct WholeBase {
    groups: bool,
    /// Host memory of the search for repeated rows; 0 without the search.
    grouping: u64,
    layer_nodes: usize,
    /// Host memory of building layers, the repeated rows included.
    layers: u64,
}

impl WholeBase {
    /// Plans these stages. The partition takes `partition` bytes with its buffers, and the process
    /// takes `process` bytes.
    fn new(model: &MemoryModel<'_>, limits: &Limits, process: u64, partition: u64) -> Self {
        let n = model.data.rows;
        let Ceilings { device, host } = model.ceilings(limits);
        // The search ends before the partition. Its result stays in memory until the partition
        // ends, and is read again while the index is written.
        let (peak, kept) = ((PEAK_BYTES * n) as u64, (KEPT_BYTES * n) as u64);
        let grouping = process.saturating_add(peak).max(partition.saturating_add(kept));
        // Ranges of rows take more than half of the memory while the index is written.
        let groups = grouping <= host && kept <= host / 8;
        let (grouping, kept) = if groups { (grouping, kept) } else { (0, 0) };
        let layer = model.builder.largest_layer(&model.data, model.target, device, host - kept);
        let (layer_nodes, layers) =
            layer.map_or((0, 0), |(nodes, bytes)| (nodes, bytes.saturating_add(kept)));
        Self { groups, grouping, layer_nodes, layers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::Overhead;
    use crate::{Device, Strategy, Synth};

    #[test]
    fn changed_plans_are_checked() {
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
            (|plan| plan.row_bins.count = 0, "ranges of rows: found 0, expected 1 to 1000"),
            (|plan| plan.row_bins.count = 1 << 40, "ranges of rows: found 1099511627776, expected 1 to 1000"),
            (
                |plan| plan.row_bins.buffer = 1 << 40,
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
            ClusterPlan::on(&builder, &data, &limits, Target::cpu(), 1).unwrap().unwrap()
        };
        let (small, large) = (plan(48 << 20), plan(256 << 20));
        assert!(!small.groups && large.groups);
        assert!(2 <= small.layer_nodes && small.layer_nodes < large.layer_nodes);
        for plan in [small, large] {
            assert!(plan.layers().bytes() <= plan.host_bytes);
            assert!(plan.host_bytes <= plan.limits.host_memory.unwrap(), "{plan:?}");
        }
        // The maximum of the rule for layers.
        assert_eq!(plan(900 << 20).layer_nodes, 1_000_000 / 6);
    }

    #[test]
    fn numbers_of_targets_do_not_overflow() {
        let data = DataShape::new(1 << 31, 4096, crate::ElementType::F32).unwrap();
        let builder = Builder::new(Strategy::cagra().degree(512)).knn(1024);
        let gpu = Overhead { context: 1 << 62, driver: 1 << 62, staging: 1 << 62 };
        let target = Target { gpu: Some(gpu), ..Target::cpu() };
        let limits = Limits { gpu_memory: Some(1 << 30), host_memory: Some(1 << 30), cluster_size: None };
        ClusterPlan::on(&builder, &data, &limits, target, 1024).unwrap_err();
        for devices in [0, 1025, usize::MAX] {
            let error =
                ClusterPlan::on(&builder, &data, &limits, Target::cpu(), devices).unwrap_err().to_string();
            assert_eq!(error, format!("devices: found {devices}, expected 1 to 1024"));
        }
    }
}
