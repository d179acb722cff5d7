//! Where work runs.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// Where building and searching run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Device {
    /// The best there is; this version has the CPU alone.
    #[default]
    Auto,
    /// The CPU, on the threads of the rayon pool that the call is made in.
    Cpu,
}

impl Device {
    /// The best device there is.
    pub fn auto() -> Self {
        Self::Auto
    }

    /// The name of what runs the work.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto | Self::Cpu => "cpu",
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Device {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            _ => Err(Error::argument("device", name, "auto or cpu (this version has no CUDA backend yet)")),
        }
    }
}
