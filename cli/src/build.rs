//! `tagore build`

use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tagore::outofcore::{ClusterPlan, Order, OutOfCore};
use tagore::{
    BuildCost, Builder, Collect, Device, Error, Filter, Index, KnnGraph, KnnSample, Measure, Metric, Report,
    Result, StageCost, Strategy, Vectors, peak_host_bytes, with_suffix,
};

use super::files::Files;
use super::limits::{LimitOptions, clusters_event, say_clusters};
use super::options::{DescentOptions, Input, Seconds, built, say_kernels};
use super::output::{Output, grouped};
use super::report::ReportOptions;
use super::tasks::task_event;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// Where the index goes
    #[arg(short, long, value_name = "INDEX")]
    output: PathBuf,
    /// The kind: cagra, nsg, nssg, vamana, dpg, tau-mng or alpha-cng
    #[arg(long = "index", value_name = "KIND")]
    strategy: Strategy,
    #[command(flatten)]
    descent: DescentOptions,
    #[command(flatten)]
    prune: PruneOptions,
    /// Prune this k-NN graph, written by `tagore knn`, instead of building one
    #[arg(long, value_name = "KNN", conflicts_with_all = ["knn", "iterations", "start", "expand"])]
    graph: Option<PathBuf>,
    #[command(flatten)]
    report: ReportOptions,
    /// Write no report, and measure nothing
    #[arg(long, conflicts_with_all = ["report", "html", "min_recall", "verify"])]
    no_report: bool,
    #[command(flatten)]
    limits: LimitOptions,
    /// The order in which clusters are built out of core: sequential, random, gorder or cluster
    #[arg(long, default_value = "cluster")]
    order: Order,
    /// Where work files of a build out of core go; the folder must be empty or not be there [default: INDEX.work]
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    /// Go on with the work files of a build out of core that has not ended, if there are any
    #[arg(long)]
    resume: bool,
    /// The least time between two checkpoints of a build out of core
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    checkpoint: u64,
}

/// What changes a kind's own parameters.
#[derive(clap::Args)]
#[group(requires = "strategy")]
pub(crate) struct PruneOptions {
    /// The largest degree [default: 50; 32 for cagra, vamana and dpg]
    #[arg(long, value_name = "R")]
    degree: Option<usize>,
    /// The most candidates per node
    #[arg(long, value_name = "M")]
    candidates: Option<usize>,
    /// Slack of the distance filter, on squared distances, or alpha-cng's, on distances [default: 1.1 for vamana, 1
    /// for nsg, 1.1 for alpha-cng]
    #[arg(long, conflicts_with = "angle")]
    alpha: Option<f32>,
    /// Least angle between neighbours of the angle filter, in degrees [default: 60]
    #[arg(long, conflicts_with = "threshold")]
    angle: Option<f32>,
    /// How candidates are collected: 1-hop, 2-hop or path [default: the kind's]
    #[arg(long)]
    collect: Option<Collect>,
    /// How candidates are filtered: dist, angle, rank, tau-mng or alpha-cng [default: the kind's]
    #[arg(long)]
    filter: Option<Filter>,
    /// The filter's threshold: alpha, degrees, the most detours, or tau in the unit of the data [default of tau: 0]
    #[arg(long, value_name = "X")]
    threshold: Option<f32>,
    /// With the rank filter, count a detour only if both its edges are of better rank [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    strict_detours: Option<bool>,
}

impl PruneOptions {
    /// The strategy with what was asked for.
    pub(crate) fn apply(&self, strategy: Strategy) -> Result<Strategy> {
        let set = |strategy, value: Option<usize>, with: fn(Strategy, usize) -> Strategy| match value {
            Some(value) => with(strategy, value),
            None => strategy,
        };
        let mut strategy = set(strategy, self.degree, Strategy::degree);
        strategy = set(strategy, self.candidates, Strategy::candidates);
        if let Some(collect) = self.collect {
            strategy = strategy.collect(collect);
        }
        if let Some(filter) = self.filter.clone() {
            strategy = strategy.filter(filter);
        }
        let name = strategy.filter_name();
        let unfit = |what, value: f32, filters: &str| {
            let expected = format!("the {filters} filter, not {name}");
            Err(Error::Argument { what, found: value.to_string(), expected })
        };
        strategy = match self.alpha {
            Some(alpha) if !["dist", "alpha-cng"].contains(&name) => {
                return unfit("alpha", alpha, "dist or alpha-cng");
            }
            Some(alpha) => match self.threshold {
                Some(_) if name == "dist" => return unfit("alpha", alpha, "alpha-cng"),
                Some(tau) => strategy.alpha(alpha).threshold(tau),
                None => strategy.alpha(alpha),
            },
            None => match (self.angle, self.threshold) {
                (Some(angle), _) if name != "angle" => return unfit("angle", angle, "angle"),
                (Some(threshold), _) | (None, Some(threshold)) => strategy.threshold(threshold),
                (None, None) => strategy,
            },
        };
        Ok(match self.strict_detours {
            Some(strict) => strategy.strict_detours(strict),
            None => strategy,
        })
    }
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let began = Instant::now();
        let strategy = self.prune.apply(self.strategy.clone())?;
        strategy.check()?;
        self.report.check()?;
        self.files().check()?;
        let base = self.input.open()?;
        let builder =
            Builder::new(strategy).descent(self.descent.descent(output)).devices(&self.descent.device.0);
        // A graph that is given is pruned in memory, unless a limit was asked for.
        let may_be_out = self.limits.are_given() || self.graph.is_none();
        if may_be_out && let Some(plan) = self.limits.plan(&builder, &base, self.descent.device.first())? {
            return self.out_of_core(builder, &base, (plan, began), output);
        }
        base.validate(output.progress())?;
        let read = began.elapsed().as_secs_f64();
        let reading = StageCost::ended("read", read);
        if self.descent.device.0.len() > 1 {
            output.warn(format_args!("built in memory: on {} alone", self.descent.device.first()));
        }
        let metric = self.descent.graph.metric;
        let graph = self
            .graph
            .as_ref()
            .map(|path| KnnGraph::open(path, &base, metric, output.progress()))
            .transpose()?;
        let builder = builder.sample(if self.no_report { 0 } else { self.report.nodes() });
        let (index, stats) = builder.build_with_stats(&base, graph.as_ref())?;
        if graph.is_none() {
            self.descent.say(&base, stats.knn, &stats.descent, output);
        }
        say_kernels(&stats.prune.kernels, output);
        output.say(format_args!(
            "prune     {:.3} s on {}, mean degree {:.2}, {} nodes attached",
            stats.prune.seconds,
            stats.prune.device,
            index.mean_degree(),
            stats.prune.attached
        ));
        if stats.repeated > 0 {
            let rows = grouped(stats.repeated);
            output.say(format_args!("repeated  {rows} rows equal an earlier one, and are found with it"));
        }
        let writing = Instant::now();
        index.save_replacing(&self.output, &self.reports())?;
        let write = writing.elapsed().as_secs_f64();
        let writing = StageCost::ended("write", write);
        let total = began.elapsed().as_secs_f64();
        self.say_index(&index, &base, total, output);
        let took = (&stats.descent, &stats.prune);
        let seconds = Seconds { read, write, total };
        let mut event = built("build", &base, took, &seconds, (stats.knn, index.mean_degree()));
        event["index"] = index.kind().into();
        if self.no_report {
            output.event(&event);
            return Ok(());
        }
        let measure = self.measure(output);
        let mut report = Report::of(&index, Some(&base), &stats.sample, &measure)?;
        let mut cost = BuildCost::in_memory(&builder, &stats);
        cost.stages.insert(0, reading);
        cost.stages.push(writing);
        report.build = Some(cost);
        event["recall"] = json!(report.knn.as_ref().map(|knn| &knn.recall));
        self.end(&report, event, output)
    }

    fn files(&self) -> Files {
        let files = Files::read([&self.input.input]).and_read(&self.graph).write([&self.output]);
        let work = self.work_dir.clone().unwrap_or_else(|| with_suffix(&self.output, ".work"));
        let files = files.work_in(work);
        files.write(self.reports())
    }

    /// Files of the reports. Older ones are deleted right before the index takes its place, so a
    /// killed run never leaves a report of another index.
    fn reports(&self) -> Vec<PathBuf> {
        if self.no_report { Vec::new() } else { self.report.files(Some(&self.output)) }
    }

    fn measure(&self, output: &Output) -> Measure {
        self.report.measure(self.descent.device.first(), self.descent.seed, output)
    }

    /// Writes the report, and holds the index to what was asked for.
    fn end(&self, report: &Report, mut event: Value, output: &Output) -> Result<()> {
        self.report.write(report, Some(&self.output), output)?;
        event["report"] = json!(report);
        output.event(&event);
        self.report.judge(report, &self.output)
    }

    /// Builds cluster by cluster.
    fn out_of_core(
        &self,
        builder: Builder,
        base: &Vectors,
        (plan, began): (ClusterPlan, Instant),
        output: &Output,
    ) -> Result<()> {
        if self.graph.is_some() {
            let expected = "an index that is built in memory".to_owned();
            let found = "a build out of core".to_owned();
            return Err(Error::Argument { what: "graph", found, expected });
        }
        // Searching needs a normalised copy of all vectors, which the build has been spared.
        let searched = self.descent.graph.metric != Metric::Cosine;
        if !searched {
            self.report.no_recall("none with --metric cosine out of core")?;
        }
        // All of it is checked as it is put into clusters.
        let reading = StageCost::ended("read", began.elapsed().as_secs_f64());
        say_clusters(&plan, output);
        let every = Duration::from_secs(self.checkpoint);
        let mut build = OutOfCore::new(builder, plan).order(self.order).resume(self.resume).checkpoint(every);
        if let Some(folder) = &self.work_dir {
            build = build.work_dir(folder.clone());
        }
        let build = build.stale(self.reports());
        let folder = build.work_folder(&self.output);
        let stats = build.build(base, &self.output).inspect_err(|error| {
            let stopped = matches!(error, Error::Cancelled | Error::Io { .. } | Error::Device { .. });
            if stopped && folder.exists() {
                output.say(format_args!(
                    "{}: kept; the same with --resume goes on from there",
                    folder.display()
                ));
            }
        })?;
        for file in &stats.repaired {
            output.warn(format_args!("the work file of {file} was damaged; what it held was made again"));
        }
        let index = Index::open(&self.output)?;
        let total = began.elapsed().as_secs_f64();
        output.say(format_args!(
            "partition {:.3} s, build and merge {:.3} s, write {:.3} s; {:.3} of lists were in memory",
            stats.partition,
            stats.build,
            stats.write,
            stats.cache.hit_ratio()
        ));
        output.say(format_args!(
            "mean degree {:.2}, {} of {} nodes cannot be reached",
            index.mean_degree(),
            stats.unreachable,
            base.len()
        ));
        self.say_index(&index, base, total, output);
        stats.tasks.iter().for_each(|task| output.event(&task_event(task)));
        let event = json!({
            "event": "build", "index": index.kind(), "n": base.len(), "dim": base.dim(),
            "out_of_core": clusters_event(&plan), "clusters": stats.clusters,
            "cluster_bytes": stats.cluster_bytes, "spilled_bytes": stats.spilled_bytes,
            "hit_ratio": stats.cache.hit_ratio(), "unreachable": stats.unreachable,
            "seconds": {
                "read": reading.seconds, "partition": stats.partition, "build": stats.build, "write": stats.write,
                "total": total,
            },
            "built": stats.built, "repaired": stats.repaired, "peak_gpu_bytes": stats.peak_gpu_bytes,
            "peak_host_bytes": peak_host_bytes(), "mean_degree": index.mean_degree(),
        });
        if self.no_report {
            output.event(&event);
            return Ok(());
        }
        let measure = Measure {
            // A device need not have room for all that was built out of core.
            search_on: Device::Cpu,
            gpu_memory: self.limits.gpu_memory(),
            ..self.measure(output)
        };
        let mut report = Report::of(&index, searched.then_some(base), &KnnSample::default(), &measure)?;
        let mut cost = BuildCost::out_of_core(&stats);
        cost.stages.insert(0, reading);
        report.build = Some(cost);
        self.end(&report, event, output)
    }

    fn say_index(&self, index: &Index, base: &Vectors, total: f64, output: &Output) {
        output.say(format_args!(
            "{}: {} of {} x {} in {total:.2} s",
            self.output.display(),
            index.kind(),
            base.len(),
            base.dim()
        ));
    }
}
