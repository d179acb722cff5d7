//! The plan of a build as serde data.

use std::collections::BTreeMap;

use serde::ser::{Serialize, SerializeMap, Serializer};

use super::BuildPlan;

/// A map of numbers of bytes, unless a name says otherwise: `stages` on the device and
/// `host_stages` hold the buffers of each stage, `process`, `disk` and `seconds` a number per name.
impl Serialize for BuildPlan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seconds: BTreeMap<&str, f64> = self.seconds.iter().copied().collect();
        seconds.insert("total", self.total_seconds());
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("knn", &self.k)?;
        map.serialize_entry("start", &self.start.to_string())?;
        map.serialize_entry("device_type", self.element.name())?;
        map.serialize_entry("stages", &self.device)?;
        map.serialize_entry("peak_stage", &self.largest_on_device().map(|stage| stage.name))?;
        map.serialize_entry("peak_gpu_bytes", &self.peak_device_bytes())?;
        map.serialize_entry("context_bytes", &self.context)?;
        map.serialize_entry("pool_bytes", &self.pool)?;
        map.serialize_entry("device_bytes", &self.device_bytes())?;
        map.serialize_entry("process", &self.process)?;
        map.serialize_entry("host_stages", &self.host)?;
        map.serialize_entry("host_bytes", &self.peak_host_bytes())?;
        map.serialize_entry("disk", &self.disk)?;
        map.serialize_entry("disk_bytes", &self.disk.bytes())?;
        map.serialize_entry("seconds", &seconds)?;
        map.end()
    }
}
