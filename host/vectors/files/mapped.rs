//! Memory-mapped files.
//!
//! If another process truncates a mapped file, reading a page past its new end raises SIGBUS. The
//! library handles no signals; the command does, and finds the file of the address in
//! `/proc/self/maps`. If another process changes its content, values that were checked change with
//! it, and the library may panic: [`changed_while_read`] tells that cause from a fault.

use std::fs::{self, File, Metadata};
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::SystemTime;

use memmap2::{Mmap, MmapOptions};

use crate::Error;
use crate::parallel::locked;
use crate::platform::{self, FileId};
use crate::vectors::ahead::ReadAhead;

/// A file mapped for reading.
#[derive(Debug)]
pub(crate) struct MappedFile {
    map: Mmap,
    /// Threads that read the file ahead, if any.
    ahead: OnceLock<ReadAhead>,
    /// Its entry in [`WATCHED`], if it has one.
    watched: Option<usize>,
}

/// Bytes of pages that are given back at a time when a map is dropped.
#[cfg(unix)]
const AT_A_TIME: usize = 16 << 20;

/// The state of a mapped file when it was mapped.
struct Watched {
    number: usize,
    path: PathBuf,
    file: FileId,
    state: FileState,
}

/// Changes with the content of a file.
#[derive(PartialEq, Eq)]
struct FileState {
    bytes: u64,
    modified: Option<SystemTime>,
}

/// All mapped files.
static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());

/// The number of the next entry of [`WATCHED`].
static NEXT: AtomicUsize = AtomicUsize::new(0);

fn watched() -> MutexGuard<'static, Vec<Watched>> {
    locked(&WATCHED)
}

impl FileState {
    fn from_metadata(found: &Metadata) -> Self {
        Self { bytes: found.len(), modified: found.modified().ok() }
    }
}

impl Watched {
    /// Whether the file has been written since. A file that was renamed over it is another one.
    fn is_changed(&self) -> bool {
        let Ok(found) = fs::metadata(&self.path) else { return false };
        let is_same = platform::identity_at(&self.path).is_ok_and(|file| file == self.file);
        is_same && FileState::from_metadata(&found) != self.state
    }
}

/// An error that names a mapped file which another process has changed since it was mapped, if
/// there is one. For a program that has caught a panic.
pub fn changed_while_read() -> Option<Error> {
    let watched = watched();
    let changed = watched.iter().find(|watched| watched.is_changed())?;
    let expected = "a file that no one writes: it was changed while it was read";
    Some(Error::file(&changed.path, "other content than at first", expected))
}

impl MappedFile {
    /// Maps all of `file`, opened from `path`.
    ///
    /// # Errors
    /// If the system refuses.
    ///
    /// # Safety
    /// - No one changes the file while it is mapped. Cutting it short ends the process with SIGBUS.
    pub(in crate::vectors) unsafe fn new(file: &File, path: &Path) -> io::Result<Self> {
        // SAFETY: guaranteed by the caller.
        let (map, found) = (unsafe { Mmap::map(file) }?, file.metadata()?);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        watched().push(Watched {
            number,
            path: path.to_owned(),
            file: platform::identity(file)?,
            state: FileState::from_metadata(&found),
        });
        Ok(Self { map, ahead: OnceLock::new(), watched: Some(number) })
    }

    /// Maps the first `bytes` bytes of `file`, which may grow meanwhile.
    ///
    /// # Errors
    /// If the system refuses.
    ///
    /// # Safety
    /// - The file has these bytes, and no one changes them or cuts them off while they are mapped.
    pub(in crate::vectors) unsafe fn beginning(file: &File, bytes: usize) -> io::Result<Self> {
        // SAFETY: guaranteed by the caller.
        let map = unsafe { MmapOptions::new().len(bytes).map(file) }?;
        Ok(Self { map, ahead: OnceLock::new(), watched: None })
    }

    /// Starts to read all of the file, at `path`, in the background. The first call counts.
    pub(in crate::vectors) fn read_ahead(&self, path: &Path) {
        self.ahead.get_or_init(|| ReadAhead::begin(path));
    }

    /// The map itself, for advice.
    pub(in crate::vectors) fn map(&self) -> &Mmap {
        &self.map
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        watched().retain(|watched| Some(watched.number) != self.watched);
        // While a large file is unmapped, no other thread can map memory: 10 ms for 512 MiB. So its
        // pages go first, some at a time.
        #[cfg(unix)]
        for first in (0..self.map.len()).step_by(AT_A_TIME) {
            let bytes = AT_A_TIME.min(self.map.len() - first);
            // SAFETY: nobody reads the map any more. If the advice fails, all pages go at the end.
            let _ =
                unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, first, bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_named_while_mapped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, [7; 5000]).unwrap();
        // SAFETY: the content is not read.
        let map = unsafe { MappedFile::new(&File::open(&path).unwrap(), &path) }.unwrap();
        let is_named = || watched().iter().any(|watched| watched.path == path && watched.is_changed());
        assert!(!is_named());
        File::options().write(true).open(&path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert!(is_named());
        fs::rename(&path, folder.path().join("other")).unwrap();
        fs::write(&path, [7; 5000]).unwrap();
        assert!(!is_named(), "another file of the name");
        fs::rename(folder.path().join("other"), &path).unwrap();
        assert!(is_named() && changed_while_read().is_some());
        drop(map);
        assert!(!is_named());
    }
}
