//! The native file: a header page, then sections aligned to pages (`docs/formats.md`).

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::header::{
    ADJACENCY, BLOCK, CHECKSUMS, DEGREES, DESCRIPTION, ENTRIES, Header, LAYERS, MAGIC, PAGE, REPEATED,
    SECTIONS, Sections, header,
};
use super::{Adjacency, Description, Fingerprint, Index, Layer, beginning};
use crate::atomic_file::AtomicFile;
use crate::parallel::for_each_block_of;
use crate::progress::Progress;
use crate::search::beam::Start;
use crate::vectors::{Access, MappedFile, Repeated, advise, far_apart, map, open_regular};
use crate::{Error, Result};

/// Nodes written between two looks at whether the work was cancelled.
const AT_A_TIME: usize = 1 << 16;

/// The description section, as JSON.
#[derive(Serialize, Deserialize)]
struct Json {
    kind: String,
    metric: String,
    seed: u64,
    parameters: std::collections::BTreeMap<String, String>,
}

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
        let over = (self.fingerprint, &self.repeated);
        let mut file = IndexFile::create(path, &self.description, over, shape, self.start())?;
        let stage = progress.stage("write", self.nodes as u64);
        for first in (0..self.nodes).step_by(AT_A_TIME) {
            let end = self.nodes.min(first + AT_A_TIME);
            file.append(&degrees[first..end], &neighbors[first * self.max_degree..end * self.max_degree])?;
            stage.advance((end - first) as u64)?;
        }
        file.commit(stale)
    }

    /// Opens an index file and maps its rows. The header is checked, and that the sections are what
    /// it says; [`verify`](Self::verify) checks the rest. The file must not be changed or cut short
    /// while it is open.
    ///
    /// # Errors
    /// If the file cannot be opened or is not an index of this version, its header is damaged, or
    /// it has no entry points.
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

/// An index file while it is written: after [`create`](Self::create) come degrees and padded rows,
/// in any number of pieces, of which none has to be in memory with another.
pub(crate) struct IndexFile {
    file: AtomicFile,
    sections: [Section; SECTIONS.len()],
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

    /// Starts the file of an index of `nodes` nodes with rows of `max_degree` ids, searched from
    /// `start`. The base has `repeated` rows.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn create(
        path: &Path,
        description: &Description,
        (fingerprint, repeated): (Fingerprint, &Repeated),
        (nodes, max_degree): (usize, usize),
        start: Start<'_>,
    ) -> Result<Self> {
        let Start { entries, layers } = start;
        let layers = Layer::words(layers);
        let Description { kind, metric, seed, parameters } = description.clone();
        let json = Json { kind, metric: metric.name().to_owned(), seed, parameters };
        let description = serde_json::to_vec(&json).map_err(|error| Error::io(path)(error.into()))?;
        let mut lengths = [
            description.len(),
            size_of_val(entries),
            4 * nodes,
            4 * nodes * max_degree,
            4 * layers.len(),
            size_of_val(repeated.words()),
            0,
        ];
        lengths[CHECKSUMS] = 4 * lengths.iter().map(|length| length.div_ceil(BLOCK)).sum::<usize>();
        let mut end = PAGE;
        let ranges = lengths.map(|length| {
            let begin = end;
            end = (begin + length).next_multiple_of(PAGE);
            begin..begin + length
        });
        let mut file = AtomicFile::create(path)?;
        // What is written nowhere, up to the pages, is zero.
        file.set_len(end as u64)?;
        file.write_all(&header(fingerprint, (nodes, max_degree), entries.len(), (&ranges, end)))?;
        let mut file = Self { file, sections: ranges.map(Section::new) };
        file.write(DESCRIPTION, &description)?;
        file.write(ENTRIES, bytemuck::cast_slice(entries))?;
        file.write(LAYERS, bytemuck::cast_slice(&layers))?;
        file.write(REPEATED, bytemuck::cast_slice(repeated.words()))?;
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

    /// Puts the file in its place and deletes the `stale` files right before; all nodes have been
    /// appended.
    ///
    /// # Errors
    /// If the file cannot be written or a file cannot be deleted.
    pub(crate) fn commit(mut self, stale: &[PathBuf]) -> Result<()> {
        let checksums: Vec<u32> =
            self.sections[..CHECKSUMS].iter_mut().flat_map(|section| section.end().to_vec()).collect();
        self.write(CHECKSUMS, bytemuck::cast_slice(&checksums))?;
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

/// The sections of an open file.
#[derive(Debug)]
pub(super) struct MappedAdjacency {
    map: MappedFile,
    sections: Sections,
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
    use crate::{ElementType, Metric};

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
            let shape = (nodes, degree);
            let over = (fingerprint, &Repeated::default());
            let mut file = IndexFile::create(&path, &description, over, shape, Start::at(&[1, 2])).unwrap();
            for (degrees, rows) in degrees.chunks(piece).zip(rows.chunks(piece * degree)) {
                file.append(degrees, rows).unwrap();
            }
            file.commit(&[]).unwrap();
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
