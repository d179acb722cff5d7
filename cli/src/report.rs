//! Reports on indexes, and the recall that `--min-recall` requires.

use std::path::{Path, PathBuf};

use tagore::{Device, HeldFile, Measure, Report};
use tagore_text::path_text;

use crate::draw::report_page;
use crate::error::{Error, Result};
use crate::files::{Files, Kind};
use crate::output::{Output, grouped, is_standard};
use crate::spool;

#[derive(clap::Args)]
#[command(next_help_heading = "Report")]
pub(crate) struct ReportOptions {
    /// File of the report as JSON; - for standard output [default of builds: INDEX.report.json]
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// File of the report as an HTML page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Fail if recall@10 at beam 100 of rows left out of the search is below X
    #[arg(long, value_name = "X", value_parser = share)]
    min_recall: Option<f64>,
    /// Random nodes to measure recall on, as nodes of the k-NN graph and as queries
    #[arg(long, value_name = "N", default_value_t = 1000)]
    verify: usize,
}

/// The report of `index` if no other file is named.
pub(crate) fn beside(index: &Path) -> PathBuf {
    let mut name = index.as_os_str().to_owned();
    name.push(".report.json");
    name.into()
}

/// Removes the report of an older index that was replaced by `index`.
pub(crate) fn remove_beside(index: &Path) -> Result<()> {
    let report = beside(index);
    if !std::fs::symlink_metadata(&report).is_ok_and(|found| found.is_file()) {
        return Ok(());
    }
    match std::fs::remove_file(&report) {
        // Another process has removed it.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => Ok(removed.map_err(|source| tagore::Error::Io { path: report, source })?),
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("found {text}, expected 0 to 1"))
}

/// The files of a report, which no other run can write meanwhile.
pub(crate) struct ReportFiles {
    json: Option<HeldFile>,
    html: Option<HeldFile>,
}

impl ReportOptions {
    /// Checks the flags against each other, before any work.
    pub(crate) fn check(&self) -> Result<()> {
        if self.min_recall.is_some() && self.verify == 0 {
            return Err(Error::usage("--verify: found 0, expected at least 1 with --min-recall"));
        }
        Ok(())
    }

    /// Adds the files written by [`write`](Self::write).
    pub(crate) fn add_to(&self, files: Files, index: Option<&Path>) -> Files {
        files.write(Kind::Json, self.json(index)).write(Kind::Html, &self.html)
    }

    /// Files written by [`write`](Self::write).
    pub(crate) fn files(&self, index: Option<&Path>) -> Vec<PathBuf> {
        self.paths(index).into_iter().flatten().collect()
    }

    /// Files of the JSON and of the page, standard output left out.
    fn paths(&self, index: Option<&Path>) -> [Option<PathBuf>; 2] {
        [self.json(index), self.html.clone()].map(|path| path.filter(|path| !is_standard(path)))
    }

    /// File of the JSON.
    fn json(&self, index: Option<&Path>) -> Option<PathBuf> {
        self.report.clone().or_else(|| index.map(beside))
    }

    /// Whether a given flag needs the index to be read.
    pub(crate) fn needs_index(&self) -> bool {
        self.report.is_some() || self.html.is_some() || self.min_recall.is_some()
    }

    /// Refuses `--min-recall`, for this reason.
    pub(crate) fn refuse_min_recall(&self, reason: &str) -> Result<()> {
        match self.min_recall {
            Some(recall) => Err(Error::usage(format!("--min-recall {recall} {reason}"))),
            None => Ok(()),
        }
    }

    /// Number of nodes to measure recall on.
    pub(crate) fn nodes(&self) -> usize {
        self.verify
    }

    /// Settings of measurements on `device`.
    pub(crate) fn measure(&self, device: Device, seed: u64, output: &Output) -> Measure {
        let progress = output.progress().clone();
        Measure { nodes: self.verify, seed, progress, ..Measure::default() }.on(device)
    }

    /// Keeps other runs from writing the files of the report of `index`. Held from before the index
    /// has its name on, a report beside an index is that of this index.
    pub(crate) fn hold(&self, index: Option<&Path>) -> Result<ReportFiles> {
        let [json, html] = self.paths(index).map(|path| path.map(HeldFile::hold).transpose());
        Ok(ReportFiles { json: json?, html: html? })
    }

    /// Writes the report, and prints a summary line by line with `say`.
    pub(crate) fn write(
        &self,
        report: &Report,
        files: ReportFiles,
        output: &Output,
        say: impl Fn(String),
    ) -> Result<()> {
        match (files.json, &self.report) {
            (Some(file), _) => report.save_in(file)?,
            (None, Some(standard)) => {
                output.write(standard, &format!("{}\n", serde_json::json!(report)))?;
            }
            (None, None) => {}
        }
        match (files.html, &self.html) {
            (Some(file), _) => file.write(report_page(report)?.as_bytes())?,
            (None, Some(standard)) => output.write(standard, &report_page(report)?)?,
            (None, None) => {}
        }
        lines(report).into_iter().for_each(say);
        report.warnings().into_iter().for_each(|warning| output.warn(format_args!("{warning}")));
        Ok(())
    }

    /// Fails if the recall of `index` is below `--min-recall`.
    pub(crate) fn judge(&self, report: &Report, index: &Path) -> Result<()> {
        let (Some(least), Some(search)) = (self.min_recall, &report.search) else { return Ok(()) };
        if search.recall >= least {
            return Ok(());
        }
        let found = format!("recall@{} {:.4} at beam {}", search.k, search.recall, search.beam);
        Err(Error::file(index, found, format_args!("at least {least} (--min-recall)")))
    }
}

/// Names the files of a report: the index, and the pipe that the base was copied from.
pub(crate) fn name_files(report: &mut Report, index: &Path) {
    report.file = Some(spool::named(&path_text(index)).into_owned());
    report.base = report.base.take().map(|base| spool::named(&base).into_owned());
}

/// A report in lines.
fn lines(report: &Report) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(knn) = &report.knn {
        for (k, recall) in &knn.recall {
            lines.push(format!("k-NN      recall@{k} {recall:.4} over {} nodes", grouped(knn.nodes)));
        }
    }
    if let Some(search) = &report.search {
        for at in &search.beams {
            lines.push(format!(
                "search    recall@{} {:.4} at beam {} over {} rows left out, {} distances, {} QPS",
                search.k,
                at.recall,
                at.beam,
                grouped(search.queries),
                grouped(at.distances.round()),
                grouped(at.qps.round())
            ));
        }
    }
    if let Some(found) = &report.self_recall {
        let kinds: Vec<String> =
            found.kinds.iter().map(|(kind, share)| format!("{kind} {share:.4}")).collect();
        lines.push(format!(
            "self      {:.4} of {} rows found by a search for the row itself at beam {} ({})",
            found.recall,
            grouped(found.queries),
            found.beam,
            kinds.join(", ")
        ));
    }
    lines.push(format!("degree    {:.2} on average, at most {}", report.mean_degree, report.max_degree));
    lines.push(format!(
        "edges     {}, {} to the node itself, {} twice in a row",
        grouped(report.edges),
        grouped(report.self_edges),
        grouped(report.duplicate_edges)
    ));
    lines.push(format!(
        "reach     {} of {} nodes from {} entry points",
        grouped(report.n as u64 - report.unreachable),
        grouped(report.n),
        grouped(report.entries.len())
    ));
    lines.push(format!("report    {:.2} s", report.seconds));
    lines
}
