//! What all tasks of a process share, and the objects that they read.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::id::TaskId;
use super::object::{NewPiece, Object, numbers};
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

/// An open object of a task, with its further content.
pub(super) struct Input<D> {
    id: TaskId,
    pub object: Object,
    pub more: D,
}

impl Context<'_> {
    /// Writes the object of the task `id`.
    pub(super) fn put(&self, id: TaskId, more: impl Serialize, pieces: &[NewPiece<'_>]) -> Outcome<()> {
        Ok(self.store.put(id, self.kind, &more, pieces)?)
    }
}

impl ObjectStore {
    /// Opens the object of the task `id` as an input.
    pub(super) fn input<D: DeserializeOwned>(&self, id: TaskId) -> Outcome<Input<D>> {
        let object = self.open(id)?.ok_or(Fault::Lost(id))?;
        let more = object.more().ok_or(Fault::Lost(id))?;
        Ok(Input { id, object, more })
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
}
