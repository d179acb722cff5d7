//! Files that are read together, and the checksums that tell whether they belong together.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::atomic_file::AtomicFile;
use crate::vectors::map;
use crate::{Error, Progress, Result};

/// Bytes that are summed at a time.
const PIECE: usize = 16 << 20;

/// A `bin` file of a pair while it is written, and its checksum.
pub(crate) struct PairFile {
    file: AtomicFile,
    path: PathBuf,
    sum: crc32fast::Hasher,
    bytes: u64,
}

impl PairFile {
    /// Starts the file at `path` with the header of `rows` rows of `cols` values.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn create(path: &Path, rows: usize, cols: usize) -> Result<Self> {
        let (file, sum) = (AtomicFile::create(path)?, crc32fast::Hasher::new());
        let mut file = Self { file, path: path.to_owned(), sum, bytes: 0 };
        file.write_all(bytemuck::cast_slice(&[rows as u32, cols as u32]))?;
        Ok(file)
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// If they cannot be written.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        self.sum.update(bytes);
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    /// Puts both files in their places, and their checksums at `sums`: a line for each with its CRC-32, its bytes and its
    /// name. An older second file is deleted first and the new one appears last, so that a reader who finds one finds the
    /// first that belongs to it.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub(crate) fn commit(first: Self, second: Self, sums: &Path) -> Result<()> {
        let mut file = AtomicFile::create(sums)?;
        for part in [&first, &second] {
            file.write_all(line(&part.path, part.sum.clone().finalize(), part.bytes).as_bytes())?;
        }
        AtomicFile::commit_all(vec![first.file, file, second.file], &[])
    }
}

/// Checks that the files at `paths` are those that the checksums at `sums` were made of; without such a file, as other
/// programs leave it, there is nothing to check.
///
/// # Errors
/// If they are not, or cannot be read, or the work is cancelled.
pub(crate) fn check_pair(sums: &Path, paths: [&Path; 2], progress: &Progress) -> Result<()> {
    let expected = match fs::read_to_string(sums) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            return Err(Error::file(sums, "bytes that are no text", "the checksums of two files"));
        }
        text => text.map_err(Error::io(sums))?,
    };
    let mut lines = expected.split_inclusive('\n');
    for path in paths {
        let content = map(path)?;
        let mut sum = crc32fast::Hasher::new();
        for piece in content.chunks(PIECE) {
            progress.check()?;
            sum.update(piece);
        }
        let found = line(path, sum.finalize(), content.len() as u64);
        let told = lines.next().unwrap_or_default();
        if !told.ends_with('\n') || numbers(told) != numbers(&found) {
            let (told, sums) = (told.trim_end(), sums.display());
            let expected = format!("{told}, as {sums} says: convert again, or delete that file");
            return Err(Error::file(path, found.trim_end(), expected));
        }
    }
    match lines.next() {
        Some(more) => Err(Error::file(sums, more.trim_end(), "the checksums of two files")),
        None => Ok(()),
    }
}

/// The checksum and the size in a line. The name is for people: a pair may be renamed.
fn numbers(line: &str) -> Option<(&str, &str)> {
    let (crc, rest) = line.split_once(' ')?;
    Some((crc, rest.split_once(' ')?.0))
}

fn line(path: &Path, crc: u32, bytes: u64) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    format!("{crc:08x} {bytes} {}\n", crate::one_line(&name, 255))
}
