//! Checksums of a base by blocks of rows: a resumed build needs the same base.

use std::ops::Range;
use std::path::Path;

use crc32fast::Hasher;
use serde::{Deserialize, Serialize};

use crate::loops::map;
use crate::vectors::Access;
use crate::{Error, Progress, Result, Vectors};

/// Rows of a block.
const BLOCK: usize = 1 << 14;

/// Rows of a parallel task.
const PART: usize = 1 << 10;

/// The CRC-32 of each block of rows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Checksums(Vec<u32>);

impl Checksums {
    /// Whether there is one checksum per block of a base of `rows` rows.
    pub(crate) fn is_of(&self, rows: usize) -> bool {
        self.0.len() == rows.div_ceil(BLOCK)
    }

    /// Adds the checksums of the next blocks.
    pub(crate) fn add(&mut self, blocks: &[u32]) {
        self.0.extend_from_slice(blocks);
    }

    /// The checksums of the blocks of `rows`, which begin with a block.
    pub(crate) fn of_blocks(base: &Vectors, rows: Range<usize>) -> Vec<u32> {
        let block = |first| hash(base, first..rows.end.min(first + BLOCK)).finalize();
        rows.clone().step_by(BLOCK).map(block).collect()
    }

    /// A checksum of all checksums.
    pub(crate) fn digest(&self) -> u32 {
        crc32fast::hash(bytemuck::cast_slice(&self.0))
    }

    /// Reads all of `base` and compares it with these checksums, from the work files in `folder`.
    ///
    /// # Errors
    /// [`Error::Mismatch`] for the first block that differs; or if cancelled.
    pub(crate) fn check(&self, base: &Vectors, folder: &Path, progress: &Progress) -> Result<()> {
        let stage = progress.stage("check", self.0.len() as u64);
        base.advise(Access::InOrder);
        for (block, &expected) in self.0.iter().enumerate() {
            let rows = block * BLOCK..((block + 1) * BLOCK).min(base.len());
            base.prefetch(rows.end..rows.end + BLOCK);
            if hash(base, rows.clone()).finalize() != expected {
                let found = format!("other values in rows {} to {}", rows.start, rows.end - 1);
                return Err(changed(base, found, folder));
            }
            stage.advance(1)?;
        }
        Ok(())
    }
}

/// The error for a base that differs from the base of the work files in `folder`.
pub(crate) fn changed(base: &Vectors, found: impl ToString, folder: &Path) -> Error {
    let folder = folder.display();
    let expected = format!("the data set of the work files in {folder}; delete them to build anew");
    Error::mismatch(base.describe(), found, expected)
}

/// Computes the checksums of a base piece by piece.
#[derive(Default)]
pub(crate) struct Summing {
    blocks: Vec<u32>,
    /// Hash of the incomplete last block.
    last: Hasher,
    rows: usize,
}

impl Summing {
    /// Adds the rows of `base` from the last added row to `end`.
    pub(crate) fn add(&mut self, base: &Vectors, end: usize) {
        while self.rows < end {
            let next = end.min((self.rows / BLOCK + 1) * BLOCK);
            self.last.combine(&hash(base, self.rows..next));
            self.rows = next;
            if next.is_multiple_of(BLOCK) {
                self.end_block();
            }
        }
    }

    fn end_block(&mut self) {
        self.blocks.push(std::mem::take(&mut self.last).finalize());
    }

    /// Ends after all rows have been added.
    pub(crate) fn finish(mut self) -> Checksums {
        if !self.rows.is_multiple_of(BLOCK) {
            self.end_block();
        }
        Checksums(self.blocks)
    }
}

/// The CRC-32 of a range of rows.
pub(crate) fn rows_crc(base: &Vectors, rows: Range<usize>) -> u32 {
    hash(base, rows).finalize()
}

/// The CRC-32 of a range of rows, as a hasher.
fn hash(base: &Vectors, rows: Range<usize>) -> Hasher {
    let hash_part = |part: usize| {
        let first = rows.start + part * PART;
        let mut hasher = Hasher::new();
        (first..rows.end.min(first + PART)).for_each(|row| hasher.update(base.bytes_of_row(row)));
        hasher
    };
    let parts = map(0..rows.len().div_ceil(PART), hash_part);
    parts.iter().fold(Hasher::new(), |mut all, part| {
        all.combine(part);
        all
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn base(rows: usize, changed: Option<usize>) -> Vectors {
        let value = |i: usize| (i * i % 251) as u8 ^ u8::from(Some(i / 3) == changed);
        Vectors::from_u8((0..3 * rows).map(value).collect(), 3).unwrap()
    }

    fn sums(base: &Vectors, piece: usize) -> Checksums {
        let mut sums = Summing::default();
        (0..base.len()).step_by(piece).for_each(|first| sums.add(base, base.len().min(first + piece)));
        sums.finish()
    }

    #[test]
    fn checksums_do_not_depend_on_pieces() {
        for rows in [1, 1500, BLOCK, 2 * BLOCK + 77] {
            let base = base(rows, None);
            let expected = sums(&base, rows);
            assert!(expected.is_of(rows) && !expected.is_of(rows + BLOCK));
            let bytes: Vec<u8> =
                (0..rows.min(BLOCK)).flat_map(|row| base.host_row(row).to_vec()).map(|x| x as u8).collect();
            assert_eq!(expected.0[0], crc32fast::hash(&bytes));
            for piece in [64, 1000, BLOCK] {
                assert_eq!(sums(&base, piece), expected, "{rows} rows, {piece} at a time");
            }
        }
    }

    #[test]
    fn any_changed_row_is_found() {
        let rows = 2 * BLOCK + 77;
        let (expected, folder) = (sums(&base(rows, None), 4096), Path::new("index.work"));
        expected.check(&base(rows, None), folder, &Progress::silent()).unwrap();
        for (row, block) in [(0, "0 to 16383"), (BLOCK + 5, "16384 to 32767"), (rows - 1, "32768 to 32844")] {
            let changed = base(rows, Some(row));
            assert_ne!(sums(&changed, 4096).digest(), expected.digest());
            let error = expected.check(&changed, folder, &Progress::silent()).unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "vectors: found other values in rows {block}, expected the data set of the work files in index.work; delete them to build anew"
                )
            );
        }
        let progress = Progress::silent();
        progress.cancel();
        assert!(matches!(expected.check(&base(rows, None), folder, &progress), Err(Error::Cancelled)));
    }
}
