//! The machine that a build is planned for.

use crate::gpu::{Capability, DeviceKind, Gpu, Overhead};
use crate::{Device, Error, Result};

/// Maximum number of threads of a plan.
pub(super) const MAX_PLAN_THREADS: usize = 1 << 16;

/// The machine that a build is planned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Threads of the CPU.
    pub threads: usize,
    /// Memory of a process with the GPU, beyond buffers; none without a GPU.
    pub gpu: Option<Overhead>,
    /// Free bytes of the GPU's memory, without the CUDA context; none if unknown.
    pub free: Option<u64>,
    /// Maximum bytes of shared memory per block of the GPU.
    pub shared: u32,
    /// Whether kernels come from PTX: not on the emulator.
    pub takes_ptx: bool,
}

impl Target {
    /// The CPU, with the threads of the current rayon pool.
    pub fn cpu() -> Self {
        Self { threads: rayon::current_num_threads(), gpu: None, free: None, shared: 0, takes_ptx: true }
    }

    /// A CUDA device of the least supported capability. None needs to be present.
    pub fn cuda() -> Self {
        let shared = Capability::MIN.shared_memory();
        Self { gpu: Some(Overhead::CUDA), shared, ..Self::cpu() }
    }

    /// A CUDA device of `kind` with all its memory free. None needs to be present.
    pub fn kind(kind: DeviceKind) -> Self {
        let free = Some(kind.memory() - Overhead::CUDA.context);
        Self { free, shared: kind.capability().shared_memory(), ..Self::cuda() }
    }

    /// Opens `device` as the target of a build of `nodes` nodes.
    ///
    /// # Errors
    /// If the device is missing.
    pub fn open(device: Device, nodes: usize) -> Result<Self> {
        device.gpu_for_graph(nodes)?.map_or(Ok(Self::cpu()), |gpu| Self::opened(&gpu))
    }

    /// Refuses more than [`MAX_PLAN_THREADS`] threads: sums of the plan's bytes could overflow.
    pub(super) fn check(&self) -> Result<()> {
        if (1..=MAX_PLAN_THREADS).contains(&self.threads) {
            return Ok(());
        }
        Err(Error::argument("threads", self.threads, format_args!("1 to {MAX_PLAN_THREADS}")))
    }

    pub(super) fn opened(gpu: &Gpu) -> Result<Self> {
        let (overhead, free) = (gpu.overhead(), gpu.free_memory()?);
        let (shared, takes_ptx) = (gpu.shared_memory(), gpu.takes_ptx());
        Ok(Self { gpu: Some(overhead), free: Some(free), shared, takes_ptx, ..Self::cpu() })
    }
}
