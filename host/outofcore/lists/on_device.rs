//! Lists on a device, beside the vectors of their members.

use std::ops::Range;

use rayon::prelude::*;
use tagore_device::key::Key;
use tagore_device::lists::lengths::{
    LENGTH_LISTS, LENGTH_THREADS, Lengths, lists_lengths_f16, lists_lengths_f32, lists_lengths_i8,
    lists_lengths_u8,
};
use tagore_device::lists::merge::{
    MERGE_LISTS_NODES, MERGE_LISTS_THREADS, MergeLists, lists_merge_f16, lists_merge_f32, lists_merge_i8,
    lists_merge_u8,
};

use super::{Lists, Members};
use crate::gpu::{Buffer, Gpu, MemoryPlan};
use crate::memory::zeros;
use crate::vectors::gpu::{Base, stage_kernels};
use crate::{Index, Metric, Result};

stage_kernels! {
    /// Kernels of lists that clusters share.
    pub(crate) trait ListKernels {
        Lengths (Lengths<Self>,): lists_lengths_f32 lists_lengths_f16 lists_lengths_u8 lists_lengths_i8;
        MergeLists (MergeLists<Self>,): lists_merge_f32 lists_merge_f16 lists_merge_u8 lists_merge_i8;
    }
}

/// Nodes whose lists are merged at a time, at most.
const AT_ONCE: usize = 1 << 16;

/// The lists of members on a device.
pub(in crate::outofcore) struct DeviceLists<T: ListKernels> {
    gpu: Gpu,
    degree: usize,
    members: Members,
    base: Base<T>,
    ids: Buffer<u32>,
    order: Buffer<u32>,
    /// Ascending keys of order distances and members, list after list in the order of the members.
    keys: Buffer<Key>,
    /// Of the nodes that are merged at a time, their places, the lists that have waited, and what becomes of them.
    places: Buffer<u32>,
    waiting: Buffer<Key>,
    merged: Buffer<u32>,
}

/// The device memory for lists of `degree` of `n` members, beside the base.
fn plan(n: usize, degree: usize) -> MemoryPlan {
    let at_once = AT_ONCE.min(n);
    MemoryPlan::new()
        .with::<u32>("ids of members", n)
        .with::<u32>("order of members", n)
        .with::<u32>("edges", n * degree)
        .with::<Key>("lists", n * degree)
        .with::<u32>("places", at_once)
        .with::<Key>("waiting lists", at_once * degree)
        .with::<u32>("merged rows", at_once * (1 + degree))
}

impl<T: ListKernels> DeviceLists<T> {
    /// The device memory of it all.
    pub(in crate::outofcore) fn plan((n, dim): (usize, usize), degree: usize, metric: Metric) -> MemoryPlan {
        Base::<T>::plan(n, dim, metric).and(&plan(n, degree))
    }

    /// The lists of `index`, whose vectors are in `base`, with other lifts if there are any.
    pub(in crate::outofcore) fn new(
        gpu: &Gpu,
        mut base: Base<T>,
        lifts: Option<(Vec<f32>, f32)>,
        index: &Index,
        members: Members,
    ) -> Result<Self> {
        let (n, degree) = (index.len(), index.max_degree());
        if let Some((lifts, square)) = lifts {
            base.lift(&lifts, square)?;
        }
        let memory = plan(n, degree).reserve(gpu)?;
        let mut ids: Buffer<u32> = memory.buffer("ids of members")?;
        ids.upload(&members.ids)?;
        let mut order: Buffer<u32> = memory.buffer("order of members")?;
        order.upload(&members.order)?;
        let mut edges: Buffer<u32> = memory.buffer("edges")?;
        edges.upload(index.padded_rows()?)?;
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
        // SAFETY: ids are of members, of which the base has the vectors; all memory outlives the work.
        unsafe { gpu.launch::<T::Lengths>(grid, LENGTH_THREADS, (lengths,))? };
        let bytes = n * degree * (base.row_bytes() + size_of::<u32>() + size_of::<Key>());
        gpu.count_work::<T::Lengths>(bytes as u64, 0);
        gpu.synchronize()?;
        Ok(Self {
            gpu: gpu.clone(),
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

impl<T: ListKernels> Lists for DeviceLists<T> {
    fn get(&mut self, places: Range<usize>) -> Result<Vec<Key>> {
        let mut keys: Vec<Key> = zeros(places.len() * self.degree);
        self.keys.download_from(places.start * self.degree, &mut keys)?;
        keys.par_iter_mut().for_each(|key| *key = self.members.of_base(*key));
        Ok(keys)
    }

    fn merge(&mut self, waiting: &[(Range<usize>, &[Key])]) -> Result<Vec<u32>> {
        let (degree, record) = (self.degree, 1 + self.degree);
        let nodes: usize = waiting.iter().map(|(places, _)| places.len()).sum();
        let mut records: Vec<u32> = zeros(nodes * record);
        let mut rest = &mut records[..];
        let mut places: Vec<u32> = Vec::new();
        let mut merge_those_there = |lists: &mut Self, places: &mut Vec<u32>| {
            let records = rest.split_off_mut(..places.len() * record).unwrap_or_default();
            lists.merge_at(places, records)?;
            places.clear();
            Ok(())
        };
        for (at, first) in waiting {
            for (part, first) in first.chunks(AT_ONCE * degree).enumerate() {
                let (begin, count) = (at.start + part * AT_ONCE, first.len() / degree);
                if places.len() + count > AT_ONCE {
                    merge_those_there(self, &mut places)?;
                }
                self.waiting.upload_at(places.len() * degree, first)?;
                places.extend(begin as u32..(begin + count) as u32);
            }
        }
        merge_those_there(self, &mut places)?;
        Ok(records)
    }
}

impl<T: ListKernels> DeviceLists<T> {
    /// Merges the lists at `places` with those that have been copied to the device.
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
        // SAFETY: there is a list that waits, and room for a record, for each of the places; all memory outlives the
        // download.
        unsafe { self.gpu.launch::<T::MergeLists>(grid, MERGE_LISTS_THREADS, (merge,))? };
        let list = self.degree * (size_of::<Key>() + self.base.row_bytes());
        self.gpu.count_work::<T::MergeLists>((places.len() * (2 * list + 4 * (1 + self.degree))) as u64, 0);
        self.merged.download(records)
    }
}
