//! Writing an index in a format of another system.

use std::path::Path;

use super::{IndexFormat, arrays, diskann, diskann_disk, nsg};
use crate::{Error, Index, Progress, Result, Vectors};

/// An index on its way to a file of another system.
///
/// ```
/// use tagore::{Builder, Index, IndexFormat, Metric, Strategy, Synth};
/// # let folder = tempfile::tempdir().map_err(|source| tagore::Error::Io { path: "tmp".into(), source })?;
/// # let path = folder.path().join("x.nsg");
/// let base = Synth::new(500, 16, 1)?.base();
/// let index = Builder::new(Strategy::nsg()).build(&base)?;
/// index.export(IndexFormat::Nsg).save(&path)?;
/// let read = Index::import(&path, IndexFormat::Nsg, &base, Metric::L2)?;
/// assert_eq!(read.neighbors(0), index.neighbors(0));
/// # Ok::<(), tagore::Error>(())
/// ```
#[must_use = "nothing is written before `save`"]
pub struct Export<'a> {
    pub(super) index: &'a Index,
    pub(super) format: IndexFormat,
    pub(super) base: Option<&'a Vectors>,
    pub(super) pq_chunks: Option<usize>,
    pub(super) progress: Progress,
}

impl Index {
    /// Starts the export of this index as `format`.
    pub fn export(&self, format: IndexFormat) -> Export<'_> {
        Export { index: self, format, base: None, pq_chunks: None, progress: Progress::silent() }
    }
}

impl<'a> Export<'a> {
    /// The data set that the index was built over: formats that hold vectors need it.
    pub fn base(mut self, base: &'a Vectors) -> Self {
        self.base = Some(base);
        self
    }

    /// The chunks, of one byte each, that the product quantizer of `diskann-disk` cuts a vector into: 1 to the dimension,
    /// and at most 512. More make better searches, and take as many bytes of memory per vector in them. Without this a
    /// quarter of the dimension, but at least 32.
    pub fn pq_chunks(mut self, chunks: usize) -> Self {
        self.pq_chunks = Some(chunks);
        self
    }

    /// What watches and cancels the work.
    pub fn progress(mut self, progress: &Progress) -> Self {
        self.progress = progress.clone();
        self
    }

    /// Writes the file, or the files. Each appears only when it is complete.
    ///
    /// # Errors
    /// If the index is damaged, the format cannot hold it or needs the base, the base is another one, or a file
    /// cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if self.index.is_empty() {
            return Err(self.refuse(path, "an index without nodes", "at least one"));
        }
        // The checksums end here: damage must not go on without them.
        self.index.verify()?;
        if let Some(base) = self.base {
            self.index.check_base(base)?;
        }
        match self.format {
            IndexFormat::Tagore => self.index.save(path),
            IndexFormat::Nsg => nsg::write(self, path, &self.index.entries()[..1], false),
            IndexFormat::Nssg => nsg::write(self, path, self.index.entries(), true),
            IndexFormat::Ibin => arrays::write_ibin(self, path),
            IndexFormat::Npy => arrays::write_npy(self, path),
            IndexFormat::Csr => arrays::write_csr(self, path),
            IndexFormat::Diskann => diskann::write(self, path),
            IndexFormat::DiskannDisk => diskann_disk::write(self, path),
        }
    }

    /// The refusal of something that the format cannot hold.
    pub(super) fn refuse(&self, path: &Path, found: impl ToString, expected: impl ToString) -> Error {
        Error::file(path, format_args!("{} for {}", found.to_string(), self.format), expected)
    }
}
