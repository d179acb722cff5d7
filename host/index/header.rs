//! The header page of the native index file (`docs/formats.md`).

use std::ops::Range;
use std::path::Path;

use super::Fingerprint;
use crate::{ElementType, Error, MAX_DEGREE, Result};

pub(super) const MAGIC: &[u8; 8] = b"TAGOREIX";
/// Written version. Version 1, which has no sections of layers and repeated rows, is read too.
pub(super) const VERSION: u32 = 2;

/// Alignment of sections, in bytes; the header fills the first page.
pub(super) const PAGE: usize = 4096;

/// Bytes per checksum.
pub(super) const BLOCK: usize = 1 << 20;

/// Names of the sections, in file order.
pub(super) const SECTIONS: [&str; 7] =
    ["description", "entry points", "degrees", "adjacency", "layers", "repeated rows", "checksums"];
pub(super) const DESCRIPTION: usize = 0;
pub(super) const ENTRIES: usize = 1;
pub(super) const DEGREES: usize = 2;
pub(super) const ADJACENCY: usize = 3;
pub(super) const LAYERS: usize = 4;
pub(super) const ABSENT: usize = 5;
pub(super) const CHECKSUMS: usize = 6;

// Offsets in the header, in bytes.
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
/// f32; 0 if it is not known, as in files of older builds.
const AT_GROWTH: usize = AT_SECTIONS + SECTIONS.len() * SECTION_BYTES;
/// CRC-32 of the page up to here.
const AT_CRC: usize = PAGE - 4;

const fn element_tag(element: ElementType) -> u32 {
    match element {
        ElementType::F32 => 0,
        ElementType::F16 => 1,
        ElementType::U8 => 2,
        ElementType::I8 => 3,
        ElementType::Bf16 => 4,
        ElementType::B1 => 5,
    }
}

/// Byte range of each section.
pub(super) type Sections = [Range<usize>; SECTIONS.len()];

/// Numbers of the header that its sections do not tell.
pub(super) struct Counts {
    pub max_degree: usize,
    pub entries: usize,
    pub growth: Option<f32>,
}

/// Encodes the header page of a file of `file_bytes` bytes.
pub(super) fn header(
    fingerprint: Fingerprint,
    Counts { max_degree, entries, growth }: Counts,
    sections: &Sections,
    file_bytes: usize,
) -> [u8; PAGE] {
    let mut header = [0; PAGE];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, MAGIC);
    put(AT_VERSION, &VERSION.to_le_bytes());
    put(AT_NODES, &fingerprint.rows.to_le_bytes());
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
    put(AT_GROWTH, &growth.unwrap_or(0.0).to_le_bytes());
    put(AT_FILE_BYTES, &(file_bytes as u64).to_le_bytes());
    let crc = crc32fast::hash(&header[..AT_CRC]);
    header[AT_CRC..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// A header checked against the size of its file.
pub(super) struct Header {
    pub nodes: usize,
    pub max_degree: usize,
    pub fingerprint: Fingerprint,
    pub growth: Option<f32>,
    pub sections: Sections,
}

impl Header {
    /// Parses the header of the file `map`, opened from `path`.
    ///
    /// # Errors
    /// If the file is no index of a known version, or the header is damaged, contradicts itself or
    /// contradicts the size of the file.
    pub(super) fn read(path: &Path, map: &[u8]) -> Result<Self> {
        let page = Page::read(path, map)?;
        let element = page.u32_at(AT_BASE_ELEMENT);
        let element = ElementType::ALL
            .into_iter()
            .find(|&known| element_tag(known) == element)
            .ok_or_else(|| Error::file(path, format_args!("element type {element}"), "0 to 5"))?;
        let fingerprint = Fingerprint {
            rows: page.u64_at(AT_BASE_ROWS),
            dim: page.u32_at(AT_BASE_DIM),
            element,
            hash: page.u64_at(AT_BASE_HASH),
        };
        let (nodes, max_degree) = (page.u64_at(AT_NODES), u64::from(page.u32_at(AT_MAX_DEGREE)));
        // Without nodes the size of the file does not bound the degree, and statistics allocate
        // that much.
        if max_degree > nodes.max(MAX_DEGREE as u64) {
            let found = format!("a largest degree of {max_degree} for {nodes} nodes");
            return Err(Error::file(path, found, format_args!("at most {}", nodes.max(MAX_DEGREE as u64))));
        }
        let sections = page.sections(path, map.len(), nodes, max_degree)?;
        if nodes != fingerprint.rows || nodes > u64::from(u32::MAX) {
            return Err(Error::file(
                path,
                format_args!("{nodes} nodes"),
                format_args!("{} as in the base", fingerprint.rows),
            ));
        }
        let growth = page.growth(path)?;
        let (nodes, max_degree) = (nodes as usize, max_degree as usize);
        Ok(Self { nodes, max_degree, fingerprint, growth, sections })
    }
}

/// The first page of a file, after the check of its checksum.
struct Page<'a> {
    bytes: &'a [u8],
    version: u32,
}

impl<'a> Page<'a> {
    fn read(path: &Path, map: &'a [u8]) -> Result<Self> {
        let bytes = map.get(..PAGE).ok_or_else(|| {
            Error::file(path, format_args!("{} bytes", map.len()), format_args!("a header of {PAGE} bytes"))
        })?;
        let page = Self { bytes, version: 0 };
        if bytes[..MAGIC.len()] != *MAGIC {
            return Err(Error::file(path, "another kind of file", "a tagore index"));
        }
        let version = page.u32_at(AT_VERSION);
        if !(1..=VERSION).contains(&version) {
            let (found, expected) = (format!("version {version}"), format!("version 1 to {VERSION}"));
            return Err(Error::file(path, found, expected));
        }
        if crc32fast::hash(&bytes[..AT_CRC]) != page.u32_at(AT_CRC) {
            return Err(Error::file(path, "a damaged header", "a header matching its checksum"));
        }
        let file_bytes = page.u64_at(AT_FILE_BYTES);
        if file_bytes != map.len() as u64 {
            let expected = format!("{file_bytes} by its header");
            return Err(Error::file(path, format_args!("{} bytes", map.len()), expected));
        }
        Ok(Self { version, ..page })
    }

    fn u32_at(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.bytes[at], self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]])
    }

    fn u64_at(&self, at: usize) -> u64 {
        u64::from(self.u32_at(at)) | (u64::from(self.u32_at(at + 4)) << 32)
    }

    fn growth(&self, path: &Path) -> Result<Option<f32>> {
        let growth = f32::from_bits(self.u32_at(AT_GROWTH));
        if growth.is_finite() && growth >= 0.0 {
            return Ok(Some(growth).filter(|&known| known > 0.0));
        }
        let found = format_args!("a growth of distances of {growth}");
        Err(Error::file(path, found, "a positive number, or 0 if it is not known"))
    }

    /// Offset and length of `section`, in bytes; none if the version lacks it.
    fn entry(&self, section: usize) -> Option<(u64, u64)> {
        let place = match (self.version, section) {
            (1, LAYERS | ABSENT) => return None,
            (1, CHECKSUMS) => LAYERS,
            _ => section,
        };
        let at = AT_SECTIONS + place * SECTION_BYTES;
        Some((self.u64_at(at), self.u64_at(at + 8)))
    }

    /// Byte ranges of the sections. Each must start on the page after the last one, with the length
    /// that follows from the nodes and the degree, so sections neither overlap nor reach past the
    /// file.
    fn sections(&self, path: &Path, file_bytes: usize, nodes: u64, max_degree: u64) -> Result<Sections> {
        let length = |section: usize| self.entry(section).map_or(0, |(_, length)| length);
        let blocks: u64 = (0..CHECKSUMS).map(|section| length(section).div_ceil(BLOCK as u64)).sum();
        let lengths = [
            Some(length(DESCRIPTION)),
            Some(4 * u64::from(self.u32_at(AT_ENTRIES))),
            nodes.checked_mul(4),
            nodes.checked_mul(4 * max_degree),
            // Any number of words, or pairs of words.
            Some(length(LAYERS) / 4 * 4),
            Some(length(ABSENT) / 8 * 8),
            blocks.checked_mul(4),
        ];
        let file_bytes = file_bytes as u64;
        let mut end = PAGE as u64;
        let mut sections = [const { 0..0 }; SECTIONS.len()];
        for (section, expected) in lengths.into_iter().enumerate() {
            let Some((offset, length)) = self.entry(section) else {
                sections[section] = end as usize..end as usize;
                continue;
            };
            if offset != end || Some(length) != expected || length > file_bytes - end {
                let found = format!("section {} at {offset}, {length} bytes", SECTIONS[section]);
                let expected = expected.map_or("too many".to_owned(), |bytes| bytes.to_string());
                return Err(Error::file(path, found, format_args!("offset {end}, {expected} bytes")));
            }
            sections[section] = offset as usize..(offset + length) as usize;
            end = (offset + length).next_multiple_of(PAGE as u64).min(file_bytes);
        }
        if end != file_bytes {
            return Err(Error::file(
                path,
                format_args!("{file_bytes} bytes"),
                format_args!("{end} by its sections"),
            ));
        }
        Ok(sections)
    }
}
