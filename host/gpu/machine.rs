//! Machines that run kernels: devices of the CUDA driver, and the emulator.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use cuda_std::launch::Limits;

use super::Overhead;
use crate::Result;

/// Memory of a machine. Dropping it frees it behind all work given to the machine before.
pub(crate) trait Allocation: Send + Sync {
    /// The address of its first byte, a multiple of 256.
    fn address(&self) -> u64;
}

/// A launch whose contract has been checked.
#[cfg_attr(
    not(all(feature = "cuda", feature = "emulator")),
    expect(dead_code, reason = "each kind of device reads some of the fields")
)]
pub(crate) struct Launch<'a> {
    /// The name of the kernel.
    pub kernel: &'static str,
    /// The PTX that holds it; the program's own if none.
    pub ptx: Option<&'static str>,
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads per block, in x.
    pub block: u32,
    /// Bytes of dynamic shared memory per block.
    pub shared: u32,
    /// The address of each argument, in the kernel's order and types.
    pub arguments: &'a mut [*mut c_void],
    /// Runs the kernel's body as one lane on the host.
    pub lane: &'a (dyn Fn() + Sync),
}

/// The time that a kernel took, and what it had to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct KernelTime {
    /// The kernel.
    pub kernel: &'static str,
    /// Launches.
    pub launches: u64,
    /// Seconds on the device, all launches together.
    pub seconds: f64,
    /// Bytes that had to come from or go to memory at the least, all launches together; 0 where
    /// that was not counted.
    pub bytes: u64,
    /// Arithmetic operations that had to be done, a multiply-add as two, all launches together; 0
    /// where that was not counted.
    pub operations: u64,
}

/// Fills a piece of an upload, given its offset and its room.
pub(crate) type Fill<'a> = &'a (dyn Fn(usize, &mut [u8]) + Sync);

/// Takes a piece of a download, given its offset and its bytes.
pub(crate) type Take<'a> = &'a mut dyn FnMut(usize, &[u8]);

/// When something ran on a device, in seconds since it was opened.
pub(crate) type Span = (f64, f64);

/// Something that runs kernels. All work runs in the order in which it is given.
pub(crate) trait Machine: Send + Sync + fmt::Debug {
    /// The same device, whose work is in no order with that given to this one, if it can do more
    /// than one thing at a time.
    fn fork(&self) -> Result<Option<Arc<dyn Machine>>> {
        Ok(None)
    }

    /// The name, such as `cuda:0`.
    fn name(&self) -> &str;

    /// The device's own name, such as `NVIDIA H200`, if it has one.
    fn device_name(&self) -> Option<&str>;

    /// Limits of launches.
    fn limits(&self) -> Limits;

    /// Multiprocessors.
    fn multiprocessors(&self) -> u32;

    /// Whether kernels are taken from PTX.
    fn takes_ptx(&self) -> bool;

    /// Bytes of memory that are free.
    fn free_memory(&self) -> Result<u64>;

    /// Memory beside allocations.
    fn overhead(&self) -> Overhead;

    /// Allocates at least one byte.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Allocation>>;

    /// Copies `bytes` bytes, which `fill` provides in pieces whose offsets and lengths are
    /// multiples of `unit`, to `address`.
    fn upload(&self, address: u64, bytes: usize, unit: usize, fill: Fill<'_>) -> Result<()>;

    /// Copies `bytes` bytes from `address`, once all work before is done, to `take`, in pieces one
    /// after another.
    fn download(&self, address: u64, bytes: usize, take: Take<'_>) -> Result<()>;

    /// Sets `bytes` bytes.
    fn fill(&self, address: u64, value: u8, bytes: usize) -> Result<()>;

    /// Launches a kernel.
    ///
    /// # Safety
    /// - The arguments are those that the kernel takes, and the memory they name is there.
    unsafe fn launch(&self, launch: Launch<'_>) -> Result<()>;

    /// Waits until all work is done.
    fn synchronize(&self) -> Result<()>;

    /// Seconds spent compiling kernels so far.
    fn jit_seconds(&self) -> f64;

    /// The time of every kernel so far, once all work is done; of forks, those that their own
    /// `times` or end has added.
    fn times(&self) -> Result<Vec<KernelTime>>;

    /// Remembers from here on when kernels ran, or forgets it.
    fn watch(&self, _on: bool) {}

    /// When kernels ran since they have been watched, as far as [`times`](Self::times) knows them.
    fn spans(&self) -> Vec<Span> {
        Vec::new()
    }

    /// Whether an error has left it in a state in which no work can be done.
    fn has_failed(&self) -> bool;
}
