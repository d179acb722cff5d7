//! What stops an attempt at a build.

use std::path::Path;

use crate::Error;

/// Why an attempt ended.
pub(super) enum Fault {
    /// A work file is not what was written; what it held can be made again.
    Damage(Damage),
    /// Anything else.
    Failed(Error),
}

/// What of the work files is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Damage {
    /// Members of a cluster.
    Clusters,
    /// The lists of the first cluster that wait for the second.
    Lists((u32, u32)),
    /// Finished rows.
    Rows,
    /// Repeated rows.
    Repeated,
}

/// The result of a part of an attempt.
pub(super) type Attempt<T> = Result<T, Fault>;

impl Damage {
    /// The work file.
    pub(super) fn file(self) -> &'static str {
        match self {
            Self::Clusters => super::CLUSTERS,
            Self::Lists(_) => super::LISTS,
            Self::Rows => super::ROWS,
            Self::Repeated => super::REPEATED,
        }
    }

    /// The error of a build that cannot go on.
    pub(super) fn error(self, folder: &Path) -> Error {
        Error::file(&folder.join(self.file()), "damage, again", "what was written")
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}
