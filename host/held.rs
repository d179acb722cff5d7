//! Values that are borrowed or shared.

use std::ops::Deref;
use std::sync::Arc;

/// A borrowed value, or one that several owners share.
pub(crate) enum Held<'a, T> {
    Borrowed(&'a T),
    Shared(Arc<T>),
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match self {
            Self::Borrowed(value) => value,
            Self::Shared(value) => value,
        }
    }
}

impl<T> Clone for Held<'_, T> {
    fn clone(&self) -> Self {
        match self {
            Self::Borrowed(value) => Self::Borrowed(value),
            Self::Shared(value) => Self::Shared(Arc::clone(value)),
        }
    }
}
