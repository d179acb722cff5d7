//! Exact search: every query against every row.

mod cpu;
pub(crate) mod gpu;

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use tagore_device::key::{self, Key};

pub(crate) use cpu::{Best, near_rows, nearest};
use gpu::{QuerySet, SharedSearch, nearest_of_subset};

use super::gpu::OnGpus;
use crate::gpu::{Gpus, KernelTime, SharedTimes};
use crate::loops::{for_each, rows, rows_mut};
use crate::memory::{collected_in_parallel, filled};
use crate::progress::Progress;
use crate::vectors::queries::Queries;
use crate::vectors::space::Space;
use crate::{Device, DeviceResults, Error, GroundTruth, IdSet, Metric, Result, Vectors};

/// Minimum number of multiply-adds for which `Device::Auto` takes a GPU: below, starting the GPU
/// takes longer.
const WORTH_A_GPU: u64 = 1 << 34;

/// Exact search for the nearest rows of queries.
///
/// ```
/// use tagore::{Device, ExactSearch, Metric, Vectors};
/// let base = Vectors::from_f32(vec![0.0, 1.0, 2.0, 3.0], 1)?;
/// let queries = Vectors::from_f32(vec![2.2], 1)?;
/// let search = ExactSearch::new(2).metric(Metric::L2).device(Device::Cpu);
/// let (truth, _) = search.run(&base, &queries)?;
/// assert_eq!(truth.ids(0), [2, 3]);
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ExactSearch {
    k: usize,
    metric: Metric,
    devices: Vec<Device>,
    /// The rows that may be found; all if none.
    among: Option<Arc<IdSet>>,
    device_memory: Option<u64>,
    progress: Progress,
    /// The GPU that holds the base, if one does: searches for nodes of the base run there.
    there: Option<Arc<OnGpus>>,
}

/// Times of an exact search. Concurrent searches on one device are counted into each other's times.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ExactStats {
    /// The device, such as `cpu` or `cuda:0`, or several as `cuda:0,cuda:1`.
    pub device: String,
    /// Seconds in total.
    pub seconds: f64,
    /// Seconds of compiling kernels, part of `seconds`; on several GPUs those of the slowest.
    pub jit: f64,
    /// Kernel times, summed over all GPUs; empty on the CPU.
    pub kernels: Vec<KernelTime>,
}

impl ExactSearch {
    /// A search for `k` rows per query, by L2 distance.
    pub fn new(k: usize) -> Self {
        let (metric, devices) = (Metric::default(), vec![Device::Auto]);
        let progress = Progress::silent();
        Self { k, metric, devices, among: None, device_memory: None, progress, there: None }
    }

    /// Sets the metric.
    #[must_use]
    pub fn metric(mut self, metric: Metric) -> Self {
        self.metric = metric;
        self
    }

    /// Sets the device. The result is the same on every device, to the bit.
    #[must_use]
    pub fn device(self, device: Device) -> Self {
        self.devices(&[device])
    }

    /// Sets the devices: one, or several GPUs that share the search, each named once. They divide
    /// the queries, or the base where it does not fit each of them or there are few queries.
    #[must_use]
    pub fn devices(mut self, devices: &[Device]) -> Self {
        self.devices = devices.to_vec();
        self
    }

    /// Finds rows of `ids` only, a set of the rows of the base; any row if `None`, as unless set.
    /// Rows in host memory are read where they lie; those on a device are copied there.
    #[must_use]
    pub fn among(mut self, ids: impl Into<Option<IdSet>>) -> Self {
        self.among = ids.into().map(Arc::new);
        self
    }

    /// Sets the most bytes of memory of each device; all free memory unless set. A larger base goes
    /// to a device in pieces.
    #[must_use]
    pub fn device_memory(mut self, bytes: u64) -> Self {
        self.device_memory = Some(bytes);
        self
    }

    /// Sets the handle that watches and cancels the search.
    #[must_use]
    pub fn progress(mut self, progress: Progress) -> Self {
        self.progress = progress;
        self
    }

    /// Searches for nodes of the base on the GPU that holds it.
    pub(crate) fn there(mut self, there: Arc<OnGpus>) -> Self {
        self.there = Some(there);
        self
    }

    /// Searches `base`: for every query the exact nearest rows, nearest first, ties by id.
    ///
    /// # Errors
    /// If `k` is 0 or above the rows that may be found, these are of another number of rows than
    /// `base`, the dimensions differ, a value is not finite or too
    /// large or too small for the metric, a device is missing or lacks memory, several devices are
    /// not GPUs or not each named once, or the work is cancelled.
    pub fn run(&self, base: &Vectors, queries: &Vectors) -> Result<(GroundTruth, ExactStats)> {
        let (keys, stats) = self.keys(base, queries)?;
        let ids = collected_in_parallel(&keys[..], |&key| key as u32)?;
        let distances = collected_in_parallel(&keys[..], |&key| key::distance(key))?;
        Ok((GroundTruth::new(self.k, ids, Some(distances))?, stats))
    }

    /// As [`run`](Self::run), and leaves the results in the memory of a device: k ids and distances
    /// per query. Returns once they are written.
    ///
    /// # Errors
    /// As [`run`](Self::run), or if the device of the results cannot be opened or its memory has
    /// too little room for them.
    pub fn run_into(&self, base: &Vectors, queries: &Vectors, results: &DeviceResults) -> Result<ExactStats> {
        results.check(queries.len().saturating_mul(self.k))?;
        let (keys, stats) = self.keys(base, queries)?;
        results.write_keys(&keys)?;
        Ok(stats)
    }

    /// The keys of [`run`](Self::run).
    pub(crate) fn keys(&self, base: &Vectors, queries: &Vectors) -> Result<(Vec<Key>, ExactStats)> {
        let (k, began) = (self.k, Instant::now());
        let among = self.among.as_deref();
        among.map_or(Ok(()), |ids| ids.check("filter", base))?;
        let ids: Option<Vec<u32>> = among.map(|ids| ids.iter().collect());
        let rows = ids.as_ref().map_or(base.len(), Vec::len);
        if k == 0 || k > rows {
            let of_set = if ids.is_some() { "in the set " } else { "" };
            let expected = format!("1 to the {rows} rows {of_set}of {}", base.describe());
            return Err(Error::argument("k", k, expected));
        }
        let part = ids.as_ref().map(|ids| base.only(ids)).transpose()?;
        let base = part.as_ref().unwrap_or(base);
        let space = Space::new(base, self.metric, &self.progress)?;
        let queries = space.queries(queries, &self.progress)?;
        let gpus = self.gpus(&space, queries.len())?;
        let measurements = gpus.as_ref().map_or(Ok(Vec::new()), |gpus| SharedTimes::begin(gpus.all()))?;
        let mut keys = self.nearest_on(gpus.as_ref(), &space, &queries)?;
        if let Some(ids) = &ids {
            keys = named(&keys, ids, k)?;
        }
        let measured = SharedTimes::end(measurements)?;
        let stats = ExactStats {
            device: gpus.as_ref().map_or("cpu", Gpus::name).to_owned(),
            seconds: began.elapsed().as_secs_f64(),
            jit: measured.jit_seconds,
            kernels: measured.kernels,
        };
        Ok((keys, stats))
    }

    /// The nearest rows of `space` for each of `queries`, `k` keys per query; `k` is at most the
    /// number of rows.
    pub(crate) fn nearest_to(&self, space: &Space<'_>, queries: &Queries<'_>) -> Result<Vec<Key>> {
        self.nearest_on(self.gpus(space, queries.len())?.as_ref(), space, queries)
    }

    fn nearest_on(&self, gpus: Option<&Gpus>, space: &Space<'_>, queries: &Queries<'_>) -> Result<Vec<Key>> {
        match gpus {
            Some(gpus) => self.on_gpus(gpus, space, &QuerySet::of_queries(queries)),
            None => {
                space.vectors().on_host()?;
                queries.vectors().on_host()?;
                let query = |query| (queries.query(query), None);
                nearest(space, None, queries.len(), &query, self.k, &self.progress)
            }
        }
    }

    /// The exact k-NN lists of some nodes, `k` keys per node; no node is its own neighbour.
    pub(crate) fn neighbors_of(&self, space: &Space<'_>, nodes: &[u32]) -> Result<Vec<Key>> {
        if let (Some(there), 1..=gpu::MAX_K) = (&self.there, self.k) {
            let queries = QuerySet::of_nodes_there(space, nodes, there.first());
            return self.on_gpus(there.gpus(), space, &queries);
        }
        match self.gpus(space, nodes.len())? {
            Some(gpus) if self.k > 0 => self.on_gpus(&gpus, space, &QuerySet::of_nodes(space, nodes)),
            _ => {
                space.vectors().on_host()?;
                neighbors_of(space, nodes, self.k, &self.progress)
            }
        }
    }

    fn on_gpus(&self, gpus: &Gpus, space: &Space<'_>, queries: &QuerySet<'_>) -> Result<Vec<Key>> {
        let (k, budget) = (self.k, self.device_memory);
        SharedSearch { gpus, space, queries, k, budget, progress: &self.progress }.run()
    }

    /// The GPUs to use; none for the CPU. `Device::Auto` takes a GPU only for enough work.
    fn gpus(&self, space: &Space<'_>, queries: usize) -> Result<Option<Gpus>> {
        let sizes = [space.len(), queries, space.values()];
        let work = sizes.iter().fold(1u64, |a, &b| a.saturating_mul(b as u64));
        let is_small = work < WORTH_A_GPU || self.k > gpu::MAX_K;
        let one = |device: Device| match device.for_dim(space.dim())? {
            Device::Auto if is_small => Ok(None),
            device => device.gpu(),
        };
        Device::gpus(&self.devices, one)
    }
}

/// The exact `k` nearest rows of `base` for every query, nearest first, ties by id: [`ExactSearch`]
/// on the best device.
///
/// # Errors
/// As [`ExactSearch::run`].
pub fn ground_truth(
    base: &Vectors,
    queries: &Vectors,
    metric: Metric,
    k: usize,
    progress: &Progress,
) -> Result<GroundTruth> {
    let search = ExactSearch::new(k).metric(metric).progress(progress.clone());
    search.run(base, queries).map(|(truth, _)| truth)
}

/// The exact k-NN lists of some nodes, `k` keys per node; no node is its own neighbour.
fn neighbors_of(space: &Space<'_>, nodes: &[u32], k: usize, progress: &Progress) -> Result<Vec<Key>> {
    let query = |index: usize| (space.query(nodes[index]), Some(nodes[index]));
    nearest(space, None, nodes.len(), &query, k, progress)
}

/// The exact `k` nearest of the rows `ids`, ascending, for some of `queries`: `k` keys per query,
/// [`key::NONE`] in empty slots.
pub(super) fn nearest_among(
    space: &Space<'_>,
    queries: &Queries<'_>,
    some: &[u32],
    ids: &[u32],
    k: usize,
    progress: &Progress,
) -> Result<Vec<Key>> {
    let query = |index: usize| (queries.query(some[index] as usize), None);
    nearest(space, Some(ids), some.len(), &query, k, progress)
}

/// [`nearest_among`] on GPUs that hold the base, for all queries.
pub(super) fn nearest_among_there(
    there: &OnGpus,
    space: &Space<'_>,
    ids: &[u32],
    queries: &Queries<'_>,
    k: usize,
    progress: &Progress,
) -> Result<Vec<Key>> {
    let queries = QuerySet::of_queries(queries);
    named(&nearest_of_subset(there, space, ids, &queries, k.min(ids.len()), progress)?, ids, k)
}

/// [`nearest_among`] on GPUs, for all queries; `rows` are the rows `ids` of the base.
pub(crate) fn nearest_among_on(
    gpus: &Gpus,
    rows: &Space<'_>,
    ids: &[u32],
    queries: &Queries<'_>,
    k: usize,
    progress: &Progress,
) -> Result<Vec<Key>> {
    let (found, queries) = (k.min(ids.len()), QuerySet::of_queries(queries));
    let search = SharedSearch { gpus, space: rows, queries: &queries, k: found, budget: None, progress };
    named(&search.run()?, ids, k)
}

/// Replaces the places in `ids` that `keys` hold by the ids. `k` keys per query, empty ones last
/// where there are fewer ids.
fn named(keys: &[Key], ids: &[u32], k: usize) -> Result<Vec<Key>> {
    let found = k.min(ids.len());
    let mut all = filled(key::NONE, keys.len() / found * k)?;
    for_each((rows_mut(&mut all, k), rows(keys, found)), |(slots, keys)| {
        // Ids ascend, so ties stay in order.
        let named = keys.iter().map(|&key| key >> 32 << 32 | Key::from(ids[key as u32 as usize]));
        slots.iter_mut().zip(named).for_each(|(slot, key)| *slot = key);
    });
    Ok(all)
}
