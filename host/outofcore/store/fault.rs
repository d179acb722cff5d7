//! Causes of a failed attempt at a build.

use std::path::Path;

use super::{CLUSTERS, LISTS, Pair, REPEATED, ROWS};
use crate::Error;

/// The cause of a failed attempt.
pub(crate) enum Fault {
    /// A damaged work file. The build can make its content again.
    Damage(Damage),
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
pub(crate) type Attempt<T> = Result<T, Fault>;

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

    /// The error for content that is damaged a second time.
    pub(crate) fn error(self, folder: &Path) -> Error {
        Error::file(&folder.join(self.file()), "damage for the second time", "intact content; check the disk")
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}
