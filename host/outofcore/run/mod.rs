//! The build from end to end: reading, building and merging clusters, and writing the index.

mod attempt;
mod build;
mod entries;
mod lists;
mod local;
mod merge;
mod permits;
mod pipeline;
mod stats;
mod trace;
mod turns;
mod warm;
mod write;

pub use self::build::OutOfCore;
#[cfg(test)]
pub(crate) use self::lists::ListKernels;
pub use self::stats::OutOfCoreStats;
pub use self::trace::{Task, TaskKind};
