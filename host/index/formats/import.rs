//! Import of an index from the format of another system.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use tagore_device::key::NO_ID;

use super::{IndexFormat, arrays, diskann, diskann_disk, faiss, hnswlib, kgraph, nsg};
use crate::index::{Description, Fingerprint, PaddedRows, random_entries};
use crate::memory::filled;
use crate::{Error, Ids, Index, Metric, Progress, Result, Vectors};

/// Limit on the growth of a graph by padding. Graphs with similar degrees stay far below it, and a
/// small file cannot exhaust memory.
const MAX_PADDING: u64 = 64;

/// Marks a name without a node.
const NONE: usize = usize::MAX;

/// A file to import and the base that it belongs to.
pub(super) struct Source<'a> {
    pub path: &'a Path,
    pub base: &'a Vectors,
    pub metric: Metric,
    pub progress: &'a Progress,
}

/// Unpadded, unchecked rows of a file in one array, and its entry points if it has any.
#[derive(Default)]
pub(super) struct Graph {
    degrees: Vec<u32>,
    ids: Vec<u32>,
    pub entries: Vec<u32>,
    /// The ids of the nodes in the file, if they are not the numbers of the rows.
    pub own_ids: Option<Vec<i64>>,
}

/// Ids of a file as numbers of rows; none if an id is not the number of a row.
pub(super) fn rows_of(ids: &[i64]) -> Option<Vec<u32>> {
    let row = |&id: &i64| u32::try_from(id).ok().filter(|&id| (id as usize) < ids.len());
    ids.iter().map(row).collect()
}

impl Graph {
    /// A graph with entry points and no rows yet.
    pub(super) fn entered_at(entries: Vec<u32>) -> Self {
        Self { entries, ..Self::default() }
    }

    /// Appends the row of the next node.
    pub(super) fn push(&mut self, row: impl IntoIterator<Item = u32>) {
        let before = self.ids.len();
        self.ids.extend(row);
        // The check of degrees refuses such a row.
        self.degrees.push(u32::try_from(self.ids.len() - before).unwrap_or(u32::MAX));
    }

    /// Removes repeated ids from rows, and edges from a node to itself; returns their number. All
    /// ids must be nodes.
    fn leave_out_repeats(&mut self) -> usize {
        // The last row that held each id: a set that needs no clearing between rows.
        let mut last_row = vec![NO_ID; self.degrees.len()];
        let (mut begin, mut kept) = (0, 0);
        for (node, degree) in (0..).zip(&mut self.degrees) {
            last_row[node as usize] = node;
            let (row, end) = (kept, begin + *degree as usize);
            for place in begin..end {
                let id = self.ids[place];
                if std::mem::replace(&mut last_row[id as usize], node) != node {
                    self.ids[kept] = id;
                    kept += 1;
                }
            }
            *degree = (kept - row) as u32;
            begin = end;
        }
        let left_out = self.ids.len() - kept;
        self.ids.truncate(kept);
        left_out
    }

    /// Renames node i to `names[i]`. Names must be below their count; a repeated name is an error.
    pub(super) fn renamed(self, source: &Source<'_>, names: &[u32]) -> Result<Self> {
        let mut places = vec![NONE; names.len()];
        for (place, &name) in names.iter().enumerate() {
            if std::mem::replace(&mut places[name as usize], place) != NONE {
                return Err(source.refuse(format_args!("label {name} twice"), "every label once"));
            }
        }
        let starts: Vec<usize> = self
            .degrees
            .iter()
            .scan(0, |end, &degree| {
                let start = *end;
                *end += degree as usize;
                Some(start)
            })
            .collect();
        // An unknown id stays unknown.
        let name = |&id: &u32| names.get(id as usize).copied().unwrap_or(NO_ID);
        let mut renamed = Self::entered_at(self.entries.iter().map(name).collect());
        for place in places {
            renamed.push(self.ids[starts[place]..][..self.degrees[place] as usize].iter().map(name));
        }
        Ok(renamed)
    }
}

impl Index {
    /// Imports a graph over `base` from the format of another system, and checks it as
    /// [`verify`](Self::verify) does.
    ///
    /// Defaults replace properties that the format lacks (see [`IndexFormat`]): the format's name
    /// as the kind, seed 0, the largest degree found, and 32 random entry points. Repeated ids in a
    /// row, which FAISS's NSG writes, and edges from a node to itself are dropped; the parameter
    /// `edges-left-out` counts them. Labels of hnswlib and ids of FAISS's `IndexIDMap` are rows if
    /// they are 0 to n - 1 in any order. Others are left out and counted by `ids-left-out`, and
    /// [`imported_ids`](Self::imported_ids) tells them: vectors tell the rows of hnswlib's
    /// elements, and FAISS's are those of the file.
    ///
    /// # Errors
    /// If a file cannot be read or is malformed, the graph does not belong to `base`, the file
    /// stores another metric or no entry point where its format has one, or the work is cancelled.
    pub fn import(
        path: impl AsRef<Path>,
        format: IndexFormat,
        base: &Vectors,
        metric: Metric,
        progress: &Progress,
    ) -> Result<Self> {
        let path = path.as_ref();
        if base.is_empty() {
            return Err(Error::mismatch(base.describe(), "0 rows", "at least 1"));
        }
        metric.check(base.element_type())?;
        format.check_element(path, base.element_type())?;
        let source = Source { path, base, metric, progress };
        let graph = match format {
            IndexFormat::Tagore => return source.native(),
            IndexFormat::Nsg => nsg::read(&source, false)?,
            IndexFormat::Nssg => nsg::read(&source, true)?,
            IndexFormat::Kgraph => kgraph::read(&source)?,
            IndexFormat::Hnswlib => hnswlib::read(&source)?,
            IndexFormat::FaissNsg => faiss::read_nsg(&source)?,
            IndexFormat::FaissHnsw => faiss::read_hnsw(&source)?,
            IndexFormat::Diskann => diskann::read(&source)?,
            IndexFormat::DiskannDisk => diskann_disk::read(&source)?,
            IndexFormat::Ibin => arrays::read_ibin(&source)?,
            IndexFormat::Npy => arrays::read_npy(&source)?,
            IndexFormat::Csr => arrays::read_csr(&source)?,
        };
        source.index(format, graph)
    }
}

impl Source<'_> {
    /// The error of a malformed file.
    pub(super) fn refuse(&self, found: impl ToString, expected: impl ToString) -> Error {
        Error::file(self.path, found, expected)
    }

    /// Compares the number of nodes in the file with the base.
    pub(super) fn check_nodes(&self, found: impl Into<i128>) -> Result<()> {
        let (found, n) = (found.into(), self.base.len());
        if found == n as i128 {
            return Ok(());
        }
        Err(self.refuse(format_args!("{found} nodes"), format_args!("{n} as in {}", self.base.describe())))
    }

    /// Compares the metric in the file with the requested one.
    pub(super) fn check_metric(&self, found: Metric) -> Result<()> {
        if found == self.metric {
            return Ok(());
        }
        Err(self.refuse(format_args!("metric {found}"), format_args!("{} as requested", self.metric)))
    }

    fn native(&self) -> Result<Index> {
        let index = Index::open(self.path)?;
        index.check_base(self.base)?;
        self.check_metric(index.metric())?;
        index.verify(self.progress)?;
        Ok(index)
    }

    /// Checks that degrees are at most the number of nodes, and that all ids are nodes; the steps
    /// after it rely on both.
    fn check_rows(&self, graph: &Graph) -> Result<()> {
        let n = graph.degrees.len();
        let mut rest = graph.ids.as_slice();
        for (node, &degree) in graph.degrees.iter().enumerate() {
            if degree as usize > n {
                let found = format!("{degree} neighbours of node {node}");
                return Err(self.refuse(found, format_args!("at most {n}, the number of nodes")));
            }
            let (row, after) = rest.split_at(degree as usize);
            if let Some(id) = row.iter().find(|&&id| id as usize >= n) {
                return Err(self.refuse(format_args!("id {id} in row {node}"), format_args!("ids below {n}")));
            }
            rest = after;
        }
        Ok(())
    }

    /// Checks and pads the rows of a file of `format`.
    fn index(&self, format: IndexFormat, mut graph: Graph) -> Result<Index> {
        self.check_nodes(graph.degrees.len() as u64)?;
        self.check_rows(&graph)?;
        let left_out = graph.leave_out_repeats();
        let Graph { degrees, ids, mut entries, own_ids } = graph;
        let max_degree = degrees.iter().copied().max().unwrap_or(0) as usize;
        let (nodes, held) = (degrees.len() as u64, (degrees.len() + ids.len()) as u64);
        if nodes.saturating_mul(max_degree as u64) > MAX_PADDING * held {
            let found = format!("a row of {max_degree} neighbours, {} on average", ids.len() / degrees.len());
            return Err(self.refuse(found, format_args!("padded rows at most {MAX_PADDING} times larger")));
        }
        let mut neighbors = filled(NO_ID, degrees.len() * max_degree)?;
        let mut rest = ids.as_slice();
        for (node, &degree) in degrees.iter().enumerate() {
            let (row, after) = rest.split_at(degree as usize);
            neighbors[node * max_degree..][..row.len()].copy_from_slice(row);
            rest = after;
        }
        // In other formats a missing entry point is an error.
        if format.max_entries() == Some(0) {
            entries = random_entries(degrees.len(), 0);
        }
        let mut parameters = BTreeMap::from([("from".to_owned(), format.name().to_owned())]);
        if left_out > 0 {
            parameters.insert("edges-left-out".to_owned(), left_out.to_string());
        }
        if own_ids.is_some() {
            parameters.insert("ids-left-out".to_owned(), nodes.to_string());
        }
        let description =
            Description { kind: format.name().to_owned(), metric: self.metric, seed: 0, parameters };
        let fingerprint = Fingerprint::compute(self.base)?;
        let rows = PaddedRows { max_degree, degrees, neighbors };
        let mut index = Index::owned(description, fingerprint, rows, entries);
        let own_ids: Option<Vec<u64>> =
            own_ids.and_then(|ids| ids.into_iter().map(|id| id.try_into().ok()).collect());
        index.imported_ids = own_ids.and_then(|ids| Ids::new(ids).ok()).map(Arc::new);
        // Errors of the checks name the file.
        index.path = Some(self.path.to_owned());
        index.check_graph(self.progress)?;
        Ok(index)
    }
}
