//! What all tasks of a process share, and the objects that they read.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::id::TaskId;
use super::object::{Content, Object, numbers};
use super::plan::{Plan, Shared};
use super::store::ObjectStore;
use crate::outofcore::store::{Attempt, Fault};
use crate::vectors::embedding::Embedding;
use crate::{Builder, Device, Vectors};

/// The inputs of all tasks of a process.
pub(super) struct Context<'a> {
    pub plan: &'a Plan,
    pub shared: &'a Shared,
    pub store: &'a ObjectStore,
    pub base: &'a Vectors,
    /// With the device of this process.
    pub builder: &'a Builder,
    pub embedding: &'a Embedding,
    pub device: Device,
    /// The kind of that device.
    pub kind: &'a str,
}

/// The result of a task. It may be lost for want of the object of another task.
pub(super) type Outcome<T> = Attempt<T, TaskId>;

/// The description of an object.
#[derive(Serialize, Deserialize)]
pub(super) struct Described<D> {
    /// The task that made it.
    pub task: String,
    /// The kind of device that it was made on.
    pub device: String,
    /// Further content.
    pub more: D,
}

/// An open object of a task, with its description.
pub(super) struct Input<D> {
    id: TaskId,
    object: Object,
    pub device: String,
    pub more: D,
}

impl Context<'_> {
    /// Opens the object of the task `id`.
    pub(super) fn open<D: DeserializeOwned>(&self, id: TaskId) -> Outcome<Input<D>> {
        open(self.store, id)
    }

    /// Writes the object of the task `id`.
    pub(super) fn put(&self, id: TaskId, more: impl Serialize, pieces: &[(u32, &[u8])]) -> Outcome<()> {
        let description = &Described { task: id.to_string(), device: self.kind.to_owned(), more };
        Ok(self.store.put(id, &Content { description, pieces })?)
    }
}

/// Opens the object of the task `id` in `store`.
pub(super) fn open<D: DeserializeOwned>(store: &ObjectStore, id: TaskId) -> Outcome<Input<D>> {
    let described = store.open(id)?.and_then(|object| Some((object.description::<Described<D>>()?, object)));
    match described {
        Some((Described { task, device, more }, object)) if task == id.to_string() => {
            Ok(Input { id, object, device, more })
        }
        _ => Err(Fault::Lost(id)),
    }
}

impl<D> Input<D> {
    /// The fault of damage.
    pub(super) fn lost(&self) -> Fault<TaskId> {
        Fault::Lost(self.id)
    }

    /// Reads a piece, empty if there is none.
    pub(super) fn piece(&self, key: u32) -> Outcome<Vec<u8>> {
        self.object.piece(key)?.ok_or_else(|| self.lost())
    }

    /// Reads a piece of numbers.
    pub(super) fn numbers<T: bytemuck::Pod>(&self, key: u32) -> Outcome<Vec<T>> {
        numbers(&self.piece(key)?).ok_or_else(|| self.lost())
    }

    pub(super) fn object(&self) -> &Object {
        &self.object
    }
}
