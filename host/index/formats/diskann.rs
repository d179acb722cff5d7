//! DiskANN's graph for search in memory: the graph `X`, its vectors `X.data`, and `X_metadata.bin`,
//! which DiskANN's Python package reads.

use std::path::{Path, PathBuf};

use super::bytes::{Bytes, map};
use super::export::Export;
use super::import::{Graph, Source};
use crate::atomic_file::{AtomicFile, with_suffix};
use crate::vectors::embedding::Embedding;
use crate::{ElementType, Error, Metric, Progress, Result, Vectors};

/// Bytes before the first row.
const HEADER: u64 = 24;

/// Maximum number of nodes: DiskANN counts them in an i32.
pub(super) const MAX_NODES: usize = i32::MAX as usize;

/// Writes the graph with the first entry point, its vectors and the metadata. The graph appears
/// last.
pub(super) fn write(export: &Export<'_>, path: &Path) -> Result<()> {
    let index = export.index;
    let degrees = (0..index.len()).map(|node| export.row(node).len() as u64);
    let (edges, most) = (degrees.clone().sum::<u64>(), degrees.max().unwrap_or(0));
    if edges == 0 {
        let found = format!("an index without edges for {}", export.format);
        return Err(Error::file(path, found, "at least one edge: DiskANN cannot load a graph without edges"));
    }
    let stored = Stored::for_export(export, Lift::No)?;
    let mut data = AtomicFile::create(&with_suffix(path, ".data"))?;
    data.write_all(bytemuck::cast_slice(&[index.len() as u32, stored.dim() as u32]))?;
    let mut row = Vec::new();
    export.for_each_node(|node| {
        row.clear();
        stored.append(node, &mut row);
        data.write_all(&row)
    })?;
    let bytes = HEADER + 4 * (index.len() as u64 + edges);
    let mut graph = AtomicFile::create(path)?;
    graph.write_all(&bytes.to_le_bytes())?;
    graph.write_all(bytemuck::cast_slice(&[most as u32, index.entries()[0]]))?;
    // The number of frozen points.
    graph.write_all(&0u64.to_le_bytes())?;
    export.for_each_node(|node| {
        let row = export.row(node);
        graph.write_all(&(row.len() as u32).to_le_bytes())?;
        graph.write_all(bytemuck::cast_slice(&row))
    })?;
    AtomicFile::commit_all(vec![data, stored.metadata(path)?, graph], &[])
}

/// Reads a graph, and compares vectors and metadata with the base if those files exist.
pub(super) fn read(source: &Source<'_>) -> Result<Graph> {
    let map = map(source.path)?;
    let mut file = Bytes::new(source.path, &map, source.progress);
    file.expect("file size in the header:", map.len() as u64)?;
    let most: u32 = file.number("the largest degree")?;
    let start = file.number("the start")?;
    file.expect("frozen points:", 0u64)?;
    let stored = Stored::expected(source, Lift::No)?;
    stored.check_metadata(source)?;
    stored.check_data(source)?;
    let mut graph = Graph::entered_at(vec![start]);
    for node in 0u64.. {
        if file.is_empty() {
            break;
        }
        let degree: u32 = file.number(format_args!("the degree of node {node}"))?;
        if degree > most {
            let found = format!("degree {degree} of node {node}");
            return Err(file.refuse(found, format_args!("at most {most} by the header")));
        }
        graph.push(file.numbers(degree.into(), format_args!("the row of node {node}"))?);
    }
    Ok(graph)
}

/// The files of graph, vectors and metadata.
pub(super) fn files(path: &Path) -> [PathBuf; 3] {
    [path.to_owned(), with_suffix(path, ".data"), metadata(path)]
}

/// Whether inner product adds a coordinate to the vectors: on disk only, since readers there know
/// squared L2 alone.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Lift {
    No,
    Yes,
}

/// A base in the form that DiskANN stores. Under L2 integers keep their type and other floats
/// become f32; other metrics store f32, normalised under cosine. Vectors lifted for inner product
/// are divided by the largest norm, so they have norm 1.
pub(super) struct Stored<'a> {
    base: &'a Vectors,
    metric: Metric,
    embedding: Embedding,
    element: ElementType,
    /// Divisor of all values.
    pub norm: f32,
}

impl<'a> Stored<'a> {
    /// Prepares the base of an export.
    pub(super) fn for_export(export: &Export<'a>, lift: Lift) -> Result<Self> {
        let Some(base) = export.base else {
            let expected = format!("the data set of the index: {} holds vectors", export.format);
            return Err(Error::argument("base", "none", expected));
        };
        base.validate_for(export.index.metric(), &export.progress)?;
        Self::new(base, export.index.metric(), lift, &export.progress)
    }

    /// Prepares the base that a file is compared with.
    pub(super) fn expected(source: &Source<'a>, lift: Lift) -> Result<Self> {
        Self::new(source.base, source.metric, lift, source.progress)
    }

    fn new(base: &'a Vectors, metric: Metric, lift: Lift, progress: &Progress) -> Result<Self> {
        let shown = if metric == Metric::InnerProduct && lift == Lift::No { Metric::L2 } else { metric };
        let embedding = Embedding::new(base, shown, progress)?;
        let largest = embedding.largest_norm();
        let norm = if largest > 0.0 { largest } else { 1.0 };
        let element = match (metric, base.element_type()) {
            (Metric::L2, integer @ (ElementType::U8 | ElementType::I8)) => integer,
            _ => ElementType::F32,
        };
        Ok(Self { base, metric, embedding, element, norm })
    }

    /// Components per stored vector.
    pub(super) fn dim(&self) -> usize {
        self.embedding.dim(self.base.dim())
    }

    /// Bytes per stored vector.
    pub(super) fn row_bytes(&self) -> usize {
        self.dim() * self.element.size()
    }

    /// Writes stored vector `row` as f32 to `out`.
    pub(super) fn vector(&self, row: usize, out: &mut [f32]) {
        self.embedding.embed(self.base, row, out);
        out.iter_mut().for_each(|x| *x /= self.norm);
    }

    /// Appends the bytes of stored vector `row`.
    pub(super) fn append(&self, row: usize, out: &mut Vec<u8>) {
        if self.element == self.base.element_type() && self.metric == Metric::L2 {
            out.extend_from_slice(self.base.bytes_of_row(row));
        } else {
            let mut vector = vec![0.0; self.dim()];
            self.vector(row, &mut vector);
            out.extend_from_slice(bytemuck::cast_slice(&vector));
        }
    }

    /// Checks that `found`, the file's bytes of vector `row`, match the base up to rounding.
    pub(super) fn check(&self, source: &Source<'_>, row: usize, found: &[u8]) -> Result<()> {
        let mut expected = Vec::with_capacity(found.len());
        self.append(row, &mut expected);
        let is_near = || self.element == ElementType::F32 && near(floats(found), floats(&expected));
        if found == expected || is_near() {
            return Ok(());
        }
        let expected = format!("row {row} of {}", self.base.describe());
        Err(source.refuse(format_args!("another vector of node {row}"), expected))
    }

    /// Compares the file of vectors beside a graph with the base, if it exists.
    fn check_data(&self, source: &Source<'_>) -> Result<()> {
        let path = with_suffix(source.path, ".data");
        if !path.exists() {
            return Ok(());
        }
        let map = map(&path)?;
        let data = Source { path: &path, ..*source };
        let mut file = Bytes::new(&path, &map, source.progress);
        data.check_nodes(file.number::<u32>("the number of vectors")?)?;
        file.expect("dimension", self.dim() as u32)?;
        for row in 0..source.base.len() {
            let found = file.take(1, self.row_bytes(), format_args!("row {row}"))?;
            self.check(&data, row, found)?;
        }
        file.end()
    }

    /// The metadata: element type, metric, number of vectors, dimension.
    fn numbers(&self) -> [u64; 4] {
        let element = match self.element {
            ElementType::F32 | ElementType::F16 | ElementType::Bf16 | ElementType::B1 => 0,
            ElementType::I8 => 1,
            ElementType::U8 => 2,
        };
        [element, metric_number(self.metric), self.base.len() as u64, self.base.dim() as u64]
    }

    /// Writes the metadata for the files at `prefix`.
    pub(super) fn metadata(&self, prefix: &Path) -> Result<AtomicFile> {
        let mut file = AtomicFile::create(&metadata(prefix))?;
        file.write_all(bytemuck::cast_slice(&self.numbers()))?;
        Ok(file)
    }

    /// Checks the metadata beside an index if it exists; only DiskANN's Python package writes it.
    pub(super) fn check_metadata(&self, source: &Source<'_>) -> Result<()> {
        let path = metadata(source.path);
        if !path.exists() {
            return Ok(());
        }
        let map = map(&path)?;
        let mut file = Bytes::new(&path, &map, source.progress);
        let [element, metric, rows, dim] = self.numbers();
        file.expect("element type (0 f32, 1 i8, 2 u8)", element)?;
        file.expect("metric (0 l2, 1 ip, 2 cosine)", metric)?;
        file.expect("vectors:", rows)?;
        file.expect("dimension", dim)?;
        file.end()
    }
}

fn metadata(prefix: &Path) -> PathBuf {
    with_suffix(prefix, "_metadata.bin")
}

const fn metric_number(metric: Metric) -> u64 {
    match metric {
        Metric::L2 => 0,
        Metric::InnerProduct => 1,
        Metric::Cosine => 2,
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(size_of::<f32>()).map(bytemuck::pod_read_unaligned)
}

/// Whether two vectors differ by at most a thousandth of the second's norm. Sums in another order
/// make such differences, since the added coordinate is the root of a difference.
fn near(found: impl Iterator<Item = f32>, expected: impl Iterator<Item = f32>) -> bool {
    let (mut difference, mut square) = (0f64, 0f64);
    for (x, y) in found.zip(expected) {
        let (x, y) = (f64::from(x), f64::from(y));
        difference += (x - y) * (x - y);
        square += y * y;
    }
    difference <= 1e-6 * square
}
