//! Pruning of a k-NN graph into rows of an index by Collect-Filter-Store (paper section 5).

pub(crate) mod change;
pub(crate) mod collect;
pub(crate) mod cpu;
mod filter;
pub(crate) mod gpu;
mod places;
pub(crate) mod plan;
pub(crate) mod queries;
pub(crate) mod reach;
mod rows;
mod rule;
mod stats;
mod strategy;
pub(crate) mod tree;

pub use queries::QueryStats;
pub(crate) use rows::GraphRows;
pub use rule::CustomRule;
pub use stats::PruneStats;
pub use strategy::{Collect, Filter, MAX_CANDIDATES, Strategy};
pub(crate) use strategy::{Entry, Store};

/// A pruned graph.
pub(crate) struct Pruned<R = GraphRows> {
    pub rows: R,
    /// Entry points of searches.
    pub entries: Vec<u32>,
    pub stats: PruneStats,
}
