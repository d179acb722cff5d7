//! The graph index, its native file, and the formats of other systems.

mod absent;
mod check;
mod entries;
mod file;
mod fingerprint;
mod formats;
mod header;
mod identity;
mod layer;
mod replace;
mod spots;
mod start;
mod statistics;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};
use tagore_device::key::NO_ID;

pub(crate) use absent::Absent;
pub(crate) use entries::{RANDOM_ENTRIES, random_entries};
pub use file::IndexRoom;
pub(crate) use file::{IndexFile, WrittenRows};
pub use fingerprint::Fingerprint;
pub(crate) use fingerprint::{FNV_START, fnv1a};
pub use formats::{Export, IndexFormat, RowSink};
pub(crate) use identity::Identity;
pub use layer::{Layer, MAX_LAYER_BEAM};
pub(crate) use spots::{Spot, SpotIndex, Spots};
pub(crate) use start::{Graph, Layered, Start};
pub use statistics::Statistics;
pub(crate) use statistics::{Reach, edges_to};

use crate::loops::{find_first, for_each, reduce, rows_mut};
use crate::memory::{collected, collected_in_parallel, fetch, filled, zeros};
use crate::quantize::Compression;
use crate::vectors::{Access, Repeated};
use crate::{Error, IdSet, Ids, Metric, Progress, Result, Vectors};

/// Maximum number of rows of a dense spot that a search compares with its query one by one. So few
/// take no longer than a walk, which may miss rows whose distances are hardly more than rounding
/// errors.
const SCANNED_SPOT: usize = 1024;

/// Searches start at the representatives of spots that hold one row in this many, too.
pub(crate) const LARGE_SPOT: usize = 32;

/// The parameter of a description that counts the rows that updates have inserted since the build.
pub(crate) const INSERTED: &str = "inserted";

/// The largest degree.
pub const MAX_DEGREE: usize = 512;

/// How an index was built.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Description {
    /// The kind, such as `nsg`.
    pub kind: String,
    /// The metric.
    pub metric: Metric,
    /// The seed.
    pub seed: u64,
    /// The build parameters, named as on the command line.
    pub parameters: BTreeMap<String, String>,
}

/// A graph index over a data set: at most `max_degree` neighbours per node, entry points, and a
/// description. Ids are rows of the data set; the vectors are not part of the index.
///
/// An index does not change, and is `Send` and `Sync`: threads share one through an `Arc`. A clone
/// of an index in memory copies its rows, one of a mapped file shares them.
#[derive(Clone, Debug)]
pub struct Index {
    description: Description,
    fingerprint: Fingerprint,
    max_degree: usize,
    nodes: usize,
    entries: Vec<u32>,
    /// Lowest first.
    layers: Vec<Layer>,
    growth: Option<f32>,
    spots: Option<Spots>,
    absent: Absent,
    adjacency: Adjacency,
    path: Option<PathBuf>,
    imported_ids: Option<Arc<Ids>>,
    /// Set once all ids are known to be below n.
    checked: OnceLock<()>,
    identity: Identity,
}

/// The first 64 bytes of text from a file, for errors.
fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(64)]
}

/// The rows of a graph in memory.
pub(crate) struct PaddedRows {
    /// Slots per row.
    pub max_degree: usize,
    /// One per node.
    pub degrees: Vec<u32>,
    /// `max_degree` ids per node, padded with `u32::MAX`.
    pub neighbors: Vec<u32>,
}

/// A degree per node, and rows of `max_degree` ids padded with `u32::MAX`.
#[derive(Clone, Debug)]
enum Adjacency {
    Owned { degrees: Vec<u32>, neighbors: Vec<u32> },
    File(file::FileAdjacency),
}

impl Index {
    /// Makes an index of a graph that its builder guarantees to be valid.
    pub(crate) fn new(
        description: Description,
        fingerprint: Fingerprint,
        rows: PaddedRows,
        entries: Vec<u32>,
    ) -> Self {
        let index = Self::owned(description, fingerprint, rows, entries);
        debug_assert!(index.check_graph(&Progress::silent()).is_ok());
        index.checked.get_or_init(|| ());
        index
    }

    /// Makes an index of an unchecked graph.
    fn owned(
        description: Description,
        fingerprint: Fingerprint,
        rows: PaddedRows,
        entries: Vec<u32>,
    ) -> Self {
        let PaddedRows { max_degree, degrees, neighbors } = rows;
        Self {
            description,
            fingerprint,
            max_degree,
            nodes: degrees.len(),
            entries,
            layers: Vec::new(),
            growth: None,
            spots: None,
            absent: Absent::default(),
            adjacency: Adjacency::Owned { degrees, neighbors },
            path: None,
            imported_ids: None,
            checked: OnceLock::new(),
            identity: Identity::default(),
        }
    }

    /// Makes an index of a given graph: `rows[i]` are the neighbours of node i of `base`.
    ///
    /// # Errors
    /// If the number of rows differs from `base`, there is no entry point, or the rows or entry
    /// points hold an unknown id, a node's own id, or a repeated id.
    pub fn from_rows(
        description: Description,
        base: &Vectors,
        rows: &[Vec<u32>],
        entries: Vec<u32>,
    ) -> Result<Self> {
        if rows.len() != base.len() {
            return Err(Error::mismatch("rows", rows.len(), format_args!("{} as in the base", base.len())));
        }
        let max_degree = rows.iter().map(Vec::len).max().unwrap_or(0);
        let mut neighbors = filled(NO_ID, rows.len() * max_degree)?;
        for (node, row) in rows.iter().enumerate() {
            neighbors[node * max_degree..][..row.len()].copy_from_slice(row);
        }
        let degrees = collected(rows.iter().map(|row| row.len() as u32))?;
        let rows = PaddedRows { max_degree, degrees, neighbors };
        let index = Self::owned(description, Fingerprint::compute(base)?, rows, entries);
        index.check_graph(&Progress::silent())?;
        Ok(index)
    }

    /// The ids that the file of another system has for the rows, if they are not the numbers of the
    /// rows ([`import`](Self::import)). An index does not hold them: they are gone when it is saved
    /// and opened.
    pub fn imported_ids(&self) -> Option<&Ids> {
        self.imported_ids.as_deref()
    }

    /// The number of nodes, n.
    pub fn len(&self) -> usize {
        self.nodes
    }

    /// Whether there are no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes == 0
    }

    /// The largest degree allowed, R.
    pub fn max_degree(&self) -> usize {
        self.max_degree
    }

    /// The neighbours of `node`. In a damaged file, too large a degree is cut to [`max_degree`];
    /// `verify` reports the damage.
    ///
    /// [`max_degree`]: Self::max_degree
    ///
    /// # Panics
    /// If `node >= len()`.
    #[inline]
    pub fn neighbors(&self, node: usize) -> &[u32] {
        let (degrees, neighbors) = self.parts();
        let degree = (degrees[node] as usize).min(self.max_degree);
        &neighbors[node * self.max_degree..][..degree]
    }

    /// Has the neighbours of `node` loaded ahead.
    #[inline]
    pub(crate) fn fetch_neighbors(&self, node: usize) {
        let (degrees, neighbors) = self.parts();
        fetch(&degrees[node..=node]);
        fetch(&neighbors[node * self.max_degree..][..self.max_degree]);
    }

    /// All rows, [`max_degree`](Self::max_degree) ids each: neighbours, then `u32::MAX`.
    ///
    /// # Errors
    /// If a row of a damaged file has other ids after its neighbours.
    pub fn padded_rows(&self) -> Result<&[u32]> {
        let (_, rows) = self.parts();
        let stride = self.max_degree;
        let is_bad = |&node: &usize| {
            rows[node * stride..][..stride][self.neighbors(node).len()..].iter().any(|&id| id != NO_ID)
        };
        match find_first(0..self.nodes, |node| Some(node).filter(is_bad)) {
            Some(node) => {
                let found = format!("a wrong row {node}");
                Err(Error::mismatch(self.describe(), found, "ids, then padding"))
            }
            None => Ok(rows),
        }
    }

    /// The mean degree.
    pub fn mean_degree(&self) -> f64 {
        let edges: u64 = reduce(self.parts().0, 0, |&degree| u64::from(degree), |a, b| a + b);
        edges as f64 / self.nodes.max(1) as f64
    }

    /// The entry points: nodes of the highest of the [`layers`](Self::layers), if there are any.
    pub fn entries(&self) -> &[u32] {
        &self.entries
    }

    /// The layers above the index, lowest first. Empty if searches find their way from the entry
    /// points alone.
    pub fn layers(&self) -> &[Layer] {
        &self.layers
    }

    /// Adds layers and the growth of list distances. The entry points must be nodes of the highest
    /// layer.
    pub(crate) fn with_layers(self, layers: Vec<Layer>, growth: Option<f32>) -> Self {
        let index = Self { layers, growth, ..self };
        debug_assert!(index.check_entries().is_ok());
        index
    }

    /// Adds dense spots.
    pub(crate) fn with_spots(self, spots: Option<Spots>) -> Self {
        Self { spots, ..self }
    }

    /// The dense spots, which searches enter by their representatives; none of most data.
    pub(crate) fn spots(&self) -> Option<&Spots> {
        self.spots.as_ref()
    }

    /// Joins an index over `rows` of `base`, ascending, and those of dense spots, whose
    /// representatives are among the `rows` too.
    pub(crate) fn joined(self, base: &Vectors, rows: &[u32], inside: Vec<SpotIndex>) -> Result<Self> {
        let places = Repeated::default().places(rows, base.len());
        let mut index = self.renamed(base, rows, &places)?;
        let (stride, metric) = (index.max_degree, index.metric());
        let Adjacency::Owned { degrees, neighbors } = &mut index.adjacency else { return Ok(index) };
        let mut spots: BTreeMap<u32, Vec<u32>> =
            index.spots.iter().flat_map(Spots::all).map(|(node, entries)| (node, entries.to_vec())).collect();
        // The representative of a large spot is one row of many for a search outside, which may
        // miss it, but the nearest one of many queries.
        let is_large = |rows: &[u32]| LARGE_SPOT * rows.len() >= base.len();
        let large = inside.iter().map(|inside| &inside.spot).filter(|spot| is_large(&spot.rows));
        let mut large: Vec<u32> = large.map(|spot| spot.rows[spot.representative]).collect();
        large.sort_unstable();
        index.layers.iter_mut().for_each(|layer| layer.add(&large));
        // Representatives of spots in many directions lead to each other by chance.
        let is_scanned = metric == Metric::InnerProduct && rows.len() <= SCANNED_SPOT;
        let more = if is_scanned { rows } else { &large[..] };
        let more: Vec<u32> = more.iter().filter(|node| !index.entries.contains(node)).copied().collect();
        index.entries.extend(more);
        // Searches stop by the growth of the distances of the largest part; under inner product,
        // where it has a scale, by that of the rows outside.
        let (mut most, mut growth) = (rows.len(), index.growth);
        for SpotIndex { spot: Spot { rows, representative }, is_wide, index: part } in inside {
            if rows.len() > most && metric != Metric::InnerProduct {
                (most, growth) = (rows.len(), part.growth);
            }
            for (place, &row) in rows.iter().enumerate().filter(|&(place, _)| place != representative) {
                let near = part.neighbors(place);
                degrees[row as usize] = near.len() as u32;
                let slots = &mut neighbors[row as usize * stride..][..stride];
                slots.iter_mut().zip(near).for_each(|(slot, &near)| *slot = rows[near as usize]);
            }
            // The representative has its edges of the part outside. A spot may have spots of its
            // own.
            let random = random_entries(rows.len(), part.description.seed);
            let first: Vec<u32> = if rows.len() <= SCANNED_SPOT {
                (0..rows.len() as u32).collect()
            } else {
                part.entries.iter().chain(part.neighbors(representative)).chain(&random).copied().collect()
            };
            let here = representative as u32;
            let own = std::iter::once((here, &first[..])).chain(part.spots.iter().flat_map(Spots::all));
            for (node, entries) in own {
                let (known, row) = (spots.entry(rows[node as usize]).or_default(), rows[node as usize]);
                known.extend(entries.iter().map(|&entry| rows[entry as usize]).filter(|&entry| entry != row));
                let is_walked_always = |spots: &Spots| spots.is_walked_always(node);
                if node == here && is_wide && is_large(&rows)
                    || part.spots.as_ref().is_some_and(is_walked_always)
                {
                    known.push(row);
                }
                known.sort_unstable();
                known.dedup();
            }
        }
        let spots = Spots::new(&spots.into_iter().collect::<Vec<_>>());
        Ok(Self { spots, growth, ..index })
    }

    /// The rows of the base that repeat an earlier row and are no nodes of the graph. Empty if the
    /// graph was built over all rows.
    ///
    /// A search that finds the first row of a group of equal rows also returns the others, at the
    /// same distance. A repeated row has the [`neighbors`](Self::neighbors) of the first row of its
    /// group, and no edge leads to it.
    pub fn repeated(&self) -> &Repeated {
        &self.absent.repeated
    }

    /// The rows of the base that were left out of the build; none if it took all. They have no
    /// neighbours, and no search returns them.
    pub fn left_out(&self) -> Option<&IdSet> {
        self.absent.left_out.as_ref()
    }

    /// The rows that a search among `ids`, a set of the rows of the base, may find; all if none.
    pub fn searched(&self, ids: Option<&IdSet>) -> Option<IdSet> {
        let held = self.left_out().map(IdSet::complement);
        match (held, ids) {
            (Some(held), Some(ids)) => Some(held.intersection(ids)),
            (held, ids) => held.or_else(|| ids.cloned()),
        }
    }

    /// Whether `row` was left out of the build.
    pub(crate) fn is_left_out(&self, row: u32) -> bool {
        self.absent.is_left_out(row)
    }

    /// This index as one over `base`, which has as many rows.
    pub(crate) fn over(self, base: &Vectors) -> Result<Self> {
        Ok(Self { fingerprint: Fingerprint::compute(base)?, ..self })
    }

    /// This index with the description of an `earlier` one, but for the length of its lists and the
    /// rows `inserted` since its build.
    pub(crate) fn described_like(mut self, earlier: &Self, inserted: u64) -> Self {
        let knn = self.description.parameters.remove_entry("knn");
        self.description = earlier.description.clone();
        let parameters = &mut self.description.parameters;
        parameters.extend(knn);
        parameters.remove(INSERTED);
        if inserted > 0 {
            parameters.insert(INSERTED.to_owned(), inserted.to_string());
        }
        self
    }

    /// The rows that updates have inserted since the build.
    pub(crate) fn inserted(&self) -> u64 {
        self.description.parameters.get(INSERTED).and_then(|count| count.parse().ok()).unwrap_or(0)
    }

    /// Describes an index of codes as one of the vectors, by their metric.
    pub(crate) fn describe_as(&mut self, metric: Metric, compression: Compression) {
        self.description.metric = metric;
        self.description.parameters.insert("vectors".to_owned(), compression.to_string());
    }

    /// Extends an index over `rows` of `base`, ascending, by the other rows, which are `absent`.
    /// `places` are those of [`Repeated::places`].
    pub(crate) fn expanded(
        self,
        base: &Vectors,
        rows: &[u32],
        places: &[u32],
        absent: Absent,
    ) -> Result<Self> {
        Ok(Self { absent, ..self.renamed(base, rows, places)? })
    }

    /// This index with the ids of `rows` of `base`, ascending. A row of the base gets the
    /// neighbours of its place here; none if it has no place (`u32::MAX`).
    fn renamed(self, base: &Vectors, rows: &[u32], places: &[u32]) -> Result<Self> {
        let stride = self.max_degree;
        let of_place = |place: u32| if place == NO_ID { &[] } else { self.neighbors(place as usize) };
        let mut neighbors: Vec<u32> = zeros(base.len() * stride)?;
        let degrees = collected_in_parallel(places, |&place| of_place(place).len() as u32)?;
        for_each((rows_mut(&mut neighbors, stride.max(1)), places), |(row, &place)| {
            let (named, padding) = row.split_at_mut(of_place(place).len());
            named.iter_mut().zip(of_place(place)).for_each(|(slot, &id)| *slot = rows[id as usize]);
            padding.fill(NO_ID);
        });
        let entries = self.entries.iter().map(|&entry| rows[entry as usize]).collect();
        let layers = self.layers.iter().map(|layer| layer.clone().renamed(rows)).collect();
        let fingerprint = Fingerprint::compute(base)?;
        let padded = PaddedRows { max_degree: stride, degrees, neighbors };
        let spots = self.spots.map(|spots| spots.renamed(rows));
        let index = Self::new(self.description, fingerprint, padded, entries);
        Ok(Self { spots, ..index }.with_layers(layers, self.growth))
    }

    /// What tells this index from others.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// The start of a search.
    pub(crate) fn start(&self) -> Start<'_> {
        let Self { entries, layers, growth, spots, .. } = self;
        Start { entries, layers, growth: *growth, spots: spots.as_ref() }
    }

    /// The nodes of the index itself where searches may start.
    pub(crate) fn first_nodes(&self) -> Vec<u32> {
        let outside = self.layers.first().map_or(&self.entries[..], Layer::nodes);
        outside.iter().copied().chain(self.spots.iter().flat_map(Spots::all_entries)).collect()
    }

    /// The metric.
    pub fn metric(&self) -> Metric {
        self.description.metric
    }

    /// The kind, such as `nsg`.
    pub fn kind(&self) -> &str {
        &self.description.kind
    }

    /// How the index was built.
    pub fn description(&self) -> &Description {
        &self.description
    }

    /// The fingerprint of the data set.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// The file that the index was opened from.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The name of this index in an error: its file, or `index`.
    pub(crate) fn describe(&self) -> String {
        self.path.as_ref().map_or_else(|| "index".to_owned(), |path| path.display().to_string())
    }

    /// Degrees and padded rows.
    #[inline]
    fn parts(&self) -> (&[u32], &[u32]) {
        match &self.adjacency {
            Adjacency::Owned { degrees, neighbors } => (degrees, neighbors),
            Adjacency::File(file) => file.parts(),
        }
    }

    /// Advises the kernel of the access pattern from here on, if rows are mapped from a file.
    pub(crate) fn advise(&self, access: Access) {
        if let Adjacency::File(file) = &self.adjacency {
            file.advise(access);
        }
    }
}
