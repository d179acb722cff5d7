//! FAISS's `IndexNSGFlat` and `IndexHNSWFlat`: a header, the graph, then an `IndexFlat` of the
//! vectors. Read too: `IndexHNSWCagra`, and any of them in an `IndexIDMap`, whose ids are at the
//! end.

use std::path::Path;

use super::bytes::{Bytes, map};
use super::embedded::Embedded;
use super::export::Export;
use super::import::{Graph, Source, rows_of};
use super::layers::Layers;
use crate::atomic_file::AtomicFile;
use crate::index::random_entries;
use crate::{Metric, Result};

const NSG: &[u8; 4] = b"INSf";
const HNSW: &[u8; 4] = b"IHNf";

/// `IndexHNSWCagra`, whose header ends with more fields.
const CAGRA: &[u8; 4] = b"IHc2";

/// `IndexIDMap` and `IndexIDMap2`.
const ID_MAPS: [&[u8; 4]; 2] = [b"IxMp", b"IxM2"];

// Magic bytes of an `IndexFlat`, by metric.
const FLAT_L2: &[u8; 4] = b"IxF2";
const FLAT_IP: &[u8; 4] = b"IxFI";

const INNER_PRODUCT: i32 = 0;
const L2: i32 = 1;

/// Padding after the last neighbour of a row.
const NONE: i32 = -1;

/// Maximum number of nodes: ids are i32.
pub(super) const MAX_NODES: usize = i32::MAX as usize;

/// Largest degree: offsets into a node's links are i32, and links take at most 30 times the degree
/// over all levels.
pub(super) const MAX_DEGREE: usize = 1 << 24;

/// Value of two unused header fields.
const UNUSED: i64 = 1 << 20;

/// FAISS's defaults for building an NSG anew: GK, build_type, and S, R, L and iterations of the
/// k-NN graph.
const GK: i32 = 64;
const KNN_GRAPH: [i32; 4] = [10, 100, GK + 50, 10];

/// FAISS's defaults of efConstruction and efSearch.
const EF_CONSTRUCTION: i32 = 40;
const EF_SEARCH: i32 = 16;

struct Writer<'a> {
    export: &'a Export<'a>,
    vectors: Embedded<'a>,
    file: AtomicFile,
}

impl<'a> Writer<'a> {
    /// Starts the file with the index header.
    fn create(export: &'a Export<'a>, path: &Path, kind: &[u8; 4]) -> Result<Self> {
        let vectors = Embedded::for_export(export)?;
        let mut writer = Self { export, vectors, file: AtomicFile::create(path)? };
        writer.header(kind)?;
        Ok(writer)
    }

    fn metric(&self) -> i32 {
        if self.export.index.metric() == Metric::L2 { L2 } else { INNER_PRODUCT }
    }

    fn header(&mut self, kind: &[u8; 4]) -> Result<()> {
        self.file.write_all(kind)?;
        self.ints(&[self.vectors.dim() as i32])?;
        for number in [self.export.index.len() as i64, UNUSED, UNUSED] {
            self.file.write_all(&number.to_le_bytes())?;
        }
        self.file.write_all(&[1])?;
        self.ints(&[self.metric()])
    }

    fn ints(&mut self, numbers: &[i32]) -> Result<()> {
        self.file.write_all(bytemuck::cast_slice(numbers))
    }

    fn length(&mut self, length: usize) -> Result<()> {
        self.file.write_all(&(length as u64).to_le_bytes())
    }

    /// Appends the vectors and commits.
    fn commit(mut self) -> Result<()> {
        let kind = if self.metric() == L2 { FLAT_L2 } else { FLAT_IP };
        self.header(kind)?;
        self.length(self.export.index.len() * self.vectors.dim())?;
        let Self { export, vectors, mut file } = self;
        export.for_each_node(|node| file.write_all(bytemuck::cast_slice(&vectors.row(node))))?;
        file.commit()
    }
}

pub(super) fn write_nsg(export: &Export<'_>, path: &Path) -> Result<()> {
    let index = export.index;
    let mut writer = Writer::create(export, path, NSG)?;
    writer.ints(&[GK])?;
    writer.file.write_all(&[0])?;
    writer.ints(&KNN_GRAPH)?;
    let degree = index.max_degree() as i32;
    // R, L, C and search_L, which FAISS derives from the degree.
    writer.ints(&[
        index.len() as i32,
        degree,
        degree + 32,
        degree + 100,
        EF_SEARCH,
        index.entries()[0] as i32,
    ])?;
    writer.file.write_all(&[1])?;
    export.for_each_node(|node| {
        writer.file.write_all(bytemuck::cast_slice(&export.row(node)))?;
        writer.ints(&[NONE])
    })?;
    writer.commit()
}

pub(super) fn write_hnsw(export: &Export<'_>, path: &Path) -> Result<()> {
    let index = export.index;
    let mut writer = Writer::create(export, path, HNSW)?;
    let layers = Layers::for_export(export)?;
    let (base, upper) = (index.max_degree(), layers.degree);
    let highest = layers.highest();
    let begins = |layer: usize| if layer == 0 { 0 } else { base + (layer - 1) * upper };
    let layers_of = |node: usize| 1 + layers.of_node(node).len();
    // The probability of each level; the last takes the rest.
    let factor = layers.level_factor();
    let reach = |layer: usize| (-(layer as f64) / factor).exp();
    writer.length(highest + 1)?;
    for layer in 0..=highest {
        let above = if layer == highest { 0.0 } else { reach(layer + 1) };
        writer.file.write_all(&(reach(layer) - above).to_le_bytes())?;
    }
    writer.length(highest + 2)?;
    for layer in 0..highest + 2 {
        writer.ints(&[begins(layer) as i32])?;
    }
    writer.length(index.len())?;
    export.for_each_node(|node| writer.ints(&[layers_of(node) as i32]))?;
    writer.length(index.len() + 1)?;
    let mut end = 0;
    writer.length(end)?;
    export.for_each_node(|node| {
        end += begins(layers_of(node));
        writer.length(end)
    })?;
    writer.length(end)?;
    let mut row = Vec::new();
    export.for_each_node(|node| {
        row.clear();
        row.extend(export.row(node).iter().map(|&id| id as i32));
        row.resize(base, NONE);
        for layer in layers.of_node(node) {
            row.extend(layers.neighbors(layer, node).map(|id| id as i32));
            row.resize(begins(layer + 1), NONE);
        }
        writer.ints(&row)
    })?;
    writer.ints(&[layers.entry as i32, highest as i32, EF_CONSTRUCTION, EF_SEARCH, 1])?;
    writer.commit()
}

struct Reader<'a> {
    source: &'a Source<'a>,
    vectors: Embedded<'a>,
    file: Bytes<'a>,
    /// The kind of the index, in an ID map if `is_mapped`.
    kind: [u8; 4],
    is_mapped: bool,
}

impl<'a> Reader<'a> {
    /// Reads the header of an index of one of `kinds`, and that of the ID map around it.
    fn new(source: &'a Source<'a>, file: &'a [u8], kinds: &[&[u8; 4]]) -> Result<Self> {
        let file = Bytes::new(source.path, file, source.progress);
        let vectors = Embedded::expected(source);
        let mut reader = Self { source, vectors, file, kind: [0; 4], is_mapped: false };
        reader.kind = reader.header(&[kinds, &ID_MAPS].concat())?;
        reader.is_mapped = ID_MAPS.contains(&&reader.kind);
        if reader.is_mapped {
            reader.kind = reader.header(kinds)?;
        }
        Ok(reader)
    }

    /// Reads the header of an index of one of `kinds`; returns its kind.
    fn header(&mut self, kinds: &[&[u8; 4]]) -> Result<[u8; 4]> {
        let kind: [u8; 4] = self.file.number("the kind of index")?;
        if !kinds.contains(&&kind) {
            let found = format!("kind of index {}", kind.escape_ascii());
            let names: Vec<String> = kinds.iter().map(|kind| kind.escape_ascii().to_string()).collect();
            return Err(self.file.refuse(found, names.join(" or ")));
        }
        self.file.expect("dimension", self.vectors.dim() as i32)?;
        self.source.check_nodes(self.file.number::<i64>("the number of vectors")?)?;
        self.file.take(2, 8, "two unused numbers")?;
        self.file.expect("trained", 1u8)?;
        let metric: i32 = self.file.number("the metric")?;
        let is_l2 = self.source.metric == Metric::L2;
        match metric {
            L2 if !is_l2 => self.source.check_metric(Metric::L2).map(|()| kind),
            INNER_PRODUCT if is_l2 => self.source.check_metric(Metric::InnerProduct).map(|()| kind),
            L2 | INNER_PRODUCT => Ok(kind),
            _ => Err(self.file.refuse(format_args!("metric {metric}"), "0 (inner product) or 1 (L2)")),
        }
    }

    /// Compares the vectors at the end of the file with the base. The ids of an ID map are the rows
    /// of the base, if they are 0 to n - 1; other ids are left out, and the rows are those of the
    /// file.
    fn end(mut self, mut graph: Graph) -> Result<Graph> {
        self.header(&[if self.source.metric == Metric::L2 { FLAT_L2 } else { FLAT_IP }])?;
        let (n, dim) = (self.source.base.len(), self.vectors.dim() as u64);
        self.file.expect("number of values", n as u64 * dim)?;
        let mut vectors = self.file.clone();
        self.file.take(n as u64 * dim, size_of::<f32>(), "the vectors")?;
        let mut labels = Vec::new();
        if self.is_mapped {
            self.file.expect("number of ids", n as u64)?;
            let ids: Vec<i64> = self.file.numbers::<i64>(n as u64, format_args!("ids"))?.collect();
            match rows_of(&ids) {
                Some(rows) => labels = rows,
                None => graph.own_ids = Some(ids),
            }
        }
        self.file.end()?;
        let is_labelled = self.is_mapped && graph.own_ids.is_none();
        let row = |node: usize| if is_labelled { labels[node] as usize } else { node };
        (0..n).try_for_each(|node| self.vectors.check(&mut vectors, row(node)))?;
        if is_labelled { graph.renamed(self.source, &labels) } else { Ok(graph) }
    }
}

pub(super) fn read_nsg(source: &Source<'_>) -> Result<Graph> {
    let map = map(source.path)?;
    let mut reader = Reader::new(source, &map, &[NSG])?;
    let file = &mut reader.file;
    file.take(1, 4, "GK")?;
    file.take(1, 1, "build_type")?;
    file.take(KNN_GRAPH.len() as u64, 4, "the parameters of the k-NN graph")?;
    source.check_nodes(file.number::<i32>("the number of nodes")?)?;
    let degree: i32 = file.number("R")?;
    file.take(3, 4, "L, C and search_L")?;
    let entry: u32 = file.number("the entry point")?;
    file.expect("built", 1u8)?;
    let mut graph = Graph::entered_at(vec![entry]);
    let mut row = Vec::new();
    for node in 0..source.base.len() {
        row.clear();
        loop {
            let id: i32 = file.number(format_args!("the row of node {node}"))?;
            if id == NONE {
                break;
            }
            if row.len() as i64 >= i64::from(degree) {
                return Err(
                    file.refuse(format_args!("more than {degree} neighbours of node {node}"), "at most R")
                );
            }
            row.push(id as u32);
        }
        graph.push(row.iter().copied());
    }
    reader.end(graph)
}

/// Reads the base layer and skips the others.
pub(super) fn read_hnsw(source: &Source<'_>) -> Result<Graph> {
    let map = map(source.path)?;
    let mut reader = Reader::new(source, &map, &[HNSW, CAGRA])?;
    let file = &mut reader.file;
    let has_entry = if &reader.kind == CAGRA {
        let base_alone: u8 = file.number("base_level_only")?;
        file.take(2, 4, "the number of entry points and the type of the vectors")?;
        base_alone == 0
    } else {
        true
    };
    let n = source.base.len() as u64;
    let layers: u64 = file.number("the number of probabilities")?;
    file.take(layers, 8, "the probabilities of layers")?;
    let layers: u64 = file.number("the number of layers")?;
    let begins: Vec<i32> = file.numbers(layers, format_args!("offsets of layers"))?.collect();
    let Some(&base) = begins.get(1).filter(|&&base| base >= 0 && begins[0] == 0) else {
        // A damaged file may list millions; the error shows two.
        let found = format!("layer offsets {:?}", &begins[..begins.len().min(2)]);
        return Err(file.refuse(found, "0 and the end of the base layer"));
    };
    file.expect("number of levels", n)?;
    let levels = file.numbers::<i32>(n, format_args!("levels"))?;
    file.expect("number of offsets", n + 1)?;
    let mut offsets = file.clone();
    file.take(n + 1, 8, "offsets")?;
    let links: u64 = file.number("the number of links")?;
    let mut rows = file.clone();
    file.take(links, 4, "links")?;
    let mut graph = Graph::default();
    let mut end = 0u64;
    for (node, level) in levels.enumerate() {
        offsets.expect("offset", end)?;
        let held = usize::try_from(level).ok().and_then(|level| begins.get(level));
        let Some(&held) = held.filter(|&&held| held >= base) else {
            let expected = format!("1 to {}", begins.len() - 1);
            return Err(offsets.refuse(format_args!("node {node} in {level} layers"), expected));
        };
        end += held as u64;
        let row = rows.numbers::<i32>(held as u64, format_args!("links of node {node}"))?;
        graph.push(row.take(base as usize).take_while(|&id| id != NONE).map(|id| id as u32));
    }
    offsets.expect("offset", end)?;
    if end != links {
        return Err(file.refuse(format_args!("{links} links"), format_args!("{end} by the levels")));
    }
    let entry: u32 = file.number("the entry point")?;
    graph.entries = if has_entry { vec![entry] } else { random_entries(source.base.len(), 0) };
    file.take(4, 4, "max_level, efConstruction, efSearch and upper_beam")?;
    reader.end(graph)
}
