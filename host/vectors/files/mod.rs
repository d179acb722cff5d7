//! Files of rows and ids: their formats, reading, mapping and writing.

pub(in crate::vectors) mod advice;
pub(in crate::vectors) mod ahead;
pub(in crate::vectors) mod format;
pub(in crate::vectors) mod mapped;
pub(crate) mod npy;
pub(in crate::vectors) mod open;
mod pair;
pub(in crate::vectors) mod save;
pub(in crate::vectors) mod truth;
