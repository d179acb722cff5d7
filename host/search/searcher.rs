//! Searches of an index.

use rayon::prelude::*;
use tagore_device::key::{self, Key};
use tagore_device::search::beam::search::SEARCH_THREADS;

use super::cpu;
use super::gpu::{self, OnGpu};
use crate::gpu::KernelTime;
use crate::index::Index;
use crate::vectors::Repeated;
use crate::vectors::space::{Queries, Space};
use crate::{Device, Error, GroundTruth, Progress, Result, Vectors};

/// Most nodes that a search on a GPU expands per step.
pub const MAX_WIDTH: usize = (SEARCH_THREADS / 32) as usize;

/// Queries per batch on a GPU unless set.
const BATCH: usize = 1 << 16;

/// Results of a batch of queries: k ids and list distances per query, nearest first. A query that
/// reaches fewer than k nodes has `u32::MAX` and infinity in the last slots.
#[derive(Clone, Debug)]
pub struct SearchResult {
    k: usize,
    ids: Vec<u32>,
    distances: Vec<f32>,
    computed: u64,
    kernels: Vec<KernelTime>,
}

impl SearchResult {
    /// The number of queries.
    pub fn len(&self) -> usize {
        self.ids.len() / self.k
    }

    /// Whether there were no queries.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Results per query.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The ids found for `query`.
    ///
    /// # Panics
    /// If `query >= len()`.
    pub fn ids(&self, query: usize) -> &[u32] {
        &self.ids[query * self.k..][..self.k]
    }

    /// The distances of the ids found for `query`.
    ///
    /// # Panics
    /// If `query >= len()`.
    pub fn distances(&self, query: usize) -> &[f32] {
        &self.distances[query * self.k..][..self.k]
    }

    /// The rows found for each query in turn, nearest first: pairs of id and distance. Empty slots
    /// of a query that found fewer than k rows are left out.
    ///
    /// ```
    /// # use tagore::{Builder, Progress, Strategy, Synth, search};
    /// # let synth = Synth::new(100, 4, 1)?;
    /// # let (base, queries) = (synth.base(), synth.queries(2));
    /// # let index = Builder::new(Strategy::nsg()).build(&base)?;
    /// let result = search(&index, &base, &queries, 3, 10, &Progress::silent())?;
    /// for (query, found) in result.iter().enumerate() {
    ///     for (id, distance) in found {
    ///         println!("query {query}: row {id} at {distance}");
    ///     }
    /// }
    /// # assert_eq!(result.iter().map(Iterator::count).collect::<Vec<_>>(), [3, 3]);
    /// # Ok::<(), tagore::Error>(())
    /// ```
    pub fn iter(&self) -> impl ExactSizeIterator<Item = impl Iterator<Item = (u32, f32)> + '_> + '_ {
        let found = |query| {
            let pairs = self.ids(query).iter().copied().zip(self.distances(query).iter().copied());
            pairs.take_while(|&(id, _)| id != u32::MAX)
        };
        (0..self.len()).map(found)
    }

    /// Distances computed for all queries together.
    pub fn computed(&self) -> u64 {
        self.computed
    }

    /// Kernel times with the least bytes read; empty on the CPU.
    pub fn kernels(&self) -> &[KernelTime] {
        &self.kernels
    }

    /// Seconds of kernels: from queries on the device to results on the device. None on the CPU.
    pub fn device_seconds(&self) -> Option<f64> {
        (!self.kernels.is_empty()).then(|| self.kernels.iter().map(|time| time.seconds).sum())
    }

    pub(crate) fn into_parts(self) -> (usize, Vec<u32>, Vec<f32>) {
        (self.k, self.ids, self.distances)
    }
}

/// An index and its base, checked and prepared once for any number of searches.
///
/// ```
/// use tagore::{Builder, Progress, Searcher, Strategy, Synth};
/// let synth = Synth::new(1000, 16, 1)?;
/// let (base, queries) = (synth.base(), synth.queries(10));
/// let index = Builder::new(Strategy::cagra()).build(&base)?;
/// let searcher = Searcher::new(&index, &base, &Progress::silent())?;
/// for beam in [20, 50] {
///     let result = searcher.search(&queries, 10, beam, &Progress::silent())?;
///     assert_eq!(result.ids(0).len(), 10);
/// }
/// # Ok::<(), tagore::Error>(())
/// ```
pub struct Searcher<'a> {
    index: &'a Index,
    base: &'a Vectors,
    space: Space<'a>,
    width: usize,
    batch: usize,
    device: Device,
    on_gpu: Option<OnGpu>,
}

impl<'a> Searcher<'a> {
    /// Checks that `index` was built over `base` and that both are sound, and normalises the base
    /// under cosine. Searches run on the CPU.
    ///
    /// # Errors
    /// If `index` was built over other data or holds an unknown id, a value is not finite or too
    /// large or too small for the metric, or the work is cancelled.
    pub fn new(index: &'a Index, base: &'a Vectors, progress: &Progress) -> Result<Self> {
        index.check_base(base)?;
        index.check_ids(progress)?;
        let space = Space::new(base, index.metric(), progress)?;
        Ok(Self { index, base, space, width: 1, batch: BATCH, device: Device::Cpu, on_gpu: None })
    }

    /// Searches on `device`. This copies index and base to a GPU, where they stay. `Auto` takes a
    /// GPU, if any, unless the index is small.
    ///
    /// # Errors
    /// If the device is missing, or lacks memory for index and base.
    pub fn device(mut self, device: Device) -> Result<Self> {
        let gpu = device.gpu_for_graph(self.index.len())?;
        self.on_gpu = gpu.map(|gpu| OnGpu::new(gpu, &self.space, self.index)).transpose()?;
        self.device = device;
        Ok(self)
    }

    /// Sets the nodes that a search on a GPU expands per step: 1 to [`MAX_WIDTH`], 1 unless set. At
    /// width 1 the results are those of the CPU, bit for bit. A larger width takes fewer and larger
    /// steps: the latency of small batches falls, and the results are nearly the same or slightly
    /// better.
    ///
    /// # Errors
    /// If `width` is out of that range.
    pub fn width(mut self, width: usize) -> Result<Self> {
        if !(1..=MAX_WIDTH).contains(&width) {
            return Err(Error::argument("width", width, format_args!("1 to {MAX_WIDTH}")));
        }
        self.width = width;
        Ok(self)
    }

    /// Sets the queries per batch on a GPU: at least 1, 65,536 unless set. At 1 each query is
    /// searched by itself.
    pub fn batch(mut self, queries: usize) -> Self {
        self.batch = queries.max(1);
        self
    }

    /// The device of the searches, such as `cpu` or `cuda:0`.
    pub fn runs_on(&self) -> &str {
        self.on_gpu.as_ref().map_or("cpu", |on_gpu| on_gpu.gpu().name())
    }

    /// The name of the GPU of the searches, such as `NVIDIA H200`, if any.
    pub fn device_name(&self) -> Option<&str> {
        self.on_gpu.as_ref().and_then(|on_gpu| on_gpu.gpu().device_name())
    }

    /// Finds the `k` nearest rows of the base for each of `queries` by beam search, in parallel
    /// over queries. `beam` (L in the literature) is the number of nodes that the search keeps: a
    /// wider beam finds more of the true neighbours and computes more distances.
    ///
    /// # Errors
    /// If the queries do not fit the base, `k` is not in 1..=n, `beam` is below `k` or above the
    /// device's limit, a value is not finite, the device lacks memory, or the work is cancelled.
    pub fn search(
        &self,
        queries: &Vectors,
        k: usize,
        beam: usize,
        progress: &Progress,
    ) -> Result<SearchResult> {
        self.run(&self.space.queries(queries, progress)?, k, beam, progress)
    }

    /// The base as given; the space may hold its rows normalised.
    pub(crate) fn base(&self) -> &Vectors {
        self.base
    }

    pub(crate) fn space(&self) -> &Space<'a> {
        &self.space
    }

    pub(crate) fn run(
        &self,
        queries: &Queries<'_>,
        k: usize,
        beam: usize,
        progress: &Progress,
    ) -> Result<SearchResult> {
        let n = self.index.len();
        if k == 0 || k > n {
            return Err(Error::argument("k", k, format_args!("1 to the {n} rows of the base")));
        }
        if beam < k {
            return Err(Error::argument("beam", beam, format_args!("at least k = {k}")));
        }
        // The beam never holds more than all nodes.
        let beam = beam.min(n);
        let limits = gpu::BatchLimits { k, beam, width: self.width, batch: self.batch };
        let (mut keys, computed, kernels) = match &self.on_gpu {
            Some(on_gpu) if self.device != Device::Auto || on_gpu.supports(&self.space, limits) => {
                let found = on_gpu.search(&self.space, queries, limits, progress)?;
                (found.keys, found.computed, found.kernels)
            }
            _ => {
                let (keys, computed) = cpu::search(self.index, &self.space, queries, (k, beam), progress)?;
                (keys, computed, Vec::new())
            }
        };
        if !self.index.repeated().is_empty() {
            with_repeated(&mut keys, k, self.index.repeated());
        }
        let distance = |&key: &Key| {
            if key == key::NONE { f32::INFINITY } else { key::distance(key) }
        };
        Ok(SearchResult {
            k,
            ids: keys.iter().map(|&key| key as u32).collect(),
            distances: keys.iter().map(distance).collect(),
            computed,
            kernels,
        })
    }
}

/// Adds repeated rows to the `k` keys found for each query, at the distance of the rows they
/// repeat. Keeps the first `k` by (distance, id).
fn with_repeated(keys: &mut [Key], k: usize, repeated: &Repeated) {
    keys.par_chunks_exact_mut(k).for_each_init(Vec::new, |all, keys| {
        all.clear();
        for equal in keys.chunk_by(|&a, &b| a >> 32 == b >> 32) {
            if all.len() >= k || equal[0] == key::NONE {
                break;
            }
            let before = all.len();
            for &first in equal {
                // At most k rows of a group are kept.
                let copies = repeated.copies_of(first as u32).take(k);
                all.push(first);
                all.extend(copies.map(|row| first >> 32 << 32 | Key::from(row)));
            }
            all[before..].sort_unstable();
        }
        let found = all.len().min(k);
        keys[..found].copy_from_slice(&all[..found]);
    });
}

/// Searches one batch of queries: [`Searcher::new`], then [`Searcher::search`].
///
/// # Errors
/// As for these two.
pub fn search(
    index: &Index,
    base: &Vectors,
    queries: &Vectors,
    k: usize,
    beam: usize,
    progress: &Progress,
) -> Result<SearchResult> {
    Searcher::new(index, base, progress)?.search(queries, k, beam, progress)
}

impl From<SearchResult> for GroundTruth {
    /// Results in the layout of a ground truth.
    fn from(result: SearchResult) -> Self {
        let (k, ids, distances) = result.into_parts();
        Self::from_parts(k, ids, distances)
    }
}
