//! Where a build keeps its work: in a folder, or in memory.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::sealed::save;
use super::{Checkpoints, Log, WorkFolder};
use crate::Result;

/// Saves a state, on any thread.
pub(crate) type Saving = Box<dyn FnOnce() -> Result<()> + Send>;

/// The place of a build's work.
pub(crate) enum Medium {
    /// Files, from which a stopped build goes on.
    Folder(WorkFolder),
    /// Memory, which ends with the process.
    Memory,
}

impl Medium {
    /// Opens the log `name` and cuts it to its first `bytes` bytes; `None` if it is shorter.
    pub(crate) fn log(&self, name: &'static str, bytes: u64) -> Result<Option<Log>> {
        match self {
            Self::Folder(folder) => folder.log(name, bytes),
            Self::Memory => Ok((bytes == 0).then(Log::in_memory)),
        }
    }

    /// Loads the state `name`; `None` if it is missing or damaged. Memory keeps no states.
    pub(crate) fn load<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>> {
        match self {
            Self::Folder(folder) => folder.load(name),
            Self::Memory => Ok(None),
        }
    }

    /// Saves the state `name`.
    pub(crate) fn save(&self, name: &str, state: &impl Serialize) -> Result<()> {
        match self {
            Self::Folder(folder) => save(&folder.state(name), name, state),
            Self::Memory => Ok(()),
        }
    }

    /// A function that saves the state `name` after `sync`; `None` if nothing can use it later.
    pub(crate) fn saving(
        &self,
        name: &'static str,
        state: impl Serialize + Send + 'static,
        sync: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Option<Saving> {
        let Self::Folder(folder) = self else { return None };
        let path = folder.state(name);
        Some(Box::new(move || {
            sync()?;
            save(&path, name, &state)
        }))
    }

    /// Removes the state `name`.
    pub(crate) fn forget(&self, name: &str) -> Result<()> {
        match self {
            Self::Folder(folder) => folder.forget(name),
            Self::Memory => Ok(()),
        }
    }

    /// Saves checkpoints at most every `every`, if a later run can use them.
    pub(crate) fn checkpoints(&self, name: &str, every: Duration) -> Checkpoints {
        match self {
            Self::Folder(folder) => Checkpoints::new(Some(folder.state(name)), every),
            Self::Memory => Checkpoints::new(None, every),
        }
    }

    /// Keeps the work if the build fails from here on.
    pub(crate) fn keep(&mut self) {
        if let Self::Folder(folder) = self {
            folder.keep();
        }
    }

    /// Removes the work: the index is complete.
    pub(crate) fn remove(self) {
        if let Self::Folder(folder) = self {
            folder.remove();
        }
    }

    /// Its name in errors.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Folder(folder) => folder.path(),
            Self::Memory => Path::new("memory"),
        }
    }
}
