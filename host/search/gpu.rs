//! Beam search on a GPU (`device/src/search/beam/`): index and base are copied to it once, for any number of batches.

use std::sync::{Mutex, OnceLock, PoisonError};

use cuda_std::f16;
use cuda_std::launch::Kernel;
use tagore_device::block::rows;
use tagore_device::descent::key::{self, Key};
use tagore_device::search::beam::search::{
    SEARCH_COUNTERS, Search, beam_search_64_f16, beam_search_64_f32, beam_search_64_i8, beam_search_64_u8,
    beam_search_128_f16, beam_search_128_f32, beam_search_128_i8, beam_search_128_u8, beam_search_256_f16,
    beam_search_256_f32, beam_search_256_i8, beam_search_256_u8, beam_search_512_f16, beam_search_512_f32,
    beam_search_512_i8, beam_search_512_u8, beam_search_layer_f16, beam_search_layer_f32,
    beam_search_layer_i8, beam_search_layer_u8, search_shared_bytes, table_slots,
};
use tagore_device::search::beam::walk::{Graph, Walk, least_slots, step_ids};

use crate::gpu::{Buffer, Gpu, KernelTime, MemoryPlan};
use crate::index::{Index, Layer};
use crate::vectors::gpu::{Base, OnDevice, as_bytes, bytes_of, metric_number, stage_kernels, stride};
use crate::vectors::space::{Queries, Space};
use crate::vectors::{Matrix, TypedRows};
use crate::{Error, Progress, Result};

stage_kernels! {
    /// Kernels of beam search: of beams of up to 64 to 512 nodes, and of layers.
    pub(crate) trait BeamKernels {
        Beam64 (Search<Self>,):
            beam_search_64_f32 beam_search_64_f16 beam_search_64_u8 beam_search_64_i8;
        Beam128 (Search<Self>,):
            beam_search_128_f32 beam_search_128_f16 beam_search_128_u8 beam_search_128_i8;
        Beam256 (Search<Self>,):
            beam_search_256_f32 beam_search_256_f16 beam_search_256_u8 beam_search_256_i8;
        Beam512 (Search<Self>,):
            beam_search_512_f32 beam_search_512_f16 beam_search_512_u8 beam_search_512_i8;
        BeamLayer (Search<Self>,):
            beam_search_layer_f32 beam_search_layer_f16 beam_search_layer_u8 beam_search_layer_i8;
    }
}

/// The widest beam: it lies in the registers of a warp.
pub(crate) const MAX_BEAM: usize = 512;

/// What is searched for, and how.
#[derive(Clone, Copy)]
pub(super) struct BatchLimits {
    /// Keys per query.
    pub k: usize,
    /// Nodes of the beam.
    pub beam: usize,
    /// Nodes expanded in a step.
    pub width: usize,
    /// Queries on the device at a time.
    pub batch: usize,
}

/// The most ids of a step: for more no block has room.
const MAX_STEP_IDS: usize = 1 << 16;

/// Slots of a search's table, where a block may have `shared` bytes: the fewest may not fit either.
///
/// # Errors
/// The bytes that the search needs at least.
pub(crate) fn slots(
    shared: u32,
    (dim, degree): (usize, usize),
    (beam, width): (usize, usize),
) -> std::result::Result<u32, u64> {
    if degree.saturating_mul(width) > MAX_STEP_IDS {
        // Of the ids and their keys alone.
        return Err((degree as u64).saturating_mul(width as u64).saturating_mul(12));
    }
    let (dim, degree, beam, width) = (dim as u32, degree as u32, beam as u32, width as u32);
    let ids = step_ids(degree, width);
    let bytes = |slots: &u32| search_shared_bytes(dim, degree, width, *slots);
    let least = least_slots(beam, ids);
    let fits = |slots: &u32| bytes(slots) <= shared;
    [table_slots(beam, ids), least].into_iter().find(fits).ok_or_else(|| bytes(&least).into())
}

/// An index and its base on a device.
pub(super) struct OnGpu {
    gpu: Gpu,
    degree: usize,
    edges: Buffer<u32>,
    entry_count: usize,
    entries: Buffer<u32>,
    /// The highest first.
    layers: Vec<LayerOnGpu>,
    base: AnyBase,
}

/// A layer of an index on a device.
struct LayerOnGpu {
    degree: usize,
    beam: usize,
    edges: Buffer<u32>,
    /// The row of each node of the index that is one of the layer.
    places: Buffer<u32>,
}

impl LayerOnGpu {
    /// What a layer of an index of `n` nodes takes.
    fn plan(n: usize, layer: &Layer) -> MemoryPlan {
        MemoryPlan::new().with::<u32>("layer edges", layer.padded_rows().len()).with::<u32>("layer places", n)
    }

    fn new(gpu: &Gpu, n: usize, layer: &Layer) -> Result<Self> {
        let memory = Self::plan(n, layer).reserve(gpu)?;
        let mut edges: Buffer<u32> = memory.buffer("layer edges")?;
        edges.upload(layer.padded_rows())?;
        let mut of_nodes = vec![u32::MAX; n];
        for (&node, place) in layer.nodes().iter().zip(0..) {
            of_nodes[node as usize] = place;
        }
        let mut places: Buffer<u32> = memory.buffer("layer places")?;
        places.upload(&of_nodes)?;
        Ok(Self { degree: layer.max_degree(), beam: layer.beam(), edges, places })
    }
}

/// The graph of one launch.
struct Stage<'a> {
    edges: &'a Buffer<u32>,
    /// Where rows lie, of a graph over some of the nodes.
    places: Option<&'a Buffer<u32>>,
    degree: usize,
}

/// Where the searches of one launch begin.
enum Entries<'a> {
    /// All at the same nodes.
    Same(&'a Buffer<u32>, usize),
    /// Each search at the nodes, this many, that the launch before found for it.
    Found(&'a Buffer<Key>, usize),
}

/// The base in its element type.
enum AnyBase {
    F32(Resident<f32>),
    F16(Resident<f16>),
    U8(Resident<u8>),
    I8(Resident<i8>),
    /// f32 that are whole numbers from 0 to 255, as bytes; and as they are, once there is a query that is of others.
    Whole(Resident<u8>, OnceLock<Box<Resident<f32>>>),
}

/// The base, and memory for queries that is kept from one batch to the next.
struct Resident<T: OnDevice> {
    base: Base<T>,
    batch: Mutex<Option<Batch<T>>>,
}

/// Memory for up to `capacity` queries of `k` results.
struct Batch<T> {
    capacity: usize,
    k: usize,
    queries: Buffer<T>,
    lifts: Buffer<f32>,
    found: Buffer<Key>,
    /// What searches of two layers found, in turn.
    in_layers: [Buffer<Key>; 2],
    computed: Buffer<u64>,
}

impl<T: OnDevice> Batch<T> {
    /// For searches that bring up to `brought` nodes from one layer to the next.
    fn new(gpu: &Gpu, capacity: usize, dim: usize, k: usize, brought: usize) -> Result<Self> {
        let memory = MemoryPlan::new()
            .with::<T>("queries", capacity * stride::<T>(dim))
            .with::<f32>("query lifts", capacity)
            .with::<Key>("found", capacity * k)
            .with::<Key>("found in a layer", capacity * brought)
            .with::<Key>("found in the next layer", capacity * brought)
            .with::<u64>("computed", SEARCH_COUNTERS as usize)
            .reserve(gpu)?;
        Ok(Self {
            capacity,
            k,
            queries: memory.buffer("queries")?,
            lifts: memory.buffer("query lifts")?,
            found: memory.buffer("found")?,
            in_layers: [memory.buffer("found in a layer")?, memory.buffer("found in the next layer")?],
            computed: memory.buffer("computed")?,
        })
    }
}

/// Keys found, distances computed, and the times of the kernels.
type Found = (Vec<Key>, u64, Vec<KernelTime>);

impl OnGpu {
    /// Copies index and base to the device.
    pub(super) fn new(gpu: Gpu, space: &Space<'_>, index: &Index) -> Result<Self> {
        let (n, degree, entries) = (index.len(), index.max_degree(), index.entries());
        if n as u64 >= key::MAX_NODES {
            let expected = format!("fewer than {} on a GPU", key::MAX_NODES);
            return Err(Error::mismatch("base", format_args!("{n} rows"), expected));
        }
        let memory = MemoryPlan::new()
            .with::<u32>("edges", n * degree)
            .with::<u32>("entries", entries.len())
            .with::<u8>("rows", n * space.row_bytes());
        let layers = index.layers().iter().rev();
        let memory = layers.clone().fold(memory, |all, layer| all.and(&LayerOnGpu::plan(n, layer)));
        let memory = memory.reserve(&gpu)?;
        let mut edges: Buffer<u32> = memory.buffer("edges")?;
        edges.upload(index.padded_rows()?)?;
        let mut entries_there: Buffer<u32> = memory.buffer("entries")?;
        entries_there.upload(entries)?;
        let layers = layers.map(|layer| LayerOnGpu::new(&gpu, n, layer)).collect::<Result<_>>()?;
        let base = match space.rows() {
            TypedRows::F32(rows) => match bytes_of(space, rows) {
                Some(bytes) => {
                    let rows = Matrix::new(&bytes, space.dim(), space.dim());
                    AnyBase::Whole(Resident::new(&gpu, space, rows)?, OnceLock::new())
                }
                None => AnyBase::F32(Resident::new(&gpu, space, rows)?),
            },
            TypedRows::F16(rows) => AnyBase::F16(Resident::new(&gpu, space, rows)?),
            TypedRows::U8(rows) => AnyBase::U8(Resident::new(&gpu, space, rows)?),
            TypedRows::I8(rows) => AnyBase::I8(Resident::new(&gpu, space, rows)?),
        };
        Ok(Self { gpu, degree, edges, entry_count: entries.len(), entries: entries_there, layers, base })
    }

    /// The device.
    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The nearest keys of each query: those of the CPU, if a step expands one node.
    pub(super) fn search(
        &self,
        space: &Space<'_>,
        queries: &Queries<'_>,
        limits: BatchLimits,
        progress: &Progress,
    ) -> Result<Found> {
        let beam = limits.beam;
        if beam > MAX_BEAM {
            return Err(Error::argument("beam", beam, format_args!("at most {MAX_BEAM} on a GPU")));
        }
        if let Err((degree, bytes)) = self.check_slots(space, limits) {
            let allowed = self.gpu.shared_memory();
            return Err(self.gpu.error(format_args!(
                "search: requested {bytes} bytes of shared memory for degree {degree} and width {}, allowed {allowed} bytes: lower the width, or search on the CPU",
                limits.width
            )));
        }
        let task = Task { on_gpu: self, space, queries, limits, progress };
        match (&self.base, queries.rows()) {
            (AnyBase::F32(base), TypedRows::F32(rows)) => task.run(base, rows),
            (AnyBase::F16(base), TypedRows::F16(rows)) => task.run(base, rows),
            (AnyBase::U8(base), TypedRows::U8(rows)) => task.run(base, rows),
            (AnyBase::I8(base), TypedRows::I8(rows)) => task.run(base, rows),
            (AnyBase::Whole(bytes, floats), TypedRows::F32(rows)) => match as_bytes(rows, queries.len()) {
                Some(values) => task.run(bytes, Matrix::new(&values, space.dim(), space.dim())),
                None => task.run(self.floats(space, floats)?, rows),
            },
            _ => unreachable!("queries are cast to the element type of the base"),
        }
    }

    fn slots(
        &self,
        space: &Space<'_>,
        degree: usize,
        (beam, width): (usize, usize),
    ) -> std::result::Result<u32, u64> {
        slots(self.gpu.shared_memory(), (space.dim(), degree), (beam, width))
    }

    /// Whether blocks have room for the rows of the index and of its layers: else a degree, and the
    /// bytes that it needs.
    fn check_slots(&self, space: &Space<'_>, limits: BatchLimits) -> std::result::Result<(), (usize, u64)> {
        let of_layers = self.layers.iter().map(|layer| (layer.degree, layer.beam, 1));
        let all = of_layers.chain([(self.degree, limits.beam, limits.width)]);
        all.into_iter().try_for_each(|(degree, beam, width)| {
            self.slots(space, degree, (beam, width)).map(drop).map_err(|bytes| (degree, bytes))
        })
    }

    /// Whether the device can search so.
    pub(super) fn can(&self, space: &Space<'_>, limits: BatchLimits) -> bool {
        limits.beam <= MAX_BEAM && self.check_slots(space, limits).is_ok()
    }

    /// The base as it was given; it is copied when it is first asked for.
    fn floats<'a>(
        &self,
        space: &Space<'_>,
        floats: &'a OnceLock<Box<Resident<f32>>>,
    ) -> Result<&'a Resident<f32>> {
        if let Some(base) = floats.get() {
            return Ok(base);
        }
        let TypedRows::F32(rows) = space.rows() else { unreachable!("only floats are held as bytes") };
        let base = Resident::new(&self.gpu, space, rows)?;
        Ok(floats.get_or_init(|| Box::new(base)))
    }
}

impl<T: OnDevice> Resident<T> {
    fn new(gpu: &Gpu, space: &Space<'_>, rows: Matrix<'_, T>) -> Result<Self> {
        Ok(Self { base: Base::upload(gpu, space, rows)?, batch: Mutex::default() })
    }
}

/// A search of queries.
struct Task<'a> {
    on_gpu: &'a OnGpu,
    space: &'a Space<'a>,
    queries: &'a Queries<'a>,
    limits: BatchLimits,
    progress: &'a Progress,
}

impl Task<'_> {
    fn run<T: BeamKernels>(&self, resident: &Resident<T>, rows: Matrix<'_, T>) -> Result<Found> {
        match self.limits.beam {
            0..=64 => self.run_with::<T, T::Beam64>(resident, rows),
            65..=128 => self.run_with::<T, T::Beam128>(resident, rows),
            129..=256 => self.run_with::<T, T::Beam256>(resident, rows),
            _ => self.run_with::<T, T::Beam512>(resident, rows),
        }
    }

    fn run_with<T: BeamKernels, K: Kernel<Arguments = (Search<T>,)>>(
        &self,
        resident: &Resident<T>,
        rows: Matrix<'_, T>,
    ) -> Result<Found> {
        let (gpu, dim) = (&self.on_gpu.gpu, self.space.dim());
        let BatchLimits { k, batch: at_once, .. } = self.limits;
        let mut keys = vec![key::NONE; self.queries.len() * k];
        if keys.is_empty() {
            return Ok((keys, 0, Vec::new()));
        }
        let stage = self.progress.stage("search", self.queries.len() as u64);
        // Held from here on: another search of this base waits.
        let mut kept = resident.batch.lock().unwrap_or_else(PoisonError::into_inner);
        let capacity = self.queries.len().min(at_once);
        let batch = match kept.take() {
            Some(batch) if batch.capacity >= capacity && batch.k >= k => kept.insert(batch),
            _ => {
                let brought = self.on_gpu.layers.iter().map(|layer| layer.beam).max().unwrap_or(0);
                kept.insert(Batch::new(gpu, capacity, dim, k, brought)?)
            }
        };
        let measurement = gpu.measure()?;
        let mut total = 0;
        for (first, keys) in (0..).step_by(at_once).zip(keys.chunks_mut(at_once * k)) {
            let count = keys.len() / k;
            batch.queries.upload_rows(count, stride::<T>(dim), |query| rows.row(first + query))?;
            let zero = self.queries.zero();
            if !zero.is_empty() {
                let lifts: Vec<f32> =
                    zero[first..][..count].iter().map(|&zero| if zero { -1.0 } else { 0.0 }).collect();
                batch.lifts.upload(&lifts)?;
            }
            batch.computed.fill(0)?;
            self.launch::<T, K>(&resident.base, batch, count)?;
            batch.found.download(keys)?;
            let mut computed = [0; SEARCH_COUNTERS as usize];
            batch.computed.download(&mut computed)?;
            let computed: u64 = computed.iter().sum();
            // The rows at least; of the edges it is not known how many were followed.
            gpu.count_work::<K>(computed * (stride::<T>(dim) * size_of::<T>()) as u64, 0);
            total += computed;
            stage.advance(count as u64)?;
        }
        Ok((keys, total, measurement.end()?.kernels))
    }

    /// Searches layer after layer, and the index last.
    fn launch<T: BeamKernels, K: Kernel<Arguments = (Search<T>,)>>(
        &self,
        base: &Base<T>,
        batch: &mut Batch<T>,
        count: usize,
    ) -> Result<()> {
        let OnGpu { degree, edges, entry_count, entries, layers, .. } = self.on_gpu;
        let BatchLimits { k, beam, width, .. } = self.limits;
        let Batch { queries, lifts, found, in_layers: [here, next], computed, .. } = batch;
        let (mut here, mut next) = (here, next);
        let mut from = Entries::Same(entries, *entry_count);
        for layer in layers {
            let LayerOnGpu { degree, beam, ref edges, ref places } = *layer;
            let stage = Stage { edges, places: Some(places), degree };
            let limits = BatchLimits { k: beam, beam, width: 1, ..self.limits };
            let points = (&*queries, &*lifts);
            self.launch_stage::<T, T::BeamLayer>(
                base,
                &stage,
                &from,
                limits,
                points,
                (here, computed),
                count,
            )?;
            (here, next) = (next, here);
            from = Entries::Found(next, beam);
        }
        let stage = Stage { edges, places: None, degree: *degree };
        let limits = BatchLimits { k, beam, width, ..self.limits };
        self.launch_stage::<T, K>(base, &stage, &from, limits, (queries, lifts), (found, computed), count)
    }

    #[expect(clippy::too_many_arguments, reason = "a launch has as many")]
    fn launch_stage<T: BeamKernels, K: Kernel<Arguments = (Search<T>,)>>(
        &self,
        base: &Base<T>,
        stage: &Stage<'_>,
        from: &Entries<'_>,
        limits: BatchLimits,
        (queries, lifts): (&Buffer<T>, &Buffer<f32>),
        (found, computed): (&mut Buffer<Key>, &mut Buffer<u64>),
        count: usize,
    ) -> Result<()> {
        let gpu = &self.on_gpu.gpu;
        let slots = self.on_gpu.slots(self.space, stage.degree, (limits.beam, limits.width));
        let slots =
            slots.map_err(|bytes| gpu.error(format_args!("search: {bytes} bytes of shared memory")))?;
        let dim = self.space.dim();
        let (entries, entry_count, entry_stride, entry_shift) = match *from {
            Entries::Same(entries, count) => (entries.view(), count, 0, 0),
            // The ids are the low words of the keys.
            Entries::Found(keys, count) => (keys.view().cast(), count, count, 1),
        };
        let ids = stage.edges.view();
        let search = Search {
            walk: Walk {
                base: base.rows(),
                graph: Graph {
                    ids,
                    places: stage.places.map_or(ids, Buffer::view),
                    degree: stage.degree as u32,
                    shift: 0,
                },
                entries,
                entry_count: entry_count as u32,
                entry_stride: entry_stride as u32,
                entry_shift,
                beam: limits.beam as u32,
                width: limits.width as u32,
                expansions: u32::MAX,
                slots,
                metric: metric_number(self.space.metric()),
            },
            queries: rows::Rows {
                values: queries.view(),
                lifts: lifts.view(),
                stride: stride::<T>(dim) as u32,
                dim: dim as u32,
                lifted: u32::from(!self.queries.zero().is_empty()),
                square: -1.0,
            },
            found: found.view_mut(),
            computed: computed.view_mut(),
            k: limits.k as u32,
            padding: 0,
        };
        // SAFETY: ids have been checked to be rows of the base or nodes of a layer, as have the
        // entries; the batch has room for `count` queries; all buffers outlive the work, which the
        // download of what it found waits for.
        unsafe { gpu.launch::<K>([count as u32, 1, 1], 32 * limits.width as u32, (search,)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_chosen_by_the_device() {
        let largest = |shared| slots(shared, (4096, 512), (MAX_BEAM, 8));
        assert_eq!((largest(101_376), largest(232_448)), (Ok(8192), Ok(16_384)));
        // What is usual does not depend on it.
        for shared in [101_376, 232_448] {
            assert_eq!(slots(shared, (128, 32), (64, 1)), Ok(1024));
        }
        // An index of another system may have longer rows.
        let bytes = slots(101_376, (128, 4096), (64, 8)).unwrap_err();
        assert!(bytes > 400_000, "{bytes}");
        assert!(slots(232_448, (128, 1 << 24), (64, 8)).unwrap_err() > 1 << 30);
        assert!(slots(101_376, (128, 4096), (64, 1)).is_ok());
    }
}
