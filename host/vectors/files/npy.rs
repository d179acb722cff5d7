//! The header of npy files (NumPy's format, versions 1 to 3).
//!
//! The header is a Python dictionary as text. The parser knows only NumPy's three keys, so a header
//! can neither overflow nor nest. (The npyz crate has a dependency that needs a C compiler.)

use crate::vectors::ElementType;

/// The fields of a header.
#[derive(Debug, PartialEq, Eq)]
pub struct Header {
    /// Element type, such as `<f4`.
    pub descr: String,
    /// Column-major order.
    pub fortran_order: bool,
    /// Numbers per dimension.
    pub shape: Vec<u64>,
    /// Byte offset of the data.
    pub offset: usize,
}

/// An integer type of NumPy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Integer {
    /// Bytes of a number.
    pub size: usize,
    pub is_signed: bool,
}

impl Integer {
    /// All little-endian types: name, bytes, and type.
    pub(crate) const ALL: [(&'static str, usize, Self); 8] = [
        Self::entry("<u4", 4, false),
        Self::entry("<i4", 4, true),
        Self::entry("<u8", 8, false),
        Self::entry("<i8", 8, true),
        Self::entry("<u2", 2, false),
        Self::entry("<i2", 2, true),
        Self::entry("|u1", 1, false),
        Self::entry("|i1", 1, true),
    ];

    pub(crate) const U64: Self = Self { size: 8, is_signed: false };

    const fn entry(name: &'static str, size: usize, is_signed: bool) -> (&'static str, usize, Self) {
        (name, size, Self { size, is_signed })
    }

    /// The type with a name of NumPy.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find_map(|(own, _, kind)| (own == name).then_some(kind))
    }

    /// The numbers in `bytes`.
    pub(crate) fn numbers<'a>(self, bytes: &'a [u8]) -> impl ExactSizeIterator<Item = i128> + use<'a> {
        bytes.chunks_exact(self.size).map(move |number| {
            let mut wide = [0; 8];
            wide[..self.size].copy_from_slice(number);
            let unused = 64 - 8 * self.size as u32;
            let raw = u64::from_le_bytes(wide) << unused;
            if self.is_signed { i128::from(raw.cast_signed() >> unused) } else { i128::from(raw >> unused) }
        })
    }
}

const MAGIC: &[u8] = b"\x93NUMPY";

/// Alignment of the data in the file, in bytes.
const ALIGNMENT: usize = 64;

/// NumPy's name of an element type. NumPy has none for bf16: an array of `ml_dtypes.bfloat16` is
/// saved as plain 2-byte values. None for bits, which arrays do not pack.
pub(in crate::vectors) const fn name(element: ElementType) -> Option<&'static str> {
    Some(match element {
        ElementType::F32 => "<f4",
        ElementType::F16 => "<f2",
        ElementType::Bf16 => "<V2",
        ElementType::U8 => "|u1",
        ElementType::I8 => "|i1",
        ElementType::B1 => return None,
    })
}

/// The header of a C-ordered array of `rows` or `rows` × `cols` elements, byte for byte as NumPy
/// writes it.
pub(crate) fn header(descr: &str, rows: u64, cols: Option<u64>) -> Vec<u8> {
    let cols = cols.map_or(String::new(), |cols| format!(" {cols}"));
    let mut text = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({rows},{cols}), }}");
    // NumPy leaves room for the number of rows to grow in place, then pads to the alignment.
    let grown = text.len() + 21 - rows.to_string().len();
    let start = MAGIC.len() + 4;
    let length = (start + grown + 1).next_multiple_of(ALIGNMENT) - start;
    text.push_str(&" ".repeat(length - 1 - text.len()));
    text.push('\n');
    [MAGIC, &[1, 0], &(length as u16).to_le_bytes(), text.as_bytes()].concat()
}

impl Header {
    /// Parses the header at the start of `file`. None unless it is the complete header of a plain
    /// array.
    pub fn parse(file: &[u8]) -> Option<Self> {
        parse(file)
    }
}

/// As [`Header::parse`].
pub(crate) fn parse(file: &[u8]) -> Option<Header> {
    let rest = file.strip_prefix(MAGIC)?;
    let ([major, _minor], rest) = rest.split_first_chunk()?;
    let (length, rest) = match major {
        1 => rest.split_first_chunk().map(|(&l, rest)| (usize::from(u16::from_le_bytes(l)), rest))?,
        2 | 3 => rest.split_first_chunk().map(|(&l, rest)| (u32::from_le_bytes(l) as usize, rest))?,
        _ => return None,
    };
    let text = std::str::from_utf8(rest.get(..length)?).ok()?;
    let offset = file.len() - rest.len() + length;
    let (mut descr, mut fortran_order, mut shape) = (None, None, None);
    let mut words = Words { rest: text };
    words.take("{")?;
    while words.take("}").is_none() {
        let key = words.string()?;
        words.take(":")?;
        match key {
            "descr" => descr = Some(words.string()?.to_owned()),
            "fortran_order" => fortran_order = Some(words.boolean()?),
            "shape" => shape = Some(words.tuple()?),
            _ => return None,
        }
        if words.take(",").is_none() {
            words.take("}")?;
            break;
        }
    }
    let whole = words.rest.trim().is_empty();
    whole.then_some(Header { descr: descr?, fortran_order: fortran_order?, shape: shape?, offset })
}

/// The rest of the text.
struct Words<'a> {
    rest: &'a str,
}

impl<'a> Words<'a> {
    fn take(&mut self, word: &str) -> Option<()> {
        self.rest = self.rest.trim_start().strip_prefix(word)?;
        Some(())
    }

    fn string(&mut self) -> Option<&'a str> {
        let quote = if self.take("'").is_some() { '\'' } else { self.take("\"").map(|()| '"')? };
        let (text, rest) = self.rest.split_once(quote)?;
        self.rest = rest;
        // Errors show this name in their line; types of plain arrays have short names.
        (text.len() <= 64 && !text.contains(char::is_control)).then_some(text)
    }

    fn boolean(&mut self) -> Option<bool> {
        self.take("True").map(|()| true).or_else(|| self.take("False").map(|()| false))
    }

    fn tuple(&mut self) -> Option<Vec<u64>> {
        self.take("(")?;
        let mut numbers = Vec::new();
        while self.take(")").is_none() {
            self.rest = self.rest.trim_start();
            let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
            numbers.push(self.rest[..digits].parse().ok()?);
            self.rest = &self.rest[digits..];
            if self.take(",").is_none() {
                self.take(")")?;
                break;
            }
        }
        Some(numbers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(version: u8, text: &str) -> Vec<u8> {
        let length = text.len() as u32;
        let length =
            if version == 1 { (length as u16).to_le_bytes().to_vec() } else { length.to_le_bytes().to_vec() };
        [MAGIC, &[version, 0], &length, text.as_bytes()].concat()
    }

    #[test]
    fn a_header_round_trips() {
        for (rows, cols) in [(0, Some(1)), (3, Some(4)), (u64::MAX, Some(u64::MAX)), (3, None)] {
            let bytes = header("<f4", rows, cols);
            assert_eq!(bytes.len() % ALIGNMENT, 0);
            let expected = Header {
                descr: "<f4".into(),
                fortran_order: false,
                shape: [rows].into_iter().chain(cols).collect(),
                offset: bytes.len(),
            };
            assert_eq!(parse(&bytes), Some(expected));
        }
    }

    #[test]
    fn integers_of_all_types_are_read() {
        for (name, size, kind) in Integer::ALL {
            let bytes = [7u64, u64::MAX].map(u64::to_le_bytes).map(|bytes| bytes[..size].to_vec()).concat();
            let most = if name.contains('i') { -1 } else { (1 << (8 * size)) - 1 };
            assert_eq!(kind.numbers(&bytes).collect::<Vec<_>>(), [7, most], "{name}");
        }
    }

    #[test]
    fn spacing_quotes_and_order_of_keys_do_not_matter() {
        let text = "{ \"shape\":(2,3) , \"fortran_order\" : True,'descr':\"|u1\"}\n";
        for version in 1..=3 {
            let parsed = parse(&file(version, text)).unwrap();
            assert_eq!(
                (parsed.descr.as_str(), parsed.fortran_order, parsed.shape),
                ("|u1", true, vec![2, 3])
            );
        }
        let one = parse(&file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (7,), }")).unwrap();
        assert_eq!(one.shape, [7]);
        let none = parse(&file(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (), }")).unwrap();
        assert!(none.shape.is_empty());
    }

    #[test]
    fn malformed_headers_are_refused() {
        let good = header("<f4", 3, Some(4));
        for length in 0..good.len() {
            assert_eq!(parse(&good[..length]), None, "{length} bytes");
        }
        for text in [
            "",
            "{",
            "{}",
            "{'descr': '<f4', 'fortran_order': False}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1 2)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 2)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 2)}",
            "{'descr': '<f4', 'fortran_order': 0, 'shape': (1, 2)}",
            "{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (1, 2)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), 'more': 1}",
            "{'descr': '<f\n4', 'fortran_order': False, 'shape': (1, 2)}",
            "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2)} x",
            "((((((((((",
        ] {
            assert_eq!(parse(&file(1, text)), None, "{text}");
        }
        assert_eq!(parse(&file(4, "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2)}")), None);
    }
}
