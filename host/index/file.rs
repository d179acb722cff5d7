//! The native file: a header page, then sections aligned to pages (`docs/formats.md`).

use std::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use memmap2::Mmap;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{Adjacency, Description, Fingerprint, Index};
use crate::atomic_file::AtomicFile;
use crate::vectors::map;
use crate::{ElementType, Error, Result};

const MAGIC: &[u8; 8] = b"TAGOREIX";
const VERSION: u32 = 1;

/// Sections begin at multiples of this; the header fills the first page.
const PAGE: usize = 4096;

/// Bytes under one checksum.
const BLOCK: usize = 1 << 20;

/// The sections, in the order in which they lie in the file.
const SECTIONS: [&str; 5] = ["description", "entry points", "degrees", "adjacency", "checksums"];
const DESCRIPTION: usize = 0;
const ENTRIES: usize = 1;
const DEGREES: usize = 2;
const ADJACENCY: usize = 3;
const CHECKSUMS: usize = 4;

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
        let path = path.as_ref();
        if let (Adjacency::Mapped(mapped), Some(from)) = (&self.adjacency, &self.path) {
            // Damage must not get checksums that fit it.
            mapped.check_blocks(from)?;
        }
        let Description { kind, metric, seed, parameters } = self.description.clone();
        let json = Json { kind, metric: metric.name().to_owned(), seed, parameters };
        let description = serde_json::to_vec(&json).map_err(|error| Error::io(path)(error.into()))?;
        let (degrees, neighbors) = self.parts();
        let mut contents: [&[u8]; 5] = [
            &description,
            bytemuck::cast_slice(&self.entries),
            bytemuck::cast_slice(degrees),
            bytemuck::cast_slice(neighbors),
            &[],
        ];
        let checksums: Vec<u32> = contents.iter().flat_map(|content| block_checksums(content)).collect();
        contents[CHECKSUMS] = bytemuck::cast_slice(&checksums);

        let header = self.header(&contents.map(<[u8]>::len));
        let mut file = AtomicFile::create(path)?;
        file.write_all(&header)?;
        for content in contents {
            file.write_all(content)?;
            file.write_all(&[0; PAGE][..content.len().next_multiple_of(PAGE) - content.len()])?;
        }
        file.commit()
    }

    fn header(&self, lengths: &[usize; 5]) -> [u8; PAGE] {
        let mut header = [0; PAGE];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, MAGIC);
        put(AT_VERSION, &VERSION.to_le_bytes());
        put(AT_NODES, &(self.nodes as u64).to_le_bytes());
        put(AT_MAX_DEGREE, &(self.max_degree as u32).to_le_bytes());
        put(AT_ENTRIES, &(self.entries.len() as u32).to_le_bytes());
        put(AT_BASE_ROWS, &self.fingerprint.rows.to_le_bytes());
        put(AT_BASE_DIM, &self.fingerprint.dim.to_le_bytes());
        put(AT_BASE_ELEMENT, &element_tag(self.fingerprint.element).to_le_bytes());
        put(AT_BASE_HASH, &self.fingerprint.hash.to_le_bytes());
        let mut offset = PAGE;
        for (section, &length) in lengths.iter().enumerate() {
            let at = AT_SECTIONS + section * SECTION_BYTES;
            put(at, &(offset as u64).to_le_bytes());
            put(at + 8, &(length as u64).to_le_bytes());
            offset += length.next_multiple_of(PAGE);
        }
        put(AT_FILE_BYTES, &(offset as u64).to_le_bytes());
        let crc = crc32fast::hash(&header[..AT_CRC]);
        header[AT_CRC..].copy_from_slice(&crc.to_le_bytes());
        header
    }

    /// Opens an index file and maps its rows. The header is checked, and that the sections are what
    /// it says; [`verify`](Self::verify) checks the rest. The file must not be changed or cut short
    /// while it is open.
    ///
    /// # Errors
    /// If the file cannot be opened or is not an index of this version, or its header is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let map = map(path)?;
        let header = Header::read(path, &map)?;
        let json: Json = serde_json::from_slice(&map[header.sections[DESCRIPTION].clone()])
            .map_err(|error| Error::file(path, format_args!("description: {error}"), "JSON"))?;
        let description = Description {
            metric: json
                .metric
                .parse()
                .map_err(|_| Error::file(path, format_args!("metric {}", json.metric), "l2, ip or cosine"))?,
            kind: json.kind,
            seed: json.seed,
            parameters: json.parameters,
        };
        let entries = bytemuck::cast_slice(&map[header.sections[ENTRIES].clone()]).to_vec();
        Ok(Self {
            description,
            fingerprint: header.fingerprint,
            max_degree: header.max_degree,
            nodes: header.nodes,
            entries,
            adjacency: Adjacency::Mapped(MappedAdjacency { map, sections: header.sections }),
            path: Some(path.to_owned()),
            checked: OnceLock::new(),
        })
    }

    /// Whether the file at `path` begins as an index file does.
    pub fn is_index(path: &Path) -> bool {
        use std::io::Read;
        let mut magic = [0; MAGIC.len()];
        std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == *MAGIC
    }
}

/// A header that has been checked against the size of its file.
struct Header {
    nodes: usize,
    max_degree: usize,
    fingerprint: Fingerprint,
    sections: [Range<usize>; 5],
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
        if u32_at(AT_VERSION) != VERSION {
            return Err(Error::file(
                path,
                format_args!("version {}", u32_at(AT_VERSION)),
                format_args!("version {VERSION}"),
            ));
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
        let entry = |section: usize| {
            let at = AT_SECTIONS + section * SECTION_BYTES;
            (u64_at(at), u64_at(at + 8))
        };
        let blocks: u64 = (0..CHECKSUMS).map(|section| entry(section).1.div_ceil(BLOCK as u64)).sum();
        let lengths = [
            Some(entry(DESCRIPTION).1),
            Some(4 * u64::from(u32_at(AT_ENTRIES))),
            nodes.checked_mul(4),
            nodes.checked_mul(4 * max_degree),
            blocks.checked_mul(4),
        ];
        // Each section must begin where the one before it ends, and have the length that follows
        // from n and the degree: nothing overlaps and nothing lies outside the file.
        let mut end = PAGE as u64;
        let mut sections = [const { 0..0 }; 5];
        for (section, expected) in lengths.into_iter().enumerate() {
            let (offset, length) = entry(section);
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
    map: Mmap,
    sections: [Range<usize>; 5],
}

impl MappedAdjacency {
    /// Degrees and padded rows.
    #[inline]
    pub(super) fn parts(&self) -> (&[u32], &[u32]) {
        (self.u32s(DEGREES), self.u32s(ADJACENCY))
    }

    fn u32s(&self, section: usize) -> &[u32] {
        // Sections lie on pages, and the map begins on one.
        bytemuck::cast_slice(&self.map[self.sections[section].clone()])
    }

    /// Compares the checksum of every block with the one in the file.
    pub(super) fn check_blocks(&self, path: &Path) -> Result<()> {
        let mut expected = self.u32s(CHECKSUMS).iter();
        for (section, name) in self.sections[..CHECKSUMS].iter().zip(SECTIONS) {
            let found = block_checksums(&self.map[section.clone()]);
            // Not `zip`, which would take one checksum too many at the end of a section.
            if let Some(block) = found.iter().position(|found| expected.next() != Some(found)) {
                let found = format!("damage in block {block} of section {name}");
                return Err(Error::file(path, found, "blocks that match their checksums"));
            }
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
