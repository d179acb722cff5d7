//! A nameless file of rows, mapped once it is written.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::flush::Flush;
use crate::vectors::mapped::MappedFile;
use crate::vectors::storage::Memory;
use crate::{Error, Result};

/// A spool file being written.
pub(in crate::vectors) struct Spool {
    file: File,
    flush: Flush,
    name: Name,
}

/// The rows of a spool file. Fields are dropped in order: some systems remove no mapped file.
struct Spooled {
    map: MappedFile,
    _name: Name,
}

/// The name of a spool file, which is deleted on drop. On Unix it is deleted at once.
struct Name(PathBuf);

/// Numbers the spool files of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

impl Spool {
    /// Starts a file in `folder`.
    ///
    /// # Errors
    /// If it cannot be made there.
    pub(in crate::vectors) fn create(folder: &Path) -> Result<Self> {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".{}-{number}.tagore-spool", process::id()));
        // Only the remains of a killed process with the same id can have this name.
        let _ = fs::remove_file(&path);
        let file = File::options().read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(Error::io(&path))?;
        if cfg!(unix) {
            fs::remove_file(&path).map_err(Error::io(&path))?;
        }
        Ok(Self { file, flush: Flush::default(), name: Name(path) })
    }

    /// Appends `bytes`.
    pub(in crate::vectors) fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.file.write_all(bytes);
        written.and_then(|()| self.flush.wrote(bytes.len(), &self.file)).map_err(Error::io(&self.name.0))
    }

    /// Maps the file, which must not be empty.
    pub(in crate::vectors) fn map(mut self) -> Result<impl Memory> {
        self.flush.wait().map_err(Error::io(&self.name.0))?;
        // SAFETY: other programs do not know the file, and this process writes it no more.
        let map = unsafe { MappedFile::new(&self.file, &self.name.0) }.map_err(Error::io(&self.name.0))?;
        Ok(Spooled { map, _name: self.name })
    }
}

impl Memory for Spooled {
    fn bytes(&self) -> &[u8] {
        &self.map
    }

    fn mapped(&self) -> Option<&MappedFile> {
        Some(&self.map)
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if cfg!(not(unix)) {
            // Nothing depends on the file any more.
            let _ = fs::remove_file(&self.0);
        }
    }
}
