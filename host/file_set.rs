//! Pairs of files that are read together, with a third file of checksums.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::atomic_file::AtomicFile;
use crate::vectors::map;
use crate::{Error, Progress, Result};

/// Bytes checksummed between two checks for cancellation.
const PIECE: usize = 16 << 20;

/// A `bin` file of a pair while it is written, with its running CRC-32.
pub(crate) struct PairFile {
    file: AtomicFile,
    path: PathBuf,
    sum: crc32fast::Hasher,
    bytes: u64,
}

impl PairFile {
    /// Starts the file at `path` with a header of `rows` rows of `cols` values.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn create(path: &Path, rows: usize, cols: usize) -> Result<Self> {
        let (file, sum) = (AtomicFile::create(path)?, crc32fast::Hasher::new());
        let mut file = Self { file, path: path.to_owned(), sum, bytes: 0 };
        file.write_all(bytemuck::cast_slice(&[rows as u32, cols as u32]))?;
        Ok(file)
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        self.sum.update(bytes);
        self.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    /// Commits both files, and their checksums to `sums`: one line per file, with CRC-32, size in
    /// bytes and name. An older second file is deleted first and the new one appears last, so an
    /// existing second file always belongs to its first.
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

/// Compares the files at `paths` with the checksums in `sums`. Without `sums`, as other programs
/// write pairs, nothing is compared.
///
/// # Errors
/// If a checksum differs, a file cannot be read, or the work is cancelled.
pub(crate) fn check_pair(sums: &Path, paths: [&Path; 2], progress: &Progress) -> Result<()> {
    let expected = match fs::read_to_string(sums) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == ErrorKind::InvalidData => {
            return Err(Error::file(sums, "bytes outside UTF-8", "the checksums of two files"));
        }
        text => text.map_err(Error::io(sums))?,
    };
    let mut lines = expected.split_inclusive('\n');
    for path in paths {
        // SAFETY: the checksum is computed from the bytes, each read once.
        let content = unsafe { map(path) }?;
        let mut sum = crc32fast::Hasher::new();
        for piece in content.chunks(PIECE) {
            progress.check()?;
            sum.update(piece);
        }
        let found = line(path, sum.finalize(), content.len() as u64);
        let stated = lines.next().unwrap_or_default();
        if !stated.ends_with('\n') || numbers(stated) != numbers(&found) {
            let sums = sums.display();
            let expected = format!("the content that {sums} records: convert again, or delete {sums}");
            return Err(Error::file(path, "another checksum", expected));
        }
    }
    match lines.next() {
        Some(more) => Err(Error::file(sums, more.trim_end(), "the checksums of two files")),
        None => Ok(()),
    }
}

/// Checksum and size from a line. The name is for people: a pair may be renamed.
fn numbers(line: &str) -> Option<(&str, &str)> {
    let (crc, rest) = line.split_once(' ')?;
    Some((crc, rest.split_once(' ')?.0))
}

fn line(path: &Path, crc: u32, bytes: u64) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    format!("{crc:08x} {bytes} {}\n", tagore_text::one_line(&name, 255))
}
