//! Clusters of a build in memory that several devices share.

use super::sizes::size_of_clusters;
use super::{ClusterPlan, Limits};
use crate::{Builder, DataShape, Result, Target, Vectors};

/// Minimum number of devices that share a build. Each vector is built in two clusters, so two
/// devices take as long as one alone (docs/decisions.md).
const DEVICES: usize = 3;

/// Clusters per device: three are built at a time on each, and a device that has no more clusters
/// waits for the others.
const PER_DEVICE: usize = 12;

/// Minimum number of vectors of a cluster. Smaller builds do not fill a GPU, and a vector is in two
/// clusters, so one device alone is as fast.
const MIN_CLUSTER_SIZE: usize = 1_000_000;

impl ClusterPlan {
    /// Plans the clusters of a build in memory that all devices of `builder` share; `None` if there
    /// are fewer than three devices, `base` is too small to share, the builder is on codes, or a
    /// build [in memory](super::super::OutOfCore::in_memory) exceeds the limits.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn spread(builder: &Builder, base: &Vectors, given: &Limits) -> Result<Option<Self>> {
        let devices = builder.devices_for(base.len())?.len();
        let limits = given.or(Limits::available(builder.descent.device, base.len())?);
        let size = limits.cluster_size.unwrap_or_else(|| {
            size_of_clusters(base.len(), PER_DEVICE * devices).max(MIN_CLUSTER_SIZE.min(base.len()))
        });
        if devices < DEVICES || size >= base.len() || builder.compression.is_some() {
            return Ok(None);
        }
        let limits = Limits { cluster_size: Some(size), ..limits };
        let data = DataShape::inspect(base, &builder.descent.progress)?;
        let target = Target::open(builder.descent.device, size)?;
        let plan = Self::on(builder, &data, &limits, target, devices)?;
        let fits = |plan: &Self| limits.host_memory.is_none_or(|host| plan.bytes_in_memory() <= host);
        Ok(plan
            .filter(fits)
            .map(|plan| plan.replicating(builder, base, &limits))
            .map(|plan| Self { limits: Limits { cluster_size: Some(size), ..*given }, ..plan }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Strategy, Synth};

    #[test]
    fn devices_share_what_fills_them() {
        let base = Synth::new(1000, 4, 0).unwrap().base();
        let spread = |devices: &[Device], limits: Limits| {
            let builder = Builder::new(Strategy::vamana()).knn(20).devices(devices);
            ClusterPlan::spread(&builder, &base, &limits).unwrap()
        };
        let three = [Device::Cpu; 3];
        assert_eq!(spread(&three, Limits::default()), None, "too few vectors");
        let size = Limits { cluster_size: Some(400), ..Limits::default() };
        assert_eq!(spread(&three[..2], size), None, "two devices");
        let plan = spread(&three, size).unwrap();
        assert_eq!((plan.cluster_size, plan.limits, plan.cache), (400, size, plan.clusters));
        assert!(plan.bytes_in_memory() > plan.host_bytes);
        // The least memory of a build with work files is too little for one without.
        let builder = Builder::new(Strategy::vamana()).knn(20).devices(&three);
        let with = |host| Limits { host_memory: Some(host), ..size };
        let (mut too_few, mut enough) = (0, plan.host_bytes);
        while enough - too_few > 1 {
            let host = too_few.midpoint(enough);
            let fits = ClusterPlan::new(&builder, &base, &with(host)).is_ok();
            *if fits { &mut enough } else { &mut too_few } = host;
        }
        assert_eq!(spread(&three, with(enough)), None, "{enough} bytes");
        assert!(spread(&three, with(2 * enough)).is_some());
    }

    #[test]
    fn devices_get_several_clusters_each() {
        for (nodes, devices) in [(20_000_000, 2), (100_000_000, 8)] {
            let size = size_of_clusters(nodes, PER_DEVICE * devices);
            let count = super::super::sizes::clusters(nodes, size);
            assert!(count.abs_diff(PER_DEVICE * devices) <= 1, "{count} clusters of {size}");
        }
    }
}
