//! Sequential, bounds-checked reading of a file.

use std::fmt::{Arguments, Display};
use std::path::Path;

use bytemuck::AnyBitPattern;

use crate::vectors::{self, MappedFile};
use crate::{Error, Progress, Result};

/// Maps a file to read it by [`Bytes`].
///
/// # Errors
/// If the file cannot be opened, is not a regular file, or is empty.
pub(super) fn map(path: &Path) -> Result<MappedFile> {
    // SAFETY: `Bytes` bounds reads by the length of the map, and numbers are taken as copies, which
    // are checked before they are used.
    unsafe { vectors::map(path) }
}

/// The unread rest of a file. Every read is checked against it, so a wrong count cannot cause a
/// large allocation.
#[derive(Clone)]
pub(super) struct Bytes<'a> {
    path: &'a Path,
    length: usize,
    rest: &'a [u8],
    progress: &'a Progress,
}

impl<'a> Bytes<'a> {
    /// Starts at the beginning of `file`. Reading stops soon after `progress` is cancelled.
    pub(super) fn new(path: &'a Path, file: &'a [u8], progress: &'a Progress) -> Self {
        Self { path, length: file.len(), rest: file, progress }
    }

    /// Byte offset of the next read.
    pub(super) fn position(&self) -> usize {
        self.length - self.rest.len()
    }

    /// Size of the whole file, in bytes.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The error of a malformed file.
    pub(super) fn refuse(&self, found: impl ToString, expected: impl ToString) -> Error {
        Error::file(self.path, found, expected)
    }

    /// Takes the next `count` elements of `size` bytes; `what` names them in the error.
    pub(super) fn take(&mut self, count: u64, size: usize, what: impl Display) -> Result<&'a [u8]> {
        self.progress.check()?;
        let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(size));
        match bytes.and_then(|bytes| self.rest.split_at_checked(bytes)) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => {
                let (left, at) = (self.rest.len(), self.position());
                let found = format!("{left} bytes from byte {at} on");
                Err(self.refuse(found, format_args!("{what} ({count} x {size} bytes)")))
            }
        }
    }

    /// Takes the next number; `what` names it in the error.
    pub(super) fn number<T: AnyBitPattern>(&mut self, what: impl Display) -> Result<T> {
        Ok(bytemuck::pod_read_unaligned(self.take(1, size_of::<T>(), what)?))
    }

    /// Takes the next `count` numbers; `what` names them in the error.
    pub(super) fn numbers<T: AnyBitPattern>(
        &mut self,
        count: u64,
        what: Arguments<'_>,
    ) -> Result<impl ExactSizeIterator<Item = T> + use<'a, T>> {
        let taken = self.take(count, size_of::<T>(), what)?;
        Ok(taken.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned))
    }

    /// Takes the next number, which must be `expected`; `what` names it in the error.
    pub(super) fn expect<T: AnyBitPattern + PartialEq + Display>(
        &mut self,
        what: &str,
        expected: T,
    ) -> Result<()> {
        let found: T = self.number(what)?;
        if found == expected { Ok(()) } else { Err(self.refuse(format_args!("{what} {found}"), expected)) }
    }

    /// Checks that the file ends here.
    pub(super) fn end(&self) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        Err(self.refuse(
            format_args!("{} bytes", self.length),
            format_args!("{} by its contents", self.position()),
        ))
    }
}
