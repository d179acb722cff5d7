//! `tagore convert`

use std::path::PathBuf;

use serde_json::json;
use tagore::{Format, GroundTruth, Index, IndexFormat};
use tagore_text::path_text;

use crate::content::{AnyFormat, Content, Input};
use crate::error::{Error, Result};
use crate::files::Kind;
use crate::output::{Output, grouped};
use crate::read::Wanted;
use crate::report::remove_beside;

/// Formats of vectors.
const VECTORS: &str = "fvecs, bvecs, fbin, f16bin, bf16bin, u8bin, i8bin, b1bin or npy";

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    input: Input,
    /// File of the vectors, of the index, or of ids (ibin, ivecs, npy or a pair)
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// Format of OUT [default: by its extension]
    #[arg(long, value_name = "FORMAT")]
    to: Option<AnyFormat>,
    /// Build the layers of HNSW above the graph of an index (hnswlib and faiss-hnsw)
    #[arg(long)]
    layers: bool,
    /// File of the ids that an index of another system has for its rows, if they are not their
    /// numbers: npy or u64bin
    #[arg(long, value_name = "FILE")]
    ids_output: Option<PathBuf>,
    /// Chunks of the product quantizer, one byte of memory each (diskann-disk) [default: dimension
    /// / 4, at least 32]
    #[arg(long, value_name = "N")]
    pq_chunks: Option<usize>,
}

impl Args {
    pub(crate) fn run(self, output: &Output) -> Result<()> {
        let files = self.input.files().write(Kind::Any, self.outputs());
        files.write(Kind::Any, &self.ids_output).check(output)?;
        let (to, rows, cols) = match self.input.read(self.wanted(), output.progress())? {
            Content::Index(index) => {
                let to = self.index_format()?;
                self.write_ids(&index, output)?;
                self.export(&index, to, output)?;
                (to.name(), index.len(), index.max_degree())
            }
            Content::Vectors(vectors) => {
                let to = self.plain_format("vectors", VECTORS, |to| !to.holds_ids())?;
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
        output.say(format_args!("{}: {} x {cols} as {to}", self.output.display(), grouped(rows)));
        output.event(&json!({
            "event": "convert", "input": path_text(&self.input.file), "output": path_text(&self.output), "format": to, "rows": rows, "cols": cols,
        }));
        Ok(())
    }

    /// Vectors, if the output holds no ids.
    fn wanted(&self) -> Wanted {
        let to = self.to.map_or_else(|| Format::from_path(&self.output).ok(), |to| to.plain);
        if to.is_some_and(|to| to.element().is_some()) { Wanted::Vectors } else { Wanted::Any }
    }

    /// Files to write, if the input is an index; it has not been read yet.
    fn outputs(&self) -> Vec<PathBuf> {
        let index = self.to.map_or_else(|| IndexFormat::from_path(&self.output).ok(), |to| to.index);
        match index {
            _ if self.to.is_some_and(|to| to.is_pair) => GroundTruth::pair_files(&self.output).into(),
            Some(format) => format.files(&self.output),
            None => vec![self.output.clone()],
        }
    }

    /// Writes the ids of another system, or warns of them.
    fn write_ids(&self, index: &Index, output: &Output) -> Result<()> {
        let (file, last) = (self.input.file.display(), index.len() - 1);
        match (&self.ids_output, index.imported_ids()) {
            (Some(path), Some(ids)) => Ok(ids.save(path)?),
            (Some(_), None) => {
                let found = format!("--ids-output: found no ids of its own in {file}");
                Err(Error::usage(format!("{found}, expected ids that are not 0 to {last}")))
            }
            (None, _) if index.description().parameters.contains_key("ids-left-out") => {
                output.warn(format_args!(
                    "{file}: found ids that are not 0 to {last}, left out: rows are counted from 0 \
                     (--ids-output FILE writes the ids)"
                ));
                Ok(())
            }
            (None, _) => Ok(()),
        }
    }

    fn export(&self, index: &Index, to: IndexFormat, output: &Output) -> Result<()> {
        if let Some(most) = to.max_entries().filter(|&most| most < index.entries().len() && !self.layers) {
            output.warn(format_args!("{to} holds {most} of {} entry points", index.entries().len()));
        }
        let base = self.input.open_base()?;
        let mut export = index.export(to).layers(self.layers).progress(output.progress().clone());
        if let Some(base) = &base {
            export = export.base(base);
        }
        if let Some(chunks) = self.pq_chunks {
            export = export.pq_chunks(chunks);
        }
        export.save(&self.output)?;
        remove_beside(&self.output)
    }

    /// Index format of the output.
    fn index_format(&self) -> Result<IndexFormat> {
        let known = match self.to {
            Some(to) => to.index,
            None => IndexFormat::from_path(&self.output).ok(),
        };
        let names = || IndexFormat::ALL.map(IndexFormat::name).join(", ");
        known.ok_or_else(|| self.cannot("an index", &names()))
    }

    /// Vector or id format of the output, if it is `suitable`.
    fn plain_format(&self, what: &str, expected: &str, suitable: impl Fn(Format) -> bool) -> Result<Format> {
        self.refuse_index_flags(what)?;
        let known = match self.to {
            Some(to) => to.plain,
            // The extension of an index is a known one, though not of vectors.
            None if IndexFormat::from_path(&self.output).is_ok() => Format::from_path(&self.output).ok(),
            None => Some(Format::from_path(&self.output)?),
        };
        known.filter(|&to| suitable(to)).ok_or_else(|| self.cannot(what, expected))
    }

    /// Refuses the flags of indexes.
    fn refuse_index_flags(&self, what: &str) -> Result<()> {
        let flag = match self.pq_chunks {
            _ if self.layers => "--layers",
            _ if self.ids_output.is_some() => "--ids-output",
            Some(_) => "--pq-chunks",
            None => return Ok(()),
        };
        Err(Error::usage(format!("{flag} needs an index, but {} holds {what}", self.input.file.display())))
    }

    fn cannot(&self, what: &str, expected: &str) -> Error {
        let extension = || match self.output.extension() {
            Some(extension) => format!("the extension .{}", extension.to_string_lossy()),
            None => "no extension".to_owned(),
        };
        let to = self.to.map_or_else(extension, |to| to.to_string());
        Error::file(&self.output, format_args!("{to} for {what} ({})", self.input.file.display()), expected)
    }
}
