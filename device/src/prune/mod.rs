//! What both backends of the pruning stage share.

pub mod rule;
