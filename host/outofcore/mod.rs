//! Builds out of core (paper section 6): data sets that fit neither the GPU nor RAM.
//!
//! Each vector is in two clusters. A node's list of the first cluster waits in memory until the
//! second cluster is built, and the two lists are merged. If the first cluster leaves the cache
//! earlier, the list is written to disk and read again. Clusters that share many nodes should
//! therefore be in the cache together.
//!
//! The code is in five folders. Each imports only the folders before it:
//!
//! 1. `plan`: cluster sizes within memory limits, the cluster graph, the order of clusters.
//! 2. `store`: work files, checkpoints, checksums, damage.
//! 3. `partition`: cluster centres, and the pass that writes vectors to their clusters.
//! 4. `run`: the build from end to end: reading, building and merging clusters, writing the index.
//! 5. `tasks`: the same build as tasks on files, for many machines.
//!
//! ```
//! use tagore::outofcore::ClusterGraph;
//! use tagore::{Device, Progress, Synth};
//!
//! let base = Synth::new(2000, 16, 0)?.base();
//! let (graph, _) = ClusterGraph::of_vectors(&base, 40, 0, Device::Cpu, &Progress::silent())?;
//! let dispatches = graph.dispatch(8)?;
//! // Of a cache of a fifth of the clusters.
//! assert!(graph.simulate(&dispatches).hit_ratio() > 0.3);
//! # Ok::<(), tagore::Error>(())
//! ```

mod partition;
mod plan;
mod run;
mod store;
mod tasks;

pub use partition::OverlapStats;
pub use plan::{CacheUse, ClusterGraph, ClusterPlan, Dispatch, Limits, read_ahead};
#[cfg(test)]
pub(crate) use run::ListKernels;
pub use run::{OutOfCore, OutOfCoreStats, Task, TaskKind, default_work_folder};
pub use store::unfinished;
pub use tasks::{
    FinishedIndex, ObjectBytes, ObjectPart, StageCosts, StageStatus, StageTime, TaskBound, TaskCosts,
    TaskFiles, TaskFolder, TaskId, TaskInput, TaskMachines, TaskStage, TaskWorker, Worked,
};
