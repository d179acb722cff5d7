//! Files of other programs as vectors.
//!
//! Vectors are mapped, so a file that holds them otherwise is first copied to a temporary npy file,
//! piece by piece: compressed files, archives of arrays, tables, text, and arrays of other types or
//! orders. So memory holds no rows but those mapped. The copy is removed at the end of the command,
//! as those of pipes are. Sizes in a file are checked before memory is taken.

mod arrow;
mod bytes;
mod compressed;
mod copy;
mod filter;
mod flatbuffer;
mod hdf5;
mod lists;
mod npy;
mod npz;
mod number;
mod parquet;
mod remedy;
mod safetensors;
mod text;

use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tagore::{Format, GroundTruth, Progress, Vectors};
use tagore_text::path_text;

use crate::error::Result;
use crate::options::{is_text, unknown_format};
use crate::output::Output;
use crate::spool;
pub(crate) use filter::{open_filter, open_u64_ids};
use remedy::shell_word;
pub(crate) use remedy::{other_program, text_file};

/// The output that takes the notes of reading.
static OUTPUT: OnceLock<Arc<Output>> = OnceLock::new();

/// Sets the output that takes the notes of reading.
pub(crate) fn note_to(output: &Arc<Output>) {
    // A second call would be another command in this process.
    let _ = OUTPUT.set(Arc::clone(output));
}

fn note(text: impl Display) {
    if let Some(output) = OUTPUT.get() {
        output.say(text);
    }
}

/// The content wanted of a file that does not say what its numbers are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Vectors: integers are numbers.
    Vectors,
    /// Vectors or ids: integers of more than a byte are ids.
    Any,
}

/// A file that the library opens.
pub(crate) struct Plain {
    pub path: PathBuf,
    /// Format of vectors or ids. None if its extension names none.
    pub format: Option<Format>,
}

/// A kind of file by its extension, or by its first bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Own(Format),
    Gzip,
    Zstd,
    Npz,
    Hdf5,
    Parquet,
    Arrow,
    Safetensors,
    Text,
}

impl Kind {
    fn from_extension(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_string_lossy().to_ascii_lowercase();
        Some(match extension.as_str() {
            "gz" | "gzip" => Self::Gzip,
            "zst" | "zstd" => Self::Zstd,
            "npz" => Self::Npz,
            "hdf5" | "h5" | "hdf" => Self::Hdf5,
            "parquet" | "pq" => Self::Parquet,
            "arrow" | "arrows" | "feather" | "ipc" => Self::Arrow,
            "safetensors" => Self::Safetensors,
            "txt" | "vec" => Self::Text,
            _ => Self::Own(Format::from_path(path).ok()?),
        })
    }

    fn from_first_bytes(path: &Path) -> Option<Self> {
        let mut begin = Vec::new();
        File::open(path).ok()?.take(16).read_to_end(&mut begin).ok()?;
        let kinds = [
            (&b"\x1f\x8b\x08"[..], Self::Gzip),
            (b"\x28\xb5\x2f\xfd", Self::Zstd),
            (b"PK\x03\x04", Self::Npz),
            (b"\x89HDF\r\n\x1a\n", Self::Hdf5),
            (b"PAR1", Self::Parquet),
            (b"ARROW1", Self::Arrow),
            (b"\xff\xff\xff\xff", Self::Arrow),
            (b"\x93NUMPY", Self::Own(Format::Npy)),
        ];
        let known = kinds.into_iter().find_map(|(first, kind)| begin.starts_with(first).then_some(kind));
        known.or_else(|| safetensors::is_begin(&begin).then_some(Self::Safetensors))
    }

    /// Whether the file holds another file.
    fn is_compressed(self) -> bool {
        matches!(self, Self::Gzip | Self::Zstd)
    }
}

/// A file, and the name of an array or column in it: `file.npz:name`.
struct Place<'a> {
    file: &'a Path,
    name: Option<&'a str>,
}

/// The file and the name of `path`. A file whose own name has a colon is that file.
fn place(path: &Path) -> Place<'_> {
    let whole = Place { file: path, name: None };
    let Some(text) = path.to_str().filter(|text| text.contains(':') && !path.exists()) else { return whole };
    let mut parts = text.match_indices(':').map(|(colon, _)| (Path::new(&text[..colon]), &text[colon + 1..]));
    parts
        .find(|(file, _)| file.is_file())
        .map_or(whole, |(file, name)| Place { file, name: Some(name).filter(|name| !name.is_empty()) })
}

/// The file of `path`, without the name of an array in it.
pub(crate) fn file_of(path: &Path) -> &Path {
    place(path).file
}

/// Opens vectors in `format`, or else in the format of the file's extension or first bytes.
///
/// # Errors
/// If the file holds no vectors, cannot be read, or is damaged.
pub(crate) fn open(path: &Path, format: Option<Format>) -> Result<Vectors> {
    let Plain { path, format } = plain(path, format, Wanted::Vectors)?;
    let format = format.map_or_else(|| Format::from_path(&path), Ok);
    map(&path, format.map_err(|error| unknown_format(&path, error))?)
}

/// Opens a ground truth or ids.
///
/// # Errors
/// If the file holds none, cannot be read, or is damaged.
pub(crate) fn open_ids(path: &Path, progress: &Progress) -> Result<GroundTruth> {
    let Place { file, name } = place(path);
    let is_own = matches!(Kind::from_extension(file), None | Some(Kind::Own(_)));
    let copy = if is_own && name.is_none() { None } else { Some(plain(path, None, Wanted::Any)?.path) };
    Ok(GroundTruth::open(copy.as_deref().unwrap_or(path), progress)?)
}

/// The format of a file that is mapped as it is, for work of several processes.
///
/// # Errors
/// If it would be copied first: the error names the command that converts it.
pub(crate) fn own_format(path: &Path, format: Option<Format>) -> Result<Format> {
    match format.map(Kind::Own).or_else(|| Kind::from_extension(file_of(path))) {
        Some(Kind::Own(format)) if path == file_of(path) => Ok(format),
        None => Format::from_path(path).map_err(|error| unknown_format(path, error)),
        Some(_) => {
            let (from, to) =
                (shell_word(&file_name(path)), shell_word(&file_name(&path.with_extension("fbin"))));
            let expected = format_args!("one that is mapped: tagore convert {from} {to}");
            Err(refused(path, "a file that each task would copy", expected).into())
        }
    }
}

/// Maps vectors of a file of our own formats.
pub(crate) fn map(path: &Path, format: Format) -> Result<Vectors> {
    // SAFETY: the command's page says that no one changes a file that it reads. A file that was cut
    // short ends it with an error (`signals.rs`), as does one whose change makes work panic.
    let opened = unsafe { Vectors::map_as(path, format) };
    opened.map_err(|error| if is_text(path) { text_file(path) } else { error.into() })
}

/// The file of a path, or a copy of the file in a format that the library opens.
///
/// # Errors
/// If the file cannot be read or is damaged, a copy cannot be written, or the work is cancelled.
pub(crate) fn plain(path: &Path, format: Option<Format>, wanted: Wanted) -> Result<Plain> {
    let Place { file, name } = place(path);
    spool::fill(file)?;
    let kind = kind(file, format);
    if !kind.is_some_and(Kind::is_compressed) {
        return uncompressed(file, name, kind, wanted);
    }
    let inner = match format {
        Some(format) => format.name().to_owned(),
        None => file
            .file_stem()
            .map(Path::new)
            .and_then(Path::extension)
            .unwrap_or_default()
            .to_string_lossy()
            .into(),
    };
    let copy = compressed::copy(file, kind == Some(Kind::Gzip), &inner)?;
    let inside = self::kind(&copy, format);
    if inside.is_some_and(Kind::is_compressed) {
        let command = "gzip -d or zstd -d of the file gives the inner one";
        return Err(refused(path, "a file that is compressed twice", command).into());
    }
    let plain = uncompressed(&copy, name, inside, wanted)?;
    if plain.path != copy {
        spool::discard(&copy);
    }
    Ok(plain)
}

/// As [`plain`], of a file that is not compressed.
fn uncompressed(file: &Path, name: Option<&str>, kind: Option<Kind>, wanted: Wanted) -> Result<Plain> {
    let copy = match kind {
        None | Some(Kind::Own(_) | Kind::Text) if name.is_some() => {
            let found = format_args!("the name {} after it", name.unwrap_or_default());
            return Err(refused(file, found, "no name: the file holds one array").into());
        }
        Some(Kind::Own(Format::Npy)) => npy::copy(file, wanted)?,
        Some(Kind::Npz) => {
            let array = npz::copy(file, name)?;
            let copy = npy::copy(&array, wanted)?;
            if copy.is_some() {
                spool::discard(&array);
            }
            Some(copy.unwrap_or(array))
        }
        Some(Kind::Safetensors) => Some(safetensors::copy(file, name, wanted)?),
        Some(Kind::Text) => Some(text::copy(file)?),
        Some(Kind::Arrow) => Some(arrow::copy(file, name, wanted)?),
        Some(Kind::Hdf5) => Some(hdf5::copy(file, name, wanted)?),
        Some(Kind::Parquet) => Some(parquet::copy(file, name, wanted)?),
        None | Some(Kind::Own(_) | Kind::Gzip | Kind::Zstd) => None,
    };
    let format = match kind {
        Some(Kind::Own(format)) => Some(format),
        _ => copy.is_some().then_some(Format::Npy),
    };
    Ok(Plain { path: copy.unwrap_or_else(|| file.to_owned()), format })
}

/// The kind of a file: in the given format, by its extension, or else by its first bytes.
fn kind(file: &Path, format: Option<Format>) -> Option<Kind> {
    let known = Kind::from_extension(file);
    if known.is_some_and(Kind::is_compressed) {
        return known;
    }
    let first = || Kind::from_first_bytes(file);
    let Some(own) = format.map(Kind::Own).or(known) else {
        let is_text = || spool::is_copy(file) && file.extension().is_none() && is_text(file);
        return first().or_else(|| is_text().then_some(Kind::Text));
    };
    // The first bytes of a compressed file may also be a number of rows.
    match (own, first().filter(|first| first.is_compressed())) {
        (Kind::Own(format), Some(compressed)) if map(file, format).is_err() => Some(compressed),
        _ => Some(own),
    }
}

/// Chooses an array of `file` by `name`, or else the only one with two dimensions. Returns its
/// place in `arrays`, which are names and shapes.
fn choose(file: &Path, name: Option<&str>, arrays: &[(String, Vec<u64>)]) -> tagore::Result<usize> {
    let tables: Vec<usize> = (0..arrays.len()).filter(|&at| arrays[at].1.len() == 2).collect();
    let mut names: Vec<&str> = tables.iter().map(|&at| arrays[at].0.as_str()).collect();
    let all = names.join(", ");
    if let Some(name) = name {
        if let Some(&at) = tables.iter().find(|&&at| arrays[at].0 == name) {
            return Ok(at);
        }
        let known = arrays.iter().any(|(other, _)| other == name);
        let found = format!("no {} {name}", if known { "rows of numbers in" } else { "array" });
        let expected = if names.is_empty() { "rows of vectors".to_owned() } else { format!("one of {all}") };
        return Err(refused(file, found, expected));
    }
    match (tables.as_slice(), names.pop()) {
        (&[only], _) => Ok(only),
        (_, None) => Err(refused(file, "no array of two dimensions", "rows of vectors")),
        (_, Some(last)) => {
            let expected = format_args!("the name of one, such as {}:{last}", file_name(file));
            Err(refused(file, format_args!("{} arrays: {all}", tables.len()), expected))
        }
    }
}

/// The name of a file in messages.
fn file_name(file: &Path) -> String {
    spool::named(&path_text(file)).into_owned()
}

fn refused(path: &Path, found: impl Display, expected: impl Display) -> tagore::Error {
    let (found, expected) = (found.to_string(), expected.to_string());
    tagore::Error::File { path: path.to_owned(), found, expected }
}
