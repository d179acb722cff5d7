//! Files that appear under their name whole, or not at all.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use crate::flush::Flush;
use crate::{Error, Result};

/// Bytes gathered before the operating system is asked to write.
const BUFFER: usize = 1 << 20;

/// A file being written. It has a hidden temporary name in the folder of its target until
/// [`commit`](Self::commit) renames it; dropped before that, it is deleted and an older file under the
/// target's name stays as it was.
#[derive(Debug)]
pub(crate) struct AtomicFile {
    /// The file itself: the errors of `NamedTempFile` would name the temporary file.
    writer: BufWriter<File>,
    temporary: TempPath,
    target: PathBuf,
    flush: Flush,
}

impl AtomicFile {
    /// Starts a file that will be `target`.
    ///
    /// # Errors
    /// If the folder of `target` does not exist or cannot be written to, or something that is not a
    /// regular file has that name: renaming over a device or a pipe would destroy it.
    pub(crate) fn create(target: &Path) -> Result<Self> {
        if fs::metadata(target).is_ok_and(|found| !found.is_file()) {
            let refused = io::Error::new(io::ErrorKind::InvalidInput, "not a regular file");
            return Err(Error::Io { path: target.to_owned(), source: refused });
        }
        let mut builder = tempfile::Builder::new();
        builder.prefix(".tagore-");
        // Temporary files are private by default; this one is the user's, so the umask decides.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        // The kind alone: the whole error names the temporary file, of which the user knows nothing.
        let file = builder
            .tempfile_in(folder(target))
            .map_err(|error| Error::Io { path: target.to_owned(), source: error.kind().into() })?;
        let (file, temporary) = file.into_parts();
        let writer = BufWriter::with_capacity(BUFFER, file);
        Ok(Self { writer, temporary, target: target.to_owned(), flush: Flush::default() })
    }

    /// Makes the file `bytes` long; what is written nowhere is zero.
    ///
    /// # Errors
    /// If the file cannot be that long.
    pub(crate) fn set_len(&mut self, bytes: u64) -> Result<()> {
        self.writer.get_ref().set_len(bytes).map_err(Error::io(&self.target))
    }

    /// Has what comes next written from byte `offset` on.
    ///
    /// # Errors
    /// If what came before cannot be written.
    pub(crate) fn seek(&mut self, offset: u64) -> Result<()> {
        self.writer.seek(SeekFrom::Start(offset)).map(|_| ()).map_err(Error::io(&self.target))
    }

    /// Writes `bytes` behind those before.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        let write = self.writer.write_all(bytes);
        write.and_then(|()| self.flush.wrote(bytes.len(), self.writer.get_ref())).map_err(Error::io(&self.target))
    }

    /// Puts the file in the place of its target once all of it is on the disk.
    ///
    /// # Errors
    /// If that fails; nothing is left behind then.
    pub(crate) fn commit(self) -> Result<()> {
        let Self { writer, temporary, target, mut flush } = self;
        let commit = || {
            flush.wait()?;
            let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all()?;
            temporary.persist(&target).map_err(|failed| failed.error)?;
            // A rename lasts only once the folder has been written too; only unix can ask for that.
            if cfg!(unix) { File::open(folder(&target))?.sync_all() } else { Ok(()) }
        };
        commit().map_err(Error::io(&target))
    }
}

/// The folder that `target` is in; a bare name is in the current one.
fn folder(target: &Path) -> &Path {
    match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_committed_file_replaces_its_target() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("out.bin");
        fs::write(&target, "old").unwrap();
        let mut file = AtomicFile::create(&target).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"old", "the target changed before the commit");
        file.commit().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"new");
        assert_eq!(names(dir.path()), ["out.bin"]);
    }

    #[test]
    fn a_dropped_file_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = AtomicFile::create(&dir.path().join("out.bin")).unwrap();
        file.write_all(&[7; 3 << 20]).unwrap();
        drop(file);
        assert!(names(dir.path()).is_empty());
    }

    #[test]
    fn errors_name_the_target() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("missing").join("out.bin");
        let error = AtomicFile::create(&target).unwrap_err().to_string();
        assert!(error.starts_with(&target.display().to_string()), "{error}");
        let error = AtomicFile::create(dir.path()).unwrap_err().to_string();
        assert_eq!(error, format!("{}: not a regular file", dir.path().display()));
    }

    #[cfg(unix)]
    #[test]
    fn the_umask_decides_who_may_read() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let (plain, target) = (dir.path().join("plain"), dir.path().join("atomic"));
        fs::write(&plain, "").unwrap();
        AtomicFile::create(&target).unwrap().commit().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode(&target), mode(&plain));
    }
}
