//! `tagore eval`

use std::path::PathBuf;

use serde_json::json;
use tagore::{Evaluation, GroundTruth, Result, Series, recall_qps_plot};

use super::options::check_output;
use super::output::Output;
use super::search::Searched;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    searched: Searched,
    /// The exact nearest neighbours of the queries
    #[arg(long, value_name = "GT")]
    groundtruth: PathBuf,
    /// Neighbours asked for per query
    #[arg(short, default_value_t = 10)]
    k: usize,
    /// Beam widths to measure
    #[arg(long, value_delimiter = ',', default_value = "20,50,100", value_name = "L,..")]
    beams: Vec<usize>,
    /// Draw recall against throughput
    #[arg(long, value_name = "SVG")]
    plot: Option<PathBuf>,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        self.plot.as_deref().map(check_output).transpose()?;
        let (index, base, queries) = self.searched.open()?;
        let truth = GroundTruth::open(&self.groundtruth, output.progress())?;
        let progress = output.progress();
        let searcher = self.searched.searcher(&index, &base, progress)?;
        let evaluations = searcher.evaluate(&queries, &truth, self.k, &self.beams, progress)?;
        output.say(format_args!(
            "{:>6} {:>10} {:>10} {:>10}   on {}",
            "beam",
            format!("recall@{}", self.k),
            "QPS",
            "distances",
            searcher.runs_on()
        ));
        for evaluation in &evaluations {
            let Evaluation { beam, recall, qps, device_qps, distances, .. } = evaluation;
            let kernel =
                device_qps.map_or(String::new(), |qps| format!("   {qps:.0} QPS on the device alone"));
            output.say(format_args!("{beam:>6} {recall:>10.4} {qps:>10.0} {distances:>10.0}{kernel}"));
            output.event(&event(evaluation));
        }
        if let Some(path) = &self.plot {
            let title = format!("{} over {} vectors of dimension {}", index.kind(), base.len(), base.dim());
            recall_qps_plot(path, &title, self.k, &[series(index.kind(), &evaluations)])?;
        }
        Ok(())
    }
}

/// An evaluation as a JSON line.
pub(crate) fn event(evaluation: &Evaluation) -> serde_json::Value {
    let Evaluation { beam, k, recall, qps, device_qps, distances, .. } = evaluation;
    json!({
        "event": "eval", "beam": beam, "k": k, "recall": recall, "qps": qps, "device_qps": device_qps,
        "distances": distances,
    })
}

/// Evaluations as a line of a plot.
pub(crate) fn series(name: &str, evaluations: &[Evaluation]) -> Series {
    Series { name: name.to_owned(), points: evaluations.iter().map(|e| (e.recall, e.qps)).collect() }
}
