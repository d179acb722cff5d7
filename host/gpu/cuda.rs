//! Devices of the CUDA driver.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use cuda_std::launch::Limits;
use cust::error::CudaError;
use cust::event::EventFlags;
use cust::memory::{known_memory, memcpy_dtoh_async, memcpy_htod_async, memcpy_peer_async, memset_d8_async};
use cust::prelude::*;
use cust::stream::synchronize_handle;

use super::kernels::{Programs, spawn};
use super::machine::{Allocation, Fill, KernelTime, Launch, Machine, Span, copy_through_host};
use super::overhead::{Overhead, PIECE, PIECES};
use super::ptx;
use super::staging::{Staging, piece_bytes};
use crate::memory::touched_zeros;
use crate::parallel::locked;
use crate::{Error, Result};

/// Maximum number of launches with unread times.
const PENDING: usize = 4096;

/// A stream of a device.
#[derive(Debug)]
pub(crate) struct CudaMachine {
    device: Arc<OpenDevice>,
    stream: Stream,
    staging: Mutex<Option<Staging>>,
    launches: Mutex<Launches>,
}

/// State shared by all streams of a device.
#[derive(Debug)]
struct OpenDevice {
    name: String,
    device_name: String,
    context: Context,
    limits: Limits,
    multiprocessors: u32,
    overhead: Overhead,
    programs: Programs,
    times: Mutex<Times>,
    /// Pinned memory of dropped streams, reused by new ones: pinning takes long.
    spare: Mutex<Vec<Staging>>,
    /// The pool of allocations; none if the device has no pools. Allocations then wait for all
    /// work.
    pool: Option<MemoryPool>,
    allocations: AtomicUsize,
    /// Running measurements, for which launches are timed.
    timing: AtomicUsize,
    /// Time zero of spans.
    epoch: Event,
    /// Whether the context is lost.
    failed: AtomicBool,
}

/// Launches with unread times, and spare events.
#[derive(Debug, Default)]
struct Launches {
    pending: Vec<(&'static str, Event, Event)>,
    spare: Vec<Event>,
}

/// The times of launches.
#[derive(Debug, Default)]
struct Times {
    kernels: Vec<KernelTime>,
    /// Runs of kernels, while these are recorded.
    spans: Option<Vec<Span>>,
}

impl Times {
    fn add(&mut self, kernel: &'static str, seconds: f64) {
        match self.kernels.iter_mut().find(|time| time.kernel == kernel) {
            Some(time) => {
                time.launches += 1;
                time.seconds += seconds;
            }
            None => self.kernels.push(KernelTime { kernel, launches: 1, seconds, ..KernelTime::default() }),
        }
    }
}

/// Memory of a device.
struct Memory {
    buffer: Option<DeviceBuffer<u8>>,
    device: Arc<OpenDevice>,
}

impl Allocation for Memory {
    fn address(&self) -> u64 {
        self.buffer.as_ref().map_or(0, |buffer| buffer.as_device_ptr().as_raw())
    }
}

/// Memory of another library.
struct Borrowed(u64);

impl Allocation for Borrowed {
    fn address(&self) -> u64 {
        self.0
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        drop(self.buffer.take());
        let OpenDevice { pool, allocations, context, .. } = &*self.device;
        if let (1, Some(pool)) = (allocations.fetch_sub(1, Ordering::Relaxed), pool) {
            // Frees the memory for other programs. A failed device has none to free.
            let _ = context.synchronize().and_then(|()| pool.trim(0));
        }
    }
}

impl CudaMachine {
    /// Opens device number `ordinal`.
    pub(crate) fn open(ordinal: u32) -> Result<Self> {
        let name = format!("cuda:{ordinal}");
        let problem = |problem: String| Error::Device { device: name.clone(), problem };
        let open = || {
            init(CudaFlags::empty())?;
            let device = Device::get_device(ordinal)?;
            let attribute = |attribute| device.get_attribute(attribute).map(|value| value.max(0) as u32);
            let limits = Limits {
                block: attribute(DeviceAttribute::MaxThreadsPerBlock)?,
                grid: [
                    attribute(DeviceAttribute::MaxGridDimX)?,
                    attribute(DeviceAttribute::MaxGridDimY)?,
                    attribute(DeviceAttribute::MaxGridDimZ)?,
                ],
                shared: attribute(DeviceAttribute::MaxSharedMemoryPerBlockOptin)?,
            };
            let capability = device.compute_capability()?;
            let multiprocessors = attribute(DeviceAttribute::MultiprocessorCount)?;
            let has_pool = attribute(DeviceAttribute::MemoryPoolsSupported)? > 0;
            Ok::<_, Failure>((device, device.name()?, limits, capability, (multiprocessors, has_pool)))
        };
        let (device, device_name, limits, (major, minor), (multiprocessors, has_pool)) =
            open().map_err(|failure| problem(failure.to_string()))?;
        if (major, minor) < ptx::MIN_CAPABILITY {
            return Err(problem(format!("found compute capability {major}.{minor}, expected 8.0 or later")));
        }
        let context = Context::new(device).map_err(|failure| problem(failure.to_string()))?;
        let (free, total) = context.mem_get_info().map_err(|failure| problem(failure.to_string()))?;
        let begin = || {
            let epoch = Event::new(&context, EventFlags::Default)?;
            let stream = Stream::new(&context, StreamFlags::NON_BLOCKING, None)?;
            epoch.record(&stream)?;
            let pool = has_pool.then(|| MemoryPool::default_of(&context)).transpose()?;
            // The pool keeps freed memory for reuse: the system takes longer to give it than some
            // kernels run.
            pool.as_ref().map_or(Ok(()), |pool| pool.keep(u64::MAX))?;
            CudaResult::Ok((epoch, stream, pool))
        };
        let (epoch, stream, pool) = begin().map_err(|failure| problem(failure.to_string()))?;
        let device = OpenDevice {
            programs: Programs::new(context.clone(), name.clone()),
            name,
            device_name,
            context,
            limits,
            multiprocessors,
            overhead: Overhead::measured((total - free) as u64),
            times: Mutex::default(),
            spare: Mutex::default(),
            pool,
            allocations: AtomicUsize::new(0),
            timing: AtomicUsize::new(0),
            epoch,
            failed: AtomicBool::new(false),
        };
        Ok(Self::with(Arc::new(device), stream))
    }

    fn with(device: Arc<OpenDevice>, stream: Stream) -> Self {
        Self { device, stream, staging: Mutex::default(), launches: Mutex::default() }
    }

    /// The number of the device whose memory holds `address`; none if it is other memory.
    pub(crate) fn holding(address: u64) -> Result<Option<u32>> {
        match known_memory(address) {
            Ok(memory) => Ok(memory.filter(|memory| memory.is_device).map(|memory| memory.ordinal)),
            Err(failure) => Err(Error::Device { device: "cuda".to_owned(), problem: failure.to_string() }),
        }
    }

    /// Compiles all kernels of the program, on all threads.
    pub(crate) fn try_all_kernels(&self) -> Result<()> {
        let kernels = self.device.programs.kernels(ptx::PTX);
        let names = kernels.compiler().names();
        kernels.prepare(&names, rayon::current_num_threads());
        names.into_iter().try_for_each(|name| kernels.get(name).map(drop))
    }

    fn check<T>(&self, result: CudaResult<T>) -> Result<T> {
        result.map_err(|failure| {
            if failure.error().is_sticky() {
                self.device.failed.store(true, Ordering::Relaxed);
            }
            Error::Device { device: self.device.name.clone(), problem: failure.to_string() }
        })
    }

    /// Copies each of `parts` by way of pinned memory ([`Staging::copy`]), allocated on first use.
    fn by_staging<P>(
        &self,
        parts: impl ExactSizeIterator<Item = P> + Send,
        copy: impl Fn(P, &mut [u8], &Event) -> CudaResult<()> + Sync,
    ) -> Result<()> {
        let mut staging = locked(&self.staging);
        let staging = match &mut *staging {
            Some(staging) => staging,
            none => {
                let spare = locked(&self.device.spare).pop();
                let pinned = || {
                    let memory = touched_zeros(PIECES * PIECE)?;
                    self.check(Staging::new(&self.device.context, memory))
                };
                none.insert(spare.map_or_else(pinned, Ok)?)
            }
        };
        self.check(staging.copy(parts, copy))
    }

    fn event(&self, launches: &mut Launches) -> Result<Event> {
        match launches.spare.pop() {
            Some(event) => Ok(event),
            None => self.check(Event::new(&self.device.context, EventFlags::Default)),
        }
    }

    /// Waits for pending launches and adds their times.
    fn drain_timings(&self, launches: &mut Launches) -> Result<()> {
        self.check(self.stream.synchronize())?;
        let mut times = locked(&self.device.times);
        for (kernel, start, end) in std::mem::take(&mut launches.pending) {
            times.add(kernel, self.check(end.elapsed(&start))?.as_secs_f64());
            if let Some(spans) = &mut times.spans {
                let since = |event: &Event| Ok(self.check(event.elapsed(&self.device.epoch))?.as_secs_f64());
                spans.push((since(&start)?, since(&end)?));
            }
            launches.spare.extend([start, end]);
        }
        Ok(())
    }
}

impl Drop for CudaMachine {
    fn drop(&mut self) {
        // The times of a failed device are not needed.
        let _ = self.drain_timings(&mut locked(&self.launches));
        locked(&self.device.spare).extend(locked(&self.staging).take());
    }
}

impl Machine for CudaMachine {
    fn fork(&self, first: bool) -> Result<Option<Arc<dyn Machine>>> {
        // The driver's numbers: 0 by default, lower ones come first.
        let priority = first.then_some(-1);
        let stream = self.check(Stream::new(&self.device.context, StreamFlags::NON_BLOCKING, priority))?;
        Ok(Some(Arc::new(Self::with(Arc::clone(&self.device), stream))))
    }

    fn name(&self) -> &str {
        &self.device.name
    }

    fn device_name(&self) -> Option<&str> {
        Some(&self.device.device_name)
    }

    fn limits(&self) -> Limits {
        self.device.limits
    }

    fn multiprocessors(&self) -> u32 {
        self.device.multiprocessors
    }

    fn takes_ptx(&self) -> bool {
        true
    }

    fn free_memory(&self) -> Result<u64> {
        let (free, _) = self.check(self.device.context.mem_get_info())?;
        Ok(free as u64 + self.unused_memory()?)
    }

    fn unused_memory(&self) -> Result<u64> {
        self.check(self.device.pool.as_ref().map_or(Ok(0), MemoryPool::unused))
    }

    fn overhead(&self) -> Overhead {
        self.device.overhead
    }

    fn allocate(&self, bytes: usize) -> Result<Box<dyn Allocation>> {
        let bytes = bytes.max(1);
        let allocate = || match self.device.pool {
            // SAFETY: callers of `launch` guarantee that memory is written before it is read, and
            // that other streams wait.
            Some(_) => unsafe { DeviceBuffer::uninitialized_async(bytes, &self.stream) },
            // SAFETY: callers of `launch` guarantee that memory is written before it is read.
            None => unsafe { DeviceBuffer::uninitialized(&self.device.context, bytes) },
        };
        let mut buffer = allocate();
        if matches!(&buffer, Err(failure) if failure.error() == CudaError::OutOfMemory) {
            // Pending work may still use the memory of dropped buffers. After the wait the pool has
            // it.
            self.check(self.device.context.synchronize())?;
            buffer = allocate();
        }
        let buffer = Some(self.check(buffer)?);
        self.device.allocations.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(Memory { buffer, device: Arc::clone(&self.device) }))
    }

    fn upload(&self, address: u64, bytes: usize, unit: usize, fill: Fill<'_>) -> Result<()> {
        // Units are rows of at most 16 KiB, so a piece holds several.
        let piece = piece_bytes(bytes) / unit * unit;
        self.by_staging((0..bytes).step_by(piece), |offset, memory, copied| {
            let memory = &mut memory[..piece.min(bytes - offset)];
            fill(offset, memory);
            // SAFETY: the memory does not change before the event below, and this machine allocated
            // the range.
            unsafe { memcpy_htod_async(address + offset as u64, memory, &self.stream) }?;
            copied.record(&self.stream)
        })
    }

    fn download(&self, address: u64, to: &mut [u8]) -> Result<()> {
        let piece = piece_bytes(to.len());
        if to.len() > piece {
            // One thread waits for the work, not all.
            self.check(self.stream.synchronize())?;
        }
        self.by_staging(to.chunks_mut(piece).enumerate(), |(number, to), memory, copied| {
            let (from, memory) = (address + (number * piece) as u64, &mut memory[..to.len()]);
            // SAFETY: this machine allocated or borrowed the range. The memory is read only after
            // the event: earlier copies from and to it are done.
            unsafe { memcpy_dtoh_async(memory, from, &self.stream) }?;
            copied.record(&self.stream)?;
            copied.synchronize()?;
            to.copy_from_slice(memory);
            Ok(())
        })
    }

    fn ordinal(&self) -> Option<u32> {
        Some(self.device.context.device().as_raw().unsigned_abs())
    }

    fn allow(&self, peer: &dyn Machine) -> Result<()> {
        let own = self.device.context.device();
        let (Some(ordinal), Some(pool)) = (peer.ordinal(), &self.device.pool) else { return Ok(()) };
        let peer = self.check(Device::get_device(ordinal))?;
        if peer.as_raw() != own.as_raw() && self.check(peer.can_access_peer(own))? {
            self.check(pool.allow(peer))?;
        }
        Ok(())
    }

    fn reads(&self, peer: &dyn Machine) -> Result<bool> {
        let own = self.device.context.device();
        // Only a pool lets others read it.
        let (Some(ordinal), Some(_)) = (peer.ordinal(), &self.device.pool) else { return Ok(false) };
        let peer = self.check(Device::get_device(ordinal))?;
        Ok(peer.as_raw() == own.as_raw() || self.check(own.can_access_peer(peer))?)
    }

    fn copy_from(&self, to: u64, peer: &dyn Machine, from: u64, bytes: usize) -> Result<()> {
        if !self.reads(peer)? {
            return copy_through_host(self, to, peer, from, bytes);
        }
        // SAFETY: each machine allocated its range. The caller's promise: the peer does not use it.
        self.check(unsafe { memcpy_peer_async(to, from, bytes, &self.stream) })
    }

    fn fill(&self, address: u64, value: u8, bytes: usize) -> Result<()> {
        // SAFETY: this machine allocated the range.
        self.check(unsafe { memset_d8_async(address, value, bytes, &self.stream) })
    }

    fn check_lent(&self, address: u64, bytes: usize) -> Result<()> {
        let end = address.saturating_add(bytes as u64);
        let ordinal = self.device.context.device().as_raw().unsigned_abs();
        let mut at = address;
        // An array may lie in several mappings of a range of addresses.
        while at < end {
            let memory = self.check(known_memory(at))?;
            let kind = match memory {
                Some(memory) if memory.is_device && memory.ordinal == ordinal && memory.end > at => {
                    at = memory.end;
                    continue;
                }
                Some(memory) if memory.is_device && memory.ordinal != ordinal => {
                    format!("memory of cuda:{}", memory.ordinal)
                }
                Some(memory) if !memory.is_device => "host memory".to_owned(),
                _ => "memory that CUDA does not know".to_owned(),
            };
            let found = format_args!("{address:#x}: {kind} from byte {} on", at - address);
            let expected = format!("{bytes} bytes of memory of {}", self.device.name);
            return Err(Error::argument("address", found, expected));
        }
        Ok(())
    }

    unsafe fn wait_for(&self, stream: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        self.check(unsafe { synchronize_handle(&self.device.context, stream) })
    }

    unsafe fn borrow(&self, address: u64, _: usize) -> Result<Box<dyn Allocation>> {
        Ok(Box::new(Borrowed(address)))
    }

    unsafe fn give_back(&self, _: &dyn Allocation, _: u64, _: usize) -> Result<()> {
        Ok(())
    }

    unsafe fn launch(&self, launch: Launch<'_>) -> Result<()> {
        let Launch { kernel, ptx, grid: [x, y, z], block, shared, arguments, .. } = launch;
        let loaded = self.device.programs.kernels(ptx.unwrap_or(ptx::PTX)).get(kernel)?;
        let function = self.check(loaded.with_shared(shared))?;
        if self.device.timing.load(Ordering::Relaxed) == 0 {
            // SAFETY: the caller's promise.
            return self.check(unsafe { function.launch((x, y, z), block, shared, &self.stream, arguments) });
        }
        let mut launches = locked(&self.launches);
        if launches.pending.len() == PENDING {
            self.drain_timings(&mut launches)?;
        }
        let (start, end) = (self.event(&mut launches)?, self.event(&mut launches)?);
        self.check(start.record(&self.stream))?;
        // SAFETY: the caller's promise.
        self.check(unsafe { function.launch((x, y, z), block, shared, &self.stream, arguments) })?;
        self.check(end.record(&self.stream))?;
        launches.pending.push((kernel, start, end));
        Ok(())
    }

    fn prepare(&self, ptx: Option<&'static str>, kernels: &[&'static str]) {
        let (device, kernels) = (Arc::clone(&self.device), kernels.to_vec());
        let (ptx, most) = (ptx.unwrap_or(ptx::PTX), rayon::current_num_threads());
        // Taking the PTX apart and reading the cache take milliseconds: the base may be copied
        // meanwhile. Without a thread, launches make the kernels.
        spawn("kernels", move || device.programs.kernels(ptx).prepare(&kernels, most));
    }

    fn synchronize(&self) -> Result<()> {
        self.check(self.stream.synchronize())
    }

    fn jit_seconds(&self) -> f64 {
        self.device.programs.waited()
    }

    fn time_launches(&self, on: bool) {
        let timing = &self.device.timing;
        if on {
            timing.fetch_add(1, Ordering::Relaxed)
        } else {
            timing.fetch_sub(1, Ordering::Relaxed)
        };
    }

    fn times(&self) -> Result<Vec<KernelTime>> {
        self.drain_timings(&mut locked(&self.launches))?;
        Ok(locked(&self.device.times).kernels.clone())
    }

    fn watch(&self, on: bool) {
        locked(&self.device.times).spans = on.then(Vec::new);
    }

    fn spans(&self) -> Vec<Span> {
        locked(&self.device.times).spans.clone().unwrap_or_default()
    }

    fn has_failed(&self) -> bool {
        self.device.failed.load(Ordering::Relaxed)
    }
}
