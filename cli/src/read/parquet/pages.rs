//! Pages of a column of a Parquet file.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use tagore::Result;

use super::super::bytes::{Bytes, unshuffled};
use super::super::compressed::Frames;
use super::super::copy::{PIECE, damaged};
use super::thrift::{TRUE, Thrift};
use super::{Chunk, Rows, unknown};

/// Bytes of the header of a page, at most: it may hold the least and the largest value.
const HEADER: u64 = 1 << 20;

/// Bytes of a page, at most: memory holds one.
const PAGE: usize = 1 << 30;

/// Encodings of values.
const PLAIN: i64 = 0;
const PLAIN_DICTIONARY: i64 = 2;
const DICTIONARY: i64 = 8;
const SPLIT: i64 = 9;

/// A header of a page.
#[derive(Default)]
struct Header {
    kind: i64,
    /// Bytes decompressed, and in the file.
    size: i64,
    stored: i64,
    values: i64,
    encoding: i64,
    /// Of version 2: bytes of levels, which are not compressed.
    definitions: i64,
    repetitions: i64,
    is_plain: bool,
}

/// Kinds of pages.
const DATA: i64 = 0;
const DICTIONARY_PAGE: i64 = 2;
const DATA_2: i64 = 3;

/// The pages of a part of a column.
pub(super) struct Pages<'a> {
    path: &'a Path,
    file: &'a File,
    chunk: Chunk,
    at: u64,
    end: u64,
    dictionary: Vec<u8>,
}

impl<'a> Pages<'a> {
    pub(super) fn new(path: &'a Path, file: &'a File, chunk: Chunk) -> Result<Self> {
        let first = if (1..chunk.data).contains(&chunk.dictionary) { chunk.dictionary } else { chunk.data };
        let place = u64::try_from(first).ok().zip(u64::try_from(chunk.bytes).ok());
        let Some((at, bytes)) = place else { return Err(damaged(path, &"a column outside the file")) };
        let end = at.saturating_add(bytes);
        Ok(Self { path, file, chunk, at, end, dictionary: Vec::new() })
    }

    /// Appends the lists of all pages.
    pub(super) fn push(mut self, rows: &mut Rows<'_>) -> Result<()> {
        let mut left = self.chunk.values;
        while left > 0 {
            let header = self.header()?;
            let page = self.page(&header)?;
            match header.kind {
                DICTIONARY_PAGE => self.dictionary = page,
                DATA | DATA_2 if header.values > 0 && header.values <= left => {
                    left -= header.values;
                    self.data(&header, &page, rows)?;
                }
                _ => return Err(self.broken("a page with other values than its column")),
            }
        }
        Ok(())
    }

    /// Reads the next header.
    fn header(&mut self) -> Result<Header> {
        let rest = self.end.saturating_sub(self.at);
        let mut window = 1 << 10;
        loop {
            let bytes = self.bytes(window.min(rest))?;
            let mut rest_of = Thrift(Bytes(&bytes));
            if let Some(header) = header(&mut rest_of) {
                self.at += (bytes.len() - rest_of.0.0.len()) as u64;
                return Ok(header);
            }
            if window >= rest.min(HEADER) {
                return Err(self.broken("a page without a header"));
            }
            window *= 16;
        }
    }

    fn bytes(&self, length: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let mut file = self.file;
        file.seek(SeekFrom::Start(self.at)).map_err(|error| self.broken(&error.to_string()))?;
        file.take(length).read_to_end(&mut bytes).map_err(|error| self.broken(&error.to_string()))?;
        Ok(bytes)
    }

    /// Reads and decompresses a page.
    fn page(&mut self, header: &Header) -> Result<Vec<u8>> {
        let sizes = usize::try_from(header.size).ok().zip(u64::try_from(header.stored).ok());
        let sizes =
            sizes.filter(|&(size, stored)| size <= PAGE && stored <= self.end.saturating_sub(self.at));
        let Some((size, stored)) = sizes else {
            return Err(self.broken(&format!("a page of {} bytes", header.stored)));
        };
        let bytes = self.bytes(stored)?;
        self.at += stored;
        let levels = header.definitions.checked_add(header.repetitions).and_then(|n| usize::try_from(n).ok());
        let Some((levels, values)) = levels.and_then(|levels| bytes.split_at_checked(levels)) else {
            return Err(self.broken("a page of levels"));
        };
        let mut page = levels.to_vec();
        let size = size.saturating_sub(levels.len());
        let codec = if header.is_plain { 0 } else { self.chunk.codec };
        let decompressed = match codec {
            0 => Ok(values.to_vec()),
            1 => snappy(values, size),
            2 => read(MultiGzDecoder::new(values), size),
            6 => read(Frames::new(values), size),
            // No sequence of bytes stands for more than 255 times as many.
            7 if size <= 256 * (values.len() + 1) => {
                lz4_flex::block::decompress(values, size).map_err(io::Error::other)
            }
            other => {
                let names = ["LZO", "Brotli", "LZ4 in the layout of Hadoop"];
                let name = usize::try_from(other - 3).ok().and_then(|at| names.get(at));
                let name = name.copied().unwrap_or("another codec");
                return Err(unknown(self.path, &format!("pages compressed by {name}")));
            }
        };
        let decompressed = decompressed.map_err(|error| self.broken(&error.to_string()))?;
        if decompressed.len() != size {
            return Err(self.broken(&format!("{} bytes in place of {size} in a page", decompressed.len())));
        }
        page.extend(decompressed);
        Ok(page)
    }

    /// Appends the lists of a page.
    fn data(&self, header: &Header, page: &[u8], rows: &mut Rows<'_>) -> Result<()> {
        let short = || self.broken("a page that ends early");
        let count = header.values as usize;
        let mut rest = Bytes(page);
        let mut levels = |most: u8, length: i64| {
            let width = 8 - most.leading_zeros();
            let length = match header.kind {
                DATA if most == 0 => 0,
                DATA => rest.int()? as usize,
                _ => usize::try_from(length).ok()?,
            };
            Some(Runs::new(rest.take(length)?, width))
        };
        let mut repetitions = levels(rows.column.repeated, header.repetitions).ok_or_else(short)?;
        let mut definitions = levels(rows.column.defined, header.definitions).ok_or_else(short)?;
        let size = rows.column.stored;
        // A null has no value: with too few values, it is among these.
        let stored = matches!(header.encoding, PLAIN | SPLIT).then(|| rest.0.len() / size);
        for _ in 0..stored.map_or(count, |stored| count.min(stored + 1)) {
            let levels = repetitions.next().zip(definitions.next()).ok_or_else(short)?;
            rows.level(levels.0, levels.1)?;
        }
        if stored.is_some_and(|stored| stored < count) {
            return Err(short());
        }
        match header.encoding {
            PLAIN => rows.values(&rest.0[..count * size]),
            SPLIT => rows.values(&unshuffled(&rest.0[..count * size], size)),
            PLAIN_DICTIONARY | DICTIONARY => {
                let width = rest.byte().filter(|&width| width <= 32).ok_or_else(short)?;
                let mut indexes = Runs::new(rest.0, width.into());
                let mut values = Vec::new();
                for _ in 0..count {
                    let index = indexes.next().ok_or_else(short)? as usize;
                    let value = index.checked_mul(size).and_then(|at| self.dictionary.get(at..at + size));
                    values
                        .extend_from_slice(value.ok_or_else(|| self.broken("an index past its dictionary"))?);
                    if values.len() >= PIECE {
                        rows.values(&values)?;
                        values.clear();
                    }
                }
                rows.values(&values)
            }
            other => Err(unknown(self.path, &format!("values in encoding {other}"))),
        }
    }

    fn broken(&self, found: &str) -> tagore::Error {
        damaged(self.path, &found)
    }
}

fn snappy(bytes: &[u8], size: usize) -> io::Result<Vec<u8>> {
    if snap::raw::decompress_len(bytes)? != size || size > 32 * (bytes.len() + 1) {
        return Err(io::Error::other("another size than that of the page"));
    }
    Ok(snap::raw::Decoder::new().decompress_vec(bytes)?)
}

/// Reads at most one byte more than `size`.
fn read(from: impl Read, size: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(size as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn header(rest: &mut Thrift<'_>) -> Option<Header> {
    let mut header = Header::default();
    rest.fields(|rest, field, kind| {
        match field {
            1 => header.kind = rest.int()?,
            2 => header.size = rest.int()?,
            3 => header.stored = rest.int()?,
            5 | 7 | 8 => rest.fields(|rest, inner, kind| {
                match (field, inner) {
                    (_, 1) => header.values = rest.int()?,
                    (5 | 7, 2) | (8, 4) => header.encoding = rest.int()?,
                    (8, 5) => header.definitions = rest.int()?,
                    (8, 6) => header.repetitions = rest.int()?,
                    (8, 7) => header.is_plain = kind != TRUE,
                    _ => rest.pass(kind)?,
                }
                Some(())
            })?,
            _ => rest.pass(kind)?,
        }
        Some(())
    })?;
    Some(header)
}

/// Whole numbers of a width in bits: runs of one number, and packed ones.
struct Runs<'a> {
    rest: Thrift<'a>,
    width: u32,
    /// The number that is repeated, and how often.
    run: (u32, u64),
    /// Packed bytes, the next bit in them, and numbers left.
    packed: (&'a [u8], usize, u64),
}

impl<'a> Runs<'a> {
    fn new(bytes: &'a [u8], width: u32) -> Self {
        // Without bits, all are 0.
        let run = (0, if width == 0 { u64::MAX } else { 0 });
        Self { rest: Thrift(Bytes(bytes)), width, run, packed: (&[], 0, 0) }
    }
}

impl Iterator for Runs<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        loop {
            if self.run.1 > 0 {
                self.run.1 -= 1;
                return Some(self.run.0);
            }
            let (bytes, bit, left) = &mut self.packed;
            if *left > 0 {
                *left -= 1;
                let mut wide = [0; 8];
                let from = bytes.get(*bit / 8..)?;
                let length = from.len().min(8);
                wide[..length].copy_from_slice(&from[..length]);
                let number = u64::from_le_bytes(wide) >> (*bit % 8);
                *bit += self.width as usize;
                return Some((number & ((1 << self.width) - 1)) as u32);
            }
            let head = self.rest.varint()?;
            if head & 1 == 0 {
                let number = self.rest.0.number(self.width.div_ceil(8) as usize)?;
                self.run = (u32::try_from(number).ok()?, head >> 1);
            } else {
                let bytes = usize::try_from((head >> 1).checked_mul(self.width.into())?).ok()?;
                // Some writers leave out the end of the last group.
                let bytes = bytes.min(self.rest.0.0.len());
                self.packed = (self.rest.0.take(bytes)?, 0, bytes as u64 * 8 / u64::from(self.width));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_packed_numbers_alternate() {
        // The example of the format: 0 to 7 in 3 bits; before it a run of three fours.
        let bytes = [6, 4, 3, 0x88, 0xc6, 0xfa];
        assert_eq!(Runs::new(&bytes, 3).collect::<Vec<_>>(), [4, 4, 4, 0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(Runs::new(&[], 0).take(2).collect::<Vec<_>>(), [0, 0]);
        assert_eq!(Runs::new(&[6], 3).next(), None);
        assert_eq!(Runs::new(&[0xff; 12], 3).next(), None);
    }
}
