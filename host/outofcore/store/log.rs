//! Work files as logs: pieces are appended, and their checksums are checked when they are read. A
//! log may lie in memory instead.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread;

use serde::{Deserialize, Serialize};

use super::folder::Folder;
use crate::flush::Flush;
use crate::parallel::{join, spawn};
use crate::{Error, Result};

/// Pieces of read-ahead.
const AHEAD: usize = 16;

/// Threads that read one bin.
const READERS: usize = 4;

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

/// Place and CRC-32 of a piece of a [`Log`].
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Piece {
    offset: u64,
    bytes: usize,
    crc: u32,
}

impl Piece {
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
        let piece = Piece { offset: self.end, bytes: content.len(), crc: crc32fast::hash(content) };
        match &mut self.place {
            Place::File(file) => file.append(self.end, content)?,
            Place::Memory(pieces) => {
                // Copied before the lock, which readers wait for.
                let content = Arc::new(content.to_vec());
                pieces.write().unwrap_or_else(PoisonError::into_inner).insert(self.end, content);
            }
        }
        self.end += content.len() as u64;
        Ok(piece)
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
    fn will_read(&self, piece: Piece, soon: bool) {
        #[cfg(unix)]
        if let Self::File { file, .. } = self {
            use rustix::fs::{Advice, fadvise};
            let advice = if soon { Advice::WillNeed } else { Advice::DontNeed };
            // Reading works without the advice.
            let _ = fadvise(file, piece.offset, std::num::NonZeroU64::new(piece.bytes as u64), advice);
        }
    }

    /// Reads a piece; `None` if it is damaged.
    pub(crate) fn read(&mut self, piece: Piece) -> Result<Option<Vec<u8>>> {
        let mut content = vec![0; piece.bytes];
        Ok(self.read_to(piece, &mut content)?.then_some(content))
    }

    /// Reads a piece to `content`. Returns false if the piece is damaged, or has another length.
    pub(crate) fn read_to(&mut self, piece: Piece, content: &mut [u8]) -> Result<bool> {
        if content.len() != piece.bytes {
            return Ok(false);
        }
        let (file, path) = match self {
            Self::File { file, path } => (file, path),
            Self::Memory(pieces) => {
                let pieces = pieces.read().unwrap_or_else(PoisonError::into_inner);
                let found = pieces.get(&piece.offset).map(Arc::clone);
                drop(pieces);
                return Ok(found.is_some_and(|found| {
                    content.copy_from_slice(&found);
                    true
                }));
            }
        };
        let read = file.seek(SeekFrom::Start(piece.offset)).and_then(|_| file.read_exact(content));
        match read {
            Ok(()) => {
                // Never read again: leave the page cache to other files.
                self.will_read(piece, false);
                Ok(crc32fast::hash(content) == piece.crc)
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
            Err(error) => Err(Error::io(path)(error)),
        }
    }
}

/// A buffer of records for each bin.
pub(crate) struct Gather {
    waiting: Vec<Vec<u8>>,
    buffer: usize,
}

impl Gather {
    /// Buffers of `buffer` bytes each, or of one record if that is larger.
    pub(crate) fn new(bins: usize, buffer: usize) -> Self {
        Self { waiting: vec![Vec::new(); bins], buffer }
    }

    /// Appends a record, given in parts. Passes a full buffer to `write` first, which must empty or
    /// replace it. Records are never split.
    pub(crate) fn append(
        &mut self,
        bin: usize,
        parts: &[&[u8]],
        write: impl FnOnce(usize, &mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let waiting = &mut self.waiting[bin];
        if !waiting.is_empty() && waiting.len() + bytes > self.buffer {
            write(bin, waiting)?;
        }
        if waiting.capacity() == 0 {
            waiting.reserve_exact(self.buffer.max(bytes));
        }
        parts.iter().for_each(|part| waiting.extend_from_slice(part));
        Ok(())
    }

    /// Passes the remaining buffers to `write` in the order of the bins, and frees them.
    pub(crate) fn finish(&mut self, mut write: impl FnMut(usize, &mut Vec<u8>) -> Result<()>) -> Result<()> {
        for (bin, waiting) in self.waiting.iter_mut().enumerate() {
            let mut waiting = std::mem::take(waiting);
            if !waiting.is_empty() {
                write(bin, &mut waiting)?;
            }
        }
        Ok(())
    }
}

/// Records sorted into bins. Each bin appends its buffer to the log when it is full.
pub(crate) struct Bins {
    log: Log,
    gather: Gather,
    pieces: Vec<Vec<Piece>>,
}

impl Bins {
    /// Bins with buffers of `buffer` bytes each, or of one record if that is larger.
    pub(crate) fn new(log: Log, bins: usize, buffer: usize) -> Self {
        Self::open(log, vec![Vec::new(); bins], buffer)
    }

    /// Bins that already hold `pieces`.
    pub(crate) fn open(log: Log, pieces: Vec<Vec<Piece>>, buffer: usize) -> Self {
        Self { log, gather: Gather::new(pieces.len(), buffer), pieces }
    }

    /// Appends records of `record_bytes` bytes each. No record is split between pieces.
    pub(crate) fn extend(&mut self, bin: usize, records: &[u8], record_bytes: usize) -> Result<()> {
        let Self { log, gather, pieces } = self;
        let most = (gather.buffer / record_bytes).max(1) * record_bytes;
        records.chunks(most).try_for_each(|records| {
            gather.append(bin, &[records], |bin, waiting| flush(log, pieces, bin, waiting))
        })
    }

    /// Appends whole records, gathered elsewhere, as one piece.
    pub(crate) fn put(&mut self, bin: usize, records: &[u8]) -> Result<()> {
        self.pieces[bin].push(self.log.append(records)?);
        Ok(())
    }

    /// Writes and frees all buffers, and returns the pieces of each bin.
    pub(crate) fn pieces(&mut self) -> Result<&[Vec<Piece>]> {
        let Self { log, gather, pieces } = self;
        gather.finish(|bin, waiting| flush(log, pieces, bin, waiting))?;
        Ok(&self.pieces)
    }

    /// Passes every piece to `more`, with a function that appends records of `record_bytes` bytes
    /// to a bin. Appended records are not passed. Returns false if a piece is damaged.
    pub(crate) fn grow(
        &mut self,
        record_bytes: usize,
        mut more: impl FnMut(&[u8], &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()>,
    ) -> Result<bool> {
        let (pieces, mut reader) = (self.pieces()?.concat(), self.log.reader()?);
        for (place, &piece) in pieces.iter().enumerate() {
            if let Some(&next) = pieces.get(place + AHEAD) {
                reader.will_read(next, true);
            }
            let Some(content) = reader.read(piece)? else { return Ok(false) };
            more(&content, &mut |bin, records| self.extend(bin, records, record_bytes))?;
        }
        self.pieces()?;
        Ok(true)
    }

    /// As [`Log::flushing`], without the buffers.
    pub(crate) fn flushing(&mut self) -> Result<impl FnOnce() -> Result<()> + Send + 'static + use<>> {
        self.log.flushing()
    }

    pub(crate) fn count(&self) -> usize {
        self.pieces.len()
    }

    /// Passes the pieces of a bin, whole records, to `take` in the order of writing. All buffers
    /// must be written. Returns false if a piece is damaged.
    pub(crate) fn read(&self, bin: usize, mut take: impl FnMut(&[u8])) -> Result<bool> {
        let (pieces, mut reader) = (&self.pieces[bin], self.log.reader()?);
        pieces.iter().take(AHEAD).for_each(|&piece| reader.will_read(piece, true));
        for (place, &piece) in pieces.iter().enumerate() {
            if let Some(&next) = pieces.get(place + AHEAD) {
                reader.will_read(next, true);
            }
            let Some(content) = reader.read(piece)? else { return Ok(false) };
            take(&content);
        }
        Ok(true)
    }

    /// Reads the pieces of a bin on several threads. All buffers must be written.
    ///
    /// `room` gets the bytes of each piece in the order of writing, and returns its destination.
    /// `take` copies the piece there. Returns false if a piece is damaged.
    pub(crate) fn read_into<R: Send>(
        &self,
        bin: usize,
        mut room: impl FnMut(usize) -> R,
        take: impl Fn(&[u8], R) + Sync,
    ) -> Result<bool> {
        let pieces: Vec<_> = self.pieces[bin].iter().map(|&piece| (piece, room(piece.bytes))).collect();
        let reader = self.log.reader()?;
        pieces.iter().for_each(|&(piece, _)| reader.will_read(piece, true));
        let left = &Mutex::new(pieces.into_iter());
        let read = || {
            let mut reader = self.log.reader()?;
            loop {
                let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some((piece, room)) = next else { return Ok(true) };
                let Some(content) = reader.read(piece)? else { return Ok(false) };
                take(&content, room);
            }
        };
        // Not on threads of the pool: these should not wait for the disk.
        thread::scope(|scope| {
            let threads = (0..READERS).map(|_| spawn(scope, read)).collect::<Result<Vec<_>>>()?;
            threads.into_iter().map(join).try_fold(true, |all, sound| Ok(all & sound?))
        })
    }

    /// Bytes written.
    pub(crate) fn bytes(&self) -> u64 {
        self.log.bytes()
    }
}

/// Appends the buffer of `bin` to the log.
fn flush(log: &mut Log, pieces: &mut [Vec<Piece>], bin: usize, waiting: &mut Vec<u8>) -> Result<()> {
    pieces[bin].push(log.append(waiting)?);
    waiting.clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn open(folder: &tempfile::TempDir, bytes: u64) -> Option<Log> {
        Log::open(&Arc::new(Folder::open(folder.path()).unwrap()), "log", bytes).unwrap()
    }

    #[test]
    fn bins_keep_their_records_and_find_damage() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut bins = Bins::new(open(&folder, 0).unwrap(), 3, 10);
        for record in 0..20u8 {
            bins.extend(usize::from(record % 2), &[record; 3], 3).unwrap();
        }
        for bin in 0..2 {
            let records: Vec<u8> = (20..40).filter(|i| i % 2 == bin).flat_map(|i| [i; 3]).collect();
            bins.extend(bin.into(), &records, 3).unwrap();
        }
        let (pieces, end) = (bins.pieces().unwrap().to_vec(), bins.bytes());
        let read = |bins: &Bins, bin| {
            let mut found = Vec::new();
            bins.read(bin, |piece| found.extend_from_slice(piece)).unwrap().then_some(found)
        };
        // The same bins, opened again.
        let mut again = Bins::open(open(&folder, end).unwrap(), pieces, 10);
        for bins in [&bins, &again] {
            for bin in 0..2u8 {
                let expected: Vec<u8> = (0..20).flat_map(|i| [2 * i + bin; 3]).collect();
                assert_eq!(read(bins, bin.into()).unwrap(), expected);
            }
            assert!(read(bins, 2).unwrap().is_empty());
        }
        again.put(2, &[7; 3]).unwrap();
        assert_eq!(read(&again, 2).unwrap(), [7; 3]);

        let mut content = fs::read(&path).unwrap();
        content[20] ^= 1;
        fs::write(&path, &content).unwrap();
        assert!(read(&again, 0).is_none() || read(&again, 1).is_none());
        fs::write(&path, &content[..100]).unwrap();
        assert!(read(&again, 2).is_none());
    }

    #[test]
    fn a_log_in_memory_keeps_its_pieces() {
        let mut bins = Bins::new(Log::in_memory(), 2, 7);
        for record in 0..9u8 {
            bins.extend(usize::from(record % 2), &[record; 3], 3).unwrap();
        }
        assert_eq!((bins.pieces().unwrap().len(), bins.bytes()), (2, 27));
        bins.flushing().unwrap()().unwrap();
        let mut found = Vec::new();
        assert!(bins.read(1, |piece| found.extend_from_slice(piece)).unwrap());
        assert_eq!(found, [[1; 3], [3; 3], [5; 3], [7; 3]].concat());
        let grown = bins.grow(3, |piece, append| if piece[0] == 8 { append(1, piece) } else { Ok(()) });
        assert!(grown.unwrap());
        let lengths = Mutex::new(Vec::new());
        let take = |piece: &[u8], ()| lengths.lock().unwrap().push(piece.len());
        assert!(bins.read_into(1, |_| (), take).unwrap());
        assert_eq!(lengths.into_inner().unwrap().iter().sum::<usize>(), 15);
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
            [kept, next].map(|piece| log.reader().unwrap().read(piece).unwrap().unwrap()),
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
