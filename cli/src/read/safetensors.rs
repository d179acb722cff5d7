//! Tensors of a safetensors file: the bytes of a header as u64, the header as JSON, the tensors.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tagore::{Error, Result};

use super::copy::{Copy, PIECE, damaged};
use super::number::Number;
use super::{Wanted, choose, refused, remedy};

/// Bytes of a header, at most, as in the format's own library.
const HEADER: u64 = 100_000_000;

/// Whether the first bytes of a file are those of a header.
pub(super) fn is_begin(bytes: &[u8]) -> bool {
    bytes.split_first_chunk().is_some_and(|(length, rest)| {
        (2..=HEADER).contains(&u64::from_le_bytes(*length)) && rest.starts_with(b"{\"")
    })
}

/// Copies a tensor to an npy file.
///
/// # Errors
/// If the file is damaged, none or several tensors could be meant, its numbers are of another type,
/// or [`Copy`] fails.
pub(super) fn copy(path: &Path, name: Option<&str>, wanted: Wanted) -> Result<PathBuf> {
    let failed = |source| Error::Io { path: path.to_owned(), source };
    let mut file = File::open(path).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(|error| damaged(path, &error))?;
    let length = u64::from_le_bytes(length);
    let Some(data) = length.checked_add(8).filter(|&data| data <= bytes && length <= HEADER) else {
        let found = format_args!("a header of {length} bytes");
        return Err(refused(path, found, format_args!("less than the {bytes} bytes of the file")));
    };
    let mut header = Vec::new();
    (&file).take(length).read_to_end(&mut header).map_err(failed)?;
    let header: Value = serde_json::from_slice(&header).map_err(|error| damaged(path, &error))?;
    let tensors: Vec<(&String, &Value)> =
        header.as_object().into_iter().flatten().filter(|(name, _)| *name != "__metadata__").collect();
    let numbers = |list: &Value| -> Vec<u64> {
        list.as_array().into_iter().flatten().map(|number| number.as_u64().unwrap_or(u64::MAX)).collect()
    };
    let shapes: Vec<_> =
        tensors.iter().map(|(name, tensor)| ((*name).clone(), numbers(&tensor["shape"]))).collect();
    let at = choose(path, name, &shapes)?;
    let ((name, shape), tensor) = (&shapes[at], tensors[at].1);
    let stored = tensor["dtype"].as_str().unwrap_or("no type");
    let Some(number) = number(stored) else {
        let copy = "t.save_file({k:v.float()for k,v in t.load_file(f).items()},f+'.safetensors')";
        let command = remedy::python(path, "safetensors.torch as t", copy);
        return Err(refused(
            path,
            format_args!("{name} of {stored}"),
            format_args!("F32, as {command} writes"),
        ));
    };
    let size = shape.iter().fold(number.size() as u128, |size, &n| size.saturating_mul(n.into()));
    let (begin, end) = match numbers(&tensor["data_offsets"])[..] {
        [begin, end] if begin <= end && end <= bytes - data && u128::from(end - begin) == size => {
            (begin, end)
        }
        _ => {
            let expected = format_args!("{size} bytes within the file");
            return Err(refused(path, format_args!("other offsets of {name}"), expected));
        }
    };
    let mut copy = Copy::start(path, number, shape[1], wanted)?;
    file.seek(SeekFrom::Start(data + begin)).map_err(failed)?;
    let mut left = end - begin;
    let mut piece = vec![0; PIECE];
    while left > 0 {
        let piece = &mut piece[..left.min(PIECE as u64) as usize];
        file.read_exact(piece).map_err(failed)?;
        copy.push(piece)?;
        left -= piece.len() as u64;
    }
    copy.finish()
}

fn number(name: &str) -> Option<Number> {
    Some(match name {
        "BF16" => Number::BF16,
        "BOOL" => Number::integer(1, false),
        _ => {
            let bits: usize = name.get(1..)?.parse().ok()?;
            return match (name.as_bytes()[0], bits) {
                (b'F', 16 | 32 | 64) => Some(Number::float(bits / 8)),
                (b'I' | b'U', 8 | 16 | 32 | 64) => Some(Number::integer(bits / 8, name.starts_with('I'))),
                _ => None,
            };
        }
    })
}
