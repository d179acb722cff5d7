//! Asynchronous copies from device to shared memory (`cp.async`).
//!
//! A thread starts copies, closes them into groups, and waits for a group. A barrier then makes the
//! bytes visible to the block.

use crate::memory::{Global, Plain};
use crate::shared::Shared;

#[cfg(target_os = "cuda")]
unsafe extern "C" {
    #[link_name = "llvm.nvvm.cp.async.commit.group"]
    fn commit_group();
}

/// Starts a copy of sixteen bytes that bypasses the L1 cache. It reads the first `source_bytes` and
/// sets the others to zero. Both addresses are multiples of 16.
#[inline(always)]
#[track_caller]
pub fn quad<T: Plain>(to: Shared<T>, from: Global<T>, source_bytes: u32) {
    #[cfg(target_os = "cuda")]
    // SAFETY: the promise of the running kernel covers both addresses.
    unsafe {
        core::arch::asm!("cp.async.cg.shared.global [{}], [{}], 16, {};", in(reg32) to.address(),
            in(reg64) from.address(), in(reg32) source_bytes, options(nostack));
    }
    #[cfg(not(target_os = "cuda"))]
    {
        use crate::host::lane;
        lane(|lane, at| lane.copy_async(to.address(), from.address(), 16, source_bytes, at));
    }
}

/// Closes a group of all copies that this thread has started since the last group.
#[inline(always)]
#[track_caller]
pub fn commit() {
    #[cfg(target_os = "cuda")]
    // SAFETY: starts nothing.
    unsafe {
        commit_group();
    }
    #[cfg(not(target_os = "cuda"))]
    crate::host::lane(|lane, at| lane.commit_async(at));
}

/// Waits until at most `PENDING` of this thread's groups are unfinished. This thread then sees the
/// bytes of the others; other threads see them after a barrier.
#[inline(always)]
#[track_caller]
pub fn wait<const PENDING: u32>() {
    #[cfg(target_os = "cuda")]
    // SAFETY: waits.
    unsafe {
        core::arch::asm!("cp.async.wait_group {};", const PENDING, options(nostack));
    }
    #[cfg(not(target_os = "cuda"))]
    crate::host::lane(|lane, at| lane.wait_async(PENDING, at));
}
