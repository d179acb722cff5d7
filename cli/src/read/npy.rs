//! Arrays of NumPy whose numbers vectors do not have: of other types, in another order of bytes, or
//! in columns.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use tagore::{Error, NpyHeader, Result};

use super::copy::{Copy, PIECE};
use super::number::Number;
use super::{Wanted, refused, remedy};

/// Bytes that a header has at most, but for records of hundreds of fields.
const HEADER: u64 = 1 << 20;

/// Bytes of the rows that are gathered from columns at a time.
const BLOCK: usize = 16 << 20;

/// The array in `file` as rows, unless the library reads it as it is.
///
/// # Errors
/// If it has no rows of numbers, its size contradicts its header, or [`Copy`] fails.
pub(super) fn copy(path: &Path, wanted: Wanted) -> Result<Option<PathBuf>> {
    let failed = |source| Error::Io { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let mut head = Vec::new();
    (&file).take(HEADER).read_to_end(&mut head).map_err(failed)?;
    // The library says what is wrong with a header.
    let Some(header) = NpyHeader::parse(&head) else { return Ok(None) };
    let Some(number) = Number::from_numpy(&header.descr) else {
        return Err(no_rows(path, &header));
    };
    let &[rows, cols] = header.shape.as_slice() else { return Err(no_rows(path, &header)) };
    let is_read =
        !number.is_big_endian() && (number.is_of_vectors() || wanted == Wanted::Any && number.may_be_ids());
    if is_read && !header.fortran_order && header.descr != "|b1" {
        return Ok(None);
    }
    let (bytes, size) = (file.metadata().map_err(failed)?.len(), number.size());
    let expected = u128::from(rows) * u128::from(cols) * size as u128 + header.offset as u128;
    if u128::from(bytes) != expected {
        let expected =
            format_args!("{expected} ({} + {rows} x {cols} x {size}, by its header)", header.offset);
        return Err(refused(path, format_args!("{bytes} bytes"), expected));
    }
    let mut copy = Copy::start(path, number, cols, wanted)?;
    if header.fortran_order {
        // Both are at most the bytes of the file.
        let (rows, cols) = (rows as usize, cols as usize);
        let height = (BLOCK / (cols * size)).max(1);
        for first in (0..rows).step_by(height) {
            let height = height.min(rows - first);
            let (mut column, mut block) = (vec![0; height * size], vec![0; height * cols * size]);
            for col in 0..cols {
                let at = header.offset + (col * rows + first) * size;
                file.seek(SeekFrom::Start(at as u64)).map_err(failed)?;
                file.read_exact(&mut column).map_err(failed)?;
                for (row, number) in column.chunks_exact(size).enumerate() {
                    block[(row * cols + col) * size..][..size].copy_from_slice(number);
                }
            }
            copy.push(&block)?;
        }
    } else {
        file.seek(SeekFrom::Start(header.offset as u64)).map_err(failed)?;
        let mut piece = vec![0; PIECE];
        let mut left = bytes - header.offset as u64;
        while left > 0 {
            let piece = &mut piece[..left.min(PIECE as u64) as usize];
            file.read_exact(piece).map_err(failed)?;
            copy.push(piece)?;
            left -= piece.len() as u64;
        }
    }
    copy.finish().map(Some)
}

/// The error of an array that is no rows of numbers, with the command that makes rows of it.
fn no_rows(path: &Path, header: &NpyHeader) -> Error {
    let found = format!("a {}-D array of {}", header.shape.len(), header.descr);
    let number = Number::from_numpy(&header.descr);
    let rows = match (header.shape.len(), header.descr.as_bytes().get(1)) {
        (1, Some(b'O')) => "n.stack(n.load(f,allow_pickle=True))",
        (_, Some(b'O' | b'U' | b'S')) => "n.load(f,allow_pickle=True).astype('f4')",
        _ if number.is_none() => return refused(path, found, "a 2-D array of real numbers"),
        (0 | 1, _) => "n.load(f).reshape(1,-1)",
        _ => "(lambda a:a.reshape(len(a),-1))(n.load(f))",
    };
    let command = remedy::python(path, "numpy as n", &format!("n.save(f+'.rows.npy',{rows})"));
    refused(path, found, format_args!("a 2-D array of numbers, as {command} makes"))
}
