//! The summary of a plan: five lines.

use tagore::gpu::PlannedStage;
use tagore::outofcore::{ClusterPlan, Limits};
use tagore::{BuildPlan, Builder, DataShape, DevicePlan};

use crate::output::{Output, grouped, sized};

/// A plan in five lines.
pub(super) struct Summary {
    /// The result, its data and its parameters.
    what: String,
    /// Where and how it is built.
    how: String,
    seconds: Vec<(&'static str, f64)>,
    host_bytes: u64,
    /// Bytes of device memory; 0 on the CPU.
    device_bytes: u64,
    disk_bytes: u64,
    /// Bytes of disk out of core, if clusters read their vectors from the data set.
    disk_reading_base: Option<u64>,
}

/// The part of a plan on the CPU that builds the k-NN graph.
pub(super) struct GraphPlan {
    pub k: usize,
    pub host: Vec<PlannedStage>,
    pub host_bytes: u64,
    pub seconds: Vec<(&'static str, f64)>,
}

impl GraphPlan {
    pub(super) fn new(plan: BuildPlan) -> Self {
        // Pruning begins with its filter.
        let host: Vec<_> = plan.host.into_iter().take_while(|stage| stage.name != "filter").collect();
        let most = host.iter().map(|stage| stage.buffers.bytes()).max().unwrap_or(0);
        let is_pruning = |name: &str| ["prune", "reach", "write"].contains(&name);
        let seconds = plan.seconds.into_iter().filter(|stage| !is_pruning(stage.0)).collect();
        Self { k: plan.k, host, host_bytes: plan.process.bytes() + most, seconds }
    }
}

impl Summary {
    /// An index built in memory.
    pub(super) fn of_index(builder: &Builder, data: &DataShape, plan: &BuildPlan) -> Self {
        let is_on_gpu = !plan.device.is_empty();
        let codes = builder.compression().map_or_else(String::new, |codes| format!(", on codes in {codes}"));
        Self {
            what: index(builder, data, plan.k),
            how: format!("in memory, on {}{codes}", if is_on_gpu { "a GPU" } else { "the CPU" }),
            seconds: plan.seconds.clone(),
            host_bytes: plan.peak_host_bytes(),
            device_bytes: if is_on_gpu { plan.device_bytes() } else { 0 },
            disk_bytes: plan.disk.bytes(),
            disk_reading_base: None,
        }
    }

    /// An index built out of core.
    pub(super) fn of_clusters(
        builder: &Builder,
        data: &DataShape,
        plan: &ClusterPlan,
        k: usize,
        seconds: &[(&'static str, f64)],
    ) -> Self {
        let size = grouped(plan.cluster_size as u64);
        Self {
            what: index(builder, data, k),
            how: format!("out of core, in {} clusters of at most {size} vectors", plan.clusters),
            seconds: seconds.to_vec(),
            host_bytes: plan.host_bytes,
            device_bytes: plan.device_bytes,
            disk_bytes: plan.disk_bytes,
            disk_reading_base: Some(plan.reading_base(true).disk_bytes),
        }
    }

    /// A k-NN graph on a GPU.
    pub(super) fn of_graph_on_gpu(
        data: &DataShape,
        plan: &DevicePlan,
        seconds: Vec<(&'static str, f64)>,
    ) -> Self {
        Self {
            what: format!("k-NN graph of {}, K = {}", shape(data), plan.k),
            how: "in memory, on a GPU".to_owned(),
            seconds,
            host_bytes: plan.host_bytes(),
            device_bytes: plan.peak_bytes(),
            disk_bytes: graph_bytes(data, plan.k),
            disk_reading_base: None,
        }
    }

    /// A k-NN graph on the CPU.
    pub(super) fn of_graph_on_cpu(data: &DataShape, plan: &GraphPlan) -> Self {
        Self {
            what: format!("k-NN graph of {}, K = {}", shape(data), plan.k),
            how: "in memory, on the CPU".to_owned(),
            seconds: plan.seconds.clone(),
            host_bytes: plan.host_bytes,
            device_bytes: 0,
            disk_bytes: graph_bytes(data, plan.k),
            disk_reading_base: None,
        }
    }

    /// This plan on a machine with `gpus` GPUs, which may share the build.
    pub(super) fn on_gpus(mut self, gpus: usize, share: bool) -> Self {
        if gpus > 1 {
            self.how += &match share {
                true => format!("; {gpus} GPUs share it, each with the memory below"),
                false => format!("; one of {gpus} GPUs builds it alone"),
            };
        }
        self
    }

    /// Prints the five lines.
    pub(super) fn say(&self, limits: &Limits, output: &Output) {
        let total = self.seconds.iter().fold(0.0, |sum, stage| sum + stage.1);
        // Stages of less than a hundredth of the time say nothing.
        let long = self.seconds.iter().filter(|stage| stage.1 >= total / 100.0);
        let stages: Vec<String> =
            long.map(|(stage, seconds)| format!("{stage} {}", rough(*seconds))).collect();
        let of = |bytes: u64, limit: Option<u64>| match limit {
            Some(limit) => format!("{} of {}", sized(bytes), sized(limit)),
            None => sized(bytes),
        };
        let on_device = match self.device_bytes {
            0 => String::new(),
            bytes => format!(", GPU {}", of(bytes, limits.gpu_memory)),
        };
        output.result(&self.what);
        output.result(format_args!("build     {}", self.how));
        output.result(format_args!(
            "time      about {}, by rates of other machines: {}",
            rough(total),
            stages.join(", ")
        ));
        output.result(format_args!(
            "memory    {}{on_device}, without the mapped data set",
            of(self.host_bytes, limits.host_memory)
        ));
        let smaller = self.disk_reading_base.map_or_else(String::new, |bytes| {
            format!(", or {} if the data set fits free memory beside the build", sized(bytes))
        });
        output.result(format_args!("disk      {}{smaller}", sized(self.disk_bytes)));
    }
}

/// The index, its data and its main parameters.
fn index(builder: &Builder, data: &DataShape, k: usize) -> String {
    let strategy = builder.strategy();
    format!("{} of {}, K = {k}, degree {}", strategy.kind(), shape(data), strategy.max_degree())
}

fn shape(data: &DataShape) -> String {
    format!("{} x {} {}", grouped(data.rows as u64), data.dim, data.element)
}

/// Bytes of the file of a graph: an id and a distance per neighbour.
fn graph_bytes(data: &DataShape, k: usize) -> u64 {
    8 + 8 * (data.rows * k) as u64
}

/// Seconds as people say them.
pub(super) fn rough(seconds: f64) -> String {
    match seconds {
        ..0.1 => format!("{seconds:.2} s"),
        ..100.0 => format!("{seconds:.1} s"),
        ..6000.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}
