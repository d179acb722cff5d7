//! Host memory of a pruning.

use tagore_device::key::Key;

use super::Collect;
use super::cpu::reversed_at_once;
use super::gpu::PruneShape;
use crate::descent::on_cpu;
use crate::descent::reverse::Reverse;
use crate::gpu::{MemoryPlan, PlannedStage};
use crate::search::visited::Visited;

/// The rows of `n` nodes of an index.
pub(crate) fn rows(n: usize, degree: usize) -> MemoryPlan {
    MemoryPlan::new().with::<u32>("index rows", n * degree).with::<u32>("degrees", n)
}

/// The stages of pruning on the CPU with `threads` threads. The graph has dropped its distances by
/// then, unless its lists are settled.
pub(crate) fn stages_on_cpu(shape: &PruneShape<'_>, are_settled: bool, threads: usize) -> [PlannedStage; 2] {
    let &PruneShape { n, k, strategy, collect, .. } = shape;
    let degree = strategy.degree;
    let distances = if are_settled { n * k } else { 0 };
    let graph = MemoryPlan::new().with::<u32>("graph", n * k).with::<f32>("distances", distances);
    let forward = graph.with::<Key>("forward edges", n * degree);
    let sets = if collect == Collect::Path { 2 } else { 1 };
    let filter = forward.clone().and(&Visited::plan(n, sets * threads));
    let edges = (n * degree.min(shape.limit())).min(reversed_at_once(n, degree));
    let store = forward.and(&Reverse::plan(n, edges)).and(&rows(n, degree)).and(&Visited::plan(n, threads));
    [on_cpu("filter", filter), on_cpu("store", store)]
}
