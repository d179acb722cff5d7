//! The start of a descent.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// The start of a descent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Start {
    /// The fastest of the others for the device, the size and the metric.
    #[default]
    Auto,
    /// Random neighbours, as in the paper.
    Random,
    /// K-means cells, joined within and across cells.
    Cells,
    /// No descent: comparing all pairs gives the exact graph.
    AllPairs,
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Random => "random",
            Self::Cells => "cells",
            Self::AllPairs => "all-pairs",
        })
    }
}

impl FromStr for Start {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(Self::Auto),
            "random" => Ok(Self::Random),
            "cells" => Ok(Self::Cells),
            "all-pairs" => Ok(Self::AllPairs),
            _ => Err(Error::argument("start", name, "auto, all-pairs, random or cells")),
        }
    }
}
