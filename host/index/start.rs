//! Graphs, and the start of searches in them.

use super::{Layer, Spots};

/// A graph to search.
pub(crate) trait Graph: Sync {
    fn neighbors(&self, node: u32) -> &[u32];

    /// Has the neighbours of `node` loaded ahead, if they may lie far away.
    fn fetch(&self, _node: u32) {}

    /// Maximum number of neighbours of a node, if there is a limit.
    fn degree(&self) -> usize {
        usize::MAX
    }
}

/// The start of searches of a graph.
#[derive(Clone, Copy)]
pub(crate) struct Start<'a> {
    /// Nodes of the highest layer, or of the graph if there are no layers.
    pub entries: &'a [u32],
    /// The lowest first.
    pub layers: &'a [Layer],
    /// The growth g of list distances, if it is known. Under L2 and cosine, distances to the
    /// neighbours of rank L and k are as L to k to the power of g. Under inner product, they differ
    /// by g ln(L / k) for a query of norm 1.
    pub growth: Option<f32>,
    /// The dense spots of the graph, where a search goes on.
    pub spots: Option<&'a Spots>,
}

impl<'a> Start<'a> {
    /// Without layers.
    pub(crate) fn at(entries: &'a [u32]) -> Self {
        Self { entries, layers: &[], growth: None, spots: None }
    }
}

/// A start that is not yet part of an index.
pub(crate) struct Layered {
    pub entries: Vec<u32>,
    pub layers: Vec<Layer>,
    pub growth: Option<f32>,
}

impl Layered {
    /// Without layers.
    pub(crate) fn at(entries: Vec<u32>) -> Self {
        Self { entries, layers: Vec::new(), growth: None }
    }

    /// The nodes of the graph itself where searches may start.
    pub(crate) fn first_nodes(&self) -> &[u32] {
        self.layers.first().map_or(&self.entries, Layer::nodes)
    }

    /// Lets searches enter the graph at `nodes`, ascending, too, which are entry points already if
    /// there are no layers.
    pub(crate) fn enter_at(&mut self, nodes: &[u32]) {
        if self.layers.is_empty() {
            return;
        }
        self.layers.iter_mut().for_each(|layer| layer.add(nodes));
        let entries = &mut self.entries;
        nodes.iter().for_each(|node| {
            if !entries.contains(node) {
                entries.push(*node)
            }
        });
    }

    pub(crate) fn start(&self) -> Start<'_> {
        let Self { entries, layers, growth } = self;
        Start { entries, layers, growth: *growth, spots: None }
    }
}
