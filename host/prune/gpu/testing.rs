//! Helpers of tests of kernels.

use bytemuck::Pod;
use tagore_device::key::{self, Key};
use tagore_device::random::{Draws, Stage};

use crate::Progress;
use crate::descent::{Descent, KnnGraph};
use crate::gpu::{Buffer, Gpu};
use crate::prune::Strategy;
use crate::prune::collect::Collector;
use crate::prune::filter::Pruner;
use crate::vectors::space::Space;
use crate::vectors::{Metric, Vectors};

/// The emulator, and the CUDA device, if any.
pub(crate) fn devices() -> Vec<Gpu> {
    std::iter::once(Gpu::emulated(1)).chain(Gpu::cuda_for_tests()).collect()
}

pub(crate) fn upload<T: Pod>(gpu: &Gpu, values: &[T]) -> Buffer<T> {
    let mut buffer = gpu.buffer("values", values.len()).unwrap();
    buffer.upload(values).unwrap();
    buffer
}

pub(super) fn download<T: Pod>(buffer: &Buffer<T>, count: usize) -> Vec<T> {
    let mut values = vec![T::zeroed(); count];
    buffer.download(&mut values).unwrap();
    values
}

/// Calls `check` with small data sets full of duplicates and ties, with a zero vector.
pub(super) fn cases(check: impl Fn(&Space<'_>, &KnnGraph)) {
    use Metric::{Cosine, InnerProduct, L2};
    for (metric, rows, dim) in [(L2, 2, 1), (L2, 45, 2), (Cosine, 33, 3), (InnerProduct, 40, 7)] {
        let draws = Draws::new(rows as u64, Stage::Test, 1, 0);
        let mut values: Vec<u8> = (0..rows * dim).map(|i| draws.below(i as u64, 9) as u8).collect();
        values[..dim].fill(0);
        let base = match metric {
            L2 => Vectors::from_u8(values, dim),
            _ => Vectors::from_f32(values.into_iter().map(f32::from).collect(), dim),
        };
        let base = base.unwrap();
        let graph = Descent::new().metric(metric).knn(12.min(rows - 1)).build(&base).unwrap();
        check(&Space::new(&base, metric, &Progress::silent()).unwrap(), &graph);
    }
}

/// The lists of a graph as keys.
pub(super) fn list_keys(graph: &KnnGraph) -> Vec<Key> {
    let row = |node| graph.neighbors(node).iter().zip(graph.distances(node));
    (0..graph.len()).flat_map(row).map(|(&id, &distance)| key::pack(distance, id)).collect()
}

/// Forward edges by the CPU's Collect and Filter: `most` keys for each node.
pub(super) fn forward_on_cpu(
    space: &Space<'_>,
    graph: &KnnGraph,
    strategy: &Strategy,
    most: usize,
) -> Vec<Key> {
    let mut collector =
        Collector::new(space, graph, &[0], strategy.collect_from(graph.k()), strategy.candidates);
    let mut pruner = Pruner::new(space, Some(graph), strategy);
    let (mut candidates, mut accepted) = (Vec::new(), Vec::new());
    let row = |node: u32| {
        collector.collect(node, &mut candidates);
        pruner.filter(node, &candidates, most, &mut accepted);
        accepted.resize(most, key::NONE);
        accepted.clone()
    };
    (0..graph.len() as u32).flat_map(row).collect()
}
