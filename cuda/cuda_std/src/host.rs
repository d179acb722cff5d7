//! Kernels on the host: the interface between a lane and the machine that runs it.

use std::cell::Cell;
use std::panic::Location;
use std::ptr::NonNull;
use std::rc::Rc;

/// A line of a kernel.
pub type At = &'static Location<'static>;

/// Maximum number of words that a lane shows to its warp in one exchange.
pub const WORDS: usize = 12;

/// The words shown in an exchange: row `l` is lane `l`'s, zero for lanes outside the mask.
pub type Shown = [[u32; WORDS]; 32];

/// Position of a lane in the launch, in x, y and z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The block's index in the grid.
    pub block_idx: [u32; 3],
    /// The thread's index in the block.
    pub thread_idx: [u32; 3],
    /// Blocks per grid.
    pub grid_dim: [u32; 3],
    /// Threads per block.
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

/// A barrier of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Barrier {
    /// Number of the barrier, 0 to 15.
    pub id: u32,
    /// Threads that it waits for, a multiple of 32; `None` for all of the block.
    pub threads: Option<u32>,
}

/// One lane of a running kernel. The machine that runs kernels implements this; it names the line
/// `at` in its reports.
pub trait Lane {
    /// The position of this lane.
    fn place(&self) -> Place;

    /// Reads 1, 2, 4, 8 or 16 bytes at an address aligned to their number.
    fn load(&self, space: Space, address: u64, bytes: &mut [u8], at: At);

    /// Writes 1, 2, 4, 8 or 16 bytes at an address aligned to their number.
    fn store(&self, space: Space, address: u64, bytes: &[u8], at: At);

    /// Applies `change` atomically to the 4 or 8 bytes at `address`; returns the old value. May
    /// call `change` more than once.
    fn update(
        &self,
        space: Space,
        address: u64,
        bytes: usize,
        change: &mut dyn FnMut(u64) -> u64,
        at: At,
    ) -> u64;

    /// Waits at a barrier; returns the number of its threads whose `predicate` holds.
    fn barrier(&self, barrier: Barrier, predicate: bool, at: At) -> u32;

    /// Shows `words` to the lanes of `mask` and waits for theirs; returns the words of all of them.
    /// All lanes of the mask call this with the same `operation`.
    fn exchange(&self, mask: u32, operation: &'static str, words: &[u32], at: At) -> Rc<Shown>;

    /// Starts a copy of `source_bytes` bytes from global to shared memory, followed by zeros up to
    /// `bytes`.
    fn copy_async(&self, shared: u32, global: u64, bytes: u32, source_bytes: u32, at: At);

    /// Closes a group of all copies started since the last group.
    fn commit_async(&self, at: At);

    /// Waits until at most `pending` groups of this lane are unfinished.
    fn wait_async(&self, pending: u32, at: At);

    /// The shared address of dynamic shared memory.
    fn dynamic_shared(&self) -> u32;

    /// The shared address of the static array `name` of `bytes` bytes, one per block.
    fn static_shared(&self, name: &'static str, bytes: u32, at: At) -> u32;
}

thread_local! {
    static CURRENT: Cell<Option<NonNull<dyn Lane>>> = const { Cell::new(None) };
}

/// Sets the lane that kernel code on this thread runs as; returns the previous one.
///
/// # Safety
/// - `lane` stays alive and in place until the next call.
pub unsafe fn set_current(lane: Option<NonNull<dyn Lane>>) -> Option<NonNull<dyn Lane>> {
    CURRENT.replace(lane)
}

/// Whether this thread runs as a lane.
pub fn runs_lane() -> bool {
    CURRENT.get().is_some()
}

/// Calls `ask` with the current lane and the line of the kernel, the first caller outside this
/// crate.
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
