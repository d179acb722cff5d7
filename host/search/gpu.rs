//! Beam search on a GPU (`device/src/search/beam/`): index and base are copied to it once, for any number of batches.

use std::sync::{Mutex, OnceLock, PoisonError};

use cuda_std::f16;
use cuda_std::launch::Kernel;
use tagore_device::block::rows;
use tagore_device::descent::key::{self, Key};
use tagore_device::search::beam::search::{SEARCH_COUNTERS, Search, search_shared_bytes, table_slots};
use tagore_device::search::beam::walk::{Graph, Walk, least_slots, step_ids};

use crate::gpu::{Buffer, Gpu, KernelTime, Plan};
use crate::index::Index;
use crate::vectors::gpu::Base;
use crate::vectors::gpu::{OnDevice, as_bytes, bytes_of, metric_number, stride};
use crate::vectors::space::{Queries, Space};
use crate::vectors::{Matrix, Rows};
use crate::{Error, Progress, Result};

/// The widest beam: it lies in the registers of a warp.
pub(crate) const MAX_BEAM: usize = 512;

/// What is searched for, and how.
#[derive(Clone, Copy)]
pub(super) struct Limits {
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
    base: AnyBase,
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
    computed: Buffer<u64>,
}

impl<T: OnDevice> Batch<T> {
    fn new(gpu: &Gpu, capacity: usize, dim: usize, k: usize) -> Result<Self> {
        let memory = Plan::new()
            .with::<T>("queries", capacity * stride::<T>(dim))
            .with::<f32>("query lifts", capacity)
            .with::<Key>("found", capacity * k)
            .with::<u64>("computed", SEARCH_COUNTERS as usize)
            .reserve(gpu)?;
        Ok(Self {
            capacity,
            k,
            queries: memory.buffer("queries")?,
            lifts: memory.buffer("query lifts")?,
            found: memory.buffer("found")?,
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
        let memory = Plan::new()
            .with::<u32>("edges", n * degree)
            .with::<u32>("entries", entries.len())
            .with::<u8>("rows", n * space.row_bytes())
            .reserve(&gpu)?;
        let mut edges: Buffer<u32> = memory.buffer("edges")?;
        edges.upload(index.padded_rows()?)?;
        let mut entries_there: Buffer<u32> = memory.buffer("entries")?;
        entries_there.upload(entries)?;
        let base = match space.rows() {
            Rows::F32(rows) => match bytes_of(space, rows) {
                Some(bytes) => {
                    let rows = Matrix::new(&bytes, space.dim(), space.dim());
                    AnyBase::Whole(Resident::new(&gpu, space, rows)?, OnceLock::new())
                }
                None => AnyBase::F32(Resident::new(&gpu, space, rows)?),
            },
            Rows::F16(rows) => AnyBase::F16(Resident::new(&gpu, space, rows)?),
            Rows::U8(rows) => AnyBase::U8(Resident::new(&gpu, space, rows)?),
            Rows::I8(rows) => AnyBase::I8(Resident::new(&gpu, space, rows)?),
        };
        Ok(Self { gpu, degree, edges, entry_count: entries.len(), entries: entries_there, base })
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
        limits: Limits,
        progress: &Progress,
    ) -> Result<Found> {
        let beam = limits.beam;
        if beam > MAX_BEAM {
            return Err(Error::argument("beam", beam, format_args!("at most {MAX_BEAM} on a GPU")));
        }
        if let Err(bytes) = self.slots(space, limits) {
            let allowed = self.gpu.shared_memory();
            return Err(self.gpu.error(format_args!(
                "search: requested {bytes} bytes of shared memory for degree {} and width {}, allowed {allowed} bytes: lower the width, or search on the CPU",
                self.degree, limits.width
            )));
        }
        let task = Task { on_gpu: self, space, queries, limits, progress };
        match (&self.base, queries.rows()) {
            (AnyBase::F32(base), Rows::F32(rows)) => task.run(base, rows),
            (AnyBase::F16(base), Rows::F16(rows)) => task.run(base, rows),
            (AnyBase::U8(base), Rows::U8(rows)) => task.run(base, rows),
            (AnyBase::I8(base), Rows::I8(rows)) => task.run(base, rows),
            (AnyBase::Whole(bytes, floats), Rows::F32(rows)) => match as_bytes(rows, queries.len()) {
                Some(values) => task.run(bytes, Matrix::new(&values, space.dim(), space.dim())),
                None => task.run(self.floats(space, floats)?, rows),
            },
            _ => unreachable!("queries are cast to the element type of the base"),
        }
    }

    fn slots(&self, space: &Space<'_>, limits: Limits) -> std::result::Result<u32, u64> {
        slots(self.gpu.shared_memory(), (space.dim(), self.degree), (limits.beam, limits.width))
    }

    /// Whether the device can search so.
    pub(super) fn can(&self, space: &Space<'_>, limits: Limits) -> bool {
        limits.beam <= MAX_BEAM && self.slots(space, limits).is_ok()
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
        let Rows::F32(rows) = space.rows() else { unreachable!("only floats are held as bytes") };
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
    limits: Limits,
    progress: &'a Progress,
}

impl Task<'_> {
    fn run<T: OnDevice>(&self, resident: &Resident<T>, rows: Matrix<'_, T>) -> Result<Found> {
        match self.limits.beam {
            0..=64 => self.run_with::<T, T::Beam64>(resident, rows),
            65..=128 => self.run_with::<T, T::Beam128>(resident, rows),
            129..=256 => self.run_with::<T, T::Beam256>(resident, rows),
            _ => self.run_with::<T, T::Beam512>(resident, rows),
        }
    }

    fn run_with<T: OnDevice, K: Kernel<Arguments = (Search<T>,)>>(
        &self,
        resident: &Resident<T>,
        rows: Matrix<'_, T>,
    ) -> Result<Found> {
        let (gpu, dim) = (&self.on_gpu.gpu, self.space.dim());
        let Limits { k, batch: at_once, .. } = self.limits;
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
            _ => kept.insert(Batch::new(gpu, capacity, dim, k)?),
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

    fn launch<T: OnDevice, K: Kernel<Arguments = (Search<T>,)>>(
        &self,
        base: &Base<T>,
        batch: &mut Batch<T>,
        count: usize,
    ) -> Result<()> {
        let OnGpu { gpu, degree, edges, entry_count, entries, .. } = self.on_gpu;
        let Limits { k, beam, width, .. } = self.limits;
        let slots = self.on_gpu.slots(self.space, self.limits);
        let slots =
            slots.map_err(|bytes| gpu.error(format_args!("search: {bytes} bytes of shared memory")))?;
        let (degree, beam, width) = (*degree as u32, beam as u32, width as u32);
        let dim = self.space.dim();
        let search = Search {
            walk: Walk {
                base: base.rows(),
                graph: Graph { ids: edges.view(), degree, shift: 0 },
                entries: entries.view(),
                entry_count: *entry_count as u32,
                beam,
                width,
                expansions: u32::MAX,
                slots,
                metric: metric_number(self.space.metric()),
            },
            queries: rows::Rows {
                values: batch.queries.view(),
                lifts: batch.lifts.view(),
                stride: stride::<T>(dim) as u32,
                dim: dim as u32,
                lifted: u32::from(!self.queries.zero().is_empty()),
                square: -1.0,
            },
            found: batch.found.view_mut(),
            computed: batch.computed.view_mut(),
            k: k as u32,
            padding: 0,
        };
        // SAFETY: ids have been checked to be rows of the base, as have the entries; the batch has room for `count`
        // queries; all buffers outlive the work, which the download of what it found waits for.
        unsafe { gpu.launch::<K>([count as u32, 1, 1], 32 * width, (search,)) }
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
