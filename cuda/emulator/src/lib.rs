//! An emulator that runs kernels on the CPU, unchanged, and reports their faults.
//!
//! Each thread of a block is a coroutine. The threads of a block take turns on one host thread, in
//! an order drawn from a seed, and blocks run in parallel. The emulator checks every machine
//! operation: memory is allocated, aligned and written before it is read; all threads reach each
//! barrier and all lanes each exchange; accesses to shared memory do not race. `docs/emulator.md`
//! lists what is not modelled.
//!
//! ```
//! use cuda_std::prelude::*;
//! use emulator::Emulator;
//!
//! /// Adds 1 to each value.
//! ///
//! /// # Safety
//! /// `values` holds n values.
//! #[kernel(unsafe, block = 64)]
//! pub unsafe fn increment(values: GlobalMut<u32>, n: u32) {
//!     let i = thread::index_1d();
//!     if i < n {
//!         values.set(i as usize, values.get(i as usize) + 1);
//!     }
//! }
//!
//! # fn main() -> Result<(), emulator::Fault> {
//! let emulator = Emulator::new();
//! let values = emulator.upload(&[1u32, 2, 3]);
//! emulator.launch::<increment>([1, 1, 1], 64, (values.view(), 3))?;
//! assert_eq!(values.values::<u32>()?, [2, 3, 4]);
//!
//! let fault = emulator.launch::<increment>([1, 1, 1], 64, (values.view(), 4)).unwrap_err();
//! assert_eq!(fault.kind, emulator::FaultKind::OutOfBounds);
//! # Ok(())
//! # }
//! ```

// Compiles and runs the code in the README of `cuda_std` as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../../cuda_std/README.md")]
struct CudaStd;

mod block;
mod fault;
mod lane;
mod memory;
mod order;
mod panics;
mod race;
mod shared;
mod stack;
mod wait;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cuda_std::launch::{Kernel, Limits};
use cuda_std::memory::Plain;

use crate::block::{Launch, Runner};
pub use crate::fault::{Fault, FaultKind, Site};
pub use crate::memory::Allocation;
use crate::memory::Memory;
use crate::order::BlockOrder;

/// Maximum number of lanes that run at once. Each has a stack, and the system maps a bounded number
/// of stacks.
const LANES_AT_ONCE: usize = 16_384;

/// An emulated device: memory, launch limits, and the seed of the order of lanes and blocks.
pub struct Emulator {
    seed: u64,
    limits: Limits,
    memory: Arc<Memory>,
}

impl fmt::Debug for Emulator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Emulator")
            .field("seed", &self.seed)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Default for Emulator {
    fn default() -> Self {
        Self::with_seed(0)
    }
}

impl Emulator {
    /// A device with seed 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// A device whose lanes and blocks run in an order drawn from `seed`. Within a block the order
    /// depends only on the seed, the block's index and the kernel, so a failure repeats.
    pub fn with_seed(seed: u64) -> Self {
        let limits = Limits { block: 1024, grid: [i32::MAX as u32, 65_535, 65_535], shared: 99 * 1024 };
        Self { seed, limits, memory: Memory::new() }
    }

    /// Sets the launch limits. The default is the smallest, those of compute capability 8.6, 8.9
    /// and 12.0.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        Self { limits, ..self }
    }

    /// The launch limits. Static shared memory counts towards the limit of shared memory.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Allocates `bytes` bytes of device memory, unwritten.
    pub fn allocate(&self, bytes: usize) -> Allocation {
        self.memory.allocate(bytes)
    }

    /// Allocates device memory and copies `values` to it.
    pub fn upload<T: Plain>(&self, values: &[T]) -> Allocation {
        let allocation = self.allocate(size_of_val(values));
        allocation.set_values(values);
        allocation
    }

    /// Runs a kernel to its end. The first fault ends the launch; memory keeps all writes up to
    /// then.
    ///
    /// # Errors
    /// A fault of the kernel or of the launch.
    pub fn launch<K: Kernel>(
        &self,
        grid: [u32; 3],
        block: u32,
        arguments: K::Arguments,
    ) -> Result<(), Fault> {
        let contract = K::contract(&arguments);
        contract.check(K::NAME, grid, block, &self.limits)?;
        // SAFETY: the current lane is a `Thread`, which checks every access, exchange and barrier.
        // So any arguments will do, by the promise of `Kernel`.
        self.launch_entry(K::NAME, grid, block, contract.shared, &move || unsafe { K::run(arguments) })
    }

    /// As [`launch`](Self::launch), for a kernel of unknown type: `entry` runs it as one lane. The
    /// caller has checked the contract.
    ///
    /// # Errors
    /// A fault of the kernel.
    pub fn launch_entry(
        &self,
        kernel: &'static str,
        grid: [u32; 3],
        block: u32,
        shared: u32,
        entry: &(dyn Fn() + Sync),
    ) -> Result<(), Fault> {
        // SAFETY: lanes hold the entry; all have ended or are dropped when `run_blocks` returns.
        let entry: &'static (dyn Fn() + Sync) = unsafe { std::mem::transmute(entry) };
        let launch = Launch {
            kernel,
            grid,
            threads: block,
            dynamic: shared,
            shared_limit: self.limits.shared,
            seed: self.seed,
            regions: self.memory.regions(),
        };
        panics::prepare();
        self.run_blocks(&launch, entry)
    }

    fn run_blocks<E>(&self, launch: &Launch, entry: E) -> Result<(), Fault>
    where
        E: Fn() + Copy + Send + Sync + 'static,
    {
        let blocks = launch.grid.map(u64::from).into_iter().product();
        let order = BlockOrder::new(blocks, launch.seed);
        let next = AtomicU64::new(0);
        // The fault of the earliest block wins. Blocks before it run to their end, so the result
        // does not depend on the number of host threads. Blocks from position `end` on are not
        // started.
        let end = AtomicU64::new(blocks);
        let first: Mutex<Option<(u64, Fault)>> = Mutex::new(None);
        let report = |position: u64, fault: Fault| {
            end.fetch_min(position, Ordering::Relaxed);
            let mut first = first.lock().unwrap_or_else(PoisonError::into_inner);
            if first.as_ref().is_none_or(|&(other, _)| position < other) {
                *first = Some((position, fault));
            }
        };
        let work = || {
            let mut runner = match Runner::new(launch, entry) {
                Ok(runner) => runner,
                Err(fault) => return report(0, fault),
            };
            loop {
                let position = next.fetch_add(1, Ordering::Relaxed);
                if position >= end.load(Ordering::Relaxed) {
                    break;
                }
                if let Err(fault) = runner.run(order.block(position)) {
                    report(position, fault);
                }
            }
        };
        let most = (LANES_AT_ONCE / launch.threads as usize).max(1);
        let workers = rayon::current_num_threads().min(most).min(usize::try_from(blocks).unwrap_or(most));
        if workers == 1 {
            // On the caller's thread, so that a debugger shows the launch on the stack.
            work();
        } else {
            rayon::scope(|scope| (0..workers).for_each(|_| scope.spawn(|_| work())));
        }
        match first.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some((_, fault)) => Err(fault),
            None => Ok(()),
        }
    }
}
