//! Lists on a device, beside the vectors of their members.

use std::ops::Range;

use rayon::prelude::*;
use tagore_device::descent::key::{self, Key};
use tagore_device::lists::lengths::{LENGTH_LISTS, LENGTH_THREADS, Lengths};
use tagore_device::lists::merge::{MERGE_LISTS_NODES, MERGE_LISTS_THREADS, MergeLists};

use super::{Lists, Members};
use crate::gpu::{Buffer, Gpu, Plan};
use crate::vectors::gpu::{Base, OnDevice};
use crate::{Index, Metric, Result};

/// Nodes whose lists are merged at a time, at most.
const AT_ONCE: usize = 1 << 16;

/// The lists of members on a device.
pub(in crate::outofcore) struct DeviceLists<T: OnDevice> {
    gpu: Gpu,
    degree: usize,
    members: Members,
    base: Base<T>,
    ids: Buffer<u32>,
    order: Buffer<u32>,
    /// Ascending keys of rule distances and members, list after list in the order of the members.
    keys: Buffer<Key>,
    waiting: Buffer<Key>,
    merged: Buffer<u32>,
}

/// The device memory for lists of `degree` of `n` members, beside the base.
fn plan(n: usize, degree: usize) -> Plan {
    let at_once = AT_ONCE.min(n);
    Plan::new()
        .with::<u32>("ids of members", n)
        .with::<u32>("order of members", n)
        .with::<u32>("edges", n * degree)
        .with::<Key>("lists", n * degree)
        .with::<Key>("waiting lists", at_once * degree)
        .with::<u32>("merged rows", at_once * (1 + degree))
}

impl<T: OnDevice> DeviceLists<T> {
    /// The device memory of it all.
    pub(in crate::outofcore) fn plan((n, dim): (usize, usize), degree: usize, metric: Metric) -> Plan {
        Base::<T>::plan(n, dim, metric).and(&plan(n, degree))
    }

    /// The lists of `index`, whose vectors are in `base`, with other lifts if there are any.
    pub(in crate::outofcore) fn new(
        gpu: &Gpu,
        mut base: Base<T>,
        lifts: Option<&[f32]>,
        index: &Index,
        members: Members,
    ) -> Result<Self> {
        let (n, degree) = (index.len(), index.max_degree());
        if let Some(lifts) = lifts {
            base.lift(lifts)?;
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
        let (waiting, merged) = (memory.buffer("waiting lists")?, memory.buffer("merged rows")?);
        Ok(Self { gpu: gpu.clone(), degree, members, base, ids, order, keys, waiting, merged })
    }
}

impl<T: OnDevice> Lists for DeviceLists<T> {
    fn get(&mut self, places: Range<usize>) -> Result<Vec<Key>> {
        let mut keys = vec![key::NONE; places.len() * self.degree];
        self.keys.download_from(places.start * self.degree, &mut keys)?;
        keys.par_iter_mut().for_each(|key| *key = self.members.of_base(*key));
        Ok(keys)
    }

    fn merge(&mut self, places: Range<usize>, first: &[Key]) -> Result<Vec<u32>> {
        let (degree, record) = (self.degree, 1 + self.degree);
        let mut records = vec![u32::MAX; places.len() * record];
        let chunks = first.chunks(AT_ONCE * degree).zip(records.chunks_mut(AT_ONCE * record));
        for (chunk, (first, records)) in chunks.enumerate() {
            let (begin, count) = (places.start + chunk * AT_ONCE, first.len() / degree);
            self.waiting.upload(first)?;
            let merge = MergeLists {
                rows: self.base.rows(),
                ids: self.ids.view(),
                order: self.order.view().offset(begin),
                first: self.waiting.view(),
                second: self.keys.view().offset(begin * degree),
                records: self.merged.view_mut(),
                members: self.members.ids.len() as u32,
                count: count as u32,
                degree: degree as u32,
                padding: 0,
            };
            let grid = [(count as u32).div_ceil(MERGE_LISTS_NODES), 1, 1];
            // SAFETY: there are as many lists of both kinds and room for as many records; all memory outlives the
            // download.
            unsafe { self.gpu.launch::<T::MergeLists>(grid, MERGE_LISTS_THREADS, (merge,))? };
            let bytes = count * (2 * degree * (size_of::<Key>() + self.base.row_bytes()) + 4 * record);
            self.gpu.count_work::<T::MergeLists>(bytes as u64, 0);
            self.merged.download(records)?;
        }
        Ok(records)
    }
}
