//! One lane of a running block: what kernel code asks of the machine.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::ptr::NonNull;
use std::rc::Rc;

use corosensei::Yielder;
use cuda_std::host::{At, Barrier, Lane, Place, Shown, Space, WORDS};

use crate::block::Block;
use crate::fault::{Fault, FaultKind, Finding, Site};
use crate::memory;

/// Accesses after which a lane lets others run, so that one that waits for another in a loop ends.
const ACCESSES_AT_ONCE: u32 = 4096;

/// An asynchronous copy that was started and not waited for.
#[derive(Debug)]
struct Copy {
    shared: u32,
    bytes: [u8; 16],
    count: usize,
    at: At,
}

/// A lane, between the block it belongs to and the coroutine it runs on.
pub(crate) struct Thread {
    block: Rc<Block>,
    index: u32,
    place: Cell<Place>,
    /// The coroutine's way out; there while it runs.
    yielder: Cell<Option<NonNull<Yielder<(), ()>>>>,
    /// Copies that are in no group yet.
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

    /// Begins a block.
    pub fn reset(&self, block_idx: [u32; 3]) {
        self.place.set(Place { block_idx, ..self.place.get() });
        self.copies.borrow_mut().clear();
        self.groups.borrow_mut().clear();
        self.accesses.set(0);
    }

    /// The lane begins to run as the coroutine of this yielder.
    pub fn enter(&self, yielder: &Yielder<(), ()>) {
        self.yielder.set(Some(NonNull::from(yielder)));
    }

    /// Returns to the scheduler until it lets the lane go on.
    fn suspend(&self) {
        self.accesses.set(0);
        if let Some(yielder) = self.yielder.get() {
            // SAFETY: the yielder lives on the stack of this lane's coroutine, on which this runs.
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
            Space::Shared => {
                let clocks = self.block.clocks.borrow();
                let result = self.block.shared.borrow_mut().load(address, bytes, self.index, at, &clocks);
                drop(clocks);
                self.demand(result, at);
            }
        }
    }

    fn store(&self, space: Space, address: u64, bytes: &[u8], at: At) {
        self.count_access();
        match space {
            Space::Global => self.global(address, bytes.len(), "write", at, |region, offset| {
                region.write(offset, bytes);
                Ok(())
            }),
            Space::Shared => {
                let clocks = self.block.clocks.borrow();
                let result = self.block.shared.borrow_mut().store(address, bytes, self.index, at, &clocks);
                drop(clocks);
                self.demand(result, at);
            }
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
        // Here others may come between, so that loops of compare-and-exchange meet each other.
        if self.block.draw(4) == 0 {
            self.step_aside();
        }
        match space {
            Space::Global => self.global(address, bytes, "atomic update", at, |region, offset| {
                region.update(offset, bytes, change)
            }),
            Space::Shared => {
                let clocks = self.block.clocks.borrow();
                let mut shared = self.block.shared.borrow_mut();
                let result = shared.update(address, bytes, change, self.index, at, &clocks);
                drop((clocks, shared));
                self.demand(result, at)
            }
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
        let result =
            waits.borrow_mut().exchange(self.index, mask, operation, words, at, &mut clocks.borrow_mut());
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
        let clocks = self.block.clocks.borrow();
        let result = self.block.shared.borrow_mut().begin_copy(shared, count, self.index, at, &clocks);
        drop(clocks);
        self.demand(result, at);
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
                let clocks = self.block.clocks.borrow();
                let bytes = &bytes[..count];
                let result = self.block.shared.borrow_mut().end_copy(shared, bytes, self.index, at, &clocks);
                drop(clocks);
                self.demand(result, at);
            }
        }
    }

    fn dynamic_shared(&self) -> u32 {
        crate::shared::DYNAMIC
    }

    fn static_shared(&self, name: &'static str, bytes: u32, at: At) -> u32 {
        let result = self.block.shared.borrow_mut().array(name, bytes);
        self.demand(result, at)
    }
}
