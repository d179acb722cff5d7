//! Metrics, the distances of rows, and what makes them fast: norms, panels and prepared spaces.

pub(crate) mod distance;
pub(crate) mod embedding;
pub(crate) mod mean;
pub(crate) mod norms;
pub(crate) mod panels;
pub(crate) mod rotation;
pub(crate) mod space;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::vectors::ElementType;
use crate::{Error, Result};

/// A metric. Lists, indexes and results hold its list distance; smaller is nearer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Metric {
    /// Squared Euclidean distance. Of bits it is the Hamming distance.
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

    /// The name for vectors of a type: as [`name`](Self::name), but `hamming` of bits.
    pub const fn name_for(self, element: ElementType) -> &'static str {
        match (self, element) {
            (Self::L2, ElementType::B1) => "hamming",
            _ => self.name(),
        }
    }

    /// The metric of a name for vectors of a type: `l2`, `ip` or `cosine`. Bits have one metric,
    /// `hamming` or `l2`.
    ///
    /// # Errors
    /// If vectors of this type have no metric of this name.
    pub fn named(name: &str, element: ElementType) -> Result<Self> {
        let found = format_args!("{name} for {element} vectors");
        match (name, element) {
            ("hamming", ElementType::B1) => Ok(Self::L2),
            ("hamming", _) => {
                Err(Error::argument("metric", found, "l2, ip or cosine: hamming is that of bits"))
            }
            _ => name.parse::<Self>().and_then(|metric| metric.check(element).map(|()| metric)),
        }
    }

    /// Checks that vectors of a type have this metric.
    ///
    /// # Errors
    /// If they are bits, and this is not their metric.
    pub(crate) fn check(self, element: ElementType) -> Result<()> {
        if element == ElementType::B1 && self != Self::L2 {
            let found = format_args!("{self} for {element} vectors");
            return Err(Error::argument("metric", found, "hamming, that of bits"));
        }
        Ok(())
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
            _ => Err(Error::argument(
                "metric",
                name,
                "l2 (squared Euclidean), ip (inner product) or cosine (angular)",
            )),
        }
    }
}
