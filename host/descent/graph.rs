//! The k-NN graph.

use std::path::{Path, PathBuf};

use rayon::prelude::*;
use tagore_device::descent::key::{self, Key};

use super::DescentStats;
use crate::atomic_file::AtomicFile;
use crate::vectors::open_ids;
use crate::{Error, Metric, Progress, Result, Vectors};

/// The k nearest neighbours found for every node: n × k ids and list distances. Each row is sorted
/// by (distance, id) and holds neither its own node nor any node twice.
#[derive(Clone, Debug)]
pub struct KnnGraph {
    k: usize,
    metric: Metric,
    nodes: usize,
    ids: Vec<u32>,
    distances: Vec<f32>,
    stats: DescentStats,
}

impl KnnGraph {
    pub(super) fn from_keys(
        k: usize,
        metric: Metric,
        nodes: usize,
        keys: &[Key],
        stats: DescentStats,
    ) -> Self {
        let ids = keys.par_iter().map(|&k| key::id(k)).collect();
        let distances = keys.par_iter().map(|&k| key::distance(k)).collect();
        Self { k, metric, nodes, ids, distances, stats }
    }

    /// The same without [`distances`](Self::distances), which nobody will ask for.
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

    /// What building it took.
    pub fn stats(&self) -> &DescentStats {
        &self.stats
    }

    /// Writes `stem.ibin` (ids) and `stem.fbin` (distances); an extension of `stem` that is one of
    /// the two is left out. Both files appear only when both are complete.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn save(&self, stem: impl AsRef<Path>) -> Result<()> {
        let (ids_path, distances_path) = files(stem.as_ref());
        let ids = self.write(&ids_path, bytemuck::cast_slice(&self.ids))?;
        let distances = self.write(&distances_path, bytemuck::cast_slice(&self.distances))?;
        ids.commit()?;
        distances.commit()
    }

    fn write(&self, path: &Path, values: &[u8]) -> Result<AtomicFile> {
        let mut file = AtomicFile::create(path)?;
        file.write_all(&(self.nodes as u32).to_le_bytes())?;
        file.write_all(&(self.k as u32).to_le_bytes())?;
        file.write_all(values)?;
        Ok(file)
    }

    /// Reads what [`save`](Self::save) wrote for `base` under `metric`.
    ///
    /// # Errors
    /// If a file cannot be read, the two do not belong together or to `base`, or a row is not what a
    /// k-NN graph holds: sorted by distance, without its own node, duplicates or unknown ids.
    pub fn open(stem: impl AsRef<Path>, base: &Vectors, metric: Metric) -> Result<Self> {
        let (ids_path, distances_path) = files(stem.as_ref());
        let table = open_ids(&ids_path, &Progress::silent())?;
        let values = Vectors::open(&distances_path)?;
        values.validate(&Progress::silent())?;
        if (values.len(), values.dim()) != (table.rows, table.cols) {
            let found = format!("{} x {}", values.len(), values.dim());
            let expected = format!("{} x {} as {} has", table.rows, table.cols, ids_path.display());
            return Err(Error::file(&distances_path, found, expected));
        }
        if table.rows != base.len() {
            let expected = format!("{} as {} has", base.len(), base.describe());
            return Err(Error::file(&ids_path, format_args!("{} rows", table.rows), expected));
        }
        let distances = (0..values.len()).flat_map(|row| values.row(row).into_owned()).collect();
        let (nodes, k) = (table.rows, table.cols);
        let graph = Self { k, metric, nodes, ids: table.ids, distances, stats: DescentStats::default() };
        match (0..nodes).into_par_iter().find_first(|&node| !graph.row_is_sound(node)) {
            None => Ok(graph),
            Some(node) => Err(Error::file(
                &ids_path,
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
    }
}

/// The files of ids and of distances for a stem.
fn files(stem: &Path) -> (PathBuf, PathBuf) {
    let bare = match stem.extension().and_then(|e| e.to_str()) {
        Some("ibin" | "fbin") => stem.with_extension(""),
        _ => stem.to_owned(),
    };
    let with = |extension: &str| {
        let mut name = bare.clone().into_os_string();
        name.push(extension);
        PathBuf::from(name)
    };
    (with(".ibin"), with(".fbin"))
}
