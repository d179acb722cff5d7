//! A private folder, opened once.
//!
//! Logs, the lock and all that is read are opened by name in the open folder, never through links.
//! So no other user can make the build read or write another file in their place. States are
//! written by path ([`AtomicFile`](crate::atomic_file::AtomicFile)).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::regular_file::{is_missing, read_at_most};
use crate::{Error, Result};

/// Maximum bytes of a file that is read as a whole.
const MAX_STATE: u64 = u32::MAX as u64;

/// Advice in errors about an untrusted folder.
const DELETE: &str = "delete the folder to build anew";

/// Disk space of a folder.
pub(crate) struct DiskSpace {
    /// Bytes of the folder's files.
    pub used: u64,
    /// Free bytes of the file system.
    pub free: u64,
}

/// An open folder.
pub(crate) struct Folder {
    path: PathBuf,
    handle: system::Handle,
}

impl Folder {
    /// Opens the folder at `path`, or creates it without access for others.
    ///
    /// # Errors
    /// If it cannot be created, is not a folder (a link, too), or belongs to another user.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        // Drops a final slash: `link/` would follow the link.
        let path: PathBuf = path.components().collect();
        let handle = system::open(&path)?;
        Ok(Self { path, handle })
    }

    /// Removes the access rights of other users.
    ///
    /// # Errors
    /// If others could write to the folder and it is not empty.
    pub(crate) fn make_private(&self) -> Result<()> {
        system::make_private(self)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Names of the files.
    pub(crate) fn names(&self) -> Result<Vec<OsString>> {
        system::names(&self.handle).map_err(Error::io(&self.path))
    }

    /// Opens a regular file for reading and writing, or creates an empty one.
    ///
    /// # Errors
    /// If it cannot be opened, or is no regular file (a link, too).
    pub(crate) fn file(&self, name: &str) -> Result<File> {
        system::file(&self.handle, &self.path.join(name), name, true)
    }

    /// Reads a file; `None` if it is missing.
    ///
    /// # Errors
    /// As [`file`](Self::file).
    pub(crate) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.path.join(name);
        let file = match system::file(&self.handle, &path, name, false) {
            Err(error) if is_missing(&error) => return Ok(None),
            file => file?,
        };
        read_at_most(&file, &path, MAX_STATE).map(Some)
    }

    /// Removes a file, if it exists.
    pub(crate) fn remove(&self, name: impl AsRef<OsStr>) -> Result<()> {
        let path = self.path.join(name.as_ref());
        match system::remove(&self.handle, name.as_ref()) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(&path)(error)),
            _ => Ok(()),
        }
    }

    /// Renames a file and waits until the new name is on disk.
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<()> {
        system::rename(&self.handle, from, to).map_err(Error::io(&self.path))
    }

    /// Used and free bytes; `None` if the system does not tell.
    pub(crate) fn space(&self) -> Result<Option<DiskSpace>> {
        system::space(&self.handle, &self.names()?).map_err(Error::io(&self.path))
    }
}

#[cfg(unix)]
mod system {
    use std::ffi::{OsStr, OsString};
    use std::fs::File;
    use std::io;
    use std::os::fd::OwnedFd;
    use std::os::unix::ffi::OsStringExt;
    use std::path::Path;

    use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
    use rustix::io::Errno;
    use rustix::{fs, process};

    use super::{DELETE, DiskSpace, Folder};
    use crate::{Error, Result};

    pub(super) type Handle = OwnedFd;

    pub(super) fn open(path: &Path) -> Result<Handle> {
        match fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => (),
            Err(error) => return Err(Error::io(path)(error.into())),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = fs::open(path, flags, Mode::empty()).map_err(|error| match error {
            Errno::NOTDIR | Errno::LOOP => Error::file(path, "a link or a file", "a folder, or none"),
            _ => Error::io(path)(error.into()),
        })?;
        let (owner, user) = (stat(&folder, path)?.st_uid, process::geteuid().as_raw());
        if owner != user {
            let expected = format!("a folder of user {user}, or none");
            return Err(Error::file(path, format_args!("a folder of user {owner}"), expected));
        }
        Ok(folder)
    }

    pub(super) fn make_private(folder: &Folder) -> Result<()> {
        let Folder { path, handle } = folder;
        let mode = Mode::from_raw_mode(stat(handle, path)?.st_mode);
        let is_open = mode.intersects(Mode::WGRP | Mode::WOTH);
        let check = || match is_open && !folder.names()?.is_empty() {
            true => {
                let found =
                    format!("files in a folder with write access for others (mode {:03o})", mode.bits());
                Err(Error::file(path, found, format_args!("mode 700; {DELETE}")))
            }
            false => Ok(()),
        };
        check()?;
        match fs::fchmod(handle, Mode::RWXU) {
            // Some file systems have one mode for all files.
            Err(error) if is_open => Err(Error::io(path)(error.into())),
            // Another user may have put a file there since the first check.
            _ => check(),
        }
    }

    fn stat(handle: &OwnedFd, path: &Path) -> Result<Stat> {
        fs::fstat(handle).map_err(|error| Error::io(path)(error.into()))
    }

    pub(super) fn names(handle: &Handle) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(handle)? {
            let name = entry?.file_name().to_bytes().to_vec();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    pub(super) fn file(handle: &Handle, path: &Path, name: &str, write: bool) -> Result<File> {
        let access = if write { OFlags::RDWR | OFlags::CREATE } else { OFlags::RDONLY };
        // NONBLOCK: opening a pipe would wait for its other end.
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let refused = |found| Error::file(path, found, format_args!("a regular file; {DELETE}"));
        let file = fs::openat(handle, name, flags, Mode::RUSR | Mode::WUSR).map_err(|error| match error {
            Errno::LOOP => refused("a link"),
            _ => Error::io(path)(error.into()),
        })?;
        let found = stat(&file, path)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
            return Err(refused("a special file or a folder"));
        }
        // A file that was removed meanwhile has no link left.
        if found.st_nlink > 1 {
            return Err(refused("a file with a second name (a hard link)"));
        }
        Ok(file.into())
    }

    pub(super) fn remove(handle: &Handle, name: &OsStr) -> io::Result<()> {
        Ok(fs::unlinkat(handle, name, AtFlags::empty())?)
    }

    pub(super) fn rename(handle: &Handle, from: &str, to: &str) -> io::Result<()> {
        fs::renameat(handle, from, handle, to)?;
        Ok(fs::fsync(handle)?)
    }

    pub(super) fn space(handle: &Handle, names: &[OsString]) -> io::Result<Option<DiskSpace>> {
        let bytes = |name: &OsString| fs::statat(handle, name, AtFlags::SYMLINK_NOFOLLOW);
        let used = names.iter().filter_map(|name| bytes(name).ok()).map(|found| found.st_size as u64).sum();
        let system = fs::fstatvfs(handle)?;
        Ok(Some(DiskSpace { used, free: system.f_bavail.saturating_mul(system.f_frsize) }))
    }
}

/// Files are opened by path, and no access rights are set: folders of a user's profile are closed
/// to other users.
#[cfg(windows)]
mod system {
    use std::ffi::{OsStr, OsString};
    use std::fs::{self, File};
    use std::io;
    use std::path::{Path, PathBuf};

    use super::{DELETE, DiskSpace, Folder};
    use crate::{Error, Result, platform};

    pub(super) type Handle = PathBuf;

    pub(super) fn open(path: &Path) -> Result<Handle> {
        match fs::create_dir(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(Error::io(path)(error)),
            _ => (),
        }
        match fs::symlink_metadata(path).map_err(Error::io(path))?.is_dir() {
            true => Ok(path.to_owned()),
            false => Err(Error::file(path, "a link or a file", "a folder, or none")),
        }
    }

    pub(super) fn make_private(_: &Folder) -> Result<()> {
        Ok(())
    }

    pub(super) fn names(folder: &Handle) -> io::Result<Vec<OsString>> {
        fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name())).collect()
    }

    pub(super) fn file(_: &Handle, path: &Path, _: &str, write: bool) -> Result<File> {
        let mut options = File::options();
        options.read(true).write(write).create(write).truncate(false);
        let refused = |found| Error::file(path, found, format_args!("a regular file; {DELETE}"));
        let file = platform::unfollowed(&mut options).open(path).map_err(Error::io(path))?;
        if !file.metadata().map_err(Error::io(path))?.is_file() {
            return Err(refused("a link"));
        }
        // A file that was removed meanwhile has no link left.
        if platform::links(&file).map_err(Error::io(path))? > 1 {
            return Err(refused("a file with a second name (a hard link)"));
        }
        Ok(file)
    }

    pub(super) fn remove(folder: &Handle, name: &OsStr) -> io::Result<()> {
        fs::remove_file(folder.join(name))
    }

    pub(super) fn rename(folder: &Handle, from: &str, to: &str) -> io::Result<()> {
        fs::rename(folder.join(from), folder.join(to))
    }

    pub(super) fn space(folder: &Handle, names: &[OsString]) -> io::Result<Option<DiskSpace>> {
        let bytes = |name: &OsString| fs::symlink_metadata(folder.join(name)).map_or(0, |found| found.len());
        Ok(Some(DiskSpace { used: names.iter().map(bytes).sum(), free: platform::free_disk(folder)? }))
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn error<T>(result: Result<T>) -> String {
        result.err().unwrap().to_string()
    }

    #[test]
    fn other_users_have_no_access() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("work");
        let folder = Folder::open(&path).unwrap();
        folder.make_private().unwrap();
        assert_eq!(mode(&path), 0o700);
        folder.file("lists").unwrap();
        assert_eq!(mode(&path.join("lists")), 0o600);
        // Others could read but not change files.
        set_mode(&path, 0o755);
        folder.make_private().unwrap();
        assert_eq!(mode(&path), 0o700);
        for writable in [0o777, 0o770] {
            set_mode(&path, writable);
            let found = error(folder.make_private());
            assert!(
                found.contains(&format!(
                    "write access for others (mode {writable:o}), expected mode 700; delete the folder"
                )),
                "{found}"
            );
        }
        folder.remove("lists").unwrap();
        folder.remove("lists").unwrap();
        folder.make_private().unwrap();
        assert_eq!(mode(&path), 0o700);
    }

    #[test]
    fn a_folder_of_another_user_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let user = fs::metadata(parent.path()).unwrap().uid();
        let foreign = if user == 0 {
            chown(parent.path(), Some(12_345), None).unwrap();
            parent.path()
        } else {
            Path::new("/")
        };
        let found = error(Folder::open(foreign));
        assert!(
            found.contains("found a folder of user ")
                && found.ends_with(&format!("expected a folder of user {user}, or none")),
            "{found}"
        );
    }

    #[test]
    fn links_are_not_followed() {
        let parent = tempfile::tempdir().unwrap();
        let (path, secret) = (parent.path().join("work"), parent.path().join("secret"));
        fs::write(&secret, "kept").unwrap();
        let folder = Folder::open(&path).unwrap();
        symlink(&secret, path.join("soft")).unwrap();
        symlink(parent.path().join("new"), path.join("dangling")).unwrap();
        fs::hard_link(&secret, path.join("hard")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, path.join("pipe"), rustix::fs::Mode::RWXU).unwrap();
        for name in ["soft", "dangling", "hard", "pipe"] {
            for found in [error(folder.file(name)), error(folder.read(name))] {
                assert!(
                    found.ends_with("expected a regular file; delete the folder to build anew"),
                    "{found}"
                );
            }
        }
        assert!(!parent.path().join("new").exists());
        for link in ["link", "link/"] {
            let link = parent.path().join(link);
            let _ = symlink(&path, parent.path().join("link"));
            let found = error(Folder::open(&link));
            assert!(found.ends_with("found a link or a file, expected a folder, or none"), "{found}");
        }
        ["soft", "hard"].into_iter().for_each(|name| folder.remove(name).unwrap());
        assert_eq!(fs::read_to_string(&secret).unwrap(), "kept");
    }
}
