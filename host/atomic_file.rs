//! Atomic file writes: a file appears under its name complete, or not at all.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, BufWriter, ErrorKind, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use memmap2::MmapOptions;
use tagore_text::path_text;

use crate::flush::Flush;
use crate::loops::{for_each, rows, rows_mut};
use crate::regular_file::{self, is_at, is_missing};
use crate::{Error, Result, platform};

/// Size of the write buffer, in bytes.
const BUFFER: usize = 1 << 20;

/// Suffix of a temporary file's name.
pub(crate) const TEMPORARY: &str = ".tagore-tmp";

/// A file being written, under a hidden temporary name in the target's folder.
/// [`commit`](Self::commit) renames it to the target. A file dropped before that is deleted, and an
/// older file at the target stays as it was.
///
/// The temporary name follows from the target ([`temporary_path`]), and the file is locked until it
/// has its name, or is deleted. So the next writer of a target removes the remains of a killed run,
/// and a second writer at the same time fails.
///
/// On unix the file keeps the mode of the older file, and its owner and group where the system
/// allows that.
#[derive(Debug)]
pub(crate) struct AtomicFile {
    // Fields drop in this order: without the lock, the name may be that of another run.
    temporary: TemporaryPath,
    /// Holds the lock.
    writer: BufWriter<File>,
    target: PathBuf,
    flush: Flush,
    /// The mode of the older file.
    mode: Option<u32>,
    /// Reserved bytes of a file in memory, on tmpfs.
    in_memory: u64,
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
        Self::start(target, temporary)
    }

    /// As [`create`](Self::create), but under a temporary name in the target's folder that `name`
    /// makes of the target's: several processes may write the same content at once.
    ///
    /// # Errors
    /// As [`create`](Self::create).
    pub(crate) fn create_as(target: &Path, name: impl FnOnce(&OsStr) -> OsString) -> Result<Self> {
        let target = followed(target)?;
        let temporary = target.with_file_name(name(target.file_name().unwrap_or_default()));
        Self::start(target, temporary)
    }

    /// As [`create`](Self::create), in a folder that others can write to: no link is followed.
    ///
    /// # Errors
    /// As [`create`](Self::create), or if `target` is a link.
    pub(crate) fn create_unfollowed(target: &Path) -> Result<Self> {
        Self::start(target.to_owned(), temporary_path(target))
    }

    fn start(target: PathBuf, temporary: PathBuf) -> Result<Self> {
        let old = replaceable(&target)?;
        let file = start(&temporary, &target, old.is_some())?;
        let temporary = TemporaryPath(temporary);
        let mode = old.and_then(|old| platform::take_over(&file, &old));
        let writer = BufWriter::with_capacity(BUFFER, file);
        Ok(Self { temporary, writer, target, flush: Flush::default(), mode, in_memory: 0 })
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
        let reserved = platform::reserve(self.writer.get_ref(), bytes);
        self.in_memory = reserved.map_err(Error::io(&self.target))?;
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

    /// Writes `bytes` at byte `offset`, below the length of the file. To a file in memory all
    /// threads copy them: one fills 4 GB/s, and others would wait for it in writes.
    ///
    /// # Errors
    /// As [`write_all`](Self::write_all).
    pub(crate) fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        if bytes.len() < BUFFER || offset + bytes.len() as u64 > self.in_memory {
            self.seek(offset)?;
            return self.write_all(bytes);
        }
        let file = self.writer.get_ref();
        // SAFETY: no one else knows the file, and the system has given it pages for all of these
        // bytes.
        let map = unsafe { MmapOptions::new().offset(offset).len(bytes.len()).map_mut(file) };
        let mut map = map.map_err(Error::io(&self.target))?;
        for_each((rows_mut(&mut map, BUFFER), rows(bytes, BUFFER)), |(to, from)| to.copy_from_slice(from));
        Ok(())
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
    pub(crate) fn commit(mut self) -> Result<()> {
        self.finish()?;
        self.rename()
    }

    /// Commits like [`commit`](Self::commit), and deletes the `stale` files between sync and
    /// rename. Symbolic links are not deleted.
    ///
    /// # Errors
    /// If a step fails. Until the file is on disk nothing has changed.
    pub(crate) fn commit_replacing(mut self, stale: &[PathBuf]) -> Result<()> {
        self.finish()?;
        let is_file = |path: &&PathBuf| fs::symlink_metadata(path).is_ok_and(|found| found.is_file());
        stale.iter().filter(is_file).try_for_each(|path| remove(path))?;
        self.rename()
    }

    /// Commits files that are read together, once all of them are on disk. The last one completes
    /// the set: its older version is deleted first, with the `stale` files, so no reader sees files
    /// of two sets. All locks are held to the end: another run writes the set before or after.
    ///
    /// # Errors
    /// If a step fails. Until all files are on disk nothing has changed.
    pub(crate) fn commit_all(mut files: Vec<Self>, stale: &[PathBuf]) -> Result<()> {
        files.iter_mut().try_for_each(Self::finish)?;
        files.iter().try_for_each(|file| replaceable(&file.target).map(drop))?;
        files.last().map(|file| &file.target).into_iter().chain(stale).try_for_each(|path| remove(path))?;
        files.iter_mut().try_for_each(Self::rename)
    }

    /// Empties the buffer and syncs the file to disk.
    fn finish(&mut self) -> Result<()> {
        let Self { writer, flush, mode, .. } = self;
        let written = flush.wait().and_then(|()| writer.flush());
        if let Some(mode) = *mode {
            platform::set_mode(writer.get_ref(), mode);
        }
        written.and_then(|()| writer.get_ref().sync_all()).map_err(Error::io(&self.target))
    }

    /// Renames the file to its target, and waits until the name is on disk.
    fn rename(&mut self) -> Result<()> {
        let Self { temporary, writer, target, .. } = self;
        // Since the start, a device or a pipe may have taken the name of the target, or, where the
        // file system has no locks, the file of another run the temporary one.
        replaceable(target)?;
        let mut rename = || {
            if !is_at(writer.get_ref(), &temporary.0)? && fs::symlink_metadata(&temporary.0).is_ok() {
                return Ok(false);
            }
            temporary.persist(target)?;
            platform::sync_folder(folder(target))?;
            Ok(true)
        };
        if rename().map_err(Error::io(target))? { Ok(()) } else { Err(being_written(target)) }
    }
}

/// A temporary file, deleted on drop.
#[derive(Debug)]
struct TemporaryPath(PathBuf);

impl TemporaryPath {
    /// Renames the file to `target`.
    fn persist(&mut self, target: &Path) -> io::Result<()> {
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
pub(crate) fn remove(path: &Path) -> Result<()> {
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
    HeldFile::hold(path)?.write(bytes)
}

/// A file that no other run can write until this one has written it, or drops it.
pub struct HeldFile(AtomicFile);

impl HeldFile {
    /// Keeps others from writing the file `path`.
    ///
    /// # Errors
    /// If the file cannot be written, or another run is writing it.
    pub fn hold(path: impl AsRef<Path>) -> Result<Self> {
        AtomicFile::create(path.as_ref()).map(Self)
    }

    /// Writes `bytes` to the file, which appears complete or not at all.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(mut self, bytes: &[u8]) -> Result<()> {
        self.0.write_all(bytes)?;
        self.0.commit()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0.target
    }
}

/// Appends `suffix` to the last name of `path`.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// The temporary name of `target` while it is written: `.x.tagore-tmp` beside `x`.
pub(crate) fn temporary_path(target: &Path) -> PathBuf {
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

/// The older file at `target`, if there is one, which a rename will replace.
fn replaceable(target: &Path) -> Result<Option<Metadata>> {
    match fs::symlink_metadata(target) {
        Ok(found) if found.is_file() => Ok(Some(found)),
        Ok(found) => {
            Err(Error::file(target, regular_file::kind(&found), "a regular file to replace, or a new name"))
        }
        // An error of the folder appears when the file is created.
        Err(_) => Ok(None),
    }
}

/// Creates and locks the temporary file of `target`, closed to others if an older file `is_there`.
fn start(temporary: &Path, target: &Path, is_there: bool) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true);
    if is_there {
        platform::private(&mut options);
    }
    // Another run may remove the file between any two of these steps; then they start over.
    const ATTEMPTS: usize = 100;
    for _ in 0..ATTEMPTS {
        match options.open(temporary) {
            Ok(file) => {
                if lock(&file, target)? && is_at(&file, temporary).map_err(Error::io(target))? {
                    return Ok(file);
                }
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => remove_stale(temporary, target)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let name = path_text(folder(target));
                // As /proc does.
                if folder(target).is_dir() {
                    let found = format_args!("the folder {name}, which takes no new files");
                    return Err(Error::file(target, found, "another folder"));
                }
                let expected = "an existing folder: create it, or name another";
                return Err(Error::file(target, format_args!("no such folder {name}"), expected));
            }
            // The kind alone: the full error would name the temporary file.
            Err(error) => return Err(Error::io(target)(error)),
        }
    }
    Err(being_written(target))
}

/// Removes the temporary file of a run that has ended.
fn remove_stale(temporary: &Path, target: &Path) -> Result<()> {
    // A link is removed, never followed: another user of the folder may have planted it.
    let stale = match regular_file::open_planted(temporary, true) {
        Ok(file) => Some(file),
        Err(error) if is_missing(&error) => return Ok(()),
        Err(Error::Io { source, .. }) => return Err(Error::io(target)(source)),
        Err(_) => None,
    };
    if let Some(file) = &stale {
        if !lock(file, target)? {
            return Err(being_written(target));
        }
        if !is_at(file, temporary).map_err(Error::io(target))? {
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
