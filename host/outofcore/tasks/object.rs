//! The file of an object: a head, an index of pieces, a description, and the pieces
//! (`docs/tasks.md`).
//!
//! The head has a checksum of its own, and so has each piece. A reader that needs one piece checks
//! the head and that piece.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytemuck::{Pod, Zeroable};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Error, Result, regular_file};

const MAGIC: [u8; 8] = *b"TAGOBJCT";
const VERSION: u32 = 1;

/// Maximum bytes of a description.
const MAX_DESCRIPTION: u32 = 1 << 20;

/// Bytes of a piece that are read at a time when only its checksum matters.
const READ_AT_ONCE: usize = 1 << 20;

/// Largest sizes of an object of a plan: a file may claim any.
#[derive(Clone, Copy, Debug)]
pub(super) struct ObjectLimits {
    /// Pieces.
    pub pieces: usize,
    /// Bytes of a piece.
    pub bytes: u64,
}

/// The first bytes of the file. Numbers are little-endian.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Head {
    magic: [u8; 8],
    version: u32,
    /// Number of pieces.
    pieces: u32,
    /// Bytes of the file.
    bytes: u64,
    /// Hash of the plan.
    plan: u64,
    /// Bytes of the description.
    description: u32,
    /// CRC-32 of the head up to here, of the index and of the description.
    crc: u32,
}

/// An entry of the index.
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct Entry {
    /// Such as the number of a cluster; ascending.
    key: u32,
    /// CRC-32 of the piece.
    crc: u32,
    /// Place in the file.
    offset: u64,
    bytes: u64,
}

/// The content of an object: a description, and pieces in ascending order of their keys.
pub(super) struct Content<'a, D> {
    pub description: &'a D,
    pub pieces: &'a [(u32, &'a [u8])],
}

impl<D: Serialize> Content<'_, D> {
    /// Writes the object of the plan with this hash to a new file.
    pub(super) fn write(&self, plan: u64, file: &mut File) -> std::io::Result<()> {
        let description = serde_json::to_vec(self.description)?;
        let mut offset =
            (size_of::<Head>() + self.pieces.len() * size_of::<Entry>() + description.len()) as u64;
        let index: Vec<Entry> = (self.pieces.iter())
            .map(|&(key, piece)| {
                let entry = Entry { key, crc: crc32fast::hash(piece), offset, bytes: piece.len() as u64 };
                offset += entry.bytes;
                entry
            })
            .collect();
        let (pieces, length) = (self.pieces.len() as u32, description.len() as u32);
        let head =
            Head { magic: MAGIC, version: VERSION, pieces, bytes: offset, plan, description: length, crc: 0 };
        let head = Head { crc: crc(&head, &index, &description), ..head };
        file.write_all(bytemuck::bytes_of(&head))?;
        file.write_all(bytemuck::cast_slice(&index))?;
        file.write_all(&description)?;
        self.pieces.iter().try_for_each(|(_, piece)| file.write_all(piece))
    }
}

/// The checksum of the head, the index and the description.
fn crc(head: &Head, index: &[Entry], description: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    let head = bytemuck::bytes_of(head);
    hasher.update(&head[..head.len() - size_of::<u32>()]);
    hasher.update(bytemuck::cast_slice(index));
    hasher.update(description);
    hasher.finalize()
}

/// The part of an object that a task reads. Each begins with the head, the index and the
/// description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectPart {
    /// No pieces.
    Head,
    /// The piece with this key.
    Piece(u32),
    /// All pieces.
    Whole,
}

/// Byte ranges of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectBytes {
    /// Bytes of the object.
    pub length: u64,
    /// The ranges, ascending.
    pub ranges: Vec<Range<u64>>,
}

/// The bytes of `part` of an object of the plan with this hash, by its first bytes `begin`; `None`
/// if `begin` ends before the index, and an error in the words of [`Error::File`] if it is no such
/// object.
pub(super) fn bytes_of(
    part: ObjectPart,
    plan: u64,
    begin: &[u8],
) -> Result<Option<ObjectBytes>, &'static str> {
    let Some((head, rest)) = begin.split_at_checked(size_of::<Head>()) else { return Ok(None) };
    let head: Head = bytemuck::pod_read_unaligned(head);
    if (head.magic, head.version, head.plan) != (MAGIC, VERSION, plan) {
        return Err("no object of this plan");
    }
    let entries = head.pieces as usize * size_of::<Entry>();
    let Some(index) = rest.get(..entries) else { return Ok(None) };
    let index: Vec<Entry> = bytemuck::pod_collect_to_vec(index);
    let length = head.bytes;
    let heading = 0..(size_of::<Head>() + entries) as u64 + u64::from(head.description);
    let first = if part == ObjectPart::Whole { 0..length } else { heading };
    let piece = match part {
        ObjectPart::Piece(key) => index.iter().find(|entry| entry.key == key && entry.bytes > 0),
        ObjectPart::Head | ObjectPart::Whole => None,
    };
    let piece = piece.map(|entry| entry.offset..entry.offset.saturating_add(entry.bytes));
    let ranges: Vec<Range<u64>> = std::iter::once(first).chain(piece).collect();
    let is_inside = |range: &Range<u64>| range.end <= length;
    if ranges.iter().all(is_inside) { Ok(Some(ObjectBytes { length, ranges })) } else { Err("damage") }
}

/// An open object. Its head is sound and its length is right.
pub(super) struct Object {
    file: File,
    path: PathBuf,
    index: Vec<Entry>,
    description: Vec<u8>,
}

impl Object {
    /// Opens the object at `path` of the plan with this hash; `None` if it is damaged, larger than
    /// `limits`, or no regular file (a link, too): the task that makes it replaces it then.
    ///
    /// # Errors
    /// If the file is missing or cannot be read.
    pub(super) fn open(path: &Path, plan: u64, limits: ObjectLimits) -> Result<Option<Self>> {
        let file = match regular_file::open_planted(path, false) {
            Err(Error::File { .. }) => return Ok(None),
            file => file?,
        };
        match Self::read_head(file, plan, limits, path) {
            // Cut short meanwhile.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(None),
            object => object.map_err(Error::io(path)),
        }
    }

    fn read_head(
        mut file: File,
        plan: u64,
        limits: ObjectLimits,
        path: &Path,
    ) -> std::io::Result<Option<Self>> {
        let bytes = file.metadata()?.len();
        let mut head = Head::zeroed();
        file.read_exact(bytemuck::bytes_of_mut(&mut head))?;
        let (entries, length) =
            (u64::from(head.pieces) * size_of::<Entry>() as u64, u64::from(head.description));
        let is_ours = (head.magic, head.version, head.plan) == (MAGIC, VERSION, plan);
        let is_small = head.pieces as usize <= limits.pieces && head.description <= MAX_DESCRIPTION;
        let heading = size_of::<Head>() as u64 + entries + length;
        if !is_ours || !is_small || head.bytes != bytes || heading > bytes {
            return Ok(None);
        }
        let mut index = vec![Entry::zeroed(); head.pieces as usize];
        file.read_exact(bytemuck::cast_slice_mut(&mut index))?;
        let mut description = vec![0; head.description as usize];
        file.read_exact(&mut description)?;
        let fits = |entry: &Entry| {
            entry.bytes <= limits.bytes
                && entry.offset.checked_add(entry.bytes).is_some_and(|end| end <= bytes)
        };
        let sound = crc(&head, &index, &description) == head.crc
            && index.iter().all(fits)
            && index.is_sorted_by(|a, b| a.key < b.key);
        Ok(sound.then(|| Self { file, path: path.to_owned(), index, description }))
    }

    /// The description; `None` if it is of another kind.
    pub(super) fn description<D: DeserializeOwned>(&self) -> Option<D> {
        serde_json::from_slice(&self.description).ok()
    }

    /// Bytes of a piece; 0 if there is none.
    pub(super) fn piece_bytes(&self, key: u32) -> usize {
        self.entry(key).map_or(0, |entry| entry.bytes as usize)
    }

    fn entry(&self, key: u32) -> Option<Entry> {
        self.index.binary_search_by_key(&key, |entry| entry.key).ok().map(|place| self.index[place])
    }

    /// Reads a piece, empty if there is none; `None` if it is damaged.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(super) fn piece(&self, key: u32) -> Result<Option<Vec<u8>>> {
        let Some(entry) = self.entry(key) else { return Ok(Some(Vec::new())) };
        let mut piece = Vec::new();
        if piece.try_reserve_exact(entry.bytes as usize).is_err() {
            return Err(Error::io(&self.path)(ErrorKind::OutOfMemory.into()));
        }
        let mut file = &self.file;
        let read = file.seek(SeekFrom::Start(entry.offset));
        let read = read.and_then(|_| file.take(entry.bytes).read_to_end(&mut piece));
        read.map_err(Error::io(&self.path))?;
        // Shorter if the file was cut meanwhile.
        let is_sound = piece.len() as u64 == entry.bytes && crc32fast::hash(&piece) == entry.crc;
        Ok(is_sound.then_some(piece))
    }

    /// Whether all pieces are sound: reads all of the object.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(super) fn is_sound(&self) -> Result<bool> {
        let mut content = vec![0; READ_AT_ONCE];
        let mut is_sound = |entry: &Entry| -> std::io::Result<bool> {
            let (mut file, mut hasher) = (&self.file, crc32fast::Hasher::new());
            file.seek(SeekFrom::Start(entry.offset))?;
            let mut left = entry.bytes;
            while left > 0 {
                let content = &mut content[..left.min(READ_AT_ONCE as u64) as usize];
                file.read_exact(content)?;
                hasher.update(content);
                left -= content.len() as u64;
            }
            Ok(hasher.finalize() == entry.crc)
        };
        for entry in &self.index {
            match is_sound(entry) {
                Ok(true) => (),
                Ok(false) => return Ok(false),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(false),
                Err(error) => return Err(Error::io(&self.path)(error)),
            }
        }
        Ok(true)
    }
}

/// The numbers in the bytes of a piece; `None` if the last one is cut.
pub(super) fn numbers<T: Pod>(piece: &[u8]) -> Option<Vec<T>> {
    piece.len().is_multiple_of(size_of::<T>()).then(|| bytemuck::pod_collect_to_vec(piece))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ObjectLimits = ObjectLimits { pieces: 3, bytes: 50 };

    #[test]
    fn every_changed_byte_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("object");
        let pieces: [(u32, &[u8]); 3] = [(2, &[1, 2, 3]), (5, &[]), (9, &[4; 50])];
        let content = Content { description: &"a description", pieces: &pieces };
        content.write(7, &mut File::create(&path).unwrap()).unwrap();
        let object = Object::open(&path, 7, LIMITS).unwrap().unwrap();
        assert_eq!(object.description::<String>().unwrap(), "a description");
        assert_eq!([2, 5, 9].map(|key| object.piece_bytes(key)), [3, 0, 50]);
        assert_eq!(object.piece(9).unwrap().unwrap(), [4; 50]);
        assert!(object.piece(3).unwrap().unwrap().is_empty() && object.is_sound().unwrap());
        assert!(Object::open(&path, 8, LIMITS).unwrap().is_none(), "the object of another plan");
        let bytes = std::fs::read(&path).unwrap();
        let is_sound = |bytes: &[u8]| {
            std::fs::write(&path, bytes).unwrap();
            Object::open(&path, 7, LIMITS).unwrap().is_some_and(|object| object.is_sound().unwrap())
        };
        for place in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[place] ^= 16;
            assert!(!is_sound(&changed), "byte {place}");
            assert!(!is_sound(&bytes[..place]), "cut to {place} bytes");
        }
        assert!(!is_sound(&[&bytes[..], &[0]].concat()), "a byte more");
        // Numbers of a sound file beyond what the plan can need.
        std::fs::write(&path, bytes).unwrap();
        assert!(Object::open(&path, 7, LIMITS).unwrap().is_some());
        for limits in [ObjectLimits { pieces: 2, ..LIMITS }, ObjectLimits { bytes: 49, ..LIMITS }] {
            assert!(Object::open(&path, 7, limits).unwrap().is_none(), "{limits:?}");
        }
    }
}
