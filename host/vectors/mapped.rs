//! Files in memory.
//!
//! Whoever reads a page of a map behind the end that its file has by then gets SIGBUS: another
//! process cut the file short. The library handles no signals. A program may, and asks
//! [`with_mapped_file_at`] which file an address belongs to.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use memmap2::Mmap;

/// A file mapped for reading.
#[derive(Debug)]
pub(crate) struct MappedFile {
    map: Mmap,
    /// Where it is registered, if there was a place.
    place: Option<&'static Place>,
}

/// Where a map lies and what its file is called.
#[derive(Debug)]
struct Place {
    /// The first address; [`FREE`], or [`TAKEN`] while the others change.
    begin: AtomicUsize,
    end: AtomicUsize,
    name: AtomicPtr<String>,
}

const FREE: usize = 0;
const TAKEN: usize = usize::MAX;

/// More files than any command maps at once. Those of a program that maps more have no name.
static PLACES: [Place; 64] = [const { Place::free() }; 64];

/// Bytes of a name, at most: an error is a line.
const NAME: usize = 800;

impl MappedFile {
    /// Maps all of `file`, which is called `path`.
    ///
    /// # Errors
    /// If the system refuses.
    ///
    /// # Safety
    /// - No one changes the file while it is mapped. Cutting it short ends the process with SIGBUS.
    pub(super) unsafe fn new(file: &File, path: &Path) -> io::Result<Self> {
        // SAFETY: the caller's.
        let map = unsafe { Mmap::map(file) }?;
        let place = PLACES.iter().find(|place| place.take(&map, path));
        Ok(Self { map, place })
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

    /// Takes the place for `map`, if it is free and there is anything to read.
    fn take(&self, map: &[u8], path: &Path) -> bool {
        let is_free = self.begin.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if is_free {
            self.end.store(map.as_ptr_range().end as usize, Ordering::Relaxed);
            self.name.store(Box::into_raw(Box::new(name(path))), Ordering::Relaxed);
            self.begin.store(map.as_ptr() as usize, Ordering::Release);
        }
        is_free
    }

    /// Gives the place back.
    fn leave(&self) {
        self.begin.store(TAKEN, Ordering::Relaxed);
        let name = self.name.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: it came from a box when the place was taken, and no one else frees it.
        drop(unsafe { Box::from_raw(name) });
        self.begin.store(FREE, Ordering::Release);
    }
}

/// The name of a file in a line of an error.
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

/// Calls `tell` with the name of the mapped file that `address` lies in, if there is one. This is
/// for a handler of SIGBUS, in the thread that read the address: it takes neither locks nor memory.
pub fn with_mapped_file_at(address: usize, tell: impl FnOnce(&str)) {
    let holds = |place: &&Place| {
        let begin = place.begin.load(Ordering::Acquire);
        // All addresses are below `TAKEN`, so a place that changes holds none.
        (begin..place.end.load(Ordering::Relaxed)).contains(&address) && begin != FREE
    };
    if let Some(place) = PLACES.iter().find(holds) {
        // SAFETY: the name is there as long as the map, which the thread that reads it has
        // borrowed.
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
    fn an_address_tells_the_file_while_it_is_mapped() {
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
