//! Defaults of a descent on a GPU, by measurement (docs/descent.md).

use tagore_device::cluster::MAX_PROBES;

use crate::cluster::{Clustering, ListLengths};
use crate::descent::{Iterations, Start};
use crate::{Error, Result};

/// Settings of a start from cells. Unset ones are the best for the data, as measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellSettings {
    /// Nodes per centre, at least 32.
    pub nodes_per_cell: Option<usize>,
    /// Cells that each node probes in each clustering, 1 to 32.
    pub probes: Option<usize>,
    /// How often the nodes are clustered, 1 to 16, each time from another sample.
    pub clusterings: Option<usize>,
}

/// The best start from cells for some data.
#[derive(Clone, Copy)]
struct TunedCells {
    /// Nodes per centre, and so members of a cell.
    nodes_per_cell: usize,
    /// Clusterings: one brings together what another parts.
    clusterings: usize,
    /// Cells that each node probes in each clustering.
    probes: usize,
    /// Of these, the nearest that the node is assigned to.
    assignments: usize,
}

/// Of vectors of up to [`SHORT`] components; of [`MANY`] of them, which lie closer, so that a
/// clustering parts more; and of longer ones, which cost more to compare and are parted less.
const FEW_AND_SHORT: TunedCells =
    TunedCells { nodes_per_cell: 500, clusterings: 3, probes: 16, assignments: 2 };
const MANY_AND_SHORT: TunedCells =
    TunedCells { nodes_per_cell: 550, clusterings: 4, probes: 12, assignments: 2 };
const LONG: TunedCells = TunedCells { nodes_per_cell: 500, clusterings: 3, probes: 8, assignments: 1 };

/// Many vectors.
const MANY: usize = 4_000_000;

/// The best start from cells for `n` vectors of `dim` components, as measured.
fn tuned(n: usize, dim: usize) -> TunedCells {
    match (n < MANY, dim <= SHORT) {
        (_, false) => LONG,
        (true, true) => FEW_AND_SHORT,
        (false, true) => MANY_AND_SHORT,
    }
}

/// Times that nodes are clustered, at most.
const MOST_CLUSTERINGS: usize = 16;

/// Vectors of a sample per centre, and rounds on it: more of either make cells more alike, but find
/// no more neighbours.
const SAMPLE_PER_CELL: usize = 16;
const ROUNDS: u32 = 2;

/// Centres near a centre of the first clustering, with which its vectors are compared in later
/// ones, of up to so many centres, and of more.
const KNOWN_LISTS: (usize, usize) = (512, 1024);
const FEW_CENTRES: usize = 4096;

/// Components of short vectors.
const SHORT: usize = 256;

/// Joins after cells: several clusterings leave nothing that they would find.
const JOINS: u32 = 0;

/// The most iterations of phase 2 after cells.
const MOST_EXPANSIONS: u32 = 20;

/// Nodes per centre, and probes, where clusters are for the order alone.
const FOR_ORDER: (usize, usize) = (1000, 3);

impl CellSettings {
    /// Refuses what cannot be done.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(nodes) = self.nodes_per_cell.filter(|&nodes| nodes < 32) {
            return Err(Error::argument("nodes_per_cell", nodes, "at least 32"));
        }
        match self.probes {
            Some(probes) if !(1..=MAX_PROBES as usize).contains(&probes) => {
                Err(Error::argument("probes", probes, format_args!("1 to {MAX_PROBES}")))
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

    /// Clusterings of `n` nodes.
    pub(super) fn clusterings(&self, n: usize, dim: usize) -> usize {
        self.clusterings.unwrap_or(tuned(n, dim).clusterings)
    }

    /// How `n` nodes are put into cells; `known` are the cells of the first clustering, for those
    /// after it.
    pub(super) fn cells(&self, n: usize, dim: usize, start: Start, known: Option<usize>) -> Clustering {
        let (nodes, probes) = match start {
            Start::Cells => {
                let best = tuned(n, dim);
                (self.nodes_per_cell.unwrap_or(best.nodes_per_cell), self.probes.unwrap_or(best.probes))
            }
            _ => FOR_ORDER,
        };
        // Of few nodes more centres than their number would give, so that there is a choice.
        let cells = (n / nodes).max((n / 64).min(16)).max(1);
        let asked =
            Clustering { sample_per_cell: SAMPLE_PER_CELL, rounds: ROUNDS, ..Clustering::new(cells, probes) };
        match known {
            None => Clustering { ordered: true, ..asked },
            Some(known) => {
                let centre = if cells <= FEW_CENTRES { KNOWN_LISTS.0 } else { KNOWN_LISTS.1 };
                Clustering { known, lists: ListLengths { centre, ..asked.lists }, ..asked }
            }
        }
    }

    /// Nearest cells that each node is assigned to.
    pub(super) fn assignments(n: usize, dim: usize) -> usize {
        tuned(n, dim).assignments
    }

    /// The most iterations of each phase.
    pub(super) fn iterations(asked: Iterations, start: Start) -> (u32, u32) {
        match (asked, start) {
            (Iterations::Auto, Start::Cells) => (JOINS, MOST_EXPANSIONS),
            _ => asked.limits(),
        }
    }
}
