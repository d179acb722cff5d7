//! Exact k nearest neighbours: a filter on tensor cores, and exact distances for what passes it.
//!
//! The base is taken in ranges of rows. [`exact_filter_f16()`] and its siblings compute the products of
//! all queries with the rows of a range and note the rows whose distance may be below the query's
//! bound; [`exact_settle_f32()`] and its siblings compute the exact distances of the noted rows from the
//! original vectors, merge them into the query's list of the k nearest, and tighten the bound. As the
//! bound allows for all rounding on the tensor cores, the lists are exact, ties by id included.

mod prepare;
mod rows;
mod settle;

pub use prepare::*;
pub use rows::*;
pub use settle::*;
