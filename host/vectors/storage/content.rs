//! The bytes of a file: mapped, or read to memory.

use std::fmt;
use std::io::{ErrorKind, Read};
use std::ops::Deref;
use std::path::Path;

use crate::memory::zeros;
use crate::vectors::mapped::MappedFile;
use crate::vectors::storage::Memory;
use crate::{Error, Result, regular_file};

/// All bytes of a file. The first is aligned for every type of values.
pub(crate) enum Content {
    /// The file itself, which no one changes.
    Mapped(MappedFile),
    /// `len` bytes of words.
    Read { words: Vec<u64>, len: usize },
}

impl Content {
    /// Reads a regular file that is not empty.
    ///
    /// # Errors
    /// If the file cannot be opened or read, is not a regular file, is empty, or is cut short
    /// meanwhile; if memory is short.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let mut file = regular_file::open(path)?;
        let bytes = file.metadata().map_err(Error::io(path))?.len();
        check_len(path, bytes)?;
        let len = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut words: Vec<u64> = zeros(len.div_ceil(size_of::<u64>()))?;
        let room = &mut bytemuck::cast_slice_mut(&mut words)[..len];
        file.read_exact(room).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Error::file(
                path,
                "its end",
                format_args!("{bytes} bytes: it was cut short while it was read"),
            ),
            _ => Error::io(path)(error),
        })?;
        Ok(Self::Read { words, len })
    }

    /// The map, if the file is mapped.
    pub(crate) fn map(&self) -> Option<&MappedFile> {
        match self {
            Self::Mapped(map) => Some(map),
            Self::Read { .. } => None,
        }
    }
}

/// Refuses an empty file.
pub(in crate::vectors) fn check_len(path: &Path, bytes: u64) -> Result<()> {
    if bytes == 0 { Err(Error::file(path, "an empty file", "a header or rows")) } else { Ok(()) }
}

impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(map) => map,
            Self::Read { words, len } => &bytemuck::cast_slice(words)[..*len],
        }
    }
}

impl Memory for Content {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn mapped(&self) -> Option<&MappedFile> {
        self.map()
    }
}

impl fmt::Debug for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.map().is_some() { "mapped" } else { "in memory" };
        write!(f, "{} bytes {kind}", self.len())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use crate::{Synth, Vectors};

    #[test]
    fn a_file_that_was_read_may_change_and_shrink() {
        let folder = tempfile::tempdir().unwrap();
        let (path, base) = (folder.path().join("x.fvecs"), Synth::new(50, 5, 1).unwrap().base());
        base.save(&path).unwrap();
        let read = Vectors::open(&path).unwrap();
        // SAFETY: the file changes when the map is gone.
        let mapped = unsafe { Vectors::map(&path) }.unwrap();
        assert!(mapped.is_mapped() && !read.is_mapped());
        assert_eq!(mapped.to_f32().unwrap(), base.to_f32().unwrap());
        drop(mapped);
        fs::write(&path, [1; 50 * 24]).unwrap();
        assert_eq!(read.to_f32().unwrap(), base.to_f32().unwrap());
        File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
        assert_eq!(read.to_f32().unwrap(), base.to_f32().unwrap());
        let error = Vectors::open(&path).unwrap_err().to_string();
        assert!(error.ends_with("found an empty file, expected a header or rows"), "{error}");
    }
}
