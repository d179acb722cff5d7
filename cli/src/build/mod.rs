//! `tagore build`

mod clusters;
mod in_memory;
mod options;

use std::panic::resume_unwind;
use std::path::PathBuf;
use std::thread;

use serde_json::{Value, json};
use tagore::outofcore::{ClusterPlan, default_work_folder, read_ahead, unfinished};
use tagore::{
    Builder, DataShape, Fingerprint, Format, Index, IndexRoom, Measure, QueryStats, Report, Strategy, Vectors,
};

use crate::error::Result;
use crate::files::{Files, Kind};
use crate::laps::Laps;
use crate::limits::LimitOptions;
use crate::options::{DescentOptions, Input, index_of};
use crate::output::{Output, grouped};
use crate::read::open;
use crate::report::{ReportFiles, ReportOptions, beside, name_files};
use crate::spool;
use crate::walked::BuiltOn;

pub(crate) use options::PruneOptions;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// File of the index [default: beside the data set: BASE.tagore without its extension]
    #[arg(short, long, value_name = "INDEX")]
    output: Option<PathBuf>,
    /// The given or the default output.
    #[arg(skip)]
    index: PathBuf,
    /// Kind of index: cagra, nsg, nssg, vamana, dpg, tau-mng or alpha-cng [default: nssg, or vamana
    /// out of core]
    #[arg(long = "kind", value_name = "KIND")]
    strategy: Option<Strategy>,
    #[command(flatten)]
    descent: DescentOptions,
    #[command(flatten)]
    prune: PruneOptions,
    /// What to build on: full, the vectors themselves; their codes in f16 or int8, which take less
    /// memory of a GPU and less to read; or auto: int8 if full exceeds memory and int8 does not
    #[arg(long, default_value_t, value_name = "TYPE")]
    vectors: BuiltOn,
    /// Prune this k-NN graph, written by `tagore knn`, instead of building one
    #[arg(
        long,
        value_name = "KNN",
        conflicts_with_all = ["knn", "iterations", "start", "expand"],
        help_heading = "K-NN graph"
    )]
    graph: Option<PathBuf>,
    /// Fit the index to queries that do not look like the data set, such as texts among images: a
    /// sample of them, at least 100, about one for each ten rows for the whole gain
    #[arg(long, value_name = "FILE", value_parser = spool::vectors(), help_heading = "Queries")]
    queries_sample: Option<PathBuf>,
    /// Format of the sample [default: by its extension]
    #[arg(long, value_name = "FORMAT", requires = "queries_sample", help_heading = "Queries")]
    query_format: Option<Format>,
    #[command(flatten)]
    report: ReportOptions,
    /// Measure nothing and write no report
    #[arg(long, conflicts_with_all = ["report", "html", "min_recall", "verify"], help_heading = "Report")]
    no_report: bool,
    /// Draw the stages of the build by the clock, one lane per thread, as SVG
    #[arg(long, value_name = "SVG")]
    timeline: Option<PathBuf>,
    #[command(flatten)]
    limits: LimitOptions,
    /// Folder of work files out of core, empty or new [default: INDEX.work]
    #[arg(long, value_name = "DIR", help_heading = "Out of core")]
    work_dir: Option<PathBuf>,
    /// Keep the work of clusters in memory: no work files, and nothing to resume
    #[arg(long, conflicts_with_all = ["work_dir", "resume", "checkpoint"], help_heading = "Out of core")]
    no_work_files: bool,
    /// Continue an unfinished build out of core, if its work files exist
    #[arg(long, help_heading = "Out of core")]
    resume: bool,
    /// Minimum time between two checkpoints out of core
    #[arg(long, value_name = "SECONDS", default_value_t = 30, help_heading = "Out of core")]
    checkpoint: u64,
}

/// Up to this many bytes, a base is read before the build is planned. A larger one only if it stays
/// in memory.
const READ_FIRST: usize = 4 << 30;

/// Bytes per row of a build beside its vectors, at most.
const BUILD_ROW: usize = 4 << 10;

/// Up to this many bytes, a build is in memory without a look at the device.
const ALWAYS_FITS: usize = 1 << 30;

/// A build whose flags have been checked and whose base is open.
struct Started {
    builder: Builder,
    base: Vectors,
    laps: Laps,
    /// Held to the end, if there is no report too.
    reports: ReportFiles,
}

impl Args {
    pub(crate) fn run(mut self, output: &Output) -> Result<()> {
        let mut laps = Laps::begin();
        let given = self.strategy.as_ref().map(|strategy| self.prune.builder(strategy)).transpose()?;
        self.index = self.output.take().map_or_else(|| index_of(self.input.path(), "--output"), Ok)?;
        self.report.check()?;
        self.files().check(output)?;
        let base = self.input.open()?;
        let sample = self.queries_sample.as_deref().map(|path| open(path, self.query_format)).transpose()?;
        let descent = self.descent.descent(base.element_type(), output)?;
        let set = |builder: Builder| {
            let builder = builder.descent(descent.clone()).devices(&self.descent.device.0);
            builder.compressed(self.vectors.compression()).queries(sample.clone())
        };
        let builder = set(match given {
            Some(builder) => builder,
            None => {
                self.prune.builder(&self.default_kind(set(Builder::new(Strategy::nssg())), &base, output))?
            }
        });
        // The device is opened, and kernels are compiled, while the base is read.
        let preparation = self.graph.is_none().then(|| builder.clone().sample(self.sample()).prepare(&base));
        laps.end("start");
        let room = self.read(&builder, &base, output)?;
        laps.end("read");
        drop(preparation);
        laps.end("device");
        // A given graph is pruned in memory, unless a limit is given too.
        let (builder, plan) = if self.limits.are_given() || self.graph.is_none() {
            let (builder, plan) = self.fit(builder, &base)?;
            if let (BuiltOn::Auto, Some(codes)) = (self.vectors, builder.compression()) {
                output.say(format_args!(
                    "codes     {codes}: a build on the vectors exceeds the limits of memory"
                ));
            }
            (builder, plan)
        } else {
            (builder, None)
        };
        // Work files of a stopped build would be left behind.
        let stopped = if plan.is_none() {
            unfinished(&self.work(), &base, &self.limits.given(), self.resume)?
        } else {
            None
        };
        laps.end("plan");
        let started = Started { builder, base, laps, reports: self.report.hold(Some(&self.index))? };
        let Some(plan) = plan.or(stopped) else { return self.in_memory(started, room, output) };
        drop(room);
        self.in_clusters(started, plan, self.no_work_files, output)
    }

    /// Reads the base, if it is probably built in memory, and reserves the room of the index
    /// meanwhile.
    fn read(&self, builder: &Builder, base: &Vectors, output: &Output) -> Result<Option<IndexRoom>> {
        // With limits the index is probably built out of core.
        let in_memory = !self.limits.are_given();
        let bytes = base.len().saturating_mul(base.element_type().row_bytes(base.dim()));
        if bytes > READ_FIRST && !(read_ahead(base) && in_memory) {
            return Ok(None);
        }
        let degree = builder.strategy().max_degree();
        let reserve = || IndexRoom::reserve(&self.index, base.len(), degree);
        thread::scope(|scope| {
            let spawn = || thread::Builder::new().spawn_scoped(scope, reserve).ok();
            let room = in_memory.then(spawn).flatten();
            base.validate(output.progress())?;
            DataShape::inspect(base, output.progress())?;
            if in_memory && self.graph.is_none() {
                builder.find_repeated(base, output.progress())?;
            }
            // Without a thread, the room is reserved when the index is written.
            let room = room.map(|room| room.join().unwrap_or_else(|panic| resume_unwind(panic)));
            Ok(room.transpose()?)
        })
    }

    /// The builder within memory, and its clusters if it builds in clusters.
    fn fit(&self, builder: Builder, base: &Vectors) -> Result<(Builder, Option<ClusterPlan>)> {
        // A build that is continued, or from a graph, stays what it is.
        let is_continued = self.resume && self.work().exists();
        if !matches!(self.vectors, BuiltOn::Auto) || is_continued || self.graph.is_some() {
            let plan = self.limits.plan(&builder, base)?;
            return Ok((builder, plan));
        }
        Ok(builder.fit(base, &self.limits.given())?)
    }

    /// The kind for the data, which is said: that of the builder, NSSG, or Vamana if that exceeds
    /// memory.
    fn default_kind(&self, nssg: Builder, base: &Vectors, output: &Output) -> Strategy {
        let row = base.element_type().row_bytes(base.dim()).saturating_add(BUILD_ROW);
        let is_small = !self.limits.are_given() && base.len().saturating_mul(row) < ALWAYS_FITS;
        let in_memory = is_small || self.graph.is_some() || matches!(self.fit(nssg, base), Ok((_, None)));
        default_kind(in_memory, output)
    }

    fn files(&self) -> Files {
        let files = Files::read([self.input.path()]).and_read(&self.graph).and_read(&self.queries_sample);
        let files =
            files.write(Kind::Index, [&self.index]).work_in(self.work()).write(Kind::Plot, &self.timeline);
        self.report.add_to(files, Some(&self.index))
    }

    /// The folder of work files out of core.
    fn work(&self) -> PathBuf {
        self.work_dir.clone().unwrap_or_else(|| default_work_folder(&self.index))
    }

    /// Nodes whose k-NN lists are kept for the report.
    fn sample(&self) -> usize {
        if self.no_report { 0 } else { self.report.nodes() }
    }

    /// Whether the stages are recorded.
    pub(crate) fn has_timeline(&self) -> bool {
        self.timeline.is_some()
    }

    /// Files of the reports. Older ones are deleted right before the index takes its place, so that
    /// neither a killed run nor one without a report leaves that of another index.
    fn reports(&self) -> Vec<PathBuf> {
        let mut files = self.report.files(Some(&self.index));
        files.push(beside(&self.index));
        files
    }

    fn measure(&self, output: &Output) -> Measure {
        let measure = self.report.measure(self.descent.device.first(), self.descent.seed, output);
        Measure { gpu_memory: self.limits.gpu_memory(), ..measure }
    }

    /// The title of a timeline.
    fn title(&self, index: &Index) -> String {
        let Fingerprint { rows, dim, .. } = index.fingerprint();
        let rows = grouped(rows);
        format!("{} of {rows} x {dim} on {}", index.kind(), self.descent.device.first())
    }

    /// Writes the report and checks `--min-recall`.
    fn end(&self, mut report: Report, files: ReportFiles, mut event: Value, output: &Output) -> Result<()> {
        name_files(&mut report, &self.index);
        let report = &report;
        self.report.write(report, files, output, |line| output.say(line))?;
        event["report"] = json!(report);
        output.event(&event);
        self.report.judge(report, &self.index)
    }

    fn say_index(&self, index: &Index, total: f64, output: &Output) {
        let Fingerprint { rows, dim, .. } = index.fingerprint();
        output.say(format_args!(
            "{}: {} of {} x {dim} in {total:.2} s",
            self.index.display(),
            index.kind(),
            grouped(rows)
        ));
    }
}

/// The kind of an index that is built in memory or out of core, if none is named, which is said.
pub(crate) fn default_kind(in_memory: bool, output: &Output) -> Strategy {
    let (kind, what) = if in_memory {
        (Strategy::nssg(), "")
    } else {
        (Strategy::vamana(), " for data that memory does not hold")
    };
    output.say(format_args!("kind      {}, the default{what}: --kind chooses another", kind.kind()));
    kind
}

/// Prints what became of the sample of queries, if there is one.
fn say_queries(queries: Option<&QueryStats>, output: &Output) {
    let Some(QueryStats { held_out, edges, entries, recall, recall_before, distances, .. }) = queries else {
        return;
    };
    output.say(format_args!(
        "queries   {} edges and {entries} entry points added: recall@10 of {held_out} held-out queries {:.4} for \
         {:.4} at beam 16, {:.4} for {:.4} at beam 128, {:.0} and {:.0} distances",
        grouped(*edges),
        recall[0],
        recall_before[0],
        recall[1],
        recall_before[1],
        distances[0],
        distances[1]
    ));
}

/// Prints the number of repeated rows, if any.
fn say_repeated(rows: u64, output: &Output) {
    if rows > 0 {
        let rows = grouped(rows);
        output.say(format_args!("repeated  {rows} rows equal an earlier row, and are found with it"));
    }
}
