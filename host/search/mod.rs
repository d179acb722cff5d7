//! Searching: beam search over an index, and exact search.

pub(crate) mod beam;
mod cpu;
pub(crate) mod exact;
pub(crate) mod gpu;
pub(crate) mod visited;

pub use cpu::{SearchResult, Searcher, search};
