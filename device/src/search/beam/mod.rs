//! Beam search over a graph, one query per block.
//!
//! [`search`] has the kernels for queries: [`by_warp`] expands a node per step, [`by_block`]
//! several. [`among`] walks the nodes that pass a filter, [`on_edges`] codes of edges. [`walk`] has
//! what they share, and the search of path collection. The beam lies in shared memory
//! ([`sorted`]), or in the registers of a block's first warp ([`list`]). [`stop`] tells when a
//! search ends early.

pub mod among;
pub mod by_block;
pub mod by_warp;
pub mod list;
pub mod on_edges;
pub mod passing;
mod purpose;
pub mod search;
pub mod sorted;
pub mod stop;
pub mod walk;
