//! Work files: pieces that are appended, and read again with their checksums.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// The folder that work files are in; dropped, it is removed with all that is in it.
pub(super) struct WorkFolder {
    path: PathBuf,
}

impl WorkFolder {
    /// Makes the folder, which must not be there yet, or be empty; of two that try at once one fails.
    pub(super) fn create(path: &Path) -> Result<Self> {
        // An empty folder is removed so that making it again decides who has it.
        if fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none()) {
            fs::remove_dir(path).map_err(Error::io(path))?;
        }
        fs::create_dir(path).map_err(|source| match source.kind() {
            std::io::ErrorKind::AlreadyExists => {
                Error::file(path, "work files, or a file", "no such folder, or an empty one")
            }
            _ => Error::io(path)(source),
        })?;
        Ok(Self { path: path.to_owned() })
    }

    /// An error unless the disk has `bytes` bytes free.
    pub(super) fn check_free(&self, bytes: u64) -> Result<()> {
        #[cfg(unix)]
        {
            let found =
                rustix::fs::statvfs(&self.path).map_err(|error| Error::io(&self.path)(error.into()))?;
            let free = found.f_bavail.saturating_mul(found.f_frsize);
            if free < bytes {
                let expected = format!("{bytes} for work files and the index");
                return Err(Error::file(&self.path, format_args!("{free} bytes free"), expected));
            }
        }
        Ok(())
    }

    /// Starts a work file.
    pub(super) fn log(&self, name: &str) -> Result<Log> {
        let path = self.path.join(name);
        let mut options = File::options();
        let file = options.read(true).write(true).create_new(true).open(&path).map_err(Error::io(&path))?;
        Ok(Log { file, path, end: 0 })
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        // What cannot be removed stays; the build has its own result to report.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// A file that pieces are appended to.
pub(super) struct Log {
    file: File,
    path: PathBuf,
    end: u64,
}

/// Where a piece of a [`Log`] lies, and its CRC-32.
#[derive(Clone, Copy)]
pub(super) struct Piece {
    offset: u64,
    bytes: usize,
    crc: u32,
}

impl Log {
    pub(super) fn append(&mut self, content: &[u8]) -> Result<Piece> {
        let piece = Piece { offset: self.end, bytes: content.len(), crc: crc32fast::hash(content) };
        let mut write = || {
            self.file.seek(SeekFrom::Start(self.end))?;
            self.file.write_all(content)
        };
        write().map_err(Error::io(&self.path))?;
        self.end += content.len() as u64;
        Ok(piece)
    }

    /// Reads a piece; an error if it is not what was written.
    pub(super) fn read(&self, piece: Piece) -> Result<Vec<u8>> {
        let mut content = vec![0; piece.bytes];
        let mut file = &self.file;
        let read = file.seek(SeekFrom::Start(piece.offset)).and_then(|_| file.read_exact(&mut content));
        let damage = |found: &str| {
            Error::file(&self.path, format_args!("{found} at byte {}", piece.offset), "what was written")
        };
        read.map_err(|source| match source.kind() {
            std::io::ErrorKind::UnexpectedEof => damage("the end of the file"),
            _ => Error::io(&self.path)(source),
        })?;
        if crc32fast::hash(&content) != piece.crc {
            return Err(damage("damage"));
        }
        Ok(content)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.end
    }
}

/// Records that are gathered in memory, a buffer for each bin.
pub(super) struct Gather {
    waiting: Vec<Vec<u8>>,
    buffer: usize,
}

impl Gather {
    /// Buffers of `buffer` bytes each, or of those of a record if it is larger.
    pub(super) fn new(bins: usize, buffer: usize) -> Self {
        Self { waiting: vec![Vec::new(); bins], buffer }
    }

    /// Appends the record whose parts are given; a buffer that has no room for it is given to `write`, which empties
    /// it, or leaves another in its place. A record is never divided.
    pub(super) fn append(
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

    /// Gives what is left to `write`, in the order of the bins, and frees the buffers.
    pub(super) fn finish(&mut self, mut write: impl FnMut(usize, &mut Vec<u8>) -> Result<()>) -> Result<()> {
        for (bin, waiting) in self.waiting.iter_mut().enumerate() {
            let mut waiting = std::mem::take(waiting);
            if !waiting.is_empty() {
                write(bin, &mut waiting)?;
            }
        }
        Ok(())
    }
}

/// Records that are sorted into bins: each bin gathers what fits its buffer, and then appends it to the log.
pub(super) struct Bins {
    log: Log,
    gather: Gather,
    pieces: Vec<Vec<Piece>>,
}

impl Bins {
    /// Bins with `buffer` bytes of memory each, or those of a record if it is larger.
    pub(super) fn new(log: Log, bins: usize, buffer: usize) -> Self {
        Self { log, gather: Gather::new(bins, buffer), pieces: vec![Vec::new(); bins] }
    }

    /// Appends the record whose parts are given. A record is never divided between pieces.
    pub(super) fn append(&mut self, bin: usize, parts: &[&[u8]]) -> Result<()> {
        let Self { log, gather, pieces } = self;
        gather.append(bin, parts, |bin, waiting| flush(log, pieces, bin, waiting))
    }

    /// Appends whole records that were gathered elsewhere, as a piece.
    pub(super) fn put(&mut self, bin: usize, records: &[u8]) -> Result<()> {
        self.pieces[bin].push(self.log.append(records)?);
        Ok(())
    }

    /// Writes what is left, and frees the buffers.
    pub(super) fn finish(&mut self) -> Result<()> {
        let Self { log, gather, pieces } = self;
        gather.finish(|bin, waiting| flush(log, pieces, bin, waiting))
    }

    pub(super) fn count(&self) -> usize {
        self.pieces.len()
    }

    /// Gives the pieces of a bin, all written, to `take`: whole records, in the order in which they came.
    pub(super) fn read(&self, bin: usize, mut take: impl FnMut(&[u8])) -> Result<()> {
        for &piece in &self.pieces[bin] {
            take(&self.log.read(piece)?);
        }
        Ok(())
    }

    /// Bytes written so far.
    pub(super) fn bytes(&self) -> u64 {
        self.log.bytes()
    }
}

/// Appends a buffer of records of `bin`.
fn flush(log: &mut Log, pieces: &mut [Vec<Piece>], bin: usize, waiting: &mut Vec<u8>) -> Result<()> {
    pieces[bin].push(log.append(waiting)?);
    waiting.clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_keep_their_records_and_find_damage() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("work");
        let folder = WorkFolder::create(&path).unwrap();
        let mut bins = Bins::new(folder.log("bins").unwrap(), 3, 10);
        for record in 0..40u8 {
            bins.append(usize::from(record % 2), &[&[record], &[record; 2]]).unwrap();
        }
        bins.finish().unwrap();
        let read = |bin| {
            let mut found = Vec::new();
            bins.read(bin, |piece| found.extend_from_slice(piece)).map(|()| found)
        };
        for bin in 0..2u8 {
            let expected: Vec<u8> = (0..20).flat_map(|i| [2 * i + bin; 3]).collect();
            assert_eq!(read(bin.into()).unwrap(), expected);
        }
        assert!(read(2).unwrap().is_empty());

        let file = path.join("bins");
        let mut content = fs::read(&file).unwrap();
        content[20] ^= 1;
        fs::write(&file, &content).unwrap();
        let message = |error: Error| error.to_string().split_once(": ").unwrap().1.to_owned();
        assert_eq!(message(read(0).unwrap_err()), "found damage at byte 18, expected what was written");
        fs::write(&file, &content[..100]).unwrap();
        assert!(message(read(1).unwrap_err()).starts_with("found the end of the file at byte"));
    }

    #[test]
    fn a_folder_has_one_owner_and_goes_with_it() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("work");
        fs::create_dir(&path).unwrap();
        let folder = WorkFolder::create(&path).unwrap();
        let mut log = folder.log("a").unwrap();
        log.append(&[1]).unwrap();
        let error = WorkFolder::create(&path).err().unwrap().to_string();
        assert!(error.ends_with("found work files, or a file, expected no such folder, or an empty one"));
        let error = folder.check_free(u64::MAX).unwrap_err().to_string();
        assert!(error.contains("bytes free, expected"), "{error}");
        drop(folder);
        assert!(!path.exists());
    }
}
