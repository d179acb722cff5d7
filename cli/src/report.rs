//! Reports of indexes: where they go, and what an index is held to.

use std::path::{Path, PathBuf};

use tagore::{Device, Error, Measure, Report, Result, with_suffix};

use super::output::Output;

#[derive(clap::Args)]
pub(crate) struct ReportOptions {
    /// Where the report goes, as JSON [default of builds: INDEX.report.json]
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Where the report goes as a page of HTML, with its plots in it
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Fail if recall@10 at beam 100 is less
    #[arg(long, value_name = "X", value_parser = share)]
    min_recall: Option<f64>,
    /// Random nodes that recall is measured on, as nodes of the k-NN graph and as queries
    #[arg(long, value_name = "N", default_value_t = 1000)]
    verify: usize,
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("found {text}, expected 0 to 1"))
}

impl ReportOptions {
    /// Checks what can be checked before any work is done.
    pub(crate) fn check(&self) -> Result<()> {
        if self.min_recall.is_some() && self.verify == 0 {
            let expected = "at least 1 with --min-recall".to_owned();
            return Err(Error::Argument { what: "verify", found: "0".to_owned(), expected });
        }
        Ok(())
    }

    /// The files that [`write`](Self::write) writes.
    pub(crate) fn files(&self, index: Option<&Path>) -> Vec<PathBuf> {
        self.json(index).into_iter().chain(self.html.clone()).collect()
    }

    /// Where the JSON goes.
    fn json(&self, index: Option<&Path>) -> Option<PathBuf> {
        self.report.clone().or_else(|| index.map(|index| with_suffix(index, ".report.json")))
    }

    /// Whether anything was asked for that an index has to be read for.
    pub(crate) fn is_asked_for(&self) -> bool {
        self.report.is_some() || self.html.is_some() || self.min_recall.is_some()
    }

    /// Says that there will be no recall to hold an index to.
    pub(crate) fn no_recall(&self, expected: &str) -> Result<()> {
        match self.min_recall {
            Some(recall) => Err(Error::Argument {
                what: "min-recall",
                found: recall.to_string(),
                expected: expected.to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// Nodes that recall is measured on.
    pub(crate) fn nodes(&self) -> usize {
        self.verify
    }

    /// How to measure on `device`.
    pub(crate) fn measure(&self, device: Device, seed: u64, output: &Output) -> Measure {
        let progress = output.progress().clone();
        Measure { nodes: self.verify, seed, progress, ..Measure::default() }.on(device)
    }

    /// Writes the report of `index` and says what is in it.
    pub(crate) fn write(&self, report: &Report, index: Option<&Path>, output: &Output) -> Result<()> {
        if let Some(path) = self.json(index) {
            report.save(path)?;
        }
        if let Some(path) = &self.html {
            report.save_html(path)?;
        }
        say(report, output);
        report.warnings().into_iter().for_each(|warning| output.warn(format_args!("{warning}")));
        Ok(())
    }

    /// An error if the report of `index` is not what was asked for.
    pub(crate) fn judge(&self, report: &Report, index: &Path) -> Result<()> {
        let (Some(least), Some(search)) = (self.min_recall, &report.search) else { return Ok(()) };
        if search.recall >= least {
            return Ok(());
        }
        Err(Error::File {
            path: index.to_owned(),
            found: format!("recall@{} {:.4} at beam {}", search.k, search.recall, search.beam),
            expected: format!("at least {least} (--min-recall)"),
        })
    }
}

fn say(report: &Report, output: &Output) {
    if let Some(knn) = &report.knn {
        for (k, recall) in &knn.recall {
            output.say(format_args!("k-NN      recall@{k} {recall:.4} over {} nodes", knn.nodes));
        }
    }
    if let Some(search) = &report.search {
        for at in &search.beams {
            output.say(format_args!(
                "search    recall@{} {:.4} at beam {}, {:.0} distances, {} queries",
                search.k, at.recall, at.beam, at.distances, search.queries
            ));
        }
    }
    output.say(format_args!("degree    {:.2} on average, at most {}", report.mean_degree, report.max_degree));
    output.say(format_args!(
        "edges     {}, {} to the node itself, {} twice in a row",
        report.edges, report.self_edges, report.duplicate_edges
    ));
    output.say(format_args!(
        "reach     {} of {} nodes from {} entry points",
        report.n as u64 - report.unreachable,
        report.n,
        report.entries.len()
    ));
    output.say(format_args!("report    {:.2} s", report.seconds));
}
