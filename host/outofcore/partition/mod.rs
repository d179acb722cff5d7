//! Cluster centres, and the pass over the base that writes each vector to its two clusters.

mod centres;
mod clusters;
mod overlap;
mod pass;
mod place;
mod table;

pub(crate) use self::clusters::{Cluster, Partition};
pub use self::overlap::OverlapStats;
pub(crate) use self::pass::PartitionInput;
pub(crate) use self::table::Table;
