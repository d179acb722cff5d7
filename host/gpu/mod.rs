//! Devices, their memory, and the one place that launches kernels.

mod buffer;
mod capability;
#[cfg(test)]
mod check;
mod communicator;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "emulator")]
mod emulated;
mod gpus;
#[cfg(any(feature = "cuda", test))]
mod kernels;
mod machine;
mod measure;
#[cfg(feature = "cuda")]
mod opened;
mod overhead;
mod plan;
#[cfg(feature = "cuda")]
mod ptx;
mod rates;
#[cfg(any(feature = "cuda", test))]
mod self_check;
#[cfg(test)]
#[path = "../../tests/skip.rs"]
mod skip;
pub(crate) mod sort;
mod stages;
#[cfg(feature = "cuda")]
mod staging;
mod survey;

use std::fmt::Display;
use std::sync::Arc;

use cuda_std::launch::{Arguments, Kernel};

pub(crate) use buffer::{Borrowed, Buffer};
pub use capability::{Capability, DeviceKind};
pub(crate) use communicator::Communicator;
pub(crate) use gpus::{Gpus, SharedTimes};
pub use machine::KernelTime;
use machine::{Launch, Machine};
use measure::Counts;
pub(crate) use measure::Measurement;
pub use overhead::Overhead;
pub use plan::MemoryPlan;
pub(crate) use plan::Reservation;
pub use rates::Rates;
pub use stages::PlannedStage;
pub(crate) use stages::Stages;
pub use survey::{GpuDevice, Survey, kernels, survey};

use crate::{Error, Result};

/// A device that runs kernels; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Gpu {
    machine: Arc<dyn Machine>,
    counts: Arc<Counts>,
    /// The PTX of the kernels; the program's own if none.
    ptx: Option<&'static str>,
}

/// The CUDA devices of this process.
#[cfg(feature = "cuda")]
static OPENED: opened::Opened = opened::Opened::new();

impl Gpu {
    /// CUDA device number `ordinal`, opened and checked once per process.
    ///
    /// # Errors
    /// If the driver or the device is missing or too old, or the device fails its check.
    #[cfg(feature = "cuda")]
    pub(crate) fn cuda(ordinal: u32) -> Result<Self> {
        OPENED.get(ordinal, || Self::new(cuda::CudaMachine::open(ordinal)?).checked())
    }

    /// Forgets the CUDA devices that are open: each closes when nobody holds it any more.
    pub(crate) fn close_cuda() {
        #[cfg(feature = "cuda")]
        OPENED.close();
    }

    /// The number of the CUDA device whose memory holds `address`; none if it is other memory.
    ///
    /// # Errors
    /// If there is no driver.
    #[cfg(feature = "cuda")]
    pub(crate) fn holding(address: u64) -> Result<Option<u32>> {
        cuda::CudaMachine::holding(address)
    }

    /// Fails: this build has no CUDA.
    #[cfg(not(feature = "cuda"))]
    pub(crate) fn holding(_: u64) -> Result<Option<u32>> {
        Self::cuda(0).map(|_| None)
    }

    /// Fails: this build has no CUDA.
    #[cfg(not(feature = "cuda"))]
    pub(crate) fn cuda(ordinal: u32) -> Result<Self> {
        let problem = "this program was built without the feature cuda".to_owned();
        Err(Error::Device { device: format!("cuda:{ordinal}"), problem })
    }

    /// The emulator, with the limits of `capability` or of its default capability. The order of
    /// lanes is drawn from `seed`.
    ///
    /// # Errors
    /// If `TAGORE_EMULATED` is wrong.
    #[cfg(feature = "emulator")]
    pub(crate) fn emulated_as(capability: Option<Capability>, seed: u64) -> Result<Self> {
        let name = capability.map_or("emulated".to_owned(), |capability| format!("emulated:{capability}"));
        let limits = capability.map_or_else(Capability::emulated, Ok)?;
        Ok(Self::new(emulated::EmulatedMachine::new(name, limits, seed)))
    }

    /// Fails: this build has no emulator.
    #[cfg(not(feature = "emulator"))]
    pub(crate) fn emulated_as(capability: Option<Capability>, _: u64) -> Result<Self> {
        let device = capability.map_or("emulated".to_owned(), |capability| format!("emulated:{capability}"));
        let problem = "this program was built without the feature emulator".to_owned();
        Err(Error::Device { device, problem })
    }

    /// The emulator with its default capability.
    #[cfg(test)]
    pub(crate) fn emulated(seed: u64) -> Self {
        Self::emulated_as(None, seed).unwrap()
    }

    #[cfg(any(feature = "cuda", feature = "emulator"))]
    fn new(machine: impl Machine + 'static) -> Self {
        Self { machine: Arc::new(machine), counts: Arc::default(), ptx: None }
    }

    /// A second stream on the same device, unordered with this one: while one copies, the other may
    /// run kernels. To read data that the other has written, or to drop a [`Buffer`] that the other
    /// uses, wait for the other first.
    pub(crate) fn fork(&self) -> Result<Self> {
        self.stream(false)
    }

    /// A [`fork`](Self::fork) for short kernels that a thread waits for: their blocks start before
    /// waiting blocks of other streams.
    pub(crate) fn fork_high_priority(&self) -> Result<Self> {
        self.stream(true)
    }

    fn stream(&self, first: bool) -> Result<Self> {
        let machine = self.machine.fork(first)?.unwrap_or_else(|| Arc::clone(&self.machine));
        Ok(Self { machine, ..self.clone() })
    }

    /// The same device with kernels from `ptx`, not from the program's own PTX. The emulator
    /// ignores `ptx`: its kernels are functions.
    pub(crate) fn with_ptx(&self, ptx: &'static str) -> Self {
        Self { ptx: Some(ptx), ..self.clone() }
    }

    /// Begins to compile kernels that will be launched, on threads of their own.
    pub(crate) fn prepare(&self, kernels: &[&'static str]) {
        self.machine.prepare(self.ptx, kernels);
    }

    /// Whether kernels come from PTX: false on the emulator.
    pub(crate) fn takes_ptx(&self) -> bool {
        self.machine.takes_ptx()
    }

    /// The name, such as `cuda:0`.
    pub(crate) fn name(&self) -> &str {
        self.machine.name()
    }

    /// The device's own name, such as `NVIDIA H200`, if it has one.
    pub(crate) fn device_name(&self) -> Option<&str> {
        self.machine.device_name()
    }

    /// The names of `gpus`, separated by commas, and the first one's own.
    pub(crate) fn names(gpus: &[Self]) -> (String, Option<String>) {
        let names: Vec<&str> = gpus.iter().map(Self::name).collect();
        (names.join(","), gpus.first().and_then(Self::device_name).map(str::to_owned))
    }

    /// Multiprocessors.
    pub(crate) fn multiprocessors(&self) -> u32 {
        self.machine.multiprocessors()
    }

    /// Maximum bytes of dynamic shared memory per block.
    pub(crate) fn shared_memory(&self) -> u32 {
        self.machine.limits().shared
    }

    /// Free bytes of memory.
    pub(crate) fn free_memory(&self) -> Result<u64> {
        self.machine.free_memory()
    }

    /// Bytes of freed memory that wait for reuse, a part of the free bytes. Takes less time than
    /// [`free_memory`](Self::free_memory).
    fn unused_memory(&self) -> Result<u64> {
        self.machine.unused_memory()
    }

    /// Memory beyond buffers.
    pub(crate) fn overhead(&self) -> Overhead {
        self.machine.overhead()
    }

    /// Waits for all work of this stream. Needed to time work, and before dropping large buffers to
    /// allocate larger ones; see [`Buffer`].
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.machine.synchronize()
    }

    /// Checks that `bytes` bytes at an address of another library are memory of this device. The
    /// emulator cannot tell.
    ///
    /// # Errors
    /// If they are not: what they are.
    pub(crate) fn check_lent(&self, address: u64, bytes: usize) -> Result<()> {
        self.machine.check_lent(address, bytes)
    }

    /// Waits for a stream of another library, by the driver's handle.
    ///
    /// # Safety
    /// - The handle is that of an existing stream of this device, or 0 to 2.
    pub(crate) unsafe fn wait_for(&self, stream: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.machine.wait_for(stream) }
    }

    /// Waits for all earlier work and starts a measurement. The peak of memory restarts here, for
    /// running measurements too.
    pub(crate) fn measure(&self) -> Result<Measurement> {
        Measurement::start(self, false)
    }

    /// As [`measure`](Self::measure), and records when kernels run. Only one such measurement runs
    /// at a time.
    pub(crate) fn watch(&self) -> Result<Measurement> {
        Measurement::start(self, true)
    }

    /// Counts the least work of launches of `kernel`: bytes to and from memory, and arithmetic
    /// operations.
    pub(crate) fn count_work(&self, kernel: &'static str, bytes: u64, operations: u64) {
        self.counts.add_work(kernel, bytes, operations);
    }

    /// Notes that a planned buffer was taken.
    #[cfg(test)]
    fn note_buffer(&self, name: &'static str, bytes: u64) {
        let mut taken = self.counts.taken.lock().unwrap();
        let most = taken.entry(name).or_default();
        *most = bytes.max(*most);
    }

    /// The planned buffers that were taken of this device, each with its bytes at most.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> std::collections::BTreeMap<&'static str, u64> {
        self.counts.taken.lock().unwrap().clone()
    }

    /// Waits for all work and returns the time and the work of every kernel so far.
    fn times(&self) -> Result<Vec<KernelTime>> {
        let mut times = self.machine.times()?;
        self.counts.describe(&mut times);
        Ok(times)
    }

    /// Whether an error has made the device unusable.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "asked of CUDA devices"))]
    fn has_failed(&self) -> bool {
        self.machine.has_failed()
    }

    /// Launches kernel `K`: every launch goes through here.
    ///
    /// # Safety
    /// - The arguments meet the requirements of the kernel's documentation.
    /// - The buffers that they view exist at the launch. Buffers of this device may be dropped
    ///   right after it, since memory is freed in stream order. Buffers of a fork may be dropped
    ///   only after a wait for this device.
    ///
    /// # Errors
    /// If the launch is outside the kernel's contract or the device's limits, with what was
    /// requested and what is allowed; if the kernel cannot be compiled; or if earlier work failed.
    pub(crate) unsafe fn launch<K: Kernel>(
        &self,
        grid: [u32; 3],
        block: u32,
        arguments: K::Arguments,
    ) -> Result<()> {
        let contract = K::contract(&arguments);
        contract.check(K::NAME, grid, block, &self.machine.limits()).map_err(|error| self.error(error))?;
        // SAFETY: only a machine that makes a lane current calls this. The caller guarantees the
        // rest.
        let lane = || unsafe { K::run(arguments) };
        let launch = |arguments: &mut [_]| {
            let shared = contract.shared;
            let launch =
                Launch { kernel: K::NAME, ptx: self.ptx, grid, block, shared, arguments, lane: &lane };
            // SAFETY: the arguments are those of the kernel. The caller guarantees their memory.
            unsafe { self.machine.launch(launch) }
        };
        arguments.addresses(launch)
    }

    /// An error of this device.
    pub(crate) fn error(&self, problem: impl Display) -> Error {
        Error::Device { device: self.name().to_owned(), problem: problem.to_string() }
    }
}
