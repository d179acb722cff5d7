//! `tagore` builds graph indexes for approximate nearest-neighbour search.
#![doc = "TODO"]

mod atomic_file;
mod descent;
mod error;
mod eval;
mod index;
mod progress;
mod prune;
mod search;
mod vectors;

pub use error::{Error, Result};
pub use progress::{Progress, Update};
