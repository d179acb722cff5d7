//! `tagore bench search`

use std::path::PathBuf;

use serde_json::{Value, json};
use tagore::gpu::Rates;
use tagore::{Device, Evaluation, GroundTruth, Index, Searcher, TestQueries, Vectors};

use crate::error::Result;
use crate::files::Files;
use crate::output::{Output, grouped, save_events};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Data set of the indexes
    #[arg(short, long = "input", value_name = "BASE")]
    input: PathBuf,
    /// Queries
    #[arg(long, value_name = "QUERIES")]
    queries: PathBuf,
    /// Exact nearest neighbours of the queries
    #[arg(long, value_name = "GT")]
    groundtruth: PathBuf,
    /// Indexes
    #[arg(long, required = true, num_args = 1.., value_name = "INDEX")]
    index: Vec<PathBuf>,
    /// Neighbours per query
    #[arg(short, default_value_t = 10)]
    k: usize,
    /// Beam widths
    #[arg(long, value_delimiter = ',', default_value = "32,64,128,256", value_name = "L,..")]
    beams: Vec<usize>,
    /// Nodes expanded per step of a search on a GPU
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "W,..")]
    widths: Vec<usize>,
    /// Queries per batch on a GPU [default: all]
    #[arg(long, value_delimiter = ',', value_name = "N,..")]
    batches: Option<Vec<usize>>,
    /// Device of searches: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: Device,
    /// Copy of the JSON lines
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let files = Files::read([&self.input, &self.queries, &self.groundtruth]).and_read(&self.index);
        files.write(&self.output).check()?;
        let (base, queries) = (Vectors::open(&self.input)?, Vectors::open(&self.queries)?);
        let truth = GroundTruth::open(&self.groundtruth, output.progress())?;
        let batches = self.batches.clone().unwrap_or_else(|| vec![queries.len()]);
        let recall = format!("recall@{}", self.k);
        output.say(format_args!(
            "{:<10} {:>5} {:>7} {:>5} {recall:>11} {:>10} {:>11} {:>11} {:>9}",
            "index", "width", "batch", "beam", "distances", "QPS", "device QPS", "bandwidth"
        ));
        let mut events = Vec::new();
        for path in &self.index {
            let index = Index::open(path)?;
            let mut searcher = Searcher::new(&index, &base, output.progress())?.device(self.device)?;
            for &width in &self.widths {
                for &batch in &batches {
                    searcher = searcher.width(width)?.batch(batch);
                    let progress = output.progress();
                    let test = TestQueries::new(&queries, &truth, self.k);
                    for evaluation in searcher.evaluate(test, &self.beams, progress)? {
                        let share = bandwidth(&evaluation, searcher.device_name());
                        let run = Run { searcher: &searcher, index: &index, width, batch, evaluation, share };
                        run.say(output);
                        let event = run.event(&base);
                        output.event(&event);
                        events.push(event);
                    }
                }
            }
        }
        self.output.as_deref().map_or(Ok(()), |path| save_events(path, &events))
    }
}

/// The share of the device's peak bandwidth at which the kernel reads the base.
fn bandwidth(evaluation: &Evaluation, device_name: Option<&str>) -> Option<f64> {
    let rates = device_name.and_then(Rates::of);
    evaluation.device_bytes.zip(rates).map(|(bytes, rates)| bytes / rates.bytes)
}

/// The searches of one index with one beam, width and batch.
struct Run<'a> {
    searcher: &'a Searcher<'a>,
    index: &'a Index,
    width: usize,
    batch: usize,
    evaluation: Evaluation,
    /// Share of the device's peak bandwidth, on a GPU.
    share: Option<f64>,
}

impl Run<'_> {
    fn say(&self, output: &Output) {
        let Self { index, width, batch, evaluation, share, .. } = self;
        let Evaluation { beam, recall, qps, device_qps, distances, .. } = evaluation;
        let kind = index.kind();
        let on_device = device_qps.map_or(String::new(), |qps| grouped(qps.round()));
        let share = share.map_or(String::new(), |share| format!("{:.1} %", 100.0 * share));
        let line = format!(
            "{kind:<10} {width:>5} {batch:>7} {beam:>5} {recall:>11.4} {:>10} {:>11} {on_device:>11} {share:>9}",
            grouped(distances.round()),
            grouped(qps.round())
        );
        output.say(line.trim_end());
    }

    /// The run as a JSON line.
    fn event(&self, base: &Vectors) -> Value {
        let Self { searcher, index, width, batch, evaluation, share } = self;
        let Evaluation { beam, k, recall, recall_ids, qps, device_qps, device_bytes, distances } = evaluation;
        json!({
            "event": "bench search", "n": base.len(), "dim": base.dim(), "type": base.element_type().name(),
            "index": index.kind(), "metric": index.metric().to_string(), "degree": index.max_degree(),
            "device": searcher.runs_on(), "device_name": searcher.device_name(),
            "k": k, "beam": beam, "width": width, "batch": batch,
            "recall": recall, "recall_ids": recall_ids, "distances": distances, "qps": qps,
            "device_qps": device_qps, "device_bytes_per_second": device_bytes, "bandwidth_share": share,
        })
    }
}
