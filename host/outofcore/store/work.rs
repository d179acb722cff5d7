//! The work of a build: in a folder, with its lock and its state after a kill, or in memory.
//!
//! A build may be killed at any moment. The files of the folder then tell its state:
//!
//! - Nothing, or only the lock and a temporary file: the build has not begun.
//! - A manifest: the build has not ended. A later build resumes it from the remaining files.
//! - A manifest named `done`: the index is complete. The kill came while the folder was removed.

use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::folder::{DiskSpace, Folder};
use super::manifest::{MANIFEST, Manifest};
use super::sealed::{check_parameters, read_all, save};
use super::{CHECKPOINT, CLUSTERS, Checkpoints, LISTS, Log, REPEATED, ROWS, TABLE};
use crate::{Error, Result};

const LOCK: &str = "lock";
/// The manifest of a build whose index is complete.
const DONE: &str = "done";

/// Expected state of the folder of a new build, in errors.
const FREE: &str = "an empty folder, or none";

/// Saves a state, on any thread.
pub(crate) type Saving = Box<dyn FnOnce() -> Result<()> + Send>;

/// The place of a build's work.
pub(crate) struct Work {
    /// The folder of the work files, from which a stopped build goes on. One build holds it at a
    /// time. Without it, the work is in memory and ends with the process.
    folder: Option<Arc<Folder>>,
    kept: bool,
    /// Holds the lock while open.
    lock: Option<File>,
}

impl Work {
    pub(crate) fn in_memory() -> Self {
        Self { folder: None, kept: true, lock: None }
    }

    /// Locks the folder at `path` for the build of `manifest`, and removes the files of a finished
    /// build.
    ///
    /// If `resume` is set and the folder has work files of this build, their plan replaces the plan
    /// of `manifest`.
    pub(crate) fn open(path: &Path, manifest: &mut Manifest, resume: bool) -> Result<Self> {
        let folder = Folder::open(path)?;
        // Check before writing: the folder may hold foreign files.
        Contents::read(&folder)?;
        folder.make_private()?;
        let lock = Some(lock(&folder)?);
        let Contents { begun, done } = Contents::read(&folder)?;
        // Leftovers of a killed build: this build holds the lock.
        remove_all(&folder, is_temporary)?;
        if done {
            clear(&folder)?;
        }
        let begun = begun && !done;
        let file = folder.path().join(MANIFEST);
        if begun && resume {
            let found = Manifest::read(&file, &folder.read(MANIFEST)?.unwrap_or_default())?;
            check_parameters(&file, &found.parameters, &manifest.parameters)?;
            manifest.plan = found.plan;
        } else if begun {
            return Err(Error::Unfinished { folder: path.to_owned() });
        }
        let work = Self { folder: Some(Arc::new(folder)), kept: begun, lock };
        if !begun {
            manifest.save(&file)?;
        }
        Ok(work)
    }

    pub(crate) fn is_in_memory(&self) -> bool {
        self.folder.is_none()
    }

    /// Keeps the folder when it is dropped: a later build can resume from it.
    pub(crate) fn keep(&mut self) {
        self.kept = true;
    }

    /// Removes the folder and its files: the index is complete.
    pub(crate) fn remove(mut self) {
        if let Some(folder) = &self.folder {
            // After a kill during removal, `done` tells that the build has ended. If the rename
            // fails, the folder looks unfinished, and a later build can still resume it.
            let _ = folder.rename(MANIFEST, DONE);
            self.kept = false;
        }
    }

    /// Its name in errors.
    pub(crate) fn path(&self) -> &Path {
        self.folder.as_ref().map_or(Path::new("memory"), |folder| folder.path())
    }

    /// Checks that the disk has room for `bytes` bytes, existing work files included.
    ///
    /// # Errors
    /// If it has not.
    pub(crate) fn check_free(&self, bytes: u64) -> Result<()> {
        if let Some(folder) = &self.folder
            && let Some(DiskSpace { used, free }) = folder.space()?
            && free.saturating_add(used) < bytes
        {
            let expected = format!("{} for work files and the index", bytes - used.min(bytes));
            return Err(Error::file(self.path(), format_args!("{free} bytes free"), expected));
        }
        Ok(())
    }

    /// Opens the log `name` and cuts it to its first `bytes` bytes; `None` if it is shorter.
    pub(crate) fn log(&self, name: &'static str, bytes: u64) -> Result<Option<Log>> {
        match &self.folder {
            Some(folder) => Log::open(folder, name, bytes),
            None => Ok((bytes == 0).then(Log::in_memory)),
        }
    }

    /// The path of the state `name`. Memory keeps no states.
    fn state(&self, name: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.path().join(name))
    }

    /// Loads the state `name`; `None` if it is missing or damaged.
    pub(crate) fn load<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        Ok(folder.read(name)?.and_then(|content| read_all(name, &content).ok()))
    }

    /// Saves the state `name`.
    pub(crate) fn save(&self, name: &str, state: &impl Serialize) -> Result<()> {
        self.state(name).map_or(Ok(()), |path| save(&path, name, state))
    }

    /// A function that saves the state `name` after `sync`; `None` if nothing can use it later.
    pub(crate) fn saving(
        &self,
        name: &'static str,
        state: impl Serialize + Send + 'static,
        sync: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Option<Saving> {
        let path = self.state(name)?;
        Some(Box::new(move || {
            sync()?;
            save(&path, name, &state)
        }))
    }

    /// Removes the state `name`.
    pub(crate) fn forget(&self, name: &str) -> Result<()> {
        self.folder.as_ref().map_or(Ok(()), |folder| folder.remove(name))
    }

    /// Saves checkpoints at most every `every`, if a later run can use them.
    pub(crate) fn checkpoints(&self, every: Duration) -> Checkpoints {
        Checkpoints::new(self.state(CHECKPOINT), every)
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let (false, Some(folder)) = (self.kept, &self.folder) {
            // Errors are ignored: the build has its own result to report.
            let _ = clear(folder).and_then(|()| folder.remove(LOCK));
            // Some systems cannot remove an open file.
            self.lock.take();
            let _ = fs::remove_dir(folder.path());
        }
    }
}

/// Removes all work files except the lock, the manifest last.
fn clear(folder: &Folder) -> Result<()> {
    remove_all(folder, |name| is_work_file(name) || is_temporary(name))?;
    remove_all(folder, |name| name == MANIFEST || name == DONE)
}

fn remove_all(folder: &Folder, which: impl Fn(&OsStr) -> bool) -> Result<()> {
    folder.names()?.iter().filter(|name| which(name)).try_for_each(|name| folder.remove(name))
}

/// Locks the folder.
fn lock(folder: &Folder) -> Result<File> {
    let path = folder.path();
    let lock = folder.file(LOCK)?;
    lock.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => Error::file(path, "another build in progress", FREE),
        TryLockError::Error(error) => Error::io(path)(error),
    })?;
    Ok(lock)
}

/// Contents of a folder.
struct Contents {
    /// A manifest exists.
    begun: bool,
    /// The index is complete.
    done: bool,
}

impl Contents {
    /// Reads the contents of `folder`.
    ///
    /// # Errors
    /// If a file is not from a build.
    fn read(folder: &Folder) -> Result<Self> {
        let names = folder.names()?;
        let has = |name: &str| names.iter().any(|found| found == name);
        let (begun, done) = (has(MANIFEST), has(DONE));
        let is_ours = |name: &OsStr| {
            let of_build = name == MANIFEST || name == DONE || is_work_file(name);
            name == LOCK || is_temporary(name) || of_build && (begun || done)
        };
        match names.iter().find(|name| !is_ours(name)) {
            Some(name) => Err(Error::file(folder.path(), name.to_string_lossy(), FREE)),
            None => Ok(Self { begun, done }),
        }
    }
}

fn is_work_file(name: &OsStr) -> bool {
    [REPEATED, CLUSTERS, LISTS, ROWS, TABLE, CHECKPOINT].iter().any(|&file| name == file)
}

/// Whether `name` is a temporary file of [`AtomicFile`](crate::atomic_file::AtomicFile).
fn is_temporary(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b".") && name.windows(8).any(|part| part == b".tagore-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outofcore::plan::{ClusterPlan, Limits, RowBins};

    fn manifest(degree: &str) -> Manifest {
        let plan = ClusterPlan {
            limits: Limits::default(),
            clusters: 9,
            cluster_size: 100,
            cache: 2,
            host_bytes: 1,
            device_bytes: 0,
            disk_bytes: 1,
            replicates: false,
            reads_base: false,
            bytes: Default::default(),
            partition_bytes: 1,
            row_bins: RowBins { count: 8, buffer: 1 },
            groups: true,
            layer_nodes: 9,
        };
        Manifest { parameters: [("degree".to_owned(), degree.to_owned())].into(), plan }
    }

    #[test]
    fn a_folder_has_one_build_and_is_removed_unless_kept() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("work");
        let open = |degree: &str, resume| Work::open(&path, &mut manifest(degree), resume);
        let error = |degree: &str, resume| open(degree, resume).err().unwrap().to_string();
        fs::create_dir(&path).unwrap();
        let mut folder = open("32", false).unwrap();
        assert!(error("32", true).contains("found another build in progress"));
        let full = folder.check_free(u64::MAX).unwrap_err().to_string();
        assert!(full.contains("bytes free, expected"), "{full}");
        folder.keep();
        drop(folder);
        let found = error("32", false);
        assert!(
            found.ends_with("found an unfinished build, expected resume, or another work folder"),
            "{found}"
        );
        let found = error("48", true);
        assert!(found.contains("manifest.json: found degree 32, expected degree 48; resume with"), "{found}");
        let mut other = manifest("32");
        other.plan.clusters = 7;
        let folder = Work::open(&path, &mut other, true).unwrap();
        assert_eq!(other.plan.clusters, 9, "the plan of the work files counts");
        folder.remove();
        assert!(!path.exists());
        drop(open("32", true).unwrap());
        assert!(!path.exists(), "an empty work folder was kept");
    }

    #[test]
    fn foreign_files_are_not_touched() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("letter"), "").unwrap();
        let error = Work::open(parent.path(), &mut manifest("32"), true).err().unwrap().to_string();
        assert!(error.ends_with("found letter, expected an empty folder, or none"), "{error}");
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_state_is_none() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("work");
        let folder = Work::open(&path, &mut manifest("32"), false).unwrap();
        let load = || folder.load::<Vec<u32>>("state").unwrap();
        assert_eq!(load(), None);
        folder.save("state", &[1, 2]).unwrap();
        assert_eq!(load(), Some(vec![1, 2]));
        let sound = fs::read_to_string(path.join("state")).unwrap();
        fs::write(path.join("state"), sound.replace("[1,2]", "[1,3]")).unwrap();
        assert_eq!(load(), None);
        fs::write(path.join("state"), "a").unwrap();
        assert_eq!(load(), None);
        folder.forget("state").unwrap();
        folder.forget("state").unwrap();
        assert_eq!(load(), None);
    }

    #[test]
    fn files_tell_the_state_of_a_killed_build() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("work");
        let fill = |names: &[&str]| {
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            names.iter().for_each(|name| fs::write(path.join(name), "").unwrap());
        };
        let names = || {
            let names =
                fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
            names.collect::<std::collections::BTreeSet<_>>()
        };
        // Not begun, or ended: a new build begins, with and without `resume`.
        for state in [
            &[][..],
            &["lock"],
            &["lock", ".tagore-x7Gh2a"],
            &["lock", ".manifest.json.tagore-tmp"],
            &[".manifest.json.tagore-tmp"],
            &["lock", "done", "table", "clusters", "lists", "rows", "checkpoint"],
            &["lock", "done", "clusters", ".checkpoint.tagore-tmp"],
            &["lock", "done"],
        ] {
            for resume in [false, true] {
                fill(state);
                let folder = Work::open(&path, &mut manifest("32"), resume).unwrap();
                assert_eq!(names(), ["lock", "manifest.json"].map(str::to_owned).into(), "{state:?}");
                folder.remove();
                assert!(!path.exists(), "{state:?}");
            }
        }
        // Not ended.
        for state in
            [&[][..], &["clusters"], &["clusters", ".table.tagore-tmp"], &["clusters", "table", "rows"]]
        {
            fill(state);
            manifest("32").save(&path.join(MANIFEST)).unwrap();
            let error = Work::open(&path, &mut manifest("32"), false).err().unwrap().to_string();
            assert!(error.ends_with("expected resume, or another work folder"), "{error}");
            let folder = Work::open(&path, &mut manifest("32"), true).unwrap();
            assert!(!names().iter().any(|name| name.contains("tagore-")), "{state:?}");
            folder.remove();
            assert!(!path.exists(), "{state:?}");
        }
        // Foreign files stay.
        for state in
            [&["clusters"][..], &["lock", "table"], &["manifest.json", "letter"], &["done", "letter"]]
        {
            fill(state);
            for resume in [false, true] {
                let error = Work::open(&path, &mut manifest("32"), resume).err().unwrap().to_string();
                assert!(error.ends_with(", expected an empty folder, or none"), "{error}");
                assert_eq!(names().len(), state.len());
            }
        }
    }

    #[test]
    fn the_manifest_goes_last() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("work");
        let folder = Work::open(&path, &mut manifest("32"), false).unwrap();
        // A folder named `rows` stops the removal, like a kill.
        fs::create_dir(path.join("rows")).unwrap();
        folder.remove();
        assert!(
            path.join("done").exists() && !path.join("manifest.json").exists() && path.join("lock").exists()
        );
        fs::remove_dir(path.join("rows")).unwrap();
        Work::open(&path, &mut manifest("32"), false).unwrap().remove();
        assert!(!path.exists());
    }

    #[test]
    fn a_damaged_manifest_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("work");
        let mut folder = Work::open(&path, &mut manifest("32"), false).unwrap();
        folder.keep();
        drop(folder);
        let file = path.join("manifest.json");
        let sound = fs::read_to_string(&file).unwrap();
        let edit = |from: &str, to: &str| {
            assert!(sound.contains(from), "{sound}");
            sound.replace(from, to)
        };
        let wrong = [
            edit("\"cluster_size\":100", "\"cluster_size\":101"),
            edit("\"cache\":2", "\"cache\":0"),
            edit("\"degree\":\"32\"", "\"degree\":\"33\""),
            edit("\"crc\":", "\"crc\":1"),
            sound[..sound.len() / 2].to_owned(),
            String::new(),
            sound.replace('\n', " "),
        ];
        for content in wrong {
            fs::write(&file, &content).unwrap();
            let error = Work::open(&path, &mut manifest("32"), true).err().unwrap().to_string();
            assert!(error.ends_with("manifest.json: found damage, expected the manifest of a build; delete the folder to build anew"), "{error}");
        }
        // Of an earlier version, without a head.
        fs::write(&file, "{\n  \"manifest\": {}\n}").unwrap();
        let error = Work::open(&path, &mut manifest("32"), true).err().unwrap().to_string();
        assert!(
            error.contains(
                "manifest.json: found damage, or another version, expected the manifest of a build; delete"
            ),
            "{error}"
        );
        fs::write(&file, sound).unwrap();
        Work::open(&path, &mut manifest("32"), true).unwrap().remove();
    }

    #[cfg(unix)]
    #[test]
    fn planted_links_are_refused() {
        let parent = tempfile::tempdir().unwrap();
        let (path, secret) = (parent.path().join("work"), parent.path().join("secret"));
        fs::write(&secret, "kept").unwrap();
        fs::create_dir(&path).unwrap();
        std::os::unix::fs::symlink(parent.path().join("new"), path.join("lock")).unwrap();
        let error = Work::open(&path, &mut manifest("32"), false).err().unwrap().to_string();
        assert!(
            error.ends_with("lock: found a link, expected a regular file; delete the folder to build anew"),
            "{error}"
        );
        assert!(!parent.path().join("new").exists());
        fs::remove_file(path.join("lock")).unwrap();
        let mut folder = Work::open(&path, &mut manifest("32"), false).unwrap();
        for name in ["clusters", "lists", "rows"] {
            std::os::unix::fs::symlink(&secret, path.join(name)).unwrap();
            let error = folder.log(name, 0).err().unwrap().to_string();
            assert!(error.contains(&format!("{name}: found a link")), "{error}");
        }
        std::os::unix::fs::symlink(&secret, path.join("table")).unwrap();
        assert!(folder.load::<Vec<u32>>("table").is_err());
        folder.keep();
        drop(folder);
        fs::remove_file(path.join("manifest.json")).unwrap();
        std::os::unix::fs::symlink(&secret, path.join("manifest.json")).unwrap();
        let error = Work::open(&path, &mut manifest("32"), true).err().unwrap().to_string();
        assert!(error.contains("manifest.json: found a link"), "{error}");
        assert_eq!(fs::read_to_string(&secret).unwrap(), "kept");
    }
}
