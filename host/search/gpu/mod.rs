//! Beam search on a GPU (`device/src/search/beam/`). Index and base are copied to it once, for any
//! number of batches.

mod launch;
mod nodes;
mod rerank;
mod shared;

use std::sync::{Arc, Mutex, OnceLock};

use tagore_device::key::{self, Key, NO_ID};
use tagore_device::search::beam::among::{among_shared_bytes, among_step_ids};
use tagore_device::search::beam::by_block::block_search_shared_bytes;
use tagore_device::search::beam::by_warp::{WAYS, warp_search_shared_bytes};
use tagore_device::search::beam::search::{block_table_slots, table_slots, warp_table_slots};
use tagore_device::search::beam::walk::{least_slots, step_ids};

#[cfg(test)]
pub(crate) use launch::BeamKernels;
use launch::{Asked, Batch, Take, Task, Work};
pub(crate) use launch::{kernel, kernels};
pub(crate) use nodes::{EdgeRows, NodeSearch};
pub(crate) use rerank::kernel as rerank_kernel;
use rerank::{FullRows, Reranking};
pub(crate) use shared::OnGpus;

use crate::gpu::{Buffer, Gpu, MemoryPlan};
use crate::index::{Index, Layer, Start};
use crate::progress::StageProgress;
use crate::search::breadth::{BeamCapacity, Breadth};
use crate::search::coded::Coded;
use crate::search::edges::EdgeCodes;
use crate::search::edges::gpu::EdgeCodesOnGpu;
use crate::vectors::gpu::{
    AnyOrigin, Base, DeviceResults, Family, OnDevice, Origin, Typed, narrowed, with_typed,
};
use crate::vectors::queries::Queries;
use crate::vectors::space::Space;
use crate::{ElementType, Error, Metric, Progress, Result};

/// The widest beam: it lies in the registers of a warp.
pub(crate) const MAX_BEAM: usize = BeamCapacity::Nodes512 as usize;

/// The nodes that a batch of searches with a filter walks on.
#[derive(Clone, Copy)]
pub(super) struct Among<'a> {
    /// A bit per node.
    pub words: &'a [u64],
    /// Passing nodes where the searches start, besides the entry points of the index.
    pub entries: &'a [u32],
}

/// Parameters of a batch of searches.
#[derive(Clone, Copy)]
pub(super) struct BatchLimits<'a> {
    /// The nodes to walk on, if there is a filter.
    pub among: Option<Among<'a>>,
    /// Keys per query.
    pub k: usize,
    /// Nodes of the beam that are reranked, at least `k`; `k` without codes.
    pub walked: usize,
    pub breadth: Breadth,
    /// Nodes expanded per step.
    pub width: usize,
    /// Queries on the device at a time.
    pub batch: usize,
}

/// Where the keys of a search go.
pub(super) enum KeysTo<'a> {
    /// To the host: `k` keys per query.
    Host(&'a mut [Key]),
    /// As `Host`, of one query, without times and the number of distances: to measure them takes
    /// longer than some of these searches.
    One(&'a mut [Key]),
    /// To the host, batch by batch.
    Batches(Take<'a>),
    /// To memory of the device, measured no more than `One`.
    Device(&'a DeviceResults),
}

impl KeysTo<'_> {
    /// Whether a search returns times and the number of distances.
    fn is_measured(&self) -> bool {
        matches!(self, Self::Host(_) | Self::Batches(_))
    }
}

/// Maximum number of ids of a step: more exceed the shared memory of any block.
const MAX_STEP_IDS: usize = 1 << 16;

/// The sizes that the shared memory of a search depends on.
#[derive(Clone, Copy)]
pub(crate) struct BeamShape {
    pub dim: usize,
    /// Edges of a row.
    pub degree: usize,
    pub breadth: Breadth,
    /// Nodes expanded per step.
    pub width: usize,
    /// Whether it has a filter.
    pub is_among: bool,
}

impl BeamShape {
    /// Slots of a search's table, in `shared` bytes per block.
    ///
    /// # Errors
    /// If no table fits: the bytes of the smallest.
    pub(crate) fn slots(self, shared: u32) -> std::result::Result<u32, u64> {
        let Self { dim, degree, breadth: Breadth { beam, kept, .. }, width, is_among } = self;
        if degree.saturating_mul(width) > MAX_STEP_IDS {
            // The bytes of the ids and their keys alone.
            return Err((degree as u64).saturating_mul(width as u64).saturating_mul(12));
        }
        let (beam, kept) = (beam as u32, kept as u32);
        let (dim, degree, width) = (dim as u32, degree as u32, width as u32);
        let ids = step_ids(degree, width);
        let capacity = BeamCapacity::for_nodes(kept as usize) as u32;
        let bytes = |slots| {
            if is_among {
                among_shared_bytes(dim, degree, width, slots)
            } else if width == 1 {
                warp_search_shared_bytes(dim, capacity, slots)
            } else {
                block_search_shared_bytes(dim, kept, degree, width, slots)
            }
        };
        let (usual, least) = if is_among {
            let ids = among_step_ids(ids);
            (table_slots(beam, ids), least_slots(kept, ids))
        } else if width == 1 {
            (warp_table_slots(beam), WAYS)
        } else {
            (block_table_slots(beam, ids), least_slots(kept, ids))
        };
        let halves = std::iter::successors(Some(usual.max(least)), |slots| Some(slots / 2));
        let mut fitting = halves.take_while(|&slots| slots >= least).filter(|&slots| bytes(slots) <= shared);
        fitting.next().ok_or_else(|| bytes(least).into())
    }
}

/// An index and its base on a device.
pub(crate) struct OnGpu {
    gpu: Gpu,
    /// Another stream, made by the first use.
    second_stream: OnceLock<Gpu>,
    degree: usize,
    edges: Buffer<u32>,
    entries: Buffer<u32>,
    /// The layers, highest first.
    layers: Vec<LayerOnGpu>,
    /// The rows that searches walk on: the vectors, or their codes.
    base: Typed<Residents>,
    /// If the rows are f32 values that are whole numbers from 0 to 255, as bytes: the f32 values,
    /// uploaded for the first query with other values.
    floats: Option<OnceLock<Box<Resident<f32>>>>,
    /// With codes, also the vectors.
    full: Option<FullOnGpu>,
    /// The codes of edges that searches without a filter walk on, if any.
    edge_codes: Option<EdgeCodesOnGpu>,
}

/// What reranks the nodes that a search on codes found.
struct FullOnGpu {
    coded: Arc<Coded>,
    rows: FullRows,
}

/// A layer of an index on a device.
struct LayerOnGpu {
    degree: usize,
    beam: usize,
    edges: Buffer<u32>,
    /// The position of each node of the index in the layer; `u32::MAX` for nodes outside it.
    places: Buffer<u32>,
}

impl LayerOnGpu {
    /// Device memory of a layer of an index of `n` nodes.
    fn plan(n: usize, layer: &Layer) -> MemoryPlan {
        MemoryPlan::new().with::<u32>("layer edges", layer.padded_rows().len()).with::<u32>("layer places", n)
    }

    fn new(gpu: &Gpu, n: usize, layer: &Layer) -> Result<Self> {
        let memory = Self::plan(n, layer).reserve(gpu)?;
        let mut edges: Buffer<u32> = memory.buffer("layer edges")?;
        edges.upload(layer.padded_rows())?;
        let mut of_nodes = vec![NO_ID; n];
        for (&node, place) in layer.nodes().iter().zip(0..) {
            of_nodes[node as usize] = place;
        }
        let mut places: Buffer<u32> = memory.buffer("layer places")?;
        places.upload(&of_nodes)?;
        Ok(Self { degree: layer.max_degree(), beam: layer.beam(), edges, places })
    }
}

/// The base, and query buffers reused by later batches.
struct Resident<T: OnDevice> {
    base: Base<T>,
    batch: Mutex<Option<Batch<T>>>,
}

/// The family of [`Resident`].
enum Residents {}

impl Family for Residents {
    type Of<T: OnDevice> = Resident<T>;
}

impl OnGpu {
    /// Copies index and base to the device. With `codes`, searches walk on them; the vectors
    /// themselves follow if they fit.
    pub(super) fn new(
        gpu: Gpu,
        vectors: &Space<'_>,
        index: &Index,
        codes: Option<(&Arc<Coded>, &Space<'_>)>,
    ) -> Result<Self> {
        let space = codes.map_or(vectors, |(_, codes)| codes);
        let (n, degree, entries) = (index.len(), index.max_degree(), index.entries());
        if n as u64 >= key::MAX_NODES {
            let expected = format!("fewer than {} on a GPU", key::MAX_NODES);
            return Err(Error::mismatch("base", format_args!("{n} rows"), expected));
        }
        let memory = MemoryPlan::new()
            .with::<u32>("edges", n * degree)
            .with::<u32>("entries", entries.len())
            .with::<u8>("rows", n * space.device_row_bytes());
        let layers = index.layers().iter().rev();
        let memory = layers.clone().fold(memory, |all, layer| all.and(&LayerOnGpu::plan(n, layer)));
        let memory = memory.reserve(&gpu)?;
        let mut edges: Buffer<u32> = memory.buffer("edges")?;
        edges.upload(index.padded_rows()?)?;
        let mut entry_buffer: Buffer<u32> = memory.buffer("entries")?;
        entry_buffer.upload(entries)?;
        let layers = layers.map(|layer| LayerOnGpu::new(&gpu, n, layer)).collect::<Result<_>>()?;
        let base = with_typed!(AnyOrigin::of_space(&gpu, space)?, rows => {
            OnDevice::wrap(Resident::new(Base::upload(&gpu, space, &rows)?))
        });
        let floats = floats(&base, space.vectors().element_type());
        let full = codes.map(|(coded, _)| {
            Ok(FullOnGpu { coded: Arc::clone(coded), rows: FullRows::new(&gpu, vectors)? })
        });
        let (full, second_stream) = (full.transpose()?, OnceLock::new());
        let (entries, edge_codes) = (entry_buffer, None);
        Ok(Self { degree, edges, entries, layers, base, floats, full, edge_codes, gpu, second_stream })
    }

    /// Makes the codes of edges that later searches walk on.
    fn code_edges(mut self, codes: &EdgeCodes, metric: Metric) -> Result<Self> {
        let graph = EdgeRows { ids: &self.edges, nodes: self.edges.len() / self.degree, degree: self.degree };
        let there = with_typed!(&self.base, rows => {
            EdgeCodesOnGpu::new(&self.gpu, codes, &rows.base, graph, metric)?
        });
        self.edge_codes = Some(there);
        Ok(self)
    }

    /// Begins later searches at `start`, of an index of `nodes` nodes.
    fn start(&mut self, nodes: usize, start: Start<'_>) -> Result<()> {
        self.entries = self.gpu.buffer("entries", start.entries.len())?;
        self.entries.upload(start.entries)?;
        let layers = start.layers.iter().rev().map(|layer| LayerOnGpu::new(&self.gpu, nodes, layer));
        self.layers = layers.collect::<Result<_>>()?;
        Ok(())
    }

    /// The same for `index`, which is this one with more rows: its row i is row `places[i]` here.
    /// None if the device has no room for both.
    pub(super) fn expanded(mut self, index: &Index, places: &[u32]) -> Result<Option<Self>> {
        let gpu = &self.gpu;
        let row_bytes = with_typed!(&self.base, rows => rows.base.row_bytes());
        // Also the lift and the place of a row.
        let n = places.len();
        let memory = MemoryPlan::new()
            .with::<u8>("rows", n * (row_bytes + 2 * size_of::<u32>()))
            .with::<u32>("edges", n * self.degree);
        let layers = index.layers().iter().map(|layer| LayerOnGpu::plan(n, layer));
        if layers.fold(memory, |all, layer| all.and(&layer)).bytes() > gpu.free_memory()? {
            return Ok(None);
        }
        self.base = with_typed!(&self.base, rows => {
            OnDevice::wrap(Resident::new(rows.base.select(gpu, places)?))
        });
        self.floats = self.floats.map(|_| OnceLock::new());
        self.edges = gpu.buffer("edges", n * self.degree)?;
        self.edges.upload(index.padded_rows()?)?;
        self.start(n, index.start())?;
        Ok(Some(self))
    }

    /// The rows of the base as copies read them.
    pub(in crate::search) fn rows(&self) -> AnyOrigin<'_> {
        with_typed!(&self.base, rows => OnDevice::wrap(rows.base.origin()))
    }

    pub(in crate::search) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Whether the vectors themselves are what searches walk on, not codes of them.
    pub(in crate::search) fn holds_vectors(&self) -> bool {
        self.full.is_none()
    }

    pub(in crate::search) fn holds_bytes(&self) -> bool {
        matches!(self.base, Typed::U8(_) | Typed::I8(_))
    }

    /// The rows of a base of f32 values that are bytes, as bytes.
    pub(in crate::search) fn bytes_of_floats(&self) -> Option<Origin<'_, u8>> {
        match (&self.base, &self.floats) {
            (Typed::U8(bytes), Some(_)) => Some(bytes.base.origin()),
            _ => None,
        }
    }

    /// The rows of the base, of its type.
    ///
    /// # Errors
    /// If the device lacks memory for them or fails.
    pub(in crate::search) fn rows_as_given(&self, space: &Space<'_>) -> Result<AnyOrigin<'_>> {
        match &self.floats {
            Some(floats) => Ok(OnDevice::wrap(self.floats(space, floats)?.base.origin())),
            None => Ok(self.rows()),
        }
    }

    /// Whether searches may begin with [early queries](Space::early_queries): not if codes are made
    /// of them here, nor after queries that were expected to be bytes and were not. The next are
    /// probably like them, and would be searched for twice.
    pub(super) fn takes_early(&self) -> bool {
        self.full.is_none() && self.floats.as_ref().is_none_or(|floats| floats.get().is_none())
    }

    /// Whether it takes [early queries](Space::early_queries) for bytes.
    pub(super) fn expects_bytes(&self) -> bool {
        self.floats.is_some()
    }

    /// A second stream on the device, unordered with that of searches.
    ///
    /// # Errors
    /// If the device fails.
    pub(super) fn second_stream(&self) -> Result<&Gpu> {
        if let Some(gpu) = self.second_stream.get() {
            return Ok(gpu);
        }
        let gpu = self.gpu.fork()?;
        Ok(self.second_stream.get_or_init(|| gpu))
    }

    /// Waits for all searches.
    pub(super) fn synchronize(&self) -> Result<()> {
        self.gpu.synchronize()
    }

    /// Finds the nearest keys of each query; equal to those of the CPU at width 1. Returns before
    /// keys that stay on the device are there.
    pub(super) fn search(
        &self,
        space: &Space<'_>,
        queries: &Queries<'_>,
        limits: BatchLimits<'_>,
        to: KeysTo<'_>,
        stage: &StageProgress<'_>,
    ) -> Result<Work> {
        self.check(space, limits)?;
        let (dim, metric) = (space.dim(), space.metric());
        if let Some(FullOnGpu { coded, rows }) = &self.full {
            let codes = coded.queries(queries, &self.gpu, &Progress::silent())?;
            let asked = Asked { count: codes.len(), nodes: None, zero: &[] };
            let reranking = Some(&Reranking { rows, space, queries });
            let task = Task { on_gpu: self, dim, metric: coded.metric(), asked, limits, stage, reranking };
            let work = with_typed!(&self.base, base => {
                task.run(base, &Origin::new(&self.gpu, codes.vectors())?, to)
            })?;
            return Ok(Work { not_held: coded.not_held(&codes)?, ..work });
        }
        let asked = Asked { count: queries.len(), nodes: None, zero: queries.zero() };
        let task = Task { on_gpu: self, dim, metric, asked, limits, stage, reranking: None };
        let (gpu, vectors) = (&self.gpu, queries.vectors());
        match (&self.base, &self.floats) {
            (Typed::U8(bytes), Some(floats)) => match narrowed(gpu, vectors, queries.are_early())? {
                Some(rows) => task.run(bytes, &rows, to),
                None => task.run(self.floats(space, floats)?, &Origin::new(gpu, vectors)?, to),
            },
            (base, _) => with_typed!(base, base => task.run(base, &Origin::new(gpu, vectors)?, to)),
        }
    }

    /// Checks the limits of a search.
    fn check(&self, space: &Space<'_>, limits: BatchLimits<'_>) -> Result<()> {
        let Breadth { beam, kept, .. } = limits.breadth;
        if kept > MAX_BEAM {
            return Err(Error::argument("beam", beam, format_args!("at most {MAX_BEAM} on a GPU")));
        }
        if let Err((degree, bytes)) = self.check_slots(space, limits) {
            let allowed = self.gpu.shared_memory();
            return Err(self.gpu.error(format_args!(
                "search: requested {bytes} bytes of shared memory for degree {degree} and width {}, allowed {allowed} bytes: lower the width, or search on the CPU",
                limits.width
            )));
        }
        Ok(())
    }

    /// Checks that searches of the index and its layers fit the shared memory of a block.
    ///
    /// # Errors
    /// If they do not fit: the degree of the rows, and the bytes needed.
    fn check_slots(
        &self,
        space: &Space<'_>,
        limits: BatchLimits<'_>,
    ) -> std::result::Result<(), (usize, u64)> {
        let (dim, is_among) = (space.dim(), limits.among.is_some());
        let of_layer = |layer: &LayerOnGpu| self.shape_of_layer(layer, dim, space.metric(), limits);
        let BatchLimits { breadth, width, .. } = limits;
        let of_index = BeamShape { dim, degree: self.degree, breadth, width, is_among };
        self.layers.iter().map(of_layer).chain([of_index]).try_for_each(|shape| {
            shape.slots(self.gpu.shared_memory()).map(drop).map_err(|bytes| (shape.degree, bytes))
        })
    }

    /// The shape of searches of a layer: as wide as those of the index, if there is no filter and
    /// they fit.
    fn shape_of_layer(
        &self,
        layer: &LayerOnGpu,
        dim: usize,
        metric: Metric,
        limits: BatchLimits<'_>,
    ) -> BeamShape {
        let (breadth, is_among) = (Breadth::of_layer(layer.beam, metric), limits.among.is_some());
        let narrow = BeamShape { dim, degree: layer.degree, breadth, width: 1, is_among };
        let wide = BeamShape { width: limits.width, ..narrow };
        if is_among || wide.slots(self.gpu.shared_memory()).is_err() { narrow } else { wide }
    }

    /// Whether the device can search with these parameters.
    pub(super) fn supports(&self, space: &Space<'_>, limits: BatchLimits<'_>) -> bool {
        limits.breadth.kept <= MAX_BEAM && self.check_slots(space, limits).is_ok()
    }

    /// The base as f32, copied to the device on first use.
    fn floats<'a>(
        &self,
        space: &Space<'_>,
        floats: &'a OnceLock<Box<Resident<f32>>>,
    ) -> Result<&'a Resident<f32>> {
        if let Some(base) = floats.get() {
            return Ok(base);
        }
        let base = Base::upload(&self.gpu, space, &Origin::new(&self.gpu, space.vectors())?)?;
        Ok(floats.get_or_init(|| Box::new(Resident::new(base))))
    }
}

impl<T: OnDevice> Resident<T> {
    fn new(base: Base<T>) -> Self {
        Self { base, batch: Mutex::default() }
    }
}

/// A place for the f32 values of a base in bytes whose vectors are of type `element`, if that is
/// f32.
fn floats(base: &Typed<Residents>, element: ElementType) -> Option<OnceLock<Box<Resident<f32>>>> {
    (element == ElementType::F32 && matches!(base, Typed::U8(_))).then(OnceLock::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_depends_on_the_device() {
        let shape = |dim, degree, beam, width| {
            let breadth = Breadth::fixed(beam);
            BeamShape { dim, degree, breadth, width, is_among: false }
        };
        let large = |width, shared| shape(4096, 512, MAX_BEAM, width).slots(shared);
        assert_eq!((large(4, 101_376), large(8, 232_448)), (Ok(8192), Ok(32_768)));
        assert!(large(8, 101_376).unwrap_err() > 101_376);
        // Usual shapes do not depend on the device.
        for shared in [101_376, 232_448] {
            assert_eq!(shape(128, 32, 64, 1).slots(shared), Ok(1024));
        }
        // An index of another system may have longer rows.
        let bytes = shape(128, 4096, 64, 8).slots(101_376).unwrap_err();
        assert!(bytes > 400_000, "{bytes}");
        assert!(shape(128, 1 << 24, 64, 8).slots(232_448).unwrap_err() > 1 << 30);
        assert!(shape(128, 4096, 64, 1).slots(101_376).is_ok());
    }
}
