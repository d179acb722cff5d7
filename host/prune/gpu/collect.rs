//! Collect on a GPU, from a node's own list and the lists of its nearest neighbours.

use tagore_device::prune::collect::{
    COLLECT_THREADS, Collect, prune_collect_f16, prune_collect_f32, prune_collect_i8, prune_collect_u8,
};

use super::Collected;
use crate::descent::GpuLists;
use crate::gpu::Gpu;
use crate::vectors::gpu::{Base, stage_kernels};
use crate::{Metric, Result};

stage_kernels! {
    /// Kernels that collect from lists.
    pub(crate) trait CollectKernels {
        Collect (Collect<Self>,): prune_collect_f32 prune_collect_f16 prune_collect_u8 prune_collect_i8;
    }
}

/// Collects the nearest candidates of each node of the chunk: from its own list, and from the first
/// `hop` entries of the lists of its `hop` nearest neighbours.
pub(super) fn collect<T: CollectKernels>(
    gpu: &Gpu,
    base: &Base<T>,
    lists: &GpuLists,
    hop: usize,
    to: Collected<'_>,
) -> Result<()> {
    let collect = Collect {
        rows: base.rows(),
        nodes: to.chunk.nodes(),
        lists: lists.keys.view(),
        candidates: to.keys.view_mut(),
        k: lists.k as u32,
        hop: hop as u32,
        limit: to.limit as u32,
        ordered: u32::from(lists.metric != Metric::Cosine),
    };
    // SAFETY: the buffers have the lengths that the arguments give, and outlive the work.
    unsafe { gpu.launch::<T::Collect>([to.chunk.len() as u32, 1, 1], COLLECT_THREADS, (collect,)) }
}

#[cfg(test)]
mod tests {
    use super::super::Chunk;
    use super::*;
    use crate::Progress;
    use crate::descent::{Descent, KnnGraph};
    use crate::gpu::MemoryPlan;
    use crate::prune::collect::{Collector, HOP};
    use crate::prune::strategy::Collect as Mode;
    use crate::vectors::gpu::Origin;
    use crate::vectors::shape::with_device_type;
    use crate::vectors::space::Space;
    use crate::vectors::{Synth, Vectors};
    use tagore_device::key::{self, Key};

    fn check<T: CollectKernels>(space: &Space<'_>, graph: &KnnGraph) {
        let gpu = Gpu::emulated(7);
        let rows = Origin::<T>::new(&gpu, space.vectors()).unwrap();
        let base = Base::upload(&gpu, space, &rows).unwrap();
        let lists = GpuLists::from_graph(&gpu, graph).unwrap();
        let n = space.len();
        let nodes: Vec<u32> = (0..n as u32).rev().step_by(3).collect();
        let plan =
            MemoryPlan::new().with::<u32>("order", nodes.len()).with::<Key>("candidates", nodes.len() * 200);
        let memory = plan.reserve(&gpu).unwrap();
        let (mut order, mut candidates) =
            (memory.buffer("order").unwrap(), memory.buffer("candidates").unwrap());
        order.upload(&nodes).unwrap();
        let chunk = Chunk { order: &order, range: 0..nodes.len() };
        for (mode, hop) in [(Mode::OneHop, 0), (Mode::TwoHop, HOP)] {
            for limit in [1, 7, 30, 200] {
                let to = Collected { chunk: &chunk, keys: &mut candidates, limit };
                collect(&gpu, &base, &lists, hop, to).unwrap();
                let mut found = vec![0; nodes.len() * limit];
                candidates.download(&mut found).unwrap();
                let mut collector = Collector::new(space, graph, &[], mode, limit);
                let mut expected = Vec::new();
                for (found, &node) in found.chunks_exact(limit).zip(&nodes) {
                    collector.collect(node, &mut expected);
                    expected.resize(limit, key::NONE);
                    assert_eq!(found, expected, "{mode:?}, limit {limit}, node {node}");
                }
            }
        }
    }

    #[test]
    fn candidates_match_the_cpu() {
        for (metric, seed) in [(Metric::L2, 1), (Metric::Cosine, 2), (Metric::InnerProduct, 3)] {
            let base = Synth::new(120, 19, seed).unwrap().base();
            let mut values: Vec<f32> = (0..120).flat_map(|row| base.host_row(row).into_owned()).collect();
            // A zero vector, and duplicates.
            values[5 * 19..6 * 19].fill(0.0);
            values.copy_within(7 * 19..17 * 19, 30 * 19);
            let base = Vectors::from_f32(values, 19).unwrap();
            let space = Space::new(&base, metric, &Progress::silent()).unwrap();
            let graph = Descent::new().metric(metric).knn(40).build(&base).unwrap();
            with_device_type!(space.vectors().element_type(), T => check::<T>(&space, &graph));
        }
        let bytes = Vectors::from_u8((0..90 * 33).map(|i| (i * i % 251) as u8).collect(), 33).unwrap();
        let space = Space::new(&bytes, Metric::L2, &Progress::silent()).unwrap();
        let graph = Descent::new().knn(9).build(&bytes).unwrap();
        with_device_type!(space.vectors().element_type(), T => check::<T>(&space, &graph));
    }
}
