//! Pruning (paper section 5): what both backends share, and the kernels.

pub mod detours;
pub mod ids;
pub mod places;
pub mod reverse;
pub mod rows;
pub mod rule;
pub mod store;
