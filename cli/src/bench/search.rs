//! `tagore bench search`

use std::path::PathBuf;
use std::sync::Arc;

use serde_json::{Value, json};
use tagore::gpu::Rates;
use tagore::{Evaluation, Searcher, Target, TestQueries};

use crate::error::{Error, Result};
use crate::files::{Files, Kind};
use crate::options::{BaseAndQueries, Devices, open_index};
use crate::output::{Output, grouped};
use crate::read::open_ids;
use crate::search::K;
use crate::walked::Walked;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    data: BaseAndQueries,
    /// Exact nearest neighbours of the queries
    #[arg(long, value_name = "GT")]
    groundtruth: PathBuf,
    /// Indexes
    #[arg(long, required = true, num_args = 1.., value_name = "INDEX")]
    index: Vec<PathBuf>,
    /// Neighbours per query [default: 10, or those of the ground truth if fewer]
    #[arg(short)]
    k: Option<usize>,
    /// Beam widths
    #[arg(long, value_delimiter = ',', default_value = "32,64,128,256", value_name = "L,..")]
    beams: Vec<usize>,
    /// Nodes expanded per step of a search on a GPU
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "W,..")]
    widths: Vec<usize>,
    /// Queries per batch on a GPU [default: all]
    #[arg(long, value_delimiter = ',', value_name = "N,..")]
    batches: Option<Vec<usize>>,
    #[command(flatten)]
    walked: Walked,
    /// Device of searches: auto, cpu, cuda, cuda:N, or several (cuda:N,M,..) that share the queries
    #[arg(long, default_value = "auto")]
    device: Devices,
    /// Copy of the JSON lines
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let files = Files::read(self.data.files()).and_read([&self.groundtruth]).and_read(&self.index);
        files.write(Kind::Lines, &self.output).check(output)?;
        let (base, queries) = self.data.open()?;
        let base = Arc::new(base);
        let truth = open_ids(&self.groundtruth, output.progress())?;
        let batches = self.batches.clone().unwrap_or_else(|| vec![queries.len()]);
        let k = self.k.unwrap_or(K.min(truth.k()));
        let on_gpu = Target::open(self.device.first(), base.len())?.gpu.is_some();
        let mut events = Vec::new();
        for path in &self.index {
            let index = open_index(path)?;
            let searcher = Searcher::new(index, Arc::clone(&base), output.progress())?;
            let mut searcher = self.walked.set(searcher)?.devices(&self.device.0)?;
            for &width in &self.widths {
                for &batch in &batches {
                    let renamed = |error| Error::from(error).renamed("width", "widths");
                    searcher = searcher.width(width).map_err(renamed)?.batch(batch);
                    let progress = output.progress();
                    let test = TestQueries::new(&queries, &truth, k);
                    let evaluations = searcher.evaluate(test, &self.beams, progress);
                    for evaluation in
                        evaluations.map_err(|error| Error::from(error).renamed("beam", "beams"))?
                    {
                        if events.is_empty() {
                            say_header(k, on_gpu, output);
                        }
                        let share = bandwidth(&evaluation, searcher.device_name());
                        let vectors = self.walked.name();
                        let run = Run { searcher: &searcher, vectors, width, batch, evaluation, share };
                        run.say(output);
                        let event = run.event();
                        output.event(&event);
                        events.push(event);
                    }
                }
            }
        }
        self.output.as_deref().map_or(Ok(()), |path| output.write_events(path, &events))
    }
}

/// Prints the header of the table.
fn say_header(k: usize, on_gpu: bool, output: &Output) {
    let recall = format!("recall@{k}");
    let device = if on_gpu { format!(" {:>11} {:>9}", "device QPS", "bandwidth") } else { String::new() };
    output.result(format_args!(
        "{:<10} {:>5} {:>7} {:>5} {recall:>11} {:>10} {:>11}{device}",
        "index", "width", "batch", "beam", "distances", "QPS"
    ));
}

/// The share of the device's peak bandwidth at which the kernel reads the base.
fn bandwidth(evaluation: &Evaluation, device_name: Option<&str>) -> Option<f64> {
    let rates = device_name.and_then(Rates::for_device);
    evaluation.device_bytes.zip(rates).map(|(bytes, rates)| bytes / rates.bytes)
}

/// The searches of one index with one beam, width and batch.
struct Run<'a> {
    searcher: &'a Searcher,
    /// What it walks on.
    vectors: String,
    width: usize,
    batch: usize,
    evaluation: Evaluation,
    /// Share of the device's peak bandwidth, on a GPU.
    share: Option<f64>,
}

impl Run<'_> {
    fn say(&self, output: &Output) {
        let Self { searcher, width, batch, evaluation, share, .. } = self;
        let Evaluation { beam, recall, qps, device_qps, distances, .. } = evaluation;
        let kind = searcher.index().kind();
        let on_device = device_qps.map_or(String::new(), |qps| grouped(qps.round()));
        let share = share.map_or(String::new(), |share| format!("{:.1} %", 100.0 * share));
        let line = format!(
            "{kind:<10} {width:>5} {batch:>7} {beam:>5} {recall:>11.4} {:>10} {:>11} {on_device:>11} {share:>9}",
            grouped(distances.round()),
            grouped(qps.round())
        );
        output.result(line.trim_end());
    }

    /// The run as a JSON line.
    fn event(&self) -> Value {
        let Self { searcher, vectors, width, batch, evaluation, share } = self;
        let (index, base) = (searcher.index(), searcher.base());
        let Evaluation { beam, k, recall, recall_ids, qps, device_qps, device_bytes, distances } = evaluation;
        json!({
            "event": "bench search", "n": base.len(), "dim": base.dim(), "type": base.element_type().name(),
            "index": index.kind(), "metric": index.metric().name_for(index.fingerprint().element), "degree": index.max_degree(),
            "device": searcher.runs_on(), "device_name": searcher.device_name(),
            "vectors": vectors, "k": k, "beam": beam, "width": width, "batch": batch,
            "recall": recall, "recall_ids": recall_ids, "distances": distances, "qps": qps,
            "device_qps": device_qps, "device_bytes_per_second": device_bytes, "bandwidth_share": share,
        })
    }
}
