//! Names of tasks.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// A kind of tasks. Tasks of a stage need only tasks of earlier stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TaskStage {
    /// Finds the two nearest centres of the rows of a range.
    Assign,
    /// Assigns the rows of full clusters in the order of the rows, and orders the clusters.
    Place,
    /// Writes the rows of a range to their clusters.
    Write,
    /// Builds a cluster: lists with distances, by the other cluster of their nodes.
    Build,
    /// Merges the lists of a cluster with those of the clusters before it.
    Merge,
    /// Gathers the finished rows of a range of ids.
    Assemble,
    /// Writes the index: rows, entry points, layers.
    Finish,
}

impl TaskStage {
    /// All stages, the first first.
    pub const ALL: [Self; 7] =
        [Self::Assign, Self::Place, Self::Write, Self::Build, Self::Merge, Self::Assemble, Self::Finish];

    /// The name, such as `build`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Assign => "assign",
            Self::Place => "place",
            Self::Write => "write",
            Self::Build => "build",
            Self::Merge => "merge",
            Self::Assemble => "assemble",
            Self::Finish => "finish",
        }
    }

    /// Whether a plan has one task of this stage.
    fn is_single(self) -> bool {
        matches!(self, Self::Place | Self::Finish)
    }
}

impl fmt::Display for TaskStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for TaskStage {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let named = Self::ALL.into_iter().find(|stage| stage.name() == name);
        let expected = "assign, place, write, build, merge, assemble or finish";
        named.ok_or_else(|| Error::argument("stage", name, expected))
    }
}

/// The name of a task: `place`, `finish`, or a stage with the number of a range or cluster, such as
/// `build-17`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// The stage.
    pub stage: TaskStage,
    /// The number of the range of rows or of the cluster; 0 for a stage of one task.
    pub number: u32,
}

impl TaskId {
    pub(super) const PLACE: Self = Self { stage: TaskStage::Place, number: 0 };
    pub(super) const FINISH: Self = Self { stage: TaskStage::Finish, number: 0 };

    pub(super) fn new(stage: TaskStage, number: usize) -> Self {
        Self { stage, number: number as u32 }
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stage, number } = self;
        if stage.is_single() { f.pad(stage.name()) } else { f.pad(&format!("{stage}-{number}")) }
    }
}

impl FromStr for TaskId {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let unknown = || Error::argument("task", name, "a task, such as place or build-17");
        let (stage, number) = match name.split_once('-') {
            Some((stage, number)) => (stage, Some(number.parse::<u32>().map_err(|_| unknown())?)),
            None => (name, None),
        };
        let stage: TaskStage = stage.parse().map_err(|_| unknown())?;
        let id = Self { stage, number: number.unwrap_or(0) };
        // Only one name for each task.
        if number.is_none() == stage.is_single() && id.to_string() == name { Ok(id) } else { Err(unknown()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_has_one_name() {
        for name in ["assign-0", "place", "write-12", "build-3", "merge-4", "assemble-5", "finish"] {
            assert_eq!(name.parse::<TaskId>().unwrap().to_string(), name);
        }
        for name in [
            "",
            "place-0",
            "finish-1",
            "build",
            "build-",
            "build-x",
            "build-01",
            "build--1",
            "plan",
            "build-4294967296",
        ] {
            assert!(name.parse::<TaskId>().is_err(), "{name}");
        }
    }
}
