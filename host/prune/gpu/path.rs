//! Collect by paths on a GPU.

use cuda_std::launch::Kernel;
use tagore_device::prune::path::{
    LONG_ROW, PATH_THREADS, Paths, path_slots, prune_path_f16, prune_path_f32, prune_path_i8,
    prune_path_long_f32, prune_path_u8,
};
use tagore_device::search::beam::stop::Stop;
use tagore_device::search::beam::walk::{BeamWalk, Graph};

use super::Collected;
use crate::Result;
use crate::descent::GpuLists;
use crate::gpu::{Buffer, Gpu};
use crate::prune::collect::PATH;
use crate::vectors::gpu::{Base, metric_number, stage_kernels, stride};

stage_kernels! {
    /// Kernels that collect by paths.
    pub(crate) trait PathKernels {
        Path (Paths<Self>,): prune_path_f32 prune_path_f16 prune_path_u8 prune_path_i8;
        LongPath (Paths<Self>,): prune_path_long_f32 prune_path_f16 prune_path_u8 prune_path_i8;
    }
}

/// The kernel for rows of `dim` components.
pub(super) fn kernel<T: PathKernels>(dim: usize) -> &'static str {
    if stride::<T>(dim) * size_of::<T>() < LONG_ROW { T::Path::NAME } else { T::LongPath::NAME }
}

/// Maximum number of candidates of a node.
pub(super) fn most(k: usize, entries: usize) -> usize {
    entries + (PATH.expansions + 1) * k
}

/// Collects the nearest candidates of each node of the chunk: its own list, and the nodes visited
/// by a short search for it from the entry points. Needs fewer than 2^31 rows.
pub(super) fn path<T: PathKernels>(
    gpu: &Gpu,
    base: &Base<T>,
    lists: &GpuLists,
    entries: &Buffer<u32>,
    to: Collected<'_>,
) -> Result<()> {
    let (degree, entry_count, expansions) = (lists.k as u32, entries.len() as u32, PATH.expansions as u32);
    let paths = Paths {
        walk: BeamWalk {
            base: base.rows(),
            graph: Graph { ids: lists.keys.view().cast(), places: entries.view(), degree, shift: 1 },
            entries: entries.view(),
            entry_count,
            entry_stride: 0,
            entry_shift: 0,
            beam: PATH.beam as u32,
            width: 1,
            expansions,
            slots: path_slots(degree, entry_count, expansions),
            metric: metric_number(lists.metric),
            stop: Stop::NEVER,
        },
        nodes: to.chunk.nodes(),
        candidates: to.keys.view_mut(),
        limit: to.limit as u32,
        padding: 0,
    };
    // SAFETY: lists, entries and nodes hold rows of the base. `keys` has room for `limit`
    // candidates per node. All buffers outlive the work.
    unsafe {
        let blocks = [to.chunk.len() as u32, 1, 1];
        if base.row_bytes() < LONG_ROW {
            gpu.launch::<T::Path>(blocks, PATH_THREADS, (paths,))
        } else {
            gpu.launch::<T::LongPath>(blocks, PATH_THREADS, (paths,))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Chunk;
    use super::*;
    use crate::Progress;
    use crate::descent::KnnGraph;
    use crate::gpu::MemoryPlan;
    use crate::prune::collect::Collector;
    use crate::prune::gpu::testing::{cases, devices, download, upload};
    use crate::prune::strategy::Collect;
    use crate::vectors::gpu::Origin;
    use crate::vectors::shape::with_device_type;
    use crate::vectors::space::Space;
    use crate::vectors::{Metric, Synth, Vectors};
    use tagore_device::key::{self, Key};

    fn check<T: PathKernels>(space: &Space<'_>, graph: &KnnGraph, entries: &[u32]) {
        let nodes: Vec<u32> = (0..space.len() as u32).rev().step_by(7).collect();
        for gpu in devices() {
            let rows = Origin::<T>::new(&gpu, space.vectors()).unwrap();
            let base = Base::upload(&gpu, space, &rows).unwrap();
            let lists = GpuLists::from_graph(&gpu, graph).unwrap();
            let (order, entry_buffer) = (upload(&gpu, &nodes), upload(&gpu, entries));
            let chunk = Chunk { order: &order, range: 0..nodes.len() };
            for limit in [1, 20, most(graph.k(), entries.len())] {
                let plan = MemoryPlan::new().with::<Key>("candidates", nodes.len() * limit);
                let mut candidates: Buffer<Key> = plan.reserve(&gpu).unwrap().buffer("candidates").unwrap();
                let to = Collected { chunk: &chunk, keys: &mut candidates, limit };
                path(&gpu, &base, &lists, &entry_buffer, to).unwrap();
                let found = download(&candidates, nodes.len() * limit);
                let mut collector = Collector::new(space, graph, entries, Collect::Path, limit);
                let mut expected = Vec::new();
                for (found, &node) in found.chunks_exact(limit).zip(&nodes) {
                    collector.collect(node, &mut expected);
                    expected.resize(limit, key::NONE);
                    assert_eq!(found, expected, "{}, limit {limit}, node {node}", space.metric());
                }
            }
        }
    }

    fn check_any(space: &Space<'_>, graph: &KnnGraph, entries: &[u32]) {
        with_device_type!(space.vectors().element_type(), T => check::<T>(space, graph, entries));
    }

    #[test]
    fn path_candidates_match_the_cpu() {
        cases(|space, graph| check_any(space, graph, &[space.medoid(&Progress::silent()).unwrap()]));
        let base = Synth::new(300, 19, 4).unwrap().base();
        let values: Vec<f32> = (0..300).flat_map(|row| base.host_row(row).into_owned()).collect();
        let halves = values.iter().map(|&x| half::f16::from_f32(x)).collect();
        let bytes = values.iter().map(|&x| x as i8).collect();
        let of_types = [
            (Vectors::from_f32(values, 19).unwrap(), Metric::InnerProduct),
            (Vectors::from_f16(halves, 19).unwrap(), Metric::L2),
            (Vectors::from_i8(bytes, 19).unwrap(), Metric::L2),
        ];
        let entries: Vec<u32> = (0..32).map(|i| i * 9).collect();
        for (base, metric) in of_types {
            let graph = crate::Descent::new().metric(metric).knn(40).build(&base).unwrap();
            let space = Space::new(&base, metric, &Progress::silent()).unwrap();
            check_any(&space, &graph, &[space.medoid(&Progress::silent()).unwrap()]);
            check_any(&space, &graph, &entries);
        }
    }
}
