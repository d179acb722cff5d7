//! Ids from a file: of the rows that a search may find, or of rows of a live index.

use std::fmt::Display;
use std::fs;
use std::path::Path;

use tagore::{Error, IdSet, Ids, NpyHeader, Result};

use super::number::Number;
use super::refused;

/// Reads rows of a data set of `rows` rows: ids in a text file, separated by spaces, commas or
/// lines, or an array of NumPy, of ids or of one bool per row.
///
/// # Errors
/// If the file cannot be read or holds neither, or an id is no row.
pub(crate) fn open_filter(path: &Path, rows: usize) -> Result<IdSet> {
    let last = rows.saturating_sub(1);
    let expected = format!("ids of rows, 0 to {last}, in text or an array of NumPy, or {rows} bools");
    let mut set = IdSet::new(rows);
    let found = Numbers::read(path, &expected)?;
    let is_mask = found.is_mask();
    if is_mask && found.count() != rows as u64 {
        let bools = format!("{} bools", found.count());
        return Err(refused(path, bools, format_args!("{rows}, one per row")));
    }
    found.each(&mut |number, place, found| match number.map(u32::try_from) {
        Some(Ok(0)) if is_mask => Ok(()),
        Some(Ok(_)) if is_mask => set.insert(place as u32).map(drop),
        Some(Ok(id)) if (id as usize) < rows => set.insert(id).map(drop),
        _ => Err(refused(path, found, &expected)),
    })?;
    Ok(set)
}

/// Reads ids, whole numbers of 64 bits: in a text file, separated by spaces, commas or lines, a
/// one-dimensional array of NumPy, or a u64bin file.
///
/// # Errors
/// If the file cannot be read or holds none of these.
pub(crate) fn open_u64_ids(path: &Path) -> crate::error::Result<Vec<u64>> {
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("u64bin")) {
        return Ok(Ids::open(path)?.as_slice().to_vec());
    }
    let expected = "ids, whole numbers from 0, in text or an array of NumPy";
    let found = Numbers::read(path, expected)?;
    if found.is_mask() {
        return Err(refused(path, "bools", expected).into());
    }
    let mut ids = Vec::new();
    found.each(&mut |number, _, found| {
        ids.push(number.ok_or_else(|| refused(path, found, expected))?);
        Ok(())
    })?;
    Ok(ids)
}

/// Whole numbers of a file: text, or an array of NumPy.
struct Numbers {
    bytes: Vec<u8>,
    array: Option<Array>,
}

/// A one-dimensional array of integers or bools.
struct Array {
    number: Number,
    is_mask: bool,
    count: u64,
    offset: usize,
}

/// Takes a number from 0, if it is one, its place, and what errors call it.
type Visit<'a> = &'a mut dyn FnMut(Option<u64>, u64, &dyn Display) -> Result<()>;

impl Numbers {
    fn read(path: &Path, expected: &str) -> Result<Self> {
        let bytes = fs::read(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
        let Some(header) = NpyHeader::parse(&bytes) else { return Ok(Self { bytes, array: None }) };
        let number = Number::from_numpy(&header.descr).filter(|number| number.is_integer());
        let (Some(number), &[count]) = (number, header.shape.as_slice()) else {
            let found = format_args!("a {}-D array of {}", header.shape.len(), header.descr);
            return Err(refused(path, found, expected));
        };
        let (size, offset) = (number.size(), header.offset);
        let values = bytes.len().saturating_sub(offset);
        if values as u128 != u128::from(count) * size as u128 {
            let wanted = format_args!("{count} numbers of {size} bytes, by its header");
            return Err(refused(path, format_args!("{values} bytes of values"), wanted));
        }
        let array = Array { number, is_mask: header.descr == "|b1", count, offset };
        Ok(Self { bytes, array: Some(array) })
    }

    /// Whether it is an array of bools.
    fn is_mask(&self) -> bool {
        self.array.as_ref().is_some_and(|array| array.is_mask)
    }

    /// Numbers of an array; 0 of text.
    fn count(&self) -> u64 {
        self.array.as_ref().map_or(0, |array| array.count)
    }

    fn each(&self, visit: Visit<'_>) -> Result<()> {
        let Some(Array { number, offset, .. }) = self.array else { return self.each_word(visit) };
        for (bytes, place) in self.bytes[offset..].chunks_exact(number.size()).zip(0..) {
            let integer = number.integer_value(number.little_bytes(bytes, &mut [0; 8]));
            visit(u64::try_from(integer).ok(), place, &format_args!("{integer} at place {place}"))?;
        }
        Ok(())
    }

    fn each_word(&self, visit: Visit<'_>) -> Result<()> {
        let mut places = 0..;
        for (line, number) in self.bytes.split(|&byte| byte == b'\n').zip(1..) {
            let words = line.split(|byte| byte.is_ascii_whitespace() || *byte == b',');
            for (word, place) in words.filter(|word| !word.is_empty()).zip(&mut places) {
                match std::str::from_utf8(word).ok().and_then(|word| word.parse::<u64>().ok()) {
                    Some(id) => visit(Some(id), place, &format_args!("{id} in line {number}"))?,
                    None => {
                        let word = String::from_utf8_lossy(&word[..word.len().min(40)]);
                        let word = word.escape_default().to_string();
                        visit(None, place, &format_args!("{word:?} in line {number}"))?;
                    }
                }
            }
        }
        Ok(())
    }
}
