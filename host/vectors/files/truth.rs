//! Ground truth: the exact nearest neighbours of queries.

use std::path::{Path, PathBuf};

use crate::atomic_file::AtomicFile;
use crate::vectors::open::{BinHeader, OpenedFile};
use crate::vectors::save::save_ids;
use crate::vectors::{Format, MAX_ROWS};
use crate::{Error, IdSet, Progress, Result};

/// The `k` nearest rows of each query, nearest first, and their distances if known.
///
/// ```
/// use tagore::GroundTruth;
/// let truth = GroundTruth::new(2, vec![4, 1, 0, 3], None)?;
/// assert_eq!((truth.len(), truth.ids(1)), (2, &[0, 3][..]));
/// # Ok::<(), tagore::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GroundTruth {
    ids: Vec<u32>,
    distances: Option<Vec<f32>>,
    queries: usize,
    k: usize,
    path: Option<PathBuf>,
}

/// Compares ids and distances, not files.
impl PartialEq for GroundTruth {
    fn eq(&self, other: &Self) -> bool {
        (self.k, &self.ids, &self.distances) == (other.k, &other.ids, &other.distances)
    }
}

impl GroundTruth {
    /// Makes a ground truth of row-major `ids`, `k` per query, and distances in the same order.
    ///
    /// # Errors
    /// If `k` is 0 or does not divide the number of ids, or ids and distances differ in number.
    pub fn new(k: usize, ids: Vec<u32>, distances: Option<Vec<f32>>) -> Result<Self> {
        if k == 0 || k > u32::MAX as usize {
            return Err(Error::argument("k", k, "1 to 4294967295"));
        }
        if !ids.len().is_multiple_of(k) {
            return Err(Error::argument("ids", ids.len(), format_args!("a multiple of k = {k}")));
        }
        if let Some(distances) = &distances
            && distances.len() != ids.len()
        {
            return Err(Error::argument(
                "distances",
                distances.len(),
                format_args!("{}, one per id", ids.len()),
            ));
        }
        let queries = ids.len() / k;
        if queries > MAX_ROWS {
            return Err(Error::argument("queries", queries, format_args!("at most {MAX_ROWS}")));
        }
        Ok(Self { ids, distances, queries, k, path: None })
    }

    /// The number of queries.
    pub fn len(&self) -> usize {
        self.queries
    }

    /// Whether there are no queries.
    pub fn is_empty(&self) -> bool {
        self.queries == 0
    }

    /// The first `k` ids of each query that are in `rows`: a search may find no others.
    ///
    /// # Errors
    /// If a query has fewer, or `k` is above that of this ground truth.
    pub(crate) fn among(&self, rows: &IdSet, k: usize) -> Result<Self> {
        if k > self.k {
            return Err(Error::argument("k", k, format_args!("1 to the {} of the ground truth", self.k)));
        }
        let mut ids = Vec::with_capacity(self.queries * k);
        for query in 0..self.queries {
            let start = ids.len();
            ids.extend(self.ids(query).iter().copied().filter(|&id| rows.contains(id)).take(k));
            let found = ids.len() - start;
            if found < k {
                let found = format!("{found} neighbours of query {query} that a search may find");
                let expected = format!("{k}: make it with more neighbours per query, or take a smaller k");
                return Err(Error::mismatch(self.describe(), found, expected));
            }
        }
        Ok(Self { path: self.path.clone(), ..Self::new(k, ids, None)? })
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

    /// The distances of `query` to its neighbours, if known.
    ///
    /// # Panics
    /// If distances are known, and `query >= len()`.
    pub fn distances(&self, query: usize) -> Option<&[f32]> {
        self.distances.as_ref().map(|distances| &distances[query * self.k..][..self.k])
    }

    /// Whether distances are known.
    pub fn has_distances(&self) -> bool {
        self.distances.is_some()
    }

    /// `k`, all ids, and all distances if known, `k` of each per query.
    pub fn into_parts(self) -> (usize, Vec<u32>, Option<Vec<f32>>) {
        (self.k, self.ids, self.distances)
    }

    /// The file that the ground truth was opened from.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The name in an error: `ground truth`, and its file if it has one.
    pub(crate) fn describe(&self) -> String {
        self.path()
            .map_or_else(|| "ground truth".to_owned(), |path| format!("ground truth {}", path.display()))
    }

    fn at(self, path: &Path) -> Self {
        Self { path: Some(path.to_owned()), ..self }
    }

    /// Reads ids from files with the extensions ivecs and npy. Any other file holds the numbers of
    /// queries and neighbours (two u32 or two u64), the ids and, if its size says so, f32
    /// distances.
    ///
    /// # Errors
    /// If the file cannot be read, its size contradicts its header, memory is short, or the work is
    /// cancelled.
    pub fn open(path: impl AsRef<Path>, progress: &Progress) -> Result<Self> {
        let path = path.as_ref();
        let source = OpenedFile::map_to_copy(path)?;
        if let Ok(format @ (Format::Ivecs | Format::Npy)) = Format::from_path(path) {
            let table = source.ids(format, progress)?;
            return Ok(Self::new(table.cols, table.ids, None)?.at(path));
        }
        let headers = source.bin_headers()?;
        let size = source.bytes().len() as u128;
        let with = |per_neighbor: usize| headers.iter().find(|header| header.file_size(per_neighbor) == size);
        let (header, has_distances) = match (with(ID_AND_DISTANCE), with(ID)) {
            (Some(header), _) => (header, true),
            (None, Some(header)) => (header, false),
            (None, None) => return Err(wrong_size(&source, &headers)),
        };
        let (rows, cols) = (header.rows, header.cols);
        if rows > MAX_ROWS as u64 || !(1..=u64::from(u32::MAX)).contains(&cols) {
            let expected = format!("at most {MAX_ROWS} queries of 1 to {}", u32::MAX);
            return Err(Error::file(path, format_args!("{rows} queries of {cols} neighbours"), expected));
        }
        let (queries, k) = (rows as usize, cols as usize);
        let (ids, distances) = source.bytes()[header.bytes..].split_at(queries * k * ID);
        let ids = source.copied(ids, progress)?;
        let distances = has_distances.then(|| source.copied(distances, progress)).transpose()?;
        Ok(Self::new(k, ids, distances)?.at(path))
    }

    /// Writes the numbers of queries and neighbours, the ids and the distances if known, as the
    /// big-ann tools do; with the extension ivecs, ibin or npy, only the ids in that format. The
    /// file appears only when it is complete.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        if let Ok(format @ (Format::Ivecs | Format::Ibin | Format::Npy)) = Format::from_path(path) {
            return self.save_ids(path, format);
        }
        let mut file = AtomicFile::create(path)?;
        file.write_all(bytemuck::cast_slice(&[self.queries as u32, self.k as u32]))?;
        file.write_all(bytemuck::cast_slice(&self.ids))?;
        file.write_all(bytemuck::cast_slice(self.distances.as_deref().unwrap_or_default()))?;
        file.commit()
    }

    /// A ground truth of `k` ids and distances per query.
    pub(crate) fn from_parts(k: usize, ids: Vec<u32>, distances: Vec<f32>) -> Self {
        Self {
            queries: ids.len().checked_div(k).unwrap_or(0),
            ids,
            distances: Some(distances),
            k,
            path: None,
        }
    }

    /// Writes the ids alone as ivecs, ibin or npy. The file appears only when it is complete.
    ///
    /// # Errors
    /// If the format holds vectors, or the file cannot be written.
    pub fn save_ids(&self, path: impl AsRef<Path>, format: Format) -> Result<()> {
        save_ids(path.as_ref(), format, self.k, &self.ids)
    }
}

/// Bytes of an id.
const ID: usize = 4;

/// Bytes of an id and a distance.
const ID_AND_DISTANCE: usize = 8;

fn wrong_size(source: &OpenedFile<'_>, headers: &[BinHeader]) -> Error {
    let size = source.bytes().len() as u128;
    let short = headers[0];
    // Files of range search have another layout: a count per query, all ids, all distances.
    let range =
        BinHeader { rows: 1, ..short }.file_size(ID_AND_DISTANCE) + u128::from(short.rows) * ID as u128;
    if size == range {
        let expected = "a ground truth of k-nearest-neighbour search";
        return Error::file(source.path(), "the ground truth of a range search", expected);
    }
    let stated = headers.iter().find(|header| header.cols != 0).unwrap_or(&short);
    let (ids, both) = (stated.file_size(ID), stated.file_size(ID_AND_DISTANCE));
    let BinHeader { rows, cols, .. } = stated;
    let expected = format!("{ids}, or {both} with distances, for {rows} queries of {cols} by its header");
    Error::file(source.path(), format_args!("{size} bytes"), expected)
}
