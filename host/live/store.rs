//! The folder of a live index.
//!
//! ```text
//! lock            locked while the index is open
//! journal         what the other files hold, and the changes since (journal.rs)
//! rows-N          the rows of the graph, one after another, and unacknowledged ones after them
//! ids-N           their ids, u64
//! index-N.tagore  the graph, an index file over these rows
//! ```
//!
//! A new graph appends its rows to `rows-N` and `ids-N`, or starts new ones, then writes its own
//! file, then replaces the journal, which names all three. Until then the older ones stand.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::{self, File, TryLockError};
use std::io::{BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use crc32fast::Hasher;

use super::journal::{Extent, State};
use super::version::{RowKind, bytes_of};
use crate::atomic_file::TEMPORARY;
use crate::flush::Flush;
use crate::memory::zeros;
use crate::vectors::map_rows;
use crate::{Error, Index, Progress, Result, Vectors, regular_file};

/// How often a lock is tried again, and the time between.
const ATTEMPTS: usize = 20;
const BETWEEN: Duration = Duration::from_millis(10);

/// Bytes of rows that are written at a time.
const AT_A_TIME: usize = 1 << 20;

/// The locked folder.
pub(super) struct Store {
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
}

/// The rows of a graph on disk.
pub(super) struct StoredRows {
    pub rows: Vectors,
    pub ids: Vec<u64>,
}

impl Store {
    /// Locks the folder at `path`; makes it first if it `is_new`.
    ///
    /// # Errors
    /// If it is not there, holds other files although it should be new, or is open.
    pub(super) fn open(path: &Path, is_new: bool) -> Result<Self> {
        if is_new {
            match fs::create_dir(path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    // A process that was killed while it made an index leaves these alone.
                    let is_ours = |name: &OsStr| name == "lock" || is_temporary(name);
                    let files = fs::read_dir(path).map_err(Error::io(path))?;
                    if files.flatten().any(|file| !is_ours(&file.file_name())) {
                        let expected = "an empty folder, or a new name";
                        return Err(Error::file(path, "a folder with files", expected));
                    }
                }
                made => made.map_err(Error::io(path))?,
            }
        } else if !path.join("journal").is_file() {
            let found = if path.is_dir() { "a folder without a journal" } else { "no such folder" };
            let expected = "the folder of a live index: create one, or correct the path";
            return Err(Error::file(path, found, expected));
        }
        let name = path.join("lock");
        let lock = File::options().write(true).create(true).truncate(false).open(&name);
        let lock = lock.map_err(Error::io(&name))?;
        // A process that this one starts holds the locks of files that were closed meanwhile, until
        // it runs its own program.
        let mut locked = lock.try_lock();
        for _ in 0..ATTEMPTS {
            if !matches!(locked, Err(TryLockError::WouldBlock)) {
                break;
            }
            thread::sleep(BETWEEN);
            locked = lock.try_lock();
        }
        match locked {
            Ok(()) => (),
            Err(TryLockError::WouldBlock) => {
                let expected = "a live index that no one has open: close it there first";
                return Err(Error::file(path, "an open live index", expected));
            }
            // A file system without locks.
            Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => (),
            Err(TryLockError::Error(error)) => return Err(Error::io(&name)(error)),
        }
        Ok(Self { path: path.to_owned(), _lock: lock })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn journal(&self) -> PathBuf {
        self.path.join("journal")
    }

    fn rows(&self, number: u64) -> PathBuf {
        self.path.join(format!("rows-{number}"))
    }

    fn ids(&self, number: u64) -> PathBuf {
        self.path.join(format!("ids-{number}"))
    }

    fn index(&self, number: u64) -> PathBuf {
        self.path.join(format!("index-{number}.tagore"))
    }

    /// Deletes the files, and the folder if nothing else is in it.
    pub(super) fn remove(&self) {
        let names = [self.journal(), self.path.join("lock"), self.rows(0), self.ids(0), self.index(0)];
        names.iter().for_each(|name| drop(fs::remove_file(name)));
        let _ = fs::remove_dir(&self.path);
    }

    /// Deletes all files but those of `state`: what unfinished changes have left. One that is in
    /// use may stay until the next time.
    pub(super) fn clean(&self, state: &State) {
        let number = state.rows_file;
        let mut kept = vec![self.path.join("lock"), self.journal(), self.rows(number), self.ids(number)];
        kept.extend(state.index.map(|number| self.index(number)));
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()).filter(|path| !kept.contains(path)) {
            let name = path.file_name().unwrap_or_default();
            if is_temporary(name) || is_numbered(name) {
                let _ = fs::remove_file(path);
            }
        }
    }

    /// Writes rows with their ids after those `known` of the files `number`, which are made if they
    /// are not there. Returns what there is then.
    ///
    /// # Errors
    /// If the files cannot be written.
    pub(super) fn append<'r>(
        &self,
        number: u64,
        known: Extent,
        row_bytes: usize,
        rows: impl Iterator<Item = (u64, &'r [u8])>,
    ) -> Result<Extent> {
        let paths = [self.rows(number), self.ids(number)];
        let mut rows_file = Appended::open(&paths[0], known.rows * row_bytes, known.rows_crc)?;
        let mut ids_file = Appended::open(&paths[1], known.rows * size_of::<u64>(), known.ids_crc)?;
        let mut count = known.rows;
        for (id, row) in rows {
            rows_file.write(row)?;
            ids_file.write(&id.to_le_bytes())?;
            count += 1;
        }
        Ok(Extent { rows: count, rows_crc: rows_file.finish()?, ids_crc: ids_file.finish()? })
    }

    /// The beginning of the files `number`.
    ///
    /// # Errors
    /// If the files cannot be read or are shorter.
    pub(super) fn stored(&self, number: u64, extent: Extent, kind: RowKind) -> Result<StoredRows> {
        let (path, ids_path, rows) = (self.rows(number), self.ids(number), extent.rows);
        let file = self.checked(&path, rows * kind.row_bytes())?;
        // SAFETY: this process alone writes the file, while it holds the lock of the folder, and
        // only after these rows: they were written before, and stay until the file is deleted.
        let vectors = unsafe { map_rows(&file, &path, rows, kind.dim, kind.element) }?;
        let mut file = self.checked(&ids_path, rows * size_of::<u64>())?;
        let mut ids: Vec<u64> = zeros(rows)?;
        file.read_exact(bytemuck::cast_slice_mut(&mut ids)).map_err(Error::io(&ids_path))?;
        Ok(StoredRows { rows: vectors, ids })
    }

    /// Checks that rows that were read are those of `extent`.
    ///
    /// # Errors
    /// If they are others.
    pub(super) fn check(&self, number: u64, extent: Extent, stored: &StoredRows) -> Result<()> {
        let mut rows_crc = Hasher::new();
        bytes_of(&stored.rows).for_each(|row| rows_crc.update(row));
        let ids_crc = crc32fast::hash(bytemuck::cast_slice(&stored.ids));
        let checks = [
            (self.rows(number), rows_crc.finalize() == extent.rows_crc, "the rows"),
            (self.ids(number), ids_crc == extent.ids_crc, "the ids"),
        ];
        match checks.iter().find(|(_, is_right, _)| !is_right) {
            Some((path, _, what)) => Err(damaged(path, format_args!("damage in {what}"), what)),
            None => Ok(()),
        }
    }

    /// Opens a file that should have at least `bytes` bytes.
    fn checked(&self, path: &Path, bytes: usize) -> Result<File> {
        let file = regular_file::open_planted(path, false)?;
        let found = file.metadata().map_err(Error::io(path))?.len();
        if found < bytes as u64 {
            return Err(damaged(path, format_args!("{found} bytes"), format_args!("at least {bytes}")));
        }
        Ok(file)
    }

    /// The index file of this number.
    ///
    /// # Errors
    /// If it cannot be read or is damaged.
    pub(super) fn open_index(&self, number: u64, progress: &Progress) -> Result<Index> {
        let index = Index::open(self.index(number))?;
        index.verify(progress)?;
        Ok(index)
    }

    pub(super) fn save_index(&self, number: u64, index: &Index) -> Result<()> {
        index.save(self.index(number))
    }
}

/// Whether a name is that of a file while it is written.
fn is_temporary(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b".") && name.ends_with(TEMPORARY.as_bytes())
}

/// Whether a name is that of rows, ids or a graph, of any number.
fn is_numbered(name: &OsStr) -> bool {
    let Some((kind, number)) = name.to_str().and_then(|name| name.split_once('-')) else { return false };
    let number = match kind {
        "rows" | "ids" => Some(number),
        "index" => number.strip_suffix(".tagore"),
        _ => None,
    };
    number.is_some_and(|number| number.parse::<u64>().is_ok())
}

/// The error for a file of a live index with other content than its journal says.
pub(super) fn damaged(path: &Path, found: impl Display, expected: impl Display) -> Error {
    let expected = format_args!("{expected} as its journal says: restore a copy of the folder");
    Error::file(path, found, expected)
}

/// A file that is written from some byte on.
struct Appended<'a> {
    file: BufWriter<File>,
    path: &'a Path,
    flush: Flush,
    crc: Hasher,
}

impl<'a> Appended<'a> {
    /// The file at `path` after its first `begin` bytes, which have this checksum.
    fn open(path: &'a Path, begin: usize, crc: u32) -> Result<Self> {
        let begin = begin as u64;
        let file = File::options().write(true).create(true).truncate(false).open(path);
        let mut file = BufWriter::with_capacity(AT_A_TIME, file.map_err(Error::io(path))?);
        // What follows was never acknowledged, and no one reads it.
        file.get_ref().set_len(begin).map_err(Error::io(path))?;
        file.seek(SeekFrom::Start(begin)).map_err(Error::io(path))?;
        Ok(Self { file, path, flush: Flush::default(), crc: Hasher::new_with_initial_len(crc, begin) })
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.crc.update(bytes);
        let written = self.file.write_all(bytes);
        written
            .and_then(|()| self.flush.wrote(bytes.len(), self.file.get_ref()))
            .map_err(Error::io(self.path))
    }

    /// Waits until all is on disk. Returns the checksum of the whole file.
    fn finish(mut self) -> Result<u32> {
        let written = self.flush.wait().and_then(|()| self.file.flush());
        written.and_then(|()| self.file.get_ref().sync_all()).map_err(Error::io(self.path))?;
        Ok(self.crc.finalize())
    }
}
