//! The k-NN graph.

use std::path::Path;

use tagore_device::key::{self, Key};

use super::DescentStats;
use crate::atomic_file::AtomicFile;
use crate::loops::{find_first, map};
use crate::memory::collected_in_parallel;
use crate::{Error, Format, GroundTruth, Metric, Progress, Result, Vectors};

/// The origin of a graph's lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lists {
    /// They may miss neighbours.
    Found,
    /// They are those of exact search.
    Exact,
    /// Codes and their rests ordered them: their distances are finer than those of the rows.
    Settled,
}

/// A k-NN graph: n × k ids and list distances. Each row is sorted by (distance, id), without its
/// own node and without duplicates.
#[derive(Clone, Debug)]
pub struct KnnGraph {
    k: usize,
    metric: Metric,
    nodes: usize,
    ids: Vec<u32>,
    distances: Vec<f32>,
    stats: DescentStats,
    lists: Lists,
}

impl KnnGraph {
    pub(crate) fn from_keys(
        k: usize,
        metric: Metric,
        nodes: usize,
        keys: &[Key],
        stats: DescentStats,
    ) -> Result<Self> {
        let ids = collected_in_parallel(keys, |&k| key::id(k))?;
        let distances = collected_in_parallel(keys, |&k| key::distance(k))?;
        Ok(Self { k, metric, nodes, ids, distances, stats, lists: Lists::Found })
    }

    /// Marks the lists as those of exact search.
    pub(crate) fn exact(self) -> Self {
        Self { lists: Lists::Exact, ..self }
    }

    /// Marks the lists as settled.
    pub(crate) fn settled(self) -> Self {
        Self { lists: Lists::Settled, ..self }
    }

    /// Whether the lists are settled. Their distances are then not those of the rows.
    pub(crate) fn is_settled(&self) -> bool {
        self.lists == Lists::Settled
    }

    /// Whether the list of each node certainly holds its nearest `count` nodes, or all nodes.
    pub(crate) fn has_nearest(&self, count: usize) -> bool {
        self.lists == Lists::Exact && (self.k >= count || self.k + 1 >= self.nodes)
    }

    /// Drops the [`distances`](Self::distances) to free their memory.
    pub(crate) fn without_distances(mut self) -> Self {
        self.distances = Vec::new();
        self
    }

    /// The number of nodes.
    pub fn len(&self) -> usize {
        self.nodes
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes == 0
    }

    /// Neighbours per node.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The metric of the distances.
    pub fn metric(&self) -> Metric {
        self.metric
    }

    /// The neighbours of `node`, nearest first.
    ///
    /// # Panics
    /// If `node >= len()`.
    pub fn neighbors(&self, node: usize) -> &[u32] {
        &self.ids[node * self.k..][..self.k]
    }

    /// The distances of `node` to its neighbours.
    ///
    /// # Panics
    /// If `node >= len()`.
    pub fn distances(&self, node: usize) -> &[f32] {
        &self.distances[node * self.k..][..self.k]
    }

    /// The neighbours of `node` as keys, nearest first.
    pub(crate) fn keys_of(&self, node: usize) -> impl Iterator<Item = Key> + '_ {
        let pairs = self.neighbors(node).iter().zip(self.distances(node));
        pairs.map(|(&id, &distance)| key::pack(distance, id))
    }

    /// All neighbours as keys.
    pub(crate) fn keys(&self) -> Vec<Key> {
        map((&self.ids[..], &self.distances[..]), |(&id, &distance)| key::pack(distance, id))
    }

    /// All ids and distances, [`k`](Self::k) of each per node.
    pub fn into_parts(self) -> (Vec<u32>, Vec<f32>) {
        (self.ids, self.distances)
    }

    /// Statistics of the descent that built it.
    pub fn stats(&self) -> &DescentStats {
        &self.stats
    }

    /// Writes one file in the layout of a ground truth: the numbers of nodes and neighbours, the
    /// ids, the distances. The file appears only when it is complete.
    ///
    /// # Errors
    /// If the file cannot be written, or its extension is that of a format without distances.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        check_name(path)?;
        let mut file = AtomicFile::create(path)?;
        file.write_all(bytemuck::cast_slice(&[self.nodes as u32, self.k as u32]))?;
        file.write_all(bytemuck::cast_slice(&self.ids))?;
        file.write_all(bytemuck::cast_slice(&self.distances))?;
        file.commit()
    }

    /// Reads a graph of `base` under `metric`, written by [`save`](Self::save).
    ///
    /// # Errors
    /// If the file cannot be read or does not belong to `base`, or a row is not sorted by distance
    /// or holds its own node, a duplicate or an unknown id.
    pub fn open(path: impl AsRef<Path>, base: &Vectors, metric: Metric, progress: &Progress) -> Result<Self> {
        let path = path.as_ref();
        let (k, ids, distances) = GroundTruth::open(path, progress)?.into_parts();
        let Some(distances) = distances else {
            return Err(Error::file(path, "ids alone", "ids and distances, as `tagore knn` writes"));
        };
        let nodes = ids.len() / k;
        if nodes != base.len() {
            let expected = format!("{} as {} has", base.len(), base.describe());
            return Err(Error::file(path, format_args!("{nodes} rows"), expected));
        }
        let stats = DescentStats::default();
        let graph = Self { k, metric, nodes, ids, distances, stats, lists: Lists::Found };
        match find_first(0..nodes, |node| Some(node).filter(|&node| !graph.row_is_sound(node))) {
            None => Ok(graph),
            Some(node) => Err(Error::file(
                path,
                format_args!("a wrong row {node}"),
                "different ids of other nodes, nearest first",
            )),
        }
    }

    fn row_is_sound(&self, node: usize) -> bool {
        let (ids, distances) = (self.neighbors(node), self.distances(node));
        let mut sorted = ids.to_vec();
        sorted.sort_unstable();
        sorted.windows(2).all(|pair| pair[0] != pair[1])
            && ids.iter().all(|&id| (id as usize) < self.nodes && id as usize != node)
            && distances.windows(2).all(|pair| pair[0] <= pair[1])
            && distances.iter().all(|distance| distance.is_finite())
    }
}

/// Refuses extensions of formats without distances.
fn check_name(path: &Path) -> Result<()> {
    match Format::from_path(path) {
        Ok(format @ (Format::Ivecs | Format::Ibin | Format::Npy)) => {
            let found = format!("the extension .{format}, of ids alone");
            Err(Error::file(path, found, "another, such as .bin: a k-NN graph holds ids and distances"))
        }
        _ => Ok(()),
    }
}
