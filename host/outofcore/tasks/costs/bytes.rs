//! Bytes of objects, by their formats (`docs/tasks.md`).

use crate::index::IndexFile;
use crate::outofcore::partition::SUM_ROWS;
use crate::outofcore::plan::{RECORD_HEAD, list_bytes, row_bytes};
use crate::{Builder, DataShape, Metric};

/// Bytes of an object's record without its index of pieces, about.
const HEAD: u64 = 210;

/// Bytes of a piece in the index, about.
const ENTRY: u64 = 24;

/// Pieces of `place` beside those of the ranges, and of `assign` and of the plan.
const PLACE_PIECES: usize = 3;
pub(super) const ASSIGN_PIECES: usize = 3;

/// The numbers that bytes of objects depend on.
pub(super) struct Sizes {
    pub data: DataShape,
    pub clusters: usize,
    /// Clusters that share rows with a cluster, on average.
    pub neighbours: f64,
    pub range_rows: usize,
    pub ranges: usize,
    pub degree: usize,
    /// Bytes of a row of the base.
    pub row: u64,
    /// Components of an embedded row.
    dim: u64,
}

impl Sizes {
    pub(super) fn new(builder: &Builder, data: &DataShape, clusters: usize, range_rows: usize) -> Self {
        let lifted = usize::from(builder.descent.metric == Metric::InnerProduct);
        Self {
            data: *data,
            clusters,
            neighbours: neighbours(clusters),
            range_rows,
            ranges: data.rows.div_ceil(range_rows),
            degree: builder.strategy.max_degree(),
            row: data.row_bytes() as u64,
            dim: (data.dim + lifted) as u64,
        }
    }

    /// Rows of a range.
    pub(super) fn rows(&self, range: usize) -> u64 {
        (self.data.rows - range * self.range_rows).min(self.range_rows) as u64
    }

    /// Members of each cluster, and the members that it merges: those of the clusters before it in
    /// the order. Clusters of all sizes are spread over the order.
    pub(super) fn clusters(&self) -> Vec<(f64, f64)> {
        let (rows, last) = (self.data.rows as f64, (self.clusters as f64 - 1.0).max(1.0));
        // Multiples of the golden ratio fill the interval evenly.
        let place = |number: usize| (0.5 + number as f64 * 0.618_033_988_75).fract();
        let size = |number| 1.0 + SPREAD * (2.0 * place(number) - 1.0);
        let merged = |number| size(number) * number as f64 / last;
        // Each row is in two clusters, and the second one merges it.
        let sum = |of: &dyn Fn(usize) -> f64| (0..self.clusters).map(of).sum::<f64>();
        let (members, merges) = (2.0 * rows / sum(&size), rows / sum(&merged));
        (0..self.clusters).map(|number| (members * size(number), merges * merged(number))).collect()
    }

    /// Bytes of a member's record.
    pub(super) fn record(&self) -> u64 {
        self.row + RECORD_HEAD as u64
    }

    /// Bytes of a list with distances.
    pub(super) fn list(&self) -> u64 {
        list_bytes(self.degree) as u64
    }

    /// Bytes of a finished row: an id and its neighbours.
    pub(super) fn finished_row(&self) -> u64 {
        row_bytes(self.degree) as u64
    }

    /// Bytes of an object before its pieces.
    pub(super) fn head(&self, pieces: usize) -> u64 {
        HEAD + ENTRY * pieces as u64
    }

    /// The object of the plan: centres and repeated rows.
    pub(super) fn plan(&self) -> u64 {
        self.head(ASSIGN_PIECES) + 4 * self.dim * (self.clusters as u64 + 1)
    }

    /// Pairs of clusters that share rows.
    fn pairs(&self) -> f64 {
        self.neighbours * self.clusters as f64 / 2.0
    }

    /// The object of `assign` for a range of this many rows.
    pub(super) fn assign(&self, rows: u64) -> u64 {
        let sums = 8 * self.dim * rows.div_ceil(SUM_ROWS as u64);
        let pairs = self.pairs() * (1.0 - (-(rows as f64) / ROWS_OF_PAIR / self.pairs()).exp());
        self.head(ASSIGN_PIECES) + 8 * rows + sums + 12 * pairs as u64
    }

    pub(super) fn place_head(&self) -> u64 {
        self.head(self.ranges + PLACE_PIECES)
    }

    /// The object of `place`, if no cluster becomes full.
    pub(super) fn place(&self) -> u64 {
        self.place_head() + ENTRY * self.pairs() as u64 + 8 * self.dim + 4 * self.clusters as u64
    }

    pub(super) fn write_head(&self) -> u64 {
        self.head(self.clusters)
    }

    pub(super) fn build_head(&self) -> u64 {
        self.head(self.neighbours as usize)
    }

    pub(super) fn merge_head(&self) -> u64 {
        self.head(self.ranges)
    }

    /// The object of `assemble` for a range of this many rows.
    pub(super) fn assemble(&self, rows: u64) -> u64 {
        self.head(1) + (self.finished_row() - 4) * rows
    }

    pub(super) fn index(&self) -> u64 {
        IndexFile::bytes(self.data.rows, self.degree) as u64
    }
}

/// Members of clusters are within this share of their mean. A cluster of the planned size, which is
/// the largest, has a third more than the mean.
const SPREAD: f64 = 1.0 / 3.0;

/// Clusters that share rows with a cluster, on average. `synth` has 13.9 in 15 clusters (200,000 x
/// 96), 23.7 in 28 (400,000 x 32) and 164 in 268 (3,000,000 x 96).
fn neighbours(clusters: usize) -> f64 {
    let clusters = clusters as f64;
    (clusters - 1.0) * (1.0 - (-11.0 / clusters.sqrt()).exp())
}

/// Rows per pair of clusters with which a range has 1 - 1/e of all pairs: 9.4 and 9.2 in 268 and 33
/// clusters of `synth`. It would be 1 if all pairs were as frequent.
const ROWS_OF_PAIR: f64 = 9.0;
