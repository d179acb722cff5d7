//! Columns of lists in Parquet files.
//!
//! Pages are decoded one at a time: repetitions and definitions show that all lists have one length
//! and no null, so values are rows. (The parquet crate takes more than a minute of CPU to
//! build, has Zstandard in C, and trusts the sizes of pages.)

mod metadata;
mod pages;
mod thrift;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use tagore::{Error, MAX_DIM, Result};

use super::copy::{Copy, damaged};
use super::{Wanted, choose, refused, remedy};
use metadata::{Chunk, Column};
use pages::Pages;

/// First and last bytes of a file.
const MAGIC: &[u8] = b"PAR1";

/// Bytes of the description, at most: memory holds it.
const DESCRIPTION: u64 = 256 << 20;

/// Copies a column to an npy file.
///
/// # Errors
/// If the file is damaged, or of a part of the format that is not read, if none or several columns
/// could be meant, lists differ in length or hold nulls, or [`Copy`] fails.
pub(super) fn copy(path: &Path, name: Option<&str>, wanted: Wanted) -> Result<PathBuf> {
    let file = File::open(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    let description = description(path, &file).map_err(|error| damaged(path, &error))?;
    let parsed = metadata::parse(&description).ok_or_else(|| damaged(path, &"no description of columns"))?;
    let (columns, groups) = parsed;
    let described: Vec<_> = columns.iter().map(described).collect();
    let at = choose(path, name, &described)?;
    let mut rows =
        Rows { path, column: &columns[at], wanted, seen: 0, dim: None, pending: Vec::new(), copy: None };
    for group in groups {
        let chunk = group.get(at).ok_or_else(|| damaged(path, &"a group of rows without a column"))?;
        Pages::new(path, &file, *chunk)?.push(&mut rows)?;
    }
    rows.finish()
}

/// The description of a file.
fn description(path: &Path, file: &File) -> Result<Vec<u8>, String> {
    let mut file = file;
    let length = path.metadata().map_err(|error| error.to_string())?.len();
    let mut read = |at: u64, length: u64| -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(at)).map_err(|error| error.to_string())?;
        file.take(length).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        Ok(bytes)
    };
    let end = read(length.saturating_sub(8), 8)?;
    let Some((size, MAGIC)) = end.split_first_chunk() else {
        return Err("another end than PAR1".to_owned());
    };
    let size = u64::from(u32::from_le_bytes(*size));
    let at = length.checked_sub(size + 8).filter(|_| size <= DESCRIPTION);
    read(at.ok_or_else(|| format!("a description of {size} bytes"))?, size)
}

/// The name of a column, and one number per dimension of it.
fn described(column: &Column) -> (String, Vec<u64>) {
    let is_lists = column.repeated == 1 && column.path.len() <= 3 && column.number.is_some();
    if is_lists { (column.path[0].clone(), vec![0; 2]) } else { (column.path.join("."), vec![0]) }
}

/// The error of a part of the format that is not read.
fn unknown(path: &Path, found: &str) -> Error {
    let command = remedy::python(path, "pyarrow.parquet as p", "p.write_table(p.read_table(f),f+'.parquet')");
    refused(path, found, format_args!("columns as {command} writes them"))
}

/// Lists being copied. The first gives the dimension.
struct Rows<'a> {
    path: &'a Path,
    column: &'a Column,
    wanted: Wanted,
    /// Number of values whose levels have been read.
    seen: usize,
    dim: Option<usize>,
    /// Values until the dimension is known.
    pending: Vec<u8>,
    copy: Option<Copy>,
}

impl Rows<'_> {
    /// Takes the levels of the next value.
    fn level(&mut self, repetition: u32, definition: u32) -> Result<()> {
        let in_row = self.dim.map_or(self.seen, |dim| self.seen % dim);
        let row = self.dim.map_or(usize::from(repetition == 0 && self.seen > 0), |dim| self.seen / dim);
        let problem = if definition < u32::from(self.column.defined) {
            "a null or an empty list".to_owned()
        } else if repetition == 0 && self.dim.is_none() && self.seen > 0 {
            self.dim = Some(self.seen);
            self.seen += 1;
            return Ok(());
        } else if repetition == 0 && in_row > 0 {
            format!("a list of {in_row}")
        } else if repetition > 0 && in_row == 0 {
            format!("a list of more than {}", self.dim.unwrap_or(0))
        } else if self.dim.is_none() && self.seen > MAX_DIM {
            format!("a list of more than {MAX_DIM}")
        } else {
            self.seen += 1;
            return Ok(());
        };
        let row = if repetition > 0 && in_row == 0 { row.saturating_sub(1) } else { row };
        Err(self.wrong(row, &problem))
    }

    fn wrong(&self, row: usize, problem: &str) -> Error {
        let found = format!("{problem} in row {row} of {}", self.column.path[0]);
        let expected = self.dim.map_or("lists of one length".to_owned(), |dim| format!("lists of {dim}"));
        refused(self.path, found, expected)
    }

    /// Takes values, whose levels were seen.
    fn values(&mut self, bytes: &[u8]) -> Result<()> {
        let number = self.number()?;
        let mut narrow = Vec::new();
        let bytes = if number.size() < self.column.stored {
            bytes.chunks_exact(self.column.stored).for_each(|stored| narrow.extend(&stored[..number.size()]));
            &narrow
        } else {
            bytes
        };
        let Some(dim) = self.dim else {
            self.pending.extend(bytes);
            return Ok(());
        };
        let copy = match &mut self.copy {
            Some(copy) => copy,
            None => self.copy.insert(Copy::start(self.path, number, dim as u64, self.wanted)?),
        };
        copy.push(&std::mem::take(&mut self.pending))?;
        copy.push(bytes)
    }

    fn number(&self) -> Result<super::number::Number> {
        self.column.number.ok_or_else(|| refused(self.path, "a column of another type", "numbers"))
    }

    fn finish(mut self) -> Result<PathBuf> {
        // Of a single row, or of none.
        let dim = *self.dim.get_or_insert(self.seen);
        if let Some(rest) = self.seen.checked_rem(dim).filter(|&rest| rest > 0) {
            return Err(self.wrong(self.seen / dim, &format!("a list of {rest}")));
        }
        self.values(&[])?;
        match self.copy {
            Some(copy) => copy.finish(),
            None => Err(refused(self.path, "no rows", "at least one")),
        }
    }
}
