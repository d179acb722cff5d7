//! `tagore convert`

use std::path::PathBuf;

use serde_json::json;
use tagore::{Error, Format, GroundTruth, Index, IndexFormat, Result, path_text};

use super::content::{AnyFormat, Content, Input};
use super::options::open;
use super::output::Output;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// Vectors or an index in any format of theirs, or ids of a ground truth as ibin, ivecs or npy
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// The format of OUT [default: by its extension]
    #[arg(long, value_name = "FORMAT")]
    to: Option<AnyFormat>,
    /// Build HNSW's layers above the graph of an index (hnswlib and faiss-hnsw)
    #[arg(long)]
    layers: bool,
    /// Bytes of a vector in memory: chunks of the product quantizer (diskann-disk) [default: dimension / 4, at least 32]
    #[arg(long, value_name = "N")]
    pq_chunks: Option<usize>,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        self.input.files().write(self.outputs()).check()?;
        let (to, rows, cols) = match self.input.read(output.progress())? {
            Content::Index(index) => {
                let to = self.index_format()?;
                self.export(&index, to, output)?;
                (to.name(), index.len(), index.max_degree())
            }
            Content::Vectors(vectors) => {
                let to = self.plain_format("vectors", "a vector format", |to| !to.holds_ids())?;
                vectors.save_as(&self.output, to, output.progress())?;
                (to.name(), vectors.len(), vectors.dim())
            }
            Content::Ids(truth) if self.to.is_some_and(|to| to.is_pair) => {
                self.refuse_index_flags("ids")?;
                truth.save_pair(&self.output)?;
                ("pair", truth.len(), truth.k())
            }
            Content::Ids(truth) => {
                let to =
                    self.plain_format("ids", "ibin, ivecs or npy", |to| to.holds_ids() || to == Format::Npy)?;
                truth.save_ids(&self.output, to)?;
                (to.name(), truth.len(), truth.k())
            }
        };
        output.say(format_args!("{}: {rows} x {cols} as {to}", self.output.display()));
        output.event(&json!({
            "event": "convert", "input": path_text(&self.input.file), "output": path_text(&self.output), "format": to, "rows": rows, "cols": cols,
        }));
        Ok(())
    }

    /// The files that may be written; whether the input is an index or something else is not known yet.
    fn outputs(&self) -> Vec<PathBuf> {
        let index = self.to.map_or_else(|| IndexFormat::of(&self.output).ok(), |to| to.index);
        match index {
            _ if self.to.is_some_and(|to| to.is_pair) => GroundTruth::pair_files(&self.output).into(),
            Some(format) => format.files(&self.output),
            None => vec![self.output.clone()],
        }
    }

    fn export(&self, index: &Index, to: IndexFormat, output: &Output) -> Result<()> {
        if let Some(most) = to.max_entries().filter(|&most| most < index.entries().len() && !self.layers) {
            output.warn(format_args!("{to} holds {most} of {} entry points", index.entries().len()));
        }
        let base = self.input.base.as_deref().map(|base| open(base, None)).transpose()?;
        let mut export = index.export(to).layers(self.layers).progress(output.progress().clone());
        if let Some(base) = &base {
            export = export.base(base);
        }
        if let Some(chunks) = self.pq_chunks {
            export = export.pq_chunks(chunks);
        }
        export.save(&self.output)
    }

    /// The format of indexes to write.
    fn index_format(&self) -> Result<IndexFormat> {
        let known = match self.to {
            Some(to) => to.index,
            None => IndexFormat::of(&self.output).ok(),
        };
        let names = || IndexFormat::ALL.map(IndexFormat::name).join(", ");
        known.ok_or_else(|| self.cannot("an index", &names()))
    }

    /// The format of vectors or ids to write, `suitable` for them.
    fn plain_format(&self, what: &str, expected: &str, suitable: impl Fn(Format) -> bool) -> Result<Format> {
        self.refuse_index_flags(what)?;
        let known = match self.to {
            Some(to) => to.plain,
            // The extension of an index is none of theirs, but it is known.
            None if IndexFormat::of(&self.output).is_ok() => Format::of(&self.output).ok(),
            None => Some(Format::of(&self.output)?),
        };
        known.filter(|&to| suitable(to)).ok_or_else(|| self.cannot(what, expected))
    }

    /// An error if there are flags that only an index takes.
    fn refuse_index_flags(&self, what: &str) -> Result<()> {
        if self.layers {
            let expected = format!("an index in {}", self.input.file.display());
            return Err(Error::Argument { what: "layers", found: what.to_owned(), expected });
        }
        if let Some(chunks) = self.pq_chunks {
            let expected = format!("an index in {}", self.input.file.display());
            return Err(Error::Argument { what: "pq_chunks", found: chunks.to_string(), expected });
        }
        Ok(())
    }

    fn cannot(&self, what: &str, expected: &str) -> Error {
        let to = self.to.map_or_else(|| "the extension".to_owned(), |to| to.to_string());
        Error::File {
            path: self.output.clone(),
            found: format!("{to} for {what} ({})", self.input.file.display()),
            expected: expected.to_owned(),
        }
    }
}
