//! `tagore bench prune`

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};
use tagore::gpu::KernelTime;
use tagore::{BuildStats, Builder, Device, Evaluation, Index, KnnGraph, Strategy, Vectors};

use super::Runs;
use super::judge::{Judge, JudgeOptions};
use super::kernels::{kernels, say_kernels};
use crate::draw::{Series, recall_qps_plot};
use crate::error::{Error, Result};
use crate::files::{Files, Kind};
use crate::options::{GraphOptions, Input};
use crate::output::{Output, grouped};
use crate::walked::Walk;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    graph: GraphOptions,
    /// Kinds of index
    #[arg(long, value_delimiter = ',', default_value = "cagra,nsg,nssg,vamana,dpg", value_name = "KIND,..")]
    kinds: Vec<Strategy>,
    /// What to build on: full, the vectors themselves, or their codes in f16 or int8
    #[arg(long, default_value_t, value_name = "TYPE")]
    vectors: Walk,
    #[command(flatten)]
    judge: JudgeOptions,
    /// Prune on the CPU too, and compare the indexes
    #[arg(long)]
    cpu: bool,
    #[command(flatten)]
    runs: Runs,
    /// Plot of recall against throughput
    #[arg(long, value_name = "SVG", requires = "queries")]
    plot: Option<PathBuf>,
}

/// A build, with its wall-clock seconds.
struct Built {
    index: Index,
    stats: BuildStats,
    seconds: f64,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let files = Files::read([self.input.path()]).and_read(self.judge.files());
        files.write(Kind::Lines, &self.runs.output).write(Kind::Plot, &self.plot).check(output)?;
        let base = Arc::new(self.input.read(output.progress())?.0);
        let judge = self.judge.open(output.progress())?;
        // The graph of comparisons: other builds make their own.
        let graph = if self.cpu { Some(self.descent(&base, output)?.build(&base)?) } else { None };
        let (mut events, mut lines) = (Vec::new(), Vec::new());
        say_header(self.runs.is_on_gpu(base.len())?, output);
        for strategy in &self.kinds {
            let (event, line) = self.index(&base, strategy, graph.as_ref(), judge.as_ref(), output)?;
            lines.extend(line);
            output.event(&event);
            events.push(event);
        }
        if let Some((path, judge)) = self.plot.as_ref().zip(judge) {
            let title = format!("{} x {} vectors", grouped(base.len()), base.dim());
            recall_qps_plot(path, &title, judge.k, &lines)?;
        }
        self.runs.output.as_deref().map_or(Ok(()), |path| output.write_events(path, &events))
    }

    fn descent(&self, base: &Vectors, output: &Output) -> Result<tagore::Descent> {
        let descent = self.graph.descent(base.element_type())?.seed(self.runs.seed).device(self.runs.device);
        Ok(descent.progress(output.progress().clone()))
    }

    /// Builds, compares and measures one index.
    fn index(
        &self,
        base: &Arc<Vectors>,
        strategy: &Strategy,
        graph: Option<&KnnGraph>,
        judge: Option<&Judge<'_>>,
        output: &Output,
    ) -> Result<(Value, Option<Series>)> {
        let builder = Builder::new(strategy.clone()).descent(self.descent(base, output)?);
        let builder = builder.compressed(self.vectors.0);
        let built = self.build(&builder, base)?;
        say(&built, output);
        let mut event = self.event(base, &built);
        event["repeat"] = self.runs.repeat(base.len())?.into();
        if let Some(graph) = graph {
            let seconds = self.compare(&built, &builder, base, graph)?;
            event["cpu_prune_seconds"] = seconds.into();
            output.result(format_args!("{:<10} the same index, pruned on the CPU in {seconds:.2} s", ""));
        }
        let Some(judge) = judge else { return Ok((event, None)) };
        let name = built.index.kind().to_owned();
        let evaluations = judge.evaluate(built.index, base, self.runs.device, output)?;
        for Evaluation { beam, recall, qps, distances, .. } in &evaluations {
            output.result(format_args!(
                "{:<10} beam {beam:>4}: recall@{} {recall:.4}, {} distances, {} queries/s",
                "",
                judge.k,
                grouped(distances.round()),
                grouped(qps.round())
            ));
        }
        event["quality"] = evaluations
            .iter()
            .map(|e| json!({ "beam": e.beam, "k": e.k, "recall": e.recall, "distances": e.distances, "qps": e.qps }))
            .collect();
        Ok((event, Some(Series::new(name, &evaluations))))
    }

    /// Seconds of pruning the graph on the CPU. Fails if the index differs from `built`.
    fn compare(&self, built: &Built, builder: &Builder, base: &Vectors, graph: &KnnGraph) -> Result<f64> {
        let began = Instant::now();
        let cpu = builder.clone().device(Device::Cpu).build_from(base, graph)?;
        let seconds = began.elapsed().as_secs_f64();
        check_same(&built.index, &cpu)?;
        Ok(seconds)
    }

    fn build(&self, builder: &Builder, base: &Vectors) -> Result<Built> {
        for _ in 1..self.runs.repeat(base.len())? {
            builder.build_with_stats(base, None)?;
        }
        let began = Instant::now();
        let (index, stats) = builder.build_with_stats(base, None)?;
        Ok(Built { index, stats, seconds: began.elapsed().as_secs_f64() })
    }

    fn event(&self, base: &Vectors, built: &Built) -> Value {
        let Built { index, stats, seconds } = built;
        let BuildStats { knn, descent, prune, grouping, coding, .. } = stats;
        json!({
            "event": "bench prune", "n": base.len(), "dim": base.dim(), "type": base.element_type().name(),
            "metric": built.index.metric().name_for(base.element_type()), "knn": knn, "seed": self.runs.seed,
            "index": index.kind(), "parameters": index.description().parameters,
            "device": prune.device, "device_name": prune.device_name,
            "seconds": {
                "copy": descent.copy + prune.copy, "jit": descent.jit + prune.jit, "descent": descent.seconds,
                "prune": prune.seconds, "kernels": seconds_of(&prune.kernels), "layers": prune.layers,
                "connect": prune.connect, "group": grouping, "codes": coding, "total": seconds,
            },
            "mean_degree": index.mean_degree(), "attached": prune.attached,
            "peak_gpu_bytes": descent.peak_gpu_bytes.max(prune.peak_gpu_bytes),
            "kernels": kernels(&prune.kernels, prune.device_name.as_deref()),
        })
    }
}

/// Sum of the times of kernels.
fn seconds_of<'a>(times: impl IntoIterator<Item = &'a KernelTime>) -> f64 {
    // The sum of no floats is -0.
    times.into_iter().fold(0.0, |sum, time| sum + time.seconds)
}

fn say_header(on_gpu: bool, output: &Output) {
    let (copy, kernels) = if on_gpu { (" copy s", " kernels s") } else { ("", "") };
    output.result(format_args!(
        "{:<10} {:>8}{copy} {:>9} {:>9}{kernels} {:>9} {:>7} {:>9}",
        "index", "total s", "descent s", "prune s", "connect s", "degree", "attached"
    ));
}

fn say(built: &Built, output: &Output) {
    let Built { index, stats: BuildStats { descent, prune, .. }, seconds } = built;
    // Only a GPU copies and has kernels.
    let (copy, kernels) = if prune.device == "cpu" {
        Default::default()
    } else {
        let copy = descent.copy + prune.copy;
        (format!(" {copy:>6.3}"), format!(" {:>9.4}", seconds_of(&prune.kernels)))
    };
    output.result(format_args!(
        "{:<10} {seconds:>8.3}{copy} {:>9.3} {:>9.3}{kernels} {:>9.3} {:>7.2} {:>9}",
        index.kind(),
        descent.seconds,
        prune.seconds,
        prune.connect,
        index.mean_degree(),
        prune.attached
    ));
    say_kernels(&prune.kernels, prune.device_name.as_deref(), output);
}

/// Fails if the index that the CPU pruned differs.
fn check_same(index: &Index, other: &Index) -> Result<()> {
    let differs = |&node: &usize| index.neighbors(node) != other.neighbors(node);
    match (0..index.len()).find(differs) {
        None if index.entries() == other.entries() => Ok(()),
        None => Err(Error::Failed("--cpu: found other entry points, expected the same index".to_owned())),
        Some(node) => Err(Error::Failed(format!("--cpu: found another row {node}, expected the same index"))),
    }
}
