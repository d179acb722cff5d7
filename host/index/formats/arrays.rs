//! Graphs as plain arrays: padded ibin, npy without padding, and compressed sparse rows (CSR).

use std::path::{Path, PathBuf};

use tagore_device::key::NO_ID;

use super::bytes::{Bytes, map};
use super::export::Export;
use super::import::{Graph, Source};
use crate::atomic_file::AtomicFile;
use crate::file_set::{PairFile, check_pair};
use crate::vectors::{npy, open_ids_as};
use crate::{Error, Format, Result};

/// Ids buffered between two writes.
const CHUNK: usize = 1 << 18;

pub(super) fn write_ibin(export: &Export<'_>, path: &Path) -> Result<()> {
    let index = export.index;
    let [path, entries_path, sums] = ibin_files(path);
    let mut rows = PairFile::create(&path, index.len(), index.max_degree())?;
    let mut ids = Vec::new();
    export.for_each_node(|node| {
        let end = ids.len() + index.max_degree();
        ids.extend_from_slice(&export.row(node));
        ids.resize(end, NO_ID);
        if ids.len() >= CHUNK || node + 1 == index.len() {
            rows.write_all(bytemuck::cast_slice(&ids))?;
            ids.clear();
        }
        Ok(())
    })?;
    let mut entries = PairFile::create(&entries_path, index.entries().len(), 1)?;
    entries.write_all(bytemuck::cast_slice(index.entries()))?;
    PairFile::commit(rows, entries, &sums)
}

pub(super) fn read_ibin(source: &Source<'_>) -> Result<Graph> {
    let [path, entries_path, sums] = ibin_files(source.path);
    let rows = open_ids_as(&path, Format::Ibin, source.progress)?;
    let mut graph = Graph::entered_at(open_ids_as(&entries_path, Format::Ibin, source.progress)?.ids);
    check_pair(&sums, [&path, &entries_path], source.progress)?;
    for row in rows.ids.chunks_exact(rows.cols) {
        // Padding before the last id is refused with the ids of all rows.
        let degree = row.iter().rposition(|&id| id != NO_ID).map_or(0, |last| last + 1);
        graph.push(row[..degree].iter().copied());
    }
    Ok(graph)
}

/// The files of rows, entry points, and checksums of both.
pub(super) fn ibin_files(path: &Path) -> [PathBuf; 3] {
    [path.to_owned(), path.with_extension("entries.ibin"), path.with_extension("crc32")]
}

pub(super) fn write_npy(export: &Export<'_>, path: &Path) -> Result<()> {
    let index = export.index;
    let degree = export.row(0).len();
    if let Some(node) = (0..index.len()).find(|&node| export.row(node).len() != degree) {
        let found = format!("{degree} neighbours of node 0, {} of node {node}", export.row(node).len());
        let expected = "the same degree for all nodes, as in a CAGRA index, for npy";
        return Err(Error::file(path, found, expected));
    }
    if degree == 0 {
        return Err(Error::file(path, "nodes without neighbours", "at least one per node, for npy"));
    }
    let mut file = AtomicFile::create(path)?;
    file.write_all(&npy::header("<u4", index.len() as u64, Some(degree as u64)))?;
    export.for_each_node(|node| file.write_all(bytemuck::cast_slice(&export.row(node))))?;
    file.commit()
}

pub(super) fn read_npy(source: &Source<'_>) -> Result<Graph> {
    let rows = open_ids_as(source.path, Format::Npy, source.progress)?;
    let mut graph = Graph::default();
    rows.ids.chunks_exact(rows.cols).for_each(|row| graph.push(row.iter().copied()));
    Ok(graph)
}

pub(super) fn write_csr(export: &Export<'_>, path: &Path) -> Result<()> {
    let index = export.index;
    let [pointers_path, indices_path] = csr_files(path);
    let mut pointers = AtomicFile::create(&pointers_path)?;
    pointers.write_all(&npy::header("<u8", index.len() as u64 + 1, None))?;
    let mut end = 0u64;
    pointers.write_all(&end.to_le_bytes())?;
    export.for_each_node(|node| {
        end += export.row(node).len() as u64;
        pointers.write_all(&end.to_le_bytes())
    })?;
    let mut indices = AtomicFile::create(&indices_path)?;
    indices.write_all(&npy::header("<u4", end, None))?;
    export.for_each_node(|node| indices.write_all(bytemuck::cast_slice(&export.row(node))))?;
    AtomicFile::commit_all(vec![pointers, indices], &[])
}

pub(super) fn read_csr(source: &Source<'_>) -> Result<Graph> {
    let [path, indices_path] = csr_files(source.path);
    let (pointers, indices) = (map(&path)?, map(&indices_path)?);
    let mut pointers = Integers::open(source, &path, &pointers)?;
    let mut indices = Integers::open(source, &indices_path, &indices)?;
    let mut graph = Graph::default();
    let mut begin = pointers.number("the first pointer")?;
    if begin != 0 {
        return Err(pointers.bytes.refuse(format_args!("the first pointer {begin}"), 0));
    }
    while !pointers.bytes.is_empty() {
        let end = pointers.number("a pointer")?;
        let Ok(degree) = u64::try_from(end - begin) else {
            let expected = "ascending pointers";
            return Err(pointers.bytes.refuse(format_args!("pointer {end} after {begin}"), expected));
        };
        let mut unknown = None;
        let ids = indices.take(degree, "the ids of a row")?;
        graph.push(ids.map(|id| u32::try_from(id).unwrap_or_else(|_| *unknown.insert(id) as u32)));
        if let Some(id) = unknown {
            return Err(indices.bytes.refuse(format_args!("id {id}"), format_args!("0 to {}", u32::MAX)));
        }
        begin = end;
    }
    indices.bytes.end()?;
    Ok(graph)
}

/// The rest of a one-dimensional npy array of integers.
struct Integers<'a> {
    bytes: Bytes<'a>,
    kind: npy::Integer,
}

impl<'a> Integers<'a> {
    fn open(source: &Source<'a>, path: &'a Path, file: &'a [u8]) -> Result<Self> {
        let names = npy::Integer::ALL.map(|(name, ..)| name);
        let expected = format!("a 1-D array of {}", names.join(", "));
        let Some(header) = npy::parse(file) else {
            return Err(Error::file(path, "no npy header of a plain array", expected));
        };
        let known = npy::Integer::named(&header.descr);
        let (&[length], Some(kind)) = (header.shape.as_slice(), known) else {
            let found = format!("a {}-D array of {}", header.shape.len(), header.descr);
            return Err(Error::file(path, found, expected));
        };
        let mut bytes = Bytes::new(path, file, source.progress);
        bytes.take(header.offset as u64, 1, "the header")?;
        let mut whole = bytes.clone();
        whole.take(length, kind.size, "elements")?;
        whole.end()?;
        Ok(Self { bytes, kind })
    }

    /// Takes the next number; `what` names it in the error.
    fn number(&mut self, what: &str) -> Result<i128> {
        Ok(self.take(1, what)?.next().unwrap_or_default())
    }

    /// Takes the next `count` numbers; `what` names them in the error.
    fn take(&mut self, count: u64, what: &str) -> Result<impl ExactSizeIterator<Item = i128> + use<'a>> {
        Ok(self.kind.numbers(self.bytes.take(count, self.kind.size, what)?))
    }
}

/// The files of row pointers and ids.
pub(super) fn csr_files(path: &Path) -> [PathBuf; 2] {
    [path.with_extension("indptr.npy"), path.with_extension("indices.npy")]
}
