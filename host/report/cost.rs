//! Time and memory of a build.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::outofcore::{OutOfCoreStats, Task};
use crate::{BuildStats, Builder, Device, peak_host_bytes};

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
    /// The stages in order.
    pub stages: Vec<StageCost>,
    /// Seconds that launches waited for kernels to compile, included in the stages' times;
    /// unknown out of core.
    pub jit_seconds: Option<f64>,
    /// Peak device memory in bytes.
    pub peak_gpu_bytes: u64,
    /// Number of clusters, out of core.
    pub clusters: Option<usize>,
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
    /// [`peak_host_bytes`] at the end of the stage: the peak since the process started.
    pub peak_host_bytes: Option<u64>,
}

impl StageCost {
    /// A host stage that has just ended.
    pub fn ended(stage: &'static str, seconds: f64) -> Self {
        Self { stage, seconds, peak_gpu_bytes: None, peak_host_bytes: peak_host_bytes() }
    }
}

impl BuildCost {
    /// The cost of an in-memory build.
    pub fn in_memory(builder: &Builder, stats: &BuildStats) -> Self {
        let BuildStats { knn, descent, prune, .. } = stats;
        let stage = |stage, seconds, gpu: u64, host| StageCost {
            stage,
            seconds,
            peak_gpu_bytes: (gpu > 0).then_some(gpu),
            peak_host_bytes: host,
        };
        let copy = descent.copy + prune.copy;
        let connect = stage("connect", prune.connect, 0, prune.peak_host_bytes);
        let (gpu, host) = (descent.peak_gpu_bytes, descent.peak_host_bytes);
        let descended = stage("descent", descent.seconds, gpu, host);
        let pruned =
            stage("prune", prune.seconds - prune.connect, prune.peak_gpu_bytes, prune.peak_host_bytes);
        let mut stages = vec![descended, pruned, connect];
        if copy > 0.0 {
            stages.push(stage("copies", copy, 0, prune.peak_host_bytes));
        }
        Self {
            device: prune.device.clone(),
            device_name: prune.device_name.clone(),
            threads: rayon::current_num_threads(),
            parameters: builder.all_parameters(*knn),
            stages,
            jit_seconds: Some(descent.jit + prune.jit),
            peak_gpu_bytes: descent.peak_gpu_bytes.max(prune.peak_gpu_bytes),
            clusters: None,
            tasks: Vec::new(),
        }
    }

    /// The cost of an out-of-core build.
    pub fn out_of_core(stats: &OutOfCoreStats) -> Self {
        let stage =
            |stage, seconds| StageCost { stage, seconds, peak_gpu_bytes: None, peak_host_bytes: None };
        let gpu = (stats.peak_gpu_bytes > 0).then_some(stats.peak_gpu_bytes);
        Self {
            device: stats.devices.iter().map(Device::to_string).collect::<Vec<_>>().join(","),
            device_name: None,
            threads: rayon::current_num_threads(),
            parameters: stats.parameters.clone(),
            stages: vec![
                stage("partition", stats.partition),
                StageCost { peak_gpu_bytes: gpu, ..stage("build", stats.build) },
                stage("write", stats.write),
                stage("reach", stats.reach),
                StageCost::ended("remove", stats.remove),
            ],
            jit_seconds: None,
            peak_gpu_bytes: stats.peak_gpu_bytes,
            clusters: Some(stats.clusters),
            tasks: stats.tasks.clone(),
        }
    }
}
