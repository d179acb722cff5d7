//! `tagore demo`

use std::path::PathBuf;

use serde_json::json;
use tagore::{Builder, Descent, Metric, Strategy, Synth, TestQueries, evaluate, ground_truth};

use crate::draw::{Series, recall_qps_plot};
use crate::error::Result;
use crate::eval::event;
use crate::files::{Files, Kind};
use crate::output::{Output, grouped};

const ROWS: usize = 20_000;
const DIM: usize = 96;
const QUERIES: usize = 1000;
const K: usize = 10;
/// Beams of the plot.
const BEAMS: [usize; 8] = [10, 15, 20, 30, 50, 70, 100, 150];

/// Beams of the table.
const SHOWN: [usize; 3] = [20, 50, 100];

#[derive(clap::Args)]
pub(crate) struct Args {
    /// File of the plot
    #[arg(short, long, value_name = "SVG", default_value = "tagore-demo.svg")]
    output: PathBuf,
    /// Seed of the data and of the indexes
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        Files::default().write(Kind::Plot, [&self.output]).check(output)?;
        let progress = output.progress();
        let synth = Synth::new(ROWS, DIM, self.seed)?;
        let (base, queries) = (synth.base(), synth.queries(QUERIES));
        let (rows, count) = (grouped(ROWS), grouped(QUERIES));
        output.result(format_args!("{rows} x {DIM} synthetic vectors, {count} queries"));
        let truth = ground_truth(&base, &queries, Metric::L2, K, progress)?;
        let descent = Descent::new().seed(self.seed).progress(progress.clone());
        let graph = descent.build(&base)?;
        let descended = graph.stats().seconds;
        output.result(format_args!(
            "k-NN graph, K = {}, in {descended:.2} s; build = that and pruning",
            graph.k()
        ));
        output.result("");
        let beams = SHOWN.map(|beam| format!("{:>19}", format!("beam {beam}"))).concat();
        output.result(format_args!("{:>7} {:>8} {:>7}{beams}", "", "build s", "degree"));
        output.result(format_args!(
            "{:>7} {:>8} {:>7}{}",
            "index",
            "",
            "mean",
            format!("{:>11}{:>8}", "recall@10", "QPS").repeat(3)
        ));
        let mut lines = Vec::new();
        // The kinds of the paper: the others need a threshold in the unit of the data.
        let strategies =
            [Strategy::cagra(), Strategy::nsg(), Strategy::nssg(), Strategy::vamana(), Strategy::dpg()];
        for strategy in strategies {
            let builder = Builder::new(strategy).descent(descent.clone());
            let (index, stats) = builder.build_with_stats(&base, Some(&graph))?;
            let seconds = descended + stats.prune.seconds;
            let evaluations =
                evaluate(&index, &base, TestQueries::new(&queries, &truth, K), &BEAMS, progress)?;
            let shown = || evaluations.iter().filter(|evaluation| SHOWN.contains(&evaluation.beam));
            let found: String =
                shown().map(|e| format!("{:>11.4}{:>8}", e.recall, grouped(e.qps.round()))).collect();
            output.result(format_args!(
                "{:>7} {seconds:>8.2} {:>7.1}{found}",
                index.kind(),
                index.mean_degree()
            ));
            output.event(&json!({
                "event": "build", "index": index.kind(), "n": ROWS, "dim": DIM, "device": stats.prune.device,
                "seconds": { "descent": descended, "total": seconds }, "mean_degree": index.mean_degree(),
            }));
            shown().for_each(|evaluation| output.event(&event(evaluation)));
            lines.push(Series::new(index.kind(), &evaluations));
        }
        let title = format!("{rows} x {DIM} synthetic vectors");
        recall_qps_plot(&self.output, &title, K, &lines)?;
        output.result("");
        output.result(format_args!("recall against throughput: {}", self.output.display()));
        Ok(())
    }
}
