//! The GPU kernels of `tagore`, and what they share with its CPU backend: packed neighbour keys, the
//! random generator and the pruning rules.
//!
//! The same source compiles for the host, where every kernel is a function that can be run, and for a
//! GPU. It depends on nothing in `host/`.

#![cfg_attr(target_os = "cuda", no_std)]
#![cfg_attr(target_os = "cuda", feature(abi_ptx, asm_experimental_arch))]

pub mod block;
pub mod cluster;
pub mod descent;
pub mod key;
pub mod lists;
pub mod prune;
pub mod random;
pub mod search;
pub mod sort;
