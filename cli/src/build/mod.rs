//! `tagore build`

mod in_memory;
mod options;
mod out_of_core;

use std::path::PathBuf;
use std::time::Instant;

use serde_json::{Value, json};
use tagore::outofcore::Order;
use tagore::{Builder, Index, Measure, Report, Strategy, Vectors, with_suffix};

use crate::error::Result;
use crate::files::Files;
use crate::limits::LimitOptions;
use crate::options::{DescentOptions, Input};
use crate::output::{Output, grouped};
use crate::report::ReportOptions;

pub(crate) use options::PruneOptions;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// File of the index
    #[arg(short, long, value_name = "INDEX")]
    output: PathBuf,
    /// Kind of index: cagra, nsg, nssg, vamana, dpg, tau-mng or alpha-cng
    #[arg(long = "index", value_name = "KIND")]
    strategy: Strategy,
    #[command(flatten)]
    descent: DescentOptions,
    #[command(flatten)]
    prune: PruneOptions,
    /// Prune this k-NN graph, written by `tagore knn`, instead of building one
    #[arg(long, value_name = "KNN", conflicts_with_all = ["knn", "iterations", "start", "expand"])]
    graph: Option<PathBuf>,
    #[command(flatten)]
    report: ReportOptions,
    /// Measure nothing and write no report
    #[arg(long, conflicts_with_all = ["report", "html", "min_recall", "verify"])]
    no_report: bool,
    #[command(flatten)]
    limits: LimitOptions,
    /// Order of clusters out of core: sequential, random, gorder or cluster
    #[arg(long, default_value = "cluster")]
    order: Order,
    /// Folder of work files out of core, empty or new [default: INDEX.work]
    #[arg(long, value_name = "DIR")]
    work_dir: Option<PathBuf>,
    /// Continue an unfinished build out of core, if its work files exist
    #[arg(long)]
    resume: bool,
    /// Least time between two checkpoints out of core
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    checkpoint: u64,
}

/// A build whose flags have been checked and whose base is open.
struct Started {
    builder: Builder,
    base: Vectors,
    began: Instant,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let began = Instant::now();
        let strategy = self.prune.apply(self.strategy.clone())?;
        strategy.check()?;
        self.report.check()?;
        self.files().check()?;
        let base = self.input.open()?;
        let builder =
            Builder::new(strategy).descent(self.descent.descent(output)).devices(&self.descent.device.0);
        // A given graph is pruned in memory, unless a limit is given too.
        let plan = if self.limits.are_given() || self.graph.is_none() {
            self.limits.plan(&builder, &base, self.descent.device.first())?
        } else {
            None
        };
        let started = Started { builder, base, began };
        match plan {
            Some(plan) => self.out_of_core(started, plan, output),
            None => self.in_memory(started, output),
        }
    }

    fn files(&self) -> Files {
        let work = self.work_dir.clone().unwrap_or_else(|| with_suffix(&self.output, ".work"));
        let files = Files::read([&self.input.input]).and_read(&self.graph).write([&self.output]);
        files.work_in(work).write(self.reports())
    }

    /// Files of the reports. Older ones are deleted right before the index takes its place, so that
    /// a killed run never leaves a report of another index.
    fn reports(&self) -> Vec<PathBuf> {
        if self.no_report { Vec::new() } else { self.report.files(Some(&self.output)) }
    }

    fn measure(&self, output: &Output) -> Measure {
        self.report.measure(self.descent.device.first(), self.descent.seed, output)
    }

    /// Writes the report and checks `--min-recall`.
    fn end(&self, report: &Report, mut event: Value, output: &Output) -> Result<()> {
        self.report.write(report, Some(&self.output), output)?;
        event["report"] = json!(report);
        output.event(&event);
        self.report.judge(report, &self.output)
    }

    fn say_index(&self, index: &Index, base: &Vectors, total: f64, output: &Output) {
        output.say(format_args!(
            "{}: {} of {} x {} in {total:.2} s",
            self.output.display(),
            index.kind(),
            grouped(base.len()),
            base.dim()
        ));
    }
}

/// Prints the number of repeated rows, if any.
fn say_repeated(rows: u64, output: &Output) {
    if rows > 0 {
        let rows = grouped(rows);
        output.say(format_args!("repeated  {rows} rows equal an earlier row, and are found with it"));
    }
}
