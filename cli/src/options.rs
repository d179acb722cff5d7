//! Flags of several subcommands.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;

use serde_json::json;
use tagore::gpu::KernelTime;
use tagore::{
    CellSettings, Descent, DescentStats, Device, ElementType, Format, IdSet, Index, IndexFormat, Iterations,
    KnnGraph, Metric, Progress, PruneStats, Start, Vectors, peak_host_bytes,
};
use tagore_text::path_text;

use crate::error::{Error, Result};
use crate::metric::MetricName;
use crate::output::{Output, grouped};
pub(crate) use crate::read::open;
use crate::read::{file_of, open_filter, other_program, own_format, text_file};
use crate::spool;

/// Identifiers of the arguments of a [`DataSet`], which other arguments replace.
pub(crate) const DATA_SET: [&str; 3] = ["positional", "base", "format"];

/// A data set, by position or by flag, and its format.
#[derive(clap::Args)]
pub(crate) struct DataSet {
    /// Data set: fvecs, bvecs, fbin, f16bin, bf16bin, u8bin, i8bin, b1bin or npy; - for standard
    /// input
    #[arg(value_name = "BASE", value_parser = spool::vectors(), conflicts_with = "base")]
    positional: Option<PathBuf>,
    /// Data set, by name instead of by position
    #[arg(short = 'i', long, value_name = "BASE", value_parser = spool::vectors())]
    base: Option<PathBuf>,
    /// Format of the data set [default: by its extension]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
}

impl DataSet {
    /// The file, if one is given.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.positional.as_deref().or(self.base.as_deref())
    }

    /// Opens the data set without reading its vectors.
    pub(crate) fn open(&self) -> Result<Vectors> {
        // The parser refuses a command line with neither a file nor a description in its place.
        open(self.path().unwrap_or(Path::new("")), self.format)
    }
}

/// The data set of a command that needs one: by position, unless the flag that conflicts is given.
#[derive(clap::Args)]
#[command(mut_arg("positional", |base| base.required(true)))]
pub(crate) struct Input {
    #[command(flatten)]
    data: DataSet,
}

impl Input {
    /// The file.
    pub(crate) fn path(&self) -> &Path {
        // The parser refuses a command line without a file.
        self.data.path().unwrap_or(Path::new(""))
    }

    /// The format of a file that is mapped as it is: the given one, or that of the extension.
    pub(crate) fn own_format(&self) -> Result<Format> {
        own_format(self.path(), self.data.format)
    }

    /// Opens the base and checks its values. Returns it with the seconds taken.
    pub(crate) fn read(&self, progress: &Progress) -> Result<(Vectors, f64)> {
        let began = Instant::now();
        let base = self.open()?;
        base.validate(progress)?;
        Ok((base, began.elapsed().as_secs_f64()))
    }

    /// Opens the base without reading its vectors.
    pub(crate) fn open(&self) -> Result<Vectors> {
        self.data.open()
    }
}

/// A base, queries, and their formats.
#[derive(clap::Args)]
pub(crate) struct BaseAndQueries {
    #[command(flatten)]
    base: Input,
    /// Queries; - for standard input
    #[arg(long, value_name = "QUERIES", value_parser = spool::vectors())]
    queries: PathBuf,
    /// Format of the queries [default: by their extension]
    #[arg(long, value_name = "FORMAT")]
    query_format: Option<Format>,
}

impl BaseAndQueries {
    /// The files.
    pub(crate) fn files(&self) -> [&Path; 2] {
        [self.base.path(), &self.queries]
    }

    /// Opens the index that `tagore build` made of the base, if it was given no other name.
    pub(crate) fn open_index(&self) -> Result<Index> {
        let base = self.base.path();
        if Index::is_index(base) {
            let made = path_text(base);
            let expected = format!("vectors: `tagore search BASE --index {made}` takes both");
            return Err(Error::file(base, "an index", expected));
        }
        let path = index_of(base, "--index")?;
        if !path.exists() {
            let base = path_text(base);
            let expected = format!("an index: `tagore build {base}` makes it, --index names another");
            return Err(Error::file(&path, "no file", expected));
        }
        Ok(open_index(&path)?)
    }

    /// Opens the base and the queries.
    pub(crate) fn open(&self) -> Result<(Vectors, Vectors)> {
        Ok((self.base.open()?, open(&self.queries, self.query_format)?))
    }
}

/// The rows of the base that may be found.
#[derive(clap::Args)]
pub(crate) struct Filter {
    /// Rows that may be found: ids in a text file, or an array of NumPy, of ids or of a bool per
    /// row
    #[arg(long = "filter", value_name = "FILE")]
    pub file: Option<PathBuf>,
}

impl Filter {
    /// The rows of `base` that pass; all if none.
    pub(crate) fn open(&self, base: &Vectors) -> Result<Option<IdSet>> {
        self.file.as_deref().map(|path| open_filter(path, base.len())).transpose().map_err(Error::from)
    }
}

/// The index of `base` if `flag` names no other file: beside it, with the extension of an index.
pub(crate) fn index_of(base: &Path, flag: &str) -> Result<PathBuf> {
    if spool::is_copy(base) {
        let text = format!("{flag}: found none, expected a file: a pipe has no name to take for the index");
        return Err(Error::usage(text));
    }
    if base.is_dir() {
        return Err(Error::file(base, "a folder", "a file"));
    }
    if base.to_str().is_some_and(|text| text.contains("://")) {
        return Err(Error::file(base, "an address", "a file, such as `curl -LO` makes of it"));
    }
    let name = file_of(base).with_extension("");
    // The compression of a file follows its format.
    let name = if Format::from_path(&name).is_ok() { name.with_extension("") } else { name };
    Ok(name.with_added_extension("tagore"))
}

/// Opens an index file.
pub(crate) fn open_index(path: &Path) -> tagore::Result<Index> {
    if path.is_file() && !Index::is_index(path) {
        return Err(no_index(path));
    }
    // SAFETY: the command's page says that no one changes a file that it reads.
    unsafe { Index::map(path) }
}

/// The error of a file that is no index of this library, with the command that makes one of it.
fn no_index(path: &Path) -> tagore::Error {
    let name = path_text(path);
    let (found, remedy) = match IndexFormat::from_path(path) {
        _ if Format::from_path(path).is_ok() => {
            ("vectors or ids", format!("`tagore build {name}` makes one"))
        }
        Ok(format) if format != IndexFormat::Tagore => {
            // A name that no other index has.
            let made = path_text(&path.with_added_extension("tagore"));
            let remedy = format!("`tagore convert {name} {made} --base BASE` makes one");
            (format.name(), remedy)
        }
        _ => ("another kind of file", "`tagore build` makes one of vectors".to_owned()),
    };
    let (path, found) = (path.to_owned(), found.to_owned());
    tagore::Error::File { path, found, expected: format!("a tagore index: {remedy}") }
}

/// The error of a file whose extension names no format.
pub(crate) fn unknown_format(path: &Path, error: tagore::Error) -> Error {
    if spool::is_copy(path) {
        return with_all_formats(error);
    }
    match path.metadata() {
        Err(source) => tagore::Error::Io { path: path.to_owned(), source }.into(),
        Ok(found) if found.is_dir() => Error::file(path, "a folder", "a file"),
        Ok(found) if !found.is_file() => Error::file(path, "a pipe or a device", "a regular file"),
        Ok(_) if is_text(path) => text_file(path),
        Ok(_) => other_program(path).unwrap_or_else(|| with_all_formats(error)),
    }
}

/// Adds the formats of other programs, and the flags, to an error of the unknown extension of an
/// input.
fn with_all_formats(error: tagore::Error) -> Error {
    with_flag(match error {
        tagore::Error::File { path, found, expected } => {
            let others = "npz, hdf5, parquet, arrow, safetensors or txt, one of these as .gz or .zst";
            tagore::Error::File { path, found, expected: format!("{expected}, {others}") }
        }
        other => other,
    })
}

/// Adds the flags that name a format to an error of an unknown extension.
pub(crate) fn with_flag(error: tagore::Error) -> Error {
    match error {
        tagore::Error::File { path, found, expected } => {
            Error::file(&path, found, format_args!("{expected}, or the format as a flag (--help names it)"))
        }
        other => other.into(),
    }
}

/// Whether a regular file begins with a line of text.
pub(crate) fn is_text(path: &Path) -> bool {
    // Opening a pipe waits for its other end.
    if !path.metadata().is_ok_and(|found| found.is_file()) {
        return false;
    }
    let mut begin = Vec::new();
    let read = File::open(path).and_then(|file| file.take(TEXT).read_to_end(&mut begin));
    let is_printable = |byte: &u8| matches!(byte, b'\t' | b'\n' | b'\r' | 0x20..=0x7e | 0x80..=0xff);
    // The end may cut a character.
    let is_utf8 = str::from_utf8(&begin).map_or_else(|error| error.error_len().is_none(), |_| true);
    read.is_ok() && !begin.is_empty() && is_utf8 && begin.iter().all(is_printable)
}

/// Bytes of a file that show whether it is text: vectors have a zero byte among them.
const TEXT: u64 = 1024;

/// The k-NN graph, and the cells of a start from cells.
#[derive(clap::Args)]
#[command(next_help_heading = "K-NN graph")]
pub(crate) struct GraphOptions {
    /// Metric: l2, ip (inner product) or cosine; of bits hamming, also named l2
    #[arg(long, default_value = "l2")]
    metric: MetricName,
    /// Neighbours per node of the k-NN graph [default: 96; on a CPU up to 80,000 rows as many as
    /// candidates, from 32 to 100, or 64 to 96 for cagra; at most one less than the rows]
    #[arg(long, value_name = "K")]
    pub knn: Option<usize>,
    /// Nodes per cell of a start from cells
    #[arg(long, value_name = "N")]
    pub nodes_per_cell: Option<usize>,
    /// Cells that each node probes, 1 to 32
    #[arg(long, value_name = "M")]
    pub probes: Option<usize>,
    /// Clusterings into cells, each from another sample, 1 to 16
    #[arg(long, value_name = "N")]
    pub clusterings: Option<usize>,
}

impl GraphOptions {
    /// The metric of vectors of a type.
    pub(crate) fn metric(&self, element: ElementType) -> Result<Metric> {
        self.metric.resolve(element)
    }

    /// A descent for vectors of a type.
    pub(crate) fn descent(&self, element: ElementType) -> Result<Descent> {
        let &Self { nodes_per_cell, probes, clusterings, .. } = self;
        let cells = CellSettings { nodes_per_cell, probes, clusterings };
        let descent = Descent::new().metric(self.metric(element)?).cells(cells);
        Ok(match self.knn {
            Some(k) => descent.knn(k),
            None => descent,
        })
    }
}

/// Parameters of descent.
#[derive(clap::Args)]
#[command(next_help_heading = "K-NN graph")]
pub(crate) struct DescentOptions {
    #[command(flatten)]
    pub graph: GraphOptions,
    /// Iterations of the two phases of descent: auto, or A,B
    #[arg(long, default_value = "auto", value_name = "A,B")]
    pub iterations: Iterations,
    /// Start of descent: auto, all-pairs, random or cells
    #[arg(long, default_value = "auto")]
    pub start: Start,
    /// Neighbours per node whose lists are gathered in an iteration of phase 2
    #[arg(long, default_value_t = 4, value_name = "M")]
    pub expand: usize,
    /// Seed: the same seed gives the same bytes
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Device: auto, cpu, cuda, cuda:N, or several (cuda:N,M,..) out of core
    #[arg(long, default_value = "auto")]
    pub device: Devices,
}

/// One device, or several that share the work.
#[derive(Clone)]
pub(crate) struct Devices(pub Vec<Device>);

impl Devices {
    /// The device of work that runs on one.
    pub(crate) fn first(&self) -> Device {
        self.0[0]
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(Device::to_string).collect();
        f.pad(&names.join(","))
    }
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(names: &str) -> Result<Self, String> {
        Device::list(names).map(Self).map_err(|error| error.to_string())
    }
}

impl DescentOptions {
    /// A descent for vectors of a type.
    pub(crate) fn descent(&self, element: ElementType, output: &Output) -> Result<Descent> {
        let descent = self.graph.descent(element)?;
        Ok(descent
            .iterations(self.iterations)
            .start(self.start)
            .expand(self.expand)
            .seed(self.seed)
            .device(self.device.first())
            .progress(output.progress().clone()))
    }

    /// Builds the graph and prints its times.
    pub(crate) fn build(&self, base: &Vectors, output: &Output) -> Result<KnnGraph> {
        let graph = self.descent(base.element_type(), output)?.build(base)?;
        self.say(base.len(), graph.stats(), output);
        Ok(graph)
    }

    /// Prints the times of a graph over `rows` rows.
    pub(crate) fn say(&self, rows: usize, stats: &DescentStats, output: &Output) {
        say_kernels(&stats.kernels, output);
        let share = stats.distances as f64 / (rows as f64).powi(2);
        output.say(format_args!(
            "descent   {:.3} s on {}, iterations {},{}, {} distances ({share:.4} n^2)",
            stats.seconds,
            stats.device,
            stats.iterations.0,
            stats.iterations.1,
            grouped(stats.distances)
        ));
    }
}

/// Prints launches and time of each kernel.
pub(crate) fn say_kernels(kernels: &[KernelTime], output: &Output) {
    for KernelTime { kernel, launches, seconds, .. } in kernels {
        output.say(format_args!("{kernel:<24} {launches:>6} launches {:>10.3} ms", seconds * 1e3));
    }
}

/// Seconds of the stages timed by the command.
#[derive(Default)]
pub(crate) struct Seconds {
    pub read: f64,
    pub write: f64,
    pub total: f64,
}

/// A k-NN graph or an index, with the measurements of its build.
pub(crate) struct Built<'a> {
    /// Rows of the base, and components of each.
    pub rows: usize,
    pub dim: usize,
    pub descent: &'a DescentStats,
    pub prune: &'a PruneStats,
    pub seconds: &'a Seconds,
    pub knn: usize,
    pub mean_degree: f64,
}

impl Built<'_> {
    /// The build as a JSON line.
    pub(crate) fn event(&self, event: &str) -> serde_json::Value {
        let Self { rows, dim, descent, prune, seconds: Seconds { read, write, total }, knn, mean_degree } =
            self;
        json!({
            "event": event,
            "n": rows,
            "dim": dim,
            "knn": knn,
            "device": descent.device,
            "seconds": {
                "read": read, "copy": descent.copy + prune.copy, "jit": descent.jit + prune.jit,
                "descent": descent.seconds, "prune": prune.seconds, "write": write, "total": total,
            },
            "peak_gpu_bytes": descent.peak_gpu_bytes.max(prune.peak_gpu_bytes),
            "peak_host_bytes": peak_host_bytes(),
            "mean_degree": mean_degree,
            "distances": descent.distances,
            "iterations": [descent.iterations.0, descent.iterations.1],
            "added": descent.added,
        })
    }
}
