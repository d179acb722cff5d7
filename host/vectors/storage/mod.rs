//! The memory that holds the values of a data set.
//!
//! A data set is bytes with an owner and a layout. A mapped file, a vector and an array of another
//! library differ in who frees the bytes, and in nothing else: so the owner is a trait object, and
//! all other code sees one type.

pub(in crate::vectors) mod bits;
pub(in crate::vectors) mod construct;
pub(in crate::vectors) mod content;
pub(in crate::vectors) mod element;
pub(in crate::vectors) mod hashes;
pub(in crate::vectors) mod id_set;
pub(in crate::vectors) mod ids;
pub(in crate::vectors) mod lent;
#[cfg(test)]
mod lent_tests;
pub(in crate::vectors) mod matrix;
pub(crate) mod queries;
pub(in crate::vectors) mod query;
pub(crate) mod range;
pub(crate) mod repeated;
pub(crate) mod shape;
pub(in crate::vectors) mod source;
pub(in crate::vectors) mod spool;
mod subset;
mod values;

use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use bytemuck::Pod;

use crate::vectors::lent::LentMemory;
use crate::vectors::mapped::MappedFile;

/// Bytes kept alive by their owner. Clones share them.
#[derive(Clone)]
pub(in crate::vectors) struct Storage(Arc<dyn Memory>);

/// An owner of bytes, which it never changes.
pub(in crate::vectors) trait Memory: Any + Send + Sync {
    fn bytes(&self) -> &[u8];

    /// The mapped file of the bytes, for read-ahead.
    fn mapped(&self) -> Option<&MappedFile> {
        None
    }

    /// The array of a device.
    fn lent(&self) -> Option<&LentMemory> {
        None
    }
}

/// An owner of values of type `T`.
struct Owner<T, O>(O, PhantomData<fn() -> T>);

impl<T: Pod, O: AsRef<[T]> + Send + Sync + 'static> Memory for Owner<T, O> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self.0.as_ref())
    }
}

impl Storage {
    pub(in crate::vectors) fn new(memory: impl Memory) -> Self {
        Self(Arc::new(memory))
    }

    /// The values of `owner`.
    pub(in crate::vectors) fn from_owner<T: Pod>(owner: impl AsRef<[T]> + Send + Sync + 'static) -> Self {
        Self::new(Owner(owner, PhantomData))
    }

    /// `values` themselves.
    pub(in crate::vectors) fn owned<T: Pod + Send + Sync>(values: Vec<T>) -> Self {
        Self::from_owner(values)
    }

    #[inline]
    pub(in crate::vectors) fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    pub(in crate::vectors) fn mapped(&self) -> Option<&MappedFile> {
        self.0.mapped()
    }

    pub(in crate::vectors) fn lent(&self) -> Option<&LentMemory> {
        self.0.lent()
    }

    /// The vector that holds the values, unless it is shared or they are held by another owner.
    pub(in crate::vectors) fn into_vec<T: Pod + Send + Sync>(mut self) -> Result<Vec<T>, Self> {
        let memory = Arc::get_mut(&mut self.0).map(|memory| memory as &mut dyn Any);
        let owner = memory.and_then(|memory| memory.downcast_mut::<Owner<T, Vec<T>>>());
        owner.map(|owner| std::mem::take(&mut owner.0)).ok_or(self)
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(lent) = self.lent() {
            return lent.fmt(f);
        }
        let kind = if self.mapped().is_some() { "mapped" } else { "in memory" };
        write!(f, "{} bytes {kind}", self.bytes().len())
    }
}
