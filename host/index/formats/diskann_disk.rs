//! DiskANN's files for search on disk, with a common prefix `P`:
//!
//! - `P_disk.index`: sectors of vectors with their rows,
//! - `P_disk.index_medoids.bin` and `P_disk.index_centroids.bin`: entry points and their vectors,
//! - `P_pq_pivots.bin` and `P_pq_compressed.bin`: the product quantizer and the codes of all
//!   vectors,
//! - `P_disk.index_max_base_norm.bin`: the largest norm, under inner product only,
//! - `P_metadata.bin`.

use std::path::{Path, PathBuf};

use tagore_device::cluster::drawn;
use tagore_device::key::NO_ID;
use tagore_device::random::{Draws, Stage};

use super::bytes::{Bytes, map};
use super::diskann::{Lift, Stored};
use super::export::Export;
use super::import::{Graph, Source};
use crate::atomic_file::{AtomicFile, with_suffix};
use crate::loops::{for_each, for_each_with, numbered, rows_mut};
use crate::quantize::{CENTRES, ProductQuantizer, SAMPLE};
use crate::{Error, Metric, Result, Vectors};

/// Bytes per sector.
const SECTOR: u64 = 4096;

/// The largest degree that DiskANN loads.
pub(super) const MAX_DEGREE: usize = 512;

/// The most quantizer chunks that DiskANN loads.
const MAX_CHUNKS: usize = 512;

/// Byte offset of the first matrix of `P_pq_pivots.bin`, after the table of offsets.
const PIVOTS: u64 = 4096;

/// Files of DiskANN's own builds that its readers would load with ours: vectors on disk as codes, a
/// rotation before the quantizer, labels.
const OTHERS: [&str; 3] =
    ["_disk.index_pq_pivots.bin", "_pq_pivots.bin_rotation_matrix.bin", "_disk.index_labels.txt"];

/// Vectors encoded between two writes.
const BLOCK: usize = 1 << 16;

/// Layout of `P_disk.index`: whole nodes per sector, or whole sectors per node if nodes are larger.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Layout {
    nodes: u64,
    /// Bytes per vector.
    vector: u64,
    /// Neighbour slots per node.
    degree: u64,
}

impl Layout {
    /// Bytes per node: vector, degree, neighbours.
    fn node_bytes(&self) -> u64 {
        self.vector + 4 * (1 + self.degree)
    }

    /// Nodes per sector; 0 if a node is larger than a sector.
    fn per_sector(&self) -> u64 {
        SECTOR / self.node_bytes()
    }

    /// Nodes per group of sectors, and bytes per group.
    fn group(&self) -> (u64, u64) {
        let nodes = self.per_sector().max(1);
        (nodes, (nodes * self.node_bytes()).next_multiple_of(SECTOR))
    }

    fn file_bytes(&self) -> u64 {
        let (nodes, bytes) = self.group();
        SECTOR + self.nodes.div_ceil(nodes) * bytes
    }

    /// Byte offset of a node.
    fn place(&self, node: u64) -> u64 {
        let (nodes, bytes) = self.group();
        SECTOR + node / nodes * bytes + node % nodes * self.node_bytes()
    }

    /// Fields of the first sector, after their count. DiskANN in C++ reads the first nine, in Rust
    /// all twelve.
    fn header(&self, dim: u64, entry: u32) -> [u64; 12] {
        let frozen = [0, 0];
        let reordered = 0;
        let associated_bytes = 0;
        // Two u32: major 1, minor 0.
        let version = 1;
        [
            self.nodes,
            dim,
            entry.into(),
            self.node_bytes(),
            self.per_sector(),
            frozen[0],
            frozen[1],
            reordered,
            self.file_bytes(),
            associated_bytes,
            SECTOR,
            version,
        ]
    }
}

/// All files, including the one for inner product only.
pub(super) fn files(prefix: &Path) -> Vec<PathBuf> {
    let of_index = ["", "_medoids.bin", "_centroids.bin", "_max_base_norm.bin"];
    let others = ["_metadata.bin", "_pq_pivots.bin", "_pq_compressed.bin"];
    let of_index = of_index.map(|suffix| index_file(prefix, suffix));
    of_index.into_iter().chain(others.map(|suffix| with_suffix(prefix, suffix))).collect()
}

/// Writes all files; the index itself appears last. Files of an earlier export are replaced or
/// deleted.
pub(super) fn write(export: &Export<'_>, prefix: &Path) -> Result<()> {
    if let Some(other) = OTHERS.map(|suffix| with_suffix(prefix, suffix)).iter().find(|path| path.exists()) {
        let expected = format!("none beside {}: delete it, or DiskANN loads it too", prefix.display());
        return Err(Error::file(other, "a file of another DiskANN build", expected));
    }
    let stored = Stored::for_export(export, Lift::Yes)?;
    let chunks = chunks(export, stored.dim())?;
    let mut files = vec![entries(export, prefix)?, centroids(export, &stored, prefix)?];
    let mut stale = Vec::new();
    let norm = index_file(prefix, "_max_base_norm.bin");
    if export.index.metric() == Metric::InnerProduct {
        files.push(bin(&norm, 1, 1, bytemuck::bytes_of(&stored.norm))?);
    } else {
        stale.push(norm);
    }
    files.push(stored.metadata(prefix)?);
    let quantizer = train(export, &stored, chunks)?;
    files.push(pivots(&quantizer, stored.dim(), prefix)?);
    files.push(codes(export, &stored, &quantizer, chunks, prefix)?);
    files.push(sectors(export, &stored, prefix)?);
    AtomicFile::commit_all(files, &stale)
}

/// The number of chunks that the export sets, or the default of `Export::pq_chunks`.
fn chunks(export: &Export<'_>, dim: usize) -> Result<usize> {
    let most = dim.min(MAX_CHUNKS);
    match export.pq_chunks {
        None => Ok(dim.div_ceil(4).max(32).min(most)),
        Some(chunks) if (1..=most).contains(&chunks) => Ok(chunks),
        Some(chunks) => Err(Error::argument("pq_chunks", chunks, format_args!("1 to {most}"))),
    }
}

/// `P_disk.index`, with a suffix.
fn index_file(prefix: &Path, suffix: &str) -> PathBuf {
    with_suffix(prefix, &format!("_disk.index{suffix}"))
}

/// A matrix file, not committed yet.
fn bin(path: &Path, rows: usize, cols: usize, values: &[u8]) -> Result<AtomicFile> {
    let mut file = AtomicFile::create(path)?;
    file.write_all(bytemuck::cast_slice(&[rows as u32, cols as u32]))?;
    file.write_all(values)?;
    Ok(file)
}

fn entries(export: &Export<'_>, prefix: &Path) -> Result<AtomicFile> {
    let entries = export.index.entries();
    bin(&index_file(prefix, "_medoids.bin"), entries.len(), 1, bytemuck::cast_slice(entries))
}

/// The vectors of the entry points: DiskANN starts a search at the nearest.
fn centroids(export: &Export<'_>, stored: &Stored<'_>, prefix: &Path) -> Result<AtomicFile> {
    let entries = export.index.entries();
    let mut values = vec![0f32; entries.len() * stored.dim()];
    for (&entry, vector) in entries.iter().zip(values.chunks_exact_mut(stored.dim())) {
        stored.vector(entry as usize, vector);
    }
    let path = index_file(prefix, "_centroids.bin");
    bin(&path, entries.len(), stored.dim(), bytemuck::cast_slice(&values))
}

/// Trains the quantizer on a sample drawn with the seed of the index.
fn train(export: &Export<'_>, stored: &Stored<'_>, chunks: usize) -> Result<ProductQuantizer> {
    let (n, seed) = (export.index.len(), export.index.description().seed);
    let count = SAMPLE.min(n);
    let row = |index: usize| {
        drawn(Draws::new(seed, Stage::Cells, 0, index as u64), index as u32, count as u32, n as u32)
    };
    let mut values = vec![0f32; count * stored.dim()];
    let write = |(index, vector): (usize, &mut [f32])| stored.vector(row(index) as usize, vector);
    for_each(numbered(rows_mut(&mut values, stored.dim())), write);
    let sample = Vectors::dense_f32(values, stored.dim());
    ProductQuantizer::train(&sample, chunks, seed, &export.progress)
}

/// A table of offsets and three matrices: centres, the mean subtracted from vectors (zero), and the
/// first dimension of each chunk.
fn pivots(quantizer: &ProductQuantizer, dim: usize, prefix: &Path) -> Result<AtomicFile> {
    let (centres, mean, offsets) = (quantizer.centres(), vec![0f32; dim], quantizer.offsets());
    let matrices: [(usize, usize, &[u8]); 3] = [
        (CENTRES, dim, bytemuck::cast_slice(&centres)),
        (dim, 1, bytemuck::cast_slice(&mean)),
        (offsets.len(), 1, bytemuck::cast_slice(&offsets)),
    ];
    let mut places = [PIVOTS; 4];
    for (number, (.., values)) in matrices.iter().enumerate() {
        places[number + 1] = places[number] + 8 + values.len() as u64;
    }
    let mut file =
        bin(&with_suffix(prefix, "_pq_pivots.bin"), places.len(), 1, bytemuck::cast_slice(&places))?;
    file.write_all(&vec![0; PIVOTS as usize - 8 - size_of_val(&places)])?;
    for (rows, cols, values) in matrices {
        file.write_all(bytemuck::cast_slice(&[rows as u32, cols as u32]))?;
        file.write_all(values)?;
    }
    Ok(file)
}

fn codes(
    export: &Export<'_>,
    stored: &Stored<'_>,
    quantizer: &ProductQuantizer,
    chunks: usize,
    prefix: &Path,
) -> Result<AtomicFile> {
    let n = export.index.len();
    let mut file = bin(&with_suffix(prefix, "_pq_compressed.bin"), n, chunks, &[])?;
    let stage = export.progress.stage("codes", n as u64);
    let mut codes = vec![0u8; BLOCK.min(n) * chunks];
    for first in (0..n).step_by(BLOCK) {
        let codes = &mut codes[..BLOCK.min(n - first) * chunks];
        stage.advance((codes.len() / chunks) as u64)?;
        for_each_with(
            numbered(rows_mut(codes, chunks)),
            || vec![0f32; stored.dim()],
            |vector, (index, codes)| {
                stored.vector(first + index, vector);
                quantizer.encode(vector, codes);
            },
        );
        file.write_all(codes)?;
    }
    Ok(file)
}

fn sectors(export: &Export<'_>, stored: &Stored<'_>, prefix: &Path) -> Result<AtomicFile> {
    let index = export.index;
    let layout = Layout {
        nodes: index.len() as u64,
        vector: stored.row_bytes() as u64,
        degree: index.max_degree() as u64,
    };
    let header = layout.header(stored.dim() as u64, index.entries()[0]);
    let mut file = bin(&index_file(prefix, ""), header.len(), 1, bytemuck::cast_slice(&header))?;
    file.write_all(&vec![0; SECTOR as usize - 8 - size_of_val(&header)])?;
    let (nodes, bytes) = layout.group();
    let mut group = Vec::with_capacity(bytes as usize);
    export.for_each_node(|node| {
        let (row, end) = (export.row(node), group.len() + layout.node_bytes() as usize);
        stored.append(node, &mut group);
        group.extend((row.len() as u32).to_le_bytes());
        group.extend_from_slice(bytemuck::cast_slice(&row));
        group.resize(end, 0);
        let next = node as u64 + 1;
        if next == layout.nodes || next.is_multiple_of(nodes) {
            group.resize(bytes as usize, 0);
            file.write_all(&group)?;
            group.clear();
        }
        Ok(())
    })?;
    Ok(file)
}

/// Reads the rows of `P_disk.index` and compares its vectors with the base. Entry points come from
/// `P_disk.index_medoids.bin` if it exists.
pub(super) fn read(source: &Source<'_>) -> Result<Graph> {
    let path = index_file(source.path, "");
    let map = map(&path)?;
    let index = Source { path: &path, ..*source };
    let stored = Stored::expected(source, Lift::Yes)?;
    stored.check_metadata(source)?;
    let mut header = Bytes::new(&path, &map, source.progress);
    let (layout, entry) = read_header(&index, &stored, &mut header)?;
    let mut graph = Graph::entered_at(read_entries(&index, entry)?);
    for node in 0..layout.nodes {
        let mut file = Bytes::new(&path, &map, source.progress);
        file.take(layout.place(node), 1, "sectors")?;
        let vector = file.take(layout.vector, 1, format_args!("the vector of node {node}"))?;
        stored.check(&index, node as usize, vector)?;
        let degree: u32 = file.number(format_args!("the degree of node {node}"))?;
        if u64::from(degree) > layout.degree {
            let found = format!("degree {degree} of node {node}");
            return Err(file.refuse(found, format_args!("at most {} by the header", layout.degree)));
        }
        graph.push(file.numbers(degree.into(), format_args!("the row of node {node}"))?);
    }
    Ok(graph)
}

/// Checks the first sector. Returns the layout and the medoid.
fn read_header(source: &Source<'_>, stored: &Stored<'_>, file: &mut Bytes<'_>) -> Result<(Layout, u32)> {
    let bytes = file.length() as u64;
    file.take(2, 4, "a count of numbers")?;
    source.check_nodes(file.number::<u64>("the number of nodes")?)?;
    file.expect("dimension", stored.dim() as u64)?;
    let entry: u64 = file.number("the medoid")?;
    let node_bytes: u64 = file.number("the bytes of a node")?;
    let vector = stored.row_bytes() as u64;
    let room = node_bytes
        .checked_sub(vector + 4)
        .filter(|room| room.is_multiple_of(4) && room / 4 <= MAX_DEGREE as u64);
    let Some(room) = room else {
        let expected = format!("a vector of {vector}, and 4 for each of 1 to {} numbers", MAX_DEGREE + 1);
        return Err(file.refuse(format_args!("nodes of {node_bytes} bytes"), expected));
    };
    let layout = Layout { nodes: source.base.len() as u64, vector, degree: room / 4 };
    file.expect("nodes per sector:", layout.per_sector())?;
    file.expect("frozen points:", 0u64)?;
    file.take(1, 8, "the frozen point")?;
    file.expect("reordered vectors:", 0u64)?;
    file.expect("file size in the header:", layout.file_bytes())?;
    file.expect("bytes of associated data:", 0u64)?;
    if bytes != layout.file_bytes() {
        return Err(file.refuse(format_args!("{bytes} bytes"), layout.file_bytes()));
    }
    // The check of ids refuses a medoid above u32.
    Ok((layout, u32::try_from(entry).unwrap_or(NO_ID)))
}

/// The entry points beside the index, or else `medoid`.
fn read_entries(index: &Source<'_>, medoid: u32) -> Result<Vec<u32>> {
    let path = with_suffix(index.path, "_medoids.bin");
    if !path.exists() {
        return Ok(vec![medoid]);
    }
    let map = map(&path)?;
    let mut file = Bytes::new(&path, &map, index.progress);
    let count: u32 = file.number("the number of entry points")?;
    file.expect("columns:", 1u32)?;
    let entries = file.numbers(count.into(), format_args!("entry points"))?.collect();
    file.end()?;
    Ok(entries)
}
