//! Data that fits neither a GPU nor RAM (paper section 6): in which order clusters are dispatched, and what a cache of
//! neighbour lists makes of it.
//!
//! Every node is in two clusters. When the first is built, the node's list stays in memory with it; when the second
//! is built, the two lists are merged. If the first cluster has been evicted by then, the list has to be written
//! to disk and read again, so clusters that share many nodes should be in memory together.
//!
//! ```
//! use tagore::outofcore::{ClusterGraph, Dispatcher, Order};
//! use tagore::{Device, Progress, Synth};
//!
//! let base = Synth::new(2000, 16, 0)?.base();
//! let (graph, _) = ClusterGraph::of_vectors(&base, 40, 0, Device::Cpu, &Progress::silent())?;
//! let ratio = |order| {
//!     let dispatches = Dispatcher::new(order).cache(8).dispatch(&graph)?;
//!     Ok::<_, tagore::Error>(graph.simulate(&dispatches).hit_ratio())
//! };
//! assert!(ratio(Order::Cluster)? > ratio(Order::Random)?);
//! # Ok::<(), tagore::Error>(())
//! ```

mod available;
mod build;
mod cache;
mod centres;
mod checkpoint;
mod checksums;
mod entries;
mod fault;
mod folder;
mod graph;
pub(crate) mod lists;
mod local;
mod log;
mod merge;
mod order;
mod overlap;
mod partition;
mod permits;
mod pipeline;
mod place;
mod plan;
#[cfg(feature = "plots")]
pub(crate) mod timeline;
mod trace;
mod turns;
mod warm;
mod work;

pub use build::{OutOfCore, OutOfCoreStats};
pub use cache::CacheUse;
pub use graph::ClusterGraph;
pub use order::{Dispatch, Dispatcher, Order};
pub use overlap::OverlapStats;
pub use plan::{ClusterPlan, Limits};
#[cfg(feature = "plots")]
pub use timeline::timeline_plot;
pub use trace::{Task, TaskKind};

/// The work files: repeated rows, members of clusters, lists that wait, finished rows, the table of
/// clusters, the last checkpoint.
const REPEATED: &str = "repeated";
const CLUSTERS: &str = "clusters";
const LISTS: &str = "lists";
const ROWS: &str = "rows";
const TABLE: &str = "table";
const CHECKPOINT: &str = "checkpoint";
