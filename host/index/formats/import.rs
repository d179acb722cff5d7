//! Reading an index in a format of another system.

use std::collections::BTreeMap;
use std::path::Path;

use super::{IndexFormat, arrays, diskann, diskann_disk, faiss, hnswlib, kgraph, nsg};
use crate::index::{Description, Fingerprint};
use crate::prune::random_entries;
use crate::{Error, Index, Metric, Progress, Result, Vectors};

/// How many times the size of its file a graph may take in memory: more than rows of like degrees ever need, and too
/// little for a small file to fill the memory.
const MOST_PADDING: u64 = 64;

/// No place.
const NONE: usize = usize::MAX;

/// What a reader reads.
pub(super) struct Source<'a> {
    pub path: &'a Path,
    pub base: &'a Vectors,
    pub metric: Metric,
    pub progress: &'a Progress,
}

/// The rows of a file one after another, not padded and not checked, and the entry points if it has any.
#[derive(Default)]
pub(super) struct Graph {
    degrees: Vec<u32>,
    ids: Vec<u32>,
    pub entries: Vec<u32>,
}

impl Graph {
    /// A graph without rows that is entered at `entries`.
    pub(super) fn entered_at(entries: Vec<u32>) -> Self {
        Self { entries, ..Self::default() }
    }

    /// Appends the row of the next node.
    pub(super) fn push(&mut self, row: impl IntoIterator<Item = u32>) {
        let before = self.ids.len();
        self.ids.extend(row);
        // A row that is longer than any may be is refused with the other rows.
        self.degrees.push(u32::try_from(self.ids.len() - before).unwrap_or(u32::MAX));
    }

    /// Leaves out ids that a row holds again, and edges of a node to itself; returns their number. All ids are nodes.
    fn leave_out_repeats(&mut self) -> usize {
        // The last row that held each id: a set that needs no clearing between rows.
        let mut last_row = vec![u32::MAX; self.degrees.len()];
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

    /// The graph in which node i is called `names[i]`; an error if two have one name. Names are below their number.
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
        // An unknown id stays one.
        let name = |&id: &u32| names.get(id as usize).copied().unwrap_or(u32::MAX);
        let mut renamed = Self::entered_at(self.entries.iter().map(name).collect());
        for place in places {
            renamed.push(self.ids[starts[place]..][..self.degrees[place] as usize].iter().map(name));
        }
        Ok(renamed)
    }
}

impl Index {
    /// Reads a graph over `base` in the format of another system, and checks it as [`verify`](Self::verify) does.
    ///
    /// What the format does not hold (see [`IndexFormat`]) is filled in: the kind is the format's name, the seed 0,
    /// the largest degree that of the rows, and the entry points are 32 random nodes. Edges that a row holds a
    /// second time, as FAISS's NSG has them, and edges of a node to itself are left out and counted in the parameters,
    /// as `edges-left-out`: no search follows them.
    ///
    /// # Errors
    /// If a file cannot be read or is not of the format, it is not a graph over `base`, it has room for entry points and
    /// holds none, it holds another metric, or the work is cancelled.
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
    /// A refusal of the file.
    pub(super) fn refuse(&self, found: impl ToString, expected: impl ToString) -> Error {
        Error::file(self.path, found, expected)
    }

    /// Checks the number of nodes that the file states.
    pub(super) fn check_nodes(&self, found: impl Into<i128>) -> Result<()> {
        let (found, n) = (found.into(), self.base.len());
        if found == n as i128 {
            return Ok(());
        }
        Err(self.refuse(format_args!("{found} nodes"), format_args!("{n} as {} has", self.base.describe())))
    }

    /// Checks the metric that the file states.
    pub(super) fn check_metric(&self, found: Metric) -> Result<()> {
        if found == self.metric {
            return Ok(());
        }
        Err(self.refuse(format_args!("metric {found}"), format_args!("{} as asked for", self.metric)))
    }

    fn native(&self) -> Result<Index> {
        let index = Index::open(self.path)?;
        index.check_base(self.base)?;
        self.check_metric(index.metric())?;
        index.verify(self.progress)?;
        Ok(index)
    }

    /// Checks that rows are no longer than there are nodes, and that all ids are nodes: what comes after relies on it.
    fn check_rows(&self, graph: &Graph) -> Result<()> {
        let n = graph.degrees.len();
        let mut rest = graph.ids.as_slice();
        for (node, &degree) in graph.degrees.iter().enumerate() {
            if degree as usize > n {
                let found = format!("{degree} neighbours of node {node}");
                return Err(self.refuse(found, format_args!("at most {n}, the number of nodes")));
            }
            let (row, behind) = rest.split_at(degree as usize);
            if let Some(id) = row.iter().find(|&&id| id as usize >= n) {
                return Err(self.refuse(format_args!("id {id} in row {node}"), format_args!("ids below {n}")));
            }
            rest = behind;
        }
        Ok(())
    }

    /// Checks the rows of a file of `format`, and pads them.
    fn index(&self, format: IndexFormat, mut graph: Graph) -> Result<Index> {
        self.check_nodes(graph.degrees.len() as u64)?;
        self.check_rows(&graph)?;
        let left_out = graph.leave_out_repeats();
        let Graph { degrees, ids, mut entries } = graph;
        let max_degree = degrees.iter().copied().max().unwrap_or(0) as usize;
        let (nodes, held) = (degrees.len() as u64, (degrees.len() + ids.len()) as u64);
        if nodes.saturating_mul(max_degree as u64) > MOST_PADDING * held {
            let found = format!("a row of {max_degree} neighbours, {} on average", ids.len() / degrees.len());
            return Err(self
                .refuse(found, format_args!("rows that padding makes at most {MOST_PADDING} times larger")));
        }
        let mut neighbors = vec![u32::MAX; degrees.len() * max_degree];
        let mut rest = ids.as_slice();
        for (node, &degree) in degrees.iter().enumerate() {
            let (row, behind) = rest.split_at(degree as usize);
            neighbors[node * max_degree..][..row.len()].copy_from_slice(row);
            rest = behind;
        }
        // Elsewhere a file without any is refused.
        if format.max_entries() == Some(0) {
            entries = random_entries(degrees.len(), 0);
        }
        let mut parameters = BTreeMap::from([("from".to_owned(), format.name().to_owned())]);
        if left_out > 0 {
            parameters.insert("edges-left-out".to_owned(), left_out.to_string());
        }
        let description =
            Description { kind: format.name().to_owned(), metric: self.metric, seed: 0, parameters };
        let fingerprint = Fingerprint::of(self.base);
        let mut index = Index::owned(description, fingerprint, max_degree, degrees, neighbors, entries);
        // The checks name the file.
        index.path = Some(self.path.to_owned());
        index.check_graph(self.progress)?;
        Ok(index)
    }
}
