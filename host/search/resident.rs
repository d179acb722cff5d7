//! An index and its base in the memory of a GPU, where a build has left them.
//!
//! Only the index of that build, or a clone of it, is searched there. Another index may have the
//! same description and other edges, so the identity of the index decides, not its description.

use std::fmt;
use std::sync::Arc;

use super::gpu::{OnGpu, OnGpus};
use crate::index::Identity;
use crate::{Device, Error, Index, Result};

/// An index and its base in the memory of a GPU, where a build has left them
/// ([`Builder::keep_on_device`](crate::Builder::keep_on_device)): searches there need no copy of
/// either. Clones share the memory; the last one to be dropped frees it.
#[derive(Clone)]
pub struct ResidentIndex {
    on_gpus: Arc<OnGpus>,
    /// What tells the index from others.
    identity: Identity,
}

impl ResidentIndex {
    /// `index` and its base, which are on a GPU.
    pub(super) fn new(on_gpu: OnGpu, index: &Index) -> Self {
        Self { on_gpus: Arc::new(OnGpus::at(on_gpu)), identity: index.identity().clone() }
    }

    /// The device, such as `cuda:0`.
    pub fn device(&self) -> &str {
        self.on_gpus.gpus().name()
    }

    /// The same for `index`, which is this one with more rows: its row i is row `places[i]` here.
    /// None if clones share the memory, or the device has no room for both.
    ///
    /// # Errors
    /// If the device lacks memory after all or fails.
    pub(crate) fn expanded(self, index: &Index, places: &[u32]) -> Result<Option<Self>> {
        let Some(on_gpus) = Arc::into_inner(self.on_gpus) else { return Ok(None) };
        let expanded = on_gpus.into_first().expanded(index, places)?;
        Ok(expanded.map(|on_gpu| Self::new(on_gpu, index)))
    }

    /// Whether searches on `device` may take it.
    pub(crate) fn is_on(&self, device: Device) -> bool {
        device.may_be(self.device())
    }

    /// Index and base on the GPU.
    ///
    /// # Errors
    /// If they are neither those of `index` nor of a clone.
    pub(super) fn on_gpus_for(&self, index: &Index) -> Result<&Arc<OnGpus>> {
        if self.identity == *index.identity() {
            return Ok(&self.on_gpus);
        }
        let found = format_args!("a build of another index on {}", self.device());
        Err(Error::mismatch("resident index", found, index.describe()))
    }
}

impl PartialEq for ResidentIndex {
    /// Whether both are the same memory.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.on_gpus, &other.on_gpus)
    }
}

impl fmt::Debug for ResidentIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ResidentIndex {{ on {} }}", self.device())
    }
}
