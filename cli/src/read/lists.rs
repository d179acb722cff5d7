//! Lists of one length in a column of a table, as rows.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use tagore::{Error, Result};

use super::copy::{Copy, damaged};
use super::number::Number;
use super::{Wanted, refused};

/// Lists being copied. The first gives the dimension.
pub(super) struct Lists<'a> {
    path: &'a Path,
    column: &'a str,
    number: Number,
    wanted: Wanted,
    rows: usize,
    copy: Option<(usize, Copy)>,
}

impl<'a> Lists<'a> {
    pub(super) fn new(path: &'a Path, column: &'a str, number: Number, wanted: Wanted) -> Self {
        Self { path, column, number, wanted, rows: 0, copy: None }
    }

    /// Appends lists of these lengths, whose numbers follow one another in `bytes`, but for a
    /// `missing` one at this place.
    ///
    /// # Errors
    /// If a number or a list is missing, lists differ in length, or [`Copy`] fails.
    pub(super) fn push(
        &mut self,
        lengths: impl Iterator<Item = usize>,
        missing: Option<usize>,
        bytes: &[u8],
    ) -> Result<()> {
        let mut place = 0;
        for length in lengths {
            let is_missing = length == 0 || missing.is_some_and(|missing| missing < place + length);
            let known = self.copy.as_ref().map(|(dim, _)| *dim);
            if is_missing || known.is_some_and(|dim| dim != length) {
                let found = if is_missing {
                    "a null or an empty list".to_owned()
                } else {
                    format!("a list of {length}")
                };
                let found = format!("{found} in row {} of {}", self.rows, self.column);
                let expected =
                    known.map_or("lists of one length".to_owned(), |dim| format!("lists of {dim}"));
                return Err(refused(self.path, found, expected));
            }
            if known.is_none() {
                let copy = Copy::start(self.path, self.number, length as u64, self.wanted)?;
                self.copy = Some((length, copy));
            }
            place += length;
            self.rows += 1;
        }
        match &mut self.copy {
            Some((_, copy)) if bytes.len() == place * self.number.size() => copy.push(bytes),
            None if bytes.is_empty() => Ok(()),
            _ => Err(self.damaged(&"lists of other lengths than their numbers")),
        }
    }

    /// Ends the copy and returns its path.
    ///
    /// # Errors
    /// If there is no list, or the copy cannot be written.
    pub(super) fn finish(self) -> Result<PathBuf> {
        match self.copy {
            Some((_, copy)) => copy.finish(),
            None => Err(refused(self.path, format_args!("no rows of {}", self.column), "at least one")),
        }
    }

    /// The error of a file that cannot be decoded.
    pub(super) fn damaged(&self, error: &dyn Display) -> Error {
        damaged(self.path, error)
    }
}
