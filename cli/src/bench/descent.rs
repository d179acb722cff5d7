//! `tagore bench descent`

use serde_json::{Value, json};
use tagore::{DescentStats, Iterations, KnnGraph, KnnTruth, RecallSample, Start, Vectors};

use super::Runs;
use super::kernels::{kernels, say_kernels};
use crate::error::Result;
use crate::files::{Files, Kind};
use crate::options::{GraphOptions, Input};
use crate::output::{Output, grouped};

/// Nodes of recall measurements.
const SAMPLE: usize = 10_000;

/// Sums of the iterations of both phases under `--split`.
const TOTALS: [u32; 3] = [8, 12, 16];

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    graph: GraphOptions,
    /// Iterations of the two phases: a list of auto and A,B, such as 6,6;8,0;auto
    #[arg(long, value_delimiter = ';', default_value = "auto", value_name = "A,B;..")]
    iterations: Vec<Iterations>,
    /// Starts of descent: a list of random, cells and auto
    #[arg(long, value_delimiter = ',', default_value = "random,cells", value_name = "START,..")]
    starts: Vec<Start>,
    /// All even splits of 8, 12 and 16 iterations between the phases, from the random start
    #[arg(long, conflicts_with_all = ["iterations", "starts"])]
    split: bool,
    /// Neighbours per node whose lists are gathered in an iteration of phase 2
    #[arg(long, default_value_t = 4, value_name = "M")]
    expand: usize,
    #[command(flatten)]
    runs: Runs,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        Files::read([self.input.path()]).write(Kind::Lines, &self.runs.output).check(output)?;
        let (base, _) = self.input.read(output.progress())?;
        let mut truth = None;
        let mut events: Vec<Value> = Vec::new();
        let on_gpu = self.runs.is_on_gpu(base.len())?;
        for (start, iterations) in self.runs() {
            let graph = self.build(&base, start, iterations, output)?;
            // The first build clamps k for all.
            let truth = match &truth {
                Some(truth) => truth,
                None => truth.insert(self.truth(&base, graph.k(), output)?),
            };
            let ks = if graph.k() > 10 { vec![10, graph.k()] } else { vec![graph.k()] };
            let recalls: Vec<(usize, f64)> = ks.iter().copied().zip(truth.recall(&graph, &ks)?).collect();
            if events.is_empty() {
                say_header(&recalls, on_gpu, output);
            }
            say(start, iterations, graph.stats(), &recalls, output);
            let mut event = self.event(&base, start, iterations, &graph, &recalls);
            event["recall_nodes"] = truth.len().into();
            event["repeat"] = self.runs.repeat(base.len())?.into();
            output.event(&event);
            events.push(event);
        }
        self.runs.output.as_deref().map_or(Ok(()), |path| output.write_events(path, &events))
    }

    /// Starts and iterations of the runs.
    fn runs(&self) -> Vec<(Start, Iterations)> {
        if self.split {
            let splits = |total: u32| (2..total).step_by(2).map(move |a| Iterations::Fixed(a, total - a));
            return TOTALS.into_iter().flat_map(splits).map(|split| (Start::Random, split)).collect();
        }
        let of = |&start| self.iterations.iter().map(move |&iterations| (start, iterations));
        self.starts.iter().flat_map(of).collect()
    }

    fn build(
        &self,
        base: &Vectors,
        start: Start,
        iterations: Iterations,
        output: &Output,
    ) -> Result<KnnGraph> {
        let descent = self
            .graph
            .descent(base.element_type())?
            .iterations(iterations)
            .start(start)
            .expand(self.expand)
            .seed(self.runs.seed)
            .device(self.runs.device)
            .progress(output.progress().clone());
        for _ in 1..self.runs.repeat(base.len())? {
            descent.build(base)?;
        }
        Ok(descent.build(base)?)
    }

    fn truth(&self, base: &Vectors, k: usize, output: &Output) -> Result<KnnTruth> {
        let Runs { seed, device, .. } = self.runs;
        let sample = RecallSample { nodes: SAMPLE, seed, device, progress: output.progress().clone() };
        Ok(KnnTruth::new(base, self.graph.metric(base.element_type())?, k, &sample)?)
    }

    fn event(
        &self,
        base: &Vectors,
        start: Start,
        iterations: Iterations,
        graph: &KnnGraph,
        recalls: &[(usize, f64)],
    ) -> Value {
        let stats = graph.stats();
        let recall: serde_json::Map<String, Value> =
            recalls.iter().map(|&(k, recall)| (k.to_string(), recall.into())).collect();
        json!({
            "event": "bench descent", "n": base.len(), "dim": base.dim(), "type": base.element_type().name(),
            "metric": graph.metric().name_for(base.element_type()), "knn": graph.k(), "seed": self.runs.seed,
            "device": stats.device, "device_name": stats.device_name,
            "start": start.to_string(), "iterations_asked": iterations.to_string(),
            "iterations": [stats.iterations.0, stats.iterations.1],
            "seconds": { "copy": stats.copy, "jit": stats.jit, "descent": stats.seconds },
            "recall": recall,
            "distances": stats.distances, "join_distances": stats.join_distances,
            "refine_distances": stats.refine_distances, "completed": stats.completed, "added": stats.added,
            "peak_gpu_bytes": stats.peak_gpu_bytes, "kernels": kernels(&stats.kernels, stats.device_name.as_deref()),
        })
    }
}

fn say_header(recalls: &[(usize, f64)], on_gpu: bool, output: &Output) {
    let recalls: String = recalls.iter().map(|(k, _)| format!("{:>11}", format!("recall@{k}"))).collect();
    let (copy, peak) = if on_gpu {
        (format!(" {:>8} {:>8}", "copy s", "jit s"), format!(" {:>9}", "peak MiB"))
    } else {
        Default::default()
    };
    output.result(format_args!(
        "{:<7} {:>10} {:>7}{copy} {:>9}{recalls} {:>18}{peak}",
        "start", "iterations", "run", "descent s", "distances"
    ));
}

fn say(
    start: Start,
    iterations: Iterations,
    stats: &DescentStats,
    recalls: &[(usize, f64)],
    output: &Output,
) {
    let recalls: String = recalls.iter().map(|(_, recall)| format!("{recall:>11.4}")).collect();
    let run = format!("{},{}", stats.iterations.0, stats.iterations.1);
    // Only a GPU copies, compiles and has memory of its own.
    let (copy, peak) = if stats.peak_gpu_bytes > 0 {
        (format!(" {:>8.3} {:>8.3}", stats.copy, stats.jit), format!(" {:>9}", stats.peak_gpu_bytes >> 20))
    } else {
        Default::default()
    };
    output.result(format_args!(
        "{start:<7} {iterations:>10} {run:>7}{copy} {:>9.3}{recalls} {:>18}{peak}",
        stats.seconds,
        grouped(stats.distances)
    ));
    if stats.completed > 0 {
        output.result(format_args!(
            "        {} short lists completed by exact search",
            grouped(stats.completed)
        ));
    }
    say_kernels(&stats.kernels, stats.device_name.as_deref(), output);
}
