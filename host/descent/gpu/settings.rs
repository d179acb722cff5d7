//! Defaults of a descent on a GPU, by measurement (docs/descent.md).

use tagore_device::cluster::MAX_PROBES;

use crate::cluster::{Clustering, ListLengths};
use crate::descent::{Iterations, Purpose, Start};
use crate::{Error, Result};

/// Settings of a start from cells. Unset ones get the best measured values for the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellSettings {
    /// Nodes per centre, at least 32.
    pub nodes_per_cell: Option<usize>,
    /// Cells that each node probes in each clustering, 1 to 32.
    pub probes: Option<usize>,
    /// Clusterings, 1 to 16, each from another sample.
    pub clusterings: Option<usize>,
}

/// The best measured settings for some class of data.
#[derive(Clone, Copy)]
struct TunedCells {
    /// Nodes per centre, and so members of a cell.
    nodes_per_cell: usize,
    /// Clusterings: one joins neighbours that another separates.
    clusterings: usize,
    /// Cells that each node probes in each clustering.
    probes: usize,
    /// Nearest of these cells, to which the node is assigned.
    assignments: usize,
    /// `auto` leaves out phase 2 if the last clustering added a smaller share than this of the list
    /// entries: a clustering that finds few neighbours leaves few.
    skip_share: f64,
}

/// Settings for vectors of up to [`SHORT`] components, for [`MANY`] of these, and for longer
/// vectors. Many vectors lie closer, so a clustering separates more neighbours. Longer vectors cost
/// more to compare, and a clustering separates fewer neighbours. Of many vectors, somewhat larger
/// cells find nearly as many more neighbours as phase 2, in a quarter of its time.
const FEW_AND_SHORT: TunedCells =
    TunedCells { nodes_per_cell: 500, clusterings: 3, probes: 16, assignments: 2, skip_share: 0.01 };
const MANY_AND_SHORT: TunedCells =
    TunedCells { nodes_per_cell: 600, clusterings: 4, probes: 12, assignments: 2, skip_share: 0.03 };
const LONG: TunedCells =
    TunedCells { nodes_per_cell: 500, clusterings: 3, probes: 8, assignments: 1, skip_share: 0.01 };

/// Maximum number of probes and of clusterings for lists that an index is pruned from. Their recall
/// is up to 0.02 lower, and that of the index the same within 0.002 at equal distances
/// (`benches/results/builds.md`): pruning keeps few of the last neighbours.
const INDEX_PROBES: usize = 12;
const INDEX_CLUSTERINGS: usize = 4;

/// With a smaller share than this of the list entries still missing, no further clustering follows
/// for an index: an expansion finds as much sooner. Vectors of log-normal norms need all four.
const INDEX_ENOUGH: f64 = 0.05;

/// With a smaller share than this of the list entries still missing, phase 2 is left out for an
/// index: its recall is the same within 0.001 (`benches/results/builds.md`).
const INDEX_COMPLETE: f64 = 0.02;

/// What the third clustering adds of what the second adds, before it is known: photographs 0.1 to
/// 0.2, and data of many dimensions 0.2 to 0.45.
const THIRD_OF_SECOND: f64 = 0.2;

/// Maximum of what a clustering adds of what the one before added, for the estimate of what the
/// following add.
const MAX_OF_LAST: f64 = 0.8;

/// From this number on, vectors count as many.
const MANY: usize = 4_000_000;

/// The best start from cells for `n` vectors of `dim` components, as measured.
fn tuned(n: usize, dim: usize, purpose: Purpose) -> TunedCells {
    let lists = match (n < MANY, dim <= SHORT) {
        (_, false) => LONG,
        (true, true) => FEW_AND_SHORT,
        (false, true) => MANY_AND_SHORT,
    };
    match purpose {
        Purpose::Lists => lists,
        Purpose::Index => {
            TunedCells { probes: lists.probes.min(INDEX_PROBES), clusterings: INDEX_CLUSTERINGS, ..lists }
        }
        Purpose::Cluster => TunedCells { clusterings: CLUSTER_CLUSTERINGS, ..lists },
    }
}

/// Clusterings for the lists of a cluster, which are merged with those of another.
const CLUSTER_CLUSTERINGS: usize = 2;

/// Maximum number of clusterings.
const MAX_CLUSTERINGS: usize = 16;

/// Vectors of a sample per centre, and rounds on it: more of either make cells more even, but find
/// no more neighbours.
const SAMPLE_PER_CELL: usize = 16;
const ROUNDS: u32 = 2;

/// Lengths of the lists of near centres: for up to [`FEW_CENTRES`] centres, and for more.
const LISTS: (usize, usize) = (512, 1024);
const FEW_CENTRES: usize = 4096;

/// Components of short vectors.
const SHORT: usize = 256;

/// Iterations of phase 1 after cells: several clusterings leave nothing for it to find.
const JOINS: u32 = 0;

/// Maximum number of iterations of phase 2 after cells.
const MAX_EXPANSIONS: u32 = 20;

/// Nodes per centre, and probes, of a clustering for the order alone.
const FOR_ORDER: (usize, usize) = (1000, 3);

/// What the clusterings so far found.
#[derive(Clone, Copy, Debug)]
pub(super) struct FoundInCells {
    /// The share of all list entries that the last one added.
    pub added: f64,
    /// The share of entries still missing, by estimate: each clustering adds the same part of what
    /// the one before added.
    pub missing: f64,
}

impl FoundInCells {
    /// After a clustering that `added` this share; the later one before it added `before`.
    pub(super) fn new(added: f64, before: Option<f64>) -> Self {
        let ratio = before.map_or(THIRD_OF_SECOND, |before| (added / before).min(MAX_OF_LAST));
        Self { added, missing: added * ratio / (1.0 - ratio) }
    }
}

impl CellSettings {
    /// Checks the settings against their ranges.
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
            Some(clusterings) if !(1..=MAX_CLUSTERINGS).contains(&clusterings) => {
                Err(Error::argument("clusterings", clusterings, format_args!("1 to {MAX_CLUSTERINGS}")))
            }
            _ => Ok(()),
        }
    }

    /// Maximum number of clusterings of `n` nodes.
    pub(super) fn clusterings(&self, n: usize, dim: usize, purpose: Purpose) -> usize {
        self.clusterings.unwrap_or(tuned(n, dim, purpose).clusterings)
    }

    /// Whether no further clustering follows a second or later one after which the share `missing`
    /// of all entries is missing. If their number is set, all are made.
    pub(super) fn is_enough(&self, purpose: Purpose, missing: f64) -> bool {
        purpose == Purpose::Index && self.clusterings.is_none() && missing < INDEX_ENOUGH
    }

    /// The clustering request for `n` nodes. Later clusterings pass the cells of the first as
    /// `known`.
    pub(super) fn cells(
        &self,
        n: usize,
        dim: usize,
        start: Start,
        purpose: Purpose,
        known: Option<usize>,
    ) -> Clustering {
        let (nodes, probes) = match start {
            Start::Cells => {
                let best = tuned(n, dim, purpose);
                (self.nodes_per_cell.unwrap_or(best.nodes_per_cell), self.probes.unwrap_or(best.probes))
            }
            _ => FOR_ORDER,
        };
        // Few nodes get more centres than their number gives, for a choice of cells.
        let cells = (n / nodes).max((n / 64).min(16)).max(1);
        let centre = if cells <= FEW_CENTRES { LISTS.0 } else { LISTS.1 };
        let request = Clustering::new(cells, probes);
        Clustering {
            sample_per_cell: SAMPLE_PER_CELL,
            rounds: ROUNDS,
            ordered: known.is_none(),
            known: known.unwrap_or(0),
            lists: ListLengths { centre, ..request.lists },
            ..request
        }
    }

    /// Nearest cells that each node is assigned to.
    pub(super) fn assignments(n: usize, dim: usize) -> usize {
        tuned(n, dim, Purpose::Lists).assignments
    }

    /// Whether `auto` leaves out phase 2 for `n` nodes after clusterings that `found` so much.
    pub(super) fn can_skip_phase2(n: usize, dim: usize, purpose: Purpose, found: FoundInCells) -> bool {
        found.added < tuned(n, dim, Purpose::Lists).skip_share
            || purpose == Purpose::Index && found.missing < INDEX_COMPLETE
    }

    /// Maximum number of iterations of each phase.
    pub(super) fn iterations(request: Iterations, start: Start, purpose: Purpose) -> (u32, u32) {
        match (request, start) {
            (Iterations::Auto, Start::Cells) if purpose == Purpose::Cluster => (JOINS, 0),
            (Iterations::Auto, Start::Cells) => (JOINS, MAX_EXPANSIONS),
            _ => request.limits(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{CellSettings, FoundInCells, Purpose};
    use crate::vectors::DataShape;
    use crate::{Descent, ElementType, Iterations, Start};

    #[test]
    fn an_index_takes_further_clusterings_while_neighbors_are_missing() {
        let settings = CellSettings::default();
        let is_enough = |purpose, missing| settings.is_enough(purpose, missing);
        assert!(is_enough(Purpose::Index, 0.04) && !is_enough(Purpose::Index, 0.06));
        assert!(!is_enough(Purpose::Lists, 0.0) && !is_enough(Purpose::Cluster, 0.0));
        let set = CellSettings { clusterings: Some(3), ..settings };
        assert!(!set.is_enough(Purpose::Index, 0.0));
    }

    #[test]
    fn what_is_missing_follows_from_the_last_two_clusterings() {
        let missing = |added, before| FoundInCells::new(added, before).missing;
        let is =
            |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found} for {expected}");
        // 0.05 + 0.025 + ...
        is(missing(0.1, Some(0.2)), 0.1);
        is(missing(0.08, None), 0.02);
        // One that adds more than the one before it tells nothing.
        is(missing(0.1, Some(0.05)), 0.4);
        is(missing(0.1, Some(0.0)), 0.4);
        is(missing(0.0, Some(0.1)), 0.0);
    }

    #[test]
    fn phase_2_is_left_out_for_an_index_whose_lists_are_nearly_whole() {
        let skips = |purpose, added| {
            CellSettings::can_skip_phase2(1 << 20, 96, purpose, FoundInCells::new(added, None))
        };
        assert!(skips(Purpose::Index, 0.06) && !skips(Purpose::Index, 0.12));
        assert!(skips(Purpose::Lists, 0.005) && !skips(Purpose::Lists, 0.06));
    }

    #[test]
    fn clusters_take_two_clusterings_and_no_expansion_unless_set() {
        let data = DataShape::new(769, 6, ElementType::F32).unwrap();
        let settings = |descent: &Descent| {
            let shape = descent.shape_on_gpu(&data, 8);
            (shape.clusterings(), shape.phases())
        };
        let cells = Descent::new().start(Start::Cells);
        assert_eq!(settings(&cells.clone().purpose(Purpose::Cluster)), (2, (0, 0)));
        let (clusterings, phases) = settings(&cells);
        assert!(clusterings > 2 && phases.1 > 0);
        assert_eq!(
            settings(&cells.clone().iterations(Iterations::Fixed(1, 2)).purpose(Purpose::Cluster)),
            (2, (1, 2))
        );
        // Random neighbours are nothing without iterations.
        let (joins, expansions) = settings(&cells.start(Start::Random).purpose(Purpose::Cluster)).1;
        assert!(joins > 0 && expansions > 0);
    }
}
