//! Exact search, beam search, and the reranking of what beam search on codes finds.

pub mod beam;
pub mod edges;
pub mod exact;
pub mod rerank;
