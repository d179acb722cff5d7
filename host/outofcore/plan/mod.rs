//! Cluster sizes within memory limits, the cluster graph, and the order of clusters.

mod available;
mod cache;
mod clusters;
mod crew;
mod fit;
mod graph;
mod limits;
mod lists;
mod order;
mod sizes;

pub use self::available::read_ahead;
pub use self::cache::CacheUse;
pub use self::clusters::ClusterPlan;
pub(crate) use self::clusters::RowBins;
pub(crate) use self::crew::Crew;
pub use self::graph::ClusterGraph;
pub use self::limits::Limits;
pub(crate) use self::lists::{MERGED_AT_ONCE, list_bytes, list_memory, row_bytes};
pub use self::order::Dispatch;
pub(crate) use self::sizes::{RECORD_HEAD, SAMPLE_PER_CLUSTER};
