//! The build from end to end: reading, building and merging clusters, and writing the index.

mod attach;
mod attempt;
mod build;
mod entries;
mod lists;
mod local;
mod merge;
mod parcels;
mod permits;
mod pipeline;
mod stats;
mod trace;
mod turns;
mod warm;
mod write;

pub use self::build::{OutOfCore, default_work_folder};
pub(crate) use self::entries::{Reached, entry_points};
#[cfg(test)]
pub(crate) use self::lists::ListKernels;
pub(crate) use self::lists::{ClusterLists, HostLists, Members, WaitingLists};
pub(crate) use self::local::{LocalIndex, parcels};
pub use self::stats::OutOfCoreStats;
pub use self::trace::{Task, TaskKind};
pub(crate) use self::write::{Ending, RowRange, append_rows, are_rows};
