//! Results of searches.

use tagore_device::key::{self, Key, NO_ID};

use crate::gpu::{KernelTime, SharedTimes};
use crate::memory::{collected, collected_in_parallel};
use crate::{GroundTruth, Result};

/// Bytes of keys that one thread splits sooner than the threads of a pool wake up and sleep.
const ONE_THREAD_BYTES: usize = 1 << 20;

/// A row found by a search.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Neighbor {
    /// The row of the base.
    pub id: u32,
    /// Its list distance to the query, as the [`Metric`](crate::Metric) defines it.
    pub distance: f32,
}

impl Neighbor {
    pub(super) fn new(key: Key) -> Self {
        Self { id: key as u32, distance: key::distance(key) }
    }
}

/// Results of a batch of queries: k ids and list distances per query, nearest first. A query that
/// finds fewer than k rows has `u32::MAX` and infinity in the last slots.
#[derive(Clone, Debug)]
pub struct SearchResult {
    k: usize,
    ids: Vec<u32>,
    distances: Vec<f32>,
    computed: u64,
    kernels: Vec<KernelTime>,
    kernel_seconds: f64,
}

impl SearchResult {
    /// Results from `k` keys per query of a search on the host.
    pub(crate) fn of_keys(k: usize, keys: &[Key], computed: u64) -> Result<Self> {
        Self::new(k, keys, computed, SharedTimes::default())
    }

    /// The keys of the results, [`k`](Self::k) per query.
    pub(crate) fn keys(&self) -> Result<Vec<Key>> {
        let slots = self.ids.iter().zip(&self.distances);
        collected(slots.map(|(&id, &distance)| if id == NO_ID { key::NONE } else { key::pack(distance, id) }))
    }

    /// Results from `k` keys per query.
    pub(super) fn new(k: usize, keys: &[Key], computed: u64, times: SharedTimes) -> Result<Self> {
        let id = |&key: &Key| key as u32;
        let distance = |&key: &Key| {
            if key == key::NONE { f32::INFINITY } else { key::distance(key) }
        };
        let (ids, distances) = if size_of_val(keys) <= ONE_THREAD_BYTES {
            (collected(keys.iter().map(id))?, collected(keys.iter().map(distance))?)
        } else {
            (collected_in_parallel(keys, id)?, collected_in_parallel(keys, distance)?)
        };
        let SharedTimes { kernels, kernel_seconds, .. } = times;
        Ok(Self { k, ids, distances, computed, kernels, kernel_seconds })
    }

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

    /// The number of queries that found fewer than [`k`](Self::k) rows: by a radius, by a filter
    /// that fewer rows pass, or because no path of the graph leads from their start to more.
    pub fn short(&self) -> usize {
        self.ids.chunks_exact(self.k).filter(|ids| ids.last() == Some(&NO_ID)).count()
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

    /// The rows found for `query`, nearest first: k, or fewer if it found fewer.
    ///
    /// # Panics
    /// If `query >= len()`.
    pub fn neighbors(&self, query: usize) -> impl Iterator<Item = Neighbor> + '_ {
        let pairs = self.ids(query).iter().zip(self.distances(query));
        let found = pairs.take_while(|&(&id, _)| id != NO_ID);
        found.map(|(&id, &distance)| Neighbor { id, distance })
    }

    /// The [`neighbors`](Self::neighbors) of each query in turn.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = impl Iterator<Item = Neighbor> + '_> + '_ {
        (0..self.len()).map(|query| self.neighbors(query))
    }

    /// All ids and distances, [`k`](Self::k) of each per query.
    pub fn into_parts(self) -> (Vec<u32>, Vec<f32>) {
        (self.ids, self.distances)
    }

    /// Distances computed for all queries together.
    pub fn computed(&self) -> u64 {
        self.computed
    }

    /// Kernel times with the least bytes read, summed over all GPUs; empty on the CPU.
    pub fn kernels(&self) -> &[KernelTime] {
        &self.kernels
    }

    /// Seconds of kernels: from queries on the device to results on the device; of several GPUs,
    /// which work at the same time, on the one that took longest. None on the CPU.
    pub fn device_seconds(&self) -> Option<f64> {
        (!self.kernels.is_empty()).then_some(self.kernel_seconds)
    }
}

impl From<SearchResult> for GroundTruth {
    /// Results in the layout of a ground truth.
    fn from(result: SearchResult) -> Self {
        Self::from_parts(result.k, result.ids, result.distances)
    }
}
