//! A build in clusters: out of core, or in memory on several devices.

use std::time::Duration;

use serde_json::{Value, json};
use tagore::gpu::KernelTime;
use tagore::outofcore::{ClusterPlan, OutOfCore, OutOfCoreStats, Task, TaskKind};
use tagore::{
    BuildCost, Builder, DataShape, Device, Index, KnnSample, Measure, Metric, Progress, Report, Target,
    Vectors, peak_host_bytes,
};

use super::{Args, Started, say_queries, say_repeated};
use crate::draw::timeline_plot;
use crate::error::{Error, Result};
use crate::limits::{cluster_lines, clusters_event};
use crate::options::open_index;
use crate::output::{Output, grouped, sized};
use crate::tasks::task_event;

/// The index of a build, with the measurements taken while it was built.
struct Done {
    index: Index,
    plan: ClusterPlan,
    in_memory: bool,
    stats: OutOfCoreStats,
    /// Seconds until the index was complete.
    total: f64,
}

impl Args {
    /// Builds the index cluster by cluster, with work files or `in_memory`, and reports on it.
    pub(super) fn in_clusters(
        &self,
        started: Started,
        plan: ClusterPlan,
        in_memory: bool,
        output: &Output,
    ) -> Result<()> {
        if self.graph.is_some() {
            let flags = self.limits.flags();
            let them = if flags.len() > 1 { "them" } else { "it" };
            let limits = flags.join(" or ");
            return Err(Error::usage(format!(
                "--graph needs a build in memory: raise {limits}, or drop {them}"
            )));
        }
        // A build that devices share was planned to fit.
        if self.no_work_files {
            self.check_memory(&plan, started.base.len())?;
        }
        // A search by cosine needs a normalised copy of all vectors in memory.
        let metric = self.descent.graph.metric(started.base.element_type())?;
        let is_searched = in_memory || metric != Metric::Cosine;
        if !is_searched {
            self.report.refuse_min_recall("cannot be measured out of core with --metric cosine")?;
        }
        let Started { builder, base, mut laps, reports } = started;
        // The partition checks the values of the base.
        cluster_lines(&plan, in_memory).into_iter().for_each(|line| output.say(line));
        let [building, measuring] = self.parts_of_clusters(&builder, &base, &plan, output)?;
        let build = OutOfCore::new(builder.progress(building), plan).in_memory(in_memory);
        let before = laps.sum();
        let stats = self.build_clusters(build, &base, output)?;
        let index = open_index(&self.index)?;
        let cost = BuildCost::out_of_core(&stats);
        laps.end_parts("prepare", &cost.stages);
        let done = Done { index, plan, in_memory, stats, total: laps.sum() };
        done.say(&base, output);
        self.say_index(&done.index, done.total, output);
        done.stats.tasks.iter().for_each(|task| output.event(&task_event(task)));
        if let Some(path) = &self.timeline {
            timeline_plot(path, &self.title(&done.index), &since_start(&done.stats.tasks, before))?;
        }
        let mut event = done.event(&base);
        event["seconds"] = laps.event(done.total);
        if self.no_report {
            output.event(&event);
            laps.say(output);
            return Ok(());
        }
        let measure = self.measure(output);
        let measure = Measure {
            // Out of core the index may not fit the device.
            search_on: if in_memory { measure.search_on } else { Device::Cpu },
            unreachable: Some(done.stats.unreachable),
            progress: measuring,
            ..measure
        };
        let searched = is_searched.then_some(&base);
        let mut report = Report::measure(&done.index, searched, &KnnSample::default(), &measure)?;
        laps.end("measure");
        report.build = Some(BuildCost { stages: laps.stages(), ..cost });
        event["seconds"] = laps.event(done.total);
        let judged = self.end(report, reports, event, output);
        laps.say(output);
        judged
    }

    /// Checks that a build of `nodes` vectors without work files fits memory.
    fn check_memory(&self, plan: &ClusterPlan, nodes: usize) -> Result<()> {
        let limits = self.limits.limits(self.descent.device.first(), nodes)?;
        let (needed, allowed) = (plan.bytes_in_memory(), limits.host_memory.unwrap_or(u64::MAX));
        if needed <= allowed {
            return Ok(());
        }
        Err(Error::usage(format!(
            "--no-work-files needs {} of host memory, allowed {}: drop it, or raise --host-memory",
            sized(needed),
            sized(allowed)
        )))
    }

    /// The parts of the progress by their estimated times: the build and the report.
    fn parts_of_clusters(
        &self,
        builder: &Builder,
        base: &Vectors,
        plan: &ClusterPlan,
        output: &Output,
    ) -> Result<[Progress; 2]> {
        let data = DataShape::new(base.len(), base.dim(), base.element_type())?;
        let target = Target::open(self.descent.device.first(), plan.cluster_size)?;
        let build = plan.seconds(builder, &data, target).iter().fold(0.0, |sum, stage| sum + stage.1);
        let measure = if self.no_report { 0.0 } else { self.measure(output).estimated_seconds(&data) };
        Ok(output.progress().parts([build, measure]))
    }

    /// Runs the build. A build that stops says how to resume it.
    fn build_clusters(&self, build: OutOfCore, base: &Vectors, output: &Output) -> Result<OutOfCoreStats> {
        let every = Duration::from_secs(self.checkpoint);
        let folder = self.work();
        let build = build.resume(self.resume).checkpoint(every);
        let build = build.work_dir(folder.clone()).stale(self.reports());
        let stats = build.build(base, &self.index).inspect_err(|error| {
            use tagore::Error::{Cancelled, Device, DeviceMemory, Io};
            let stopped = matches!(error, Cancelled | Io { .. } | Device { .. } | DeviceMemory { .. });
            if stopped && folder.exists() {
                output.say(format_args!(
                    "{}: kept; the same command with --resume continues",
                    folder.display()
                ));
            }
        })?;
        for file in &stats.repaired {
            output.warn(format_args!("the work file of {file} was damaged; its content was computed anew"));
        }
        Ok(stats)
    }
}

/// The share of building in which kernels ran, for each GPU.
fn busy(stats: &OutOfCoreStats) -> impl Iterator<Item = f64> {
    stats.busy.iter().map(|seconds| seconds / stats.build)
}

/// Seconds of each kernel, for each GPU.
fn kernels(stats: &OutOfCoreStats) -> Value {
    let of_gpu = |times: &Vec<KernelTime>| -> Value {
        times.iter().map(|time| (time.kernel.to_owned(), Value::from(time.seconds))).collect()
    };
    stats.kernels.iter().map(of_gpu).collect()
}

/// The tasks of a build that began `before` seconds after the command, by the command's clock. What
/// the command did before is a task too.
fn since_start(tasks: &[Task], before: f64) -> Vec<Task> {
    let thread = tasks.first().map_or_else(String::new, |task| task.thread.clone());
    let start = Task { kind: TaskKind::Open, thread, cluster: None, begin: 0.0, end: before, bytes: 0 };
    let shifted = tasks.iter().map(|task| {
        let Task { kind, thread, cluster, begin, end, bytes } = task.clone();
        Task { kind, thread, cluster, begin: begin + before, end: end + before, bytes }
    });
    std::iter::once(start).chain(shifted).collect()
}

impl Done {
    fn say(&self, base: &Vectors, output: &Output) {
        let Self { index, stats, .. } = self;
        output.say(format_args!(
            "partition {:.3} s, build and merge {:.3} s, write {:.3} s, layers {:.3} s; {:.3} of lists in memory",
            stats.partition,
            stats.build,
            stats.write - stats.layers,
            stats.layers,
            stats.cache.hit_ratio()
        ));
        for (gpu, share) in busy(stats).enumerate() {
            output.say(format_args!("kernels ran {:.1} % of building on GPU {gpu}", 100.0 * share));
        }
        output.say(format_args!(
            "mean degree {:.2}, {} of {} nodes cannot be reached",
            index.mean_degree(),
            grouped(stats.unreachable),
            grouped(base.len())
        ));
        say_queries(stats.queries.as_ref(), output);
        say_repeated(stats.repeated, output);
    }

    /// The build as a JSON line.
    fn event(&self, base: &Vectors) -> Value {
        let Self { index, plan, in_memory, stats, .. } = self;
        json!({
            "event": "build", "index": index.kind(), "n": base.len(), "dim": base.dim(),
            "out_of_core": clusters_event(plan), "in_memory": in_memory, "clusters": stats.clusters,
            "cluster_bytes": stats.cluster_bytes, "spilled_bytes": stats.spilled_bytes,
            "hit_ratio": stats.cache.hit_ratio(), "unreachable": stats.unreachable,
            "repeated": stats.repeated,
            "built": stats.built, "repaired": stats.repaired, "peak_gpu_bytes": stats.peak_gpu_bytes,
            "gpu_busy": busy(stats).collect::<Vec<_>>(), "kernels": kernels(stats),
            "peak_host_bytes": peak_host_bytes(), "mean_degree": index.mean_degree(),
        })
    }
}
