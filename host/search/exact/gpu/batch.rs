//! Queries on the device, and their lists.

use tagore_device::block::element::TileSum;
use tagore_device::key::{self, Key};
use tagore_device::search::exact::CLOSED;

use super::GpuSearch;
use crate::Result;
use crate::gpu::Buffer;
use crate::vectors::Matrix;
use crate::vectors::gpu::{OnDevice, Side};

/// Queries on the device, and what is known of their neighbours.
pub(super) struct Batch<T: OnDevice> {
    pub side: Side<T>,
    pub excluded: Buffer<u32>,
    pub bounds: Buffer<T::Sum>,
    pub counts: Buffer<u32>,
    pub noted: Buffer<u32>,
    pub lists: Buffer<Key>,
    pub overflow: Buffer<u32>,
    pub count: usize,
}

impl<T: OnDevice> Batch<T> {
    /// Puts the queries `members` on the device, with their present lists, a list to a query in
    /// `keys`.
    pub(super) fn start(
        &mut self,
        search: &GpuSearch<'_>,
        members: &[u32],
        queries: Matrix<'_, T>,
        keys: &[Key],
    ) -> Result<()> {
        let row_of = |index: usize| search.queries.row_of(members[index] as usize);
        self.count = members.len();
        self.side.values.upload_rows(self.count, self.side.stride, |index| queries.row(row_of(index)))?;
        if let Some(nodes) = search.queries.nodes {
            self.excluded.upload_rows(self.count, 1, |index| &nodes[members[index] as usize..][..1])?;
        }
        let k = search.k;
        self.lists.upload_rows(self.count, k, |index| &keys[members[index] as usize * k..][..k])?;
        self.counts.fill(0)?;
        self.overflow.fill(0)
    }

    /// Takes the lists of the queries `members` back to `keys`, but for the `stragglers` among
    /// them.
    pub(super) fn finish(
        &self,
        search: &GpuSearch<'_>,
        members: &[u32],
        stragglers: &[usize],
        keys: &mut [Key],
    ) -> Result<()> {
        let k = search.k;
        let mut lists = vec![key::NONE; members.len() * k];
        self.lists.download(&mut lists)?;
        let mut stragglers = stragglers.iter().peekable();
        for (index, list) in lists.chunks_exact(k).enumerate() {
            if stragglers.next_if(|&&straggler| straggler == index).is_none() {
                keys[members[index] as usize * k..][..k].copy_from_slice(list);
            }
        }
        Ok(())
    }

    /// Closes the queries whose noted rows passed the capacity: nothing is noted for them any more.
    pub(super) fn close(&mut self, counts: &mut [u32], closed: &[usize]) -> Result<()> {
        let mut bounds = vec![T::Sum::CLOSED; self.count];
        self.bounds.download(&mut bounds)?;
        for &index in closed {
            counts[index] = CLOSED;
            bounds[index] = T::Sum::CLOSED;
        }
        self.counts.upload(counts)?;
        self.bounds.upload(&bounds)
    }
}
