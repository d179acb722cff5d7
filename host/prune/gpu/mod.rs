//! Collect-Filter-Store on a GPU (paper section 5).

mod collect;
mod filter;
mod ids;
mod layer_nodes;
mod medoid;
mod monotonic;
mod path;
mod pruning;
mod rank;
mod reverse;
mod shape;
mod store;
#[cfg(test)]
pub(crate) mod testing;
mod tree;

use std::ops::Range;

use collect::CollectKernels;
use cuda_std::launch::Kernel;
use cuda_std::memory::Global;
pub(crate) use layer_nodes::layer_nodes;
use medoid::MedoidKernels;
use monotonic::MonotonicKernels;
pub(crate) use monotonic::monotonic;
use path::PathKernels;
pub(crate) use pruning::Pruning;
pub(crate) use shape::PruneShape;
pub(crate) use store::download;
pub(crate) use tree::tree;

use tagore_device::key::Key;
use tagore_device::prune::kernels::RuleElement;
use tagore_device::prune::layer_nodes::{layer_leave, layer_take};
use tagore_device::prune::tree::prune_tree;

use crate::gpu::Buffer;

/// Kernels of all steps of pruning.
pub(crate) trait PruneKernels:
    CollectKernels + PathKernels + MedoidKernels + MonotonicKernels + RuleElement
{
}

impl<T: CollectKernels + PathKernels + MedoidKernels + MonotonicKernels + RuleElement> PruneKernels for T {}

/// The kernels that find the reach of a graph, and build layers over it.
pub(crate) fn layer_kernels<T: PruneKernels>() -> [&'static str; 4] {
    [prune_tree::NAME, layer_take::NAME, layer_leave::NAME, T::Monotonic::NAME]
}

/// The nodes of one launch: a range of an order of rows.
pub(super) struct Chunk<'a> {
    order: &'a Buffer<u32>,
    range: Range<usize>,
}

impl Chunk<'_> {
    /// The number of nodes.
    fn len(&self) -> usize {
        self.range.len()
    }

    /// The rows of the nodes.
    fn nodes(&self) -> Global<u32> {
        self.order.view().offset(self.range.start)
    }
}

/// The output of collecting for a chunk.
struct Collected<'a> {
    chunk: &'a Chunk<'a>,
    keys: &'a mut Buffer<Key>,
    /// Maximum number of candidates per node.
    limit: usize,
}

/// Candidates of a chunk, nearest first.
#[derive(Clone, Copy)]
struct Candidates<'a> {
    chunk: &'a Chunk<'a>,
    keys: &'a Buffer<Key>,
    /// Keys from one node to the next.
    stride: usize,
    /// Candidates per node, at most `stride`.
    count: usize,
    /// Whether keys are stored by row, as in k-NN lists; else by position in the chunk.
    by_row: bool,
    /// Whether a node keeps all candidates if they fit its row.
    pass_short: bool,
}

impl<'a> Candidates<'a> {
    /// `count` candidates per node of the chunk, stored by position.
    fn by_place(chunk: &'a Chunk<'a>, keys: &'a Buffer<Key>, count: usize) -> Self {
        Self { chunk, keys, stride: count, count, by_row: false, pass_short: false }
    }
}

/// Forward edges: `width` keys for each row, in the order of acceptance.
struct Forward {
    keys: Buffer<Key>,
    rows: usize,
    width: usize,
}

impl Forward {
    fn view(&self) -> KeyRows<'_> {
        KeyRows { keys: &self.keys, rows: self.rows, width: self.width }
    }
}

/// `rows` rows of `width` keys.
#[derive(Clone, Copy)]
struct KeyRows<'a> {
    keys: &'a Buffer<Key>,
    rows: usize,
    width: usize,
}
