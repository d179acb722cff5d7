//! Beam search over a graph: a block has a query, which its first warp's registers keep the nearest nodes of.
//!
//! A step takes the nearest nodes of the beam that have not been expanded (one, or `width` of them), looks up which of
//! their neighbours are new in a table in shared memory, computes the distances of these, and puts them into the beam.
//! With one at a time the beam is that of the CPU backend, bit for bit. [`walk`] is the search by itself, which the
//! pruning of k-NN graphs walks with as well; [`search`] has the kernels for queries.

mod list;
pub mod search;
pub mod walk;
