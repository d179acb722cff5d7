//! Limits on the memory of a build, and the clusters of a build that exceeds them.

use std::str::FromStr;

use serde_json::{Value, json};
use tagore::outofcore::{ClusterPlan, Limits};
use tagore::{Builder, Device, Vectors};

use crate::error::Result;
use crate::number;
use crate::output::{grouped, sized};

/// A number of bytes.
#[derive(Clone, Copy)]
struct Bytes(u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        number::bytes(text).map(Self)
    }
}

/// Limits of a build in memory: a build that exceeds them runs out of core.
#[derive(clap::Args)]
#[command(next_help_heading = "Out of core")]
pub(crate) struct LimitOptions {
    /// Host memory of the build, such as 4GiB, without the mapped data set [default: free memory
    /// less an eighth]
    #[arg(long, value_name = "BYTES")]
    host_memory: Option<Bytes>,
    /// Device memory of the build, with the CUDA context [default: free memory less a sixteenth]
    #[arg(long, value_name = "BYTES")]
    gpu_memory: Option<Bytes>,
    /// Largest number of vectors per cluster, if memory allows as many [default: no limit]
    #[arg(long, value_name = "N")]
    cluster_size: Option<usize>,
}

impl LimitOptions {
    /// Limits of a build of `nodes` nodes on `device`: the given ones, or else free memory.
    pub(crate) fn limits(&self, device: Device, nodes: usize) -> Result<Limits> {
        Ok(self.given().or(Limits::available(device, nodes)?))
    }

    /// The given limits.
    pub(crate) fn given(&self) -> Limits {
        Limits {
            host_memory: self.host_memory.map(|bytes| bytes.0),
            gpu_memory: self.gpu_memory.map(|bytes| bytes.0),
            cluster_size: self.cluster_size,
        }
    }

    /// The given limit on device memory in bytes.
    pub(crate) fn gpu_memory(&self) -> Option<u64> {
        self.gpu_memory.map(|bytes| bytes.0)
    }

    /// Whether any limit is given.
    pub(crate) fn are_given(&self) -> bool {
        self.given() != Limits::default()
    }

    /// Flags of the given limits.
    pub(crate) fn flags(&self) -> Vec<&'static str> {
        let given = [
            (self.host_memory.is_some(), "--host-memory"),
            (self.gpu_memory.is_some(), "--gpu-memory"),
            (self.cluster_size.is_some(), "--cluster-size"),
        ];
        given.into_iter().filter_map(|(is_given, flag)| is_given.then_some(flag)).collect()
    }

    /// Clusters of a build out of core; none of a build in memory.
    pub(crate) fn plan(&self, builder: &Builder, base: &Vectors) -> Result<Option<ClusterPlan>> {
        Ok(ClusterPlan::within(builder, base, &self.given())?)
    }
}

/// The clusters of a build out of core or `in_memory`, and their memory, in lines.
pub(crate) fn cluster_lines(plan: &ClusterPlan, in_memory: bool) -> Vec<String> {
    let place = if in_memory { "in memory" } else { "out of core" };
    let mut lines = vec![format!(
        "{place}: {} clusters of at most {} vectors, lists of {} in memory",
        plan.clusters,
        grouped(plan.cluster_size),
        plan.cache
    )];
    let device = match plan.device_bytes {
        0 => String::new(),
        bytes => format!("device {}, ", sized(bytes)),
    };
    if in_memory {
        let bytes = sized(plan.bytes_in_memory());
        lines.push(format!("{device}host {bytes} without the mapped data set, no work files"));
    } else {
        lines.push(format!(
            "host {} without the mapped data set, {device}disk at most {}",
            sized(plan.host_bytes),
            sized(plan.disk_bytes)
        ));
        if plan.reads_base {
            lines.push("clusters read their vectors from the data set, which fits free memory".to_owned());
        }
    }
    lines
}

/// Limits of a build, as JSON.
pub(crate) fn limits_event(limits: &Limits) -> Value {
    json!({
        "host_memory": limits.host_memory, "gpu_memory": limits.gpu_memory,
        "cluster_size": limits.cluster_size,
    })
}

/// Clusters of a build out of core, as JSON.
pub(crate) fn clusters_event(plan: &ClusterPlan) -> Value {
    json!({
        "clusters": plan.clusters, "cluster_size": plan.cluster_size, "cache": plan.cache,
        "host_bytes": plan.host_bytes, "device_bytes": plan.device_bytes, "disk_bytes": plan.disk_bytes,
        "disk_bytes_reading_base": plan.reading_base(true).disk_bytes, "reads_base": plan.reads_base,
        "host": plan.host(), "layers": plan.layers(), "disk": plan.disk(),
    })
}
