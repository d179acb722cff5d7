//! Graphs, and the start of searches in them.

use super::Layer;

/// A graph to search.
pub(crate) trait Graph: Sync {
    fn neighbors(&self, node: u32) -> &[u32];
}

/// The start of searches of a graph.
#[derive(Clone, Copy)]
pub(crate) struct Start<'a> {
    /// Nodes of the highest layer, or of the graph if there are no layers.
    pub entries: &'a [u32],
    /// The lowest first.
    pub layers: &'a [Layer],
}

impl<'a> Start<'a> {
    /// Without layers.
    pub(crate) fn at(entries: &'a [u32]) -> Self {
        Self { entries, layers: &[] }
    }
}
