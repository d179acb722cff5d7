//! Objects of an HDF5 file: groups and arrays, as messages after a header.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use tagore::{Error, Result};

use super::super::bytes::Bytes;
use super::super::copy::damaged;

/// Groups within groups, at most: a group may hold itself.
const DEPTH: usize = 8;

/// Objects of a file that are looked at, at most.
const MAX_OBJECTS: usize = 1 << 14;

/// Bytes of a structure, at most: memory holds one.
const STRUCTURE: u64 = 64 << 20;

/// The address of what does not exist.
pub(super) const NOWHERE: u64 = u64::MAX;

/// Types of messages.
pub(super) const DATASPACE: u16 = 0x01;
const LINK_INFO: u16 = 0x02;
pub(super) const DATATYPE: u16 = 0x03;
const LINK: u16 = 0x06;
pub(super) const LAYOUT: u16 = 0x08;
pub(super) const FILTERS: u16 = 0x0b;
const CONTINUATION: u16 = 0x10;
const SYMBOL_TABLE: u16 = 0x11;

/// An open file.
pub(super) struct Hdf5<'a> {
    pub path: &'a Path,
    pub file: File,
    /// Bytes of the file.
    pub length: u64,
}

/// The messages of an object: types and contents.
pub(super) struct Object(Vec<(u16, Vec<u8>)>);

impl Object {
    /// The content of the first message of a type.
    pub(super) fn message(&self, kind: u16) -> Option<Bytes<'_>> {
        self.0.iter().find(|(other, _)| *other == kind).map(|(_, content)| Bytes(content))
    }
}

impl<'a> Hdf5<'a> {
    /// Opens a file, and returns the address of its root group.
    pub(super) fn open(path: &'a Path) -> Result<(Self, u64)> {
        let failed = |source| Error::Io { path: path.to_owned(), source };
        let file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let hdf5 = Self { path, file, length };
        let start = hdf5.bytes(0, length.min(96))?;
        let (end, root) = hdf5.parsed(superblock(&start), "a first block of another version")?;
        if end > length {
            return Err(hdf5.broken(&format!("{length} bytes of {end}")));
        }
        Ok((hdf5, root))
    }

    /// Reads bytes of the file.
    pub(super) fn bytes(&self, at: u64, length: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let is_inside = length <= STRUCTURE && at.checked_add(length).is_some_and(|end| end <= self.length);
        if !is_inside {
            return Err(self.broken(&format!("{length} bytes at {at}")));
        }
        let mut file = &self.file;
        file.seek(SeekFrom::Start(at)).map_err(|error| damaged(self.path, &error))?;
        file.take(length).read_to_end(&mut bytes).map_err(|error| damaged(self.path, &error))?;
        Ok(bytes)
    }

    pub(super) fn parsed<T>(&self, parsed: Option<T>, found: &str) -> Result<T> {
        parsed.ok_or_else(|| self.broken(found))
    }

    pub(super) fn broken(&self, found: &str) -> Error {
        damaged(self.path, &found)
    }

    /// Names and addresses of all arrays below a group.
    pub(super) fn arrays(&self, group: u64) -> Result<Vec<(String, Object)>> {
        let (mut waiting, mut arrays, mut seen) = (vec![(String::new(), group, 0)], Vec::new(), 0);
        while let Some((prefix, at, depth)) = waiting.pop() {
            let mut links = self.links(&self.object(at)?)?;
            links.sort();
            for (name, at) in links {
                seen += 1;
                if seen > MAX_OBJECTS {
                    return Err(self.broken(&format!("more than {MAX_OBJECTS} objects")));
                }
                let (name, object) = (format!("{prefix}{name}"), self.object(at)?);
                if object.message(LAYOUT).is_some() {
                    arrays.push((name, object));
                } else if depth < DEPTH {
                    waiting.push((format!("{name}/"), at, depth + 1));
                }
            }
        }
        Ok(arrays)
    }

    /// Reads the messages of an object.
    fn object(&self, at: u64) -> Result<Object> {
        let start = self.bytes(at, self.length.saturating_sub(at).min(64))?;
        let is_new = start.starts_with(b"OHDR");
        let header = if is_new { new_header(&start) } else { old_header(&start) };
        let (first, length, flags) = self.parsed(header, "an object of another version")?;
        let mut blocks = vec![(at.saturating_add(first), length)];
        let mut messages = Vec::new();
        while let Some((at, length)) = blocks.pop() {
            let bytes = self.bytes(at, length)?;
            let mut rest = Bytes(&bytes);
            // Of a continuation.
            if rest.0.starts_with(b"OCHK") {
                rest = Bytes(&bytes[4..bytes.len().saturating_sub(4).max(4)]);
            }
            while let Some((kind, content)) = message(&mut rest, flags) {
                if kind == CONTINUATION {
                    let mut content = Bytes(content);
                    let next = content.long().zip(content.long());
                    blocks.push(self.parsed(next, "a header that goes on nowhere")?);
                } else {
                    messages.push((kind, content.to_vec()));
                }
                if messages.len() + blocks.len() > MAX_OBJECTS {
                    return Err(self.broken("an object of too many messages"));
                }
            }
        }
        Ok(Object(messages))
    }

    /// Names and addresses of the members of a group.
    fn links(&self, group: &Object) -> Result<Vec<(String, u64)>> {
        let mut links = Vec::new();
        for (_, content) in group.0.iter().filter(|(kind, _)| *kind == LINK) {
            links.extend(link(Bytes(content)));
        }
        if let Some(mut table) = group.message(SYMBOL_TABLE) {
            let (tree, heap) = self.parsed(table.long().zip(table.long()), "a group without members")?;
            let heap = self.heap(heap)?;
            let mut nodes = vec![tree];
            let mut seen = 0;
            while let Some(at) = nodes.pop() {
                seen += 1;
                if seen > MAX_OBJECTS {
                    return Err(self.broken(&format!("a group of more than {MAX_OBJECTS} nodes")));
                }
                self.node(at, &heap, &mut nodes, &mut links)?;
            }
        }
        let dense = group.message(LINK_INFO).and_then(|mut info| {
            let flags = info.take(2)?[1];
            info.take(if flags & 1 != 0 { 8 } else { 0 })?;
            info.long()
        });
        match dense {
            None | Some(NOWHERE) => Ok(links),
            Some(_) => Err(super::unknown(self.path, "a group of many members in the newest layout")),
        }
    }

    /// The names of a group.
    fn heap(&self, at: u64) -> Result<Vec<u8>> {
        let header = self.bytes(at, 32)?;
        let mut rest = Bytes(&header);
        let place = (rest.take(8).filter(|begin| begin.starts_with(b"HEAP")))
            .and_then(|_| rest.long().zip(rest.long().and_then(|_| rest.long())));
        let (length, at) = self.parsed(place, "a group without names")?;
        self.bytes(at, length)
    }

    /// Reads a node of the tree of a group: other nodes, or members.
    fn node(&self, at: u64, heap: &[u8], nodes: &mut Vec<u64>, links: &mut Vec<(String, u64)>) -> Result<()> {
        let start = self.bytes(at, 8)?;
        let mut rest = Bytes(&start[4..]);
        if start.starts_with(b"TREE") {
            let count = rest.take(2).and_then(|_| rest.short()).unwrap_or(0);
            let children = self.bytes(at + 24, 16 * u64::from(count))?;
            let children = children.chunks_exact(16).filter_map(|pair| Bytes(&pair[8..]).long());
            nodes.extend(children);
            return Ok(());
        }
        if !start.starts_with(b"SNOD") {
            return Err(self.broken("a node of a group without its name"));
        }
        let count = rest.take(2).and_then(|_| rest.short()).unwrap_or(0);
        for entry in self.bytes(at + 8, 40 * u64::from(count))?.chunks_exact(40) {
            let mut entry = Bytes(entry);
            let (Some(name), Some(at), Some(kind)) = (entry.long(), entry.long(), entry.int()) else {
                continue;
            };
            // 2: a symbolic link.
            if kind == 2 {
                continue;
            }
            let name = usize::try_from(name).ok().and_then(|name| heap.get(name..)).unwrap_or_default();
            let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
            links.push((String::from_utf8_lossy(name).into_owned(), at));
        }
        Ok(())
    }
}

/// The end of the file, and the address of the root group.
fn superblock(bytes: &[u8]) -> Option<(u64, u64)> {
    let mut rest = Bytes(bytes);
    rest.take(8).filter(|magic| *magic == b"\x89HDF\r\n\x1a\n")?;
    let version = rest.byte()?;
    let (sizes, base, end, root) = match version {
        0 | 1 => {
            rest.take(4)?;
            let sizes = rest.take(2)?;
            rest.take(if version == 0 { 9 } else { 13 })?;
            let base = rest.long()?;
            rest.long()?;
            let end = rest.long()?;
            rest.take(16)?;
            (sizes, base, end, rest.long()?)
        }
        2 | 3 => {
            let sizes = rest.take(2)?;
            rest.byte()?;
            let base = rest.long()?;
            rest.long()?;
            (sizes, base, rest.long()?, rest.long()?)
        }
        _ => return None,
    };
    (sizes == [8, 8] && base == 0).then_some((end, root))
}

/// Place and length of the first messages after the begin of a header, and its flags.
fn old_header(bytes: &[u8]) -> Option<(u64, u64, Option<u8>)> {
    let mut rest = Bytes(bytes);
    rest.byte().filter(|&version| version == 1)?;
    rest.take(7)?;
    Some((16, rest.int()?.into(), None))
}

/// As [`old_header`], of version 2.
fn new_header(bytes: &[u8]) -> Option<(u64, u64, Option<u8>)> {
    let mut rest = Bytes(bytes);
    rest.take(4)?;
    rest.byte().filter(|&version| version == 2)?;
    let flags = rest.byte()?;
    rest.take(if flags & 0x20 != 0 { 16 } else { 0 })?;
    rest.take(if flags & 0x10 != 0 { 4 } else { 0 })?;
    let length = rest.number(1 << (flags & 3))?;
    Some(((bytes.len() - rest.0.len()) as u64, length, Some(flags)))
}

/// The next message of a header with these flags, if it is of version 2.
fn message<'b>(rest: &mut Bytes<'b>, flags: Option<u8>) -> Option<(u16, &'b [u8])> {
    let (kind, length) = match flags {
        None => (rest.short()?, rest.short()?),
        Some(_) => (rest.byte()?.into(), rest.short()?),
    };
    rest.take(match flags {
        None => 4,
        Some(flags) if flags & 4 != 0 => 3,
        Some(_) => 1,
    })?;
    Some((kind, rest.take(length.into())?))
}

/// Name and address of a link, unless it is symbolic.
fn link(mut rest: Bytes<'_>) -> Option<(String, u64)> {
    rest.byte().filter(|&version| version == 1)?;
    let flags = rest.byte()?;
    let kind = if flags & 8 != 0 { rest.byte()? } else { 0 };
    rest.take(if flags & 4 != 0 { 8 } else { 0 })?;
    rest.take(if flags & 16 != 0 { 1 } else { 0 })?;
    let length = rest.number(1 << (flags & 3))?;
    let name = String::from_utf8_lossy(rest.take(usize::try_from(length).ok()?)?).into_owned();
    (kind == 0).then_some((name, rest.long()?))
}
