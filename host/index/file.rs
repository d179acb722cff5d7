//! The native index file: a header page, then page-aligned sections (`docs/formats.md`).

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use super::header::{
    ABSENT, ADJACENCY, BLOCK, CHECKSUMS, Counts, DEGREES, DESCRIPTION, ENTRIES, Header, LAYERS, MAGIC, PAGE,
    SECTIONS, Sections, header,
};
use super::layer::MAX_LAYERS;
use super::{Absent, Adjacency, Description, Fingerprint, Identity, Index, Layer, beginning};
use super::{Graph, Spots, Start};
use crate::atomic_file::AtomicFile;
use crate::loops::{self, rows};
use crate::parallel::for_each_block_of;
use crate::progress::Progress;
use crate::vectors::{Access, Content, advise, far_apart, map};
use crate::{Error, Result, regular_file};

/// Nodes written between two checks for cancellation: enough for all threads to compute checksums.
const AT_A_TIME: usize = 1 << 19;

/// The description section, a JSON object.
#[derive(Serialize, Deserialize)]
struct Json {
    kind: String,
    metric: String,
    seed: u64,
    parameters: std::collections::BTreeMap<String, String>,
}

impl Index {
    /// Writes the index. The file appears only when it is complete; until then an older file at
    /// `path` stays.
    ///
    /// # Errors
    /// If the file cannot be written, or the index was opened from a damaged file.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        self.write(path.as_ref(), &Progress::silent())
    }

    /// Writes the index like [`save`](Self::save) to its room, and deletes the `stale` files, such
    /// as an older report, right before the new file appears.
    ///
    /// # Errors
    /// As [`save`](Self::save), or if a stale file cannot be deleted.
    pub fn save_in(&self, room: IndexRoom, stale: &[PathBuf]) -> Result<()> {
        self.write_to(room.0, stale, &Progress::silent())
    }

    /// [`save`](Self::save) with progress and cancellation.
    pub(super) fn write(&self, path: &Path, progress: &Progress) -> Result<()> {
        self.write_to(AtomicFile::create(path)?, &[], progress)
    }

    fn write_to(&self, file: AtomicFile, stale: &[PathBuf], progress: &Progress) -> Result<()> {
        if let (Adjacency::File(file), Some(from)) = (&self.adjacency, &self.path) {
            // A damaged block must not get a new checksum.
            file.check(from, progress)?;
        }
        let (degrees, neighbors) = self.parts();
        let (degree, entries) = (self.max_degree, self.entries.len());
        let mut file = IndexFile::begin(file, &self.description, self.fingerprint, degree, entries)?;
        let stage = progress.stage("write", self.nodes as u64);
        for first in (0..self.nodes).step_by(AT_A_TIME) {
            let end = self.nodes.min(first + AT_A_TIME);
            file.append(&degrees[first..end], &neighbors[first * self.max_degree..end * self.max_degree])?;
            stage.advance((end - first) as u64)?;
        }
        file.commit(self.start(), &self.absent.words(), stale).map(drop)
    }

    /// Reads an index file to memory. All but the degrees and the rows is checked;
    /// [`verify`](Self::verify) checks the rest. What happens to the file afterwards changes
    /// nothing. Large files are better [mapped](Self::map).
    ///
    /// # Errors
    /// If the file cannot be read, is no index of a known version, is damaged outside its degrees
    /// and rows, or has no entry points, or memory is short.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        Self::of_content(path, Content::read(path)?)
    }

    /// Maps an index file. All but the degrees and the rows is read and checked;
    /// [`verify`](Self::verify) checks the rest.
    ///
    /// # Safety
    /// - No one changes or truncates the file while the index, or clones of it, exist. Another file
    ///   may be renamed over it. On Unix, a read past the end of a truncated file raises SIGBUS.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub unsafe fn map(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        // SAFETY: the caller's promise.
        Self::of_content(path, Content::Mapped(unsafe { map(path) }?))
    }

    fn of_content(path: &Path, content: Content) -> Result<Self> {
        let header = Header::read(path, &content)?;
        let json: Json =
            serde_json::from_slice(&content[header.sections[DESCRIPTION].clone()]).map_err(|error| {
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
        let entries = bytemuck::cast_slice(&content[header.sections[ENTRIES].clone()]).to_vec();
        let mut layers = Layer::read(bytemuck::cast_slice(&content[header.sections[LAYERS].clone()]))
            .map_err(|found| {
                Error::file(path, found, format_args!("at most {MAX_LAYERS} contiguous layers"))
            })?;
        let absent =
            Absent::read(bytemuck::cast_slice(&content[header.sections[ABSENT].clone()]), header.nodes)
                .map_err(|found| Error::file(path, found, "pairs of a repeated row and its first row"))?;
        let file = FileAdjacency { content: Arc::new(content), sections: header.sections };
        file.check_blocks(path, |section| ![DEGREES, ADJACENCY].contains(&section), &Progress::silent())?;
        let index = Self {
            description,
            fingerprint: header.fingerprint,
            max_degree: header.max_degree,
            nodes: header.nodes,
            entries,
            spots: Spots::split_off(&mut layers),
            layers,
            growth: header.growth,
            absent,
            adjacency: Adjacency::File(file),
            path: Some(path.to_owned()),
            imported_ids: None,
            checked: OnceLock::new(),
            identity: Identity::default(),
        };
        index.check_entry_count()?;
        Ok(index)
    }

    /// Whether the file at `path` starts with the magic bytes of an index file.
    pub fn is_index(path: &Path) -> bool {
        use std::io::Read;
        let mut magic = [0; MAGIC.len()];
        regular_file::open(path).is_ok_and(|mut file| file.read_exact(&mut magic).is_ok() && magic == *MAGIC)
    }
}

/// The file of an index that is still to be built: it has a temporary name, and blocks where the
/// file system gives them in advance. So a full disk is found out before the work, and the index is
/// written sooner. The file is deleted if the room is dropped.
#[derive(Debug)]
pub struct IndexRoom(AtomicFile);

impl IndexRoom {
    /// Room at `path` for an index of `nodes` nodes with at most `max_degree` edges each.
    ///
    /// # Errors
    /// If the file cannot be written, or its disk has too little room.
    pub fn reserve(path: impl AsRef<Path>, nodes: usize, max_degree: usize) -> Result<Self> {
        let mut file = AtomicFile::create(path.as_ref())?;
        file.reserve(IndexFile::bytes(nodes, max_degree) as u64)?;
        Ok(Self(file))
    }
}

/// An index file being written. After [`begin`](Self::begin) come degrees and padded rows in
/// pieces of any size, so that only one piece need be in memory; [`commit`](Self::commit) adds the
/// entry points.
pub(crate) struct IndexFile {
    pub(super) file: AtomicFile,
    pub(super) sections: [Section; SECTIONS.len()],
    fingerprint: Fingerprint,
    pub(super) max_degree: usize,
}

/// The rows of an index file that is not committed yet.
pub(crate) struct WrittenRows {
    pub(super) mapped: FileAdjacency,
    max_degree: usize,
}

impl WrittenRows {
    /// Advises the kernel of the access pattern from here on.
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

/// A section being written.
pub(super) struct Section {
    pub(super) bytes: Range<usize>,
    written: usize,
    pub(super) checksums: Vec<u32>,
    /// Running checksum of the incomplete last block.
    pub(super) block: crc32fast::Hasher,
}

impl Section {
    fn new(bytes: Range<usize>) -> Self {
        Self { bytes, written: 0, checksums: Vec::new(), block: crc32fast::Hasher::new() }
    }

    /// Adds `content` to the checksums and the length.
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

    /// Checksums of all blocks of the complete section.
    fn end(&mut self) -> &[u32] {
        debug_assert_eq!(self.written, self.bytes.len(), "an incomplete section");
        if !self.written.is_multiple_of(BLOCK) {
            self.end_block();
        }
        &self.checksums
    }
}

impl IndexFile {
    /// File size in bytes of an index without layers and repeated rows, whose description and entry
    /// points take at most one page each.
    pub(crate) fn bytes(nodes: usize, max_degree: usize) -> usize {
        let lengths = [PAGE, PAGE, 4 * nodes, 4 * nodes * max_degree, 0, 0];
        let checksums = 4 * lengths.iter().map(|length| length.div_ceil(BLOCK)).sum::<usize>();
        let section = |length: &usize| length.next_multiple_of(PAGE);
        PAGE + lengths.iter().map(section).sum::<usize>() + checksums.next_multiple_of(PAGE)
    }

    /// Starts the index of one node per row of the base, with rows of `max_degree` ids, in a `file`
    /// without content. It has room for `entries` entry points, rounded up to whole pages.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn begin(
        mut file: AtomicFile,
        description: &Description,
        fingerprint: Fingerprint,
        max_degree: usize,
        entries: usize,
    ) -> Result<Self> {
        let nodes = fingerprint.rows as usize;
        let Description { kind, metric, seed, parameters } = description.clone();
        let json = Json { kind, metric: metric.name().to_owned(), seed, parameters };
        let description =
            serde_json::to_vec(&json).map_err(|error| Error::io(file.target())(error.into()))?;
        // `commit` sets the lengths of the other sections.
        let lengths = [description.len(), 4 * entries, 4 * nodes, 4 * nodes * max_degree, 0, 0, 0];
        let (ranges, end) = placed(PAGE, lengths);
        // Unwritten bytes, up to the next page, are zero.
        file.set_len(end as u64)?;
        let sections = ranges.map(Section::new);
        let mut file = Self { file, sections, fingerprint, max_degree };
        file.write(DESCRIPTION, &description)?;
        Ok(file)
    }

    /// Appends degrees and rows of the next nodes.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn append(&mut self, degrees: &[u32], rows: &[u32]) -> Result<()> {
        self.write(DEGREES, bytemuck::cast_slice(degrees))?;
        self.write(ADJACENCY, bytemuck::cast_slice(rows))
    }

    /// Maps the rows. All nodes must have been appended.
    ///
    /// # Errors
    /// If the file cannot be written or mapped.
    pub(crate) fn rows(&mut self) -> Result<WrittenRows> {
        // SAFETY: no one else knows the file, and its rows are complete: `commit` writes other
        // parts, and `replace_rows` takes the map.
        let content = Content::Mapped(unsafe { map(self.file.flushed()?) }?);
        let sections = self.sections.each_ref().map(|section| section.bytes.clone());
        Ok(WrittenRows {
            mapped: FileAdjacency { content: Arc::new(content), sections },
            max_degree: self.max_degree,
        })
    }

    /// Writes the entry points, layers and the words of `absent` rows, deletes the `stale` files
    /// and puts the file in place. All nodes must have been appended. Returns the length of the
    /// file, and the CRC-32 of its first page.
    ///
    /// # Errors
    /// If the file cannot be written, or a stale file cannot be deleted.
    pub(crate) fn commit(
        mut self,
        start: Start<'_>,
        absent: &[u32],
        stale: &[PathBuf],
    ) -> Result<(u64, u32)> {
        let Start { entries, layers, growth, spots } = start;
        let spots = spots.map(|spots| spots.layer().clone());
        let layers: Vec<u32> =
            Layer::words(layers).into_iter().chain(Layer::words(spots.as_slice())).collect();
        let section = &mut self.sections[ENTRIES].bytes;
        let (begin, room) = (section.start, section.len().next_multiple_of(PAGE));
        if size_of_val(entries).next_multiple_of(PAGE) != room {
            let expected = format!("a number filling {room} bytes");
            return Err(Error::argument("entry points", entries.len(), expected));
        }
        *section = begin..begin + size_of_val(entries);
        let mut lengths = self.sections.each_ref().map(|section| section.bytes.len());
        lengths[LAYERS] = 4 * layers.len();
        lengths[ABSENT] = size_of_val(absent);
        lengths[CHECKSUMS] = 4 * lengths.iter().map(|length| length.div_ceil(BLOCK)).sum::<usize>();
        let (ranges, end) = placed(PAGE, lengths);
        self.sections.iter_mut().zip(&ranges).for_each(|(section, range)| section.bytes = range.clone());
        self.file.set_len(end as u64)?;
        self.write(ENTRIES, bytemuck::cast_slice(entries))?;
        self.write(LAYERS, bytemuck::cast_slice(&layers))?;
        self.write(ABSENT, bytemuck::cast_slice(absent))?;
        let checksums: Vec<u32> =
            self.sections[..CHECKSUMS].iter_mut().flat_map(|section| section.end().to_vec()).collect();
        self.write(CHECKSUMS, bytemuck::cast_slice(&checksums))?;
        let counts = Counts { max_degree: self.max_degree, entries: entries.len(), growth };
        let header = header(self.fingerprint, counts, &ranges, end);
        self.file.write_at(0, &header)?;
        self.file.commit_replacing(stale)?;
        Ok((end as u64, crc32fast::hash(&header)))
    }

    /// Appends `content` to a section.
    fn write(&mut self, section: usize, content: &[u8]) -> Result<()> {
        let section = &mut self.sections[section];
        let offset = (section.bytes.start + section.written) as u64;
        section.add(content);
        self.file.write_at(offset, content)
    }
}

/// Byte ranges of page-aligned sections of these lengths, the first at `begin`, and the end of the
/// last page.
fn placed(begin: usize, lengths: [usize; SECTIONS.len()]) -> (Sections, usize) {
    let mut end = begin;
    let ranges = lengths.map(|length| {
        let begin = end;
        end = (begin + length).next_multiple_of(PAGE);
        begin..begin + length
    });
    (ranges, end)
}

/// The sections of an open file.
#[derive(Clone, Debug)]
pub(super) struct FileAdjacency {
    content: Arc<Content>,
    sections: Sections,
}

impl FileAdjacency {
    /// Degrees and padded rows.
    #[inline]
    pub(super) fn parts(&self) -> (&[u32], &[u32]) {
        (self.u32s(DEGREES), self.u32s(ADJACENCY))
    }

    /// Runs `read`, which reads distant rows, without read-ahead.
    pub(super) fn far_apart<R>(&self, read: impl FnOnce() -> R) -> R {
        match self.content.map() {
            Some(map) => far_apart(map, read),
            None => read(),
        }
    }

    pub(super) fn u32s(&self, section: usize) -> &[u32] {
        // Sections start on pages, and the content on a word, so the cast is aligned.
        bytemuck::cast_slice(&self.content[self.sections[section].clone()])
    }

    /// Advises the kernel of the access pattern from here on.
    pub(super) fn advise(&self, access: Access) {
        if let Some(map) = self.content.map() {
            advise(map, access);
        }
    }

    /// Compares the checksum of each block of some sections, by their numbers, with the file's.
    fn check_blocks(&self, path: &Path, which: impl Fn(usize) -> bool, progress: &Progress) -> Result<()> {
        let mut checksums = self.u32s(CHECKSUMS);
        let stage = progress.stage("check", checksums.len() as u64);
        for (number, (section, name)) in self.sections[..CHECKSUMS].iter().zip(SECTIONS).enumerate() {
            let content = &self.content[section.clone()];
            let blocks = content.len().div_ceil(BLOCK);
            let (expected, rest) = checksums.split_at(blocks.min(checksums.len()));
            checksums = rest;
            if !which(number) {
                continue;
            }
            for_each_block_of(1, blocks, &stage, |block| {
                let block = block.start;
                let bytes = &content[block * BLOCK..((block + 1) * BLOCK).min(content.len())];
                if expected.get(block) == Some(&crc32fast::hash(bytes)) {
                    return Ok(());
                }
                let found = format!("damage in block {block} of section {name}");
                Err(Error::file(path, found, "blocks matching their checksums"))
            })?;
        }
        Ok(())
    }

    /// Compares the checksum of each block with the file's, and checks the bytes between sections.
    pub(super) fn check(&self, path: &Path, progress: &Progress) -> Result<()> {
        self.check_blocks(path, |_| true, progress)?;
        let padded = |section: &Range<usize>| {
            let page_end = section.end.next_multiple_of(PAGE).min(self.content.len());
            self.content[section.end..page_end].iter().all(|&byte| byte == 0)
        };
        match self.sections.iter().position(|section| !padded(section)) {
            None => Ok(()),
            Some(section) => Err(Error::file(
                path,
                format_args!("nonzero bytes after section {}", SECTIONS[section]),
                "zeros up to the next page",
            )),
        }
    }
}

fn block_checksums(content: &[u8]) -> Vec<u32> {
    loops::map(rows(content, BLOCK), crc32fast::hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ElementType, Metric};

    #[test]
    fn the_file_does_not_depend_on_the_pieces() {
        // Rows fill three blocks and part of a fourth; degrees fill less than one.
        let (nodes, degree) = (100_003, 8);
        let degrees: Vec<u32> = (0..nodes).map(|node| node as u32 % 9).collect();
        let rows: Vec<u32> = (0..(nodes * degree) as u32).collect();
        let description =
            Description { kind: "nsg".to_owned(), metric: Metric::L2, seed: 3, parameters: [].into() };
        let fingerprint = Fingerprint { rows: nodes as u64, dim: 2, element: ElementType::U8, hash: 5 };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        let bytes = |piece: usize| {
            let file = AtomicFile::create(&path).unwrap();
            let mut file = IndexFile::begin(file, &description, fingerprint, degree, 1024).unwrap();
            for (degrees, rows) in degrees.chunks(piece).zip(rows.chunks(piece * degree)) {
                file.append(degrees, rows).unwrap();
            }
            let written = file.rows().unwrap();
            for node in [0, nodes / 3, nodes - 1] {
                let row = &rows[node * degree..][..degrees[node] as usize];
                assert_eq!(written.neighbors(node as u32), row, "row {node} before the end");
            }
            drop(written);
            file.commit(Start::at(&[1, 2]), &[], &[]).unwrap();
            std::fs::read(&path).unwrap()
        };
        let whole = bytes(nodes);
        let index = Index::open(&path).unwrap();
        assert_eq!(index.parts(), (&degrees[..], &rows[..]));
        let Adjacency::File(file) = &index.adjacency else { panic!("not of a file") };
        file.check(&path, &Progress::silent()).unwrap();
        // SAFETY: the file changes when the map is gone.
        let mapped = unsafe { Index::map(&path) }.unwrap();
        assert_eq!(mapped.parts(), index.parts());
        drop(mapped);
        std::fs::write(&path, "").unwrap();
        assert_eq!(index.parts(), (&degrees[..], &rows[..]), "a file that was read may change");
        for piece in [1_000, 1 << 15, 33_333] {
            assert!(bytes(piece) == whole, "pieces of {piece}");
        }
    }
}
