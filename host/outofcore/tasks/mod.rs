//! A build in tasks: pure functions of named, checksummed objects, for many machines
//! (`docs/tasks.md`).
//!
//! The tasks call the functions of the build on one machine, so both make the same bytes.

mod assign;
mod build;
mod claims;
mod context;
mod costs;
mod finish;
mod folder;
mod id;
mod memory;
mod object;
mod plan;
mod rows;
mod store;
mod worker;

pub use self::costs::{StageCosts, StageTime, TaskBound, TaskCosts, TaskMachines};
pub use self::finish::FinishedIndex;
pub use self::folder::{StageStatus, TaskFolder, TaskInput};
pub use self::id::{TaskId, TaskStage};
pub use self::object::{ObjectBytes, ObjectPart};
pub use self::plan::TaskFiles;
pub use self::worker::{TaskWorker, Worked};
