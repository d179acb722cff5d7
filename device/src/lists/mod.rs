//! Neighbour lists with distances, and the merge of a node's two lists (paper section 6.1).

pub mod lengths;
pub mod merge;
