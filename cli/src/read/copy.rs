//! The rows of a file of another program, copied to a temporary npy file that is mapped.

use std::fs::File;
use std::io::{BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

use tagore::{Error, MAX_DIM, MAX_ROWS, Result};
use tagore_text::path_text;

use super::number::Number;
use super::{Wanted, note, refused};
use crate::spool;

/// Bytes handled at a time.
pub(super) const PIECE: usize = 1 << 20;

/// Bytes of the header of an npy file that this file writes.
const HEADER: usize = 128;

/// Rows being copied.
pub(super) struct Copy {
    source: PathBuf,
    path: PathBuf,
    to: BufWriter<File>,
    from: Number,
    kept: Number,
    dim: usize,
    /// Numbers written.
    count: usize,
    /// Largest relative change of a number that was narrowed.
    worst: f64,
    /// A piece of numbers of the type that is kept.
    piece: Vec<u8>,
}

impl Copy {
    /// Starts a copy of the rows of `source`: numbers of type `from`, `dim` per row. Numbers of
    /// other types than those of vectors are narrowed to f32, but for integers if `wanted` may be
    /// ids.
    ///
    /// # Errors
    /// If vectors cannot have this dimension, or the copy cannot be written.
    pub(super) fn start(source: &Path, from: Number, dim: u64, wanted: Wanted) -> Result<Self> {
        let kept = match wanted {
            _ if from.is_of_vectors() => from.little_endian(),
            Wanted::Any if from.may_be_ids() => from.little_endian(),
            _ => Number::F32,
        };
        let widest = if kept.may_be_ids() { u32::MAX as usize } else { MAX_DIM };
        let Some(dim) = usize::try_from(dim).ok().filter(|dim| (1..=widest).contains(dim)) else {
            return Err(refused(source, format_args!("{dim} values per row"), format_args!("1 to {widest}")));
        };
        let (file, path) = spool::create(source, "npy")?;
        let to = BufWriter::with_capacity(PIECE, file);
        let mut copy = Self {
            source: source.to_owned(),
            path,
            to,
            from,
            kept,
            dim,
            count: 0,
            worst: 0.0,
            piece: Vec::new(),
        };
        copy.put(&[0; HEADER])?;
        Ok(copy)
    }

    /// Appends the numbers in `bytes`: whole numbers of the type of the source.
    ///
    /// # Errors
    /// If a number is beyond f32, there are too many rows, there is no room, or the work is
    /// cancelled.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<()> {
        spool::check()?;
        if self.from == self.kept {
            self.put(bytes)?;
            return self.counted(bytes.len() / self.kept.size());
        }
        let size = self.from.size();
        for piece in bytes.chunks(PIECE) {
            let mut kept = std::mem::take(&mut self.piece);
            kept.clear();
            for (i, number) in piece.chunks_exact(size).enumerate() {
                let mut room = [0; 8];
                let little = self.from.little_bytes(number, &mut room);
                if self.is_kept() {
                    kept.extend_from_slice(little);
                } else {
                    kept.extend(self.narrowed(little, i)?.to_le_bytes());
                }
            }
            self.put(&kept)?;
            self.counted(piece.len() / size)?;
            self.piece = kept;
        }
        Ok(())
    }

    /// Whether numbers keep their type.
    fn is_kept(&self) -> bool {
        self.kept == self.from.little_endian()
    }

    /// A number as f32; it comes `ahead` numbers after those written.
    fn narrowed(&mut self, bytes: &[u8], ahead: usize) -> Result<f32> {
        let value = self.from.value(bytes);
        let narrow = value as f32;
        if value.is_finite() && narrow.is_infinite() {
            let place = self.count + ahead;
            return Err(Error::Value {
                path: Some(self.source.clone()),
                row: place / self.dim,
                dim: place % self.dim,
                value: format!("{value:e}"),
                expected: "at most 3.4e38: scale the data".to_owned(),
            });
        }
        if value != 0.0 {
            // Of a NaN or an infinity this is NaN, which `max` ignores. Checks of values find both.
            self.worst = self.worst.max(((f64::from(narrow) - value) / value).abs());
        }
        Ok(narrow)
    }

    fn counted(&mut self, numbers: usize) -> Result<()> {
        self.count += numbers;
        if self.count / self.dim > MAX_ROWS {
            let expected = format_args!("at most {MAX_ROWS}");
            return Err(refused(&self.source, format_args!("more than {MAX_ROWS} rows"), expected));
        }
        Ok(())
    }

    /// Ends the copy and returns its path. Notes if numbers were narrowed.
    ///
    /// # Errors
    /// If the last row is not whole, there are no rows, or the copy cannot be written.
    pub(super) fn finish(mut self) -> Result<PathBuf> {
        let (rows, rest) = (self.count / self.dim, self.count % self.dim);
        if rest > 0 || rows == 0 {
            let found = format_args!("{} values", self.count);
            return Err(refused(&self.source, found, format_args!("rows of {}", self.dim)));
        }
        let Self { from, kept, dim, worst, .. } = self;
        let name = kept.numpy_name();
        let mut header = b"\x93NUMPY\x01\0v\0".to_vec();
        let text = format!("{{'descr': '{name}', 'fortran_order': False, 'shape': ({rows}, {dim}), }}");
        header.extend(text.bytes());
        header.resize(HEADER - 1, b' ');
        header.push(b'\n');
        let written = self.to.rewind().and_then(|()| self.to.write_all(&header));
        written.and_then(|()| self.to.flush()).map_err(|error| spool::no_copy(&self.path, &error))?;
        if kept != from.little_endian() {
            let change = if worst == 0.0 {
                "no value changed".to_owned()
            } else {
                format!("the largest relative change is {worst:.1e}")
            };
            let source = path_text(&self.source);
            note(format_args!("{source}: {from} narrowed to f32, {change}"));
        }
        Ok(self.path)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.to.write_all(bytes).map_err(|error| spool::no_copy(&self.path, &error))
    }
}

/// Copies all bytes of `from`, a part of `source`, to a temporary file with this extension. Ends
/// with an error as soon as there are more bytes than the header of an npy or bin file declares.
///
/// # Errors
/// If `from` cannot be read or is too long, there is no room, or the work is cancelled.
pub(super) fn copy_bytes(from: &mut dyn Read, source: &Path, extension: &str) -> Result<PathBuf> {
    let (mut to, path) = spool::create(source, extension)?;
    let mut piece = Vec::with_capacity(PIECE);
    let (mut copied, mut declared) = (0, None);
    loop {
        spool::check()?;
        piece.clear();
        let read = Read::take(&mut *from, PIECE as u64).read_to_end(&mut piece);
        read.map_err(|error| damaged(source, &error))?;
        if piece.is_empty() {
            return Ok(path);
        }
        if copied == 0 {
            declared = declared_bytes(extension, &piece);
        }
        copied += piece.len() as u64;
        if let Some(most) = declared.filter(|&most| copied > most) {
            let found = format_args!("more than {most} bytes");
            return Err(refused(source, found, format_args!("{most}, by its header")));
        }
        to.write_all(&piece).map_err(|error| spool::no_copy(&path, &error))?;
    }
}

/// The error of a file that cannot be decoded, or cannot be read.
pub(super) fn damaged(source: &Path, error: &dyn std::fmt::Display) -> Error {
    refused(source, format_args!("damaged content: {error}"), "the file as it was written")
}

/// Bytes of a file that begins with `head`, if its header declares them.
fn declared_bytes(extension: &str, head: &[u8]) -> Option<u64> {
    if extension == "npy" {
        let header = tagore::NpyHeader::parse(head)?;
        let size = Number::from_numpy(&header.descr)?.size() as u64;
        let numbers = header.shape.iter().try_fold(1u64, |product, &n| product.checked_mul(n))?;
        return numbers.checked_mul(size)?.checked_add(header.offset as u64);
    }
    let format = extension.parse::<tagore::Format>().ok()?;
    if !extension.ends_with("bin") {
        return None;
    }
    let row = |cols: u64| match format.element() {
        Some(element) => usize::try_from(cols)
            .ok()
            .filter(|&cols| cols <= element.max_dim())
            .map(|cols| element.row_bytes(cols) as u64),
        None => cols.checked_mul(4),
    };
    let word = |at| {
        head.get(at..at + 4)
            .map(|word: &[u8]| u64::from(u32::from_le_bytes([word[0], word[1], word[2], word[3]])))
    };
    let (short, long) = ((word(0)?, word(4)?), (word(0)? | word(4)? << 32, word(8)? | word(12)? << 32));
    // As for a file: read as a short header, a long one has no columns.
    let ((rows, cols), header) = if short.1 == 0 { (long, 16) } else { (short, 8) };
    rows.checked_mul(row(cols)?)?.checked_add(header)
}
