//! Memory-mapped files.
//!
//! If another process truncates a mapped file, reading a page past its new end raises SIGBUS. The
//! library handles no signals. A program that does can find the file of an address with
//! [`with_mapped_file_at`]. If another process changes its content, values that were checked change
//! with it, and the library may panic: [`changed_while_read`] tells that cause from a fault.

use std::fs::{self, File, Metadata};
use std::io;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use memmap2::Mmap;

use super::ahead::ReadAhead;
use crate::Error;

/// A file mapped for reading.
#[derive(Debug)]
pub(crate) struct MappedFile {
    map: Mmap,
    /// Threads that read the file ahead, if any.
    ahead: OnceLock<ReadAhead>,
    /// Its entry in the registry, if one was free.
    place: Option<&'static Place>,
    /// Its entry in [`WATCHED`].
    watched: usize,
}

/// A registry entry: address range and name of a map.
///
/// A sequence lock: a thread that holds [`WATCHED`] writes, and a signal handler reads without a
/// lock. It takes what it has read only if `changes` was even and the same before and after.
#[derive(Debug)]
struct Place {
    /// Odd while the entry changes.
    changes: AtomicUsize,
    /// The first address, or [`FREE`].
    begin: AtomicUsize,
    end: AtomicUsize,
    /// Bytes of the name.
    len: AtomicUsize,
    name: [AtomicU8; ROOM],
}

const FREE: usize = 0;

/// The registry: more entries than any command needs. Further maps have no name.
static PLACES: [Place; 64] = [const { Place::free() }; 64];

/// Bytes of pages that are given back at a time when a map is dropped.
#[cfg(unix)]
const AT_A_TIME: usize = 16 << 20;

/// Bytes after which a name is cut, since an error is one line.
const NAME: usize = 800;

/// Room for a name: [`NAME`] bytes, an escaped character and three dots.
const ROOM: usize = NAME + 16;

/// The state of a mapped file when it was mapped.
struct Watched {
    number: usize,
    path: PathBuf,
    #[cfg(unix)]
    inode: u64,
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
    WATCHED.lock().unwrap_or_else(PoisonError::into_inner)
}

impl FileState {
    fn of(found: &Metadata) -> Self {
        Self { bytes: found.len(), modified: found.modified().ok() }
    }
}

impl Watched {
    /// Whether the file has been written since. A file that was renamed over it is another one.
    fn is_changed(&self) -> bool {
        let Ok(found) = fs::metadata(&self.path) else { return false };
        #[cfg(unix)]
        let is_same = std::os::unix::fs::MetadataExt::ino(&found) == self.inode;
        #[cfg(not(unix))]
        let is_same = true;
        is_same && FileState::of(&found) != self.state
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
    pub(super) unsafe fn new(file: &File, path: &Path) -> io::Result<Self> {
        // SAFETY: guaranteed by the caller.
        let (map, found) = (unsafe { Mmap::map(file) }?, file.metadata()?);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let mut watched = watched();
        let place = PLACES.iter().find(|place| place.begin.load(Ordering::Relaxed) == FREE);
        if let Some(place) = place {
            let range = map.as_ptr_range();
            place.set(range.start as usize..range.end as usize, &name(path), &mut watched);
        }
        watched.push(Watched {
            number,
            path: path.to_owned(),
            #[cfg(unix)]
            inode: std::os::unix::fs::MetadataExt::ino(&found),
            state: FileState::of(&found),
        });
        Ok(Self { map, ahead: OnceLock::new(), place, watched: number })
    }

    /// Starts to read all of the file, at `path`, in the background. The first call counts.
    pub(super) fn read_ahead(&self, path: &Path) {
        self.ahead.get_or_init(|| ReadAhead::begin(path));
    }

    /// The map itself, for advice.
    pub(super) fn map(&self) -> &Mmap {
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
        let mut watched = watched();
        if let Some(place) = self.place {
            place.set(FREE..FREE, "", &mut watched);
        }
        watched.retain(|watched| watched.number != self.watched);
        drop(watched);
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

impl Place {
    const fn free() -> Self {
        Self {
            changes: AtomicUsize::new(0),
            begin: AtomicUsize::new(FREE),
            end: AtomicUsize::new(FREE),
            len: AtomicUsize::new(0),
            name: [const { AtomicU8::new(0) }; ROOM],
        }
    }

    /// Sets this entry. The lock keeps other writers out.
    fn set(&self, addresses: Range<usize>, name: &str, _lock: &mut MutexGuard<'_, Vec<Watched>>) {
        let changes = self.changes.load(Ordering::Relaxed);
        self.changes.store(changes + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        self.begin.store(addresses.start, Ordering::Relaxed);
        self.end.store(addresses.end, Ordering::Relaxed);
        self.len.store(name.len().min(ROOM), Ordering::Relaxed);
        for (to, from) in self.name.iter().zip(name.bytes()) {
            to.store(from, Ordering::Relaxed);
        }
        self.changes.store(changes + 2, Ordering::Release);
    }

    /// Copies the name to `room`, if the map holds `address` and does not change meanwhile.
    fn name_at<'r>(&self, address: usize, room: &'r mut [u8; ROOM]) -> Option<&'r str> {
        let changes = self.changes.load(Ordering::Acquire);
        let addresses = self.begin.load(Ordering::Relaxed)..self.end.load(Ordering::Relaxed);
        if !changes.is_multiple_of(2) || !addresses.contains(&address) {
            return None;
        }
        let len = self.len.load(Ordering::Relaxed);
        for (to, from) in room.iter_mut().zip(&self.name) {
            *to = from.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
        let is_whole = self.changes.load(Ordering::Relaxed) == changes;
        if is_whole { str::from_utf8(room.get(..len)?).ok() } else { None }
    }
}

/// The name of a file in a one-line error.
fn name(path: &Path) -> String {
    let mut name = String::new();
    for char in path.display().to_string().chars() {
        match char.is_control() {
            true => name.extend(char.escape_default()),
            false => name.push(char),
        }
        if name.len() > NAME {
            name.push_str("...");
            break;
        }
    }
    name
}

/// Calls `tell` with the name of the mapped file at `address`, if any. For a SIGBUS handler on the
/// thread that read the address: takes no locks and allocates nothing. The name is a copy, so other
/// threads may map and unmap files meanwhile.
pub fn with_mapped_file_at(address: usize, tell: impl FnOnce(&str)) {
    let mut room = [0; ROOM];
    for place in &PLACES {
        if let Some(name) = place.name_at(address, &mut room) {
            return tell(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn found(address: usize) -> Option<String> {
        let mut found = None;
        with_mapped_file_at(address, |name| found = Some(name.to_owned()));
        found
    }

    #[test]
    fn an_address_names_its_file_while_mapped() {
        let folder = tempfile::tempdir().unwrap();
        let mapped = |name: &str| {
            let path = folder.path().join(name);
            fs::write(&path, [7; 5000]).unwrap();
            // SAFETY: no one else knows the file.
            unsafe { MappedFile::new(&File::open(&path).unwrap(), &path) }.unwrap()
        };
        let (first, second) = (mapped("a\nb"), mapped("c"));
        let shown = |name: &str| Some(format!("{}/{name}", folder.path().display()));
        let addresses = |map: &MappedFile| [map.as_ptr() as usize, map.as_ptr_range().end as usize - 1];
        assert_eq!(addresses(&first).map(found), [shown("a\\nb"), shown("a\\nb")]);
        assert_eq!(addresses(&second).map(found), [shown("c"), shown("c")]);
        assert_eq!([0, usize::MAX, &raw const folder as usize].map(found), [None, None, None]);
        let gone = addresses(&first)[0];
        drop(first);
        assert_ne!(found(gone), shown("a\\nb"));
        assert_eq!(found(addresses(&second)[1]), shown("c"));
    }

    #[test]
    fn a_name_is_whole_or_absent_while_others_are_mapped() {
        let place = Place::free();
        let names = ["a".repeat(ROOM), "b".repeat(ROOM - 7)];
        let has_ended = AtomicBool::new(false);
        let found = std::thread::scope(|scope| {
            scope.spawn(|| {
                for turn in 0..3000 {
                    place.set(16..32, &names[turn % 2], &mut watched());
                }
                has_ended.store(true, Ordering::Release);
            });
            let mut found = [0; 2];
            while !has_ended.load(Ordering::Acquire) || found == [0; 2] {
                let mut room = [0; ROOM];
                if let Some(name) = place.name_at(20, &mut room) {
                    let number = names.iter().position(|whole| whole == name);
                    found[number.expect("a whole name")] += 1;
                }
            }
            found
        });
        assert!(found[0] + found[1] > 0);
        place.set(FREE..FREE, "", &mut watched());
        assert_eq!(place.name_at(20, &mut [0; ROOM]), None);
        assert_eq!(place.name_at(FREE, &mut [0; ROOM]), None);
    }

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

    #[test]
    fn names_are_one_short_line() {
        assert_eq!(name(Path::new("a\u{1b}[2J\r")), "a\\u{1b}[2J\\r");
        assert!(name(Path::new(&"x".repeat(5000))).len() < 850);
    }
}
