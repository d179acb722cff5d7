//! Lists of neighbours with their distances, and merging two of them (paper section 6.1).

pub mod lengths;
pub mod merge;
