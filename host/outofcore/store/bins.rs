//! Records sorted into bins, whose pieces lie in one log.

use std::sync::Mutex;
use std::thread;

use super::log::{Log, Piece};
use crate::Result;
use crate::parallel::{join, locked, spawn};

/// Pieces of read-ahead.
const AHEAD: usize = 16;

/// Threads that read one bin.
const READERS: usize = 4;

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
            // What cannot be written stays.
            if !waiting.is_empty() {
                write(bin, waiting)?;
            }
            *waiting = Vec::new();
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

    /// Appends whole records, gathered elsewhere, as one piece, and empties their buffer.
    pub(crate) fn put(&mut self, bin: usize, records: &mut Vec<u8>) -> Result<()> {
        flush(&mut self.log, &mut self.pieces, bin, records)
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
            let more =
                |content: &[u8]| more(content, &mut |bin, records| self.extend(bin, records, record_bytes));
            match reader.read(piece, more)? {
                Some(done) => done?,
                None => return Ok(false),
            }
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
            if reader.read(piece, &mut take)?.is_none() {
                return Ok(false);
            }
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
        let pieces: Vec<_> =
            self.pieces[bin].iter().map(|&piece| (piece, room(piece.bytes() as usize))).collect();
        let reader = self.log.reader()?;
        pieces.iter().for_each(|&(piece, _)| reader.will_read(piece, true));
        let left = &Mutex::new(pieces.into_iter());
        let read = || {
            let mut reader = self.log.reader()?;
            loop {
                let next = locked(left).next();
                let Some((piece, room)) = next else { return Ok(true) };
                if reader.read(piece, |content| take(content, room))?.is_none() {
                    return Ok(false);
                }
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

/// Appends the buffer of `bin` to the log, and empties it.
fn flush(log: &mut Log, pieces: &mut [Vec<Piece>], bin: usize, waiting: &mut Vec<u8>) -> Result<()> {
    pieces[bin].push(log.append_buffer(waiting)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Arc;

    use super::super::folder::Folder;
    use super::*;

    fn open(folder: &tempfile::TempDir, bytes: u64) -> Log {
        Log::open(&Arc::new(Folder::open(folder.path()).unwrap()), "log", bytes).unwrap().unwrap()
    }

    #[test]
    fn bins_keep_their_records_and_find_damage() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut bins = Bins::new(open(&folder, 0), 3, 10);
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
        let mut again = Bins::open(open(&folder, end), pieces, 10);
        for bins in [&bins, &again] {
            for bin in 0..2u8 {
                let expected: Vec<u8> = (0..20).flat_map(|i| [2 * i + bin; 3]).collect();
                assert_eq!(read(bins, bin.into()).unwrap(), expected);
            }
            assert!(read(bins, 2).unwrap().is_empty());
        }
        again.put(2, &mut vec![7; 3]).unwrap();
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
}
