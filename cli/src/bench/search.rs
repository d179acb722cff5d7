//! `tagore bench search`

use std::path::PathBuf;

use serde_json::{Value, json};
use tagore::gpu::Rates;
use tagore::{Device, Evaluation, GroundTruth, Index, Result, Searcher, Vectors};

use crate::files::Files;
use crate::output::{Output, save_events};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The data set that the indexes were built over
    #[arg(short, long = "input", value_name = "BASE")]
    input: PathBuf,
    /// The queries
    #[arg(long, value_name = "QUERIES")]
    queries: PathBuf,
    /// The exact nearest neighbours of the queries
    #[arg(long, value_name = "GT")]
    groundtruth: PathBuf,
    /// The indexes
    #[arg(long, required = true, num_args = 1.., value_name = "INDEX")]
    index: Vec<PathBuf>,
    /// Neighbours asked for per query
    #[arg(short, default_value_t = 10)]
    k: usize,
    /// Beam widths
    #[arg(long, value_delimiter = ',', default_value = "32,64,128,256", value_name = "L,..")]
    beams: Vec<usize>,
    /// Nodes that a search on a GPU expands in a step
    #[arg(long, value_delimiter = ',', default_value = "1", value_name = "W,..")]
    widths: Vec<usize>,
    /// Queries that are put on a GPU at once [default: all]
    #[arg(long, value_delimiter = ',', value_name = "N,..")]
    batches: Option<Vec<usize>>,
    /// Where searches run: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: Device,
    /// Where the JSON lines go as well
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
                    for evaluation in &searcher.evaluate(&queries, &truth, self.k, &self.beams, progress)? {
                        let share = bandwidth(evaluation, searcher.device_name());
                        say(index.kind(), (width, batch), evaluation, share, output);
                        let event = event(&searcher, (&index, &base), (width, batch), evaluation, share);
                        output.event(&event);
                        events.push(event);
                    }
                }
            }
        }
        self.output.as_deref().map_or(Ok(()), |path| save_events(path, &events))
    }
}

/// The share of the device's peak at which the kernel reads vectors of the base.
fn bandwidth(evaluation: &Evaluation, device_name: Option<&str>) -> Option<f64> {
    let rates = device_name.and_then(Rates::of);
    evaluation.device_bytes.zip(rates).map(|(bytes, rates)| bytes / rates.bytes)
}

fn say(
    kind: &str,
    (width, batch): (usize, usize),
    evaluation: &Evaluation,
    share: Option<f64>,
    output: &Output,
) {
    let Evaluation { beam, recall, qps, device_qps, distances, .. } = evaluation;
    let on_device = device_qps.map_or(String::new(), |qps| format!("{qps:.0}"));
    let share = share.map_or(String::new(), |share| format!("{:.1} %", 100.0 * share));
    let line = format!(
        "{kind:<10} {width:>5} {batch:>7} {beam:>5} {recall:>11.4} {distances:>10.0} {qps:>11.0} {on_device:>11} {share:>9}"
    );
    output.say(line.trim_end());
}

fn event(
    searcher: &Searcher<'_>,
    (index, base): (&Index, &Vectors),
    (width, batch): (usize, usize),
    evaluation: &Evaluation,
    share: Option<f64>,
) -> Value {
    let Evaluation { beam, k, recall, recall_ids, qps, device_qps, device_bytes, distances } = evaluation;
    json!({
        "event": "bench search", "n": base.len(), "dim": base.dim(), "type": base.element_type().name(),
        "index": index.kind(), "metric": index.metric().to_string(), "degree": index.max_degree(),
        "device": searcher.runs_on(), "device_name": searcher.device_name(),
        "k": k, "beam": beam, "width": width, "batch": batch,
        "recall": recall, "recall_ids": recall_ids, "distances": distances, "qps": qps, "device_qps": device_qps,
        "device_bytes_per_second": device_bytes, "bandwidth_share": share,
    })
}
