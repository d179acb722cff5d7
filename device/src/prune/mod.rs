//! Pruning (paper section 5): the rules that both backends share, and the kernels.

pub mod collect;
pub mod detours;
pub mod filter;
pub mod gram;
pub mod ids;
pub mod kernels;
pub mod layer_nodes;
pub mod medoid;
pub mod monotonic;
pub mod path;
pub mod places;
pub mod reverse;
pub mod rule;
pub mod store;
pub mod tree;
