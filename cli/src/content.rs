//! Files of any kind, as `convert` and `inspect` take them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tagore::{Error, Format, GroundTruth, Index, IndexFormat, Metric, Progress, Result, Vectors};

use super::files::Files;
use super::options::open;

/// A file of any kind, and what must be known to read an index of another system.
#[derive(clap::Args)]
pub(crate) struct Input {
    /// Vectors, ids, a ground truth or an index
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The format of FILE [default: by its extension]
    #[arg(long, visible_alias = "format", value_name = "FORMAT")]
    from: Option<AnyFormat>,
    /// The data set of an index: read with a file of another system, written into one that holds vectors, searched by inspect
    #[arg(long, value_name = "BASE")]
    pub base: Option<PathBuf>,
    /// The metric of an index of another system: l2, ip or cosine [default: l2]
    #[arg(long)]
    metric: Option<Metric>,
}

/// A format by its name, which may be one of vectors and ids, one of indexes, or both.
#[derive(Clone, Copy)]
pub(crate) struct AnyFormat {
    pub plain: Option<Format>,
    pub index: Option<IndexFormat>,
    /// Whether it is a pair of files, of ids and of distances.
    pub is_pair: bool,
}

/// The name of a pair of files.
const PAIR: &str = "pair";

/// What a file holds.
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
    /// What is read.
    pub(crate) fn files(&self) -> Files {
        let files = Files::read([&self.file]).and_read(&self.base);
        let format = self.format();
        let files = match format.index {
            Some(index) => files.and_read(index.files(&self.file)),
            None => files,
        };
        if format.is_pair { files.and_read(GroundTruth::pair_files(&self.file)) } else { files }
    }

    /// The format that is given, or that the extension tells.
    fn format(&self) -> AnyFormat {
        let (plain, index) = (Format::of(&self.file).ok(), IndexFormat::of(&self.file).ok());
        self.from.unwrap_or(AnyFormat { plain, index, is_pair: false })
    }

    /// Opens a native index (told by its first bytes), an index of another system (if there is a base, or its format
    /// is one of indexes alone), vectors, or else ids.
    pub(crate) fn read(&self, progress: &Progress) -> Result<Content> {
        let format = self.format();
        if format.is_pair {
            return GroundTruth::open_pair(&self.file, progress).map(Content::Ids);
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
                let expected = format!("the data set of the index, which {format} does not tell");
                Err(Error::Argument { what: "base", found: "none".to_owned(), expected })
            }
            (None, _) => vectors_or_ids(&self.file, format.plain, progress),
        }
    }

    fn native(&self) -> Result<Index> {
        let index = Index::open(&self.file)?;
        match self.metric {
            Some(metric) if metric != index.metric() => {
                let expected = format!("{}, the metric of {}", index.metric(), self.file.display());
                Err(Error::Argument { what: "metric", found: metric.to_string(), expected })
            }
            _ => Ok(index),
        }
    }

    fn foreign(&self, base: &Path, format: Option<IndexFormat>, progress: &Progress) -> Result<Index> {
        let format = match (format, self.from) {
            (Some(format), _) => format,
            (None, None) if Format::of(&self.file).is_ok() => {
                let found = format!("vectors or ids in {}", self.file.display());
                return Err(Error::Argument { what: "base", found, expected: "an index".to_owned() });
            }
            (None, None) => IndexFormat::of(&self.file)?,
            (None, Some(from)) => {
                let expected = "a format of indexes, as there is a --base".to_owned();
                return Err(Error::Argument { what: "from", found: from.to_string(), expected });
            }
        };
        Index::import(&self.file, format, &open(base, None)?, self.metric.unwrap_or_default(), progress)
    }
}

fn vectors_or_ids(path: &Path, format: Option<Format>, progress: &Progress) -> Result<Content> {
    let format = match format.map_or_else(|| Format::of(path), Ok) {
        Ok(format) => format,
        Err(unknown) => {
            // Ids with distances are told by their size. Of anything else the extension must say
            // what it is; that of `bin` says that there is a header.
            let ids = GroundTruth::open(path, progress)?;
            let told = ids.has_distances() || path.extension().is_some_and(|e| e == "bin");
            return if told { Ok(Content::Ids(ids)) } else { Err(unknown) };
        }
    };
    if format.holds_ids() {
        return Ok(Content::Ids(GroundTruth::open(path, progress)?));
    }
    match open(path, Some(format)) {
        // An array of integers of four bytes is no vectors, but it may be ids.
        Err(error) if format == Format::Npy => {
            GroundTruth::open(path, progress).map(Content::Ids).map_err(|_| error)
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
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let (plain, index): (Result<Format>, Result<IndexFormat>) = (name.parse(), name.parse());
        let is_pair = name == PAIR;
        if plain.is_err() && index.is_err() && !is_pair {
            let mut names = Format::ALL.map(Format::name).to_vec();
            names.extend(IndexFormat::ALL.map(IndexFormat::name));
            names.push(PAIR);
            names.sort_unstable();
            names.dedup();
            return Err(Error::Argument {
                what: "format",
                found: name.to_owned(),
                expected: names.join(", "),
            });
        }
        Ok(Self { plain: plain.ok(), index: index.ok(), is_pair })
    }
}
