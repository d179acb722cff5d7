//! Pruning (paper section 5): what both backends share, and the kernels.

pub mod collect;
pub mod path;
pub mod rows;
pub mod rule;
