//! `tagore eval`

use std::path::PathBuf;

use serde_json::json;
use tagore::{DistanceConvention, Evaluation, TestQueries};

use crate::draw::{Series, recall_qps_plot};
use crate::error::{Error, Result};
use crate::files::Kind;
use crate::output::{Output, grouped};
use crate::read::open_ids;
use crate::search::{K, Searched};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    searched: Searched,
    /// Exact nearest neighbours of the queries
    #[arg(long, value_name = "GT")]
    groundtruth: PathBuf,
    /// Neighbours per query [default: 10, or those of the ground truth if fewer]
    #[arg(short)]
    k: Option<usize>,
    /// Beam widths to measure [default: 20,50,100, or one, two and four times k if k is above 20]
    #[arg(long, value_delimiter = ',', value_name = "L,..")]
    beams: Option<Vec<usize>>,
    /// Plot of recall against throughput
    #[arg(long, value_name = "SVG")]
    plot: Option<PathBuf>,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        self.searched.files().and_read([&self.groundtruth]).write(Kind::Plot, &self.plot).check(output)?;
        let (index, base, queries) = self.searched.open()?;
        let truth = open_ids(&self.groundtruth, output.progress())?;
        let progress = output.progress();
        let searcher = self.searched.searcher(index, base, output)?;
        let (index, base) = (searcher.index(), searcher.base());
        let k = self.k.unwrap_or(K.min(truth.k()));
        let beams = self
            .beams
            .clone()
            .unwrap_or_else(|| if k > 20 { vec![k, 2 * k, 4 * k] } else { vec![20, 50, 100] });
        let test = TestQueries::new(&queries, &truth, k);
        let evaluations = searcher.evaluate(test, &beams, progress);
        let evaluations = evaluations.map_err(|error| Error::from(error).renamed("beam", "beams"))?;
        let convention = searcher.distance_convention(&queries, &truth, k)?;
        self.say_convention(convention, DistanceConvention::for_metric(index.metric()), output);
        output.result(format_args!(
            "{:>6} {:>10} {:>10} {:>10} {:>10}   on {}",
            "beam",
            format!("recall@{k}"),
            "by ids",
            "QPS",
            "distances",
            searcher.runs_on()
        ));
        for evaluation in &evaluations {
            let Evaluation { beam, recall, recall_ids, qps, device_qps, distances, .. } = evaluation;
            let kernel = device_qps
                .map_or(String::new(), |qps| format!("   {} QPS on the device alone", grouped(qps.round())));
            output.result(format_args!(
                "{beam:>6} {recall:>10.4} {recall_ids:>10.4} {:>10} {:>10}{kernel}",
                grouped(qps.round()),
                grouped(distances.round())
            ));
            let mut event = event(evaluation);
            event["truth_distances"] = json!(convention.map(DistanceConvention::name));
            output.event(&event);
        }
        if let Some(path) = &self.plot {
            let title = format!("{} of {} x {}", index.kind(), grouped(base.len()), base.dim());
            recall_qps_plot(path, &title, k, &[Series::new(index.kind(), &evaluations)])?;
        }
        Ok(())
    }

    /// Prints the distance convention of the ground truth, if it is not `ours`.
    fn say_convention(&self, found: Option<DistanceConvention>, ours: DistanceConvention, output: &Output) {
        let path = self.groundtruth.display();
        match found {
            None => {}
            Some(DistanceConvention::Unknown) => {
                output.say(format_args!(
                    "{path}: its distances follow no known convention; its ids are compared"
                ));
            }
            Some(found) if found == ours => {}
            Some(found) => {
                output.say(format_args!(
                    "{path}: its distances are {found}, those of the index {ours}; its ids are compared"
                ));
            }
        }
    }
}

/// An evaluation as a JSON line.
pub(crate) fn event(evaluation: &Evaluation) -> serde_json::Value {
    let Evaluation { beam, k, recall, recall_ids, qps, device_qps, distances, .. } = evaluation;
    json!({
        "event": "eval", "beam": beam, "k": k, "recall": recall, "recall_ids": recall_ids, "qps": qps,
        "device_qps": device_qps, "distances": distances,
    })
}
