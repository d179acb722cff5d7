//! Rows of ids of one width.

use tagore_device::key::NO_ID;

use crate::Result;
use crate::loops::{Rows, rows_mut};
use crate::memory::filled;

/// Rows of at most `width` ids; unused slots at the end of a row hold `u32::MAX`.
pub(crate) struct IdTable {
    width: usize,
    ids: Vec<u32>,
}

impl IdTable {
    pub(crate) fn new(rows: usize, width: usize) -> Result<Self> {
        Ok(Self { width, ids: filled(NO_ID, rows * width)? })
    }

    /// The ids of `row`.
    pub(crate) fn row(&self, row: u32) -> &[u32] {
        let ids = &self.ids[row as usize * self.width..][..self.width];
        let used = ids.iter().position(|&id| id == NO_ID).unwrap_or(self.width);
        &ids[..used]
    }

    pub(crate) fn rows_mut(&mut self) -> Rows<&mut [u32]> {
        rows_mut(&mut self.ids, self.width)
    }
}

/// Writes `ids` to the start of `slots`, as many as fit.
pub(crate) fn fill(slots: &mut [u32], ids: impl Iterator<Item = u32>) {
    slots.iter_mut().zip(ids).for_each(|(slot, id)| *slot = id);
}
