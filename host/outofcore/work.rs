//! The folder of a build's work files: who has it, what build it is of, and how far that has come.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::ClusterPlan;
use super::log::Log;
use crate::atomic_file::AtomicFile;
use crate::{Error, Result};

const LOCK: &str = "lock";
const MANIFEST: &str = "manifest.json";

/// What work files are of: a folder of one build is not taken for another.
#[derive(Serialize, Deserialize)]
pub(super) struct Manifest {
    /// All that the index depends on: the data set, and the parameters by the names of the command line.
    pub parameters: BTreeMap<String, String>,
    /// The clusters; a build that goes on keeps them, however much memory is free by then.
    pub plan: ClusterPlan,
}

/// The folder that work files are in, which one build has at a time.
pub(super) struct WorkFolder {
    path: PathBuf,
    kept: bool,
    /// Locked as long as it is open.
    _lock: File,
}

impl WorkFolder {
    /// Takes the folder at `path` for the build of `manifest`. If it holds work files of that build, and it may
    /// `resume`, the plan of these replaces that of `manifest`.
    pub(super) fn open(path: &Path, manifest: &mut Manifest, resume: bool) -> Result<Self> {
        let (file, expected) = (path.join(MANIFEST), "no such folder, or an empty one");
        let is_foreign = |name: &str| name != LOCK && !file.exists();
        match fs::create_dir(path) {
            Ok(()) => (),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                let mut entries = fs::read_dir(path).map_err(Error::io(path))?.flatten();
                // Before anything is put beside files that are not of a build.
                if let Some(entry) = entries.find(|entry| is_foreign(&entry.file_name().to_string_lossy())) {
                    return Err(Error::file(path, entry.file_name().to_string_lossy(), expected));
                }
            }
            Err(error) => return Err(Error::io(path)(error)),
        }
        let lock = File::options().write(true).create(true).truncate(false).open(path.join(LOCK));
        let lock = lock.map_err(Error::io(path))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => Error::file(path, "another build at work in it", expected),
            TryLockError::Error(error) => Error::io(path)(error),
        })?;
        let mut folder = Self { path: path.to_owned(), kept: true, _lock: lock };
        if !file.exists() {
            folder.kept = false;
            let content =
                serde_json::to_vec_pretty(manifest).map_err(|error| Error::io(&file)(error.into()))?;
            let mut writer = AtomicFile::create(&file)?;
            writer.write_all(&content)?;
            writer.commit()?;
        } else if resume {
            manifest.plan = folder.check(manifest)?.plan;
        } else {
            let expected = "--resume to go on with it, or another folder";
            return Err(Error::file(path, "work files of a build that has not ended", expected));
        }
        Ok(folder)
    }

    /// The manifest that is there; an error if it is of another build.
    fn check(&self, manifest: &Manifest) -> Result<Manifest> {
        let path = self.path.join(MANIFEST);
        let content = fs::read(&path).map_err(Error::io(&path))?;
        let found: Manifest = serde_json::from_slice(&content)
            .map_err(|error| Error::file(&path, error, "the manifest of a build"))?;
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

    /// Removes the folder with all that is in it.
    pub(super) fn remove(mut self) {
        self.kept = false;
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// An error unless the disk has room for `bytes` bytes, those of the work files that are there among them.
    pub(super) fn check_free(&self, bytes: u64) -> Result<()> {
        #[cfg(unix)]
        {
            let found =
                rustix::fs::statvfs(&self.path).map_err(|error| Error::io(&self.path)(error.into()))?;
            let entries = fs::read_dir(&self.path).map_err(Error::io(&self.path))?.flatten();
            let taken: u64 = entries.filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum();
            let free = found.f_bavail.saturating_mul(found.f_frsize);
            if free.saturating_add(taken) < bytes {
                let expected = format!("{} for work files and the index", bytes - taken.min(bytes));
                return Err(Error::file(&self.path, format_args!("{free} bytes free"), expected));
            }
        }
        Ok(())
    }

    /// The work file `name`, of which the first `bytes` bytes are kept; none if it is shorter.
    pub(super) fn log(&self, name: &str, bytes: u64) -> Result<Option<Log>> {
        Log::open(self.path.join(name), bytes)
    }

    /// Where the state `name` is kept.
    pub(super) fn state(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// What was saved as `name`; none if nothing was, or it has been damaged.
    pub(super) fn load<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        let path = self.state(name);
        let content = match fs::read(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            content => content.map_err(Error::io(&path))?,
        };
        let Some((crc, json)) = content.split_first_chunk::<4>() else { return Ok(None) };
        let sound = u32::from_le_bytes(*crc) == crc32fast::hash(json);
        Ok(if sound { serde_json::from_slice(json).ok() } else { None })
    }

    /// Forgets what was saved as `name`.
    pub(super) fn forget(&self, name: &str) -> Result<()> {
        let path = self.state(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::io(&path)(error)),
            _ => Ok(()),
        }
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if !self.kept {
            // What cannot be removed stays; the build has its own result to report.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
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
        assert!(found.ends_with("found work files of a build that has not ended, expected --resume to go on with it, or another folder"), "{found}");
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
}
