//! `tagore knn`

use std::path::PathBuf;
use std::time::Instant;

use tagore::{KnnGraph, PruneStats, RecallSample, Vectors};

use crate::error::{Error, Result};
use crate::files::{Files, Kind};
use crate::number;
use crate::options::{Built, DescentOptions, Input, Seconds};
use crate::output::{Output, grouped};

/// Recall below which a graph is worth a warning.
const LOW_RECALL: f64 = 0.9;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// File of the graph: ids, then distances, in the layout of a ground truth
    #[arg(short, long, value_name = "GRAPH")]
    output: Option<PathBuf>,
    #[command(flatten)]
    descent: DescentOptions,
    /// Random nodes whose recall exact search measures
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = number::whole::<u32>)]
    verify: u32,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let began = Instant::now();
        Files::read([self.input.path()]).write(Kind::Graph, &self.output).check(output)?;
        let devices = self.descent.device.0.len();
        if devices > 1 {
            return Err(Error::usage(format!(
                "--device: found {devices} devices, expected one: a k-NN graph is built on one"
            )));
        }
        let (base, read) = self.input.read(output.progress())?;
        let graph = self.descent.build(&base, output)?;
        let writing = Instant::now();
        if let Some(path) = &self.output {
            graph.save(path)?;
        }
        let write = writing.elapsed().as_secs_f64();
        let total = began.elapsed().as_secs_f64();
        let is_measured = self.verify > 0 && graph.k() > 0;
        let recall = is_measured.then(|| verify(&graph, &base, self.verify as usize, &self.descent, output));
        let recall = recall.transpose()?;
        let (prune, seconds) = (PruneStats::default(), Seconds { read, write, total });
        let built = Built {
            rows: base.len(),
            dim: base.dim(),
            descent: graph.stats(),
            prune: &prune,
            seconds: &seconds,
            knn: graph.k(),
            mean_degree: graph.k() as f64,
        };
        let mut event = built.event("knn");
        if let Some(recall) = recall {
            event["recall"] = recall;
        }
        output.event(&event);
        Ok(())
    }
}

/// Measures recall at 10 and at k over `nodes` random nodes. Prints it, warns if it is low,
/// and returns it as JSON.
fn verify(
    graph: &KnnGraph,
    base: &Vectors,
    nodes: usize,
    options: &DescentOptions,
    output: &Output,
) -> Result<serde_json::Value> {
    let ks = if graph.k() > 10 { vec![10, graph.k()] } else { vec![graph.k()] };
    let sample = RecallSample {
        nodes,
        seed: options.seed,
        device: options.device.first(),
        progress: output.progress().clone(),
    };
    let recalls = tagore::knn_recall(graph, base, &ks, &sample)?;
    let mut object = serde_json::Map::new();
    for (k, recall) in ks.iter().zip(&recalls) {
        object.insert(k.to_string(), (*recall).into());
        output.result(format_args!(
            "verify    recall@{k} {recall:.4} over {} nodes",
            grouped(nodes.min(base.len()))
        ));
    }
    if let Some(&found) = recalls.last().filter(|&&found| found < LOW_RECALL) {
        output.warn(format_args!(
            "the graph holds {found:.2} of the neighbours: --start all-pairs finds all, at a cost that grows with the \
             square of the rows"
        ));
    }
    Ok(object.into())
}
