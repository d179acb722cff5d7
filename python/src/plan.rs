//! Plans of memory, disk and time.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Map, Value, json};
use tagore::gpu::DeviceKind;
use tagore::outofcore::{ClusterPlan, Limits};
use tagore::{DataShape, Device, ElementType, Metric, Target};

use crate::array::Bytes;
use crate::errors::{self, Names};
use crate::options::Options;

/// The plan of a build of `n` rows of `dim` values, as JSON.
#[pyfunction]
pub(crate) fn plan(
    py: Python<'_>,
    n: usize,
    dim: usize,
    dtype: &str,
    options: &Bound<'_, PyDict>,
) -> PyResult<String> {
    let options = Options(options);
    let device = options.device()?;
    let kind: Option<DeviceKind> = options.named("device_kind")?;
    let builder = options.builder(&[device])?;
    let (given, bytes) = (options.limits()?, options.bytes()?);
    let names = Names { vectors: "x", renamed: &[("rows", "n")] };
    let planned = || {
        let element = dtype.parse::<ElementType>()?;
        if bytes == Bytes::Bits {
            Metric::named("hamming", element)?;
        }
        let data = DataShape::new(n, dim, element)?;
        let (target, limits) = match kind {
            Some(kind) => {
                // A sixteenth stays free, as on an open device.
                let gpu_memory = Some(kind.memory() - kind.memory() / 16);
                let host = Limits::available(Device::Cpu, n)?;
                (Target::kind(kind), given.or(Limits { gpu_memory, ..host }))
            }
            None => (Target::open(device, n)?, given.or(Limits::available(device, n)?)),
        };
        let plan = builder.plan(&data, target)?;
        let clusters = ClusterPlan::on(&builder, &data, &limits, target, 1)?;
        let remedies = match (&clusters, target.free) {
            (None, Some(free)) => builder.remedies(&data, target, free)?,
            _ => Vec::new(),
        };
        let remedies: Vec<String> = remedies.iter().map(errors::remedy).collect();
        let mut planned = json!(plan);
        planned["on_gpu"] = target.gpu.is_some().into();
        planned["remedies"] = remedies.into();
        planned["out_of_core"] = clusters.map_or(Value::Null, |clusters| {
            let seconds: Map<String, Value> = clusters
                .seconds(&builder, &data, target)
                .iter()
                .map(|&(stage, seconds)| (stage.to_owned(), seconds.into()))
                .collect();
            json!({
                "clusters": clusters.clusters, "cluster_size": clusters.cluster_size,
                "host_bytes": clusters.host_bytes, "device_bytes": clusters.device_bytes,
                "disk_bytes": clusters.disk_bytes,
                "disk_bytes_reading_base": clusters.reading_base(true).disk_bytes, "seconds": seconds,
            })
        });
        Ok(planned.to_string())
    };
    planned().map_err(|error| errors::exception(py, error, &names))
}
