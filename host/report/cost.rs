//! Time and memory of a build.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::outofcore::{OutOfCoreStats, Task};
use crate::{BuildStats, Builder, Device, QueryStats, peak_host_bytes};

/// Time and memory of a build.
#[derive(Clone, Debug, Default, Serialize)]
pub struct BuildCost {
    /// Device, such as `cpu` or `cuda:0`; several are separated by commas.
    pub device: String,
    /// The GPU's product name, such as `NVIDIA H200`.
    pub device_name: Option<String>,
    /// Number of CPU threads.
    pub threads: usize,
    /// All parameters, named as on the command line.
    pub parameters: BTreeMap<String, String>,
    /// The stages, one after another: each second of the build is in one of them.
    pub stages: Vec<StageCost>,
    /// Seconds that launches waited for kernels to compile, included in the stages' times;
    /// unknown out of core.
    pub jit_seconds: Option<f64>,
    /// Peak device memory in bytes.
    pub peak_gpu_bytes: u64,
    /// [`peak_host_bytes`] at the end of the build.
    pub peak_host_bytes: Option<u64>,
    /// Number of clusters, out of core.
    pub clusters: Option<usize>,
    /// What became of the sample of queries, if there is one.
    pub queries: Option<QueryStats>,
    /// Tasks, out of core; not in the JSON.
    #[serde(skip)]
    pub tasks: Vec<Task>,
}

/// Time and memory of a stage.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageCost {
    /// The stage, such as `descent`.
    pub stage: &'static str,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Peak device memory of this stage in bytes; none if it allocated none.
    pub peak_gpu_bytes: Option<u64>,
}

impl StageCost {
    /// A stage that took no device memory.
    pub fn new(stage: &'static str, seconds: f64) -> Self {
        Self { stage, seconds, peak_gpu_bytes: None }
    }

    /// The stage with the peak of its device memory; 0 if it took none.
    fn on_gpu(self, bytes: u64) -> Self {
        Self { peak_gpu_bytes: (bytes > 0).then_some(bytes), ..self }
    }
}

impl BuildCost {
    /// The cost of an in-memory build that has just ended.
    pub fn in_memory(builder: &Builder, stats: &BuildStats) -> Self {
        let BuildStats { knn, descent, prune, grouping, coding, queries, .. } = stats;
        let pruned = prune.seconds - prune.connect - prune.layers;
        Self {
            device: prune.device.clone(),
            device_name: prune.device_name.clone(),
            threads: rayon::current_num_threads(),
            parameters: builder.all_parameters(*knn),
            stages: vec![
                StageCost::new("group", *grouping),
                StageCost::new("codes", *coding),
                StageCost::new("copy", descent.copy + prune.copy),
                StageCost::new("descent", descent.seconds).on_gpu(descent.peak_gpu_bytes),
                StageCost::new("prune", pruned).on_gpu(prune.peak_gpu_bytes),
                StageCost::new("queries", seconds_of(queries)),
                StageCost::new("layers", prune.layers),
                StageCost::new("connect", prune.connect),
            ],
            jit_seconds: Some(descent.jit + prune.jit),
            peak_gpu_bytes: descent.peak_gpu_bytes.max(prune.peak_gpu_bytes),
            peak_host_bytes: peak_host_bytes(),
            clusters: None,
            queries: queries.clone(),
            tasks: Vec::new(),
        }
    }

    /// The cost of an out-of-core build that has just ended.
    pub fn out_of_core(stats: &OutOfCoreStats) -> Self {
        Self {
            device: stats.devices.iter().map(Device::to_string).collect::<Vec<_>>().join(","),
            device_name: None,
            threads: rayon::current_num_threads(),
            parameters: stats.parameters.clone(),
            stages: vec![
                StageCost::new("partition", stats.partition),
                StageCost::new("build", stats.build).on_gpu(stats.peak_gpu_bytes),
                StageCost::new("write", stats.write - stats.layers - seconds_of(&stats.queries)),
                StageCost::new("queries", seconds_of(&stats.queries)),
                StageCost::new("layers", stats.layers),
                StageCost::new("reach", stats.reach),
                StageCost::new("remove", stats.remove),
            ],
            jit_seconds: None,
            peak_gpu_bytes: stats.peak_gpu_bytes,
            peak_host_bytes: peak_host_bytes(),
            clusters: Some(stats.clusters),
            queries: stats.queries.clone(),
            tasks: stats.tasks.clone(),
        }
    }
}

/// Seconds of fitting a graph to queries; 0 without a sample.
fn seconds_of(queries: &Option<QueryStats>) -> f64 {
    queries.as_ref().map_or(0.0, |fitted| fitted.seconds)
}
