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
        write
            .and_then(|()| self.flush.wrote(bytes.len(), self.writer.get_ref()))
            .map_err(Error::io(&self.target))
    }

    /// Puts the file in the place of its target once all of it is on the disk.
    ///
    /// # Errors
    /// If that fails; nothing is left behind then.
    pub(crate) fn commit(self) -> Result<()> {
        self.finish()?.rename()
    }

    /// Puts files that are read together in their places, once all of them are on the disk. None of them means anything
    /// without the last: an older one is deleted first, with the `stale` files beside it, so that no reader meets files of
    /// two sets.
    ///
    /// # Errors
    /// If that fails; before all files are on the disk, nothing has changed then.
    pub(crate) fn commit_all(files: Vec<Self>, stale: &[PathBuf]) -> Result<()> {
        let files = files.into_iter().map(Self::finish).collect::<Result<Vec<Finished>>>()?;
        for path in files.last().map(|file| &file.target).into_iter().chain(stale) {
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::io(path)(error)),
                _ => (),
            }
        }
        files.into_iter().try_for_each(Finished::rename)
    }

    /// Sees to it that all of the file is on the disk.
    fn finish(self) -> Result<Finished> {
        let Self { writer, temporary, target, mut flush } = self;
        let written = flush.wait().and_then(|()| writer.into_inner().map_err(io::IntoInnerError::into_error));
        written.and_then(|file| file.sync_all()).map_err(Error::io(&target))?;
        Ok(Finished { temporary, target })
    }
}

/// A file that is all on the disk, under its temporary name.
struct Finished {
    temporary: TempPath,
    target: PathBuf,
}

impl Finished {
    fn rename(self) -> Result<()> {
        let Self { temporary, target } = self;
        let rename = || {
            temporary.persist(&target).map_err(|failed| failed.error)?;
            // A rename lasts only once the folder has been written too; only unix can ask for that.
            if cfg!(unix) { File::open(folder(&target))?.sync_all() } else { Ok(()) }
        };
        rename().map_err(Error::io(&target))
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
    fn files_of_a_set_replace_an_older_set() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        ["codes", "extra", "index"].into_iter().for_each(|name| fs::write(path(name), "old").unwrap());
        let written = |name| {
            let mut file = AtomicFile::create(&path(name)).unwrap();
            file.write_all(b"new").unwrap();
            file
        };
        // One that cannot take its place: the older index is gone by then, whatever else there is.
        let files = vec![written("codes"), written("index")];
        fs::remove_file(path("codes")).unwrap();
        fs::create_dir(path("codes")).unwrap();
        AtomicFile::commit_all(files, &[path("extra")]).unwrap_err();
        assert_eq!(names(dir.path()), ["codes"]);
        fs::remove_dir(path("codes")).unwrap();
        AtomicFile::commit_all(vec![written("codes"), written("index")], &[path("extra")]).unwrap();
        let mut there = names(dir.path());
        there.sort();
        assert_eq!(there, ["codes", "index"]);
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
