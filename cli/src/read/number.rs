//! Types of numbers in files of other programs.

use std::fmt;

/// A type of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Number {
    class: Class,
    size: usize,
    is_big_endian: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Float,
    Brain,
    Signed,
    Unsigned,
}

impl Number {
    pub(super) const F32: Self = Self::float(4);
    pub(super) const F64: Self = Self::float(8);
    pub(super) const BF16: Self = Self { class: Class::Brain, size: 2, is_big_endian: false };

    /// A little-endian float of 2, 4 or 8 bytes.
    pub(super) const fn float(size: usize) -> Self {
        Self { class: Class::Float, size, is_big_endian: false }
    }

    /// A little-endian integer of 1, 2, 4 or 8 bytes.
    pub(super) const fn integer(size: usize, is_signed: bool) -> Self {
        let class = if is_signed { Class::Signed } else { Class::Unsigned };
        Self { class, size, is_big_endian: false }
    }

    /// The same type in the other order of bytes.
    pub(super) const fn big_endian(self) -> Self {
        Self { is_big_endian: self.size > 1, ..self }
    }

    /// The same type in the order of bytes of vectors.
    pub(super) const fn little_endian(self) -> Self {
        Self { is_big_endian: false, ..self }
    }

    /// The type with this name of NumPy, such as `<f8`.
    pub(super) fn from_numpy(name: &str) -> Option<Self> {
        let mut letters = name.chars();
        let (order, kind) = (letters.next()?, letters.next()?);
        // Not as a number, which may have a sign.
        let size = [1, 2, 4, 8].into_iter().find(|size: &usize| size.to_string() == letters.as_str())?;
        let number = match (kind, size) {
            ('f', 2 | 4 | 8) => Self::float(size),
            ('i' | 'u', 1 | 2 | 4 | 8) => Self::integer(size, kind == 'i'),
            ('b', 1) => Self::integer(1, false),
            ('V', 2) => Self::BF16,
            _ => return None,
        };
        matches!(order, '<' | '>' | '|').then_some(Self { is_big_endian: order == '>' && size > 1, ..number })
    }

    /// NumPy's name of the type in little-endian order.
    pub(super) fn numpy_name(self) -> String {
        let order = if self.size == 1 { '|' } else { '<' };
        let kind = match self.class {
            Class::Float => 'f',
            Class::Brain => 'V',
            Class::Signed => 'i',
            Class::Unsigned => 'u',
        };
        format!("{order}{kind}{}", self.size)
    }

    /// Bytes of a number.
    pub(super) const fn size(self) -> usize {
        self.size
    }

    pub(super) const fn is_big_endian(self) -> bool {
        self.is_big_endian
    }

    /// Whether the numbers may be ids alone: integers of more than a byte.
    pub(super) fn may_be_ids(self) -> bool {
        matches!(self.class, Class::Signed | Class::Unsigned) && self.size > 1
    }

    pub(super) fn is_integer(self) -> bool {
        matches!(self.class, Class::Signed | Class::Unsigned)
    }

    /// Whether vectors have this type, in either order of bytes.
    pub(super) fn is_of_vectors(self) -> bool {
        !self.may_be_ids() && self.size < 8
    }

    /// The bytes of a number, copied to `room` in little-endian order.
    pub(super) fn little_bytes<'a>(self, number: &[u8], room: &'a mut [u8; 8]) -> &'a [u8] {
        let little = &mut room[..self.size];
        little.copy_from_slice(number);
        if self.is_big_endian {
            little.reverse();
        }
        little
    }

    /// The integer in `bytes`, which are little-endian.
    pub(super) fn integer_value(self, bytes: &[u8]) -> i128 {
        let mut wide = [0; 8];
        wide[..self.size].copy_from_slice(bytes);
        let (raw, unused) = (u64::from_le_bytes(wide), 64 - 8 * self.size as u32);
        match self.class {
            Class::Signed => i128::from((raw << unused).cast_signed() >> unused),
            _ => i128::from(raw),
        }
    }

    /// The number in `bytes`, which are little-endian and [narrowed](Self::is_of_vectors).
    pub(super) fn value(self, bytes: &[u8]) -> f64 {
        if self.is_integer() {
            return self.integer_value(bytes) as f64;
        }
        let mut wide = [0; 8];
        wide[..self.size].copy_from_slice(bytes);
        f64::from_bits(u64::from_le_bytes(wide))
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.class {
            Class::Float => "f",
            Class::Brain => "bf",
            Class::Signed => "i",
            Class::Unsigned => "u",
        };
        write!(f, "{name}{}", 8 * self.size)?;
        if self.is_big_endian { f.write_str(" (big-endian)") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_numpy_are_read_and_written() {
        for name in ["<f2", "<f4", "<f8", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "|u1", "|i1", "<V2"] {
            assert_eq!(Number::from_numpy(name).unwrap().numpy_name(), name);
        }
        let big = Number::from_numpy(">i8").unwrap();
        assert_eq!((big.to_string().as_str(), big.numpy_name().as_str()), ("i64 (big-endian)", "<i8"));
        assert_eq!(Number::from_numpy("|b1"), Some(Number::integer(1, false)));
        for name in ["", "<", "<f", "<f16", "<c8", "|O", "<U3", "=f4", "<f+8", "|V3", "<M8[ns]"] {
            assert_eq!(Number::from_numpy(name), None, "{name}");
        }
    }

    #[test]
    fn values_have_the_sign_of_their_type() {
        let value = |name, bytes: &[u8]| Number::from_numpy(name).unwrap().value(bytes);
        assert_eq!(value("<i2", &[0xfe, 0xff]), -2.0);
        assert_eq!(value("<u2", &[0xfe, 0xff]), 65534.0);
        assert_eq!(value("<i8", &(-7i64).to_le_bytes()), -7.0);
        assert_eq!(value("<f8", &0.1f64.to_le_bytes()), 0.1);
    }
}
