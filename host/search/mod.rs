//! Searching: beam search over an index, and exact search.

pub(crate) mod beam;
mod cpu;
pub(crate) mod exact;
pub(crate) mod gpu;
mod searcher;
pub(crate) mod visited;

pub use searcher::{MAX_WIDTH, SearchResult, Searcher, search};
