//! Pruning (paper section 5): what both backends share, and the kernels.

pub mod collect;
pub mod filter;
pub mod kernels;
pub mod rows;
pub mod rule;
pub mod serial;
