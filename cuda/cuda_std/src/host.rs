//! Kernels on the host: what a lane asks of the machine that runs it.

use std::cell::Cell;
use std::panic::Location;
use std::ptr::NonNull;
use std::rc::Rc;

/// Where in a kernel something happened.
pub type At = &'static Location<'static>;

/// The most words that a lane shows the others of its warp at once.
pub const WORDS: usize = 12;

/// What each lane of a warp showed: row `l` is lane `l`'s, zero where a lane was not asked.
pub type Shown = [[u32; WORDS]; 32];

/// Which lane of which block, and how many there are, in x, y and z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The block's index in the grid.
    pub block_idx: [u32; 3],
    /// The thread's index in the block.
    pub thread_idx: [u32; 3],
    /// Blocks of the grid.
    pub grid_dim: [u32; 3],
    /// Threads of a block.
    pub block_dim: [u32; 3],
}

/// A state space of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Space {
    /// Device memory.
    Global,
    /// The shared memory of the lane's block.
    Shared,
}

/// A barrier of a block: number, and threads that take part if not all of them do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Barrier {
    /// 0 to 15.
    pub id: u32,
    /// The number of threads that it waits for, a multiple of 32; all of the block if none is given.
    pub threads: Option<u32>,
}

/// One lane of a running kernel, as the machine that runs it provides it. `at` is the line in the
/// kernel, for what the machine has to report.
pub trait Lane {
    /// Which lane this is.
    fn place(&self) -> Place;

    /// Reads 1, 2, 4, 8 or 16 bytes at an address that is a multiple of their number.
    fn load(&self, space: Space, address: u64, bytes: &mut [u8], at: At);

    /// Writes 1, 2, 4, 8 or 16 bytes at an address that is a multiple of their number.
    fn store(&self, space: Space, address: u64, bytes: &[u8], at: At);

    /// Replaces the 4 or 8 bytes at `address` by what `change` makes of them, as one step; returns
    /// what was there. `change` may be called more than once.
    fn update(
        &self,
        space: Space,
        address: u64,
        bytes: usize,
        change: &mut dyn FnMut(u64) -> u64,
        at: At,
    ) -> u64;

    /// Waits for the other threads; returns for how many of them `predicate` held.
    fn barrier(&self, barrier: Barrier, predicate: bool, at: At) -> u32;

    /// Waits for the lanes of `mask`, all of which call this with the same `operation`; returns what
    /// each of them showed.
    fn exchange(&self, mask: u32, operation: &'static str, words: &[u32], at: At) -> Rc<Shown>;

    /// Starts a copy of `bytes` bytes from global to shared memory; those from `source_bytes` on are
    /// set to zero.
    fn copy_async(&self, shared: u32, global: u64, bytes: u32, source_bytes: u32, at: At);

    /// Closes the group of the copies started since the last group.
    fn commit_async(&self, at: At);

    /// Waits until at most `pending` groups of this lane are not done.
    fn wait_async(&self, pending: u32, at: At);

    /// The shared address where dynamic shared memory begins.
    fn dynamic_shared(&self) -> u32;

    /// The shared address of the static array `name` of `bytes` bytes, the same for all of the block.
    fn static_shared(&self, name: &'static str, bytes: u32, at: At) -> u32;
}

thread_local! {
    static CURRENT: Cell<Option<NonNull<dyn Lane>>> = const { Cell::new(None) };
}

/// Makes `lane` the one that kernel code on this thread runs as, until the next call; returns the one
/// before.
///
/// # Safety
/// - `lane` stays alive and in place until another, or none, takes its place.
pub unsafe fn set_current(lane: Option<NonNull<dyn Lane>>) -> Option<NonNull<dyn Lane>> {
    CURRENT.replace(lane)
}

/// Calls `ask` with the current lane and the line of the kernel: of the caller that is not in this
/// crate's functions.
///
/// # Panics
/// If kernel code is called outside a kernel.
#[track_caller]
pub(crate) fn lane<R>(ask: impl FnOnce(&dyn Lane, At) -> R) -> R {
    match CURRENT.get() {
        // SAFETY: `set_current`'s caller keeps the lane alive while it is the current one.
        Some(lane) => ask(unsafe { lane.as_ref() }, Location::caller()),
        None => panic!("kernel code was called outside a kernel: launch it on the emulator"),
    }
}
