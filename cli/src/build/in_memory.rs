//! A build in memory.

use std::time::Instant;

use serde_json::{Value, json};
use tagore::{
    BuildCost, BuildStats, Builder, Index, KnnGraph, KnnSample, PruneStats, Report, StageCost, Vectors,
};

use super::{Args, Started, say_repeated};
use crate::error::Result;
use crate::options::{Built, Seconds, say_kernels};
use crate::output::Output;

/// The index of a build, with the measurements taken while it was built.
struct Done {
    index: Index,
    stats: BuildStats,
    seconds: Seconds,
}

impl Args {
    /// Builds the index in memory, writes it and reports on it.
    pub(super) fn in_memory(&self, started: Started, output: &Output) -> Result<()> {
        let Started { builder, base, began } = started;
        base.validate(output.progress())?;
        let read = began.elapsed().as_secs_f64();
        if self.descent.device.0.len() > 1 {
            let device = self.descent.device.first();
            output.warn(format_args!(
                "built in memory, on {device} alone: several devices need a build out of core"
            ));
        }
        let graph = self.open_graph(&base, output)?;
        let builder = builder.sample(if self.no_report { 0 } else { self.report.nodes() });
        let (index, stats) = builder.build_with_stats(&base, graph.as_ref())?;
        if graph.is_none() {
            let default = builder.default_knn(stats.descent.device != "cpu", base.len());
            self.descent.say(&base, (stats.knn, default), &stats.descent, output);
        }
        say_prune(&index, &stats.prune, output);
        say_repeated(stats.repeated, output);
        let writing = Instant::now();
        index.save_replacing(&self.output, &self.reports())?;
        let write = writing.elapsed().as_secs_f64();
        let total = began.elapsed().as_secs_f64();
        self.say_index(&index, &base, total, output);
        let done = Done { index, stats, seconds: Seconds { read, write, total } };
        if self.no_report {
            output.event(&done.event(&base));
            return Ok(());
        }
        self.report_on(&builder, &base, &done, output)
    }

    /// Opens the k-NN graph of `--graph`.
    fn open_graph(&self, base: &Vectors, output: &Output) -> Result<Option<KnnGraph>> {
        let open = |path| KnnGraph::open(path, base, self.descent.graph.metric, output.progress());
        Ok(self.graph.as_ref().map(open).transpose()?)
    }

    /// Measures the index and writes the report.
    fn report_on(&self, builder: &Builder, base: &Vectors, done: &Done, output: &Output) -> Result<()> {
        let Done { index, stats, seconds } = done;
        let sample: &KnnSample = &stats.sample;
        let mut report = Report::of(index, Some(base), sample, &self.measure(output))?;
        let mut cost = BuildCost::in_memory(builder, stats);
        cost.stages.insert(0, StageCost::ended("read", seconds.read));
        cost.stages.push(StageCost::ended("write", seconds.write));
        report.build = Some(cost);
        let mut event = done.event(base);
        event["recall"] = json!(report.knn.as_ref().map(|knn| &knn.recall));
        self.end(&report, event, output)
    }
}

impl Done {
    /// The build as a JSON line.
    fn event(&self, base: &Vectors) -> Value {
        let Self { index, stats, seconds } = self;
        let built = Built {
            base,
            descent: &stats.descent,
            prune: &stats.prune,
            seconds,
            knn: stats.knn,
            mean_degree: index.mean_degree(),
        };
        let mut event = built.event("build");
        event["index"] = index.kind().into();
        event
    }
}

/// Prints time and result of pruning.
fn say_prune(index: &Index, prune: &PruneStats, output: &Output) {
    say_kernels(&prune.kernels, output);
    output.say(format_args!(
        "prune     {:.3} s on {}, mean degree {:.2}, {} nodes attached",
        prune.seconds,
        prune.device,
        index.mean_degree(),
        prune.attached
    ));
}
