//! `tagore plan`

use std::path::PathBuf;

use serde_json::{Map, Value, json};
use tagore::gpu::{DeviceKind, MemoryPlan};
use tagore::outofcore::{ClusterPlan, Limits};
use tagore::{
    BuildPlan, Builder, DataShape, Descent, Device, ElementType, Format, Iterations, PlannedStage, Remedy,
    Start, Strategy, Target,
};

use crate::build::PruneOptions;
use crate::error::{Result, remedy};
use crate::limits::{LimitOptions, buffers, clusters_event, limits_event, say_clusters, say_limits};
use crate::options::{GraphOptions, open};
use crate::output::{Output, grouped};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Data set: fvecs, bvecs, fbin, f16bin, u8bin, i8bin or npy
    #[arg(short, long, value_name = "BASE", required_unless_present = "n")]
    input: Option<PathBuf>,
    /// Format of the data set [default: by its extension]
    #[arg(long, value_name = "FORMAT", requires = "input")]
    format: Option<Format>,
    /// Rows of a data set without a file
    #[arg(long, requires = "dim", conflicts_with = "input")]
    n: Option<usize>,
    /// Components per row
    #[arg(long, requires = "n")]
    dim: Option<usize>,
    /// Type of its components: f32, f16, u8 or i8
    #[arg(long = "type", requires = "n", default_value = "f32", value_name = "TYPE")]
    element: ElementType,
    #[command(flatten)]
    graph: GraphOptions,
    /// Iterations of the two phases of descent: auto, or A,B
    #[arg(long, default_value = "auto", value_name = "A,B")]
    iterations: Iterations,
    /// Start of descent: auto, all-pairs, random or cells
    #[arg(long, default_value = "auto")]
    start: Start,
    /// Kind of index: cagra, nsg, nssg, vamana, dpg, tau-mng or alpha-cng [default: the k-NN graph
    /// alone]
    #[arg(long = "index", value_name = "KIND")]
    strategy: Option<Strategy>,
    #[command(flatten)]
    prune: PruneOptions,
    #[command(flatten)]
    limits: LimitOptions,
    /// Device of the build: auto, cpu, cuda or cuda:N; this machine needs no GPU
    #[arg(long, default_value = "auto")]
    device: Device,
    /// Kind of GPU, absent from this machine: rtx3090, rtx4090, l4, a100 (80 GB) or h200
    #[arg(long, value_name = "KIND", conflicts_with = "device")]
    device_kind: Option<DeviceKind>,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let data = match &self.input {
            Some(path) => DataShape::of(&open(path, self.format)?, output.progress())?,
            None => DataShape::new(self.n.unwrap_or(0), self.dim.unwrap_or(0), self.element)?,
        };
        let descent = self.graph.descent().iterations(self.iterations).start(self.start).device(self.device);
        let limits = self.limits(data.rows)?;
        let mut event = match &self.strategy {
            Some(strategy) => {
                let builder = Builder::new(self.prune.apply(strategy.clone())?).descent(descent);
                self.index(&builder, (&data, &limits), output)?
            }
            None => graph(&descent, &data, output)?,
        };
        say_limits(&limits, output);
        event["event"] = "plan".into();
        event["n"] = data.rows.into();
        event["dim"] = data.dim.into();
        event["type"] = data.element.name().into();
        event["metric"] = self.graph.metric.to_string().into();
        event["limits"] = limits_event(&limits);
        if let Some(kind) = self.device_kind {
            event["device_kind"] = json!({
                "name": kind.to_string(),
                "compute_capability": kind.capability().to_string(),
                "memory": kind.memory(),
                "shared_memory": kind.capability().shared_memory(),
            });
        }
        output.event(&event);
        Ok(())
    }

    /// Limits of the build.
    fn limits(&self, rows: usize) -> Result<Limits> {
        match self.device_kind {
            // A sixteenth stays free, as on an open device.
            Some(kind) => {
                let free = kind.memory() - kind.memory() / 16;
                let limits = self.limits.limits(Device::Cpu, rows)?;
                Ok(Limits { gpu_memory: limits.gpu_memory.or(Some(free)), ..limits })
            }
            // Free memory of an absent GPU is unknown.
            None => Ok(self.limits.limits(self.device, rows).unwrap_or_else(|_| self.limits.given())),
        }
    }

    /// Plans an index.
    fn index(
        &self,
        builder: &Builder,
        (data, limits): (&DataShape, &Limits),
        output: &Output,
    ) -> Result<Value> {
        let Targets { gpu, build } = self.targets(data.rows)?;
        let (on_gpu, on_cpu) = (builder.plan(data, gpu)?, builder.plan(data, Target::cpu())?);
        say_head(data, (on_gpu.k, on_gpu.start, on_gpu.element), output);
        if self.device != Device::Cpu {
            say_build("on a GPU", &on_gpu, data.rows, output);
        }
        if matches!(self.device, Device::Auto | Device::Cpu) && self.device_kind.is_none() {
            say_build("on the CPU", &on_cpu, data.rows, output);
        }
        let clusters = ClusterPlan::on(builder, data, limits, (build, 1))?;
        let changes = match &clusters {
            Some(plan) => {
                say_parts(plan, output);
                Vec::new()
            }
            None => {
                let free = build.free.unwrap_or(u64::MAX);
                let remedies = builder.remedies(data, build, free)?;
                say_remedies(&on_gpu, free, &remedies, output);
                remedies.iter().map(remedy).collect()
            }
        };
        Ok(index_event(builder, (&on_gpu, &on_cpu), clusters.as_ref(), &changes, data.rows))
    }

    /// Targets of plans for `rows` rows.
    fn targets(&self, rows: usize) -> Result<Targets> {
        // Without a GPU its defaults are planned for, unless a build on it was demanded.
        let gpu = match (self.device_kind, self.device) {
            (Some(kind), _) => Ok(Target::kind(kind)),
            (None, Device::Auto | Device::Cpu) => Target::of(Device::Cuda(0), rows),
            (None, device) => Target::of(device, rows),
        };
        let is_present = gpu.is_ok();
        let gpu = gpu.unwrap_or_else(|_| Target::cuda());
        let build = match self.device {
            _ if self.device_kind.is_some() => gpu,
            Device::Cpu => Target::cpu(),
            Device::Auto if !is_present => Target::cpu(),
            Device::Auto => Target::of(Device::Auto, rows)?,
            _ => gpu,
        };
        Ok(Targets { gpu, build })
    }
}

/// The devices of plans.
struct Targets {
    /// The GPU: this machine's, of the given kind, or with default limits.
    gpu: Target,
    /// The device of the build.
    build: Target,
}

/// The plan of an index as JSON.
fn index_event(
    builder: &Builder,
    (on_gpu, on_cpu): (&BuildPlan, &BuildPlan),
    clusters: Option<&ClusterPlan>,
    changes: &[String],
    rows: usize,
) -> Value {
    let peak = on_gpu.largest_on_device();
    let host = on_gpu.largest_on_host().map_or_else(MemoryPlan::new, |stage| stage.buffers.clone());
    json!({
        "index": builder.strategy().kind(), "degree": builder.strategy().max_degree(),
        "device_type": on_gpu.element.name(), "knn": on_gpu.k, "start": start_name(on_gpu.start),
        "stages": stages(&on_gpu.device), "peak_gpu_bytes": on_gpu.peak_device_bytes(),
        "peak_stage": peak.map(|stage| stage.name),
        "bytes_per_vector": on_gpu.peak_device_bytes() as f64 / rows as f64,
        "context_bytes": on_gpu.context, "pool_bytes": on_gpu.pool,
        "device_bytes": on_gpu.device_bytes(), "host": buffers(&on_gpu.process.clone().and(&host)),
        "host_bytes": on_gpu.peak_host_bytes(), "host_stages": stages(&on_gpu.host),
        "disk": buffers(&on_gpu.disk), "disk_bytes": on_gpu.disk.bytes(), "seconds": seconds(on_gpu),
        "cpu": {
            "process": buffers(&on_cpu.process), "host_stages": stages(&on_cpu.host),
            "host_bytes": on_cpu.peak_host_bytes(), "seconds": seconds(on_cpu),
        },
        "changes": changes,
        "out_of_core": clusters.map(clusters_event),
    })
}

/// Prints whether a build in memory fits its device, and remedies if it does not.
fn say_remedies(on_gpu: &BuildPlan, free: u64, remedies: &[Remedy], output: &Output) {
    if remedies.is_empty() {
        return output.say("built in memory");
    }
    let changes: Vec<String> = remedies.iter().map(remedy).collect();
    output.warn(format_args!(
        "needs {} bytes of device memory, free {}: {}",
        grouped(on_gpu.peak_device_bytes()),
        grouped(free),
        changes.join(", or ")
    ));
}

/// Plans a k-NN graph on a GPU.
fn graph(descent: &Descent, data: &DataShape, output: &Output) -> Result<Value> {
    let plan = descent.plan_for(data)?;
    say_head(data, (plan.k, plan.start, plan.element), output);
    say_stages("device", &plan.stages, output);
    say_plan("host, without the data set", &plan.host, output);
    let peak = plan.largest_stage();
    say_peak(peak, data.rows, output);
    Ok(json!({
        "device_type": plan.element.name(), "knn": plan.k, "start": start_name(plan.start),
        "stages": stages(&plan.stages), "peak_gpu_bytes": plan.peak_bytes(),
        "peak_stage": peak.map(|stage| stage.name), "bytes_per_vector": plan.bytes_per_vector(),
        "host": buffers(&plan.host), "host_bytes": plan.host_bytes(),
    }))
}

fn start_name(start: Start) -> String {
    if start == Start::AllPairs { "all pairs".to_owned() } else { start.to_string() }
}

fn stages(stages: &[PlannedStage]) -> Vec<Value> {
    let stage = |PlannedStage { name, buffers: plan }: &PlannedStage| json!({ "name": name, "bytes": plan.bytes(), "buffers": buffers(plan) });
    stages.iter().map(stage).collect()
}

fn seconds(plan: &BuildPlan) -> Map<String, Value> {
    let mut seconds: Map<String, Value> =
        plan.seconds.iter().map(|&(stage, seconds)| (stage.to_owned(), seconds.into())).collect();
    seconds.insert("total".to_owned(), plan.total_seconds().into());
    seconds
}

fn say_head(data: &DataShape, (k, start, element): (usize, Start, ElementType), output: &Output) {
    output.say(format_args!(
        "{} x {} {}, K = {k}; on a GPU start {}, {element}",
        grouped(data.rows),
        data.dim,
        data.element,
        start_name(start),
    ));
}

fn say_build(what: &str, plan: &BuildPlan, rows: usize, output: &Output) {
    output.say("");
    output.say(what);
    say_stages("device", &plan.device, output);
    say_stages("host", &plan.host, output);
    say_plan("host, throughout", &plan.process, output);
    say_plan("disk", &plan.disk, output);
    if !plan.device.is_empty() {
        say_peak(plan.largest_on_device(), rows, output);
        output.say(format_args!(
            "plus {} bytes of the context, {} of the driver's pool",
            grouped(plan.context),
            grouped(plan.pool)
        ));
    }
    let stage = plan.largest_on_host().map_or("no stage", |stage| stage.name);
    output.say(format_args!(
        "peak of host memory: {} bytes without the data set, in {stage}",
        grouped(plan.peak_host_bytes())
    ));
    let seconds: Vec<String> =
        plan.seconds.iter().map(|(stage, seconds)| format!("{stage} {seconds:.2}")).collect();
    output.say(format_args!(
        "about {:.1} s (estimated from measured rates): {}",
        plan.total_seconds(),
        seconds.join(", ")
    ));
}

fn say_parts(plan: &ClusterPlan, output: &Output) {
    output.say("");
    say_clusters(plan, output);
    say_plan("host", &plan.host(), output);
    say_plan("host, at the end", &plan.layers(), output);
    say_plan("disk", &plan.disk(), output);
}

fn say_stages(at: &str, stages: &[PlannedStage], output: &Output) {
    for PlannedStage { name, buffers } in stages {
        say_plan(&format!("{at}: {name}"), buffers, output);
    }
}

fn say_plan(name: &str, plan: &MemoryPlan, output: &Output) {
    output.say(format_args!("{name:<30} {:>20}", grouped(plan.bytes())));
    for &(name, bytes) in plan.buffers() {
        output.say(format_args!("    {name:<26} {:>20}", grouped(bytes)));
    }
}

fn say_peak(stage: Option<&PlannedStage>, rows: usize, output: &Output) {
    let bytes = stage.map_or(0, |stage| stage.buffers.bytes());
    output.say(format_args!(
        "peak of device memory: {} bytes, in {}; {:.0} bytes per vector",
        grouped(bytes),
        stage.map_or("no stage", |stage| stage.name),
        bytes as f64 / rows as f64
    ));
}
