//! Memory of a process with a GPU, beyond the buffers of a build.

/// Maximum bytes of a piece of a copy between host and device.
pub(super) const PIECE: usize = 1 << 20;

/// Pieces in pinned memory: two of each thread, which fills one while the other is copied. With
/// one, threads wait for the link: of 55 GB/s they reach 29, with two 46. Larger pieces reach 41:
/// they leave the cache of a core.
pub(super) const PIECES: usize = 2 * COPYING_THREADS;

/// Threads that fill pieces.
pub(super) const COPYING_THREADS: usize = 16;

/// Memory of a process with a GPU, beyond the buffers of a build. Counted once per process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    /// Bytes of device memory of the context.
    pub context: u64,
    /// Bytes of host memory of the driver and of the kernels that it compiles.
    pub driver: u64,
    /// Bytes of pinned host memory that copies pass through.
    pub staging: u64,
}

impl Overhead {
    /// A CUDA device without other users, before it is opened.
    pub const CUDA: Self = Self::opened(CONTEXT);

    const fn opened(context: u64) -> Self {
        Self { context, driver: DRIVER, staging: (PIECES * PIECE) as u64 }
    }

    /// Device bytes of the driver's pool and of the kernels, beyond `bytes` bytes of buffers; 0
    /// without a driver.
    pub(crate) fn pool(&self, bytes: u64) -> u64 {
        if self.context == 0 { 0 } else { POOL + (bytes / 10).min(SCATTERED) }
    }

    /// A CUDA device just after opening, with `taken` bytes not free. Bytes beyond those of a
    /// context belong to other programs.
    #[cfg(feature = "cuda")]
    pub(super) fn measured(taken: u64) -> Self {
        Self::opened(taken.min(CONTEXT))
    }
}

/// Maximum device bytes of a context. Measured: 533 MiB, with all kernels (driver 580,
/// H200).
const CONTEXT: u64 = 640 << 20;

/// Step by which the pool grows, and most bytes lost between buffers. Measured together, with
/// kernels: 20 MiB to 101 MiB, for buffers of 70 MiB to 2.3 GiB (driver 580, H200).
const POOL: u64 = 32 << 20;
const SCATTERED: u64 = 80 << 20;

/// Host bytes of the driver. Measured: up to 45 MiB (driver 580, H200).
const DRIVER: u64 = 48 << 20;
