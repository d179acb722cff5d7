//! Memory-mapped files.
//!
//! If another process truncates a mapped file, reading a page past its new end raises SIGBUS. The
//! library handles no signals. A program that does can find the file of an address with
//! [`with_mapped_file_at`].

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use memmap2::Mmap;

use super::ahead::ReadAhead;

/// A file mapped for reading.
#[derive(Debug)]
pub(crate) struct MappedFile {
    map: Mmap,
    /// Threads that read the file ahead, if any.
    ahead: OnceLock<ReadAhead>,
    /// Its entry in the registry, if one was free.
    place: Option<&'static Place>,
}

/// A registry entry: address range and name of a map.
#[derive(Debug)]
struct Place {
    /// The first address; [`FREE`], or [`TAKEN`] while the entry changes.
    begin: AtomicUsize,
    end: AtomicUsize,
    name: AtomicPtr<String>,
}

const FREE: usize = 0;
const TAKEN: usize = usize::MAX;

/// The registry: more entries than any command needs. Further maps have no name.
static PLACES: [Place; 64] = [const { Place::free() }; 64];

/// Bytes of pages that are given back at a time when a map is dropped.
#[cfg(unix)]
const AT_A_TIME: usize = 16 << 20;

/// Most bytes of a name, since an error is one line.
const NAME: usize = 800;

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
        let map = unsafe { Mmap::map(file) }?;
        let place = PLACES.iter().find(|place| place.take(&map, path));
        Ok(Self { map, ahead: OnceLock::new(), place })
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
        if let Some(place) = self.place {
            place.leave();
        }
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
            begin: AtomicUsize::new(FREE),
            end: AtomicUsize::new(0),
            name: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Takes this entry for `map`, if it is free.
    fn take(&self, map: &[u8], path: &Path) -> bool {
        let is_free = self.begin.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if is_free {
            self.end.store(map.as_ptr_range().end as usize, Ordering::Relaxed);
            self.name.store(Box::into_raw(Box::new(name(path))), Ordering::Relaxed);
            self.begin.store(map.as_ptr() as usize, Ordering::Release);
        }
        is_free
    }

    /// Frees this entry.
    fn leave(&self) {
        self.begin.store(TAKEN, Ordering::Relaxed);
        let name = self.name.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: the pointer came from a box in `take`, and only this frees it.
        drop(unsafe { Box::from_raw(name) });
        self.begin.store(FREE, Ordering::Release);
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
/// thread that read the address: takes no locks and allocates nothing.
pub fn with_mapped_file_at(address: usize, tell: impl FnOnce(&str)) {
    let holds = |place: &&Place| {
        let begin = place.begin.load(Ordering::Acquire);
        // All addresses are below `TAKEN`, so a changing entry matches none.
        (begin..place.end.load(Ordering::Relaxed)).contains(&address) && begin != FREE
    };
    if let Some(place) = PLACES.iter().find(holds) {
        // SAFETY: the name lives as long as the map, which the reading thread has borrowed.
        if let Some(name) = unsafe { place.name.load(Ordering::Acquire).as_ref() } {
            tell(name);
        }
    }
}

#[cfg(test)]
mod tests {
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
            std::fs::write(&path, [7; 5000]).unwrap();
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
    fn names_are_one_short_line() {
        assert_eq!(name(Path::new("a\u{1b}[2J\r")), "a\\u{1b}[2J\\r");
        assert!(name(Path::new(&"x".repeat(5000))).len() < 850);
    }
}
