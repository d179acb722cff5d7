//! Archives of NumPy's arrays: zip files with an npy file for each array.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::DeflateDecoder;
use rawzip::{CompressionMethod, MAX_CENTRAL_DIRECTORY_RECORD_SIZE, ZipArchive, ZipArchiveEntryWayfinder};
use tagore::{Error, NpyHeader, Result};

use super::copy::{copy_bytes, damaged};
use super::{choose, refused};

/// Bytes of an array that show its shape.
const HEADER: u64 = 1 << 16;

/// Arrays of an archive, at most.
const MAX_FILES: usize = 1 << 16;

/// An array of an archive.
struct Array {
    place: ZipArchiveEntryWayfinder,
    method: CompressionMethod,
}

/// Copies an array of an archive to an npy file.
///
/// # Errors
/// If the file is no archive of arrays or is damaged, none or several could be meant, or the copy
/// cannot be written.
pub(super) fn copy(path: &Path, name: Option<&str>) -> Result<PathBuf> {
    let failed = |source| Error::Io { path: path.to_owned(), source };
    let broken = |error| damaged(path, &error);
    let mut buffer = vec![0; MAX_CENTRAL_DIRECTORY_RECORD_SIZE];
    let file = File::open(path).map_err(failed)?;
    let archive = ZipArchive::from_file(file, &mut buffer).map_err(broken)?;
    let (mut arrays, mut shapes) = (Vec::new(), Vec::new());
    let mut entries = archive.entries(&mut buffer);
    while let Some(entry) = entries.next_entry().map_err(broken)? {
        let name = String::from_utf8_lossy(entry.file_path().as_bytes()).into_owned();
        if arrays.len() == MAX_FILES {
            return Err(refused(path, format_args!("more than {MAX_FILES} files"), "an archive of arrays"));
        }
        if let Some(name) = name.strip_suffix(".npy") {
            arrays.push(Array { place: entry.wayfinder(), method: entry.compression_method() });
            shapes.push((name.to_owned(), Vec::new()));
        }
    }
    for (array, (_, shape)) in arrays.iter().zip(&mut shapes) {
        let mut head = Vec::new();
        with_bytes(&archive, array, path, |bytes| {
            bytes.take(HEADER).read_to_end(&mut head).map(drop).map_err(|error| damaged(path, &error))
        })?;
        *shape = NpyHeader::parse(&head).map_or(Vec::new(), |header| header.shape);
    }
    let array = &arrays[choose(path, name, &shapes)?];
    with_bytes(&archive, array, path, |bytes| copy_bytes(bytes, path, "npy"))
}

/// Does `work` with the content of an array. Its end is compared with its checksum.
fn with_bytes<T>(
    archive: &ZipArchive<rawzip::FileReader>,
    array: &Array,
    path: &Path,
    work: impl FnOnce(&mut dyn Read) -> Result<T>,
) -> Result<T> {
    let entry = archive.get_entry(array.place).map_err(|error| damaged(path, &error))?;
    match array.method {
        CompressionMethod::STORE => work(&mut entry.verifying_reader(entry.reader())),
        CompressionMethod::DEFLATE => work(&mut entry.verifying_reader(DeflateDecoder::new(entry.reader()))),
        other => Err(refused(
            path,
            format_args!("compression {other:?}"),
            "an archive by numpy.savez or numpy.savez_compressed",
        )),
    }
}
