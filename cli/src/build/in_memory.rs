//! A build in memory.

use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};
use tagore::outofcore::TaskKind;
use tagore::{
    BuildCost, BuildStats, Builder, DataShape, Fingerprint, Index, IndexRoom, KnnGraph, KnnSample, Measure,
    Progress, PruneStats, Report, Target, Vectors,
};

use super::{Args, Started, say_queries, say_repeated};
use crate::error::Result;
use crate::laps::Laps;
use crate::options::{Built, Seconds, say_kernels};
use crate::output::Output;
use crate::timeline;

/// The index of a build, with the measurements taken while it was built.
struct Done {
    index: Index,
    stats: BuildStats,
    /// Seconds until the index was written.
    total: f64,
}

impl Args {
    /// Builds the index in memory, writes it, to its `room` if that is there, and reports on it.
    pub(super) fn in_memory(&self, started: Started, room: Option<IndexRoom>, output: &Output) -> Result<()> {
        let Started { builder, base, mut laps, reports } = started;
        let [checking, building, measuring] = self.parts(&builder, &base, output)?;
        base.validate(&checking)?;
        let graph = self.open_graph(&base, &checking)?;
        if self.descent.device.0.len() > 1 {
            let data = DataShape::new(base.len(), base.dim(), base.element_type())?;
            if graph.is_some() || !builder.shares(&data)? {
                let device = self.descent.device.first();
                output.warn(format_args!(
                    "built on {device} alone: several GPUs share the build of an index of at least 8,000,000 \
                     rows, under l2 or cosine, that starts from cells"
                ));
            }
        }
        laps.end("check");
        let builder = builder.progress(building).sample(self.sample()).keep_on_device(true);
        let (index, mut stats) = builder.build_with_stats(&base, graph.as_ref())?;
        let cost = BuildCost::in_memory(&builder, &stats);
        laps.end_parts("prepare", &cost.stages);
        if graph.is_none() {
            self.descent.say(base.len(), &stats.descent, output);
        }
        say_prune(&index, &stats.prune, output);
        say_queries(stats.queries.as_ref(), output);
        say_repeated(stats.repeated, output);
        let resident = stats.resident.take();
        let mut done = Done { index, stats, total: 0.0 };
        let measure = Measure { progress: measuring, resident, ..self.measure(output) };
        let report = self.write_and_measure(&mut done, base, room, &mut laps, measure)?;
        self.say_index(&done.index, done.total, output);
        let mut event = done.event(&laps);
        let mut judged = Ok(());
        if let Some(mut report) = report.transpose()? {
            report.build = Some(BuildCost { stages: laps.stages(), ..cost });
            event["recall"] = json!(report.knn.as_ref().map(|knn| &knn.recall));
            judged = self.end(report, reports, event, output);
        } else {
            output.event(&event);
        }
        laps.say(output);
        judged?;
        self.timeline.as_deref().map_or(Ok(()), |path| timeline::save(path, &self.title(&done.index)))
    }

    /// The parts of the progress by their estimated times: the check of values, the build and the
    /// report.
    fn parts(&self, builder: &Builder, base: &Vectors, output: &Output) -> Result<[Progress; 3]> {
        let data = DataShape::new(base.len(), base.dim(), base.element_type())?;
        let target = Target::open(self.descent.device.first(), base.len())?;
        let plan = builder.plan(&data, target)?;
        let check = plan.seconds.iter().find(|stage| stage.0 == "read").map_or(0.0, |stage| stage.1);
        let measure = if self.no_report { 0.0 } else { self.measure(output).estimated_seconds(&data) };
        Ok(output.progress().parts([check, plan.total_seconds() - check, measure]))
    }

    /// Opens the k-NN graph of `--graph`.
    fn open_graph(&self, base: &Vectors, progress: &Progress) -> Result<Option<KnnGraph>> {
        let metric = self.descent.graph.metric(base.element_type())?;
        let open = |path| KnnGraph::open(path, base, metric, progress);
        Ok(self.graph.as_ref().map(open).transpose()?)
    }

    /// Writes the index. Meanwhile measures it, unless there is no report, and closes the devices
    /// and the base.
    fn write_and_measure(
        &self,
        done: &mut Done,
        base: Vectors,
        room: Option<IndexRoom>,
        laps: &mut Laps,
        measure: Measure,
    ) -> Result<Option<tagore::Result<Report>>> {
        let (index, sample): (&Index, &KnnSample) = (&done.index, &done.stats.sample);
        let room = Mutex::new(room);
        let write = || {
            let writing = Instant::now();
            let reserve = || IndexRoom::reserve(&self.index, index.len(), index.max_degree());
            let room = room.lock().unwrap_or_else(PoisonError::into_inner).take();
            index.save_in(room.map_or_else(reserve, Ok)?, &self.reports())?;
            let seconds = writing.elapsed().as_secs_f64();
            timeline::add(TaskKind::Write, seconds);
            Ok::<f64, tagore::Error>(seconds)
        };
        let (report, written) = thread::scope(|scope| {
            let writer = thread::Builder::new().name("writer".to_owned()).spawn_scoped(scope, write).ok();
            let report = (!self.no_report).then(|| Report::measure(index, Some(&base), sample, &measure));
            // All of these take a while, and nothing needs them any more.
            let close = || {
                drop(measure);
                tagore::close_devices();
            };
            let closer = thread::Builder::new().spawn_scoped(scope, close);
            drop(base);
            if closer.is_err() {
                tagore::close_devices();
            }
            // Without a thread, this one writes.
            let written = writer.map_or_else(write, |writer| {
                writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            (report, written)
        });
        let seconds = written?;
        if report.is_some() {
            // What the report takes beyond the time of writing.
            laps.add("write", seconds);
            done.total = laps.sum();
            laps.end("measure");
        } else {
            laps.end("write");
            done.total = laps.sum();
        }
        Ok(report)
    }
}

impl Done {
    /// The build as a JSON line.
    fn event(&self, laps: &Laps) -> Value {
        let Self { index, stats, total } = self;
        let Fingerprint { rows, dim, .. } = index.fingerprint();
        let built = Built {
            rows: rows as usize,
            dim: dim as usize,
            descent: &stats.descent,
            prune: &stats.prune,
            seconds: &Seconds::default(),
            knn: stats.knn,
            mean_degree: index.mean_degree(),
        };
        let mut event = built.event("build");
        event["index"] = index.kind().into();
        let jit = event["seconds"]["jit"].take();
        event["seconds"] = laps.event(*total);
        event["seconds"]["jit"] = jit;
        event
    }
}

/// Prints time and result of pruning; layers and the attaching of nodes are stages of their own.
fn say_prune(index: &Index, prune: &PruneStats, output: &Output) {
    say_kernels(&prune.kernels, output);
    output.say(format_args!(
        "prune     {:.3} s on {}, mean degree {:.2}, {} nodes attached",
        prune.seconds - prune.connect - prune.layers,
        prune.device,
        index.mean_degree(),
        prune.attached
    ));
}
