//! Atomic file writes: a file appears under its name complete, or not at all.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::flush::Flush;
use crate::text::path_text;
use crate::{Error, Result};

/// Size of the write buffer, in bytes.
const BUFFER: usize = 1 << 20;

/// Suffix of a temporary file's name.
const TEMPORARY: &str = ".tagore-tmp";

/// A file being written, under a hidden temporary name in the target's folder.
/// [`commit`](Self::commit) renames it to the target. A file dropped before that is deleted, and an
/// older file at the target stays as it was.
///
/// The temporary name follows from the target ([`temporary_path`]), and the file is locked. So the
/// next writer of a target removes the remains of a killed run, and a second writer at the same
/// time fails.
#[derive(Debug)]
pub(crate) struct AtomicFile {
    writer: BufWriter<File>,
    temporary: TemporaryPath,
    target: PathBuf,
    flush: Flush,
}

impl AtomicFile {
    /// Starts the file that will replace `target`, or the file that the symbolic link `target`
    /// leads to.
    ///
    /// # Errors
    /// If the folder of `target` does not exist or cannot be written to, if `target` is no regular
    /// file (a rename would destroy a device or a pipe), or if another run is writing it.
    pub(crate) fn create(target: &Path) -> Result<Self> {
        let target = followed(target)?;
        let temporary = temporary_path(&target);
        let file = start(&temporary, &target)?;
        let temporary = TemporaryPath(temporary);
        let writer = BufWriter::with_capacity(BUFFER, file);
        Ok(Self { writer, temporary, target, flush: Flush::default() })
    }

    /// The path that the file will have.
    pub(crate) fn target(&self) -> &Path {
        &self.target
    }

    /// Sets the length of the file to `bytes`; unwritten bytes are zero.
    ///
    /// # Errors
    /// If the file system refuses that length.
    pub(crate) fn set_len(&mut self, bytes: u64) -> Result<()> {
        self.writer.get_ref().set_len(bytes).map_err(Error::io(&self.target))
    }

    /// Takes blocks for the first `bytes` bytes, where the file system gives them in advance: they
    /// are written sooner then, and a full disk is found out before.
    ///
    /// # Errors
    /// If the disk or a quota has no room for them.
    pub(crate) fn reserve(&mut self, bytes: u64) -> Result<()> {
        #[cfg(target_os = "linux")]
        {
            use rustix::fs::{FallocateFlags, fallocate};
            use rustix::io::Errno;
            // Other errors are those of file systems that give blocks when they are written.
            let reserved = fallocate(self.writer.get_ref(), FallocateFlags::empty(), 0, bytes);
            if let Err(error @ (Errno::NOSPC | Errno::DQUOT | Errno::FBIG)) = reserved {
                return Err(Error::io(&self.target)(error.into()));
            }
        }
        #[cfg(not(target_os = "linux"))]
        let _ = bytes;
        Ok(())
    }

    /// Moves the write position to byte `offset`.
    ///
    /// # Errors
    /// If buffered bytes cannot be written.
    pub(crate) fn seek(&mut self, offset: u64) -> Result<()> {
        self.writer.seek(SeekFrom::Start(offset)).map(|_| ()).map_err(Error::io(&self.target))
    }

    /// Writes `bytes` at the write position.
    ///
    /// # Errors
    /// If a write fails, this one or a buffered one.
    pub(crate) fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        let write = self.writer.write_all(bytes);
        write
            .and_then(|()| self.flush.wrote(bytes.len(), self.writer.get_ref()))
            .map_err(Error::io(&self.target))
    }

    /// Empties the buffer, so that readers see the whole file, and starts to sync it. Returns its
    /// temporary path.
    ///
    /// # Errors
    /// If buffered bytes cannot be written, or an earlier sync failed.
    pub(crate) fn flushed(&mut self) -> Result<&Path> {
        let flushed = self.writer.flush().and_then(|()| self.flush.begin(self.writer.get_ref()));
        flushed.map_err(Error::io(&self.target))?;
        Ok(&self.temporary.0)
    }

    /// Syncs the file to disk and renames it to its target.
    ///
    /// # Errors
    /// If either fails; the temporary file is deleted then.
    pub(crate) fn commit(self) -> Result<()> {
        self.finish()?.rename()
    }

    /// Commits like [`commit`](Self::commit), and deletes the `stale` files between sync and
    /// rename. Symbolic links are not deleted.
    ///
    /// # Errors
    /// If a step fails. Until the file is on disk nothing has changed.
    pub(crate) fn commit_replacing(self, stale: &[PathBuf]) -> Result<()> {
        let file = self.finish()?;
        let is_file = |path: &&PathBuf| fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
        stale.iter().filter(is_file).try_for_each(|path| remove(path))?;
        file.rename()
    }

    /// Commits files that are read together, once all of them are on disk. The last one completes
    /// the set: its older version is deleted first, with the `stale` files, so no reader sees files
    /// of two sets.
    ///
    /// # Errors
    /// If a step fails. Until all files are on disk nothing has changed.
    pub(crate) fn commit_all(files: Vec<Self>, stale: &[PathBuf]) -> Result<()> {
        let files = files.into_iter().map(Self::finish).collect::<Result<Vec<Finished>>>()?;
        files.last().map(|file| &file.target).into_iter().chain(stale).try_for_each(|path| remove(path))?;
        files.into_iter().try_for_each(Finished::rename)
    }

    /// Empties the buffer and syncs the file to disk.
    fn finish(self) -> Result<Finished> {
        let Self { writer, temporary, target, mut flush } = self;
        let written = flush.wait().and_then(|()| writer.into_inner().map_err(io::IntoInnerError::into_error));
        written.and_then(|file| file.sync_all()).map_err(Error::io(&target))?;
        Ok(Finished { temporary, target })
    }
}

/// A file synced to disk, under its temporary name.
struct Finished {
    temporary: TemporaryPath,
    target: PathBuf,
}

impl Finished {
    fn rename(self) -> Result<()> {
        let Self { temporary, target } = self;
        let rename = || {
            temporary.persist(&target)?;
            // A rename lasts only once the folder has been written too; only unix can ask for that.
            if cfg!(unix) { File::open(folder(&target))?.sync_all() } else { Ok(()) }
        };
        rename().map_err(Error::io(&target))
    }
}

/// A temporary file, deleted on drop.
#[derive(Debug)]
struct TemporaryPath(PathBuf);

impl TemporaryPath {
    /// Renames the file to `target`.
    fn persist(mut self, target: &Path) -> io::Result<()> {
        fs::rename(&self.0, target)?;
        self.0.clear();
        Ok(())
    }
}

impl Drop for TemporaryPath {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            // The next run that writes the same target removes what is left.
            let _ = fs::remove_file(&self.0);
        }
    }
}

/// Deletes the file `path`, if there is one.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(path)(error)),
        _ => Ok(()),
    }
}

/// Writes `bytes` to the file `path`, which appears complete or not at all.
///
/// # Errors
/// If the file cannot be written.
pub fn write_file(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    let mut file = AtomicFile::create(path.as_ref())?;
    file.write_all(bytes)?;
    file.commit()
}

/// Checks, before long work, that `path` can be written: its folder exists and is writable, `path`
/// is no folder, device or pipe, and no other run is writing it.
///
/// # Errors
/// If it cannot be written; the error names the obstacle.
pub fn check_output(path: impl AsRef<Path>) -> Result<()> {
    AtomicFile::create(path.as_ref()).map(drop)
}

/// Appends `suffix` to the last name of `path`.
///
/// ```
/// use std::path::Path;
/// assert_eq!(tagore::with_suffix(Path::new("a/x.tagore"), ".work"), Path::new("a/x.tagore.work"));
/// ```
pub fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// The temporary name of `target` while it is written: `.x.tagore-tmp` beside `x`.
pub fn temporary_path(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_else(|| OsStr::new("output"));
    let mut temporary = OsString::from(".");
    // Most systems take names of at most 255 bytes.
    if name.len() + TEMPORARY.len() < 255 {
        temporary.push(name);
    } else {
        temporary.push(format!("{:08x}", crc32fast::hash(name.as_encoded_bytes())));
    }
    temporary.push(TEMPORARY);
    folder(target).join(temporary)
}

/// Resolves `target` if it is a symbolic link.
fn followed(target: &Path) -> Result<PathBuf> {
    let is_link = fs::symlink_metadata(target).is_ok_and(|found| found.is_symlink());
    match fs::metadata(target) {
        Ok(found) if found.is_dir() => Err(Error::file(target, "a folder", "a file to write")),
        Ok(found) if !found.is_file() => {
            Err(Error::file(target, "a device or a pipe", "a regular file, or a new name"))
        }
        Ok(_) if is_link => fs::canonicalize(target).map_err(Error::io(target)),
        Err(_) if is_link => {
            Err(Error::file(target, "a dangling symbolic link", "a link to a file, or a new name"))
        }
        // Such as a name that is too long: the shorter temporary name would pass, and the rename
        // fail.
        Err(error) if error.kind() != ErrorKind::NotFound && error.kind() != ErrorKind::NotADirectory => {
            Err(Error::io(target)(error))
        }
        _ if target.file_name().is_none() => Err(Error::file(target, "no file name", "a file to write")),
        _ => Ok(target.to_owned()),
    }
}

/// Creates and locks the temporary file of `target`.
fn start(temporary: &Path, target: &Path) -> Result<File> {
    // Another run may remove the file between any two of these steps; then they start over.
    const ATTEMPTS: usize = 100;
    for _ in 0..ATTEMPTS {
        match OpenOptions::new().read(true).write(true).create_new(true).open(temporary) {
            Ok(file) => {
                if lock(&file, target)? && is_at(&file, temporary) {
                    return Ok(file);
                }
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => remove_stale(temporary, target)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let expected = "an existing folder: create it, or name another";
                return Err(Error::file(
                    target,
                    format_args!("no such folder {}", path_text(folder(target))),
                    expected,
                ));
            }
            // The kind alone: the full error would name the temporary file.
            Err(error) => return Err(Error::io(target)(error)),
        }
    }
    Err(being_written(target))
}

/// Removes the temporary file of a run that has ended.
fn remove_stale(temporary: &Path, target: &Path) -> Result<()> {
    let found = match fs::symlink_metadata(temporary) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.map_err(Error::io(target))?,
    };
    // A link is removed, never followed: another user of the folder may have planted it.
    if found.is_file() {
        let file = match OpenOptions::new().write(true).open(temporary) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            file => file.map_err(Error::io(target))?,
        };
        if !lock(&file, target)? {
            return Err(being_written(target));
        }
        if !is_at(&file, temporary) {
            return Ok(());
        }
        tracing::debug!(file = %temporary.display(), "removed the temporary file of a stopped run");
    }
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(target)(error)),
        _ => Ok(()),
    }
}

/// Locks `file`; returns false if another run holds the lock.
fn lock(file: &File, target: &Path) -> Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        // This file system has no locks, so concurrent writers go unnoticed.
        Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => Ok(true),
        Err(TryLockError::Error(error)) => Err(Error::io(target)(error)),
    }
}

/// Whether `path` still names `file`.
fn is_at(file: &File, path: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        file.metadata().is_ok_and(|open| fs::symlink_metadata(path).is_ok_and(|named| same(open, named)))
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        path.exists()
    }
}

fn being_written(target: &Path) -> Error {
    Error::file(target, "another run writing it", "no other writer: wait, or name another file")
}

/// The folder of `target`; for a bare name, the current one.
fn folder(target: &Path) -> &Path {
    match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(test)]
#[path = "atomic_file_tests.rs"]
mod tests;
