//! Adjacency of an index under construction.

use tagore_device::key::NO_ID;

use crate::Result;
use crate::index::Graph;
use crate::loops::rows;
use crate::memory::collected_in_parallel;

/// A row of at most `stride` distinct ids per node; unused slots hold `u32::MAX`.
pub(crate) struct GraphRows {
    stride: usize,
    degrees: Vec<u32>,
    ids: Vec<u32>,
}

impl GraphRows {
    #[cfg(test)]
    pub(crate) fn new(nodes: usize, stride: usize) -> Self {
        Self { stride, degrees: vec![0; nodes], ids: vec![NO_ID; nodes * stride] }
    }

    /// Takes over rows padded with `u32::MAX`.
    pub(crate) fn from_padded(ids: Vec<u32>, stride: usize) -> Result<Self> {
        let degree = |row: &[u32]| row.iter().take_while(|&&id| id != NO_ID).count() as u32;
        let degrees = collected_in_parallel(rows(&ids, stride), degree)?;
        Ok(Self { stride, degrees, ids })
    }

    pub(crate) fn len(&self) -> usize {
        self.degrees.len()
    }

    /// Slots per row.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    #[inline]
    pub(crate) fn row(&self, node: u32) -> &[u32] {
        &self.ids[node as usize * self.stride..][..self.degrees[node as usize] as usize]
    }

    /// Adds an edge; false if the row is full.
    pub(crate) fn push(&mut self, node: u32, id: u32) -> bool {
        let degree = self.degrees[node as usize] as usize;
        if degree == self.stride {
            return false;
        }
        self.ids[node as usize * self.stride + degree] = id;
        self.degrees[node as usize] += 1;
        true
    }

    /// Replaces the edge at `slot` of the row.
    pub(crate) fn replace(&mut self, node: u32, slot: usize, id: u32) {
        self.ids[node as usize * self.stride + slot] = id;
    }

    /// Replaces a row by at most [`stride`](Self::stride) distinct ids.
    pub(crate) fn set(&mut self, node: u32, ids: &[u32]) {
        let row = &mut self.ids[node as usize * self.stride..][..self.stride];
        let (named, padding) = row.split_at_mut(ids.len());
        named.copy_from_slice(ids);
        padding.fill(NO_ID);
        self.degrees[node as usize] = ids.len() as u32;
    }

    /// A row, padded.
    pub(crate) fn padded_row(&self, node: u32) -> &[u32] {
        &self.ids[node as usize * self.stride..][..self.stride]
    }

    /// All rows, padded.
    pub(crate) fn padded(&self) -> &[u32] {
        &self.ids
    }

    /// The degrees and the padded rows.
    pub(crate) fn into_parts(self) -> (Vec<u32>, Vec<u32>) {
        (self.degrees, self.ids)
    }
}

impl Graph for GraphRows {
    fn neighbors(&self, node: u32) -> &[u32] {
        self.row(node)
    }
}
