//! `tagore convert`

use std::path::{Path, PathBuf};

use serde_json::json;
use tagore::{Error, Format, GroundTruth, Index, IndexFormat, Result, Vectors};

use super::options::{check_output, open};
use super::output::Output;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Vectors, ids, a ground truth or an index
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// Vectors in any format; ids of a ground truth, or the rows of an index, as ibin
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// The format of OUT [default: by its extension]
    #[arg(long, value_name = "FORMAT")]
    to: Option<Format>,
    /// The format of IN [default: by its extension]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,
}

/// What a file holds.
pub(crate) enum Content {
    Index(Index),
    Vectors(Vectors),
    Ids(GroundTruth),
}

impl Content {
    /// Opens an index (told by its first bytes), vectors (by format or extension), or else ids.
    pub(crate) fn open(path: &Path, format: Option<Format>) -> Result<Self> {
        if Index::is_index(path) {
            return Ok(Self::Index(Index::open(path)?));
        }
        let format = match format.map_or_else(|| Format::of(path), Ok) {
            Ok(format) => format,
            Err(unknown) => {
                // Ids with distances are told by their size. Of anything else the extension must say
                // what it is; that of `bin` says that there is a header.
                let ids = GroundTruth::open(path)?;
                let told = ids.has_distances() || path.extension().is_some_and(|e| e == "bin");
                return if told { Ok(Self::Ids(ids)) } else { Err(unknown) };
            }
        };
        if format.holds_ids() {
            return Ok(Self::Ids(GroundTruth::open(path)?));
        }
        match open(path, Some(format)) {
            // An array of integers of four bytes is no vectors, but it may be ids.
            Err(error) if format == Format::Npy => GroundTruth::open(path).map(Self::Ids).map_err(|_| error),
            vectors => Ok(Self::Vectors(vectors?)),
        }
    }
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        check_output(&self.output)?;
        let to = self.to.map_or_else(|| Format::of(&self.output), Ok)?;
        let (rows, cols) = match Content::open(&self.input, self.format)? {
            Content::Index(index) => {
                if to != Format::Ibin {
                    return Err(self.cannot("an index", to, "ibin"));
                }
                index.export(IndexFormat::Ibin).save(&self.output)?;
                (index.len(), index.max_degree())
            }
            Content::Vectors(vectors) => {
                if to.holds_ids() {
                    return Err(self.cannot("vectors", to, "a vector format"));
                }
                vectors.save_as(&self.output, to)?;
                (vectors.len(), vectors.dim())
            }
            Content::Ids(truth) => {
                if !to.holds_ids() && to != Format::Npy {
                    return Err(self.cannot("ids", to, "ibin, ivecs or npy"));
                }
                truth.save_ids(&self.output, to)?;
                (truth.len(), truth.k())
            }
        };
        output.say(format_args!("{}: {rows} x {cols} as {to}", self.output.display()));
        output.event(&json!({
            "event": "convert", "input": self.input, "output": self.output, "format": to.name(), "rows": rows, "cols": cols,
        }));
        Ok(())
    }

    fn cannot(&self, what: &str, to: Format, expected: &str) -> Error {
        Error::File {
            path: self.output.clone(),
            found: format!("{to} for {what} ({})", self.input.display()),
            expected: expected.to_owned(),
        }
    }
}
