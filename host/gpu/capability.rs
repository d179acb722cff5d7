//! Limits of blocks by compute capability, and kinds of GPUs for plans without a GPU.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// A compute capability that kernels run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capability {
    major: u32,
    minor: u32,
    shared: u32,
}

impl Capability {
    /// The capabilities with their limits, by the CUDA programming guide: A100; RTX 30, A10, A40;
    /// RTX 40, L4, L40S; H100, H200; B200; RTX 50.
    pub const ALL: [Self; 6] = [
        Self::new(8, 0, 166_912),
        Self::MIN,
        Self::new(8, 9, 101_376),
        Self::new(9, 0, 232_448),
        Self::new(10, 0, 232_448),
        Self::new(12, 0, 101_376),
    ];

    /// A capability with the smallest limits.
    pub const MIN: Self = Self::new(8, 6, 101_376);

    const fn new(major: u32, minor: u32, shared: u32) -> Self {
        Self { major, minor, shared }
    }

    /// Maximum bytes of dynamic shared memory per block.
    pub const fn shared_memory(self) -> u32 {
        self.shared
    }

    /// The emulator's default capability: `TAGORE_EMULATED`, such as `9.0`, or 8.9 if unset.
    ///
    /// # Errors
    /// If the variable holds no known capability.
    #[cfg(feature = "emulator")]
    pub(crate) fn emulated() -> Result<Self> {
        match std::env::var("TAGORE_EMULATED") {
            Ok(version) => version.parse(),
            Err(_) => Ok(Self::ALL[2]),
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}.{}", self.major, self.minor))
    }
}

impl FromStr for Capability {
    type Err = Error;

    fn from_str(version: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|capability| capability.to_string() == version).ok_or_else(|| {
            let known = Self::ALL.map(|capability| capability.to_string()).join(", ");
            Error::argument("compute capability", version, format_args!("one of {known}"))
        })
    }
}

/// A kind of GPU, for plans of builds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceKind {
    name: &'static str,
    capability: Capability,
    memory: u64,
}

impl DeviceKind {
    /// All kinds, with the memory reported by the driver. `a100` is the model with 80 GB.
    pub const ALL: [Self; 11] = [
        Self::new("rtx3090", Capability::MIN, 24_576),
        Self::new("rtx4090", Capability::ALL[2], 24_564),
        Self::new("rtx5090", Capability::ALL[5], 32_607),
        Self::new("a10", Capability::MIN, 23_028),
        Self::new("l4", Capability::ALL[2], 23_034),
        Self::new("l40s", Capability::ALL[2], 46_068),
        Self::new("a100", Capability::ALL[0], 81_920),
        Self::new("h100", Capability::ALL[3], 81_559),
        Self::new("h100-nvl", Capability::ALL[3], 95_830),
        Self::new("h200", Capability::ALL[3], 143_771),
        Self::new("b200", Capability::ALL[4], 183_359),
    ];

    const fn new(name: &'static str, capability: Capability, mebibytes: u64) -> Self {
        Self { name, capability, memory: mebibytes << 20 }
    }

    /// Its compute capability.
    pub const fn capability(self) -> Capability {
        self.capability
    }

    /// Bytes of its memory.
    pub const fn memory(self) -> u64 {
        self.memory
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

impl FromStr for DeviceKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.name == name).ok_or_else(|| {
            let known = Self::ALL.map(|kind| kind.name).join(", ");
            Error::argument("device kind", name, format_args!("one of {known}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_and_kinds_round_trip() {
        for capability in Capability::ALL {
            assert_eq!(capability.to_string().parse::<Capability>().unwrap(), capability);
            assert!(capability.shared_memory() >= Capability::MIN.shared_memory());
        }
        for kind in DeviceKind::ALL {
            assert_eq!(kind.to_string().parse::<DeviceKind>().unwrap(), kind);
        }
        for wrong in ["", "8", "8.90", "7.5", "8.9 ", "sm_89"] {
            let error = wrong.parse::<Capability>().unwrap_err().to_string();
            assert!(
                error.contains("8.0, 8.6, 8.9, 9.0, 10.0, 12.0") && error.lines().count() == 1,
                "{error}"
            );
        }
        assert!("rtx".parse::<DeviceKind>().unwrap_err().to_string().contains("rtx4090"));
    }
}
