//! GPU kernels of `tagore`, and code that they share with its CPU backend: packed neighbour keys,
//! random numbers and pruning rules.
//!
//! The same source compiles to PTX for GPUs, and for the host, where the emulator runs the kernels.
//! It depends on nothing in `host/`.

#![cfg_attr(target_os = "cuda", no_std)]
#![cfg_attr(target_os = "cuda", feature(abi_ptx, asm_experimental_arch))]

pub mod block;
pub mod cluster;
pub mod descent;
pub mod key;
pub mod lists;
pub mod prune;
pub mod random;
pub mod reduce;
pub mod search;
pub mod sort;
pub mod vectors;

/// PTX of all kernels, for compute capability 8.0 and later, as checked in.
#[cfg(not(target_os = "cuda"))]
pub const PTX: &str = include_str!("../ptx/tagore.sm_80.ptx");
