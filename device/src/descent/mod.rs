//! The k-NN graph: what both backends share, and kernels.
//!
//! GNN-Descent (paper section 4) is `sample` and `join` in phase 1, `gather` and `expand` in phase 2; a
//! start from cells is `cells`. Until `cells_finish` makes them exact, the distances in lists are those
//! that the tensor cores see, less what depends on the list's own node: `bias + weight * product`.

pub mod cells;
pub mod expand;
pub mod join;
pub mod merge;
pub mod renumber;
pub mod sample;
pub mod slots;
