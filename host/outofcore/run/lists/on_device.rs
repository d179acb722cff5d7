//! Neighbour lists on a device, beside the vectors of their members.

use std::ops::Range;

use cuda_std::launch::Kernel;
use tagore_device::key::Key;
use tagore_device::lists::lengths::{
    LENGTH_LISTS, LENGTH_THREADS, Lengths, lists_lengths_f16, lists_lengths_f32, lists_lengths_i8,
    lists_lengths_u8,
};
use tagore_device::lists::merge::{
    MERGE_LISTS_NODES, MERGE_LISTS_THREADS, MergeLists, lists_merge_f16, lists_merge_f32, lists_merge_i8,
    lists_merge_u8,
};

use super::{ClusterLists, Members, WaitingLists};
use crate::Result;
use crate::gpu::{Buffer, Gpu};
use crate::loops::for_each;
use crate::memory::zeros;
use crate::outofcore::plan::{MERGED_AT_ONCE, list_memory};
use crate::vectors::gpu::{Base, stage_kernels};

stage_kernels! {
    /// Kernels of neighbour lists of clusters.
    pub(crate) trait ListKernels {
        Lengths (Lengths<Self>,): lists_lengths_f32 lists_lengths_f16 lists_lengths_u8 lists_lengths_i8;
        MergeLists (MergeLists<Self>,): lists_merge_f32 lists_merge_f16 lists_merge_u8 lists_merge_i8;
    }
}

/// The neighbour lists of a cluster's members on a device.
pub(crate) struct DeviceLists<T: ListKernels> {
    gpu: Gpu,
    /// Merging does not wait for the kernels of builds on other streams, which take long.
    first: Gpu,
    degree: usize,
    members: Members,
    base: Base<T>,
    ids: Buffer<u32>,
    order: Buffer<u32>,
    /// Lists in the order of the members: ascending keys of order distances and members.
    keys: Buffer<Key>,
    /// Places of the members in a merge.
    places: Buffer<u32>,
    /// Their waiting lists.
    waiting: Buffer<Key>,
    /// Their finished rows.
    merged: Buffer<u32>,
}

impl<T: ListKernels> DeviceLists<T> {
    /// Takes the lists of padded rows of `degree` ids, with their vectors in `base`. `lifts`
    /// replace the base's lifts: the lift of each row, and the square of the norm of lifted rows.
    pub(crate) fn new(
        gpu: &Gpu,
        mut base: Base<T>,
        lifts: Option<(Vec<f32>, f32)>,
        edges: Buffer<u32>,
        degree: usize,
        members: Members,
    ) -> Result<Self> {
        let n = members.ids.len();
        if let Some((lifts, square)) = lifts {
            base.lift(&lifts, square)?;
        }
        let memory = list_memory(n, degree).reserve(gpu)?;
        let mut ids: Buffer<u32> = memory.buffer("ids of members")?;
        ids.upload(&members.ids)?;
        let mut order: Buffer<u32> = memory.buffer("order of members")?;
        order.upload(&members.order)?;
        let mut keys: Buffer<Key> = memory.buffer("lists")?;
        let lengths = Lengths {
            rows: base.rows(),
            order: order.view(),
            ids: edges.view(),
            keys: keys.view_mut(),
            count: n as u32,
            degree: degree as u32,
        };
        let grid = [(n as u32).div_ceil(LENGTH_LISTS), 1, 1];
        // SAFETY: ids are rows of the base; all memory outlives the kernel.
        unsafe { gpu.launch::<T::Lengths>(grid, LENGTH_THREADS, (lengths,))? };
        let bytes = n * degree * (base.row_bytes() + size_of::<u32>() + size_of::<Key>());
        gpu.count_work(T::Lengths::NAME, bytes as u64, 0);
        gpu.synchronize()?;
        Ok(Self {
            gpu: gpu.clone(),
            first: gpu.fork_high_priority()?,
            degree,
            members,
            base,
            ids,
            order,
            keys,
            places: memory.buffer("places")?,
            waiting: memory.buffer("waiting lists")?,
            merged: memory.buffer("merged rows")?,
        })
    }
}

impl<T: ListKernels> ClusterLists for DeviceLists<T> {
    fn get(&mut self, places: Range<usize>) -> Result<Vec<Key>> {
        let mut keys: Vec<Key> = zeros(places.len() * self.degree)?;
        self.keys.download_from(places.start * self.degree, &mut keys)?;
        for_each(&mut keys[..], |key| *key = self.members.of_base(*key));
        Ok(keys)
    }

    fn merge(&mut self, waiting: &[WaitingLists<'_>]) -> Result<Vec<u32>> {
        let (degree, record) = (self.degree, 1 + self.degree);
        let nodes: usize = waiting.iter().map(|waiting| waiting.places.len()).sum();
        let mut records: Vec<u32> = zeros(nodes * record)?;
        let mut rest = &mut records[..];
        let mut places: Vec<u32> = Vec::new();
        let mut merge_uploaded = |lists: &mut Self, places: &mut Vec<u32>| {
            let records = rest.split_off_mut(..places.len() * record).unwrap_or_default();
            lists.merge_at(places, records)?;
            places.clear();
            Ok(())
        };
        for WaitingLists { places: at, lists } in waiting {
            for (part, first) in lists.chunks(MERGED_AT_ONCE * degree).enumerate() {
                let (begin, count) = (at.start + part * MERGED_AT_ONCE, first.len() / degree);
                if places.len() + count > MERGED_AT_ONCE {
                    merge_uploaded(self, &mut places)?;
                }
                self.waiting.upload_at(places.len() * degree, first)?;
                places.extend(begin as u32..(begin + count) as u32);
            }
        }
        merge_uploaded(self, &mut places)?;
        Ok(records)
    }
}

impl<T: ListKernels> DeviceLists<T> {
    /// Merges the lists at `places` with the waiting lists on the device.
    fn merge_at(&mut self, places: &[u32], records: &mut [u32]) -> Result<()> {
        if places.is_empty() {
            return Ok(());
        }
        self.places.upload(places)?;
        let (count, degree) = (places.len() as u32, self.degree as u32);
        let merge = MergeLists {
            rows: self.base.rows(),
            ids: self.ids.view(),
            order: self.order.view(),
            second: self.keys.view(),
            places: self.places.view(),
            first: self.waiting.view(),
            records: self.merged.view_mut(),
            members: self.members.ids.len() as u32,
            count,
            degree,
            padding: 0,
        };
        let grid = [count.div_ceil(MERGE_LISTS_NODES), 1, 1];
        self.gpu.synchronize()?;
        // SAFETY: each place has a waiting list and room for a record. The copies to the device are
        // done; all memory outlives the wait below.
        unsafe { self.first.launch::<T::MergeLists>(grid, MERGE_LISTS_THREADS, (merge,))? };
        self.first.synchronize()?;
        let list = self.degree * (size_of::<Key>() + self.base.row_bytes());
        self.gpu.count_work(
            T::MergeLists::NAME,
            (places.len() * (2 * list + 4 * (1 + self.degree))) as u64,
            0,
        );
        self.merged.download(records)
    }
}
