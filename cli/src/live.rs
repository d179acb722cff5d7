//! `tagore live`: an index in a folder, whose rows come, go and change under ids of the caller.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::json;
use tagore::{Builder, Device, Format, Ids, LiveIndex, LiveResult, Search, Snapshot, Strategy, Vectors};
use tagore_text::path_text;

use crate::build::PruneOptions;
use crate::error::{Error, Result};
use crate::files::Files;
use crate::metric::MetricName;
use crate::options::{open, open_index};
use crate::output::{Output, grouped, name};
use crate::read::open_u64_ids;
use crate::results::ResultOptions;
use crate::search::K;
use crate::spool;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand)]
enum What {
    /// Insert rows, and make the index if the folder is new
    Insert(Box<Insert>),
    /// Remove rows
    Remove(Remove),
    /// Find the nearest rows to queries
    Search(LiveSearch),
    /// Print how many rows there are, and where
    Status(Status),
    /// Bring the graph up to date with all changes, as insert and remove do now and then
    Consolidate(Consolidate),
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        match self.what {
            What::Insert(args) => args.run(output),
            What::Remove(args) => args.run(output),
            What::Search(args) => args.run(output),
            What::Status(args) => args.run(output),
            What::Consolidate(args) => args.run(output),
        }
    }
}

/// The folder of a live index.
#[derive(clap::Args)]
struct Folder {
    /// Folder of the index
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

impl Folder {
    fn open(&self) -> Result<LiveIndex> {
        if self.is_new() {
            let expected = "an index: `tagore live insert FOLDER BASE` makes one";
            return Err(Error::file(&self.folder, "no index", expected));
        }
        if self.folder.is_file() {
            let expected =
                "the folder of a live index: `tagore live insert FOLDER BASE --index INDEX` makes one";
            return Err(Error::file(&self.folder, "a file", expected));
        }
        Ok(LiveIndex::open(&self.folder)?)
    }

    /// Whether the folder is missing or empty.
    fn is_new(&self) -> bool {
        match fs::read_dir(&self.folder) {
            Ok(mut entries) => entries.next().is_none(),
            Err(_) => !self.folder.exists(),
        }
    }

    /// Prints what a change did, and what the index is then.
    fn say(&self, index: &LiveIndex, began: Instant, done: &str, output: &Output) {
        let snapshot = index.snapshot();
        output.result(format_args!(
            "{}: {} of {} x {} in {:.2} s: {done}",
            self.folder.display(),
            index.kind(),
            grouped(snapshot.len()),
            snapshot.dim(),
            began.elapsed().as_secs_f64()
        ));
    }
}

#[derive(clap::Args)]
struct Insert {
    #[command(flatten)]
    folder: Folder,
    /// Rows to insert; - for standard input
    #[arg(value_name = "BASE", value_parser = spool::vectors())]
    base: PathBuf,
    /// Format of the rows [default: by the extension]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
    /// Ids of the rows, whole numbers in a text file, an array of NumPy or u64bin: a row with the
    /// id of an earlier one replaces it [default: the numbers after the largest id so far, from 0]
    #[arg(long, value_name = "FILE")]
    ids: Option<PathBuf>,
    /// Device that makes the graph: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: Device,
    /// Kind of a new index: cagra, nsg, nssg, vamana, dpg, tau-mng or alpha-cng [default: nssg]
    #[arg(long = "kind", value_name = "KIND", help_heading = "New index")]
    strategy: Option<Strategy>,
    /// Metric of a new index: l2, ip (inner product) or cosine; of bits hamming [default: l2]
    #[arg(long, help_heading = "New index")]
    metric: Option<MetricName>,
    /// A finished index of the rows, which a new index begins with
    #[arg(long, value_name = "INDEX", conflicts_with_all = ["strategy", "metric"], help_heading = "New index")]
    index: Option<PathBuf>,
    #[command(flatten)]
    prune: PruneOptions,
}

impl Insert {
    fn run(self, output: &Output) -> Result<()> {
        Files::read([&self.base]).and_read(&self.ids).and_read(&self.index).check(output)?;
        let began = Instant::now();
        let base = open(&self.base, self.format)?;
        base.validate(output.progress())?;
        let ids = self.ids.as_deref().map(|path| ids_for(path, &base)).transpose()?;
        let (index, inserted, replaced) = if self.folder.is_new() {
            (self.create(&base, ids, output)?, base.len(), 0)
        } else {
            self.insert(&base, ids, output)?
        };
        let replacing =
            if replaced > 0 { format!(", {} replaced", grouped(replaced)) } else { String::new() };
        let done = format!("{} inserted{replacing}", grouped(inserted));
        self.folder.say(&index, began, &done, output);
        output.event(&json!({
            "event": "insert", "folder": path_text(&self.folder.folder), "index": index.kind(), "n": index.len(),
            "dim": base.dim(), "inserted": inserted, "replaced": replaced, "recent": index.snapshot().recent(),
            "seconds": began.elapsed().as_secs_f64(),
        }));
        Ok(())
    }

    /// Makes the index of the rows.
    fn create(&self, base: &Vectors, ids: Option<Vec<u64>>, output: &Output) -> Result<LiveIndex> {
        let ids = ids.unwrap_or_else(|| (0..base.len() as u64).collect());
        let index = match &self.index {
            Some(path) => open_index(path)?,
            None => self.builder(base)?.progress(output.progress().clone()).build(base)?,
        };
        Ok(LiveIndex::create_from(&self.folder.folder, &index, base, &Ids::new(ids)?)?)
    }

    fn builder(&self, base: &Vectors) -> Result<Builder> {
        let strategy = self.strategy.clone().unwrap_or_else(Strategy::nssg);
        let metric = self.metric.clone().unwrap_or_default().resolve(base.element_type())?;
        Ok(self.prune.builder(&strategy)?.metric(metric).device(self.device))
    }

    /// Inserts the rows into the index that is there. Returns it, and the numbers of rows that are
    /// new and that replace others.
    fn insert(
        &self,
        base: &Vectors,
        ids: Option<Vec<u64>>,
        output: &Output,
    ) -> Result<(LiveIndex, usize, usize)> {
        if let Some(flag) = self.of_new_index() {
            let folder = self.folder.folder.display();
            return Err(Error::usage(format!(
                "--{flag}: found one for {folder}, which has an index, expected none: it is for a new folder"
            )));
        }
        let index = self.folder.open()?;
        index.set_device(self.device);
        let ids = match ids {
            Some(ids) => ids,
            None => {
                let first = next_id(&index.snapshot());
                let end = first.checked_add(base.len() as u64);
                let full =
                    || Error::usage("--ids: found none, expected ids: too few numbers follow the largest");
                (first..end.ok_or_else(full)?).collect()
            }
        };
        let before = index.len();
        index.insert(&ids, base, output.progress())?;
        let inserted = index.len() - before;
        Ok((index, inserted, base.len() - inserted))
    }

    /// The name of a flag of a new index that is given.
    fn of_new_index(&self) -> Option<&'static str> {
        let given = [
            ("kind", self.strategy.is_some()),
            ("metric", self.metric.is_some()),
            ("index", self.index.is_some()),
        ];
        let given = given.into_iter().filter(|(_, is_given)| *is_given).map(|(flag, _)| flag);
        given.chain(self.prune.given().map(|(flag, _)| flag)).next()
    }
}

/// The ids of a file, one for each row of `base`.
fn ids_for(path: &Path, base: &Vectors) -> Result<Vec<u64>> {
    let ids = open_u64_ids(path)?;
    if ids.len() != base.len() {
        let found = format!("{} ids", grouped(ids.len()));
        return Err(Error::file(path, found, format!("{}, one for each row", grouped(base.len()))));
    }
    let mut sorted = ids.clone();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(Error::file(path, format_args!("the id {} twice", pair[0]), "each id once")),
        None => Ok(ids),
    }
}

/// The number after the largest id that a row has or had.
fn next_id(snapshot: &Snapshot) -> u64 {
    let ids = (0..snapshot.rows() as u32).filter_map(|row| snapshot.id(row));
    ids.max().map_or(0, |largest| largest + 1)
}

#[derive(clap::Args)]
struct Remove {
    #[command(flatten)]
    folder: Folder,
    /// Ids of rows to remove
    #[arg(value_name = "ID", required_unless_present = "file")]
    ids: Vec<u64>,
    /// File of ids, as of insert --ids
    #[arg(long = "ids", value_name = "FILE", conflicts_with = "ids")]
    file: Option<PathBuf>,
    /// Device that makes the graph: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: Device,
}

impl Remove {
    fn run(self, output: &Output) -> Result<()> {
        Files::default().and_read(&self.file).check(output)?;
        let began = Instant::now();
        let ids = self.file.as_deref().map_or_else(|| Ok(self.ids.clone()), open_u64_ids)?;
        let index = self.folder.open()?;
        index.set_device(self.device);
        let removed = index.remove(&ids, output.progress())?;
        self.folder.say(&index, began, &format!("{} removed", grouped(removed)), output);
        if removed < ids.len() {
            output.warn(format_args!(
                "{} of {} ids have no row",
                grouped(ids.len() - removed),
                grouped(ids.len())
            ));
        }
        output.event(&json!({
            "event": "remove", "folder": path_text(&self.folder.folder), "index": index.kind(), "n": index.len(),
            "removed": removed, "missing": ids.len() - removed, "seconds": began.elapsed().as_secs_f64(),
        }));
        Ok(())
    }
}

#[derive(clap::Args)]
struct LiveSearch {
    #[command(flatten)]
    folder: Folder,
    /// Queries; - for standard input
    #[arg(long, value_name = "QUERIES", value_parser = spool::vectors())]
    queries: PathBuf,
    /// Format of the queries [default: by their extension]
    #[arg(long, value_name = "FORMAT")]
    query_format: Option<Format>,
    /// Neighbours per query [default: 10, or all rows if fewer]
    #[arg(short)]
    k: Option<usize>,
    /// Beam width: wider beams find more and take longer [default: 100, or twice k if more, up to
    /// 512]
    #[arg(long, value_name = "L")]
    beam: Option<usize>,
    /// Device that searches: cpu, auto, cuda or cuda:N
    #[arg(long, default_value = "cpu")]
    device: Device,
    #[command(flatten)]
    results: ResultOptions,
}

impl LiveSearch {
    fn run(self, output: &Output) -> Result<()> {
        let kind = self.results.kind(output.is_json())?;
        Files::read([&self.queries]).write(kind, [self.results.path()]).check(output)?;
        let queries = open(&self.queries, self.query_format)?;
        let index = self.folder.open()?;
        index.set_search_device(self.device)?;
        let snapshot = index.snapshot();
        let k = self.k.unwrap_or(K.min(snapshot.len()).max(1));
        let search = self.beam.iter().fold(Search::new(k), |search, &beam| search.beam(beam));
        let beam = search.beam_width();
        let began = Instant::now();
        let result = snapshot.search(&queries, search, output.progress())?;
        let (seconds, count, short) = (began.elapsed().as_secs_f64(), result.len() as f64, result.short());
        let distances = result.computed() as f64 / count.max(1.0);
        self.results.write_live(&result, output)?;
        output.say(format_args!(
            "{} queries in {seconds:.3} s, {} distances each -> {}",
            grouped(count),
            grouped(distances.round()),
            name(self.results.path())
        ));
        self.warn(&snapshot, &result, output);
        output.event(&json!({
            "event": "search", "queries": result.len(), "k": k, "beam": beam, "n": snapshot.len(),
            "seconds": seconds, "qps": count / seconds, "distances": distances, "short": short,
        }));
        Ok(())
    }

    fn warn(&self, snapshot: &Snapshot, result: &LiveResult, output: &Output) {
        let (rows, k, short) = (snapshot.len(), result.k(), result.short());
        if rows < k {
            output.warn(format_args!("there are {rows} rows, fewer than the {k} asked for"));
        } else if short > 0 {
            let count = grouped(result.len());
            output.warn(format_args!("{} of {count} queries found fewer than {k} rows", grouped(short)));
        }
    }
}

#[derive(clap::Args)]
struct Status {
    #[command(flatten)]
    folder: Folder,
}

impl Status {
    fn run(self, output: &Output) -> Result<()> {
        let index = self.folder.open()?;
        let snapshot = index.snapshot();
        let (rows, recent, dim) = (snapshot.len(), snapshot.recent(), snapshot.dim());
        let element = snapshot.element_type();
        let metric = snapshot.metric().name_for(element);
        let gone = snapshot.rows() - rows;
        output.result(format_args!(
            "{}: {} of {} x {dim} {element}, {metric}: {} recent rows outside the graph, {} that are gone",
            self.folder.folder.display(),
            index.kind(),
            grouped(rows),
            grouped(recent),
            grouped(gone)
        ));
        output.event(&json!({
            "event": "status", "folder": path_text(&self.folder.folder), "index": index.kind(), "n": rows, "dim": dim,
            "type": element.name(), "metric": metric, "recent": recent, "gone": gone,
            "next_id": next_id(&snapshot),
        }));
        Ok(())
    }
}

#[derive(clap::Args)]
struct Consolidate {
    #[command(flatten)]
    folder: Folder,
    /// Device that makes the graph: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto")]
    device: Device,
}

impl Consolidate {
    fn run(self, output: &Output) -> Result<()> {
        let began = Instant::now();
        let index = self.folder.open()?;
        index.set_device(self.device);
        let has_changed = index.consolidate(output.progress())?;
        let done = if has_changed { "the graph is up to date" } else { "nothing to do" };
        self.folder.say(&index, began, done, output);
        output.event(&json!({
            "event": "consolidate", "folder": path_text(&self.folder.folder), "n": index.len(),
            "changed": has_changed, "seconds": began.elapsed().as_secs_f64(),
        }));
        Ok(())
    }
}
