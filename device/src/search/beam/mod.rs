//! Beam search over a graph, one query per block.
//!
//! [`walk`] is the search, which pruning uses too. [`search`] has the kernels for queries, and
//! [`on_edges`] those on codes of edges. The beam lies in the registers of a block's first warp
//! ([`list`]). [`stop`] tells when a search ends early.

pub mod among;
pub mod by_block;
pub mod by_warp;
pub mod list;
pub mod on_edges;
pub mod passing;
mod purpose;
pub mod search;
mod sorted;
pub mod stop;
pub mod walk;
