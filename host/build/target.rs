//! The machine that a build is planned for.

use crate::gpu::{Capability, DeviceKind, Gpu, Overhead};
use crate::{Device, Error, Result};

/// The most threads that a build is planned for.
pub(super) const MOST_THREADS: usize = 1 << 16;

/// The machine that a build is planned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Threads of the CPU.
    pub threads: usize,
    /// Memory of the GPU beside buffers; none without a GPU.
    pub gpu: Option<Overhead>,
    /// Bytes of the GPU's memory that are free beside that, if it has been opened.
    pub free: Option<u64>,
    /// Bytes of shared memory that a block of the GPU may have.
    pub shared: u32,
}

impl Target {
    /// The CPU, on as many threads as the rayon pool has that this is called in.
    pub fn cpu() -> Self {
        Self { threads: rayon::current_num_threads(), gpu: None, free: None, shared: 0 }
    }

    /// A CUDA device, whether there is one or not.
    pub fn cuda() -> Self {
        let shared = Capability::LEAST.shared_memory();
        Self { gpu: Some(Overhead::CUDA), shared, ..Self::cpu() }
    }

    /// A CUDA device of this kind that no one else uses, whether there is one or not.
    pub fn kind(kind: DeviceKind) -> Self {
        let free = Some(kind.memory() - Overhead::CUDA.context);
        Self { free, shared: kind.capability().shared_memory(), ..Self::cuda() }
    }

    /// The target of a build of `nodes` nodes on `device`, which is opened.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn of(device: Device, nodes: usize) -> Result<Self> {
        device.gpu_for_graph(nodes)?.map_or(Ok(Self::cpu()), |gpu| Self::opened(&gpu))
    }

    /// Refuses a number of threads that no machine has: sums of the plan's bytes could overflow.
    pub(super) fn check(&self) -> Result<()> {
        if (1..=MOST_THREADS).contains(&self.threads) {
            return Ok(());
        }
        Err(Error::argument("threads", self.threads, format_args!("1 to {MOST_THREADS}")))
    }

    pub(super) fn opened(gpu: &Gpu) -> Result<Self> {
        let (overhead, free) = (gpu.overhead(), gpu.free_memory()?);
        Ok(Self { gpu: Some(overhead), free: Some(free), shared: gpu.shared_memory(), ..Self::cpu() })
    }
}
