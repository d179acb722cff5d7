//! Sampled lists of a k-NN graph, kept to judge the graph after it is dropped.

use tagore_device::key::{self, Key};
use tagore_device::random::{Draws, Stage};

use super::{GpuLists, KnnGraph};
use crate::gpu::Gpu;
use crate::loops::{for_each_with, rows_mut};
use crate::search::exact::ExactSearch;
use crate::search::exact::gpu::{GpuSearch, QuerySet};
use crate::vectors::gpu::Pick;
use crate::vectors::space::Space;
use crate::{Device, Progress, Result};

/// Distances in sampled lists of a k-NN graph, for [`KnnTruth`](crate::KnnTruth).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KnnSample {
    k: usize,
    nodes: Vec<u32>,
    /// `k` per node, nearest first.
    ids: Vec<u32>,
    distances: Vec<f32>,
}

impl KnnSample {
    /// The lists of `nodes`.
    pub(crate) fn take(graph: &KnnGraph, nodes: &[u32]) -> Self {
        let ids = nodes.iter().flat_map(|&node| graph.neighbors(node as usize)).copied().collect();
        let distances = nodes.iter().flat_map(|&node| graph.distances(node as usize)).copied().collect();
        Self { k: graph.k(), nodes: nodes.to_vec(), ids, distances }
    }

    /// The lists of `nodes` of a graph on a device.
    pub(crate) fn on_device(gpu: &Gpu, lists: &GpuLists, nodes: &[u32]) -> Result<Self> {
        Ok(Self::of_lists(&lists.some(gpu, Pick::Ids(nodes), 0..lists.k)?, lists.k, nodes))
    }

    /// The lists of `nodes` among those of all, `k` keys per node.
    pub(super) fn of_keys(keys: &[Key], k: usize, nodes: &[u32]) -> Self {
        let lists = nodes.iter().flat_map(|&node| &keys[node as usize * k..][..k]).copied();
        Self::of_lists(&lists.collect::<Vec<Key>>(), k, nodes)
    }

    /// The lists `keys` of `nodes`, `k` keys per node.
    fn of_lists(keys: &[Key], k: usize, nodes: &[u32]) -> Self {
        let ids = keys.iter().map(|&key| key::id(key)).collect();
        let distances = keys.iter().map(|&key| key::distance(key)).collect();
        Self { k, nodes: nodes.to_vec(), ids, distances }
    }

    /// These lists by the distances of `space`, which they were made of otherwise.
    pub(crate) fn by(mut self, space: &Space<'_>) -> Self {
        let k = self.k.max(1);
        let lists = ((rows_mut(&mut self.distances, k), rows_mut(&mut self.ids, k)), &self.nodes[..]);
        for_each_with(lists, Vec::new, |found, ((distances, ids), &node)| {
            space.list_distances(space.query(node), ids, found);
            let mut keys: Vec<Key> = found.iter().zip(&*ids).map(|(&d, &id)| key::pack(d, id)).collect();
            keys.sort_unstable();
            for ((distance, id), key) in distances.iter_mut().zip(ids).zip(keys) {
                (*distance, *id) = (key::distance(key), key::id(key));
            }
        });
        self
    }

    /// Neighbours per node.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The nodes, in ascending order.
    pub fn nodes(&self) -> &[u32] {
        &self.nodes
    }

    /// The distances to the neighbours of each node, nearest first.
    pub(crate) fn lists(&self) -> impl Iterator<Item = &[f32]> {
        // The only list of a single node is empty.
        let k = self.k;
        (0..self.nodes.len()).map(move |index| &self.distances[index * k..][..k])
    }
}

/// `count` distinct random nodes, ascending; all nodes if there are no more.
pub(crate) fn sampled(nodes: usize, count: usize, seed: u64) -> Vec<u32> {
    if count >= nodes {
        return (0..nodes as u32).collect();
    }
    // Floyd's sampling: one draw a node, whatever the share.
    let mut picked = std::collections::BTreeSet::new();
    for last in nodes - count..nodes {
        let draw = Draws::new(seed, Stage::Verify, 0, last as u64).below(0, last as u64 + 1) as u32;
        if !picked.insert(draw) {
            picked.insert(last as u32);
        }
    }
    picked.into_iter().collect()
}

/// The number of distances in `found`, ascending, that are at most the k-th true one.
pub(crate) fn hits(found: &[f32], farthest: f32) -> usize {
    found.partition_point(|&distance| distance <= farthest)
}

/// Nodes whose lists are compared with exact search.
const CHECKED: usize = 64;

/// The exact neighbours of some nodes or queries, which tell how many of all neighbours are found.
#[derive(Clone, Debug)]
pub(crate) struct ExactLists {
    /// The nodes or queries, ascending.
    pub sample: Vec<u32>,
    pub k: usize,
    /// `k` per node or query, nearest first.
    pub keys: Vec<Key>,
}

impl ExactLists {
    /// Those of a few nodes, found on the CPU.
    pub(super) fn on_cpu(space: &Space<'_>, k: usize, seed: u64, progress: &Progress) -> Result<Self> {
        let sample = sampled(space.len(), CHECKED, seed);
        let search = ExactSearch::new(k).device(Device::Cpu).progress(progress.unwatched());
        Ok(Self { keys: search.neighbors_of(space, &sample)?, sample, k })
    }

    /// Those of a few nodes, found on a GPU.
    pub(super) fn on_gpu(
        gpu: &Gpu,
        space: &Space<'_>,
        k: usize,
        seed: u64,
        progress: &Progress,
    ) -> Result<Self> {
        let sample = sampled(space.len(), CHECKED, seed);
        let (queries, progress) = (QuerySet::of_nodes(space, &sample), progress.unwatched());
        let search =
            GpuSearch { gpu, space, subset: None, queries: &queries, k, budget: None, progress: &progress };
        Ok(Self { keys: search.run()?, sample, k })
    }

    /// Each node with each of its neighbours that are nearer than the last.
    pub(super) fn near(&self) -> impl Iterator<Item = (u32, u32)> {
        self.sample.iter().zip(self.keys.chunks_exact(self.k)).flat_map(|(&node, keys)| {
            let last = key::distance(keys[keys.len() - 1]);
            let nearer = keys.iter().take_while(move |&&key| key::distance(key) < last);
            nearer.map(move |&key| (node, key::id(key)))
        })
    }

    /// The number of the `at` nearest neighbours of the node or query at `place` in its list of
    /// distances, nearest first. Of neighbours at equal distance any counts.
    pub(crate) fn hits_of(&self, place: usize, at: usize, list: &[f32]) -> usize {
        if at == 0 {
            return 0;
        }
        let farthest = key::distance(self.keys[place * self.k + at - 1]);
        hits(&list[..at.min(list.len())], farthest)
    }

    /// The recall at `at`, at most `k`, of a list of distances per node or query, nearest first.
    pub(crate) fn recall_at(&self, at: usize, lists: impl Iterator<Item = impl AsRef<[f32]>>) -> f64 {
        if at == 0 {
            // A single node has no neighbours to miss.
            return 1.0;
        }
        let hits = lists.enumerate().map(|(place, list)| self.hits_of(place, at, list.as_ref()));
        hits.sum::<usize>() as f64 / (self.sample.len() * at) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_has_the_requested_size() {
        for (nodes, count) in [(1, 1), (10, 0), (10, 3), (100, 99), (100, 100), (5, 50)] {
            let sample = sampled(nodes, count, 9);
            assert_eq!(sample.len(), count.min(nodes));
            assert!(sample.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(sample.iter().all(|&node| (node as usize) < nodes));
        }
    }
}
