//! `tagore eval`

use std::path::{Path, PathBuf};

use serde_json::json;
use tagore::{
    DistanceConvention, Evaluation, ExactSearch, GroundTruth, IdSet, Searcher, TestQueries, Vectors,
};

use crate::draw::{Series, recall_qps_plot};
use crate::error::{Error, Result};
use crate::files::Kind;
use crate::options::Filter;
use crate::output::{Output, grouped};
use crate::read::open_ids;
use crate::search::{K, Searched};

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    searched: Searched,
    /// Exact nearest neighbours of the queries, as `tagore groundtruth` writes them [default: exact
    /// search finds them]
    #[arg(long, value_name = "GT")]
    groundtruth: Option<PathBuf>,
    #[command(flatten)]
    filter: Filter,
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
        let files = self.searched.files().and_read(&self.groundtruth).and_read(&self.filter.file);
        files.write(Kind::Plot, &self.plot).check(output)?;
        let (index, base, queries) = self.searched.open()?;
        let progress = output.progress();
        let filter = self.filter.open(&base)?;
        let given = self.groundtruth.as_deref().map(|path| open_ids(path, progress)).transpose()?;
        let searcher = self.searched.searcher(index, base, output)?;
        let (index, base) = (searcher.index(), searcher.base());
        let truth = match given {
            Some(truth) => truth,
            None => self.exact(&searcher, &queries, filter.as_ref(), output)?,
        };
        let k = self.k.unwrap_or(K.min(truth.k()));
        let beams = self
            .beams
            .clone()
            .unwrap_or_else(|| if k > 20 { vec![k, 2 * k, 4 * k] } else { vec![20, 50, 100] });
        let test = TestQueries { among: filter.as_ref(), ..TestQueries::new(&queries, &truth, k) };
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

    /// The exact nearest neighbours of the queries, among the rows that a search may find.
    fn exact(
        &self,
        searcher: &Searcher,
        queries: &Vectors,
        filter: Option<&IdSet>,
        output: &Output,
    ) -> Result<GroundTruth> {
        let (index, base) = (searcher.index(), searcher.base());
        let among = index.searched(filter);
        let k = self.k.unwrap_or(K.min(among.as_ref().map_or(base.len(), IdSet::len).max(1)));
        let search = ExactSearch::new(k).metric(index.metric()).among(among);
        let search = search.devices(self.searched.devices()).progress(output.progress().clone());
        let (truth, stats) = search.run(base, queries)?;
        output.say(format_args!("exact search on {} in {:.2} s", stats.device, stats.seconds));
        Ok(truth)
    }

    /// Prints the distance convention of the given ground truth, if it is not `ours`.
    fn say_convention(&self, found: Option<DistanceConvention>, ours: DistanceConvention, output: &Output) {
        let Some(path) = self.groundtruth.as_deref().map(Path::display) else { return };
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
