//! What a build may take of memory, and the clusters that it is cut into if it takes more.

use std::str::FromStr;

use serde_json::{Map, Value, json};
use tagore::gpu::MemoryPlan;
use tagore::outofcore::{ClusterPlan, Limits};
use tagore::{Builder, Device, Result, Vectors};

use super::output::{Output, grouped};

/// A number of bytes: `1073741824`, `1024MiB` or `1GiB`.
#[derive(Clone, Copy)]
struct Bytes(u64);

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let units = [("KiB", 10), ("MiB", 20), ("GiB", 30), ("", 0)];
        let parsed = units.iter().find_map(|&(unit, shift)| Some((text.strip_suffix(unit)?, shift)));
        let (number, shift) = parsed.unwrap_or((text, 0));
        let bytes = number.trim().parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
        bytes.map(Self).ok_or_else(|| format!("found {text}, expected bytes, such as 4096, 96MiB or 4GiB"))
    }
}

/// What a build may take, beyond which it is out of core.
#[derive(clap::Args)]
#[group(requires = "strategy")]
pub(crate) struct LimitOptions {
    /// Host memory for the build, such as 4GiB, beside the mapped data set [default: what is free, less an eighth]
    #[arg(long, value_name = "BYTES")]
    host_memory: Option<Bytes>,
    /// Device memory for the build, the CUDA context among it [default: what is free, less a sixteenth]
    #[arg(long, value_name = "BYTES")]
    gpu_memory: Option<Bytes>,
    /// The most vectors of a cluster, if memory allows as many [default: no limit]
    #[arg(long, value_name = "N")]
    cluster_size: Option<usize>,
}

impl LimitOptions {
    /// What a build of an index of `nodes` nodes on `device` may take: what was asked for, or else what is free.
    pub(crate) fn limits(&self, device: Device, nodes: usize) -> Result<Limits> {
        let (given, free) = (self.given(), Limits::available(device, nodes)?);
        Ok(Limits {
            host_memory: given.host_memory.or(free.host_memory),
            gpu_memory: given.gpu_memory.or(free.gpu_memory),
            ..given
        })
    }

    /// What was asked for.
    pub(crate) fn given(&self) -> Limits {
        Limits {
            host_memory: self.host_memory.map(|bytes| bytes.0),
            gpu_memory: self.gpu_memory.map(|bytes| bytes.0),
            cluster_size: self.cluster_size,
        }
    }

    /// Device memory for the build, if it is limited.
    pub(crate) fn gpu_memory(&self) -> Option<u64> {
        self.gpu_memory.map(|bytes| bytes.0)
    }

    /// Whether any was asked for.
    pub(crate) fn are_given(&self) -> bool {
        self.given() != Limits::default()
    }

    /// The clusters of a build that is out of core.
    pub(crate) fn plan(
        &self,
        builder: &Builder,
        base: &Vectors,
        device: Device,
    ) -> Result<Option<ClusterPlan>> {
        let mut plan = ClusterPlan::new(builder, base, &self.limits(device, base.len())?)?;
        if let Some(plan) = &mut plan {
            // Of a build that goes on, only what was asked for has to be the same.
            plan.limits = self.given();
        }
        Ok(plan)
    }
}

/// Says what the clusters of a build that is out of core are, and what they take.
pub(crate) fn say_clusters(plan: &ClusterPlan, output: &Output) {
    output.say(format_args!(
        "out of core: {} clusters of at most {} vectors, lists of {} in memory",
        plan.clusters,
        grouped(plan.cluster_size as u64),
        plan.cache
    ));
    output.say(format_args!(
        "host {} bytes beside the mapped data set, device {} bytes, disk at most {} bytes",
        grouped(plan.host_bytes),
        grouped(plan.device_bytes),
        grouped(plan.disk_bytes)
    ));
}

/// Says what a build may take.
pub(crate) fn say_limits(limits: &Limits, output: &Output) {
    let bytes = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), grouped);
    output.say(format_args!(
        "limits: host memory {} bytes, device memory {} bytes",
        bytes(limits.host_memory),
        bytes(limits.gpu_memory)
    ));
}

/// What a build may take, as JSON.
pub(crate) fn limits_event(limits: &Limits) -> Value {
    json!({
        "host_memory": limits.host_memory, "gpu_memory": limits.gpu_memory,
        "cluster_size": limits.cluster_size,
    })
}

/// The clusters of a build that is out of core, as JSON.
pub(crate) fn clusters_event(plan: &ClusterPlan) -> Value {
    json!({
        "clusters": plan.clusters, "cluster_size": plan.cluster_size, "cache": plan.cache,
        "host_bytes": plan.host_bytes, "device_bytes": plan.device_bytes, "disk_bytes": plan.disk_bytes,
        "host": buffers(&plan.host()), "disk": buffers(&plan.disk()),
    })
}

/// The buffers of a plan by their names, as JSON.
pub(crate) fn buffers(plan: &MemoryPlan) -> Map<String, Value> {
    plan.buffers().iter().map(|&(name, bytes)| (name.to_owned(), bytes.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        let bytes = |text: &str| text.parse::<Bytes>().map(|bytes| bytes.0).ok();
        assert_eq!(bytes("4096"), Some(4096));
        assert_eq!(bytes("3KiB"), Some(3 << 10));
        assert_eq!(bytes("96MiB"), Some(96 << 20));
        assert_eq!(bytes("4 GiB"), Some(4 << 30));
        for wrong in ["", "MiB", "-1", "1.5GiB", "4GB", "99999999999GiB"] {
            assert_eq!(bytes(wrong), None, "{wrong}");
        }
    }
}
