//! The graph as plain ids: padded ibin, for other programs.

use std::path::Path;

use super::Index;
use crate::vectors::save_ids;
use crate::{Error, Format, Result};

impl Index {
    /// Writes the rows to `path`, an ibin of n × max_degree ids padded with `u32::MAX`, and the entry
    /// points beside it: `x.entries.ibin` for `x.ibin`, one id to a row.
    ///
    /// # Errors
    /// If there are no edges to write, or a file cannot be written.
    pub fn save_adjacency(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if self.max_degree() == 0 {
            return Err(Error::file(path, "an index without edges", "a degree of at least 1"));
        }
        save_ids(&path.with_extension("entries.ibin"), Format::Ibin, 1, self.entries())?;
        save_ids(path, Format::Ibin, self.max_degree(), self.parts().1)
    }
}
