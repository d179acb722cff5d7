//! Structures in Thrift's compact protocol, in which Parquet files describe themselves.

use super::super::bytes::Bytes;

/// Structures within structures, at most.
const DEPTH: usize = 32;

/// Types of fields.
pub(super) const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCTURE: u8 = 12;

/// The rest of a structure.
pub(super) struct Thrift<'a>(pub Bytes<'a>);

impl<'a> Thrift<'a> {
    pub(super) fn varint(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.0.byte()?;
            number |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Some(number);
            }
        }
        None
    }

    pub(super) fn int(&mut self) -> Option<i64> {
        let number = self.varint()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    pub(super) fn text(&mut self) -> Option<String> {
        self.binary().map(|bytes| String::from_utf8_lossy(bytes).into_owned())
    }

    fn binary(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        self.0.take(length)
    }

    /// Reads a list of structures, each by `element`.
    pub(super) fn list<T>(&mut self, mut element: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let (kind, count) = self.list_head()?;
        (kind == STRUCTURE || count == 0).then(|| (0..count).map(|_| element(self)).collect())?
    }

    /// Type and number of the elements of a list. Each has a byte at least.
    fn list_head(&mut self) -> Option<(u8, usize)> {
        let head = self.0.byte()?;
        let count =
            if head >> 4 == 15 { usize::try_from(self.varint()?).ok()? } else { usize::from(head >> 4) };
        (count <= self.0.0.len()).then_some((head & 15, count))
    }

    /// Reads a structure: `field` reads the field with this number and type, or passes it.
    pub(super) fn fields(&mut self, mut field: impl FnMut(&mut Self, i64, u8) -> Option<()>) -> Option<()> {
        let mut number = 0;
        loop {
            let head = self.0.byte()?;
            if head == 0 {
                return Some(());
            }
            number = if head >> 4 == 0 { self.int()? } else { number + i64::from(head >> 4) };
            field(self, number, head & 15)?;
        }
    }

    /// Passes a field of this type.
    pub(super) fn pass(&mut self, kind: u8) -> Option<()> {
        self.pass_within(kind, DEPTH)
    }

    fn pass_within(&mut self, kind: u8, depth: usize) -> Option<()> {
        let depth = depth.checked_sub(1)?;
        let pass_element = |rest: &mut Self, kind| match kind {
            TRUE | FALSE => rest.0.byte().map(drop),
            kind => rest.pass_within(kind, depth),
        };
        match kind {
            TRUE | FALSE => Some(()),
            BYTE => self.0.byte().map(drop),
            4..=6 => self.varint().map(drop),
            DOUBLE => self.0.long().map(drop),
            BINARY => self.binary().map(drop),
            LIST | SET => {
                let (kind, count) = self.list_head()?;
                (0..count).try_for_each(|_| pass_element(self, kind))
            }
            MAP => {
                let count = self.varint()?;
                if count == 0 {
                    return Some(());
                }
                let kinds = self.0.byte()?;
                (0..count).try_for_each(|_| {
                    pass_element(self, kinds >> 4)?;
                    pass_element(self, kinds & 15)
                })
            }
            STRUCTURE => self.fields(|rest, _, kind| rest.pass_within(kind, depth)),
            _ => None,
        }
    }
}
