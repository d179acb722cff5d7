//! The folder of a build's work files: who has it, what build it is of, and how far that has come.
//!
//! A build may be killed at any moment. The folder then is one of these, told by its files:
//!
//! - Empty but for the lock, or what is left of a temporary file: nothing has begun.
//! - With a manifest: a build that has not ended. Another goes on with it, from whatever is there.
//! - With a manifest called `done`: the index is complete, and the folder was being removed.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::folder::Folder;
use super::log::Log;
use super::{CHECKPOINT, CLUSTERS, ClusterPlan, LISTS, REPEATED, ROWS, TABLE};
use crate::atomic_file::AtomicFile;
use crate::{Error, Result};

const LOCK: &str = "lock";
const MANIFEST: &str = "manifest.json";
/// The manifest of a build whose index is complete.
const DONE: &str = "done";

/// What the folder of a new build may be.
const FREE: &str = "no such folder, or an empty one";

/// What work files are of: a folder of one build is not taken for another.
#[derive(Serialize, Deserialize)]
pub(super) struct Manifest {
    /// All that the index depends on: the data set, and the parameters by the names of the command line.
    pub parameters: BTreeMap<String, String>,
    /// The clusters; a build that goes on keeps them, however much memory is free by then.
    pub plan: ClusterPlan,
}

/// A manifest as it is in its file, which anybody can read.
#[derive(Serialize, Deserialize)]
struct Sealed<M> {
    manifest: M,
    /// CRC-32 of the manifest as JSON without spaces.
    crc: u32,
}

impl Manifest {
    fn crc(&self) -> serde_json::Result<u32> {
        Ok(crc32fast::hash(&serde_json::to_vec(self)?))
    }

    fn save(&self, path: &Path) -> Result<()> {
        let json = self.crc().and_then(|crc| serde_json::to_vec_pretty(&Sealed { manifest: self, crc }));
        let mut file = AtomicFile::create(path)?;
        file.write_all(&json.map_err(|error| Error::io(path)(error.into()))?)?;
        file.commit()
    }

    /// The manifest of this content, if it is one and is not damaged.
    fn read(content: &[u8]) -> Option<Self> {
        let Sealed { manifest, crc }: Sealed<Self> = serde_json::from_slice(content).ok()?;
        manifest.crc().is_ok_and(|found| found == crc).then_some(manifest)
    }
}

/// The folder that work files are in, which one build has at a time.
pub(super) struct WorkFolder {
    folder: Arc<Folder>,
    kept: bool,
    /// Locked as long as it is open.
    lock: Option<File>,
}

impl WorkFolder {
    /// Takes the folder at `path` for the build of `manifest`. If it holds work files of that build, and it may
    /// `resume`, the plan of these replaces that of `manifest`. What is left of a build that is over is removed.
    pub(super) fn open(path: &Path, manifest: &mut Manifest, resume: bool) -> Result<Self> {
        let folder = Arc::new(Folder::open(path)?);
        // Before anything is put beside files that are not of a build.
        Contents::of(&folder)?;
        folder.make_private()?;
        let lock = lock(&folder)?;
        let mut contents = Contents::of(&folder)?;
        let mut work = Self { folder, kept: true, lock: Some(lock) };
        // Of a build that was killed as it wrote them; no other is at work here.
        work.remove_all(is_temporary)?;
        if contents.done {
            work.clear()?;
            contents.begun = false;
        }
        let file = work.state(MANIFEST);
        if !contents.begun {
            work.kept = false;
            manifest.save(&file)?;
        } else if resume {
            manifest.plan = work.check(manifest)?.plan;
        } else {
            return Err(Error::Unfinished { folder: path.to_owned() });
        }
        Ok(work)
    }

    /// The manifest that is there; an error if it is damaged or of another build.
    fn check(&self, manifest: &Manifest) -> Result<Manifest> {
        let path = self.state(MANIFEST);
        let content = self.folder.read(MANIFEST)?.unwrap_or_default();
        let found = Manifest::read(&content).ok_or_else(|| {
            Error::file(&path, "damage", "the manifest of a build; delete the folder to build anew")
        })?;
        let (before, now) = (&found.parameters, &manifest.parameters);
        let differing = before.keys().chain(now.keys()).find(|&key| before.get(key) != now.get(key));
        match differing {
            None => Ok(found),
            Some(key) => {
                let describe = |parameters: &BTreeMap<String, String>| match parameters.get(key) {
                    Some(value) => format!("{key} {value}"),
                    None => format!("no {key}"),
                };
                Err(Error::file(&path, describe(before), format_args!("{}, as is asked for", describe(now))))
            }
        }
    }

    /// From here on the folder stays when it is dropped: there is something in it to go on with.
    pub(super) fn keep(&mut self) {
        self.kept = true;
    }

    /// Removes the folder with all that is in it: the index is complete.
    pub(super) fn remove(mut self) {
        // So that what is left, should this be killed, is not taken for a build that has not ended. If it fails, it is.
        let _ = self.folder.rename(MANIFEST, DONE);
        self.kept = false;
    }

    /// Removes all work files but the lock, the manifest last.
    fn clear(&self) -> Result<()> {
        self.remove_all(|name| is_work_file(name) || is_temporary(name))?;
        self.remove_all(|name| name == MANIFEST || name == DONE)
    }

    fn remove_all(&self, which: impl Fn(&OsStr) -> bool) -> Result<()> {
        let names = self.folder.names()?;
        names.iter().filter(|name| which(name)).try_for_each(|name| self.folder.remove(name))
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// An error unless the disk has room for `bytes` bytes, those of the work files that are there among them.
    pub(super) fn check_free(&self, bytes: u64) -> Result<()> {
        if let Some((taken, free)) = self.folder.space()?
            && free.saturating_add(taken) < bytes
        {
            let expected = format!("{} for work files and the index", bytes - taken.min(bytes));
            return Err(Error::file(self.path(), format_args!("{free} bytes free"), expected));
        }
        Ok(())
    }

    /// The work file `name`, of which the first `bytes` bytes are kept; none if it is shorter.
    pub(super) fn log(&self, name: &'static str, bytes: u64) -> Result<Option<Log>> {
        Log::open(&self.folder, name, bytes)
    }

    /// Where the state `name` is kept.
    pub(super) fn state(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// What was saved as `name`; none if nothing was, or it has been damaged.
    pub(super) fn load<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let content = self.folder.read(name)?.unwrap_or_default();
        let Some((crc, json)) = content.split_first_chunk::<4>() else { return Ok(None) };
        let sound = u32::from_le_bytes(*crc) == crc32fast::hash(json);
        Ok(if sound { serde_json::from_slice(json).ok() } else { None })
    }

    /// Forgets what was saved as `name`.
    pub(super) fn forget(&self, name: &str) -> Result<()> {
        self.folder.remove(name)
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if !self.kept {
            // What cannot be removed stays; the build has its own result to report.
            let _ = self.clear().and_then(|()| self.folder.remove(LOCK));
            // Some systems keep a file in the folder as long as it is open.
            self.lock.take();
            let _ = fs::remove_dir(self.path());
        }
    }
}

/// Locks the folder for this build.
fn lock(folder: &Folder) -> Result<File> {
    let path = folder.path();
    let lock = folder.file(LOCK)?;
    lock.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => Error::file(path, "another build at work in it", FREE),
        TryLockError::Error(error) => Error::io(path)(error),
    })?;
    Ok(lock)
}

/// What kind of build a folder is of.
struct Contents {
    /// Whether there is a manifest.
    begun: bool,
    /// Whether the index is complete.
    done: bool,
}

impl Contents {
    /// An error if there is anything in the folder that no build has left there.
    fn of(folder: &Folder) -> Result<Self> {
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

/// Whether a file is one that [`AtomicFile`] had not put in its place yet.
fn is_temporary(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(b".") && name.windows(8).any(|part| part == b".tagore-")
}

/// Saves `state` at `path`, as JSON behind its CRC-32, so that it is there whole or as it was before.
pub(super) fn save(path: &Path, state: &impl Serialize) -> Result<()> {
    let json = serde_json::to_vec(state).map_err(|error| Error::io(path)(error.into()))?;
    let mut file = AtomicFile::create(path)?;
    file.write_all(&crc32fast::hash(&json).to_le_bytes())?;
    file.write_all(&json)?;
    file.commit()
}

#[cfg(test)]
mod tests {
    use super::super::Limits;
    use super::*;

    fn manifest(degree: &str) -> Manifest {
        let plan = ClusterPlan {
            limits: Limits::default(),
            clusters: 9,
            cluster_size: 100,
            cache: 2,
            host_bytes: 1,
            device_bytes: 0,
            disk_bytes: 1,
            bytes: Default::default(),
            partition_bytes: 1,
            row_bins: (8, 1),
            groups: true,
            layer_nodes: 9,
        };
        Manifest { parameters: [("degree".to_owned(), degree.to_owned())].into(), plan }
    }

    #[test]
    fn a_folder_has_one_owner_and_goes_with_it_unless_kept() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("work");
        let open = |degree: &str, resume| WorkFolder::open(&path, &mut manifest(degree), resume);
        let error = |degree: &str, resume| open(degree, resume).err().unwrap().to_string();
        fs::create_dir(&path).unwrap();
        let mut folder = open("32", false).unwrap();
        assert!(error("32", true).contains("found another build at work in it"));
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
        assert!(
            found.ends_with("manifest.json: found degree 32, expected degree 48, as is asked for"),
            "{found}"
        );
        let mut other = manifest("32");
        other.plan.clusters = 7;
        let folder = WorkFolder::open(&path, &mut other, true).unwrap();
        assert_eq!(other.plan.clusters, 9, "clusters are those of the files");
        folder.remove();
        assert!(!path.exists());
        drop(open("32", true).unwrap());
        assert!(!path.exists(), "nothing to keep");
    }

    #[test]
    fn foreign_files_are_not_touched() {
        let parent = tempfile::tempdir().unwrap();
        fs::write(parent.path().join("letter"), "").unwrap();
        let error = WorkFolder::open(parent.path(), &mut manifest("32"), true).err().unwrap().to_string();
        assert!(error.ends_with("found letter, expected no such folder, or an empty one"), "{error}");
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_state_is_none() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("work");
        let folder = WorkFolder::open(&path, &mut manifest("32"), false).unwrap();
        let load = || folder.load::<Vec<u32>>("state").unwrap();
        assert_eq!(load(), None);
        save(&folder.state("state"), &[1, 2]).unwrap();
        assert_eq!(load(), Some(vec![1, 2]));
        fs::write(folder.state("state"), "abcd[1,2]").unwrap();
        assert_eq!(load(), None);
        fs::write(folder.state("state"), "a").unwrap();
        assert_eq!(load(), None);
        folder.forget("state").unwrap();
        folder.forget("state").unwrap();
        assert_eq!(load(), None);
    }

    /// The states that a kill can leave a folder in, by the names of its files.
    #[test]
    fn a_folder_is_told_by_its_files() {
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
        // Nothing has begun, or all is over: it begins anew, with and without `resume`.
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
                let folder = WorkFolder::open(&path, &mut manifest("32"), resume).unwrap();
                assert_eq!(names(), ["lock", "manifest.json"].map(str::to_owned).into(), "{state:?}");
                folder.remove();
                assert!(!path.exists(), "{state:?}");
            }
        }
        // A build that has not ended.
        for state in
            [&[][..], &["clusters"], &["clusters", ".table.tagore-tmp"], &["clusters", "table", "rows"]]
        {
            fill(state);
            manifest("32").save(&path.join(MANIFEST)).unwrap();
            let error = WorkFolder::open(&path, &mut manifest("32"), false).err().unwrap().to_string();
            assert!(error.ends_with("expected resume, or another work folder"), "{error}");
            let folder = WorkFolder::open(&path, &mut manifest("32"), true).unwrap();
            assert!(!names().iter().any(|name| name.contains("tagore-")), "{state:?}");
            folder.remove();
            assert!(!path.exists(), "{state:?}");
        }
        // Another's files are not touched, whatever is beside them.
        for state in
            [&["clusters"][..], &["lock", "table"], &["manifest.json", "letter"], &["done", "letter"]]
        {
            fill(state);
            for resume in [false, true] {
                let error = WorkFolder::open(&path, &mut manifest("32"), resume).err().unwrap().to_string();
                assert!(error.ends_with(", expected no such folder, or an empty one"), "{error}");
                assert_eq!(names().len(), state.len());
            }
        }
    }

    #[test]
    fn the_manifest_goes_last() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("work");
        let folder = WorkFolder::open(&path, &mut manifest("32"), false).unwrap();
        // Something that cannot be removed, so that removing ends there, as if it had been killed.
        fs::create_dir(path.join("rows")).unwrap();
        folder.remove();
        assert!(
            path.join("done").exists() && !path.join("manifest.json").exists() && path.join("lock").exists()
        );
        fs::remove_dir(path.join("rows")).unwrap();
        WorkFolder::open(&path, &mut manifest("32"), false).unwrap().remove();
        assert!(!path.exists());
    }

    #[test]
    fn a_damaged_manifest_is_refused() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("work");
        let mut folder = WorkFolder::open(&path, &mut manifest("32"), false).unwrap();
        folder.keep();
        drop(folder);
        let file = path.join("manifest.json");
        let sound = fs::read_to_string(&file).unwrap();
        let edit = |from: &str, to: &str| {
            assert!(sound.contains(from), "{sound}");
            sound.replace(from, to)
        };
        let wrong = [
            edit("\"cluster_size\": 100", "\"cluster_size\": 101"),
            edit("\"cache\": 2", "\"cache\": 0"),
            edit("\"degree\": \"32\"", "\"degree\": \"33\""),
            edit("\"crc\": ", "\"crc\": 1"),
            sound[..sound.len() / 2].to_owned(),
            String::new(),
            "null".to_owned(),
        ];
        for content in wrong {
            fs::write(&file, &content).unwrap();
            let error = WorkFolder::open(&path, &mut manifest("32"), true).err().unwrap().to_string();
            assert!(error.ends_with("manifest.json: found damage, expected the manifest of a build; delete the folder to build anew"), "{error}");
        }
        // Spaces do not count.
        fs::write(&file, sound.replace('\n', " ")).unwrap();
        WorkFolder::open(&path, &mut manifest("32"), true).unwrap().remove();
    }

    #[cfg(unix)]
    #[test]
    fn planted_links_are_refused() {
        let parent = tempfile::tempdir().unwrap();
        let (path, secret) = (parent.path().join("work"), parent.path().join("secret"));
        fs::write(&secret, "kept").unwrap();
        fs::create_dir(&path).unwrap();
        std::os::unix::fs::symlink(parent.path().join("new"), path.join("lock")).unwrap();
        let error = WorkFolder::open(&path, &mut manifest("32"), false).err().unwrap().to_string();
        assert!(
            error.ends_with("lock: found a link, expected a regular file; delete the folder to build anew"),
            "{error}"
        );
        assert!(!parent.path().join("new").exists());
        fs::remove_file(path.join("lock")).unwrap();
        let mut folder = WorkFolder::open(&path, &mut manifest("32"), false).unwrap();
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
        let error = WorkFolder::open(&path, &mut manifest("32"), true).err().unwrap().to_string();
        assert!(error.contains("manifest.json: found a link"), "{error}");
        assert_eq!(fs::read_to_string(&secret).unwrap(), "kept");
    }
}
