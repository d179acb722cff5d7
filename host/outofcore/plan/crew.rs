//! The threads of each device.

use crate::Device;

/// Threads that build clusters on one device.
#[derive(Clone, Copy)]
pub(crate) struct Crew {
    /// Threads that build and merge.
    pub threads: usize,
    /// Threads that may build at the same time.
    pub builds: usize,
}

impl Crew {
    /// One thread: a build on the CPU runs on all threads of the pool.
    pub(crate) const CPU: Self = Self { threads: 1, builds: 1 };

    /// The crew of each of `count` GPUs.
    ///
    /// The GPU works on one cluster while the host works on another. One more thread merges, which
    /// takes less memory. Several GPUs keep the host busier, so each has one more build.
    pub(crate) fn of_gpus(count: usize) -> Self {
        let builds = if count > 1 { 3 } else { 2 };
        Self { threads: builds + 1, builds }
    }

    /// The crew of `device`, one of `devices` devices.
    pub(crate) fn for_device(device: Device, devices: usize) -> Self {
        if device == Device::Cpu { Self::CPU } else { Self::of_gpus(devices) }
    }
}
