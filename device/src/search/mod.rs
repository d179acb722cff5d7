//! Exact search and beam search.

pub mod beam;
pub mod exact;
