//! Export of an index to the format of another system.

use std::borrow::Cow;
use std::path::Path;
use std::sync::OnceLock;

use super::groups::Groups;
use super::{IndexFormat, arrays, diskann, diskann_disk, faiss, hnswlib, kgraph, nsg};
use crate::same_file::check_no_input;
use crate::{Error, Index, Progress, Result, Vectors};

/// Nodes written between two checks for cancellation.
const AT_A_TIME: usize = 4096;

/// An export of an index to the format of another system.
///
/// ```
/// use tagore::{Builder, Index, IndexFormat, Metric, Progress, Strategy, Synth};
/// # let error = |source| tagore::Error::Io { path: "tmp".into(), source };
/// # let folder = tempfile::tempdir().map_err(error)?;
/// # let path = folder.path().join("x.nsg");
/// let base = Synth::new(500, 16, 1)?.base();
/// let index = Builder::new(Strategy::nsg()).build(&base)?;
/// index.export(IndexFormat::Nsg).save(&path)?;
/// let read = Index::import(&path, IndexFormat::Nsg, &base, Metric::L2, &Progress::silent())?;
/// assert_eq!(read.neighbors(0), index.neighbors(0));
/// # Ok::<(), tagore::Error>(())
/// ```
#[must_use = "nothing is written before `save`"]
pub struct Export<'a> {
    pub(super) index: &'a Index,
    pub(super) format: IndexFormat,
    pub(super) base: Option<&'a Vectors>,
    pub(super) layers: bool,
    pub(super) pq_chunks: Option<usize>,
    pub(super) progress: Progress,
    /// Set before rows are written.
    groups: OnceLock<Groups>,
}

impl Index {
    /// Starts an export of this index to `format`.
    pub fn export(&self, format: IndexFormat) -> Export<'_> {
        Export {
            index: self,
            format,
            base: None,
            layers: false,
            pq_chunks: None,
            progress: Progress::silent(),
            groups: OnceLock::new(),
        }
    }
}

impl<'a> Export<'a> {
    /// Sets the data set of the index, which formats with vectors need.
    pub fn base(mut self, base: &'a Vectors) -> Self {
        self.base = Some(base);
        self
    }

    /// Sets whether to build HNSW's layers over nodes drawn with the index's seed, if the index has
    /// no layers of its own. With layers a search starts near its query, without them at the first
    /// entry point.
    pub fn layers(mut self, layers: bool) -> Self {
        self.layers = layers;
        self
    }

    /// Sets the number of chunks of `diskann-disk`'s product quantizer: the bytes per vector that
    /// DiskANN keeps in memory, 1 to the dimension and at most 512. More chunks raise recall. The
    /// default is a quarter of the dimension, at least 32.
    pub fn pq_chunks(mut self, chunks: usize) -> Self {
        self.pq_chunks = Some(chunks);
        self
    }

    /// Sets the progress handle, which reports and cancels.
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Writes the file or files. Each appears only when it is complete.
    ///
    /// # Errors
    /// If `path` is the file of the base, the index is damaged, the format cannot hold it or needs
    /// the base, the base does not match the index, or a file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        check_no_input(path, self.base.and_then(Vectors::path))?;
        if let Some((found, expected)) = self.format.refusal(self.index.len(), self.index.max_degree()) {
            return Err(Error::file(path, format_args!("{found} for {}", self.format), expected));
        }
        self.format.check_element(path, self.index.fingerprint().element)?;
        if self.layers && !self.format.has_layers() {
            let expected = format!("no layers for {}: only hnswlib and faiss-hnsw have them", self.format);
            return Err(Error::argument("layers", "true", expected));
        }
        if let Some(chunks) = self.pq_chunks.filter(|_| self.format != IndexFormat::DiskannDisk) {
            let expected = format!("none for {}: only diskann-disk has a quantizer", self.format);
            return Err(Error::argument("pq_chunks", chunks, expected));
        }
        // The export has no checksums of its own, so damage must be found here.
        self.index.verify(&self.progress)?;
        if let Some(base) = self.base {
            self.index.check_base(base)?;
        }
        if self.format != IndexFormat::Tagore {
            self.find_groups()?;
        }
        match self.format {
            IndexFormat::Tagore => self.index.write(path, &self.progress),
            IndexFormat::Nsg => nsg::write(self, path, &self.index.entries()[..1], false),
            IndexFormat::Nssg => nsg::write(self, path, self.index.entries(), true),
            IndexFormat::Kgraph => kgraph::write(self, path),
            IndexFormat::Hnswlib => hnswlib::write(self, path),
            IndexFormat::FaissNsg => faiss::write_nsg(self, path),
            IndexFormat::FaissHnsw => faiss::write_hnsw(self, path),
            IndexFormat::Diskann => diskann::write(self, path),
            IndexFormat::DiskannDisk => diskann_disk::write(self, path),
            IndexFormat::Ibin => arrays::write_ibin(self, path),
            IndexFormat::Npy => arrays::write_npy(self, path),
            IndexFormat::Csr => arrays::write_csr(self, path),
        }
    }

    /// Finds the groups of equal rows and the dense spots, whose rows [`row`](Self::row) links.
    pub(super) fn find_groups(&self) -> Result<()> {
        if self.groups.get().is_none() {
            let _ = self.groups.set(Groups::find(self.index, &self.progress)?);
        }
        Ok(())
    }

    /// The neighbours of `node` in a file of another system.
    pub(super) fn row(&self, node: usize) -> Cow<'a, [u32]> {
        let row = self.groups.get().and_then(|groups| groups.row(self.index, node as u32));
        row.map_or(Cow::Borrowed(self.index.neighbors(node)), Cow::Owned)
    }

    /// Calls `write` for each node in order; stops with an error soon after the work is cancelled.
    pub(super) fn for_each_node(&self, mut write: impl FnMut(usize) -> Result<()>) -> Result<()> {
        let nodes = self.index.len();
        let stage = self.progress.stage("export", nodes as u64);
        for begin in (0..nodes).step_by(AT_A_TIME) {
            let end = nodes.min(begin + AT_A_TIME);
            (begin..end).try_for_each(&mut write)?;
            stage.advance((end - begin) as u64)?;
        }
        Ok(())
    }
}
