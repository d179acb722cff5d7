//! Objects in a folder: written once, under names that follow from the plan and the task.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use serde::Serialize;

use super::object::{self, NewPiece, Object, ObjectLimits};
use crate::regular_file::is_missing;
use crate::{Error, Result, platform};

/// The end of a temporary file's name.
const TEMPORARY: &str = ".tmp";

/// Times that an object is written whose temporary file others remove.
const ATTEMPTS: u32 = 3;

/// The objects of a plan in a folder that processes share.
#[derive(Clone, Debug)]
pub(super) struct ObjectStore {
    folder: PathBuf,
    /// Hash of the plan.
    pub plan: u64,
    limits: ObjectLimits,
}

impl ObjectStore {
    pub(super) fn new(folder: &Path, plan: u64, limits: ObjectLimits) -> Self {
        Self { folder: folder.to_owned(), plan, limits }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The name of the object that the task `id` makes.
    pub(super) fn name(&self, id: impl ToString) -> String {
        format!("{}.{:016x}", id.to_string(), self.plan)
    }

    pub(super) fn path(&self, id: impl ToString) -> PathBuf {
        self.folder.join(self.name(id))
    }

    /// Names of all files of the folder.
    pub(super) fn names(&self) -> Result<BTreeSet<String>> {
        let read = || {
            fs::read_dir(&self.folder)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()
        };
        let names = read().map_err(Error::io(&self.folder))?;
        Ok(names.into_iter().filter_map(|name| name.into_string().ok()).collect())
    }

    /// Opens the object of the task `id`. `None` if it is missing or damaged.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn open(&self, id: impl ToString + Copy) -> Result<Option<Object>> {
        match Object::open(&self.path(id), self.plan, self.limits) {
            Err(error) if is_missing(&error) => Ok(None),
            object => Ok(object?.filter(|object| object.task == id.to_string())),
        }
    }

    /// Whether the object of the task `id` exists, its head is sound and its length is right.
    /// With `all`, reads all of it and checks all of its checksums.
    pub(super) fn has(&self, id: impl ToString + Copy, all: bool) -> Result<bool> {
        match self.open(id)? {
            Some(object) => Ok(!all || object.is_sound()?),
            None => Ok(false),
        }
    }

    /// Writes the object of the task `id`. It appears complete or not at all. An object of this
    /// name that is sound stays.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn put(
        &self,
        id: impl ToString + Copy,
        device: &str,
        more: &impl Serialize,
        pieces: &[NewPiece<'_>],
    ) -> Result<()> {
        let path = self.path(id);
        for attempt in 1.. {
            match self.write(id, &path, device, more, pieces) {
                // The temporary file is gone: the run of `finish` removes those of others when all
                // objects are there.
                Err(Error::Io { source, .. })
                    if source.kind() == ErrorKind::NotFound && attempt < ATTEMPTS =>
                {
                    if self.has(id, false)? {
                        return Ok(());
                    }
                }
                written => {
                    written?;
                    break;
                }
            }
        }
        sync(&self.folder)
    }

    fn write(
        &self,
        id: impl ToString + Copy,
        path: &Path,
        device: &str,
        more: &impl Serialize,
        pieces: &[NewPiece<'_>],
    ) -> Result<()> {
        let temporary = Temporary(self.folder.join(format!(".{}.{}{TEMPORARY}", self.name(id), unique())));
        let written = || {
            let mut file = File::options().write(true).create_new(true).open(&temporary.0)?;
            object::write(self.plan, id.to_string(), device, more, pieces, &mut file)?;
            file.sync_all()?;
            match fs::hard_link(&temporary.0, path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
                // A file system without hard links: the rename replaces a file of the same bytes.
                Err(_) => fs::rename(&temporary.0, path).map(|()| true),
                Ok(()) => Ok(true),
            }
        };
        let is_new = written().map_err(Error::io(path))?;
        // Damage, a link or a pipe is replaced.
        if !is_new && !self.has(id, true)? {
            fs::rename(&temporary.0, path).map_err(Error::io(path))?;
        }
        Ok(())
    }

    /// Removes temporary files of stopped runs. All objects must exist.
    pub(super) fn clean(&self) -> Result<()> {
        let is_ours = |name: &&String| {
            name.starts_with('.')
                && (name.ends_with(TEMPORARY) || name.ends_with(super::claims::CLAIM))
                && name.contains(&format!(".{:016x}.", self.plan))
        };
        self.names()?.iter().filter(is_ours).for_each(|name| {
            // Another process may remove it too.
            let _ = fs::remove_file(self.folder.join(name));
        });
        Ok(())
    }
}

/// Waits until new names in `folder` are on disk.
pub(super) fn sync(folder: &Path) -> Result<()> {
    platform::sync_folder(folder).map_err(Error::io(folder))
}

/// A part of a name that no other process or thread uses.
pub(super) fn unique() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{:x}-{:x}-{number:x}", std::process::id(), since.as_nanos())
}

/// A temporary file, removed on drop if it still has its name.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(store: &ObjectStore, byte: u8) {
        store.put("build-1", "cpu", &0, &[(0, &[byte; 9])]).unwrap();
    }

    #[test]
    fn the_first_sound_object_of_a_name_stays() {
        let folder = tempfile::tempdir().unwrap();
        let store = ObjectStore::new(folder.path(), 3, ObjectLimits { pieces: 1, bytes: 9 });
        assert!(!store.has("build-1", true).unwrap());
        put(&store, 1);
        put(&store, 2);
        let read = || store.open("build-1").unwrap().unwrap().piece(0).unwrap();
        assert_eq!(read(), Some(vec![1; 9]));
        let path = store.path("build-1");
        let mut bytes = fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(store.has("build-1", false).unwrap() && !store.has("build-1", true).unwrap());
        put(&store, 3);
        assert_eq!(read(), Some(vec![3; 9]), "a damaged object is replaced");
        // So is a link, and what it leads to stays as it is; a pipe does not block.
        #[cfg(unix)]
        for planted in ["link", "pipe"] {
            let victim = folder.path().join("victim");
            fs::write(&victim, "of someone else").unwrap();
            fs::remove_file(&path).unwrap();
            if planted == "link" {
                std::os::unix::fs::symlink(&victim, &path).unwrap();
            } else {
                rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RWXU).unwrap();
            }
            assert!(!store.has("build-1", false).unwrap());
            put(&store, 4);
            assert_eq!(read(), Some(vec![4; 9]), "{planted}");
            assert_eq!(fs::read(&victim).unwrap(), b"of someone else");
            fs::remove_file(victim).unwrap();
        }
        assert_eq!(store.names().unwrap().len(), 1, "temporary files left behind");
        fs::write(folder.path().join(format!(".{}.1-2-3.tmp", store.name("merge-1"))), "").unwrap();
        fs::write(folder.path().join(".other.tmp"), "").unwrap();
        store.clean().unwrap();
        assert_eq!(store.names().unwrap().len(), 2, "a foreign file was removed, or a temporary one stayed");
    }
}
