//! Files that appear complete or not at all.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::{Error, Result};

/// A file under a temporary name in the folder of its target; [`commit`](Self::commit) syncs it and
/// puts it in the target's place. Dropped before that, it leaves nothing behind. Every error names
/// the target.
pub(crate) struct AtomicFile {
    target: PathBuf,
    writer: BufWriter<NamedTempFile>,
}

impl AtomicFile {
    pub(crate) fn create(target: &Path) -> Result<Self> {
        let mut builder = tempfile::Builder::new();
        builder.prefix(".tagore-");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            // Those of any new file, less the umask; a temporary file's own are narrower.
            builder.permissions(std::fs::Permissions::from_mode(0o666));
        }
        let file = builder.tempfile_in(folder(target)).map_err(Error::io(target))?;
        Ok(Self { target: target.to_owned(), writer: BufWriter::with_capacity(1 << 20, file) })
    }

    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        self.writer.write_all(bytes).map_err(Error::io(&self.target))
    }

    /// Moves the file into the target's place once all of it is on the disk.
    pub(crate) fn commit(self) -> Result<()> {
        let Self { target, writer } = self;
        let file = writer.into_inner().map_err(|error| Error::io(&target)(error.into_error()))?;
        file.as_file().sync_all().map_err(Error::io(&target))?;
        file.persist(&target).map_err(|error| Error::io(&target)(error.error))?;
        // The rename itself lasts once the folder is on the disk; only Unix can say so.
        if cfg!(unix) {
            File::open(folder(&target)).and_then(|folder| folder.sync_all()).map_err(Error::io(&target))?;
        }
        Ok(())
    }
}

fn folder(target: &Path) -> &Path {
    match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            folder.read_dir().unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_appears_when_it_is_complete() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("x.bin");
        std::fs::write(&target, b"old").unwrap();
        let mut file = AtomicFile::create(&target).unwrap();
        file.write_all(b"new").unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"old");
        file.commit().unwrap();
        assert_eq!(std::fs::read(&target).unwrap(), b"new");
        assert_eq!(names(folder.path()), ["x.bin"]);
    }

    #[test]
    fn a_dropped_file_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let mut file = AtomicFile::create(&folder.path().join("x.bin")).unwrap();
        file.write_all(&[1; 3 << 20]).unwrap();
        drop(file);
        assert!(names(folder.path()).is_empty());
    }

    #[test]
    fn errors_name_the_target() {
        let error = AtomicFile::create(Path::new("/no/such/folder/x.bin")).err().unwrap().to_string();
        assert!(error.starts_with("/no/such/folder/x.bin: "), "{error}");
    }
}
