//! Arrays of HDF5 files, such as those of ann-benchmarks.
//!
//! The format is large. Read is what h5py and the C library write for arrays of numbers by default:
//! contiguous, compact, and in chunks with a tree of the older version, by deflate, shuffle and
//! Fletcher's checksum. Other files are refused with the command that rewrites them. (The crates
//! that read all of it need C, or more than a minute of CPU to build.)

mod objects;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::ZlibDecoder;
use tagore::{Error, MAX_ROWS, Result};

use super::bytes::{Bytes, unshuffled};
use super::copy::{Copy, PIECE};
use super::number::Number;
use super::{Wanted, choose, refused, remedy};
use objects::{DATASPACE, DATATYPE, FILTERS, Hdf5, LAYOUT, NOWHERE, Object};

/// Bytes of a row of chunks, at most: memory holds one.
const BAND: u64 = 1 << 30;

/// Nodes of a tree of chunks, at most.
const NODES: usize = 1 << 20;

/// An array of two dimensions.
struct Array<'a> {
    hdf5: &'a Hdf5<'a>,
    rows: u64,
    cols: u64,
    /// Bytes of a number.
    size: u64,
}

/// Copies an array to an npy file.
///
/// # Errors
/// If the file is damaged or of a part of the format that is not read, none or several arrays could
/// be meant, its numbers are of no known type, or [`Copy`] fails.
pub(super) fn copy(path: &Path, name: Option<&str>, wanted: Wanted) -> Result<PathBuf> {
    let (hdf5, root) = Hdf5::open(path)?;
    let arrays = hdf5.arrays(root)?;
    let shapes: Vec<_> =
        arrays.iter().map(|(name, array)| (name.clone(), shape(array).unwrap_or_default())).collect();
    let at = choose(path, name.map(|name| name.trim_start_matches('/')), &shapes)?;
    let ((name, object), shape) = (&arrays[at], &shapes[at].1);
    let Some(number) = object.message(DATATYPE).and_then(number) else {
        let copy = "d=h.File(f)[n][()];h.File(f+'.hdf5','w')[n]=d.astype('f4')";
        let command = remedy::python(path, "h5py as h", &format!("n='{name}';{copy}"));
        let found = format_args!("another type than numbers in {name}");
        return Err(refused(path, found, format_args!("floats or integers, as {command} writes them")));
    };
    let array = Array { hdf5: &hdf5, rows: shape[0], cols: shape[1], size: number.size() as u64 };
    if array.rows > MAX_ROWS as u64 {
        return Err(refused(path, format_args!("{} rows", array.rows), format_args!("at most {MAX_ROWS}")));
    }
    let mut copy = Copy::start(path, number, array.cols, wanted)?;
    array.push(object, &mut copy)?;
    copy.finish()
}

/// The error of a part of the format that is not read.
fn unknown(path: &Path, found: &str) -> Error {
    let copies = "h.File(f).visititems(lambda n,d:hasattr(d,'shape')and o.__setitem__(n,d[()]))";
    let command = remedy::python(path, "h5py as h", &format!("o=h.File(f+'.hdf5','w');{copies}"));
    refused(path, found, format_args!("arrays as {command} writes them"))
}

/// The dimensions of an array.
fn shape(array: &Object) -> Option<Vec<u64>> {
    let mut space = array.message(DATASPACE)?;
    let (version, rank) = (space.byte()?, space.byte()?);
    space.take(if version == 1 { 6 } else { 2 })?;
    (0..rank).map(|_| space.long()).collect()
}

/// A type of numbers, if it is known.
fn number(mut kind: Bytes<'_>) -> Option<Number> {
    let class = kind.byte()? & 15;
    let bits = kind.take(3)?;
    let size = kind.int()? as usize;
    let (offset, precision) = (kind.short()?, kind.short()?);
    if offset != 0 || usize::from(precision) != 8 * size || bits[0] & 0x40 != 0 {
        return None;
    }
    let exponent = if class == 1 { kind.take(2)?[1] } else { 0 };
    let number = match (class, size, exponent) {
        (0, 1 | 2 | 4 | 8, _) => Number::integer(size, bits[0] & 8 != 0),
        (1, 2, 5) | (1, 4, 8) | (1, 8, 11) => Number::float(size),
        (1, 2, 8) => Number::BF16,
        _ => return None,
    };
    Some(if bits[0] & 1 != 0 { number.big_endian() } else { number })
}

impl Array<'_> {
    /// Appends the rows to a copy.
    fn push(&self, object: &Object, copy: &mut Copy) -> Result<()> {
        let broken = || self.hdf5.broken("an array without its layout");
        let mut layout = object.message(LAYOUT).ok_or_else(broken)?;
        let (version, class) = layout.byte().zip(layout.byte()).ok_or_else(broken)?;
        let bytes = u128::from(self.rows) * u128::from(self.cols) * u128::from(self.size);
        match (version, class) {
            (3 | 4, 0) => {
                let length = layout.short().map(usize::from);
                let data = length.and_then(|length| layout.take(length));
                copy.push(data.filter(|data| data.len() as u128 == bytes).ok_or_else(broken)?)
            }
            (3 | 4, 1) => {
                let (at, length) = layout.long().zip(layout.long()).ok_or_else(broken)?;
                if at == NOWHERE || u128::from(length) != bytes {
                    let found = format!("{length} bytes in place of {bytes}");
                    return Err(self.hdf5.broken(&found));
                }
                for first in (0..length).step_by(PIECE) {
                    let piece = (length - first).min(PIECE as u64);
                    copy.push(&self.hdf5.bytes(at.saturating_add(first), piece)?)?;
                }
                Ok(())
            }
            (3, 2) => {
                let (rank, tree) = layout.byte().zip(layout.long()).ok_or_else(broken)?;
                let chunk = layout.int().zip(layout.int()).zip(layout.int()).ok_or_else(broken)?;
                let ((height, width), size) = chunk;
                if rank != 3 || u64::from(size) != self.size || height == 0 || width == 0 {
                    return Err(broken());
                }
                let filters = object.message(FILTERS).map_or(Some(Vec::new()), filters);
                let filters = filters.ok_or_else(|| self.hdf5.broken("filters of another version"))?;
                let chunks = Chunks { array: self, height: height.into(), width: width.into(), filters };
                chunks.push(tree, copy)
            }
            _ => Err(unknown(self.hdf5.path, "chunks in the newest layout")),
        }
    }
}

/// The numbers of filters, in the order in which they were applied.
fn filters(mut message: Bytes<'_>) -> Option<Vec<u16>> {
    let (version, count) = (message.byte()?, message.byte()?);
    message.take(if version == 1 { 6 } else { 0 })?;
    let filter = |_| {
        let id = message.short()?;
        let name = if version == 1 || id >= 256 { usize::from(message.short()?) } else { 0 };
        message.short()?;
        let values = usize::from(message.short()?);
        message.take(if version == 1 { name.next_multiple_of(8) } else { name })?;
        message.take(4 * values)?;
        message.take(if version == 1 && values % 2 == 1 { 4 } else { 0 })?;
        Some(id)
    };
    (0..count).map(filter).collect()
}

/// The chunks of an array.
struct Chunks<'a> {
    array: &'a Array<'a>,
    /// Rows and columns of a chunk.
    height: u64,
    width: u64,
    filters: Vec<u16>,
}

/// The place of a chunk in the file.
struct Chunk {
    col: u64,
    at: u64,
    length: u32,
    /// Bits of filters that were left out.
    skipped: u32,
}

impl Chunks<'_> {
    /// Appends all rows to a copy, one row of chunks after another.
    fn push(&self, tree: u64, copy: &mut Copy) -> Result<()> {
        let &Array { hdf5, rows, cols, size } = self.array;
        if let Some(filter) = self.filters.iter().find(|id| !(1..=3).contains(*id)) {
            let name = if *filter == 32000 { "LZF".to_owned() } else { format!("filter {filter}") };
            return Err(unknown(hdf5.path, &format!("chunks by {name}")));
        }
        let height = self.height.min(rows);
        let band = [height, cols, size].iter().try_fold(1u64, |bytes, &n| bytes.checked_mul(n));
        let chunk = [self.height, self.width, size].iter().try_fold(1u64, |bytes, &n| bytes.checked_mul(n));
        let (Some(band), Some(chunk)) = (band.filter(|&n| n <= BAND), chunk.filter(|&n| n <= BAND)) else {
            return Err(unknown(hdf5.path, &format!("chunks of {} x {}", self.height, self.width)));
        };
        let bands = self.chunks(tree)?;
        let mut decoded = Vec::new();
        for first in (0..rows).step_by(self.height as usize) {
            let count = height.min(rows - first);
            let missing = || hdf5.broken(&format!("no values of rows from {first} on"));
            let chunks = bands.get(&first).ok_or_else(missing)?;
            if chunks.len() as u64 != cols.div_ceil(self.width) {
                return Err(missing());
            }
            let mut bytes = vec![0; (band / height * count) as usize];
            for piece in chunks {
                self.decode(piece, chunk, &mut decoded)?;
                let width = (self.width.min(cols - piece.col) * size) as usize;
                let lines = decoded.chunks_exact((self.width * size) as usize);
                for (line, row) in lines.zip(bytes.chunks_exact_mut((cols * size) as usize)) {
                    row[(piece.col * size) as usize..][..width].copy_from_slice(&line[..width]);
                }
            }
            copy.push(&bytes)?;
        }
        Ok(())
    }

    /// All chunks by their first row.
    fn chunks(&self, tree: u64) -> Result<BTreeMap<u64, Vec<Chunk>>> {
        let hdf5 = self.array.hdf5;
        let broken = || hdf5.broken("a tree of chunks");
        let (mut nodes, mut seen) = (vec![tree], 0);
        let mut bands = BTreeMap::<u64, Vec<Chunk>>::new();
        while let Some(at) = nodes.pop() {
            seen += 1;
            let start = hdf5.bytes(at, 8)?;
            let is_tree = start.starts_with(b"TREE\x01");
            if !is_tree || seen > NODES {
                return Err(broken());
            }
            let (level, count) = (start[5], u64::from(start[6]) | u64::from(start[7]) << 8);
            for entry in hdf5.bytes(at.saturating_add(24), 40 * count)?.chunks_exact(40) {
                let mut key = Bytes(entry);
                let (length, skipped) = key.int().zip(key.int()).ok_or_else(broken)?;
                let (row, col) = key.long().zip(key.long()).ok_or_else(broken)?;
                let at = key.long().and_then(|_| key.long()).ok_or_else(broken)?;
                if level > 0 {
                    nodes.push(at);
                } else if row < self.array.rows && col < self.array.cols {
                    bands.entry(row).or_default().push(Chunk { col, at, length, skipped });
                }
            }
        }
        let is_grid = |chunk: &Chunk| chunk.col.is_multiple_of(self.width);
        if !bands.values().flatten().all(is_grid) {
            return Err(broken());
        }
        Ok(bands)
    }

    /// Decodes a chunk of this many bytes.
    fn decode(&self, chunk: &Chunk, expected: u64, decoded: &mut Vec<u8>) -> Result<()> {
        let hdf5 = self.array.hdf5;
        let mut bytes = hdf5.bytes(chunk.at, chunk.length.into())?;
        let applied = |(i, _): &(usize, &u16)| chunk.skipped >> (i % 32) & 1 == 0;
        for (_, filter) in self.filters.iter().enumerate().filter(applied).rev() {
            match filter {
                1 => {
                    let mut inflated = Vec::new();
                    let read = ZlibDecoder::new(&*bytes).take(expected + 8).read_to_end(&mut inflated);
                    read.map_err(|error| hdf5.broken(&error.to_string()))?;
                    bytes = inflated;
                }
                2 => bytes = unshuffled(&bytes, self.array.size as usize),
                _ => {
                    let (data, sum) = bytes.split_at(bytes.len().saturating_sub(4));
                    if sum != fletcher32(data).to_le_bytes() {
                        return Err(hdf5.broken("another checksum of a chunk"));
                    }
                    bytes.truncate(bytes.len() - 4);
                }
            }
        }
        if bytes.len() as u64 != expected {
            return Err(hdf5.broken(&format!("a chunk of {} bytes in place of {expected}", bytes.len())));
        }
        *decoded = bytes;
        Ok(())
    }
}

/// Fletcher's checksum of big-endian words, as the C library computes it.
fn fletcher32(bytes: &[u8]) -> u32 {
    let fold = |sum: u32| (sum & 0xffff) + (sum >> 16);
    let (mut low, mut high) = (0, 0);
    for pair in bytes.chunks(2) {
        low = fold(low + u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])));
        high = fold(high + low);
    }
    high << 16 | low
}
