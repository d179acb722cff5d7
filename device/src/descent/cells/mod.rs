//! Start of a descent from cells.
//!
//! A cell holds the vectors assigned to one k-means centre. A vector is assigned to its nearest
//! cell, or two, and probes further ones. Per clustering:
//!
//! ```text
//! for each job (up to 128 members of a cell x other members):     intra-cell join
//!     distances of each query to the members
//! merge the smallest distances into the lists; tighten the bounds
//! for each pass over ranks of probed cells:
//!     for each query tile (up to 128 assigned vectors of a cell):  cross-cell join
//!         propose each pair to both vectors, if below the bound of either and not known
//!     merge proposals into the lists; tighten the bounds
//! ```
//!
//! `cells_finish_*` computes exact distances at the end of every descent.

mod candidates;
mod cross_cell;
mod finish;
mod intra_cell;
mod known;
mod nearness;
mod pairs;
mod proposals;

pub use candidates::*;
pub use cross_cell::*;
pub use finish::*;
pub use intra_cell::*;
pub use known::*;
pub use proposals::*;
