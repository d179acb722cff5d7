//! The rows that a search may find, from a file.

use std::fmt::Display;
use std::fs;
use std::path::Path;

use tagore::{Error, IdSet, NpyHeader, Result};

use super::number::Number;
use super::refused;

/// Reads rows of a data set of `rows` rows: ids in a text file, separated by spaces, commas or
/// lines, or an array of NumPy, of ids or of one bool per row.
///
/// # Errors
/// If the file cannot be read or holds neither, or an id is no row.
pub(crate) fn open_filter(path: &Path, rows: usize) -> Result<IdSet> {
    let bytes = fs::read(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    match NpyHeader::parse(&bytes) {
        Some(header) => of_array(path, &header, &bytes, rows),
        None => of_text(path, &bytes, rows),
    }
}

fn of_text(path: &Path, bytes: &[u8], rows: usize) -> Result<IdSet> {
    let mut set = IdSet::new(rows);
    for (line, number) in bytes.split(|&byte| byte == b'\n').zip(1..) {
        let words = line.split(|byte| byte.is_ascii_whitespace() || *byte == b',');
        for word in words.filter(|word| !word.is_empty()) {
            let id = std::str::from_utf8(word).ok().and_then(|word| word.parse::<u64>().ok());
            let Some(id) = id else {
                let word = String::from_utf8_lossy(&word[..word.len().min(40)]);
                let found = format_args!("{:?} in line {number}", word.escape_default().to_string());
                return Err(refused(path, found, expected(rows)));
            };
            insert(&mut set, path, id, format_args!("{id} in line {number}"))?;
        }
    }
    Ok(set)
}

fn of_array(path: &Path, header: &NpyHeader, bytes: &[u8], rows: usize) -> Result<IdSet> {
    let number = Number::from_numpy(&header.descr);
    let is_mask = header.descr == "|b1";
    let (Some(number), &[count]) = (number.filter(|n| n.is_integer()), header.shape.as_slice()) else {
        let found = format_args!("a {}-D array of {}", header.shape.len(), header.descr);
        return Err(refused(path, found, expected(rows)));
    };
    let values = bytes.get(header.offset..).unwrap_or_default();
    if values.len() as u128 != u128::from(count) * number.size() as u128 {
        let wanted = format_args!("{count} numbers of {} bytes, by its header", number.size());
        return Err(refused(path, format_args!("{} bytes of values", values.len()), wanted));
    }
    if is_mask && count != rows as u64 {
        return Err(refused(path, format_args!("{count} bools"), format_args!("{rows}, one per row")));
    }
    let mut set = IdSet::new(rows);
    for (value, place) in values.chunks_exact(number.size()).zip(0u64..) {
        let value = number.value(number.little_bytes(value, &mut [0; 8]));
        if !is_mask {
            let id = if value >= 0.0 { value as u64 } else { u64::MAX };
            insert(&mut set, path, id, format_args!("{value} at place {place}"))?;
        } else if value != 0.0 {
            set.insert(place as u32)?;
        }
    }
    Ok(set)
}

fn insert(set: &mut IdSet, path: &Path, id: u64, found: impl Display) -> Result<()> {
    let rows = set.rows();
    match u32::try_from(id).ok().filter(|&id| (id as usize) < rows) {
        Some(id) => set.insert(id).map(drop),
        None => Err(refused(path, found, expected(rows))),
    }
}

fn expected(rows: usize) -> String {
    format!("ids of rows, 0 to {}, in text or an array of NumPy, or {rows} bools", rows.saturating_sub(1))
}
