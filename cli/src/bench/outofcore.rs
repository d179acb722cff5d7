//! `tagore bench outofcore`

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tagore::outofcore::{ClusterPlan, OutOfCore, OutOfCoreStats, TaskKind};
use tagore::{Builder, Evaluation, Strategy, Vectors, peak_host_bytes};

use super::disk::Disk;
use super::judge::{Judge, JudgeOptions};
use super::stages::Stages;
use crate::build::PruneOptions;
use crate::draw::timeline_plot;
use crate::error::{Error, Result};
use crate::files::{Files, Kind};
use crate::limits::{LimitOptions, cluster_lines, clusters_event};
use crate::options::{DescentOptions, Input, open_index};
use crate::output::{Output, grouped};
use crate::tasks::task_event;

/// Maximum bytes of a file that measures the disk.
const LARGEST_FILE: u64 = 4 << 30;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// Kind of index: cagra, nsg, nssg, vamana, dpg, tau-mng or alpha-cng
    #[arg(long = "kind", value_name = "KIND", default_value = "vamana")]
    strategy: Strategy,
    #[command(flatten)]
    descent: DescentOptions,
    #[command(flatten)]
    prune: PruneOptions,
    #[command(flatten)]
    limits: LimitOptions,
    /// Minimum time between two checkpoints
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    checkpoint: u64,
    /// Print bytes and rates of each stage, beside those of writing and reading files in the folder
    #[arg(long)]
    stages: bool,
    #[command(flatten)]
    judge: JudgeOptions,
    /// Folder of work files and indexes during the bench
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Timeline of the build as SVG
    #[arg(long, value_name = "SVG")]
    plot: Option<PathBuf>,
    /// Copy of the JSON lines
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let files = Files::read([self.input.path()]).and_read(self.judge.files());
        files.write(Kind::Plot, &self.plot).write(Kind::Lines, &self.output).check(output)?;
        let base = Arc::new(self.input.open()?);
        let judge = self.judge.open(output.progress())?;
        let builder = self.prune.builder(&self.strategy)?;
        let descent = self.descent.descent(base.element_type(), output)?;
        let builder = builder.descent(descent).devices(&self.descent.device.0);
        let plan = self.limits.plan(&builder, &base)?.ok_or_else(|| {
            Error::usage("the data set fits in memory: lower --host-memory, --gpu-memory or --cluster-size")
        })?;
        let missing = |source| tagore::Error::Io { path: self.folder.clone(), source };
        std::fs::read_dir(&self.folder).map_err(missing)?;
        let folder = tempfile::Builder::new()
            .prefix(".tagore-")
            .tempdir_in(&self.folder)
            .map_err(|source| tagore::Error::Io { path: self.folder.clone(), source })?;
        cluster_lines(&plan, false).into_iter().for_each(|line| output.result(line));
        let bench = Bench {
            args: &self,
            base: &base,
            judge,
            builder,
            plan,
            path: folder.path().join("index.tagore"),
        };
        let event = bench.run(output)?;
        self.output.as_deref().map_or(Ok(()), |path| output.write_events(path, &[event]))
    }
}

/// The build of a bench.
struct Bench<'a> {
    args: &'a Args,
    base: &'a Arc<Vectors>,
    judge: Option<Judge<'a>>,
    builder: Builder,
    plan: ClusterPlan,
    /// File of the index.
    path: PathBuf,
}

impl Bench<'_> {
    /// Builds and measures the index. Returns the JSON line.
    fn run(&self, output: &Output) -> Result<Value> {
        let Self { args, base, .. } = self;
        let every = Duration::from_secs(args.checkpoint);
        let build = OutOfCore::new(self.builder.clone(), self.plan).checkpoint(every);
        let began = Instant::now();
        let stats = build.build(base, &self.path)?;
        let total = began.elapsed().as_secs_f64();
        let summary = Summary::new(&stats, base.len());
        summary.say(&stats, total, output);
        let stages = if args.stages { Some(self.stages(&stats, output)?) } else { None };
        let quality = self.judge(output)?;
        stats.tasks.iter().for_each(|task| output.event(&task_event(task)));
        let mut event = summary.event(base, &stats, total);
        event["plan"] = clusters_event(&self.plan);
        event["stages"] = stages.into();
        event["quality"] = quality.iter().map(quality_event).collect();
        output.event(&event);
        if let Some(path) = &args.plot {
            let (rows, dim, device) = (grouped(base.len()), base.dim(), &args.descent.device);
            let title = format!("{rows} x {dim} on {device}, {} clusters", stats.clusters);
            timeline_plot(path, &title, &stats.tasks)?;
        }
        Ok(event)
    }

    /// Prints the stages of a build beside the rates of the disk. Returns both as JSON.
    fn stages(&self, stats: &OutOfCoreStats, output: &Output) -> Result<Value> {
        let io = |source| tagore::Error::Io { path: self.path.clone(), source };
        let index = std::fs::metadata(&self.path).map_err(io)?.len();
        let base = (self.base.len() * self.base.element_type().row_bytes(self.base.dim())) as u64;
        let stages = Stages::new(stats, base, index);
        stages.say(output);
        let folder = self.path.parent().unwrap_or(&self.args.folder);
        let disk = Disk::measure(folder, stats.cluster_bytes.min(LARGEST_FILE)).map_err(io)?;
        disk.say(output);
        Ok(json!({ "build": stages.event(), "disk": disk.event() }))
    }

    /// Searches the index with the queries, if given.
    fn judge(&self, output: &Output) -> Result<Vec<Evaluation>> {
        let index = open_index(&self.path)?;
        let Some(judge) = &self.judge else { return Ok(Vec::new()) };
        let quality = judge.evaluate(index, self.base, self.args.descent.device.first(), output)?;
        for Evaluation { beam, k, recall, distances, .. } in &quality {
            output.result(format_args!(
                "beam {beam:>5}  recall@{k} {recall:.4}  {} distances",
                grouped(distances.round())
            ));
        }
        Ok(quality)
    }
}

fn quality_event(Evaluation { beam, recall, distances, qps, .. }: &Evaluation) -> Value {
    json!({ "beam": beam, "recall": recall, "distances": distances, "qps": qps })
}

/// Sums over the tasks of a build.
struct Summary {
    /// Seconds from the first cluster read to the index written, and the part of them up to the
    /// last merge.
    end_to_end: f64,
    local: f64,
    /// Nodes per second of `end_to_end`.
    rate: f64,
    /// Share of `local` with running kernels, per GPU.
    busy: Vec<f64>,
}

impl Summary {
    fn new(stats: &OutOfCoreStats, nodes: usize) -> Self {
        let of = |kind| stats.tasks.iter().filter(move |task| task.kind == kind);
        let first = of(TaskKind::Read).map(|task| task.begin).fold(f64::INFINITY, f64::min);
        let last = |kind| of(kind).map(|task| task.end).fold(0.0, f64::max);
        let (local, end_to_end) = (last(TaskKind::Merge) - first, last(TaskKind::Write) - first);
        Self {
            end_to_end,
            local,
            rate: nodes as f64 / end_to_end,
            busy: stats.busy.iter().map(|seconds| seconds / local).collect(),
        }
    }

    fn say(&self, stats: &OutOfCoreStats, total: f64, output: &Output) {
        let Self { end_to_end, local, rate, busy } = self;
        output.result(format_args!(
            "{total:.2} s: partition {:.2}, clusters to index {end_to_end:.2} ({} vectors per second), including local \
             building {local:.2}; hit ratio {:.4}, {} MiB spilled, {} nodes cannot be reached",
            stats.partition,
            grouped(rate.round()),
            stats.cache.hit_ratio(),
            grouped(stats.spilled_bytes >> 20),
            grouped(stats.unreachable)
        ));
        for kind in TaskKind::ALL {
            let (seconds, bytes) = stats.seconds(kind);
            if seconds > 0.0 {
                let rate = if bytes > 0 {
                    format!("{:>8.2} GB/s", bytes as f64 / seconds / 1e9)
                } else {
                    String::new()
                };
                let line = format!("    {:<10} {seconds:>9.2} s {rate}", kind.name());
                output.result(line.trim_end());
            }
        }
        for (gpu, share) in busy.iter().enumerate() {
            output.result(format_args!(
                "    kernels ran {:.1} % of local building on GPU {gpu}",
                100.0 * share
            ));
        }
    }

    fn event(&self, base: &Vectors, stats: &OutOfCoreStats, total: f64) -> Value {
        let tasks: serde_json::Map<String, Value> = TaskKind::ALL
            .into_iter()
            .map(|kind| {
                let (seconds, bytes) = stats.seconds(kind);
                (kind.name().to_owned(), json!({ "seconds": seconds, "bytes": bytes }))
            })
            .collect();
        json!({
            "event": "bench outofcore", "n": base.len(), "dim": base.dim(), "type": base.element_type().name(),
            "clusters": stats.clusters, "cluster_bytes": stats.cluster_bytes,
            "spilled_bytes": stats.spilled_bytes, "hit_ratio": stats.cache.hit_ratio(),
            "unreachable": stats.unreachable, "peak_gpu_bytes": stats.peak_gpu_bytes,
            "peak_host_bytes": peak_host_bytes(), "tasks": tasks, "gpu_busy": self.busy,
            "vectors_per_second": self.rate,
            "seconds": {
                "partition": stats.partition, "local": self.local, "end_to_end": self.end_to_end,
                "write": stats.write, "total": total,
            },
        })
    }
}
