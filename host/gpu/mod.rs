//! Devices, the memory on them, and the one place that launches kernels.

mod buffer;
mod capability;
#[cfg(test)]
mod check;
#[cfg(test)]
mod contracts;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "emulator")]
mod emulated;
mod machine;
mod measure;
#[cfg(feature = "cuda")]
mod opened;
mod overhead;
mod plan;
#[cfg(feature = "cuda")]
mod ptx;
mod rates;
pub(crate) mod sort;
mod survey;

use std::fmt::Display;
use std::sync::Arc;

use cuda_std::launch::{Arguments, Kernel};

pub(crate) use buffer::Buffer;
pub use capability::{Capability, DeviceKind};
pub use machine::KernelTime;
use machine::{Launch, Machine};
use measure::Counts;
pub(crate) use measure::Measurement;
pub use overhead::Overhead;
pub use plan::MemoryPlan;
pub(crate) use plan::Reservation;
pub use rates::Rates;
pub use survey::{GpuDevice, Survey, kernels, survey};

use crate::{Error, Result};

/// A device that runs kernels; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Gpu {
    machine: Arc<dyn Machine>,
    counts: Arc<Counts>,
    /// The PTX that kernels come from; the program's own if there is none.
    ptx: Option<&'static str>,
}

impl Gpu {
    /// The CUDA device number `ordinal`, which this process opens once.
    ///
    /// # Errors
    /// If there is no driver or no such device, or it is too old.
    #[cfg(feature = "cuda")]
    pub(crate) fn cuda(ordinal: u32) -> Result<Self> {
        static OPENED: opened::Opened = opened::Opened::new();
        OPENED.get(ordinal, || Ok(Self::new(cuda::CudaMachine::open(ordinal)?)))
    }

    /// Says that this build has no CUDA.
    #[cfg(not(feature = "cuda"))]
    pub(crate) fn cuda(ordinal: u32) -> Result<Self> {
        let problem = "this program was built without the feature cuda".to_owned();
        Err(Error::Device { device: format!("cuda:{ordinal}"), problem })
    }

    /// The emulator, whose lanes run in an order drawn from `seed`, with the limits of
    /// `capability`; as it is unless another is asked for if there is none.
    ///
    /// # Errors
    /// If `TAGORE_EMULATED` is wrong.
    #[cfg(feature = "emulator")]
    pub(crate) fn emulated_as(capability: Option<Capability>, seed: u64) -> Result<Self> {
        let name = capability.map_or("emulated".to_owned(), |capability| format!("emulated:{capability}"));
        let limits = capability.map_or_else(Capability::emulated, Ok)?;
        Ok(Self::new(emulated::EmulatedMachine::new(name, limits, seed)))
    }

    /// The error of a build without the emulator.
    #[cfg(not(feature = "emulator"))]
    pub(crate) fn emulated_as(capability: Option<Capability>, _: u64) -> Result<Self> {
        let device = capability.map_or("emulated".to_owned(), |capability| format!("emulated:{capability}"));
        let problem = "this program was built without the feature emulator".to_owned();
        Err(Error::Device { device, problem })
    }

    /// The emulator as it is unless another capability is asked for.
    #[cfg(test)]
    pub(crate) fn emulated(seed: u64) -> Self {
        Self::emulated_as(None, seed).unwrap()
    }

    #[cfg(any(feature = "cuda", feature = "emulator"))]
    fn new(machine: impl Machine + 'static) -> Self {
        Self { machine: Arc::new(machine), counts: Arc::default(), ptx: None }
    }

    /// A second stream on the same device, unordered with this one: while one copies, the other may
    /// run kernels. What one has written, the other may read once the first has been waited for;
    /// the same holds for dropping a [`Buffer`] that the other uses.
    pub(crate) fn fork(&self) -> Result<Self> {
        let machine = self.machine.fork()?.unwrap_or_else(|| Arc::clone(&self.machine));
        Ok(Self { machine, ..self.clone() })
    }

    /// The same device, whose launches take kernels from `ptx` and not from the program's own; on
    /// the emulator the kernels are functions all the same.
    pub(crate) fn with_ptx(&self, ptx: &'static str) -> Self {
        Self { ptx: Some(ptx), ..self.clone() }
    }

    /// Whether kernels are taken from PTX: not on the emulator.
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

    /// Multiprocessors.
    pub(crate) fn multiprocessors(&self) -> u32 {
        self.machine.multiprocessors()
    }

    /// Bytes of dynamic shared memory that a block may have.
    pub(crate) fn shared_memory(&self) -> u32 {
        self.machine.limits().shared
    }

    /// Bytes of memory that are free.
    pub(crate) fn free_memory(&self) -> Result<u64> {
        self.machine.free_memory()
    }

    /// Memory beside buffers.
    pub(crate) fn overhead(&self) -> Overhead {
        self.machine.overhead()
    }

    /// Waits until all work of this stream is done. Needed to time work, and before large buffers
    /// are dropped and larger ones allocated; see [`Buffer`].
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.machine.synchronize()
    }

    /// Begins to measure what work takes, once all work before is done. The peak of memory counts
    /// from here, also for measurements that began earlier.
    pub(crate) fn measure(&self) -> Result<Measurement> {
        Measurement::start(self, false)
    }

    /// As [`measure`](Self::measure), also of when kernels run, one such measurement at a time.
    pub(crate) fn watch(&self) -> Result<Measurement> {
        Measurement::start(self, true)
    }

    /// Says what launches of `K` have to do at least: bytes to and from memory, and arithmetic
    /// operations.
    pub(crate) fn count_work<K: Kernel>(&self, bytes: u64, operations: u64) {
        self.counts.add_work(K::NAME, bytes, operations);
    }

    /// The time and the work of every kernel so far, once all work is done.
    fn times(&self) -> Result<Vec<KernelTime>> {
        let mut times = self.machine.times()?;
        self.counts.describe(&mut times);
        Ok(times)
    }

    /// Whether no work can be done on it any more.
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "asked of CUDA devices"))]
    fn has_failed(&self) -> bool {
        self.machine.has_failed()
    }

    /// Launches kernel `K`: every launch goes through here.
    ///
    /// # Safety
    /// - The arguments hold what the kernel's documentation says.
    /// - The buffers that they view exist at the launch. Those of this device may be dropped right
    ///   after it, since memory is freed behind the launch; those of a fork not before this device
    ///   has been waited for.
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
        // SAFETY: only a machine that makes a lane current calls this; the caller answers for the
        // rest.
        let lane = || unsafe { K::run(arguments) };
        let launch = |arguments: &mut [_]| {
            let shared = contract.shared;
            let launch =
                Launch { kernel: K::NAME, ptx: self.ptx, grid, block, shared, arguments, lane: &lane };
            // SAFETY: the arguments are those of the kernel; the caller answers for their memory.
            unsafe { self.machine.launch(launch) }
        };
        arguments.addresses(launch)
    }

    /// An error of this device.
    pub(crate) fn error(&self, problem: impl Display) -> Error {
        Error::Device { device: self.name().to_owned(), problem: problem.to_string() }
    }
}
