//! Memory of a device beside the buffers of a build.

/// Bytes of a piece of a copy between host and device.
pub(super) const PIECE: usize = 32 << 20;

/// Pieces that are on their way at a time.
pub(super) const PIECES: usize = 2;

/// Memory of a device beside the buffers of a build, once per process.
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
    /// A CUDA device that no one else uses and that has not been opened.
    pub const CUDA: Self = Self::opened(CONTEXT);

    const fn opened(context: u64) -> Self {
        Self { context, driver: DRIVER, staging: (PIECES * PIECE) as u64 }
    }

    /// Bytes of device memory that the driver's pool, and the kernels, take beside buffers of so
    /// many bytes: none without a driver.
    pub(crate) fn pool(&self, bytes: u64) -> u64 {
        if self.context == 0 { 0 } else { POOL + (bytes / 10).min(SCATTERED) }
    }

    /// A CUDA device that has just been opened, of whose memory `taken` bytes are not free: what is
    /// more than a context takes is other programs'.
    #[cfg(feature = "cuda")]
    pub(super) fn measured(taken: u64) -> Self {
        Self::opened(taken.min(CONTEXT))
    }
}

/// The most that a context takes of a device; 533 MiB were measured with all its kernels (driver
/// 580, H200).
const CONTEXT: u64 = 640 << 20;

/// What the pool takes at a time, and what lies between buffers at most: 20 MiB to 101 MiB were
/// measured with kernels, for buffers of 70 MiB to 2.3 GiB (driver 580, H200).
const POOL: u64 = 32 << 20;
const SCATTERED: u64 = 80 << 20;

/// The driver's memory on the host; up to 45 MiB were measured (driver 580, H200).
const DRIVER: u64 = 48 << 20;
