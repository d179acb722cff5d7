//! Cluster centres, and the pass over the base that writes each vector to its two clusters.

mod assign;
mod centres;
mod clusters;
mod groups;
mod overlap;
mod pass;
mod place;
mod rows;
mod table;

pub(crate) use self::assign::{AssignedRange, Assigning, BlockSums, SUM_ROWS, add_blocks};
pub(crate) use self::centres::{Found, SPLITS, find_centres};
pub(crate) use self::clusters::{Cluster, ClusterShape, MemberRecords, Partition};
pub(crate) use self::groups::find_repeated;
pub use self::overlap::OverlapStats;
pub(crate) use self::pass::{PartitionInput, chunk_rows};
pub(crate) use self::place::{Filling, distances, write_records};
pub(crate) use self::rows::RowLists;
pub(crate) use self::table::Table;
