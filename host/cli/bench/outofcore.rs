//! `tagore bench outofcore`

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tagore::outofcore::{Order, OutOfCore, OutOfCoreStats, TaskKind};
use tagore::{Builder, Error, Evaluation, Index, Result, Strategy, Vectors, peak_host_bytes, timeline_plot};

use super::super::build::PruneOptions;
use super::super::files::Files;
use super::super::limits::{LimitOptions, clusters_event, say_clusters};
use super::super::options::{DescentOptions, Input};
use super::super::output::{Output, grouped, save_events};
use super::super::tasks::task_event;
use super::judge::JudgeOptions;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// The kind: cagra, nsg, nssg, vamana, dpg, tau-mng or alpha-cng
    #[arg(long = "index", value_name = "KIND")]
    strategy: Strategy,
    #[command(flatten)]
    descent: DescentOptions,
    #[command(flatten)]
    prune: PruneOptions,
    #[command(flatten)]
    limits: LimitOptions,
    /// Orders in which clusters are built: sequential, random, gorder, cluster
    #[arg(long, value_delimiter = ',', default_value = "cluster", value_name = "ORDER,..")]
    orders: Vec<Order>,
    /// The least time between two checkpoints
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    checkpoint: u64,
    #[command(flatten)]
    judge: JudgeOptions,
    /// The folder that work files and indexes are in while it runs
    #[arg(long, value_name = "DIR", default_value = ".")]
    folder: PathBuf,
    /// Where the timeline of the last build goes, as SVG
    #[arg(long, value_name = "SVG")]
    plot: Option<PathBuf>,
    /// Where the JSON lines go as well
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let files = Files::read([&self.input.input]).and_read(self.judge.files());
        files.write(&self.plot).write(&self.output).check()?;
        let base = self.input.open()?;
        let judge = self.judge.open(output.progress())?;
        let strategy = self.prune.apply(self.strategy.clone())?;
        let builder =
            Builder::new(strategy).descent(self.descent.descent(output)).devices(&self.descent.device.0);
        let plan = self.limits.plan(&builder, &base, self.descent.device.first())?.ok_or_else(|| {
            let found = "a data set that fits in memory".to_owned();
            let expected = "--host-memory, --gpu-memory or --cluster-size that it does not fit".to_owned();
            Error::Argument { what: "limits", found, expected }
        })?;
        say_clusters(&plan, output);
        let folder = tempfile::Builder::new()
            .prefix(".tagore-")
            .tempdir_in(&self.folder)
            .map_err(|source| Error::Io { path: self.folder.clone(), source })?;
        let path = folder.path().join("index.tagore");
        let mut events = Vec::new();
        for &order in &self.orders {
            let every = Duration::from_secs(self.checkpoint);
            let build = OutOfCore::new(builder.clone(), plan).order(order).checkpoint(every);
            let began = Instant::now();
            let stats = build.build(&base, &path)?;
            let total = began.elapsed().as_secs_f64();
            let found = Summary::new(&stats, base.len());
            found.say(order, &stats, total, output);
            let index = Index::open(&path)?;
            let quality = match &judge {
                Some(judge) => judge.evaluate(&index, &base, self.descent.device.first(), output)?,
                None => Vec::new(),
            };
            for Evaluation { beam, recall, distances, .. } in &quality {
                output.say(format_args!(
                    "beam {beam:>5}  recall@{} {recall:.4}  {distances:.0} distances",
                    self.judge.k
                ));
            }
            stats.tasks.iter().for_each(|task| output.event(&task_event(task)));
            let mut event = found.event(&base, order, &stats, total);
            event["plan"] = clusters_event(&plan);
            event["quality"] = quality.iter().map(quality_event).collect();
            output.event(&event);
            events.push(event);
            if let Some(path) = &self.plot {
                let title = format!(
                    "{} x {} on {}, {} clusters, {order} order",
                    grouped(base.len() as u64),
                    base.dim(),
                    self.descent.device,
                    stats.clusters
                );
                timeline_plot(path, &title, &stats.tasks)?;
            }
        }
        self.output.as_deref().map_or(Ok(()), |path| save_events(path, &events))
    }
}

fn quality_event(Evaluation { beam, recall, distances, qps, .. }: &Evaluation) -> Value {
    json!({ "beam": beam, "recall": recall, "distances": distances, "qps": qps })
}

/// What the tasks of a build add up to.
struct Summary {
    /// Seconds from the first cluster read to the index written, and of these, up to the last one built and merged.
    end_to_end: f64,
    local: f64,
    /// Nodes per second of `end_to_end`.
    rate: f64,
    /// Shares of `local` in which kernels ran, of each GPU.
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

    fn say(&self, order: Order, stats: &OutOfCoreStats, total: f64, output: &Output) {
        let Self { end_to_end, local, rate, busy } = self;
        output.say(format_args!(
            "{order}: {total:.2} s in all: partition {:.2}, clusters to index {end_to_end:.2} ({} vectors a second), of which local \
             building {local:.2}; hit ratio {:.4}, {} MiB spilled, {} nodes cannot be reached",
            stats.partition,
            grouped(*rate as u64),
            stats.cache.hit_ratio(),
            grouped(stats.spilled_bytes >> 20),
            stats.unreachable
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
                output.say(line.trim_end());
            }
        }
        for (gpu, share) in busy.iter().enumerate() {
            output.say(format_args!("    kernels ran {:.1} % of local building on GPU {gpu}", 100.0 * share));
        }
    }

    fn event(&self, base: &Vectors, order: Order, stats: &OutOfCoreStats, total: f64) -> Value {
        let tasks: serde_json::Map<String, Value> = TaskKind::ALL
            .into_iter()
            .map(|kind| {
                let (seconds, bytes) = stats.seconds(kind);
                (kind.name().to_owned(), json!({ "seconds": seconds, "bytes": bytes }))
            })
            .collect();
        json!({
            "event": "bench outofcore", "n": base.len(), "dim": base.dim(), "type": base.element_type().name(),
            "order": order.to_string(), "clusters": stats.clusters, "cluster_bytes": stats.cluster_bytes,
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
