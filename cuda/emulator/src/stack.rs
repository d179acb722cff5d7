//! The stacks of lanes.

use std::io;
use std::sync::{Mutex, PoisonError};

use corosensei::stack::{DefaultStack, Stack, StackPointer};

use crate::LANES_AT_ONCE;

/// Bytes of a lane's stack. An overflow runs into a guard page.
const STACK: usize = 128 * 1024;

/// Lanes whose stacks begin at different places of a page of memory.
const STAGGERED: usize = 32;

/// Bytes from the beginning of one stack in its page to that of the next, an odd number of lines of
/// a cache.
const STEP: usize = 9 * 64;

/// A stack that begins below the end of its pages. Lanes take turns within a few lines of code, at
/// the same depth of their stacks. Whole pages would place all of them in the same few sets of the
/// cache.
pub(crate) struct LaneStack {
    pages: DefaultStack,
    base: StackPointer,
}

/// Stacks without a lane, for all devices: mapping and unmapping them takes longer than a small
/// kernel.
static UNUSED: Mutex<Vec<LaneStack>> = Mutex::new(Vec::new());

impl LaneStack {
    /// Takes `count` unused stacks, and allocates more if there are too few.
    pub fn take(count: usize) -> io::Result<Vec<Self>> {
        let mut stacks = {
            let mut unused = UNUSED.lock().unwrap_or_else(PoisonError::into_inner);
            let from = unused.len().saturating_sub(count);
            unused.split_off(from)
        };
        for number in stacks.len()..count {
            stacks.push(Self::new(number)?);
        }
        Ok(stacks)
    }

    /// Returns stacks, for other lanes.
    pub fn give_back(stacks: Vec<Self>) {
        let mut unused = UNUSED.lock().unwrap_or_else(PoisonError::into_inner);
        unused.extend(stacks);
        unused.truncate(LANES_AT_ONCE);
    }

    fn new(number: usize) -> io::Result<Self> {
        let offset = number % STAGGERED * STEP;
        let pages = DefaultStack::new(STACK + STAGGERED * STEP)?;
        let base = StackPointer::new(pages.base().get() - offset).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { pages, base })
    }
}

// SAFETY: the memory between `limit` and `base` is that of `pages` but for its highest bytes, so
// it is as valid, and `base` is a multiple of 64.
unsafe impl Stack for LaneStack {
    fn base(&self) -> StackPointer {
        self.base
    }

    fn limit(&self) -> StackPointer {
        self.pages.limit()
    }

    #[cfg(windows)]
    fn teb_fields(&self) -> corosensei::stack::StackTebFields {
        self.pages.teb_fields()
    }

    #[cfg(windows)]
    fn update_teb_fields(&mut self, stack_limit: usize, guaranteed_stack_bytes: usize) {
        self.pages.update_teb_fields(stack_limit, guaranteed_stack_bytes);
    }
}
