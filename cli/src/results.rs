//! Results of searches: lines of text, CSV, JSON lines or a binary file.

use std::fmt::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tagore::{Format, GroundTruth, LiveResult, write_file};

use crate::error::{Error, Result};
use crate::files::Kind;
use crate::output::{Output, STANDARD, is_standard};

/// The output of results.
#[derive(clap::Args)]
pub(crate) struct ResultOptions {
    /// File of ids and distances: .csv, .jsonl, or else in the layout of a ground truth (.ivecs,
    /// .ibin and .npy: ids alone); - for CSV on standard output [default: standard output, a line
    /// per query: its number, then ID:DISTANCE of each neighbour]
    #[arg(short, long, value_name = "RESULT")]
    output: Option<PathBuf>,
    /// Format of RESULT: csv, jsonl, bin, ivecs, ibin or npy [default: by its extension;
    /// jsonl on standard output with --json]
    #[arg(long, value_name = "FORMAT")]
    to: Option<ResultFormat>,
}

/// A format of results.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ResultFormat {
    /// A line per query: its number, then `ID:DISTANCE` of each neighbour. It has no name: files
    /// take CSV.
    Lines,
    /// A row per neighbour: query, rank, id, distance.
    Csv,
    /// A JSON object per query: its ids and distances, nearest first.
    JsonLines,
    /// The layout of a ground truth.
    Bin,
    /// The ids alone.
    Ids(Format),
}

/// The formats and their names.
const FORMATS: [(&str, ResultFormat); 7] = [
    ("csv", ResultFormat::Csv),
    ("jsonl", ResultFormat::JsonLines),
    ("bin", ResultFormat::Bin),
    ("gt", ResultFormat::Bin),
    ("ivecs", ResultFormat::Ids(Format::Ivecs)),
    ("ibin", ResultFormat::Ids(Format::Ibin)),
    ("npy", ResultFormat::Ids(Format::Npy)),
];

impl FromStr for ResultFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = FORMATS.into_iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        known
            .map(|(_, format)| format)
            .ok_or_else(|| format!("found {name}, expected csv, jsonl, bin, ivecs, ibin or npy"))
    }
}

impl fmt::Display for ResultFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = FORMATS.iter().find(|(_, format)| format == self);
        f.pad(known.map_or("", |(name, _)| name))
    }
}

impl ResultOptions {
    /// The file, or `-` for standard output.
    pub(crate) fn path(&self) -> &Path {
        self.output.as_deref().unwrap_or(Path::new(STANDARD))
    }

    /// The kind of the output, for the check of its name.
    ///
    /// # Errors
    /// If the given format is not that of the file's extension.
    pub(crate) fn kind(&self, is_json: bool) -> Result<Kind> {
        let (format, path) = (self.format(is_json), self.path());
        if is_standard(path) {
            let is_text = matches!(format, ResultFormat::Lines | ResultFormat::Csv) && !is_json;
            let is_printed = is_text || format == ResultFormat::JsonLines;
            return Ok(if is_printed { Kind::Results } else { Kind::Binary });
        }
        match by_extension(path) {
            Some(expected) if expected != format => {
                let found = format!("{format} for {}, expected {expected}", path.display());
                Err(Error::usage(format!("--to: found {found}")))
            }
            _ => Ok(Kind::Results),
        }
    }

    /// The format as given, or by the extension.
    fn format(&self, is_json: bool) -> ResultFormat {
        match (self.to, &self.output) {
            (Some(format), _) => format,
            (None, Some(path)) if !is_standard(path) => by_extension(path).unwrap_or(ResultFormat::Bin),
            (None, _) if is_json => ResultFormat::JsonLines,
            (None, Some(_)) => ResultFormat::Csv,
            (None, None) => ResultFormat::Lines,
        }
    }

    /// Writes the results of all queries.
    pub(crate) fn write(&self, results: &GroundTruth, output: &Output) -> Result<()> {
        let path = self.path();
        match self.format(output.is_json()) {
            ResultFormat::Bin => output.save(path, |path| Ok(results.save(path)?)),
            ResultFormat::Ids(format) => output.save(path, |path| Ok(results.save_ids(path, format)?)),
            format => {
                let found = |query| {
                    let ids = results.ids(query).iter().map(|&id| u64::from(id));
                    let found = ids.zip(results.distances(query).unwrap_or_default().iter().copied());
                    // Empty slots end a query that reached fewer than k nodes.
                    found.filter(|(id, _)| *id != u64::from(u32::MAX))
                };
                output.write(path, &format.text(results.len(), found))
            }
        }
    }

    /// Writes the results of a search of a live index, whose ids have 64 bits.
    pub(crate) fn write_live(&self, results: &LiveResult, output: &Output) -> Result<()> {
        let path = self.path();
        match self.format(output.is_json()) {
            ResultFormat::Ids(Format::Npy) => {
                let ids: Vec<u64> =
                    (0..results.len()).flat_map(|query| results.ids(query)).copied().collect();
                let bytes = npy([results.len(), results.k()], &ids);
                output.save(path, |path| Ok(write_file(path, &bytes)?))
            }
            format @ (ResultFormat::Bin | ResultFormat::Ids(_)) => {
                let found = format!("found {format} for ids of 64 bits, expected csv, jsonl or npy");
                Err(Error::usage(format!("--to: {found}")))
            }
            format => {
                let found = |query| {
                    let found =
                        results.ids(query).iter().copied().zip(results.distances(query).iter().copied());
                    found.filter(|(id, _)| *id != u64::MAX)
                };
                output.write(path, &format.text(results.len(), found))
            }
        }
    }
}

/// The format that the extension of `path` names.
fn by_extension(path: &Path) -> Option<ResultFormat> {
    path.extension()?.to_str()?.parse().ok()
}

/// A two-dimensional array of NumPy.
fn npy([rows, columns]: [usize; 2], values: &[u64]) -> Vec<u8> {
    let header = format!("{{'descr': '<u8', 'fortran_order': False, 'shape': ({rows}, {columns}), }}");
    // Header, its length and the first 8 bytes together are a multiple of 64 bytes.
    let padded = (header.len() + 11).next_multiple_of(64) - 10;
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((padded as u16).to_le_bytes());
    bytes.extend(format!("{header:<width$}\n", width = padded - 1).into_bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    bytes
}

impl ResultFormat {
    /// The results of some queries as text: ids and distances that each `found`, nearest first.
    fn text<F: Iterator<Item = (u64, f32)>>(self, queries: usize, found: impl Fn(usize) -> F) -> String {
        let mut text = if self == Self::Csv { "query,rank,id,distance\n".to_owned() } else { String::new() };
        for query in 0..queries {
            // Adding 0 turns -0 into 0.
            let found = found(query).map(|(id, distance)| (id, distance + 0.0));
            // Writing to a string cannot fail.
            match self {
                Self::Csv => {
                    for (rank, (id, distance)) in (1..).zip(found) {
                        let _ = writeln!(text, "{query},{rank},{id},{distance}");
                    }
                }
                Self::JsonLines => {
                    let (ids, distances): (Vec<u64>, Vec<f32>) = found.unzip();
                    // Debug writes whole vectors as JSON has them, and as few digits as f32 needs.
                    let _ = writeln!(
                        text,
                        "{{\"event\":\"result\",\"query\":{query},\"ids\":{ids:?},\"distances\":{distances:?}}}"
                    );
                }
                _ => {
                    let _ = write!(text, "{query}");
                    found.for_each(|(id, distance)| _ = write!(text, " {id}:{distance}"));
                    text.push('\n');
                }
            }
        }
        text
    }
}
