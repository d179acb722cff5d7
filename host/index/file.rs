//! The native file: a header page, then sections aligned to pages (`docs/formats.md`).

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{Adjacency, Description, Fingerprint, Index, Layer, beginning};
use crate::atomic_file::AtomicFile;
use crate::parallel::for_each_block_of;
use crate::progress::Progress;
use crate::search::beam::{Graph, Start};
use crate::vectors::{Access, MappedFile, Repeated, advise, far_apart, map, open_regular};
use crate::{ElementType, Error, MAX_DEGREE, Result};

const MAGIC: &[u8; 8] = b"TAGOREIX";
/// Files of version 1 have no sections of layers and repeated rows, and are read too.
const VERSION: u32 = 2;

/// Sections begin at multiples of this; the header fills the first page.
const PAGE: usize = 4096;

/// Bytes under one checksum.
const BLOCK: usize = 1 << 20;

/// Nodes written between two looks at whether the work was cancelled.
const AT_A_TIME: usize = 1 << 16;

/// The sections, in the order in which they lie in the file.
const SECTIONS: [&str; 7] =
    ["description", "entry points", "degrees", "adjacency", "layers", "repeated rows", "checksums"];
const DESCRIPTION: usize = 0;
const ENTRIES: usize = 1;
const DEGREES: usize = 2;
const ADJACENCY: usize = 3;
const LAYERS: usize = 4;
const REPEATED: usize = 5;
const CHECKSUMS: usize = 6;

// Offsets in the header.
const AT_VERSION: usize = 8;
const AT_NODES: usize = 16;
const AT_MAX_DEGREE: usize = 24;
const AT_ENTRIES: usize = 28;
const AT_BASE_ROWS: usize = 32;
const AT_BASE_DIM: usize = 40;
const AT_BASE_ELEMENT: usize = 44;
const AT_BASE_HASH: usize = 48;
const AT_FILE_BYTES: usize = 56;
const AT_SECTIONS: usize = 64;
const SECTION_BYTES: usize = 16;
/// CRC-32 of all of the page before it.
const AT_CRC: usize = PAGE - 4;

/// The description section, as JSON.
#[derive(Serialize, Deserialize)]
struct Json {
    kind: String,
    metric: String,
    seed: u64,
    parameters: std::collections::BTreeMap<String, String>,
}

const fn element_tag(element: ElementType) -> u32 {
    match element {
        ElementType::F32 => 0,
        ElementType::F16 => 1,
        ElementType::U8 => 2,
        ElementType::I8 => 3,
    }
}

const ELEMENTS: [ElementType; 4] = [ElementType::F32, ElementType::F16, ElementType::U8, ElementType::I8];

impl Index {
    /// Writes the index. The file appears when it is complete; one of that name stays until then.
    ///
    /// # Errors
    /// If the file cannot be written, or this index is one of a damaged file.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.write(path.as_ref(), &[], &Progress::silent())
    }

    /// As [`save`](Self::save), and deletes the `stale` files, such as a report of the older index,
    /// right before the new one takes its place.
    ///
    /// # Errors
    /// As [`save`](Self::save), or if a file cannot be deleted.
    pub fn save_replacing(&self, path: impl AsRef<Path>, stale: &[PathBuf]) -> Result<()> {
        self.write(path.as_ref(), stale, &Progress::silent())
    }

    /// As [`save_replacing`](Self::save_replacing), with a handle that watches and cancels it.
    pub(super) fn write(&self, path: &Path, stale: &[PathBuf], progress: &Progress) -> Result<()> {
        if let (Adjacency::Mapped(mapped), Some(from)) = (&self.adjacency, &self.path) {
            // Damage must not get checksums that fit it.
            mapped.check_blocks(from, progress)?;
        }
        let (degrees, neighbors) = self.parts();
        let shape = (self.nodes, self.max_degree);
        let mut file =
            IndexFile::create(path, &self.description, self.fingerprint, shape, self.entries.len())?;
        let stage = progress.stage("write", self.nodes as u64);
        for first in (0..self.nodes).step_by(AT_A_TIME) {
            let end = self.nodes.min(first + AT_A_TIME);
            file.append(&degrees[first..end], &neighbors[first * self.max_degree..end * self.max_degree])?;
            stage.advance((end - first) as u64)?;
        }
        file.commit(self.start(), &self.repeated, stale)
    }

    /// Opens an index file and maps its rows. The header is checked, and that the sections are what
    /// it says; [`verify`](Self::verify) checks the rest. The file must not be changed or cut short
    /// while it is open.
    ///
    /// # Errors
    /// If the file cannot be opened or is not an index of this version, its header is damaged, or it has no entry points.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let map = map(path)?;
        let header = Header::read(path, &map)?;
        let json: Json =
            serde_json::from_slice(&map[header.sections[DESCRIPTION].clone()]).map_err(|error| {
                let found = format!("description: {}", beginning(&error.to_string()));
                Error::file(path, found, "JSON with kind, metric, seed and parameters")
            })?;
        let metric = beginning(&json.metric);
        let description = Description {
            metric: metric
                .parse()
                .map_err(|_| Error::file(path, format_args!("metric {metric}"), "l2, ip or cosine"))?,
            kind: json.kind,
            seed: json.seed,
            parameters: json.parameters,
        };
        let entries = bytemuck::cast_slice(&map[header.sections[ENTRIES].clone()]).to_vec();
        let layers = Layer::read(bytemuck::cast_slice(&map[header.sections[LAYERS].clone()]))
            .map_err(|found| Error::file(path, found, "layers one behind the other"))?;
        let repeated =
            Repeated::read(bytemuck::cast_slice(&map[header.sections[REPEATED].clone()]), header.nodes)
                .map_err(|found| Error::file(path, found, "each repeated row and the first row like it"))?;
        let index = Self {
            description,
            fingerprint: header.fingerprint,
            max_degree: header.max_degree,
            nodes: header.nodes,
            entries,
            layers,
            repeated,
            adjacency: Adjacency::Mapped(MappedAdjacency { map, sections: header.sections }),
            path: Some(path.to_owned()),
            checked: OnceLock::new(),
        };
        index.check_entry_count()?;
        Ok(index)
    }

    /// Whether the file at `path` begins as an index file does.
    pub fn is_index(path: &Path) -> bool {
        use std::io::Read;
        let mut magic = [0; MAGIC.len()];
        open_regular(path).is_ok_and(|mut file| file.read_exact(&mut magic).is_ok() && magic == *MAGIC)
    }
}

/// An index file while it is written: after [`create`](Self::create) come degrees and padded rows, in any number of
/// pieces, of which none has to be in memory with another, and in the end what searches begin with.
pub(crate) struct IndexFile {
    file: AtomicFile,
    sections: [Section; SECTIONS.len()],
    fingerprint: Fingerprint,
    /// Nodes, and the largest degree.
    shape: (usize, usize),
}

/// The rows of an index file that is still written.
pub(crate) struct WrittenRows {
    mapped: MappedAdjacency,
    max_degree: usize,
}

impl WrittenRows {
    /// Tells the system how rows are read from here on.
    pub(crate) fn advise(&self, access: Access) {
        self.mapped.advise(access);
    }
}

impl Graph for WrittenRows {
    fn neighbors(&self, node: u32) -> &[u32] {
        let (degrees, rows) = self.mapped.parts();
        &rows[node as usize * self.max_degree..][..degrees[node as usize] as usize]
    }
}

/// A section while it is written.
struct Section {
    bytes: Range<usize>,
    written: usize,
    checksums: Vec<u32>,
    /// Of the block that is not full yet.
    block: crc32fast::Hasher,
}

impl Section {
    fn new(bytes: Range<usize>) -> Self {
        Self { bytes, written: 0, checksums: Vec::new(), block: crc32fast::Hasher::new() }
    }

    /// Counts `content` as written.
    fn add(&mut self, content: &[u8]) {
        let room = self.written.next_multiple_of(BLOCK) - self.written;
        let (first, rest) = content.split_at(room.min(content.len()));
        self.block.update(first);
        if !first.is_empty() && first.len() == room {
            self.end_block();
        }
        let (full, last) = rest.split_at(rest.len() / BLOCK * BLOCK);
        self.checksums.extend(block_checksums(full));
        self.block.update(last);
        self.written += content.len();
    }

    fn end_block(&mut self) {
        self.checksums.push(std::mem::take(&mut self.block).finalize());
    }

    /// The checksums of all blocks, once all has been written.
    fn end(&mut self) -> &[u32] {
        debug_assert_eq!(self.written, self.bytes.len(), "a section is not whole");
        if !self.written.is_multiple_of(BLOCK) {
            self.end_block();
        }
        &self.checksums
    }
}

impl IndexFile {
    /// Bytes of the file of an index without layers and repeated rows. The description and the
    /// entry points fill no more than a page each.
    pub(crate) fn bytes(nodes: usize, max_degree: usize) -> usize {
        let lengths = [PAGE, PAGE, 4 * nodes, 4 * nodes * max_degree, 0, 0];
        let checksums = 4 * lengths.iter().map(|length| length.div_ceil(BLOCK)).sum::<usize>();
        let section = |length: &usize| length.next_multiple_of(PAGE);
        PAGE + lengths.iter().map(section).sum::<usize>() + checksums.next_multiple_of(PAGE)
    }

    /// Starts the file of an index of `nodes` nodes with rows of `max_degree` ids. It has room for
    /// `entries` entry points, and for as many more as fit their last page.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn create(
        path: &Path,
        description: &Description,
        fingerprint: Fingerprint,
        (nodes, max_degree): (usize, usize),
        entries: usize,
    ) -> Result<Self> {
        let Description { kind, metric, seed, parameters } = description.clone();
        let json = Json { kind, metric: metric.name().to_owned(), seed, parameters };
        let description = serde_json::to_vec(&json).map_err(|error| Error::io(path)(error.into()))?;
        // The lengths of the other sections are known in the end.
        let lengths = [description.len(), 4 * entries, 4 * nodes, 4 * nodes * max_degree, 0, 0, 0];
        let (ranges, end) = placed(PAGE, lengths);
        let mut file = AtomicFile::create(path)?;
        // What is written nowhere, up to the pages, is zero.
        file.set_len(end as u64)?;
        let sections = ranges.map(Section::new);
        let mut file = Self { file, sections, fingerprint, shape: (nodes, max_degree) };
        file.write(DESCRIPTION, &description)?;
        Ok(file)
    }

    /// Appends the degrees of the next nodes, and their rows.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn append(&mut self, degrees: &[u32], rows: &[u32]) -> Result<()> {
        self.write(DEGREES, bytemuck::cast_slice(degrees))?;
        self.write(ADJACENCY, bytemuck::cast_slice(rows))
    }

    /// The rows, once all nodes have been appended.
    ///
    /// # Errors
    /// If the file cannot be written or mapped.
    pub(crate) fn rows(&mut self) -> Result<WrittenRows> {
        let map = map(self.file.flushed()?)?;
        let sections = self.sections.each_ref().map(|section| section.bytes.clone());
        Ok(WrittenRows { mapped: MappedAdjacency { map, sections }, max_degree: self.shape.1 })
    }

    /// Writes where searches begin and which rows of the base are `repeated`, puts the file in its
    /// place and deletes the `stale` files right before; all nodes have been appended.
    ///
    /// # Errors
    /// If the file cannot be written or a file cannot be deleted.
    pub(crate) fn commit(mut self, start: Start<'_>, repeated: &Repeated, stale: &[PathBuf]) -> Result<()> {
        let Start { entries, layers } = start;
        let layers = Layer::words(layers);
        let section = &mut self.sections[ENTRIES].bytes;
        let (begin, room) = (section.start, section.len().next_multiple_of(PAGE));
        if size_of_val(entries).next_multiple_of(PAGE) != room {
            let expected = format!("as many as fit {room} bytes");
            return Err(Error::argument("entry points", entries.len(), expected));
        }
        *section = begin..begin + size_of_val(entries);
        let mut lengths = self.sections.each_ref().map(|section| section.bytes.len());
        lengths[LAYERS] = 4 * layers.len();
        lengths[REPEATED] = size_of_val(repeated.words());
        lengths[CHECKSUMS] = 4 * lengths.iter().map(|length| length.div_ceil(BLOCK)).sum::<usize>();
        let (ranges, end) = placed(PAGE, lengths);
        self.sections.iter_mut().zip(&ranges).for_each(|(section, range)| section.bytes = range.clone());
        self.file.set_len(end as u64)?;
        self.write(ENTRIES, bytemuck::cast_slice(entries))?;
        self.write(LAYERS, bytemuck::cast_slice(&layers))?;
        self.write(REPEATED, bytemuck::cast_slice(repeated.words()))?;
        let checksums: Vec<u32> =
            self.sections[..CHECKSUMS].iter_mut().flat_map(|section| section.end().to_vec()).collect();
        self.write(CHECKSUMS, bytemuck::cast_slice(&checksums))?;
        let header = header(self.fingerprint, self.shape, entries.len(), (&ranges, end));
        self.file.seek(0)?;
        self.file.write_all(&header)?;
        self.file.commit_replacing(stale)
    }

    /// Appends to a section.
    fn write(&mut self, section: usize, content: &[u8]) -> Result<()> {
        let section = &mut self.sections[section];
        self.file.seek((section.bytes.start + section.written) as u64)?;
        section.add(content);
        self.file.write_all(content)
    }
}

/// Where sections of these lengths lie from byte `begin` on, and where the last of them ends.
fn placed(begin: usize, lengths: [usize; SECTIONS.len()]) -> ([Range<usize>; SECTIONS.len()], usize) {
    let mut end = begin;
    let ranges = lengths.map(|length| {
        let begin = end;
        end = (begin + length).next_multiple_of(PAGE);
        begin..begin + length
    });
    (ranges, end)
}

fn header(
    fingerprint: Fingerprint,
    (nodes, max_degree): (usize, usize),
    entries: usize,
    (sections, file_bytes): (&[Range<usize>; SECTIONS.len()], usize),
) -> [u8; PAGE] {
    let mut header = [0; PAGE];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, MAGIC);
    put(AT_VERSION, &VERSION.to_le_bytes());
    put(AT_NODES, &(nodes as u64).to_le_bytes());
    put(AT_MAX_DEGREE, &(max_degree as u32).to_le_bytes());
    put(AT_ENTRIES, &(entries as u32).to_le_bytes());
    put(AT_BASE_ROWS, &fingerprint.rows.to_le_bytes());
    put(AT_BASE_DIM, &fingerprint.dim.to_le_bytes());
    put(AT_BASE_ELEMENT, &element_tag(fingerprint.element).to_le_bytes());
    put(AT_BASE_HASH, &fingerprint.hash.to_le_bytes());
    for (section, bytes) in sections.iter().enumerate() {
        let at = AT_SECTIONS + section * SECTION_BYTES;
        put(at, &(bytes.start as u64).to_le_bytes());
        put(at + 8, &(bytes.len() as u64).to_le_bytes());
    }
    put(AT_FILE_BYTES, &(file_bytes as u64).to_le_bytes());
    let crc = crc32fast::hash(&header[..AT_CRC]);
    header[AT_CRC..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// A header that has been checked against the size of its file.
struct Header {
    nodes: usize,
    max_degree: usize,
    fingerprint: Fingerprint,
    sections: [Range<usize>; SECTIONS.len()],
}

impl Header {
    fn read(path: &Path, map: &[u8]) -> Result<Self> {
        let page = map.get(..PAGE).ok_or_else(|| {
            Error::file(path, format_args!("{} bytes", map.len()), format_args!("a header of {PAGE}"))
        })?;
        let u32_at = |at: usize| u32::from_le_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | (u64::from(u32_at(at + 4)) << 32);
        if page[..MAGIC.len()] != *MAGIC {
            return Err(Error::file(path, "another kind of file", "a tagore index"));
        }
        let version = u32_at(AT_VERSION);
        if !(1..=VERSION).contains(&version) {
            let (found, expected) = (format!("version {version}"), format!("version 1 to {VERSION}"));
            return Err(Error::file(path, found, expected));
        }
        if crc32fast::hash(&page[..AT_CRC]) != u32_at(AT_CRC) {
            return Err(Error::file(path, "a damaged header", "one that matches its checksum"));
        }
        if u64_at(AT_FILE_BYTES) != map.len() as u64 {
            let expected = format!("{} as its header says", u64_at(AT_FILE_BYTES));
            return Err(Error::file(path, format_args!("{} bytes", map.len()), expected));
        }
        let element = ELEMENTS.get(u32_at(AT_BASE_ELEMENT) as usize).copied().ok_or_else(|| {
            Error::file(path, format_args!("element type {}", u32_at(AT_BASE_ELEMENT)), "0 to 3")
        })?;
        let fingerprint = Fingerprint {
            rows: u64_at(AT_BASE_ROWS),
            dim: u32_at(AT_BASE_DIM),
            element,
            hash: u64_at(AT_BASE_HASH),
        };
        let (nodes, max_degree) = (u64_at(AT_NODES), u64::from(u32_at(AT_MAX_DEGREE)));
        // Without nodes the size of the file says nothing of the degree, which statistics are as long as.
        if max_degree > nodes.max(MAX_DEGREE as u64) {
            let found = format!("a largest degree of {max_degree} for {nodes} nodes");
            return Err(Error::file(path, found, format_args!("at most {}", nodes.max(MAX_DEGREE as u64))));
        }
        // Where a section lies; one that a file of version 1 has not is empty.
        let entry = |section: usize| match (version, section) {
            (1, LAYERS | REPEATED) => None,
            (1, CHECKSUMS) => Some(LAYERS),
            _ => Some(section),
        };
        let entry = |section: usize| {
            entry(section).map(|place| {
                let at = AT_SECTIONS + place * SECTION_BYTES;
                (u64_at(at), u64_at(at + 8))
            })
        };
        let length = |section: usize| entry(section).map_or(0, |(_, length)| length);
        let blocks: u64 = (0..CHECKSUMS).map(|section| length(section).div_ceil(BLOCK as u64)).sum();
        let lengths = [
            Some(length(DESCRIPTION)),
            Some(4 * u64::from(u32_at(AT_ENTRIES))),
            nodes.checked_mul(4),
            nodes.checked_mul(4 * max_degree),
            // Whole words and pairs of words, of any number.
            Some(length(LAYERS) / 4 * 4),
            Some(length(REPEATED) / 8 * 8),
            blocks.checked_mul(4),
        ];
        // Each section must begin where the one before it ends, and have the length that follows
        // from n and the degree: nothing overlaps and nothing lies outside the file.
        let mut end = PAGE as u64;
        let mut sections = [const { 0..0 }; SECTIONS.len()];
        for (section, expected) in lengths.into_iter().enumerate() {
            let Some((offset, length)) = entry(section) else {
                sections[section] = end as usize..end as usize;
                continue;
            };
            if offset != end || Some(length) != expected || length > map.len() as u64 - end {
                let found = format!("section {} at {offset}, {length} bytes", SECTIONS[section]);
                let expected = expected.map_or("too many".to_owned(), |bytes| bytes.to_string());
                return Err(Error::file(path, found, format_args!("it at {end}, {expected} bytes")));
            }
            sections[section] = offset as usize..(offset + length) as usize;
            end = (offset + length).next_multiple_of(PAGE as u64).min(map.len() as u64);
        }
        if end != map.len() as u64 {
            return Err(Error::file(
                path,
                format_args!("{} bytes", map.len()),
                format_args!("{end} for its sections"),
            ));
        }
        if nodes != fingerprint.rows || nodes > u64::from(u32::MAX) {
            return Err(Error::file(
                path,
                format_args!("{nodes} nodes"),
                format_args!("{} as the base", fingerprint.rows),
            ));
        }
        Ok(Self { nodes: nodes as usize, max_degree: max_degree as usize, fingerprint, sections })
    }
}

/// The sections of an open file.
#[derive(Debug)]
pub(super) struct MappedAdjacency {
    map: MappedFile,
    sections: [Range<usize>; SECTIONS.len()],
}

impl MappedAdjacency {
    /// Degrees and padded rows.
    #[inline]
    pub(super) fn parts(&self) -> (&[u32], &[u32]) {
        (self.u32s(DEGREES), self.u32s(ADJACENCY))
    }

    /// Runs `read`, which reads rows that are far apart.
    pub(super) fn far_apart<R>(&self, read: impl FnOnce() -> R) -> R {
        far_apart(&self.map, read)
    }

    fn u32s(&self, section: usize) -> &[u32] {
        // Sections lie on pages, and the map begins on one.
        bytemuck::cast_slice(&self.map[self.sections[section].clone()])
    }

    /// Tells the system how rows are read from here on.
    pub(super) fn advise(&self, access: Access) {
        advise(&self.map, access);
    }

    /// Compares the checksum of every block with the one in the file.
    pub(super) fn check_blocks(&self, path: &Path, progress: &Progress) -> Result<()> {
        let mut checksums = self.u32s(CHECKSUMS);
        let stage = progress.stage("check", checksums.len() as u64);
        for (section, name) in self.sections[..CHECKSUMS].iter().zip(SECTIONS) {
            let content = &self.map[section.clone()];
            let blocks = content.len().div_ceil(BLOCK);
            let (expected, rest) = checksums.split_at(blocks.min(checksums.len()));
            checksums = rest;
            for_each_block_of(1, blocks, &stage, |block| {
                let block = block.start;
                let bytes = &content[block * BLOCK..((block + 1) * BLOCK).min(content.len())];
                if expected.get(block) == Some(&crc32fast::hash(bytes)) {
                    return Ok(());
                }
                let found = format!("damage in block {block} of section {name}");
                Err(Error::file(path, found, "blocks that match their checksums"))
            })?;
        }
        let padded = |section: &Range<usize>| {
            let page_end = section.end.next_multiple_of(PAGE).min(self.map.len());
            self.map[section.end..page_end].iter().all(|&byte| byte == 0)
        };
        match self.sections.iter().position(|section| !padded(section)) {
            None => Ok(()),
            Some(section) => Err(Error::file(
                path,
                format_args!("bytes behind section {}", SECTIONS[section]),
                "zeros up to the next page",
            )),
        }
    }
}

fn block_checksums(content: &[u8]) -> Vec<u32> {
    content.par_chunks(BLOCK).map(crc32fast::hash).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Metric;

    #[test]
    fn pieces_of_any_size_make_the_same_file() {
        // Rows of three blocks, and a bit; degrees of less than one.
        let (nodes, degree) = (100_003, 8);
        let degrees: Vec<u32> = (0..nodes).map(|node| node as u32 % 9).collect();
        let rows: Vec<u32> = (0..(nodes * degree) as u32).collect();
        let description =
            Description { kind: "nsg".to_owned(), metric: Metric::L2, seed: 3, parameters: [].into() };
        let fingerprint = Fingerprint { rows: nodes as u64, dim: 2, element: ElementType::U8, hash: 5 };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        let bytes = |piece: usize| {
            let mut file =
                IndexFile::create(&path, &description, fingerprint, (nodes, degree), 1024).unwrap();
            for (degrees, rows) in degrees.chunks(piece).zip(rows.chunks(piece * degree)) {
                file.append(degrees, rows).unwrap();
            }
            let written = file.rows().unwrap();
            for node in [0, nodes / 3, nodes - 1] {
                let row = &rows[node * degree..][..degrees[node] as usize];
                assert_eq!(written.neighbors(node as u32), row, "row {node} before the end");
            }
            drop(written);
            file.commit(Start::at(&[1, 2]), &Repeated::default(), &[]).unwrap();
            std::fs::read(&path).unwrap()
        };
        let whole = bytes(nodes);
        let index = Index::open(&path).unwrap();
        assert_eq!(index.parts(), (&degrees[..], &rows[..]));
        let Adjacency::Mapped(mapped) = &index.adjacency else { panic!("not mapped") };
        mapped.check_blocks(&path, &Progress::silent()).unwrap();
        for piece in [1_000, 1 << 15, 33_333] {
            assert!(bytes(piece) == whole, "pieces of {piece}");
        }
    }
}
