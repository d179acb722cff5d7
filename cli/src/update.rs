//! `tagore update`

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;
use tagore::{
    Device, Format, IdSet, Index, IndexFormat, IndexRoom, IndexUpdate, UpdateStats, Vectors, peak_host_bytes,
    real_path,
};
use tagore_text::path_text;

use crate::error::{Error, Result};
use crate::files::{Files, Kind};
use crate::options::{open, open_index};
use crate::output::{Output, grouped, is_standard};
use crate::read::open_filter;
use crate::report::beside;
use crate::spool;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Index of the data set before the change
    #[arg(value_name = "INDEX")]
    index: PathBuf,
    /// Data set after the change: the rows of the index, then new rows; - for standard input
    #[arg(short = 'i', long, value_name = "BASE", value_parser = spool::vectors())]
    base: PathBuf,
    /// Format of the data set [default: by its extension]
    #[arg(long, visible_alias = "format", value_name = "FORMAT")]
    base_format: Option<Format>,
    /// Rows to remove, which keep their numbers: ids in a text file, or an array of NumPy, of ids
    /// or of a bool per row of the index
    #[arg(long, value_name = "FILE")]
    remove: Option<PathBuf>,
    /// Rows with other vectors than before, or removed ones that come back: a file as of --remove
    #[arg(long, value_name = "FILE")]
    replace: Option<PathBuf>,
    /// File of the new index [default: INDEX, which is replaced when the new one is complete]
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// Device: auto, cpu, cuda or cuda:N; a GPU builds the index anew
    #[arg(long, default_value = "auto")]
    device: Device,
}

/// Seconds of the stages.
struct Seconds {
    read: f64,
    update: f64,
    write: f64,
    total: f64,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let began = Instant::now();
        self.files().check(output)?;
        let index = open_built(&self.index)?;
        let update = IndexUpdate::new(&index).map_err(|_| other_system(&self.index, index.kind()))?;
        let update = update.device(self.device).progress(output.progress().clone());
        let rows = |path: &Option<PathBuf>| path.as_deref().map(|path| open_filter(path, index.len()));
        let (removed, replaced) = (rows(&self.remove).transpose()?, rows(&self.replace).transpose()?);
        let base = open(&self.base, self.base_format)?;
        // A full disk is found out before the work.
        let room = IndexRoom::reserve(self.out(), base.len(), index.max_degree())?;
        let read = began.elapsed().as_secs_f64();
        let began_update = Instant::now();
        let (updated, stats) = Self::update(update, removed, replaced, &base)?;
        // The new file may take the place of a mapped one.
        drop(index);
        let update = began_update.elapsed().as_secs_f64();
        let began_write = Instant::now();
        updated.save_in(room, &[beside(self.out())])?;
        let write = began_write.elapsed().as_secs_f64();
        let seconds = Seconds { read, update, write, total: began.elapsed().as_secs_f64() };
        self.say(&updated, &stats, &seconds, output);
        Ok(())
    }

    fn update(
        update: IndexUpdate<'_>,
        removed: Option<IdSet>,
        replaced: Option<IdSet>,
        base: &Vectors,
    ) -> Result<(Index, UpdateStats)> {
        let update = removed.into_iter().fold(update, IndexUpdate::remove);
        let update = replaced.into_iter().fold(update, IndexUpdate::replace);
        Ok(update.run(base)?)
    }

    /// Files to read and to write. The index may be both.
    fn files(&self) -> Files {
        let files = Files::read([&self.base]).and_read(&self.remove).and_read(&self.replace);
        let report = beside(self.out());
        let in_place = !is_standard(&self.index) && real_path(self.out()) == real_path(&self.index);
        let files = if in_place {
            files.write(Kind::Any, [self.out()])
        } else {
            files.and_read([&self.index]).write(Kind::Index, [self.out()])
        };
        files.write(Kind::Json, [report])
    }

    /// The file of the new index.
    fn out(&self) -> &Path {
        self.output.as_ref().unwrap_or(&self.index)
    }

    fn say(&self, index: &Index, stats: &UpdateStats, seconds: &Seconds, output: &Output) {
        let &UpdateStats { inserted, removed, mended, .. } = stats;
        let (rows, dim) = (index.len(), index.fingerprint().dim);
        let mended_rows = mended
            .map_or("built anew".to_owned(), |mended| format!("{} with other neighbours", grouped(mended)));
        output.result(format_args!(
            "{}: {} of {} x {dim} in {:.2} s: {} inserted, {} removed, {mended_rows}",
            self.out().display(),
            index.kind(),
            grouped(rows),
            seconds.total,
            grouped(inserted),
            grouped(removed)
        ));
        let Seconds { read, update, write, total } = seconds;
        output.event(&json!({
            "event": "update", "output": path_text(self.out()), "index": index.kind(), "n": rows, "dim": dim,
            "inserted": inserted, "removed": removed, "mended": mended,
            "seconds": { "read": read, "update": update, "write": write, "total": total },
            "peak_host_bytes": peak_host_bytes(), "mean_degree": index.mean_degree(),
        }));
    }
}

/// Opens an index that this library has built.
pub(crate) fn open_built(path: &Path) -> Result<Index> {
    match IndexFormat::from_path(path) {
        // A converted index has no parameters to build by, so it cannot be updated either.
        Ok(format) if format != IndexFormat::Tagore && is_foreign(path) => {
            Err(other_system(path, format.name()))
        }
        _ => Ok(open_index(path)?),
    }
}

/// The error of an index that another system has built.
pub(crate) fn other_system(path: &Path, name: &str) -> Error {
    let expected = "an index that tagore has built: `tagore build BASE` makes one";
    Error::file(path, format_args!("an index of {name} from another system"), expected)
}

/// Whether a file is an index of another system, by its extension and its first bytes.
fn is_foreign(path: &Path) -> bool {
    path.is_file() && Format::from_path(path).is_err() && !Index::is_index(path)
}
