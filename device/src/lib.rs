//! What the CPU backend and the kernels of `tagore` share: packed neighbour keys, the random
//! generator and the pruning rules.
//!
//! The same source compiles for the host and for a GPU.
//! It depends on no other crate of the project.

#![cfg_attr(target_os = "cuda", no_std)]

pub mod descent;
pub mod prune;
pub mod random;
