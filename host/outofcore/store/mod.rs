//! Work files, checkpoints, checksums, and damage.

mod bins;
mod checkpoint;
mod checksums;
mod fault;
mod folder;
mod log;
mod manifest;
mod repeated;
mod sealed;
mod work;

pub(crate) use self::bins::{Bins, Gather};
pub(crate) use self::checkpoint::{CentralNode, Checkpoint, CheckpointShape, Checkpoints};
pub(crate) use self::checksums::{Checksums, Summing, changed, rows_crc};
pub(crate) use self::fault::{Attempt, Damage, Fault, lost_again, or_lost};
#[cfg(test)]
pub(crate) use self::folder::Folder;
pub(crate) use self::log::{Log, Piece, Reader};
pub use self::manifest::unfinished;
pub(crate) use self::manifest::{INPUT, Manifest, input};
pub(crate) use self::repeated::{RepeatedFile, RepeatedPieces};
pub(crate) use self::sealed::{Flaw, Parameters, Sealed, check_parameters, read, read_all, seal};
pub(crate) use self::work::{Saving, Work};

/// Two clusters. Of a waiting list: the cluster of the list, and the cluster built later.
pub(crate) type Pair = (u32, u32);

/// Repeated rows, each with the first row of its group.
pub(crate) const REPEATED: &str = "repeated";
/// Members of clusters.
pub(crate) const CLUSTERS: &str = "clusters";
/// Waiting lists.
pub(crate) const LISTS: &str = "lists";
/// Finished rows.
pub(crate) const ROWS: &str = "rows";
/// The table of clusters.
pub(crate) const TABLE: &str = "table";
/// The last checkpoint.
pub(crate) const CHECKPOINT: &str = "checkpoint";
