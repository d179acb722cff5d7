//! Opening regular files: never a pipe, which waits for its other end, or a device, which may act
//! on being opened.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use crate::{Error, Result, platform};

/// Opens a regular file that the user named, through links too.
///
/// # Errors
/// If the file cannot be opened or is not a regular file.
pub(crate) fn open(path: &Path) -> Result<File> {
    // Checked before opening, which can have effects on a device.
    check(path, &fs::metadata(path).map_err(Error::io(path))?)?;
    let mut options = File::options();
    options.read(true);
    // Without blocking, and checked again afterwards: another file may have taken the name.
    let file = platform::unblocked(&mut options).open(path).map_err(Error::io(path))?;
    check(path, &file.metadata().map_err(Error::io(path))?)?;
    Ok(file)
}

/// Opens a regular file in a folder that others can write to. A link is refused: it may have been
/// planted there to have another file read or written.
///
/// # Errors
/// If the file cannot be opened or is not a regular file, in the words of [`Error::File`].
pub(crate) fn open_planted(path: &Path, write: bool) -> Result<File> {
    check(path, &fs::symlink_metadata(path).map_err(Error::io(path))?)?;
    let mut options = File::options();
    options.read(true).write(write);
    let file = platform::unfollowed(&mut options).open(path).map_err(|error| {
        if platform::is_link(&error) { refused(path, "a link") } else { Error::io(path)(error) }
    })?;
    check(path, &file.metadata().map_err(Error::io(path))?)?;
    Ok(file)
}

/// Reads all of `file`, which must have at most `most` bytes.
///
/// # Errors
/// If it cannot be read, or is larger.
pub(crate) fn read_at_most(file: &File, path: &Path, most: u64) -> Result<Vec<u8>> {
    let bytes = file.metadata().map_err(Error::io(path))?.len();
    let mut content = Vec::new();
    let room = content.try_reserve_exact(bytes.min(most) as usize);
    room.map_err(|_| Error::io(path)(ErrorKind::OutOfMemory.into()))?;
    // It may have grown meanwhile.
    file.take(most.saturating_add(1)).read_to_end(&mut content).map_err(Error::io(path))?;
    if content.len() as u64 > most {
        return Err(Error::file(
            path,
            format_args!("{} bytes", bytes.max(most + 1)),
            format_args!("at most {most}"),
        ));
    }
    Ok(content)
}

/// Whether an error says that there is no such file.
pub(crate) fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == ErrorKind::NotFound)
}

/// Whether `path` still names `file`.
pub(crate) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    match platform::identity_of_name(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        named => Ok(platform::identity(file)? == named?),
    }
}

fn check(path: &Path, found: &Metadata) -> Result<()> {
    if found.is_file() { Ok(()) } else { Err(refused(path, kind(found))) }
}

fn refused(path: &Path, found: &str) -> Error {
    Error::file(path, found, "a regular file")
}

/// The kind of a file that is not regular.
pub(crate) fn kind(found: &Metadata) -> &'static str {
    if let Some(kind) = platform::special_kind(found.file_type()) {
        return kind;
    }
    match () {
        () if found.is_dir() => "a folder",
        () if found.is_symlink() => "a link",
        () => "a device",
    }
}
