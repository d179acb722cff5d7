//! Columns of lists in Arrow files, Feather (version 2) included, and in streams, as `datasets`
//! writes them.
//!
//! Both are messages one after another: a schema, then batches of rows. A message is a FlatBuffer
//! and a body. The body of a batch has the buffers of all columns in order, so the types before a
//! column tell where its buffers are. (The arrow crates take three minutes of CPU to build, and
//! hold a batch in memory, which may be the whole file.)

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use lz4_flex::frame::FrameDecoder;
use tagore::{Error, Result};

use super::copy::{PIECE, damaged};
use super::flatbuffer::{Table, Vector};
use super::lists::Lists;
use super::number::Number;
use super::{Wanted, choose, compressed, refused};

/// First and last bytes of a file. A stream has none.
const MAGIC: &[u8] = b"ARROW1";

/// Bytes of a message without its body, at most.
const MESSAGE: u64 = 256 << 20;

/// Types within types, at most.
const DEPTH: usize = 64;

/// Kinds of messages.
const SCHEMA: u8 = 1;
const BATCH: u8 = 3;

/// Numbers of the types of lists, as in the format's `Schema.fbs`.
const LIST: u8 = 12;
const FIXED_LIST: u8 = 16;
const LARGE_LIST: u8 = 21;

/// Places in the vectors of a batch: the next node, buffer, and count of buffers of a view.
#[derive(Clone, Copy, Default)]
struct Places {
    node: usize,
    buffer: usize,
    view: usize,
}

/// A column.
struct Column {
    /// Places of its first node and buffer. Those before it may be views, with counts of buffers in
    /// each batch.
    places: Places,
    list: Option<List>,
}

/// A column of lists of numbers.
#[derive(Clone, Copy)]
struct List {
    number: Number,
    /// Numbers in each list, if all have as many.
    fixed: Option<usize>,
    /// Bytes of an offset, else.
    offset: usize,
}

/// Copies a column to an npy file.
///
/// # Errors
/// If the file is damaged, none or several columns could be meant, lists differ in length or hold
/// nulls, or the copy fails.
pub(super) fn copy(path: &Path, name: Option<&str>, wanted: Wanted) -> Result<PathBuf> {
    let mut messages = Messages::open(path)?;
    let schema = messages.next()?.ok_or_else(|| damaged(path, &"no schema"))?;
    let version = schema.table()?.short(0);
    let fields = schema.content(SCHEMA)?.ok_or_else(|| damaged(path, &"no schema"))?;
    if fields.short(0) != 0 {
        return Err(refused(path, "big-endian columns", "little-endian ones"));
    }
    let (mut columns, mut names, mut places) = (Vec::new(), Vec::new(), Places::default());
    for field in fields.tables(fields.vector(1)) {
        let list = list(field);
        names.push((field.text(0), vec![0; if list.is_some() { 2 } else { 1 }]));
        columns.push(Column { places, list });
        pass(field, version, &mut places, DEPTH).ok_or_else(|| damaged(path, &"types within types"))?;
    }
    let at = choose(path, name, &names)?;
    let Column { places, list: Some(list) } = columns[at] else {
        return Err(refused(path, format_args!("no lists in {}", names[at].0), "lists of numbers"));
    };
    let mut lists = Lists::new(path, &names[at].0, list.number, wanted);
    while let Some(message) = messages.next()? {
        if let Some(batch) = message.content(BATCH)? {
            Batch { path, file: &messages.file, batch, body: message.body }.push(list, places, &mut lists)?;
        }
    }
    lists.finish()
}

/// The list that a field is, if it is one of numbers.
fn list(field: Table<'_>) -> Option<List> {
    let child = field.tables(field.vector(5)).next()?;
    let (kind, of) = (child.byte(2), child.table(3)?);
    let number = match (kind, of.int(0)) {
        _ if child.table(4).is_some() || field.table(4).is_some() => return None,
        (2, bits @ (8 | 16 | 32 | 64)) => Number::integer(bits as usize / 8, of.byte(1) != 0),
        (3, _) => Number::float(2 << u32::try_from(of.short(0)).ok().filter(|&size| size < 3)?),
        _ => return None,
    };
    let own = field.table(3)?;
    let (fixed, offset) = match field.byte(2) {
        LIST => (None, 4),
        LARGE_LIST => (None, 8),
        FIXED_LIST => (Some(usize::try_from(own.int(0)).ok()?), 0),
        _ => return None,
    };
    Some(List { number, fixed, offset })
}

/// Moves past a field and its children. None if too many are within one another.
fn pass(field: Table<'_>, version: i16, places: &mut Places, depth: usize) -> Option<()> {
    let own = || field.table(3);
    places.node += 1;
    if field.table(4).is_some() {
        // Indexes of a dictionary.
        places.buffer += 2;
        return Some(());
    }
    places.buffer += match field.byte(2) {
        1 | 22 => 0,
        13 | FIXED_LIST => 1,
        // Unions. Those of older versions have a bitmap of nulls too.
        14 => 1 + own().map_or(0, |own| own.short(0).clamp(0, 1) as usize) + usize::from(version < 4),
        4 | 5 | 19 | 20 | 25 | 26 => 3,
        23 | 24 => {
            places.view += 1;
            2
        }
        _ => 2,
    };
    let depth = depth.checked_sub(1)?;
    field.tables(field.vector(5)).try_for_each(|child| pass(child, version, places, depth))
}

/// The messages of a file.
struct Messages<'a> {
    path: &'a Path,
    file: File,
    at: u64,
    end: u64,
}

/// A message: its FlatBuffer, and the place and length of its body.
struct Message<'a> {
    path: &'a Path,
    head: Vec<u8>,
    body: (u64, u64),
}

impl<'a> Messages<'a> {
    fn open(path: &'a Path) -> Result<Self> {
        let failed = |source| Error::Io { path: path.to_owned(), source };
        let mut file = File::open(path).map_err(failed)?;
        let mut end = file.metadata().map_err(failed)?.len();
        let magic = MAGIC.len() as u64;
        let mut first = Vec::new();
        (&file).take(magic).read_to_end(&mut first).map_err(failed)?;
        let is_file = first == MAGIC;
        if is_file {
            let mut last = Vec::new();
            end = end.saturating_sub(magic);
            file.seek(SeekFrom::Start(end)).map_err(failed)?;
            file.read_to_end(&mut last).map_err(failed)?;
            if last != MAGIC || end < 2 * magic {
                return Err(damaged(path, &"another end than ARROW1"));
            }
        }
        Ok(Self { path, file, at: if is_file { 8 } else { 0 }, end })
    }

    /// Reads the next message. None after the last.
    fn next(&mut self) -> Result<Option<Message<'a>>> {
        let mut length = self.word()?;
        if length == u32::MAX {
            length = self.word()?;
        }
        let rest = self.end.saturating_sub(self.at);
        let length = u64::from(length);
        if length == 0 {
            return Ok(None);
        }
        if length > rest.min(MESSAGE) {
            return Err(damaged(self.path, &format_args!("a message of {length} bytes")));
        }
        let mut head = Vec::new();
        self.seek()?.take(length).read_to_end(&mut head).map_err(|error| damaged(self.path, &error))?;
        let message = Message { path: self.path, head, body: (self.at + length, 0) };
        let body = message.table()?.long(3);
        let Some(body) = u64::try_from(body).ok().filter(|&body| body <= rest - length) else {
            return Err(damaged(self.path, &format_args!("a message with a body of {body} bytes")));
        };
        self.at += length + body;
        Ok(Some(Message { body: (message.body.0, body), ..message }))
    }

    /// The next 4 bytes; 0 at the end.
    fn word(&mut self) -> Result<u32> {
        if self.at == self.end {
            return Ok(0);
        }
        let mut word = [0; 4];
        self.seek()?.read_exact(&mut word).map_err(|error| damaged(self.path, &error))?;
        self.at += 4;
        Ok(u32::from_le_bytes(word))
    }

    fn seek(&mut self) -> Result<&File> {
        self.file.seek(SeekFrom::Start(self.at)).map_err(|error| damaged(self.path, &error))?;
        Ok(&self.file)
    }
}

impl Message<'_> {
    fn table(&self) -> Result<Table<'_>> {
        Table::root(&self.head).ok_or_else(|| damaged(self.path, &"a message without content"))
    }

    /// The content of a message of this kind.
    fn content(&self, kind: u8) -> Result<Option<Table<'_>>> {
        let table = self.table()?;
        Ok(table.table(2).filter(|_| table.byte(1) == kind))
    }
}

/// A batch of rows.
struct Batch<'a> {
    path: &'a Path,
    file: &'a File,
    batch: Table<'a>,
    /// Place and length of the body.
    body: (u64, u64),
}

impl Batch<'_> {
    /// Appends the lists of a column.
    fn push(&self, list: List, places: Places, lists: &mut Lists<'_>) -> Result<()> {
        let broken = || damaged(self.path, &"a batch without the buffers of a column");
        let (nodes, views) = (self.batch.vector(1), self.batch.vector(4));
        let mut buffer = places.buffer;
        for view in 0..places.view {
            let count = self.batch.long_at(views, view).and_then(|count| usize::try_from(count).ok());
            buffer = count.and_then(|count| buffer.checked_add(count)).ok_or_else(broken)?;
        }
        let node = |at| self.batch.pair(nodes, at).ok_or_else(broken);
        let ((rows, nulls), (_, inner_nulls)) = (node(places.node)?, node(places.node + 1)?);
        let rows = usize::try_from(rows).map_err(|_| broken())?;
        let offsets = match list.fixed {
            Some(_) => None,
            None => Some(self.offsets(buffer + 1, rows, list.offset)?),
        };
        let begin = offsets.as_ref().map_or(0, |offsets| offsets[0]);
        let length = |row: usize| match (&offsets, list.fixed) {
            (Some(offsets), _) => offsets[row + 1] - offsets[row],
            (None, fixed) => fixed.unwrap_or(0),
        };
        let inner = buffer + if offsets.is_some() { 2 } else { 1 };
        // The first null: the number of its row, or its place among all numbers.
        let null_row = if nulls == 0 { None } else { self.first_null(buffer, 0)? };
        let null = if inner_nulls == 0 { None } else { self.first_null(inner, begin)? };
        let size = list.number.size();
        let mut values = self.buffer(inner + 1)?;
        let skipped = io::copy(&mut values.by_ref().take((begin * size) as u64), &mut io::sink());
        skipped.map_err(|error| damaged(self.path, &error))?;
        let (mut row, mut place, mut bytes) = (0, 0usize, Vec::new());
        while row < rows {
            let (first, before) = (row, place);
            while row < rows && (row == first || (place - before) * size < PIECE) {
                place = place.checked_add(length(row)).ok_or_else(broken)?;
                row += 1;
            }
            let missing = null_row.filter(|null| (first..row).contains(null));
            let missing = missing.map(|null| (first..null).map(length).sum());
            let missing =
                missing.or(null.filter(|null| (before..place).contains(null)).map(|null| null - before));
            bytes.clear();
            let expected = ((place - before) as u64).checked_mul(size as u64).ok_or_else(broken)?;
            let read = values.by_ref().take(expected).read_to_end(&mut bytes);
            read.map_err(|error| damaged(self.path, &error))?;
            lists.push((first..row).map(length), missing, &bytes)?;
        }
        Ok(())
    }

    /// The offsets of `rows` lists: one more, which never fall.
    fn offsets(&self, buffer: usize, rows: usize, size: usize) -> Result<Vec<usize>> {
        let mut bytes = Vec::new();
        let expected = (rows as u64).saturating_add(1).saturating_mul(size as u64);
        let read = self.buffer(buffer)?.take(expected).read_to_end(&mut bytes);
        read.map_err(|error| damaged(self.path, &error))?;
        let offset = |bytes: &[u8]| {
            let mut wide = [0; 8];
            wide[..size].copy_from_slice(bytes);
            usize::try_from(u64::from_le_bytes(wide)).unwrap_or(usize::MAX)
        };
        let offsets: Vec<usize> = bytes.chunks_exact(size).map(offset).collect();
        if bytes.len() as u64 != expected || !offsets.is_sorted() || offsets.last() > Some(&(usize::MAX / 8))
        {
            return Err(damaged(self.path, &"offsets of lists that are out of order"));
        }
        Ok(offsets)
    }

    /// The place of the first null from place `from` on, by a bitmap.
    fn first_null(&self, buffer: usize, from: usize) -> Result<Option<usize>> {
        let mut bits = Vec::new();
        self.buffer(buffer)?.read_to_end(&mut bits).map_err(|error| damaged(self.path, &error))?;
        let zero = (from..8 * bits.len()).find(|&at| bits[at / 8] >> (at % 8) & 1 == 0);
        Ok(zero.map(|zero| zero - from))
    }

    /// The bytes of a buffer, decompressed.
    fn buffer(&self, number: usize) -> Result<Box<dyn Read + '_>> {
        let buffers: Vector = self.batch.vector(2);
        let found = self.batch.pair(buffers, number).and_then(|(at, length)| {
            let (at, length) = (u64::try_from(at).ok()?, u64::try_from(length).ok()?);
            (at.checked_add(length)? <= self.body.1).then_some((self.body.0 + at, length))
        });
        let Some((at, length)) = found else {
            return Err(damaged(self.path, &"a buffer outside its batch"));
        };
        let failed = |source| Error::Io { path: self.path.to_owned(), source };
        let mut file = self.file.try_clone().map_err(failed)?;
        file.seek(SeekFrom::Start(at)).map_err(failed)?;
        let mut bytes = BufReader::with_capacity(PIECE, file).take(length);
        let Some(compression) = self.batch.table(3).filter(|_| length > 0) else {
            return Ok(Box::new(bytes));
        };
        let mut stated = [0; 8];
        bytes.read_exact(&mut stated).map_err(|error| damaged(self.path, &error))?;
        let Ok(stated) = u64::try_from(i64::from_le_bytes(stated)) else {
            // -1: stored as it is.
            return Ok(Box::new(bytes));
        };
        Ok(if compression.byte(0) == 0 {
            Box::new(FrameDecoder::new(bytes).take(stated))
        } else {
            Box::new(compressed::Frames::new(bytes).take(stated))
        })
    }
}
