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
}

/// From so many nodes on, cells are larger and there is one more join: vectors lie closer, and cells miss more.
pub(in crate::descent) const MANY: usize = 2_000_000;

/// Nodes per centre, of fewer nodes than [`MANY`] and of many: neither finding a node's centres nor meeting the members
/// of its cells then costs more for a node of many. A cell has as many members for each of a node's memberships.
const NODES_PER_CELL: (usize, usize) = (500, 750);

/// Cells that each node visits, its own among them: of vectors of up to [`SHORT`] components, and of longer ones, whose
/// cells cost more and miss less.
const MEMBERSHIPS: (usize, usize) = (32, 16);

/// Of its cells, those in which a node is visited, of fewer nodes than [`MANY`] and of many.
const HOSTS: (usize, usize) = (1, 2);

/// Components of short vectors.
const SHORT: usize = 256;

/// Joins after cells, of fewer nodes than [`MANY`] and of many: what cells miss, joins find.
const JOINS: (u32, u32) = (2, 3);

/// The most iterations of phase 2 after cells.
const MOST_EXPANSIONS: u32 = 20;

/// Memberships where clusters are for the order alone.
const FOR_ORDER: usize = 3;

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
        }
    }

    /// How `n` nodes are put into cells.
    pub(super) fn cells(&self, n: usize, dim: usize, start: Start) -> Clustering {
        let best = if n < MANY { NODES_PER_CELL.0 } else { NODES_PER_CELL.1 };
        let (nodes, memberships) = match start {
            Start::Cells => {
                let memberships = if dim <= SHORT { MEMBERSHIPS.0 } else { MEMBERSHIPS.1 };
                (self.nodes_per_cell.unwrap_or(best), self.memberships.unwrap_or(memberships))
            }
            _ => (2 * best, FOR_ORDER),
        };
        // Of few nodes more centres than their number would give, so that there is a choice.
        Clustering::new((n / nodes).max((n / 64).min(16)).max(1), memberships)
    }

    /// Of its cells, those in which each of `n` nodes is visited.
    pub(super) fn hosts(&self, n: usize) -> usize {
        let best = if n < MANY { HOSTS.0 } else { HOSTS.1 };
        std::env::var("TAGORE_HOSTS").ok().map_or(best, |x| x.parse().unwrap())
    }

    /// The most iterations of each phase for `n` nodes.
    pub(super) fn iterations(asked: Iterations, start: Start, n: usize) -> (u32, u32) {
        match (asked, start) {
            (Iterations::Auto, Start::Cells) => (if n < MANY { JOINS.0 } else { JOINS.1 }, MOST_EXPANSIONS),
            _ => asked.limits(),
        }
    }
}
