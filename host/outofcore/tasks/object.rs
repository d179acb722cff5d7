//! The file of an object: a sealed record with the index of pieces, then the pieces
//! (`docs/tasks.md`).
//!
//! The record has a checksum of its own, and so has each piece. A reader of one piece checks the
//! record and that piece.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use bytemuck::Pod;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::memory::zeros;
use crate::outofcore::store::{Flaw, Piece, Sealed, read, seal};
use crate::{Error, Result, regular_file};

/// The kind of an object's record.
const KIND: &str = "object";

/// Maximum bytes of a record without its index.
const MAX_MORE: u64 = 1 << 20;

/// Maximum bytes of a piece in the index.
const MAX_ENTRY: u64 = 48;

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

/// The content of an object's record.
#[derive(Serialize, Deserialize)]
struct Head<D> {
    /// Hash of the plan.
    plan: u64,
    /// The task that made it.
    task: String,
    /// The kind of device that it was made on.
    device: String,
    /// Further content.
    more: D,
    /// Key, bytes and CRC-32 of each piece, in the order of the file. Keys, such as numbers of
    /// clusters, ascend.
    pieces: Vec<(u32, u64, u32)>,
}

/// The pieces of an object by their keys.
type Pieces = BTreeMap<u32, Piece>;

impl Sealed<Head<Value>> {
    /// The pieces, and the bytes of the object; `None` unless it is of this `plan`, its keys ascend
    /// and its numbers are possible.
    fn pieces(&self, plan: u64) -> Option<(Pieces, u64)> {
        let Head { plan: found, pieces, .. } = &self.content;
        let (mut places, mut end) = (Pieces::new(), self.bytes);
        for &(key, bytes, crc) in pieces {
            places.insert(key, Piece { offset: end, bytes: usize::try_from(bytes).ok()?, crc });
            end = end.checked_add(bytes)?;
        }
        let is_sound =
            *found == plan && pieces.is_sorted_by_key(|piece| piece.0) && places.len() == pieces.len();
        is_sound.then_some((places, end))
    }
}

/// A piece of a new object, and its key.
pub(super) type NewPiece<'a> = (u32, &'a [u8]);

/// Writes the object of a task of the plan with this hash to a new file. Keys of pieces ascend.
pub(super) fn write(
    plan: u64,
    task: String,
    device: &str,
    more: impl Serialize,
    pieces: &[NewPiece<'_>],
    file: &mut File,
) -> io::Result<()> {
    let index = pieces.iter().map(|&(key, piece)| (key, piece.len() as u64, crc32fast::hash(piece)));
    let head = Head { plan, task, device: device.to_owned(), more, pieces: index.collect() };
    file.write_all(&seal(KIND, &head)?)?;
    pieces.iter().try_for_each(|(_, piece)| file.write_all(piece))
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
/// if `begin` ends before the pieces.
pub(super) fn bytes_of(part: ObjectPart, plan: u64, begin: &[u8]) -> Result<Option<ObjectBytes>, Flaw> {
    let head = match read(KIND, &mut &begin[..], u64::MAX) {
        Err(Flaw::Torn) => return Ok(None),
        head => head?,
    };
    let (pieces, length) = head.pieces(plan).ok_or(Flaw::Foreign)?;
    let first = if part == ObjectPart::Whole { 0..length } else { 0..head.bytes };
    let piece = match part {
        ObjectPart::Piece(key) => pieces.get(&key).filter(|piece| piece.bytes() > 0),
        ObjectPart::Head | ObjectPart::Whole => None,
    };
    let ranges = std::iter::once(first).chain(piece.map(|piece| piece.range())).collect();
    Ok(Some(ObjectBytes { length, ranges }))
}

/// An open object. Its record is sound and its length is right.
pub(super) struct Object {
    file: File,
    path: PathBuf,
    pieces: Pieces,
    /// The task that made it.
    pub task: String,
    /// The kind of device that it was made on.
    pub device: String,
    more: Value,
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
        let most = MAX_MORE.saturating_add(MAX_ENTRY.saturating_mul(limits.pieces as u64));
        let head = match read::<Head<Value>>(KIND, &mut BufReader::new(&file), most) {
            Err(Flaw::Failed(error)) => return Err(Error::io(path)(error)),
            Err(_) => return Ok(None),
            Ok(head) => head,
        };
        let Some((pieces, length)) = head.pieces(plan) else { return Ok(None) };
        let fits = length == file.metadata().map_err(Error::io(path))?.len()
            && pieces.len() <= limits.pieces
            && pieces.values().all(|piece| piece.bytes() <= limits.bytes);
        let Head { task, device, more, .. } = head.content;
        Ok(fits.then(|| Self { file, path: path.to_owned(), pieces, task, device, more }))
    }

    /// The further content; `None` if it is of another kind.
    pub(super) fn more<D: DeserializeOwned>(&self) -> Option<D> {
        D::deserialize(&self.more).ok()
    }

    /// Bytes of a piece; 0 if there is none.
    pub(super) fn piece_bytes(&self, key: u32) -> usize {
        self.pieces.get(&key).map_or(0, |piece| piece.bytes() as usize)
    }

    /// Reads a piece, empty if there is none; `None` if it is damaged.
    ///
    /// # Errors
    /// If the file cannot be read, or there is no memory for the piece.
    pub(super) fn piece(&self, key: u32) -> Result<Option<Vec<u8>>> {
        let mut content = zeros(self.piece_bytes(key))?;
        match self.pieces.get(&key) {
            Some(piece) => Ok(piece.read(&self.file, &self.path, &mut content)?.then_some(content)),
            None => Ok(Some(content)),
        }
    }

    /// Whether all pieces are sound: reads all of the object.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(super) fn is_sound(&self) -> Result<bool> {
        let is_sound = |piece: &Piece| -> io::Result<bool> {
            let mut file = BufReader::with_capacity(READ_AT_ONCE, &self.file);
            file.seek(SeekFrom::Start(piece.offset))?;
            let (mut rest, mut hasher) = (file.take(piece.bytes()), crc32fast::Hasher::new());
            loop {
                let content = rest.fill_buf()?;
                let bytes = content.len();
                if bytes == 0 {
                    return Ok(rest.limit() == 0 && hasher.finalize() == piece.crc);
                }
                hasher.update(content);
                rest.consume(bytes);
            }
        };
        for piece in self.pieces.values() {
            if !is_sound(piece).map_err(Error::io(&self.path))? {
                return Ok(false);
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
        write(7, "build-1".to_owned(), "cpu", "a description", &pieces, &mut File::create(&path).unwrap())
            .unwrap();
        let object = Object::open(&path, 7, LIMITS).unwrap().unwrap();
        assert_eq!(object.more::<String>().unwrap(), "a description");
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
