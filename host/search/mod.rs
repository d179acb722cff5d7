//! Searching: beam search over an index, and exact search.

pub(crate) mod beam;
mod cpu;
pub(crate) mod exact;
pub(crate) mod gpu;
mod prepare;
mod searcher;
pub(crate) mod visited;

pub use prepare::prepare_search;
pub use searcher::{MAX_WIDTH, SearchResult, Searcher, search};
