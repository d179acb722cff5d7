//! The scheduler of a block: resumes its lanes, each a coroutine.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::rc::Rc;

use corosensei::{Coroutine, CoroutineResult};
use cuda_std::host::{self, Lane, Place};

use crate::fault::{Fault, FaultKind, Site};
use crate::lane::Thread;
use crate::memory::Regions;
use crate::order::Draws;
use crate::panics::Panicked;
use crate::race::Clocks;
use crate::shared::Shared;
use crate::stack::LaneStack;
use crate::wait::Waits;

/// The parameters of a launch, common to its blocks.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub kernel: &'static str,
    pub grid: [u32; 3],
    pub threads: u32,
    /// Bytes of dynamic shared memory.
    pub dynamic: u32,
    /// Maximum bytes of shared memory per block.
    pub shared_limit: u32,
    pub seed: u64,
    pub regions: Regions,
}

/// The state that the lanes of a block share.
pub(crate) struct Block {
    pub kernel: &'static str,
    pub regions: Regions,
    /// The allocation of the last access, a good guess for the next.
    pub last_region: Cell<usize>,
    pub shared: RefCell<Shared>,
    pub waits: RefCell<Waits>,
    pub clocks: RefCell<Clocks>,
    draws: Cell<Draws>,
    fault: RefCell<Option<Fault>>,
}

impl Block {
    /// Draws a number below `count` from the block's sequence.
    pub fn draw(&self, count: u64) -> u64 {
        let mut draws = self.draws.get();
        let drawn = draws.below(count);
        self.draws.set(draws);
        drawn
    }

    /// Stops the block with a fault; the first report wins.
    pub fn report(&self, fault: Fault) {
        self.fault.borrow_mut().get_or_insert(fault);
    }

    /// Whether a fault was reported: no lane is resumed any more, but to unwind it.
    pub fn has_failed(&self) -> bool {
        self.fault.borrow().is_some()
    }

    fn next(&self) -> Option<u32> {
        let mut draws = self.draws.get();
        let next = self.waits.borrow_mut().next(&mut draws);
        self.draws.set(draws);
        next
    }
}

/// Runs blocks of a launch one after another on its thread.
pub(crate) struct Runner<E> {
    launch: Launch,
    entry: E,
    block: Rc<Block>,
    threads: Vec<Rc<Thread>>,
    stacks: Vec<LaneStack>,
}

type Fiber = Coroutine<(), (), Result<(), Panicked>, LaneStack>;

impl<E> Drop for Runner<E> {
    fn drop(&mut self) {
        LaneStack::give_back(std::mem::take(&mut self.stacks));
    }
}

impl<E: Fn() + Copy + 'static> Runner<E> {
    /// A runner whose lanes each call `entry`.
    pub fn new(launch: &Launch, entry: E) -> Result<Self, Fault> {
        let stacks = LaneStack::take(launch.threads as usize).map_err(|error| {
            let what = format!("no memory for the stacks of {} threads: {error}", launch.threads);
            Fault { kernel: Some(launch.kernel), ..Fault::outside(FaultKind::Stacks, what) }
        })?;
        let block = Rc::new(Block {
            kernel: launch.kernel,
            regions: launch.regions.clone(),
            last_region: Cell::new(0),
            shared: RefCell::new(Shared::new(launch.shared_limit)),
            waits: RefCell::new(Waits::new()),
            clocks: RefCell::default(),
            draws: Cell::new(Draws::new(launch.seed, 0)),
            fault: RefCell::new(None),
        });
        let place = |index| Place {
            block_idx: [0; 3],
            thread_idx: [index, 0, 0],
            grid_dim: launch.grid,
            block_dim: [launch.threads, 1, 1],
        };
        let thread = |index| Rc::new(Thread::new(&block, index, place(index)));
        let threads = (0..launch.threads).map(thread).collect();
        Ok(Self { launch: launch.clone(), entry, block, threads, stacks })
    }

    /// Runs block `number` of the grid, in order of x, then y, then z.
    pub fn run(&mut self, number: u64) -> Result<(), Fault> {
        let [x, y, _] = self.launch.grid.map(u64::from);
        let index = [number % x, number / x % y, number / (x * y)].map(|index| index as u32);
        let count = self.launch.threads;
        self.block.shared.borrow_mut().reset(self.launch.dynamic);
        self.block.waits.borrow_mut().reset(count);
        self.block.clocks.borrow_mut().reset(count as usize);
        self.block.draws.set(Draws::new(self.launch.seed, number));
        self.threads.iter().for_each(|thread| thread.reset(index));

        let entry = self.entry;
        let stacks = self.stacks.drain(..);
        let mut fibers: Vec<Fiber> = stacks
            .zip(&self.threads)
            .map(|(stack, thread)| {
                let thread = Rc::clone(thread);
                Coroutine::with_stack(stack, move |yielder, ()| {
                    thread.enter(yielder);
                    catch_unwind(AssertUnwindSafe(entry)).map_err(|payload| {
                        if thread.has_failed() {
                            // `force_unwind` below, which must get its own payload back.
                            resume_unwind(payload)
                        }
                        Panicked::new(&*payload)
                    })
                })
            })
            .collect();
        while !self.block.has_failed() {
            let Some(next) = self.block.next() else { break };
            self.resume(&mut fibers[next as usize], next, index);
        }
        if !self.block.has_failed() {
            self.report_deadlock(index);
        }
        for mut fiber in fibers {
            if !fiber.done() {
                // After a fault: drops the values on the stack of the lane.
                fiber.force_unwind();
            }
            self.stacks.push(fiber.into_stack());
        }
        self.block.fault.take().map_or(Ok(()), Err)
    }

    /// Resumes one lane until it waits or ends.
    fn resume(&self, fiber: &mut Fiber, index: u32, block: [u32; 3]) {
        let lane: NonNull<dyn Lane> = NonNull::from(&*self.threads[index as usize]);
        // SAFETY: the lane is kept in `threads`, and is the current one only until the call below.
        let before = unsafe { host::set_current(Some(lane)) };
        let result = fiber.resume(());
        // SAFETY: the caller that set the previous lane keeps it alive.
        unsafe { host::set_current(before) };
        let CoroutineResult::Return(ended) = result else { return };
        match ended {
            Ok(()) => self.block.waits.borrow_mut().finish(index),
            Err(panicked) => self.block.report(Fault {
                kind: FaultKind::Panic,
                kernel: Some(self.launch.kernel),
                block: Some(block),
                threads: vec![index],
                site: panicked.site,
                what: format!("panicked: {}", panicked.message),
            }),
        }
    }

    fn report_deadlock(&self, block: [u32; 3]) {
        if let Some(deadlock) = self.block.waits.borrow().deadlock() {
            self.block.report(Fault {
                kind: deadlock.finding.kind,
                kernel: Some(self.launch.kernel),
                block: Some(block),
                threads: deadlock.finding.others,
                site: Some(Site::from(deadlock.at)),
                what: deadlock.finding.what,
            });
        }
    }
}
