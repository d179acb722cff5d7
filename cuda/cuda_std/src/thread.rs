//! Indices of threads and blocks, and barriers of a block.

#[cfg(target_os = "cuda")]
mod raw {
    pub use core::arch::nvptx::*;

    unsafe extern "C" {
        #[link_name = "llvm.nvvm.barrier0.popc"]
        pub fn barrier_count(predicate: u32) -> u32;
        #[link_name = "llvm.nvvm.barrier.cta.sync.aligned.count"]
        pub fn barrier_named(id: u32, threads: u32);
        #[link_name = "llvm.nvvm.membar.cta"]
        pub fn membar_block();
        #[link_name = "llvm.nvvm.membar.gl"]
        pub fn membar_device();
        #[link_name = "llvm.nvvm.membar.sys"]
        pub fn membar_system();
    }
}
#[cfg(not(target_os = "cuda"))]
use crate::host::{Barrier, lane};

macro_rules! indices {
    ($($name:ident, $register:ident, $field:ident[$axis:literal], $what:literal;)*) => {$(
        #[doc = $what]
        #[inline(always)]
        pub fn $name() -> u32 {
            #[cfg(target_os = "cuda")]
            // SAFETY: reads a special register.
            unsafe {
                raw::$register() as u32
            }
            #[cfg(not(target_os = "cuda"))]
            lane(|lane, _| lane.place().$field[$axis])
        }
    )*};
}

indices! {
    thread_idx_x, _thread_idx_x, thread_idx[0], "The thread's index in its block, in x.";
    thread_idx_y, _thread_idx_y, thread_idx[1], "The thread's index in its block, in y.";
    thread_idx_z, _thread_idx_z, thread_idx[2], "The thread's index in its block, in z.";
    block_idx_x, _block_idx_x, block_idx[0], "The block's index in the grid, in x.";
    block_idx_y, _block_idx_y, block_idx[1], "The block's index in the grid, in y.";
    block_idx_z, _block_idx_z, block_idx[2], "The block's index in the grid, in z.";
    block_dim_x, _block_dim_x, block_dim[0], "Threads per block, in x.";
    block_dim_y, _block_dim_y, block_dim[1], "Threads per block, in y.";
    block_dim_z, _block_dim_z, block_dim[2], "Threads per block, in z.";
    grid_dim_x, _grid_dim_x, grid_dim[0], "Blocks of the grid, in x.";
    grid_dim_y, _grid_dim_y, grid_dim[1], "Blocks of the grid, in y.";
    grid_dim_z, _grid_dim_z, grid_dim[2], "Blocks of the grid, in z.";
}

/// The index of the thread in a one-dimensional launch of fewer than 2^32 threads.
#[inline(always)]
pub fn index_1d() -> u32 {
    block_idx_x() * block_dim_x() + thread_idx_x()
}

/// Threads per warp.
#[inline(always)]
pub const fn warp_size() -> u32 {
    32
}

/// The index of the warp in a one-dimensional block.
#[inline(always)]
pub fn warp_idx() -> u32 {
    thread_idx_x() / 32
}

/// Waits for all threads of the block and makes their writes visible to each other. All threads
/// must make the same call.
#[inline(always)]
#[track_caller]
pub fn sync_threads() {
    #[cfg(target_os = "cuda")]
    // SAFETY: its threads all reach this barrier, by the promise of the running kernel.
    unsafe {
        raw::_syncthreads();
    }
    #[cfg(not(target_os = "cuda"))]
    lane(|lane, at| lane.barrier(Barrier { id: 0, threads: None }, false, at));
}

/// As [`sync_threads`]; returns the number of threads whose `predicate` is not 0.
#[inline(always)]
#[track_caller]
pub fn sync_threads_count(predicate: u32) -> u32 {
    #[cfg(target_os = "cuda")]
    // SAFETY: its threads all reach this barrier, by the promise of the running kernel.
    unsafe {
        raw::barrier_count(predicate)
    }
    #[cfg(not(target_os = "cuda"))]
    lane(|lane, at| lane.barrier(Barrier { id: 0, threads: None }, predicate != 0, at))
}

/// Waits at barrier `id`, 1 to 15, for `threads` threads of the block. Whole warps make this call,
/// so `threads` is a multiple of 32.
#[inline(always)]
#[track_caller]
pub fn sync_named(id: u32, threads: u32) {
    #[cfg(target_os = "cuda")]
    // SAFETY: its threads all reach this barrier, by the promise of the running kernel.
    unsafe {
        raw::barrier_named(id, threads);
    }
    #[cfg(not(target_os = "cuda"))]
    lane(|lane, at| lane.barrier(Barrier { id, threads: Some(threads) }, false, at));
}

macro_rules! fences {
    ($($name:ident, $raw:ident, $what:literal;)*) => {$(
        #[doc = $what]
        #[inline(always)]
        pub fn $name() {
            #[cfg(target_os = "cuda")]
            // SAFETY: a fence.
            unsafe {
                raw::$raw();
            }
        }
    )*};
}

fences! {
    grid_fence, membar_block, "Orders this thread's memory accesses for its block (rust-cuda's name).";
    device_fence, membar_device, "Orders this thread's memory accesses for the device.";
    system_fence, membar_system, "Orders this thread's memory accesses for host and peers.";
}
