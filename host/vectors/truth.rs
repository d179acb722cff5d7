//! Ground truth: the exact nearest neighbours of queries.

use std::path::Path;

use super::open::{open_ids, open_truth};
use super::{Format, save_ids};
use crate::atomic_file::AtomicFile;
use crate::{Error, Result, SearchResult};

/// The nearest neighbours of queries: k ids per query, nearest first, and their distances if known.
#[derive(Clone, Debug, PartialEq)]
pub struct GroundTruth {
    k: usize,
    ids: Vec<u32>,
    distances: Option<Vec<f32>>,
}

impl GroundTruth {
    /// Neighbours row after row, `k` to a query.
    ///
    /// # Errors
    /// If `k` is 0 or does not divide the number of ids, or there are not as many distances as ids.
    pub fn new(k: usize, ids: Vec<u32>, distances: Option<Vec<f32>>) -> Result<Self> {
        if k == 0 || ids.len() % k != 0 {
            return Err(Error::argument("k", k, format_args!("a divisor of the {} ids", ids.len())));
        }
        if let Some(distances) = distances.as_ref().filter(|distances| distances.len() != ids.len()) {
            return Err(Error::mismatch(
                "distances",
                distances.len(),
                format_args!("{} as there are ids", ids.len()),
            ));
        }
        Ok(Self { k, ids, distances })
    }

    /// Reads a ground truth. The big-ann layout with distances is told by the file's size, whatever
    /// its extension; otherwise the file holds ids alone: ivecs or npy by extension, else ibin.
    ///
    /// # Errors
    /// If the file cannot be read or its size is not what its header says.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let (matrix, distances) = match open_truth(path)? {
            Some((matrix, distances)) => (matrix, Some(distances)),
            None => (open_ids(path)?, None),
        };
        if matrix.cols == 0 {
            return Err(Error::file(path, "0 neighbours per query", "at least 1"));
        }
        Self::new(matrix.cols, matrix.ids, distances)
    }

    /// Writes the big-ann layout: ids, then distances if they are known.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut file = AtomicFile::create(path.as_ref())?;
        file.write_all(&(self.len() as u32).to_le_bytes())?;
        file.write_all(&(self.k as u32).to_le_bytes())?;
        file.write_all(bytemuck::cast_slice(&self.ids))?;
        if let Some(distances) = &self.distances {
            file.write_all(bytemuck::cast_slice(distances))?;
        }
        file.commit()
    }

    /// The number of queries.
    pub fn len(&self) -> usize {
        self.ids.len() / self.k
    }

    /// Whether there are no queries.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Neighbours per query.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The neighbours of `query`, nearest first.
    ///
    /// # Panics
    /// If `query >= len()`.
    pub fn ids(&self, query: usize) -> &[u32] {
        &self.ids[query * self.k..][..self.k]
    }

    /// The distances of the neighbours of `query`, if they are known.
    ///
    /// # Panics
    /// If `query >= len()`.
    pub fn distances(&self, query: usize) -> Option<&[f32]> {
        self.distances.as_ref().map(|distances| &distances[query * self.k..][..self.k])
    }

    /// Whether distances are known.
    pub fn has_distances(&self) -> bool {
        self.distances.is_some()
    }

    /// Writes the ids alone, as ibin, ivecs or npy.
    ///
    /// # Errors
    /// If the format is one of vectors, or the file cannot be written.
    pub fn save_ids(&self, path: impl AsRef<Path>, format: Format) -> Result<()> {
        save_ids(path.as_ref(), format, self.k, &self.ids)
    }
}

impl From<SearchResult> for GroundTruth {
    /// What a search found, for writing it in the same layout.
    fn from(result: SearchResult) -> Self {
        let (k, ids, distances) = result.into_parts();
        Self { k, ids, distances: Some(distances) }
    }
}
