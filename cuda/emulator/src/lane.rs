//! A lane of a running block: implements the machine operations of kernel code.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::rc::Rc;

use corosensei::Yielder;
use cuda_std::host::{At, Barrier, Lane, Place, Shown, Space, WORDS};

use crate::block::Block;
use crate::fault::{Fault, FaultKind, Finding, Site};
use crate::memory;
use crate::race::Caller;
use crate::shared::{DYNAMIC, Shared};
use crate::wait::Exchange;

/// Accesses after which a lane lets others run, so that a lane that spins on memory ends.
const ACCESSES_AT_ONCE: u32 = 4096;

/// An unfinished asynchronous copy.
#[derive(Debug)]
struct Copy {
    shared: u32,
    bytes: [u8; 16],
    count: usize,
    at: At,
}

/// A lane, with its block and the coroutine that it runs on.
pub(crate) struct Thread {
    block: Rc<Block>,
    index: u32,
    place: Cell<Place>,
    /// Suspends the coroutine; set while the coroutine runs.
    yielder: Cell<Option<NonNull<Yielder<(), ()>>>>,
    /// Copies without a group.
    copies: RefCell<Vec<Copy>>,
    groups: RefCell<VecDeque<Vec<Copy>>>,
    accesses: Cell<u32>,
}

impl Thread {
    pub fn new(block: &Rc<Block>, index: u32, place: Place) -> Self {
        Self {
            block: Rc::clone(block),
            index,
            place: Cell::new(place),
            yielder: Cell::new(None),
            copies: RefCell::default(),
            groups: RefCell::default(),
            accesses: Cell::new(0),
        }
    }

    /// Starts a block.
    pub fn reset(&self, block_idx: [u32; 3]) {
        self.place.set(Place { block_idx, ..self.place.get() });
        self.copies.borrow_mut().clear();
        self.groups.borrow_mut().clear();
        self.accesses.set(0);
    }

    /// Starts the lane on the coroutine of `yielder`.
    pub fn enter(&self, yielder: &Yielder<(), ()>) {
        self.yielder.set(Some(NonNull::from(yielder)));
    }

    /// Whether the block has failed.
    pub fn has_failed(&self) -> bool {
        self.block.has_failed()
    }

    /// Returns to the scheduler until it resumes the lane.
    fn suspend(&self) {
        self.accesses.set(0);
        if let Some(yielder) = self.yielder.get() {
            // SAFETY: the yielder is on the stack of this lane's coroutine, which runs this.
            unsafe { yielder.as_ref() }.suspend(());
        }
    }

    fn step_aside(&self) {
        self.block.waits.borrow_mut().step_aside(self.index);
        self.suspend();
    }

    fn count_access(&self) {
        let accesses = self.accesses.get() + 1;
        self.accesses.set(accesses);
        if accesses == ACCESSES_AT_ONCE {
            self.step_aside();
        }
    }

    /// Ends the launch with a fault; the coroutine unwinds from here.
    fn fail(&self, finding: Finding, at: At) -> ! {
        let Finding { kind, others, what } = finding;
        let mut threads = vec![self.index];
        threads.extend(others);
        threads.sort_unstable();
        self.block.report(Fault {
            kind,
            kernel: Some(self.block.kernel),
            block: Some(self.place.get().block_idx),
            threads,
            site: Some(Site::from(at)),
            what,
        });
        loop {
            self.suspend();
        }
    }

    fn demand<T>(&self, result: Result<T, Finding>, at: At) -> T {
        result.unwrap_or_else(|finding| self.fail(finding, at))
    }

    fn global<T>(
        &self,
        address: u64,
        bytes: usize,
        doing: &str,
        at: At,
        access: impl FnOnce(&memory::Region, usize) -> Result<T, usize>,
    ) -> T {
        let Block { regions, last_region, .. } = &*self.block;
        let (number, offset) =
            self.demand(memory::find(regions, last_region.get(), address, bytes, doing), at);
        last_region.set(number);
        let region = &regions[number];
        let result = access(region, offset);
        self.demand(result.map_err(|byte| region.never_written(offset, bytes, byte)), at)
    }

    fn shared<T>(&self, at: At, access: impl FnOnce(&mut Shared, Caller<'_>) -> Result<T, Finding>) -> T {
        let clocks = self.block.clocks.borrow();
        let caller = Caller { thread: self.index, at, clocks: &clocks };
        let result = access(&mut self.block.shared.borrow_mut(), caller);
        // `demand` may suspend this lane, and others need both.
        drop(clocks);
        self.demand(result, at)
    }
}

impl Lane for Thread {
    fn place(&self) -> Place {
        self.place.get()
    }

    fn load(&self, space: Space, address: u64, bytes: &mut [u8], at: At) {
        self.count_access();
        match space {
            Space::Global => {
                self.global(address, bytes.len(), "read", at, |region, offset| region.read(offset, bytes));
            }
            Space::Shared => self.shared(at, |shared, caller| shared.load(address, bytes, caller)),
        }
    }

    fn store(&self, space: Space, address: u64, bytes: &[u8], at: At) {
        self.count_access();
        match space {
            Space::Global => self.global(address, bytes.len(), "write", at, |region, offset| {
                region.write(offset, bytes);
                Ok(())
            }),
            Space::Shared => self.shared(at, |shared, caller| shared.store(address, bytes, caller)),
        }
    }

    fn update(
        &self,
        space: Space,
        address: u64,
        bytes: usize,
        change: &mut dyn FnMut(u64) -> u64,
        at: At,
    ) -> u64 {
        // Let others run now and then, so that loops of compare-and-exchange conflict.
        if self.block.draw(4) == 0 {
            self.step_aside();
        }
        match space {
            Space::Global => self.global(address, bytes, "atomic update", at, |region, offset| {
                region.update(offset, bytes, change)
            }),
            Space::Shared => self.shared(at, |shared, caller| shared.update(address, bytes, change, caller)),
        }
    }

    fn barrier(&self, barrier: Barrier, predicate: bool, at: At) -> u32 {
        let Block { waits, clocks, .. } = &*self.block;
        let result = waits.borrow_mut().barrier(self.index, barrier, predicate, at, &mut clocks.borrow_mut());
        self.demand(result, at);
        self.suspend();
        waits.borrow().count(self.index)
    }

    fn exchange(&self, mask: u32, operation: &'static str, words: &[u32], at: At) -> Rc<Shown> {
        let Block { waits, clocks, .. } = &*self.block;
        let exchange = Exchange { mask, operation, at };
        let result = waits.borrow_mut().exchange(self.index, exchange, words, &mut clocks.borrow_mut());
        self.demand(result, at);
        self.suspend();
        let shown = waits.borrow_mut().take_shown(self.index);
        shown.unwrap_or_else(|| Rc::new([[0; WORDS]; 32]))
    }

    fn copy_async(&self, shared: u32, global: u64, bytes: u32, source_bytes: u32, at: At) {
        self.count_access();
        let (count, source) = (bytes as usize, source_bytes as usize);
        if !matches!(count, 4 | 8 | 16) || source > count {
            let what = format!("asynchronous copy of {bytes} bytes, {source_bytes} of them read");
            self.fail(Finding::new(FaultKind::OutOfBounds, what), at);
        }
        if !global.is_multiple_of(u64::from(bytes)) {
            let what = format!(
                "asynchronous copy of {bytes} bytes from device address {global:#x}, \
                 not a multiple of {bytes}"
            );
            self.fail(Finding::new(FaultKind::Misaligned, what), at);
        }
        let mut copy = Copy { shared, bytes: [0; 16], count, at };
        if source > 0 {
            let read = &mut copy.bytes[..source];
            self.global(global, source, "asynchronous copy", at, |region, offset| region.read(offset, read));
        }
        self.shared(at, |memory, caller| memory.begin_copy(shared, count, caller));
        self.copies.borrow_mut().push(copy);
    }

    fn commit_async(&self, _at: At) {
        self.groups.borrow_mut().push_back(self.copies.take());
    }

    fn wait_async(&self, pending: u32, _at: At) {
        loop {
            let mut groups = self.groups.borrow_mut();
            if groups.len() <= pending as usize {
                break;
            }
            let done = groups.pop_front().unwrap_or_default();
            drop(groups);
            for Copy { shared, bytes, count, at } in done {
                self.shared(at, |memory, caller| memory.end_copy(shared, &bytes[..count], caller));
            }
        }
    }

    fn dynamic_shared(&self) -> u32 {
        DYNAMIC
    }

    fn static_shared(&self, name: &'static str, bytes: u32, at: At) -> u32 {
        let result = self.block.shared.borrow_mut().array(name, bytes);
        self.demand(result, at)
    }
}
