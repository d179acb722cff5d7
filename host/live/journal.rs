//! The journal of a live index: what its files hold, then each change since.
//!
//! ```text
//! "TAGOREJL", version 1: u32, 0: u32
//! per record: bytes of the content n: u64, CRC-32 of the content, CRC-32 of these 12 bytes: u32
//!             the content, n bytes
//! ```
//!
//! The content of the first record is JSON, a [`State`]. That of others is a [`Change`]: its kind
//! and the number of ids, two u64, the ids, and the rows of an insertion. A record that the file
//! ends in was never acknowledged: it is cut off. Damage before others is an error.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::version::bytes_of;
use crate::atomic_file::AtomicFile;
use crate::memory::with_capacity;
use crate::{Error, Result, Vectors, regular_file};

const MAGIC: &[u8; 8] = b"TAGOREJL";
const VERSION: u32 = 1;

/// Bytes before the first record.
const HEADER: usize = 16;

/// Bytes before the content of a record.
const HEAD: usize = 16;

/// Kinds of changes.
const INSERT: u64 = 1;
const REMOVE: u64 = 2;

/// The beginning of files of rows and their ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Extent {
    pub rows: usize,
    /// CRC-32 of these rows, and of their ids.
    pub rows_crc: u32,
    pub ids_crc: u32,
}

/// What the files beside the journal hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct State {
    /// The kind of index.
    pub kind: String,
    /// What sets a builder of it, by name.
    pub parameters: BTreeMap<String, String>,
    pub dim: usize,
    pub element: String,
    /// The number of the index file; none if there is none, and no rows.
    pub index: Option<u64>,
    /// The number of the files of rows and ids.
    pub rows_file: u64,
    /// What these begin with. What follows was never acknowledged.
    pub stored: Extent,
}

/// A change as the journal has it.
pub(super) enum Change<'a> {
    /// Rows of these ids come; older rows of the same ids go. Their bytes, row by row.
    Insert { ids: Vec<u64>, rows: &'a [u8] },
    /// The rows of these ids go.
    Remove { ids: Vec<u64> },
}

/// The content of an insertion.
pub(super) fn insertion(ids: &[u64], rows: &Vectors) -> Result<Vec<u8>> {
    let row_bytes = rows.element_type().row_bytes(rows.dim());
    let mut content = begun(INSERT, ids, ids.len() * row_bytes)?;
    bytes_of(rows).for_each(|row| content.extend_from_slice(row));
    Ok(content)
}

/// The content of a removal.
pub(super) fn removal(ids: &[u64]) -> Result<Vec<u8>> {
    begun(REMOVE, ids, 0)
}

fn begun(kind: u64, ids: &[u64], more: usize) -> Result<Vec<u8>> {
    let mut content = with_capacity(16 + size_of_val(ids) + more)?;
    content.extend_from_slice(bytemuck::bytes_of(&[kind, ids.len() as u64]));
    content.extend_from_slice(bytemuck::cast_slice(ids));
    Ok(content)
}

impl<'a> Change<'a> {
    /// The change of a record whose checksum is right; none if it is of no known kind.
    fn parse(content: &'a [u8], row_bytes: usize) -> Option<Self> {
        let (head, rest) = content.split_at_checked(16)?;
        let [kind, count] = bytemuck::pod_read_unaligned::<[u64; 2]>(head);
        let (ids, rows) = rest.split_at_checked(usize::try_from(count).ok()?.checked_mul(8)?)?;
        let ids: Vec<u64> = bytemuck::pod_collect_to_vec(ids);
        match kind {
            INSERT if Some(rows.len()) == ids.len().checked_mul(row_bytes) => {
                Some(Self::Insert { ids, rows })
            }
            REMOVE if rows.is_empty() => Some(Self::Remove { ids }),
            _ => None,
        }
    }
}

/// The record of `content`.
fn head(content: &[u8]) -> [u8; HEAD] {
    let mut head = [0; HEAD];
    head[..8].copy_from_slice(&(content.len() as u64).to_le_bytes());
    head[8..12].copy_from_slice(&crc32fast::hash(content).to_le_bytes());
    let crc = crc32fast::hash(&head[..12]);
    head[12..].copy_from_slice(&crc.to_le_bytes());
    head
}

/// An open journal.
pub(super) struct Journal {
    file: File,
    path: PathBuf,
    /// Bytes of whole records.
    end: u64,
    /// Whether each record is on disk before it counts.
    pub is_synced: bool,
    /// Whether bytes after the end could not be cut off.
    is_torn: bool,
}

impl Journal {
    /// Replaces the journal at `path`, if there is one, by one of `state` and of these `changes`
    /// since, as contents of records.
    ///
    /// # Errors
    /// If the file cannot be written. The older one stays then.
    pub(super) fn create(path: &Path, state: &State, changes: &[Vec<u8>], is_synced: bool) -> Result<Self> {
        let state = serde_json::to_vec(state).map_err(|error| Error::io(path)(error.into()))?;
        let mut file = AtomicFile::create_unfollowed(path)?;
        file.write_all(MAGIC)?;
        file.write_all(bytemuck::bytes_of(&[VERSION, 0]))?;
        let mut end = HEADER as u64;
        for content in [&state].into_iter().chain(changes) {
            file.write_all(&head(content))?;
            file.write_all(content)?;
            end += (HEAD + content.len()) as u64;
        }
        // Opened before it has its name: once it has, nothing may fail.
        let opened = regular_file::open_planted(file.flushed()?, true)?;
        file.commit()?;
        Ok(Self { file: opened, path: path.to_owned(), end, is_synced, is_torn: false })
    }

    /// Opens the journal at `path`.
    ///
    /// # Errors
    /// If it cannot be read, is no journal of this version, or is damaged.
    pub(super) fn open(path: &Path) -> Result<(Self, State, Records)> {
        let file = regular_file::open_planted(path, true)?;
        let bytes = regular_file::read_at_most(&file, path, u64::MAX)?;
        let foreign = |found: String| {
            Error::file(path, found, format_args!("the journal of a live index, version {VERSION}"))
        };
        if !bytes.starts_with(MAGIC) || bytes.len() < HEADER {
            return Err(foreign("another file".to_owned()));
        }
        let [version, _] = bytemuck::pod_read_unaligned::<[u32; 2]>(&bytes[MAGIC.len()..HEADER]);
        if version != VERSION {
            return Err(foreign(format!("version {version}")));
        }
        let (mut at, mut contents) = (HEADER, Vec::new());
        loop {
            match next_record(&bytes, at) {
                Ok(Some(content)) => {
                    at = content.end;
                    contents.push(content);
                }
                Ok(None) => break,
                Err(()) => return Err(damage(path, at)),
            }
        }
        // The state was written with the file, which appeared as a whole.
        let Some(first) = contents.first() else { return Err(foreign("the beginning of one".to_owned())) };
        let state = serde_json::from_slice(&bytes[first.clone()]);
        let state: State = state.map_err(|error| foreign(format!("a state with {error}")))?;
        contents.remove(0);
        let is_torn = bytes.len() > at;
        let mut journal = Self { file, path: path.to_owned(), end: at as u64, is_synced: true, is_torn };
        journal.mend()?;
        Ok((journal, state, Records { bytes, contents, path: path.to_owned() }))
    }

    /// Whether this is still the journal at its path.
    pub(super) fn is_current(&self) -> bool {
        regular_file::is_at(&self.file, &self.path).unwrap_or(false)
    }

    /// Cuts off what follows the last whole record.
    fn mend(&mut self) -> Result<()> {
        if self.is_torn {
            self.file.set_len(self.end).and_then(|()| self.file.sync_all()).map_err(Error::io(&self.path))?;
            self.is_torn = false;
        }
        Ok(())
    }

    /// Appends a record. It counts once this returns.
    ///
    /// # Errors
    /// If it cannot be written: the journal is as before then.
    pub(super) fn append(&mut self, content: &[u8]) -> Result<()> {
        self.mend()?;
        self.is_torn = true;
        let written = self.file.seek(SeekFrom::Start(self.end)).and_then(|_| {
            self.file.write_all(&head(content))?;
            self.file.write_all(content)?;
            if self.is_synced { self.file.sync_data() } else { Ok(()) }
        });
        if let Err(error) = written {
            // If this fails too, the next change tries again.
            let _ = self.mend();
            return Err(Error::io(&self.path)(error));
        }
        self.is_torn = false;
        self.end += (HEAD + content.len()) as u64;
        Ok(())
    }
}

/// The place of the content of the record at byte `at`; none if there is no whole one before the
/// end. Fails if a record before others is damaged.
fn next_record(bytes: &[u8], at: usize) -> Result<Option<Range<usize>>, ()> {
    let Some((found, rest)) = bytes[at..].split_at_checked(HEAD) else { return Ok(None) };
    let (head, crc) = found.split_at(12);
    if crc32fast::hash(head).to_le_bytes() != crc {
        // After a crash of the system, blocks that were not written yet may be zeros.
        let is_unwritten = bytes[at..].iter().all(|&byte| byte == 0);
        return if is_unwritten { Ok(None) } else { Err(()) };
    }
    let length: u64 = bytemuck::pod_read_unaligned(&head[..8]);
    let Some((content, after)) = usize::try_from(length).ok().and_then(|n| rest.split_at_checked(n)) else {
        return Ok(None);
    };
    if crc32fast::hash(content).to_le_bytes() != head[8..] {
        return if after.is_empty() { Ok(None) } else { Err(()) };
    }
    Ok(Some(at + HEAD..at + HEAD + content.len()))
}

fn damage(path: &Path, at: usize) -> Error {
    let found = format_args!("damage from byte {at} on");
    let expected = format_args!(
        "a whole journal: restore a copy of the folder, or cut the file to {at} bytes and lose the changes since"
    );
    Error::file(path, found, expected)
}

/// The records after the state.
pub(super) struct Records {
    bytes: Vec<u8>,
    contents: Vec<Range<usize>>,
    path: PathBuf,
}

impl Records {
    /// The changes, in their order; rows have `row_bytes` bytes. An error for one of no known kind.
    pub(super) fn changes(&self, row_bytes: usize) -> impl Iterator<Item = Result<Change<'_>>> {
        self.contents.iter().map(move |content| {
            let change = Change::parse(&self.bytes[content.clone()], row_bytes);
            change.ok_or_else(|| damage(&self.path, content.start - HEAD))
        })
    }
}
