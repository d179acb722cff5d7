//! Metrics.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// A metric. Lists, indexes and results hold its list distance; smaller is nearer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Metric {
    /// Squared Euclidean distance.
    #[default]
    #[serde(rename = "l2")]
    L2,
    /// Inner product; the distance is −⟨x, y⟩.
    #[serde(rename = "ip")]
    InnerProduct,
    /// Cosine; the distance is 1 − cos, and a zero vector is at distance 1 from all.
    #[serde(rename = "cosine")]
    Cosine,
}

impl Metric {
    /// `l2`, `ip` or `cosine`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::L2 => "l2",
            Self::InnerProduct => "ip",
            Self::Cosine => "cosine",
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Metric {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "l2" => Ok(Self::L2),
            "ip" => Ok(Self::InnerProduct),
            "cosine" => Ok(Self::Cosine),
            _ => Err(Error::argument("metric", name, "l2, ip or cosine")),
        }
    }
}
