//! Causes of a failed attempt at a build.

use std::path::Path;

use super::{CLUSTERS, LISTS, Pair, REPEATED, ROWS};
use crate::Error;

/// The cause of a failed attempt at a build, or of a failed task.
#[derive(Debug)]
pub(crate) enum Fault<L = Damage> {
    /// Missing or damaged content, which can be made again.
    Lost(L),
    /// Any other error.
    Failed(Error),
}

/// Lost content of the work files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Damage {
    /// Members of a cluster.
    Clusters,
    /// Lists of the first cluster that wait for the second.
    Lists(Pair),
    /// Finished rows.
    Rows,
    /// Repeated rows.
    Repeated,
}

/// The result of a step of an attempt.
pub(crate) type Attempt<T, L = Damage> = Result<T, Fault<L>>;

/// Tells lost content from other errors.
pub(crate) fn or_lost<T, L>(attempt: Attempt<T, L>) -> Result<Result<T, L>, Error> {
    match attempt {
        Ok(done) => Ok(Ok(done)),
        Err(Fault::Lost(lost)) => Ok(Err(lost)),
        Err(Fault::Failed(error)) => Err(error),
    }
}

impl Damage {
    /// The damaged work file.
    pub(crate) fn file(self) -> &'static str {
        match self {
            Self::Clusters => CLUSTERS,
            Self::Lists(_) => LISTS,
            Self::Rows => ROWS,
            Self::Repeated => REPEATED,
        }
    }
}

/// The error for a file whose content was made again this many `times`, and is lost again.
pub(crate) fn lost_again(path: &Path, times: usize) -> Error {
    Error::file(path, format_args!("damage after repair {times}"), "intact content; check the disk")
}

impl<L> From<Error> for Fault<L> {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}
