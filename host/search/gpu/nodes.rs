//! Searches for nodes of the base itself, in a graph under construction.

use std::sync::OnceLock;

use tagore_device::key::{self, Key};

use super::launch::{Asked, Task};
use super::{BatchLimits, KeysTo, OnGpu, Resident, floats};
use crate::gpu::{Buffer, Gpu};
use crate::index::{Index, Start};
use crate::search::ResidentIndex;
use crate::search::breadth::Breadth;
use crate::vectors::gpu::{DeviceBase, OnDevice, with_typed};
use crate::vectors::space::Space;
use crate::{ElementType, Progress, Result};

/// Nodes searched for at a time.
const BATCH: usize = 1 << 16;

/// The padded rows of a graph: `degree` ids for each of `nodes` nodes.
#[derive(Clone, Copy)]
pub(crate) struct EdgeRows<'a> {
    pub ids: &'a Buffer<u32>,
    pub nodes: usize,
    pub degree: usize,
}

/// A graph under construction on a device that holds its base.
pub(crate) struct NodeSearch(OnGpu);

impl NodeSearch {
    /// Takes over the base, and the padded rows of the graph, of `degree` ids each.
    ///
    /// # Errors
    /// If the device lacks memory or fails.
    pub(crate) fn new(gpu: Gpu, base: DeviceBase, edges: Buffer<u32>, degree: usize) -> Result<Self> {
        let base = with_typed!(base, base => OnDevice::wrap(Resident::new(base)));
        let entries = gpu.buffer("entries", 1)?;
        let (layers, second_stream) = (Vec::new(), OnceLock::new());
        let floats = None;
        let (full, edge_codes) = (None, None);
        Ok(Self(OnGpu { gpu, second_stream, degree, edges, entries, layers, base, floats, full, edge_codes }))
    }

    /// The device.
    pub(crate) fn gpu(&self) -> &Gpu {
        &self.0.gpu
    }

    /// The rows of the graph, of `nodes` nodes.
    pub(crate) fn edges(&self, nodes: usize) -> EdgeRows<'_> {
        EdgeRows { ids: &self.0.edges, nodes, degree: self.0.degree }
    }

    /// Replaces the padded row of `node`.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn set_row(&mut self, node: u32, row: &[u32]) -> Result<()> {
        self.0.edges.upload_at(node as usize * self.0.degree, row)
    }

    /// Makes the graph the finished `index`, whose rows it has; `base` is the type of the vectors.
    ///
    /// # Errors
    /// If the device lacks memory or fails.
    pub(crate) fn into_resident(mut self, index: &Index, base: ElementType) -> Result<ResidentIndex> {
        self.start(index.len(), index.start())?;
        let Self(mut on_gpu) = self;
        on_gpu.floats = floats(&on_gpu.base, base);
        Ok(ResidentIndex::new(on_gpu, index))
    }

    /// Replaces the padded rows of all nodes.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn set_rows(&mut self, rows: &[u32]) -> Result<()> {
        self.0.edges.upload(rows)
    }

    /// Begins later searches at `start`, of a graph of `nodes` nodes.
    ///
    /// # Errors
    /// If the device lacks memory or fails.
    pub(crate) fn start(&mut self, nodes: usize, start: Start<'_>) -> Result<()> {
        self.0.start(nodes, start)
    }

    /// Sets the beam of the lowest layer, if there are layers.
    pub(crate) fn set_beam(&mut self, beam: usize) {
        if let Some(lowest) = self.0.layers.last_mut() {
            lowest.beam = beam;
        }
    }

    /// The keys of a beam of `beam` nodes for each of `nodes`: those of the CPU. And the number of
    /// distances computed.
    ///
    /// # Errors
    /// If the device lacks memory or fails, or the work is cancelled.
    pub(crate) fn nearest(
        &mut self,
        space: &Space<'_>,
        nodes: &[u32],
        beam: usize,
        progress: &Progress,
    ) -> Result<(Vec<Key>, u64)> {
        let on_gpu = &self.0;
        let breadth = Breadth::fixed(beam);
        let limits = BatchLimits { among: None, k: beam, walked: beam, breadth, width: 1, batch: BATCH };
        on_gpu.check(space, limits)?;
        let asked = Asked { count: nodes.len(), nodes: Some(nodes), zero: space.zero() };
        let (dim, metric) = (space.dim(), space.metric());
        let stage = progress.stage("search", nodes.len() as u64);
        let task = Task { on_gpu, dim, metric, asked, limits, stage: &stage, reranking: None };
        let mut keys = vec![key::NONE; nodes.len() * beam];
        let to = KeysTo::Host(&mut keys);
        let work = with_typed!(&on_gpu.base, base => task.run(base, &base.base.origin(), to))?;
        Ok((keys, work.computed))
    }
}
