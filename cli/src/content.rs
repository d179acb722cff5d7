//! Input files of any kind, of `convert` and `inspect`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tagore::{Format, GroundTruth, Index, IndexFormat, Progress, Vectors};

use crate::error::{Error, Result};
use crate::files::Files;
use crate::metric::MetricName;
use crate::options::{is_text, open_index, unknown_format};
use crate::read::{Plain, Wanted, map, open, other_program, plain, text_file};
use crate::spool;

/// A file of any kind, with the base and the metric of an index of another system.
#[derive(clap::Args)]
pub(crate) struct Input {
    /// Vectors, ids, a ground truth or an index; - for vectors from standard input
    #[arg(value_name = "FILE", value_parser = spool::vectors())]
    pub file: PathBuf,
    /// Format of FILE [default: by its extension]
    #[arg(long, visible_alias = "format", value_name = "FORMAT")]
    from: Option<AnyFormat>,
    /// Data set of an index: needed to read an index of another system, to write one with vectors,
    /// and to measure recall
    #[arg(long, value_name = "BASE", value_parser = spool::vectors())]
    pub base: Option<PathBuf>,
    /// Format of the data set [default: by its extension]
    #[arg(long, value_name = "FORMAT", requires = "base")]
    base_format: Option<Format>,
    /// Metric of an index of another system: l2, ip or cosine, of bits hamming [default: l2]
    #[arg(long)]
    metric: Option<MetricName>,
}

/// A format by name: of vectors and ids, of indexes, or of both.
#[derive(Clone, Copy)]
pub(crate) struct AnyFormat {
    pub plain: Option<Format>,
    pub index: Option<IndexFormat>,
    /// Whether the name is that of a pair of files, of ids and of distances.
    pub is_pair: bool,
}

/// Name of a pair of files.
const PAIR: &str = "pair";

/// Content of a file.
pub(crate) enum Content {
    Index(Box<Index>),
    Vectors(Vectors),
    Ids(GroundTruth),
}

impl Content {
    fn index(index: Index) -> Self {
        Self::Index(Box::new(index))
    }
}

impl Input {
    /// Files to read.
    pub(crate) fn files(&self) -> Files {
        let files = Files::read([&self.file]).and_read(&self.base);
        let format = self.format();
        let files = match format.index {
            Some(index) => files.and_read(index.files(&self.file)),
            None => files,
        };
        if format.is_pair { files.and_read(GroundTruth::pair_files(&self.file)) } else { files }
    }

    /// Opens the data set of an index, if one is given.
    pub(crate) fn open_base(&self) -> Result<Option<Vectors>> {
        self.base.as_deref().map(|base| open(base, self.base_format)).transpose()
    }

    /// The given format, or the format of the extension.
    fn format(&self) -> AnyFormat {
        let (plain, index) = (Format::from_path(&self.file).ok(), IndexFormat::from_path(&self.file).ok());
        self.from.unwrap_or(AnyFormat { plain, index, is_pair: false })
    }

    /// Opens a native index (recognised by its first bytes), an index of another system (if a base
    /// is given, or the format is one of indexes only), vectors, or, if they are `wanted`, ids.
    pub(crate) fn read(&self, wanted: Wanted, progress: &Progress) -> Result<Content> {
        spool::fill(&self.file)?;
        let format = self.format();
        if format.is_pair {
            return Ok(Content::Ids(GroundTruth::open_pair(&self.file, progress)?));
        }
        if Index::is_index(&self.file) {
            return self.native().map(Content::index);
        }
        match (&self.base, format) {
            (Some(base), _) => self.foreign(base, format.index, progress).map(Content::index),
            (None, AnyFormat { plain: None, index: Some(IndexFormat::Tagore), .. }) => {
                self.native().map(Content::index)
            }
            (None, AnyFormat { plain: None, index: Some(format), .. }) => {
                let file = self.file.display();
                Err(Error::usage(format!(
                    "--base: found none, expected the data set of {file}: an index of {format} is checked against it"
                )))
            }
            (None, _) => vectors_or_ids(&self.file, format.plain, wanted, progress),
        }
    }

    fn native(&self) -> Result<Index> {
        let index = open_index(&self.file)?;
        let (element, expected) = (index.fingerprint().element, index.metric());
        match &self.metric {
            Some(metric) if metric.resolve(element)? != expected => {
                let (file, expected) = (self.file.display(), expected.name_for(element));
                Err(Error::usage(format!(
                    "--metric: found {metric}, expected {expected}, the metric of {file}"
                )))
            }
            _ => Ok(index),
        }
    }

    fn foreign(&self, base: &Path, format: Option<IndexFormat>, progress: &Progress) -> Result<Index> {
        let format = match (format, self.from) {
            (Some(format), _) => format,
            (None, None) if Format::from_path(&self.file).is_ok() => {
                let file = self.file.display();
                return Err(Error::usage(format!("--base needs an index, but {file} holds vectors or ids")));
            }
            (None, None) => IndexFormat::from_path(&self.file)?,
            (None, Some(from)) => {
                return Err(Error::usage(format!(
                    "--from {from} is no format of indexes, which --base needs"
                )));
            }
        };
        let base = open(base, self.base_format)?;
        let metric = self.metric.clone().unwrap_or_default().resolve(base.element_type())?;
        Ok(Index::import(&self.file, format, &base, metric, progress)?)
    }
}

fn vectors_or_ids(
    file: &Path,
    given: Option<Format>,
    wanted: Wanted,
    progress: &Progress,
) -> Result<Content> {
    let Plain { path, format } = plain(file, given, wanted)?;
    let path = &*path;
    let format = match format.map_or_else(|| Format::from_path(path), Ok) {
        Ok(format) => format,
        Err(unknown) => {
            if is_text(path) {
                return Err(text_file(path));
            }
            if let Some(error) = other_program(path) {
                return Err(error);
            }
            // The size proves ids with distances. Other content needs an extension; `bin` promises
            // a header.
            let ids = GroundTruth::open(path, progress)?;
            let proven = ids.has_distances() || path.extension().is_some_and(|e| e == "bin");
            return if proven { Ok(Content::Ids(ids)) } else { Err(unknown_format(path, unknown)) };
        }
    };
    if format.holds_ids() {
        return Ok(Content::Ids(GroundTruth::open(path, progress)?));
    }
    match map(path, format) {
        // An npy of integers may hold ids. Others are numbers of vectors.
        Err(_) if format == Format::Npy && wanted == Wanted::Any => {
            let ids = GroundTruth::open(path, progress).map(Content::Ids);
            ids.or_else(|_| vectors_or_ids(file, given, Wanted::Vectors, progress))
        }
        vectors => Ok(Content::Vectors(vectors?)),
    }
}

impl fmt::Display for AnyFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.plain.map(Format::name).or(self.index.map(IndexFormat::name));
        f.write_str(name.unwrap_or(PAIR))
    }
}

impl FromStr for AnyFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let (plain, index) = (name.parse::<Format>(), name.parse::<IndexFormat>());
        let is_pair = name == PAIR;
        if plain.is_err() && index.is_err() && !is_pair {
            let mut names = Format::ALL.map(Format::name).to_vec();
            names.extend(IndexFormat::ALL.map(IndexFormat::name));
            names.push(PAIR);
            names.sort_unstable();
            names.dedup();
            // Of a name that several formats begin with, such as faiss, those.
            if names.iter().any(|known| known.starts_with(name)) {
                names.retain(|known| known.starts_with(name));
            }
            let one_of = if names.len() > 1 { "one of " } else { "" };
            return Err(format!("expected {one_of}{}", names.join(", ")));
        }
        Ok(Self { plain: plain.ok(), index: index.ok(), is_pair })
    }
}
