//! Replaces rows of an index file that is not committed yet.

use std::collections::BTreeSet;

use tagore_device::key::NO_ID;

use super::file::{IndexFile, Section, WrittenRows};
use super::header::{ADJACENCY, BLOCK, DEGREES};
use crate::Result;

impl IndexFile {
    /// Replaces rows by the neighbours of some nodes, at most `max_degree` each, and computes the
    /// checksums of their blocks again. `written` is the map of the rows, which must not be read
    /// meanwhile.
    ///
    /// # Errors
    /// If the file cannot be written or mapped.
    pub(crate) fn replace_rows<'a>(
        &mut self,
        written: WrittenRows,
        rows: impl Iterator<Item = (u32, &'a [u32])>,
    ) -> Result<()> {
        drop(written);
        let degree = self.max_degree;
        let mut blocks = BTreeSet::new();
        let mut padded = Vec::with_capacity(degree);
        for (node, row) in rows {
            padded.clear();
            padded.extend_from_slice(row);
            padded.resize(degree, NO_ID);
            let count = [row.len() as u32];
            for (section, place, words) in
                [(DEGREES, node as usize, &count[..]), (ADJACENCY, node as usize * degree, &padded)]
            {
                let (first, content) = (4 * place, bytemuck::cast_slice(words));
                self.file.seek((self.sections[section].bytes.start + first) as u64)?;
                self.file.write_all(content)?;
                // A row may end in the next block.
                let last = (first + content.len()).saturating_sub(1);
                blocks.extend((first / BLOCK..=last / BLOCK).map(|block| (section, block)));
            }
        }
        let written = self.rows()?;
        for (section, block) in blocks {
            let bytes: &[u8] = bytemuck::cast_slice(written.mapped.u32s(section));
            let content = &bytes[block * BLOCK..bytes.len().min((block + 1) * BLOCK)];
            let Section { checksums, block: last, .. } = &mut self.sections[section];
            match checksums.get_mut(block) {
                Some(checksum) => *checksum = crc32fast::hash(content),
                // The incomplete last block.
                None => {
                    *last = crc32fast::Hasher::new();
                    last.update(content);
                }
            }
        }
        Ok(())
    }
}
