//! Work files as logs: pieces are appended, and their checksums are checked when they are read. A
//! log may lie in memory instead, without checksums.
//!
//! Pieces of many bins are appended to one file as their buffers fill. So writing is sequential,
//! and a bin needs no file of its own.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use serde::{Deserialize, Serialize};

use super::folder::Folder;
use crate::flush::Flush;
use crate::{Error, Result, platform};

/// Appended pieces.
pub(crate) struct Log {
    place: Place,
    end: u64,
}

/// Where the pieces of a log are.
enum Place {
    File(WorkFile),
    /// By their offsets.
    Memory(Pieces),
}

/// A work file.
struct WorkFile {
    file: File,
    folder: Arc<Folder>,
    name: &'static str,
    path: PathBuf,
    flush: Flush,
    /// Whether the file is only synced by [`Log::flushing`].
    deferred: bool,
}

/// Pieces in memory, by their offsets.
type Pieces = Arc<RwLock<BTreeMap<u64, Arc<Vec<u8>>>>>;

/// Place and CRC-32 of a piece of a [`Log`]; 0 in memory.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Piece {
    pub offset: u64,
    pub bytes: usize,
    pub crc: u32,
}

impl Piece {
    /// The places of its bytes in the file.
    pub(crate) fn range(self) -> Range<u64> {
        self.offset..self.offset + self.bytes as u64
    }

    /// Reads the piece of `file` to `content` of its length. Returns false if it is damaged.
    pub(crate) fn read(self, mut file: &File, path: &Path, content: &mut [u8]) -> Result<bool> {
        match file.seek(SeekFrom::Start(self.offset)).and_then(|_| file.read_exact(content)) {
            Ok(()) => Ok(crc32fast::hash(content) == self.crc),
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(Error::io(path)(error)),
        }
    }

    pub(crate) fn bytes(self) -> u64 {
        self.bytes as u64
    }

    /// Whether the piece lies in the first `bytes` bytes of a log and consists of whole records of
    /// `record_bytes` bytes. Pieces read from a file may not.
    pub(crate) fn is_sound(self, bytes: u64, record_bytes: usize) -> bool {
        let end = self.offset.checked_add(self.bytes as u64);
        end.is_some_and(|end| end <= bytes) && self.bytes.is_multiple_of(record_bytes)
    }
}

impl Log {
    /// Opens the log `name` and cuts it to its first `bytes` bytes; `None` if it is shorter.
    pub(crate) fn open(folder: &Arc<Folder>, name: &'static str, bytes: u64) -> Result<Option<Self>> {
        let path = folder.path().join(name);
        let file = folder.file(name)?;
        let found = file.metadata().map_err(Error::io(&path))?.len();
        if found < bytes {
            return Ok(None);
        }
        file.set_len(bytes).map_err(Error::io(&path))?;
        let folder = Arc::clone(folder);
        let place =
            Place::File(WorkFile { file, folder, name, path, flush: Flush::default(), deferred: false });
        Ok(Some(Self { place, end: bytes }))
    }

    /// An empty log in memory.
    pub(crate) fn in_memory() -> Self {
        Self { place: Place::Memory(Pieces::default()), end: 0 }
    }

    /// This log, without syncs before [`flushing`](Self::flushing).
    pub(crate) fn deferred(mut self) -> Self {
        if let Place::File(file) = &mut self.place {
            file.deferred = true;
        }
        self
    }

    pub(crate) fn append(&mut self, content: &[u8]) -> Result<Piece> {
        match &mut self.place {
            Place::File(file) => {
                file.append(self.end, content)?;
                Ok(self.appended(content.len(), crc32fast::hash(content)))
            }
            Place::Memory(_) => self.append_buffer(&mut content.to_vec()),
        }
    }

    /// As [`append`](Self::append), and empties the buffer. Memory takes the buffer itself.
    pub(crate) fn append_buffer(&mut self, content: &mut Vec<u8>) -> Result<Piece> {
        let piece = match &mut self.place {
            Place::File(_) => {
                let piece = self.append(content)?;
                content.clear();
                piece
            }
            Place::Memory(pieces) => {
                let mut content = std::mem::take(content);
                content.shrink_to_fit();
                let bytes = content.len();
                let mut pieces = pieces.write().unwrap_or_else(PoisonError::into_inner);
                pieces.insert(self.end, Arc::new(content));
                drop(pieces);
                self.appended(bytes, 0)
            }
        };
        Ok(piece)
    }

    /// The piece of `bytes` bytes at the end.
    fn appended(&mut self, bytes: usize, crc: u32) -> Piece {
        let piece = Piece { offset: self.end, bytes, crc };
        self.end += bytes as u64;
        piece
    }

    /// A reader of the log for another thread.
    pub(crate) fn reader(&self) -> Result<Reader> {
        Ok(match &self.place {
            Place::File(WorkFile { folder, name, path, .. }) => {
                Reader::File { file: folder.file(name)?, path: path.clone() }
            }
            Place::Memory(pieces) => Reader::Memory(Arc::clone(pieces)),
        })
    }

    /// A function that waits, on any thread, until all appended pieces are on disk.
    pub(crate) fn flushing(&mut self) -> Result<impl FnOnce() -> Result<()> + Send + 'static + use<>> {
        let running = match &mut self.place {
            Place::File(WorkFile { file, path, flush, .. }) => {
                let file = file.try_clone().map_err(Error::io(path))?;
                Some((file, path.clone(), std::mem::take(flush)))
            }
            Place::Memory(_) => None,
        };
        Ok(move || {
            running.map_or(Ok(()), |(file, path, mut flush)| {
                flush.wait().and_then(|()| file.sync_data()).map_err(Error::io(&path))
            })
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.end
    }
}

impl WorkFile {
    fn append(&mut self, end: u64, content: &[u8]) -> Result<()> {
        let mut write = || {
            self.file.seek(SeekFrom::Start(end))?;
            self.file.write_all(content)?;
            if self.deferred { Ok(()) } else { self.flush.wrote(content.len(), &self.file) }
        };
        write().map_err(Error::io(&self.path))
    }
}

/// Reads pieces of a [`Log`], each piece once.
pub(crate) enum Reader {
    File { file: File, path: PathBuf },
    Memory(Pieces),
}

impl Reader {
    /// Tells the system that a piece is needed soon, or never again.
    pub(super) fn will_read(&self, piece: Piece, soon: bool) {
        if let Self::File { file, .. } = self {
            platform::advise_file(file, piece.offset..piece.offset + piece.bytes as u64, soon);
        }
    }

    /// Passes a piece to `take`; `None` if it is damaged.
    pub(crate) fn read<R>(&mut self, piece: Piece, take: impl FnOnce(&[u8]) -> R) -> Result<Option<R>> {
        if let Self::Memory(pieces) = self {
            return Ok(in_memory(pieces, piece).map(|found| take(&found)));
        }
        let mut content = vec![0; piece.bytes];
        Ok(self.read_to(piece, &mut content)?.then(|| take(&content)))
    }

    /// Reads a piece to `content`. Returns false if the piece is damaged, or has another length.
    pub(crate) fn read_to(&mut self, piece: Piece, content: &mut [u8]) -> Result<bool> {
        if content.len() != piece.bytes {
            return Ok(false);
        }
        match self {
            Self::File { file, path } => {
                let is_sound = piece.read(file, path, content);
                // Never read again: leave the page cache to other files.
                self.will_read(piece, false);
                is_sound
            }
            Self::Memory(pieces) => Ok(in_memory(pieces, piece).is_some_and(|found| {
                content.copy_from_slice(&found);
                true
            })),
        }
    }
}

/// A piece of a log in memory. Appending does not wait for its use.
fn in_memory(pieces: &Pieces, piece: Piece) -> Option<Arc<Vec<u8>>> {
    pieces.read().unwrap_or_else(PoisonError::into_inner).get(&piece.offset).map(Arc::clone)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn open(folder: &tempfile::TempDir, bytes: u64) -> Option<Log> {
        Log::open(&Arc::new(Folder::open(folder.path()).unwrap()), "log", bytes).unwrap()
    }

    #[test]
    fn a_log_is_cut_to_its_known_length() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = open(&folder, 0).unwrap();
        let kept = log.append(&[1, 2, 3]).unwrap();
        log.append(&[4, 5]).unwrap();
        log.flushing().unwrap()().unwrap();
        let mut log = open(&folder, 3).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 3);
        let next = log.append(&[6]).unwrap();
        assert_eq!(
            [kept, next].map(|piece| log.reader().unwrap().read(piece, <[u8]>::to_vec).unwrap().unwrap()),
            [vec![1, 2, 3], vec![6]]
        );
        assert!(open(&folder, 5).is_none(), "log shorter than its known length");
    }

    #[test]
    fn impossible_pieces_are_unsound() {
        let piece = |offset: u64, bytes: usize| Piece { offset, bytes, crc: 0 };
        assert!(piece(10, 20).is_sound(30, 5));
        assert!(!piece(10, 20).is_sound(29, 5) && !piece(10, 20).is_sound(30, 3));
        assert!(
            !piece(u64::MAX, 20).is_sound(u64::MAX, 5) && !piece(0, usize::MAX / 5 * 5).is_sound(1 << 40, 5)
        );
    }
}
