//! What a descent on a GPU does unless it is told otherwise, by measurement (docs/descent.md).

use tagore_device::cluster::MAX_MEMBERSHIPS;

use crate::cluster::Clustering;
use crate::descent::{Iterations, Start};
use crate::{Error, Result};

/// How cells are made, where it was said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub nodes_per_cell: Option<usize>,
    pub memberships: Option<usize>,
    pub clusterings: Option<usize>,
}

/// Nodes per centre, and so members of a cell, of up to a million nodes; of more, as many more as the root of their
/// number is larger, up to the most: vectors lie closer, and cells miss more.
const NODES_PER_CELL: (usize, usize) = (500, 1500);

/// Cells that each node visits, its own among them, and of these the nearest in which others that visit them meet it: of
/// vectors of up to [`SHORT`] components, and of longer ones, which cost more and miss less.
const SHORT_VISITS: (usize, usize) = (32, 2);
const LONG_VISITS: (usize, usize) = (16, 1);

/// Times that nodes are clustered, at most.
const MOST_CLUSTERINGS: usize = 16;

/// Vectors of a sample per centre, and rounds on it: more of either make cells more alike, but find no more neighbours.
const SAMPLE_PER_CELL: usize = 16;
const ROUNDS: u32 = 2;

/// Components of short vectors.
const SHORT: usize = 256;

/// Joins after cells: they find what is nearest where cells miss it.
const JOINS: u32 = 1;

/// The most iterations of phase 2 after cells.
const MOST_EXPANSIONS: u32 = 20;

/// Memberships where clusters are for the order alone.
const FOR_ORDER: usize = 3;

/// Cells that each node visits, and those in which it is met.
fn visits(dim: usize) -> (usize, usize) {
    if dim <= SHORT { SHORT_VISITS } else { LONG_VISITS }
}

impl Settings {
    /// Refuses what cannot be done.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(nodes) = self.nodes_per_cell.filter(|&nodes| nodes < 32) {
            return Err(Error::argument("nodes-per-cell", nodes, "at least 32"));
        }
        match self.memberships {
            Some(memberships) if !(1..=MAX_MEMBERSHIPS as usize).contains(&memberships) => {
                Err(Error::argument("memberships", memberships, format_args!("1 to {MAX_MEMBERSHIPS}")))
            }
            _ => Ok(()),
        }?;
        match self.clusterings {
            Some(clusterings) if !(1..=MOST_CLUSTERINGS).contains(&clusterings) => {
                Err(Error::argument("clusterings", clusterings, format_args!("1 to {MOST_CLUSTERINGS}")))
            }
            _ => Ok(()),
        }
    }

    /// How often `n` nodes are clustered for a start from cells.
    pub(super) fn clusterings(&self, _n: usize) -> usize {
        self.clusterings.unwrap_or(1)
    }

    /// How `n` nodes are put into cells.
    pub(super) fn cells(&self, n: usize, dim: usize, start: Start) -> Clustering {
        let (nodes, memberships) = match start {
            Start::Cells => {
                let root = (NODES_PER_CELL.0 as f64 * (n as f64 / 1e6).sqrt()) as usize;
                let best = root.clamp(NODES_PER_CELL.0, NODES_PER_CELL.1);
                (self.nodes_per_cell.unwrap_or(best), self.memberships.unwrap_or(visits(dim).0))
            }
            _ => (2 * NODES_PER_CELL.0, FOR_ORDER),
        };
        // Of few nodes more centres than their number would give, so that there is a choice.
        let cells = (n / nodes).max((n / 64).min(16)).max(1);
        Clustering { sample_per_cell: SAMPLE_PER_CELL, rounds: ROUNDS, ..Clustering::new(cells, memberships) }
    }

    /// Of the cells that each node visits, those in which it is met.
    pub(super) fn hosts(dim: usize) -> usize {
        visits(dim).1
    }

    /// The most iterations of each phase.
    pub(super) fn iterations(asked: Iterations, start: Start) -> (u32, u32) {
        match (asked, start) {
            (Iterations::Auto, Start::Cells) => (JOINS, MOST_EXPANSIONS),
            _ => asked.limits(),
        }
    }
}
