//! The k-NN graph: what both backends share, and kernels.

pub mod cells;
pub mod key;
