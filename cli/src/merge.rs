//! `tagore merge`

use std::path::PathBuf;
use std::time::Instant;

use serde_json::json;
use tagore::{Device, Format, Index, IndexMerge, IndexRoom, MergeStats, Vectors, peak_host_bytes};
use tagore_text::path_text;

use crate::error::{Error, Result};
use crate::files::{Files, Kind};
use crate::options::open;
use crate::output::{Output, grouped};
use crate::report::beside;
use crate::spool;
use crate::update::{open_built, other_system};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Indexes to merge, of one kind and metric
    #[arg(value_name = "INDEX", required = true)]
    indexes: Vec<PathBuf>,
    /// Data set of all indexes: their rows in the order of the indexes; or the data set of each,
    /// with --base-output; - for standard input
    #[arg(short = 'i', long, value_name = "BASE", required = true, num_args = 1.., value_parser = spool::vectors())]
    base: Vec<PathBuf>,
    /// Format of the data sets [default: by their extensions]
    #[arg(long, visible_alias = "format", value_name = "FORMAT")]
    base_format: Option<Format>,
    /// File of the new index
    #[arg(short, long, value_name = "OUT")]
    output: PathBuf,
    /// File of all rows, made of the data sets of the indexes
    #[arg(long, value_name = "FILE")]
    base_output: Option<PathBuf>,
    /// Device: auto, cpu, cuda or cuda:N; a GPU builds the index anew
    #[arg(long, default_value = "auto")]
    device: Device,
}

/// Seconds of the stages.
struct Seconds {
    read: f64,
    merge: f64,
    write: f64,
    total: f64,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let began = Instant::now();
        self.check()?;
        let report = beside(&self.output);
        let files = Files::read(&self.indexes).and_read(&self.base).write(Kind::Index, [&self.output]);
        files.write(Kind::Any, &self.base_output).write(Kind::Json, [report.clone()]).check(output)?;
        let indexes = self.indexes.iter().map(|path| open_built(path)).collect::<Result<Vec<_>>>()?;
        let parts: Vec<&Index> = indexes.iter().collect();
        let merge = IndexMerge::new(&parts).map_err(|_| other_system(&self.indexes[0], indexes[0].kind()))?;
        let merge = merge.device(self.device).progress(output.progress().clone());
        let base = self.all_rows(output)?;
        // A full disk is found out before the work.
        let degree = indexes.iter().map(Index::max_degree).max().unwrap_or(0);
        let room = IndexRoom::reserve(&self.output, base.len(), degree)?;
        let read = began.elapsed().as_secs_f64();
        let began_merge = Instant::now();
        let (index, stats) = merge.run(&base)?;
        let merge = began_merge.elapsed().as_secs_f64();
        let began_write = Instant::now();
        index.save_in(room, &[report])?;
        let write = began_write.elapsed().as_secs_f64();
        let seconds = Seconds { read, merge, write, total: began.elapsed().as_secs_f64() };
        self.say(&index, &stats, &seconds, output);
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let (indexes, bases) = (self.indexes.len(), self.base.len());
        let expected = match (bases, &self.base_output) {
            (1, None) => return Ok(()),
            (1, Some(_)) => "several with --base-output, one per index".to_owned(),
            _ if bases != indexes => format!("one of all rows, or {indexes}, one per index"),
            (_, None) => "--base-output FILE too, which takes the rows of all".to_owned(),
            (_, Some(_)) => return Ok(()),
        };
        let sets = if bases == 1 { "data set" } else { "data sets" };
        Err(Error::usage(format!("--base: found {bases} {sets}, expected {expected}")))
    }

    /// The rows of all indexes, which become one file if they are in several.
    fn all_rows(&self, output: &Output) -> Result<Vectors> {
        let bases = self.base.iter().map(|path| open(path, self.base_format));
        let mut bases = bases.collect::<Result<Vec<_>>>()?;
        let Some(path) = &self.base_output else { return Ok(bases.remove(0)) };
        Vectors::save_joined(&bases, path, Format::from_path(path)?, output.progress())?;
        open(path, None)
    }

    fn say(&self, index: &Index, stats: &MergeStats, seconds: &Seconds, output: &Output) {
        let (rows, dim, parts) = (index.len(), index.fingerprint().dim, self.indexes.len());
        let joined = stats
            .joined
            .map_or("built anew".to_owned(), |joined| format!("{} joined the others", grouped(joined)));
        output.result(format_args!(
            "{}: {} of {} x {dim} from {parts} indexes in {:.2} s: {joined}",
            self.output.display(),
            index.kind(),
            grouped(rows),
            seconds.total,
        ));
        let Seconds { read, merge, write, total } = seconds;
        output.event(&json!({
            "event": "merge", "output": path_text(&self.output), "index": index.kind(), "n": rows, "dim": dim,
            "parts": parts, "joined": stats.joined,
            "seconds": { "read": read, "merge": merge, "write": write, "total": total },
            "peak_host_bytes": peak_host_bytes(), "mean_degree": index.mean_degree(),
        }));
    }
}
