//! Exact k nearest neighbours: a filter on tensor cores, then exact distances of the rows that
//! pass.
//!
//! # Algorithm
//!
//! ```text
//! prepare: round vectors to f16 with norms and errors; bytes need norms alone
//! for each range of rows, ranges growing:
//!     filter: rows whose approximate distance is below the query's bound survive
//!     rerank: compute exact distances of the survivors, merge them into the query's list,
//!             bound = distance of the list's k-th row, plus what rounding may hide
//! ```
//!
//! # Why the lists are exact
//!
//! Rounding moves the query by e and most rows by at most E, both measured. By the triangle
//! inequality a row among the nearest k is within `sqrt(d_k) + e + E` of the query as the tensor
//! cores see it, plus what f32 sums may lose. The bias of a row that rounding moves further than E
//! makes up for it ([`biased`](crate::block::sums::biased)). Under inner product, where queries
//! are scaled to one norm, the bias of each row has all that its rounding and theirs may hide.
//! Settling computes distances in f32 from the original vectors, in the CPU's order of sums, so
//! ties by id are the CPU's too.
//!
//! Ranges grow as the bounds tighten, so that the lists of survivors do not overflow. Where they
//! do for a few queries, as in spots denser than f16 resolves, the host searches for those queries
//! again.

mod prepare;
mod rerank;
mod rows;

pub use prepare::*;
pub use rerank::*;
pub use rows::*;
