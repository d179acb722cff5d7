//! The emulator as a device: kernels run on the CPU, and every access is checked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Instant;
use std::{ptr, slice};

use cuda_std::launch::Limits;
use emulator::{Emulator, Fault};

use super::machine::{Allocation, Fill, KernelTime, Launch, Machine};
use super::{Capability, Overhead};
use crate::parallel::locked;
use crate::{Error, Result};

/// Free memory of the emulator: no test needs more.
const FREE: u64 = 1 << 30;

/// Approximate bytes of a piece of an upload: small, so that tests cover several pieces.
const PIECE: usize = 4096;

#[derive(Debug)]
pub(crate) struct EmulatedMachine {
    name: String,
    emulator: Emulator,
    /// Allocations by address, for copies.
    memory: Mutex<Vec<Weak<emulator::Allocation>>>,
    times: Mutex<Vec<KernelTime>>,
    failed: AtomicBool,
}

struct Owned(Arc<emulator::Allocation>);

impl Allocation for Owned {
    fn address(&self) -> u64 {
        self.0.address()
    }
}

impl EmulatedMachine {
    /// The emulator, with the limits of a device of `capability`.
    pub(crate) fn new(name: String, capability: Capability, seed: u64) -> Self {
        let emulator = Emulator::with_seed(seed);
        let limits = Limits { shared: capability.shared_memory(), ..emulator.limits() };
        Self {
            name,
            emulator: emulator.with_limits(limits),
            memory: Mutex::default(),
            times: Mutex::default(),
            failed: AtomicBool::new(false),
        }
    }

    fn check<T>(&self, result: std::result::Result<T, Fault>) -> Result<T> {
        result.map_err(|fault| {
            self.failed.store(true, Ordering::Relaxed);
            Error::Device { device: self.name().to_owned(), problem: fault.to_string() }
        })
    }

    /// The allocation that holds `address`, and the offset in it.
    fn find(&self, address: u64) -> Result<(Arc<emulator::Allocation>, usize)> {
        let mut memory = locked(&self.memory);
        memory.retain(|allocation| allocation.strong_count() > 0);
        let holds = |allocation: &emulator::Allocation| {
            let offset = address.checked_sub(allocation.address())? as usize;
            (offset < allocation.len()).then_some(offset)
        };
        let found = memory.iter().filter_map(Weak::upgrade);
        found.filter_map(|a| holds(&a).map(|offset| (a, offset))).next().ok_or_else(|| Error::Device {
            device: self.name().to_owned(),
            problem: format!("copy at {address:#x}: address not allocated"),
        })
    }
}

impl Machine for EmulatedMachine {
    fn name(&self) -> &str {
        &self.name
    }

    fn device_name(&self) -> Option<&str> {
        None
    }

    fn limits(&self) -> Limits {
        self.emulator.limits()
    }

    fn multiprocessors(&self) -> u32 {
        2
    }

    fn takes_ptx(&self) -> bool {
        false
    }

    fn free_memory(&self) -> Result<u64> {
        Ok(FREE)
    }

    fn unused_memory(&self) -> Result<u64> {
        Ok(0)
    }

    fn overhead(&self) -> Overhead {
        Overhead::default()
    }

    fn allocate(&self, bytes: usize) -> Result<Box<dyn Allocation>> {
        let allocation = Arc::new(self.emulator.allocate(bytes));
        let mut memory = locked(&self.memory);
        memory.push(Arc::downgrade(&allocation));
        Ok(Box::new(Owned(allocation)))
    }

    fn upload(&self, address: u64, bytes: usize, unit: usize, fill: Fill<'_>) -> Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let (allocation, start) = self.find(address)?;
        let piece = (PIECE / unit).max(1) * unit;
        // Aligned for all types of rows.
        let mut room = vec![0u64; piece.div_ceil(size_of::<u64>())];
        let room: &mut [u8] = bytemuck::cast_slice_mut(&mut room);
        for offset in (0..bytes).step_by(piece) {
            let len = piece.min(bytes - offset);
            fill(offset, &mut room[..len]);
            self.check(allocation.upload(start + offset, &room[..len]))?;
        }
        Ok(())
    }

    fn download(&self, address: u64, to: &mut [u8]) -> Result<()> {
        let (allocation, start) = self.find(address)?;
        self.check(allocation.download(start, to))
    }

    fn fill(&self, address: u64, value: u8, bytes: usize) -> Result<()> {
        let (allocation, start) = self.find(address)?;
        self.check(allocation.upload(start, &vec![value; bytes]))
    }

    fn check_lent(&self, _: u64, _: usize) -> Result<()> {
        Ok(())
    }

    unsafe fn wait_for(&self, _: u64) -> Result<()> {
        Ok(())
    }

    unsafe fn borrow(&self, address: u64, bytes: usize) -> Result<Box<dyn Allocation>> {
        // SAFETY: the caller's promise: memory of other libraries is ordinary memory here.
        let lent = unsafe { slice::from_raw_parts(ptr::with_exposed_provenance(address as usize), bytes) };
        let allocation = self.allocate(bytes.max(1))?;
        self.upload(allocation.address(), bytes, 1, &|offset, piece| {
            piece.copy_from_slice(&lent[offset..][..piece.len()]);
        })?;
        Ok(allocation)
    }

    unsafe fn give_back(&self, borrowed: &dyn Allocation, address: u64, bytes: usize) -> Result<()> {
        let to = ptr::with_exposed_provenance_mut(address as usize);
        // SAFETY: the caller's promise: memory of another library, which is ordinary memory here.
        self.download(borrowed.address(), unsafe { slice::from_raw_parts_mut(to, bytes) })
    }

    unsafe fn launch(&self, launch: Launch<'_>) -> Result<()> {
        let Launch { kernel, grid, block, shared, lane, .. } = launch;
        let began = Instant::now();
        self.check(self.emulator.launch_entry(kernel, grid, block, shared, lane))?;
        let seconds = began.elapsed().as_secs_f64();
        let mut times = locked(&self.times);
        match times.iter_mut().find(|time| time.kernel == kernel) {
            Some(time) => {
                time.launches += 1;
                time.seconds += seconds;
            }
            None => times.push(KernelTime { kernel, launches: 1, seconds, ..KernelTime::default() }),
        }
        Ok(())
    }

    fn synchronize(&self) -> Result<()> {
        Ok(())
    }

    fn jit_seconds(&self) -> f64 {
        0.0
    }

    fn times(&self) -> Result<Vec<KernelTime>> {
        Ok(locked(&self.times).clone())
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}
