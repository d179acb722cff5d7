//! The stacks of lanes.

use std::io;

#[cfg(windows)]
use corosensei::stack::StackTebFields;
use corosensei::stack::{DefaultStack, Stack, StackPointer};

/// Bytes of a lane's stack. An overflow runs into a guard page.
const STACK: usize = 128 * 1024;

/// The stack of a lane.
///
/// Stacks begin at pages, so what the lanes of a warp have on top of theirs would compete for a few
/// sets of the processor's caches, and each switch would wait for memory. Each stack therefore
/// begins a few cache lines below its highest address, a different number for each lane of a warp.
pub(crate) struct LaneStack {
    stack: DefaultStack,
    base: StackPointer,
}

impl LaneStack {
    /// Cache lines between the beginnings of two stacks, in bytes, and the number of different
    /// beginnings.
    const STEP: usize = 128;
    const STEPS: usize = 32;

    /// The stack of lane `number`.
    ///
    /// # Errors
    /// If the system has no memory for it.
    pub(crate) fn new(number: usize) -> io::Result<Self> {
        let stack = DefaultStack::new(STACK + Self::STEP * Self::STEPS)?;
        let base = stack.base().get() - number % Self::STEPS * Self::STEP;
        let base = StackPointer::new(base).unwrap_or(stack.base());
        Ok(Self { stack, base })
    }
}

// SAFETY: the guard page is that of the inner stack. The base is a multiple of `STACK_ALIGNMENT`,
// as that of the inner stack and `STEP` are, and at least `STACK` bytes above the limit.
unsafe impl Stack for LaneStack {
    fn base(&self) -> StackPointer {
        self.base
    }

    fn limit(&self) -> StackPointer {
        self.stack.limit()
    }

    #[cfg(windows)]
    fn teb_fields(&self) -> StackTebFields {
        self.stack.teb_fields()
    }

    #[cfg(windows)]
    fn update_teb_fields(&mut self, stack_limit: usize, guaranteed_stack_bytes: usize) {
        self.stack.update_teb_fields(stack_limit, guaranteed_stack_bytes);
    }
}
