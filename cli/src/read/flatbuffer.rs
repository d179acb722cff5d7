//! Tables of FlatBuffers, in which Arrow files describe themselves. Every place is checked.

/// A table in a buffer.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// A vector in a buffer: the place of its first element, and their number.
#[derive(Clone, Copy, Default)]
pub(super) struct Vector {
    at: usize,
    pub length: usize,
}

impl<'a> Table<'a> {
    /// The root of a buffer.
    pub(super) fn root(bytes: &'a [u8]) -> Option<Self> {
        Self { bytes, at: 0 }.at_offset(0)
    }

    /// The table at the offset that is stored at `at`.
    fn at_offset(self, at: usize) -> Option<Self> {
        Some(Self { at: at.checked_add(self.word(at)? as usize)?, ..self })
    }

    fn array<const N: usize>(self, at: usize) -> Option<[u8; N]> {
        self.bytes.get(at..at.checked_add(N)?)?.try_into().ok()
    }

    fn word(self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_le_bytes)
    }

    /// The place of a field, unless it has its default value.
    fn field(self, number: usize) -> Option<usize> {
        let back = i64::from(i32::from_le_bytes(self.array(self.at)?));
        let fields = usize::try_from(self.at as i64 - back).ok()?;
        let slot = 4 + 2 * number;
        if slot + 2 > usize::from(u16::from_le_bytes(self.array(fields)?)) {
            return None;
        }
        let offset = u16::from_le_bytes(self.array(fields.checked_add(slot)?)?);
        (offset > 0).then(|| self.at + usize::from(offset))
    }

    /// A field of 1 byte.
    pub(super) fn byte(self, number: usize) -> u8 {
        self.field(number).and_then(|at| self.array(at)).map_or(0, |[byte]: [u8; 1]| byte)
    }

    /// A field of 2 bytes.
    pub(super) fn short(self, number: usize) -> i16 {
        self.field(number).and_then(|at| self.array(at)).map_or(0, i16::from_le_bytes)
    }

    /// A field of 4 bytes.
    pub(super) fn int(self, number: usize) -> i32 {
        self.field(number).and_then(|at| self.array(at)).map_or(0, i32::from_le_bytes)
    }

    /// A field of 8 bytes.
    pub(super) fn long(self, number: usize) -> i64 {
        self.field(number).and_then(|at| self.array(at)).map_or(0, i64::from_le_bytes)
    }

    pub(super) fn table(self, number: usize) -> Option<Self> {
        self.at_offset(self.field(number)?)
    }

    pub(super) fn vector(self, number: usize) -> Vector {
        let found = self.field(number).and_then(|at| {
            let vector = self.at_offset(at)?.at;
            Some(Vector { at: vector.checked_add(4)?, length: self.word(vector)? as usize })
        });
        found.unwrap_or_default()
    }

    pub(super) fn text(self, number: usize) -> String {
        let Vector { at, length } = self.vector(number);
        let bytes = at.checked_add(length).and_then(|end| self.bytes.get(at..end));
        String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned()
    }

    /// Tables of a vector. It ends early if the buffer does.
    pub(super) fn tables(self, vector: Vector) -> impl Iterator<Item = Self> {
        (0..vector.length).map_while(move |i| self.at_offset(vector.at.checked_add(4 * i)?))
    }

    /// An element of a vector of pairs of 8 bytes.
    pub(super) fn pair(self, vector: Vector, i: usize) -> Option<(i64, i64)> {
        let at = (i < vector.length).then(|| vector.at.checked_add(16 * i))??;
        Some((i64::from_le_bytes(self.array(at)?), i64::from_le_bytes(self.array(at.checked_add(8)?)?)))
    }

    /// An element of a vector of 8 bytes each.
    pub(super) fn long_at(self, vector: Vector, i: usize) -> Option<i64> {
        let at = (i < vector.length).then(|| vector.at.checked_add(8 * i))??;
        self.array(at).map(i64::from_le_bytes)
    }
}
