//! Searching: beam search over an index, and exact search.

mod answer;
pub(crate) mod beam;
pub(crate) mod breadth;
pub(crate) mod bridge;
mod coded;
mod codes;
mod cpu;
mod edges;
mod engine;
pub(crate) mod exact;
pub(crate) mod gpu;
mod lazy;
mod options;
mod passing;
#[cfg(test)]
mod passing_tests;
mod pool;
mod prepare;
mod resident;
mod result;
mod searcher;
pub(crate) mod visited;

pub use codes::SearchCodes;
#[cfg(test)]
pub(crate) use edges::gpu::EdgeKernels;
pub(crate) use engine::Engine;
pub(crate) use options::Filter;
pub use options::Search;
pub use prepare::prepare_search;
pub use resident::ResidentIndex;
pub use result::{Neighbor, SearchResult};
pub use searcher::{MAX_WIDTH, Searcher};
