//! What tells one index from another.

use std::sync::Arc;

/// Tells an index and its clones from all others of the process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Identity(Arc<()>);

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
