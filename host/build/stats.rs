//! Statistics of a build.

use crate::descent::{DescentStats, KnnSample};
use crate::prune::PruneStats;

/// Statistics of a build.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BuildStats {
    /// Neighbours per node of the k-NN graph.
    pub knn: usize,
    /// The k-NN graph; of a graph that was there already, what it says of itself.
    pub descent: DescentStats,
    /// Pruning.
    pub prune: PruneStats,
    /// Lists of the k-NN graph, of the nodes that [`Builder::sample`](crate::Builder::sample) asked
    /// for. Empty if repeated rows were left out of the graph.
    pub sample: KnnSample,
    /// Rows that were left out of the graph since they repeat an earlier one; see
    /// [`Index::repeated`](crate::Index::repeated).
    pub repeated: u64,
}
