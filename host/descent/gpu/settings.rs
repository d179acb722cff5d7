//! What a descent on a GPU does unless it is told otherwise, by measurement (docs/descent.md).

use crate::descent::{Iterations, Start};
use crate::{Error, Result};

/// How cells are made, where it was said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub nodes_per_cell: Option<usize>,
    pub memberships: Option<usize>,
}

/// Nodes per centre of up to [`MANY`] nodes. A cell has as many members for each of a node's memberships.
const NODES_PER_CELL: usize = 500;

/// From so many nodes on cells grow with the root of their number, and so does the number of centres: finding a
/// node's centres and meeting the members of its cells then cost about the same.
const MANY: usize = 2_000_000;

/// Cells that each node is in.
const MEMBERSHIPS: usize = 5;

/// Memberships where clusters are for the order alone.
const FOR_ORDER: usize = 3;

impl Settings {
    /// Refuses what cannot be done.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(nodes) = self.nodes_per_cell.filter(|&nodes| nodes < 32) {
            return Err(Error::argument("nodes-per-cell", nodes, "at least 32"));
        }
        match self.memberships {
            Some(memberships) if !(1..=8).contains(&memberships) => {
                Err(Error::argument("memberships", memberships, "1 to 8"))
            }
            _ => Ok(()),
        }
    }

    /// How many centres there are for `n` nodes, and in how many cells each node is.
    pub(super) fn cells(&self, n: usize, start: Start) -> (usize, usize) {
        let best = NODES_PER_CELL as f64 * (n as f64 / MANY as f64).max(1.0).sqrt();
        let (nodes, memberships) = match start {
            Start::Cells => {
                (self.nodes_per_cell.unwrap_or(best as usize), self.memberships.unwrap_or(MEMBERSHIPS))
            }
            _ => (2 * best as usize, FOR_ORDER),
        };
        // Of few nodes more centres than their number would give, so that there is a choice.
        ((n / nodes).max((n / 64).min(16)).max(1), memberships)
    }

    /// The most iterations of each phase.
    pub(super) fn iterations(asked: Iterations, start: Start) -> (u32, u32) {
        match (asked, start) {
            (Iterations::Auto, Start::Cells) => (3, 20),
            _ => asked.limits(),
        }
    }
}
