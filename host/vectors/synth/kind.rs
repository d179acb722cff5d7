//! Kinds of synthetic data and of queries.

use std::fmt;
use std::str::FromStr;

use super::Fault;
use crate::{Error, Result};

/// The distribution of a synthetic data set.
///
/// As text: `mixture`, `clusters` (100 of them), `uniform`, `repeated` (10 copies), `lognormal` or
/// `dirty` (1 % zero rows).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub enum SynthKind {
    /// A mixture of about sqrt(n) Gaussians of rank 24, plus noise: about as hard to search as SIFT
    /// descriptors.
    #[default]
    Mixture,
    /// Separate Gaussians: standard normal centres, deviation 0.2 in every component. In fewer than
    /// about 16 dimensions they overlap.
    Clusters {
        /// Number of Gaussians, 1 to n. Each row belongs to a random one.
        clusters: usize,
    },
    /// Components uniform in [0, 1).
    Uniform,
    /// Rows of [`Uniform`](Self::Uniform), each repeated at scattered places of the data set.
    /// Queries repeat no row.
    Repeated {
        /// Rows per distinct row, 1 to n. One distinct row has fewer if this does not divide n.
        copies: usize,
    },
    /// Random directions with log-normal norms (mean 0 and deviation 0.4 of the logarithm). For
    /// inner product.
    Lognormal,
    /// A [`Mixture`](Self::Mixture) in which scattered rows have a fault. Queries have none.
    Dirty {
        /// The fault.
        fault: Fault,
        /// Share of the rows with the fault, above 0 and at most 1: at least one row.
        share: f64,
    },
}

impl SynthKind {
    /// `mixture`, `clusters`, `uniform`, `repeated`, `lognormal` or `dirty`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mixture => "mixture",
            Self::Clusters { .. } => "clusters",
            Self::Uniform => "uniform",
            Self::Repeated { .. } => "repeated",
            Self::Lognormal => "lognormal",
            Self::Dirty { .. } => "dirty",
        }
    }

    /// Checks the parameters of the kind for a data set of `n` rows.
    pub(super) fn check(self, n: usize) -> Result<()> {
        let (what, found) = match self {
            Self::Clusters { clusters } => ("clusters", clusters),
            Self::Repeated { copies } => ("copies", copies),
            Self::Dirty { fault, share } => {
                fault.check()?;
                if share > 0.0 && share <= 1.0 {
                    return Ok(());
                }
                return Err(Error::argument("share", share, "above 0, at most 1"));
            }
            Self::Mixture | Self::Uniform | Self::Lognormal => return Ok(()),
        };
        if (1..=n).contains(&found) {
            return Ok(());
        }
        Err(Error::argument(what, found, format_args!("1 to {n}, the number of rows")))
    }
}

impl fmt::Display for SynthKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for SynthKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "mixture" => Ok(Self::Mixture),
            "clusters" => Ok(Self::Clusters { clusters: 100 }),
            "uniform" => Ok(Self::Uniform),
            "repeated" => Ok(Self::Repeated { copies: 10 }),
            "lognormal" => Ok(Self::Lognormal),
            "dirty" => Ok(Self::Dirty { fault: Fault::Zero, share: 0.01 }),
            _ => {
                let expected = "mixture, clusters, uniform, repeated, lognormal or dirty";
                Err(Error::argument("kind", name, expected))
            }
        }
    }
}

/// The distribution of the queries of a synthetic data set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueryKind {
    /// More rows of the same distribution.
    #[default]
    Rows,
    /// Sums of two random rows of the data set, plus normal noise with a tenth of the sum's root
    /// mean square: out-of-distribution queries.
    Sums,
    /// Rows of the data set that have the fault of [`Dirty`](SynthKind::Dirty) data; any rows of
    /// other data.
    Dirty,
    /// Queries of a second tower: of [`Mixture`](SynthKind::Mixture) data, as a text encoder beside
    /// one of images. Their matrix is 0.8 times that of the rows plus 0.6 times another, their
    /// centres are one in ten of those of the rows, and all are moved by the same vector, about
    /// twice as long as a row. [`Rows`](Self::Rows) of data without a matrix.
    Tower,
    /// More rows, 1.5 times as long, all moved by the same row: off the range of the data set.
    Shifted,
}

impl QueryKind {
    /// `rows`, `sums`, `dirty`, `tower` or `shifted`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Sums => "sums",
            Self::Dirty => "dirty",
            Self::Tower => "tower",
            Self::Shifted => "shifted",
        }
    }
}

impl fmt::Display for QueryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for QueryKind {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "rows" => Ok(Self::Rows),
            "sums" => Ok(Self::Sums),
            "dirty" => Ok(Self::Dirty),
            "tower" => Ok(Self::Tower),
            "shifted" => Ok(Self::Shifted),
            _ => Err(Error::argument("query-kind", name, "rows, sums, dirty, tower or shifted")),
        }
    }
}
