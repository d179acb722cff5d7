//! A k-NN graph on a device.

use std::ops::Range;

use bytemuck::Pod;
use tagore_device::key::{self, Key};

use crate::descent::KnnGraph;
use crate::gpu::{Buffer, Gpu, MemoryPlan};
use crate::loops::{at_least, for_each, map};
use crate::vectors::gpu::{Pick, RowsAt};
use crate::{Metric, Result};

/// The lists of a k-NN graph, and an order of its rows.
pub(crate) struct GpuLists {
    /// `k` ascending keys per row, of list distances and rows; [`key::NONE`] in empty slots.
    pub keys: Buffer<Key>,
    pub k: usize,
    pub metric: Metric,
    /// Every row once. Adjacent rows are near each other if descent built the graph on this device.
    pub order: Buffer<u32>,
}

impl GpuLists {
    /// Adds a graph of `n` rows to a plan.
    pub(crate) fn plan(plan: MemoryPlan, n: usize, k: usize) -> MemoryPlan {
        plan.with::<Key>("lists", n * k).with::<u32>("order", n)
    }

    /// Copies `k` keys of each of `n` rows to the device; the order is that of the row numbers.
    pub(crate) fn upload(gpu: &Gpu, keys: &[Key], n: usize, k: usize, metric: Metric) -> Result<Self> {
        let memory = Self::plan(MemoryPlan::new(), n, k).reserve(gpu)?;
        let mut lists = Self { keys: memory.buffer("lists")?, k, metric, order: memory.buffer("order")? };
        lists.keys.upload(keys)?;
        lists.order.upload(&(0..n as u32).collect::<Vec<_>>())?;
        Ok(lists)
    }

    /// Copies a graph to the device.
    pub(crate) fn from_graph(gpu: &Gpu, graph: &KnnGraph) -> Result<Self> {
        Self::upload(gpu, &graph.keys(), graph.len(), graph.k(), graph.metric())
    }

    /// Copies the keys of some nodes to the host, those of a range of places in each list.
    pub(crate) fn some(&self, gpu: &Gpu, nodes: Pick<'_>, places: Range<usize>) -> Result<Vec<Key>> {
        self.values(gpu, nodes, places.start * size_of::<Key>(), places.len())
    }

    /// The distance of the neighbour at the 1-based `rank` of each of some nodes, or of its last if
    /// lists are shorter; infinite where there is none.
    pub(crate) fn distances_at(&self, gpu: &Gpu, nodes: Pick<'_>, rank: usize) -> Result<Vec<f32>> {
        // Distances are the upper words of keys.
        let place = rank.min(self.k).saturating_sub(1);
        let mut words: Vec<u32> = self.values(gpu, nodes, place * size_of::<Key>() + size_of::<u32>(), 1)?;
        const NO_DISTANCE: u32 = (key::NONE >> 32) as u32;
        for_each(at_least(1 << 12, &mut words[..]), |word| {
            let distance = if *word == NO_DISTANCE { f32::INFINITY } else { key::from_ordered(*word) };
            *word = distance.to_bits();
        });
        Ok(bytemuck::cast_vec(words))
    }

    /// Copies `count` values of the list of each of some nodes to the host, from its byte `first`
    /// on.
    fn values<V: Pod + Send + Sync>(
        &self,
        gpu: &Gpu,
        nodes: Pick<'_>,
        first: usize,
        count: usize,
    ) -> Result<Vec<V>> {
        let (bytes, rows) = (count * size_of::<V>(), self.order.len());
        // Threads touch the pages when they copy.
        let mut values = vec![V::zeroed(); nodes.len() * count];
        if values.is_empty() {
            return Ok(values);
        }
        let mut room: Buffer<V> = gpu.buffer("keys of nodes", values.len())?;
        let (lists, stride) = (self.keys.view().cast::<u8>().offset(first), self.k * size_of::<Key>());
        let rows = RowsAt { values: lists, stride, count: rows, dim: bytes, size: 1 };
        rows.copy(gpu, nodes, room.view_mut().cast(), bytes, false)?;
        room.download(&mut values)?;
        Ok(values)
    }

    /// Copies the keys to the host.
    pub(crate) fn download(&self) -> Result<Vec<Key>> {
        // All threads touch the pages: mapping them takes longer than the copy.
        let mut keys = map(0..self.order.len() * self.k, |_| key::NONE);
        self.keys.download(&mut keys)?;
        Ok(keys)
    }
}
