//! `tagore plan`

mod details;
mod machines;
mod summary;

use serde_json::{Value, json};
use tagore::gpu::{DeviceKind, MemoryPlan};
use tagore::outofcore::{ClusterPlan, Limits};
use tagore::{
    BuildPlan, Builder, DataShape, Descent, Device, ElementType, Iterations, Start, Strategy, Target,
};

use self::details::{say_build, say_graph, say_parts, say_remedies, say_stages};
use self::machines::MachineOptions;
use self::summary::{GraphPlan, Summary};
use crate::build::{PruneOptions, default_kind};
use crate::error::{Result, remedy};
use crate::limits::{LimitOptions, clusters_event, limits_event};
use crate::options::{DATA_SET, DataSet, GraphOptions};
use crate::output::Output;
use crate::walked::BuiltOn;

#[derive(clap::Args)]
#[command(mut_arg("positional", |base| base.required_unless_present_any(["base", "n"])))]
#[command(mut_group("LimitOptions", |limits| limits.conflicts_with("knn_graph")))]
#[command(mut_group("PruneOptions", |prune| prune.conflicts_with("knn_graph")))]
pub(crate) struct Args {
    #[command(flatten)]
    data: DataSet,
    /// Rows of a data set without a file
    #[arg(long, requires = "dim", conflicts_with_all = DATA_SET)]
    n: Option<usize>,
    /// Components per row
    #[arg(long, requires = "n")]
    dim: Option<usize>,
    /// Type of its components: f32, f16, bf16, u8, i8 or b1 (bits)
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
    /// Kind of index: cagra, nsg, nssg, vamana, dpg, tau-mng or alpha-cng [default: that of `tagore
    /// build`]
    #[arg(long = "kind", value_name = "KIND")]
    strategy: Option<Strategy>,
    /// Plan the k-NN graph alone, as `tagore knn` makes it
    #[arg(long, conflicts_with_all = ["strategy", "vectors"])]
    knn_graph: bool,
    #[command(flatten)]
    prune: PruneOptions,
    /// What to build on: full, the vectors themselves; their codes in f16 or int8; or auto: int8 if
    /// full exceeds memory and int8 does not
    #[arg(long, default_value_t, value_name = "TYPE")]
    vectors: BuiltOn,
    #[command(flatten)]
    limits: LimitOptions,
    /// Device of the build: auto, cpu, cuda or cuda:N; this machine needs no GPU
    #[arg(long, default_value = "auto")]
    device: Device,
    /// Kind of GPU, absent from this machine: rtx3090, rtx4090, rtx5090, a10, l4, l40s, a100 (80
    /// GB), h100, h100-nvl, h200 or b200
    #[arg(long, value_name = "KIND", conflicts_with = "device")]
    device_kind: Option<DeviceKind>,
    /// GPUs of this kind that build together
    #[arg(
        long, value_name = "N", default_value_t = 1, requires = "device_kind", conflicts_with = "knn_graph",
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    gpus: u32,
    /// Print every buffer of every stage
    #[arg(long)]
    details: bool,
    #[command(flatten)]
    machines: MachineOptions,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let data = match self.n.zip(self.dim) {
            Some((n, dim)) => DataShape::new(n, dim, self.element)?,
            None => DataShape::inspect(&self.data.open()?, output.progress())?,
        };
        let descent = self.graph.descent(data.element)?;
        let descent = descent.iterations(self.iterations).start(self.start).device(self.device);
        let limits = self.limits(data.rows)?;
        let mut event = if self.knn_graph {
            self.graph(&descent, &data, &limits, output)?
        } else {
            self.index(&descent, &data, &limits, output)?
        };
        event["event"] = "plan".into();
        event["n"] = data.rows.into();
        event["dim"] = data.dim.into();
        event["type"] = data.element.name().into();
        event["metric"] = self.graph.metric(data.element)?.name_for(data.element).into();
        event["limits"] = limits_event(&limits);
        if let Some(kind) = self.device_kind {
            event["device_kind"] = json!({
                "name": kind.to_string(),
                "compute_capability": kind.capability().to_string(),
                "memory": kind.memory(),
                "shared_memory": kind.capability().shared_memory(),
                "gpus": self.gpus,
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
    fn index(&self, descent: &Descent, data: &DataShape, limits: &Limits, output: &Output) -> Result<Value> {
        let targets = self.targets(data.rows)?;
        let Targets { gpu, build, .. } = targets;
        let gpus = self.gpus as usize;
        let fit = |strategy: &Strategy| -> Result<(Builder, Option<ClusterPlan>)> {
            let builder = self.prune.builder(strategy)?.descent(descent.clone());
            let mut builder = builder.compressed(self.vectors.compression());
            if gpus > 1 {
                builder = builder.devices(&(0..self.gpus).map(Device::Cuda).collect::<Vec<_>>());
            }
            Ok(match self.vectors {
                BuiltOn::Auto => builder.fit_on(data, limits, build, gpus)?,
                BuiltOn::Named(_) => {
                    let clusters = ClusterPlan::on(&builder, data, limits, build, gpus)?;
                    (builder, clusters)
                }
            })
        };
        let (builder, clusters) = match &self.strategy {
            Some(strategy) => fit(strategy)?,
            None => match fit(&Strategy::nssg()) {
                Ok(in_memory @ (_, None)) => {
                    default_kind(true, output);
                    in_memory
                }
                _ => fit(&default_kind(false, output))?,
            },
        };
        let builder = &builder;
        let (on_gpu, on_cpu) = (builder.plan(data, gpu)?, builder.plan(data, Target::cpu())?);
        let free = build.free.unwrap_or(u64::MAX);
        let remedies = match &clusters {
            Some(_) => Vec::new(),
            None => builder.remedies(data, build, free)?,
        };
        let plan = if build.gpu.is_some() { &on_gpu } else { &on_cpu };
        let summary = match &clusters {
            Some(clusters) => {
                let seconds = clusters.seconds(builder, data, build);
                Summary::of_clusters(builder, data, clusters, plan.k, &seconds)
            }
            None => Summary::of_index(builder, data, plan),
        };
        let summary = summary.on_gpus(gpus, clusters.is_some() || builder.shares(data)?);
        summary.say(limits, output);
        if !remedies.is_empty() {
            say_remedies(&on_gpu, free, &remedies, output);
        }
        if self.details {
            if targets.shows_gpu {
                say_build("on a GPU", &on_gpu, data.rows, output);
            }
            if targets.shows_cpu {
                say_build("on the CPU", &on_cpu, data.rows, output);
            }
            clusters.iter().for_each(|plan| say_parts(plan, output));
        }
        let tasks = self.machines.plan(builder, data, clusters.as_ref(), build, output)?;
        let changes: Vec<String> = remedies.iter().map(remedy).collect();
        let mut event = index_event(builder, &on_gpu, &on_cpu, clusters.as_ref(), &changes, data.rows);
        event["tasks"] = tasks;
        Ok(event)
    }

    /// Plans a k-NN graph.
    fn graph(&self, descent: &Descent, data: &DataShape, limits: &Limits, output: &Output) -> Result<Value> {
        let targets = self.targets(data.rows)?;
        let plan = descent.plan_for(data)?;
        // Any kind of index has the graph's stages first; that of nsg takes lists of any length.
        let builder = Builder::new(Strategy::nsg()).descent(descent.clone());
        let on_cpu = GraphPlan::new(builder.plan(data, Target::cpu())?);
        let summary = if targets.build.gpu.is_some() {
            let GraphPlan { seconds, .. } = GraphPlan::new(builder.plan(data, targets.gpu)?);
            Summary::of_graph_on_gpu(data, &plan, seconds)
        } else {
            Summary::of_graph_on_cpu(data, &on_cpu)
        };
        summary.say(limits, output);
        if self.details {
            if targets.shows_gpu {
                say_graph(&plan, data.rows, output);
            }
            if targets.shows_cpu {
                say_stages("host", &on_cpu.host, output);
            }
        }
        Ok(json!({
            "device_type": plan.element.name(), "knn": plan.k, "start": plan.start.to_string(),
            "stages": plan.stages, "peak_gpu_bytes": plan.peak_bytes(),
            "peak_stage": plan.largest_stage().map(|stage| stage.name), "bytes_per_vector": plan.bytes_per_vector(),
            "host": plan.host, "host_bytes": plan.host_bytes(),
            "cpu": { "host_stages": on_cpu.host, "host_bytes": on_cpu.host_bytes },
        }))
    }

    /// Targets of plans for `rows` rows.
    fn targets(&self, rows: usize) -> Result<Targets> {
        // Without a GPU its defaults are planned for, unless a build on it was demanded.
        let gpu = match (self.device_kind, self.device) {
            (Some(kind), _) => Ok(Target::kind(kind)),
            (None, Device::Auto | Device::Cpu) => Target::open(Device::Cuda(0), rows),
            (None, device) => Target::open(device, rows),
        };
        let is_present = gpu.is_ok();
        let gpu = gpu.unwrap_or_else(|_| Target::cuda());
        let build = match self.device {
            _ if self.device_kind.is_some() => gpu,
            Device::Cpu => Target::cpu(),
            Device::Auto if !is_present => Target::cpu(),
            Device::Auto => Target::open(Device::Auto, rows)?,
            _ => gpu,
        };
        let is_demanded = self.device_kind.is_some() || !matches!(self.device, Device::Auto | Device::Cpu);
        let shows_gpu = is_demanded || (is_present && self.device == Device::Auto);
        Ok(Targets { gpu, build, shows_gpu, shows_cpu: !is_demanded })
    }
}

/// The devices of plans.
struct Targets {
    /// The GPU: this machine's, of the given kind, or with default limits.
    gpu: Target,
    /// The device of the build.
    build: Target,
    /// Whether details are those of a GPU: one is present, or was asked for.
    shows_gpu: bool,
    shows_cpu: bool,
}

/// The plan of an index as JSON.
fn index_event(
    builder: &Builder,
    on_gpu: &BuildPlan,
    on_cpu: &BuildPlan,
    clusters: Option<&ClusterPlan>,
    changes: &[String],
    rows: usize,
) -> Value {
    let host = on_gpu.largest_on_host().map_or_else(MemoryPlan::new, |stage| stage.buffers.clone());
    let mut event = json!(on_gpu);
    event["index"] = builder.strategy().kind().into();
    event["degree"] = builder.strategy().max_degree().into();
    event["bytes_per_vector"] = (on_gpu.peak_device_bytes() as f64 / rows as f64).into();
    event["host"] = json!(on_gpu.process.clone().and(&host));
    event["cpu"] = json!(on_cpu);
    event["changes"] = changes.into();
    event["out_of_core"] = json!(clusters.map(clusters_event));
    event
}
