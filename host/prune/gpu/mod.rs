//! Collect-Filter-Store on a GPU (paper section 5).

mod collect;
mod filter;
mod ids;
mod medoid;
mod path;
mod plan;
mod pruning;
mod rank;
mod reverse;
mod store;
#[cfg(test)]
mod testing;

use std::ops::Range;

use collect::CollectKernels;
use cuda_std::memory::Global;
use medoid::MedoidKernels;
use path::PathKernels;
pub(crate) use plan::PruneShape;
pub(crate) use pruning::Pruning;

use tagore_device::prune::kernels::RuleElement;

use crate::gpu::Buffer;

/// Kernels of all steps of pruning.
pub(crate) trait PruneKernels: CollectKernels + PathKernels + MedoidKernels + RuleElement {}

impl<T: CollectKernels + PathKernels + MedoidKernels + RuleElement> PruneKernels for T {}

/// Nodes that are worked on together: a stretch of an order of rows.
pub(super) struct Chunk<'a> {
    order: &'a Buffer<u32>,
    range: Range<usize>,
}

impl Chunk<'_> {
    /// How many there are.
    fn len(&self) -> usize {
        self.range.len()
    }

    /// Their rows.
    fn nodes(&self) -> Global<u32> {
        self.order.view().offset(self.range.start)
    }
}
