//! Machines that run kernels: devices of the CUDA driver, and the emulator.

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use cuda_std::launch::Limits;
use serde::Serialize;

use super::Overhead;
use crate::Result;

/// Memory of a machine. Dropping it frees the memory after all work queued before.
pub(crate) trait Allocation: Send + Sync {
    /// The address of its first byte, a multiple of 256.
    fn address(&self) -> u64;
}

/// A launch with a checked contract.
#[cfg_attr(
    not(all(feature = "cuda", feature = "emulator")),
    expect(dead_code, reason = "each kind of device reads some of the fields")
)]
pub(crate) struct Launch<'a> {
    /// The name of the kernel.
    pub kernel: &'static str,
    /// The PTX of the kernel; the program's own if none.
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

/// The time and the least work of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct KernelTime {
    /// The kernel.
    pub kernel: &'static str,
    /// Launches.
    pub launches: u64,
    /// Seconds on the device, over all launches.
    pub seconds: f64,
    /// Minimum bytes to and from memory, over all launches; 0 if not counted.
    pub bytes: u64,
    /// Minimum number of arithmetic operations, a multiply-add as two, over all launches; 0 if not
    /// counted.
    pub operations: u64,
}

impl KernelTime {
    /// Adds the times of `more` kernels to `sums`.
    pub(crate) fn add_all(sums: &mut Vec<Self>, more: Vec<Self>) {
        for time in more {
            match sums.iter_mut().find(|sum| sum.kernel == time.kernel) {
                Some(sum) => {
                    sum.launches += time.launches;
                    sum.seconds += time.seconds;
                    sum.bytes += time.bytes;
                    sum.operations += time.operations;
                }
                None => sums.push(time),
            }
        }
    }
}

/// Fills a piece of an upload, given its offset and its memory.
pub(crate) type Fill<'a> = &'a (dyn Fn(usize, &mut [u8]) + Sync);

/// Start and end of a kernel, in seconds since the device was opened.
pub(crate) type Span = (f64, f64);

/// A backend that runs kernels. All work runs in the order of submission.
pub(crate) trait Machine: Send + Sync + fmt::Debug {
    /// A second stream on the same device, unordered with this one; none if the device has one
    /// stream. With `first`, the device starts blocks of its kernels before waiting blocks of other
    /// streams.
    fn fork(&self, _first: bool) -> Result<Option<Arc<dyn Machine>>> {
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

    /// Whether kernels come from PTX.
    fn takes_ptx(&self) -> bool;

    /// Free bytes of memory.
    fn free_memory(&self) -> Result<u64>;

    /// Bytes of freed memory that wait for reuse. Tells faster than
    /// [`free_memory`](Self::free_memory), which asks the device.
    fn unused_memory(&self) -> Result<u64>;

    /// Memory beyond allocations.
    fn overhead(&self) -> Overhead;

    /// Allocates at least one byte.
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Allocation>>;

    /// Copies `bytes` bytes to `address`. `fill` provides them in pieces, on several threads;
    /// offsets and lengths are multiples of `unit`.
    fn upload(&self, address: u64, bytes: usize, unit: usize, fill: Fill<'_>) -> Result<()>;

    /// Waits for all earlier work, then copies the bytes from `address` on to `to`.
    fn download(&self, address: u64, to: &mut [u8]) -> Result<()>;

    /// The number of the CUDA device; none of another.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "asked of CUDA devices"))]
    fn ordinal(&self) -> Option<u32> {
        None
    }

    /// Lets `peer` copy from this device by a link between them, if there is one.
    fn allow(&self, _peer: &dyn Machine) -> Result<()> {
        Ok(())
    }

    /// Whether kernels of this device may read memory of `peer`, if that [allows](Self::allow) it:
    /// by a link between them, or as the same device.
    fn reads(&self, _peer: &dyn Machine) -> Result<bool> {
        Ok(false)
    }

    /// Copies `bytes` bytes at the address `from` of `peer`, whose work on them is done, to `to`.
    /// None may follow before the copy is done. Through the host, unless the devices have a link.
    fn copy_from(&self, to: u64, peer: &dyn Machine, from: u64, bytes: usize) -> Result<()> {
        copy_through_host(self, to, peer, from, bytes)
    }

    /// Sets `bytes` bytes to `value`.
    fn fill(&self, address: u64, value: u8, bytes: usize) -> Result<()>;

    /// Checks that memory of another library is memory of this device, as far as can be told.
    fn check_lent(&self, address: u64, bytes: usize) -> Result<()>;

    /// Waits for a stream of another library, by the driver's handle.
    ///
    /// # Safety
    /// - The handle is that of an existing stream of this device, or 0 to 2.
    unsafe fn wait_for(&self, stream: u64) -> Result<()>;

    /// Memory of another library as an allocation, which is not freed. The emulator copies it.
    ///
    /// # Safety
    /// - The memory holds `bytes` bytes and does not change while the allocation exists.
    unsafe fn borrow(&self, address: u64, bytes: usize) -> Result<Box<dyn Allocation>>;

    /// Ends the use of `bytes` bytes of borrowed memory at `address` that kernels have written as
    /// `borrowed`. The emulator copies them back.
    ///
    /// # Safety
    /// - The memory has room for them, and nothing else uses it.
    unsafe fn give_back(&self, borrowed: &dyn Allocation, address: u64, bytes: usize) -> Result<()>;

    /// Launches a kernel.
    ///
    /// # Safety
    /// - The arguments are those of the kernel, and the memory they refer to is allocated.
    unsafe fn launch(&self, launch: Launch<'_>) -> Result<()>;

    /// Compiles kernels of `ptx`, the program's own if none, on threads of their own, and
    /// pins the memory of copies.
    fn prepare(&self, _ptx: Option<&'static str>, _kernels: &[&'static str]) {}

    /// Waits for all work.
    fn synchronize(&self) -> Result<()>;

    /// Seconds that launches waited for kernels to be compiled or loaded so far.
    fn jit_seconds(&self) -> f64;

    /// Begins or ends the timing of launches: they are timed while it was begun more often than
    /// ended. A timed launch takes a few microseconds more.
    fn time_launches(&self, _on: bool) {}

    /// Waits for all work and returns the time of every timed kernel so far. A fork adds its times
    /// when its own `times` is called, and when it is dropped.
    fn times(&self) -> Result<Vec<KernelTime>>;

    /// Starts or stops recording when kernels run.
    fn watch(&self, _on: bool) {}

    /// The recorded runs of kernels, up to the last [`times`](Self::times).
    fn spans(&self) -> Vec<Span> {
        Vec::new()
    }

    /// Whether an error has made the device unusable.
    fn has_failed(&self) -> bool;
}

/// Bytes that pass through the host at a time.
const PIECE: usize = 64 << 20;

/// Copies `bytes` bytes at the address `from` of `peer` to `to` of `machine`. Two devices may do so
/// with each other: neither holds its memory of copies while it waits for that of the other.
pub(super) fn copy_through_host<M: Machine + ?Sized>(
    machine: &M,
    to: u64,
    peer: &dyn Machine,
    from: u64,
    bytes: usize,
) -> Result<()> {
    let mut room = vec![0; PIECE.min(bytes)];
    for offset in (0..bytes).step_by(PIECE) {
        let (len, at) = (PIECE.min(bytes - offset), offset as u64);
        peer.download(from + at, &mut room[..len])?;
        machine.upload(to + at, len, 1, &|first, piece| {
            piece.copy_from_slice(&room[first..first + piece.len()]);
        })?;
    }
    Ok(())
}
