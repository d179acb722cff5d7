//! Statistics of a build.

use crate::ResidentIndex;
use crate::descent::{DescentStats, KnnSample};
use crate::prune::{PruneStats, QueryStats};

/// Statistics of a build.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BuildStats {
    /// Neighbours per node of the k-NN graph.
    pub knn: usize,
    /// Statistics of the descent that built the k-NN graph; default values for a graph read from a
    /// file.
    pub descent: DescentStats,
    /// Pruning.
    pub prune: PruneStats,
    /// k-NN lists of the nodes sampled by [`Builder::sample`](crate::Builder::sample). Empty if
    /// rows were left out of the graph.
    pub sample: KnnSample,
    /// Index and base on the GPU of the build, if they were [to stay
    /// there](crate::Builder::keep_on_device).
    pub resident: Option<ResidentIndex>,
    /// Rows left out of the graph because they repeat an earlier row; see
    /// [`Index::repeated`](crate::Index::repeated).
    pub repeated: u64,
    /// Nodes of an [update](crate::IndexUpdate) that lost neighbours and got others; none of a
    /// build.
    pub mended: Option<u64>,
    /// What became of the sample of [queries](crate::Builder::queries), if there is one.
    pub queries: Option<QueryStats>,
    /// Seconds of finding repeated rows.
    pub grouping: f64,
    /// Seconds of making codes of the vectors, if the build is [on
    /// codes](crate::Builder::compressed).
    pub coding: f64,
    /// A warning, in one line, if the codes of a build on codes lose too much of the data.
    pub code_warning: Option<String>,
}

impl BuildStats {
    /// Adds those of a part of the rows, built after the parts before.
    pub(super) fn add(&mut self, part: Self) {
        self.descent.add(part.descent);
        self.prune.add(part.prune);
        self.queries = self.queries.take().or(part.queries);
        self.coding += part.coding;
        self.code_warning = self.code_warning.take().or(part.code_warning);
    }
}
