//! A batch of queries on the device, with their lists.

use std::ops::Range;

use tagore_device::block::sums::TileSum;
use tagore_device::key::{self, Key};
use tagore_device::search::exact::CLOSED;

use super::GpuSearch;
use crate::Result;
use crate::gpu::Buffer;
use crate::memory::filled;
use crate::vectors::gpu::{OnDevice, Origin, Pick, Side};

/// A batch of queries on the device, with their lists, bounds and survivors.
pub(super) struct Batch<T: OnDevice> {
    pub side: Side<T>,
    pub excluded: Buffer<u32>,
    pub bounds: Buffer<T::Sum>,
    pub counts: Buffer<u32>,
    pub survivors: Buffer<u32>,
    pub lists: Buffer<Key>,
    pub overflow: Buffer<u32>,
    pub count: usize,
}

impl<T: OnDevice> Batch<T> {
    /// Copies the queries `members` and their present lists to the device; `keys` holds a list per
    /// query, all of them empty if `are_empty`.
    pub(super) fn start(
        &mut self,
        search: &GpuSearch<'_>,
        members: &[u32],
        queries: &Origin<'_, T>,
        keys: &[Key],
        are_empty: bool,
    ) -> Result<()> {
        let rows: Vec<u32> =
            members.iter().map(|&member| search.queries.row_of(member as usize) as u32).collect();
        self.count = members.len();
        let pick = successive(&rows).map_or(Pick::Ids(&rows), Pick::Range);
        queries.copy(search.gpu, pick, &mut self.side.values, self.side.stride)?;
        if let Some(nodes) = search.queries.nodes {
            self.excluded
                .upload_rows(0, self.count, 1, |places| &nodes[members[places.start] as usize..][..1])?;
        }
        if are_empty {
            // Every byte of [`key::NONE`].
            self.lists.fill(0xff)?;
        } else {
            let k = search.k;
            self.lists
                .upload_rows(0, self.count, k, |places| &keys[members[places.start] as usize * k..][..k])?;
        }
        self.counts.fill(0)?;
        self.overflow.fill(0)
    }

    /// Copies the lists of the queries `members` back to `keys`, except those of the `stragglers`.
    pub(super) fn finish(
        &self,
        search: &GpuSearch<'_>,
        members: &[u32],
        stragglers: &[usize],
        keys: &mut [Key],
    ) -> Result<()> {
        let k = search.k;
        if let Some(range) = successive(members) {
            // Into their places, but for those of the stragglers, which stay.
            let keys = &mut keys[range.start * k..range.end * k];
            let lists = stragglers.iter().flat_map(|&index| &keys[index * k..][..k]);
            let kept: Vec<Key> = lists.copied().collect();
            self.lists.download(keys)?;
            for (&index, list) in stragglers.iter().zip(kept.chunks_exact(k)) {
                keys[index * k..][..k].copy_from_slice(list);
            }
            return Ok(());
        }
        let mut lists = filled(key::NONE, members.len() * k)?;
        self.lists.download(&mut lists)?;
        let mut stragglers = stragglers.iter().peekable();
        for (index, list) in lists.chunks_exact(k).enumerate() {
            if stragglers.next_if(|&&straggler| straggler == index).is_none() {
                keys[members[index] as usize * k..][..k].copy_from_slice(list);
            }
        }
        Ok(())
    }

    /// Closes queries whose survivors exceed the capacity: the filter adds no more rows for them.
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

/// The range of `ids` if they follow one another.
fn successive(ids: &[u32]) -> Option<Range<usize>> {
    let (&first, &last) = (ids.first()?, ids.last()?);
    ids.windows(2).all(|pair| pair[0] + 1 == pair[1]).then_some(first as usize..last as usize + 1)
}
