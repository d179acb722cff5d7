//! What a descent on a GPU does unless it is told otherwise, by measurement (docs/descent.md).

use crate::cluster::Clustering;
use crate::descent::{Iterations, Start};
use crate::{Error, Result};

/// How cells are made, where it was said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    pub nodes_per_cell: Option<usize>,
    pub memberships: Option<usize>,
}

/// Nodes per centre, however many nodes there are: neither finding a node's centres nor meeting the members of its
/// cells then costs more for a node of many. A cell has as many members for each of a node's memberships.
const NODES_PER_CELL: usize = 500;

/// Cells that each node is in: of vectors of up to [`SHORT`] components, and of longer ones, whose cells cost
/// more and miss less.
const MEMBERSHIPS: (usize, usize) = (8, 5);

/// Components of short vectors.
const SHORT: usize = 256;

/// The most iterations of each phase after cells: what cells miss, joins find.
const AFTER_CELLS: (u32, u32) = (2, 20);

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

    /// How `n` nodes are put into cells.
    pub(super) fn cells(&self, n: usize, dim: usize, start: Start) -> Clustering {
        let (nodes, memberships) = match start {
            Start::Cells => {
                let memberships = if dim <= SHORT { MEMBERSHIPS.0 } else { MEMBERSHIPS.1 };
                (self.nodes_per_cell.unwrap_or(NODES_PER_CELL), self.memberships.unwrap_or(memberships))
            }
            _ => (2 * NODES_PER_CELL, FOR_ORDER),
        };
        // Of few nodes more centres than their number would give, so that there is a choice.
        Clustering::new((n / nodes).max((n / 64).min(16)).max(1), memberships)
    }

    /// The most iterations of each phase.
    pub(super) fn iterations(asked: Iterations, start: Start) -> (u32, u32) {
        match (asked, start) {
            (Iterations::Auto, Start::Cells) => AFTER_CELLS,
            _ => asked.limits(),
        }
    }
}
