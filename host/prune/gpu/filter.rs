//! Filter on a GPU: the launch of a rule's kernel.

use tagore_device::prune::filter;
use tagore_device::prune::gram::{GRAM_THREADS, LINES, prune_gram_spread};
use tagore_device::prune::kernels::{AnyFilter, RuleElement};
use tagore_device::prune::rule::Spread;

use super::{Candidates, Forward, PruneShape};
use crate::gpu::Gpu;
use crate::prune::rule::launch;
use crate::prune::strategy::Filter;
use crate::vectors::gpu::{Base, OnDevice};
use crate::{ElementType, Metric, Result};

/// Minimum number of components of rows whose products pay: measured at 288 and 960.
const MIN_DIM: usize = 256;

/// Filters candidates by the strategy's rule into forward edges, for rows of this shape.
///
/// # Errors
/// If the device has no kernel for the filter ([`Strategy::filters_on_gpu`]).
pub(super) fn filter<T: OnDevice + RuleElement>(
    gpu: &Gpu,
    base: &Base<T>,
    shape: &PruneShape<'_>,
    candidates: Candidates<'_>,
    forward: &mut Forward,
) -> Result<()> {
    let strategy = shape.strategy;
    let Some(rule) = strategy.filter.rule().filter(|_| strategy.filters_on_gpu(gpu.takes_ptx())) else {
        return Err(gpu.error(format_args!("has no kernel for the filter {}", strategy.filter_name())));
    };
    let gpu = match &strategy.filter {
        Filter::Custom(custom) => custom.ptx.map_or_else(|| gpu.clone(), |ptx| gpu.with_ptx(ptx)),
        _ => gpu.clone(),
    };
    let nodes = candidates.chunk.len() as u32;
    let threshold = rule.prepare(strategy.filter.threshold().unwrap_or(0.0));
    let arguments = T::any(arguments(base, threshold, candidates, forward));
    // SAFETY: the buffers hold candidates of each node and edges of each row, and outlive the work.
    unsafe {
        match arguments {
            AnyFilter::F32(filter) if takes_products::<T>(shape) => {
                launch::<_, prune_gram_spread, _>(&gpu, filter, Spread, nodes, GRAM_THREADS)
            }
            _ => rule.launch(&gpu, arguments, nodes, threads(base.row_bytes())),
        }
    }
}

/// Whether candidates are compared by products of their rows, of type `T` on the device.
pub(super) fn takes_products<T: OnDevice>(shape: &PruneShape<'_>) -> bool {
    matches!(shape.strategy.filter, Filter::Spread)
        && T::TYPE == ElementType::F32
        && shape.metric != Metric::InnerProduct
        && shape.strategy.candidates <= LINES as usize
        && shape.dim >= MIN_DIM
}

/// The argument of the kernels.
fn arguments<T: OnDevice + RuleElement>(
    base: &Base<T>,
    threshold: f32,
    candidates: Candidates<'_>,
    forward: &mut Forward,
) -> filter::PruneFilter<T> {
    filter::PruneFilter {
        rows: base.rows(),
        nodes: candidates.chunk.nodes(),
        candidates: candidates.keys.view(),
        forward: forward.keys.view_mut(),
        stride: candidates.stride as u32,
        most: forward.width as u32,
        threshold,
        pass_short: u32::from(candidates.pass_short),
    }
}

/// Threads per node. Warps of a node wait for each other at each accepted neighbour, so nodes get
/// one; two if rows are so long that many nodes' candidates do not fit the cache (measured at 128
/// to 384 bytes, and at 3,840).
fn threads(row_bytes: usize) -> u32 {
    if row_bytes <= 1024 { 32 } else { 64 }
}

#[cfg(test)]
mod tests {
    use tagore_device::key::{self, Key};
    use tagore_device::prune::rule::Rule;
    use tagore_device::random::{Draws, Stage};
    use tagore_device::rule_kernels;

    use super::super::Chunk;
    use super::*;
    use crate::Progress;
    use crate::descent::{Descent, KnnGraph};
    use crate::gpu::{Buffer, MemoryPlan};
    use crate::prune::Strategy;
    use crate::prune::filter::Pruner;
    use crate::vectors::gpu::Origin;
    use crate::vectors::shape::with_device_type;
    use crate::vectors::space::Space;
    use crate::vectors::{ElementType, Metric, Vectors};
    use crate::{Collect, Device};

    /// A user's rule with a parameter.
    #[derive(Clone, Copy)]
    #[repr(C)]
    pub struct Far {
        factor: f32,
    }

    impl Rule for Far {
        #[inline(always)]
        fn keep(&self, d_pc: f32, d_pa: f32, d_ac: f32, t: f32) -> bool {
            self.factor * d_pc < d_ac + t * d_pa
        }
    }

    rule_kernels! {
        unsafe Far: test_far_f32 test_far_f16 test_far_u8 test_far_i8;
    }

    /// Small integers, so that duplicates and ties abound, and zero vectors among them.
    fn base(rows: usize, dim: usize, element: ElementType) -> Vectors {
        let draws = Draws::new(3, Stage::Test, 1, 0);
        let mut values: Vec<u8> = (0..rows * dim).map(|i| draws.below(i as u64, 9) as u8).collect();
        values[5 * dim..6 * dim].fill(0);
        values.copy_within(0..2 * dim, 2 * dim);
        Vectors::from_u8(values, dim).unwrap().cast(element, &Progress::silent()).unwrap().into_owned()
    }

    fn compare<T: OnDevice + RuleElement>(
        gpu: &Gpu,
        space: &Space<'_>,
        graph: &KnnGraph,
        strategy: &Strategy,
    ) {
        let nodes = [space.len() as u32 - 1, 5, 0, 2];
        let (stride, most) = (40, 12);
        let mut candidates = vec![key::NONE; nodes.len() * stride];
        let all: Vec<u32> = (0..space.len() as u32).collect();
        for (i, &node) in nodes.iter().enumerate() {
            let mut distances = Vec::new();
            space.order_distances(node, &all, &mut distances);
            let pairs = distances.iter().zip(&all).filter(|&(_, &id)| id != node);
            let mut keys: Vec<Key> = pairs.map(|(&distance, &id)| key::pack(distance, id)).collect();
            keys.sort_unstable();
            // The last node has few candidates.
            keys.truncate(if i == 3 { most - 1 } else { stride });
            candidates[i * stride..][..keys.len()].copy_from_slice(&keys);
        }
        let rows = Origin::<T>::new(gpu, space.vectors()).unwrap();
        let on_device = Base::upload(gpu, space, &rows).unwrap();
        let plan =
            MemoryPlan::new().with::<Key>("candidates", candidates.len()).with::<u32>("nodes", nodes.len());
        let memory = plan.with::<Key>("forward", space.len() * most).reserve(gpu).unwrap();
        let mut uploaded = memory.buffer("candidates").unwrap();
        uploaded.upload(&candidates).unwrap();
        let mut forward = Forward { keys: memory.buffer("forward").unwrap(), rows: space.len(), width: most };
        forward.keys.fill(0).unwrap();
        let mut rows_of: Buffer<u32> = memory.buffer("nodes").unwrap();
        rows_of.upload(&nodes).unwrap();
        for pass_short in [false, true] {
            let chunk = Chunk { order: &rows_of, range: 0..nodes.len() };
            let from = Candidates { pass_short, ..Candidates::by_place(&chunk, &uploaded, stride) };
            let shape = PruneShape::new(strategy, space.len(), space.dim(), graph.k(), space.metric());
            filter(gpu, &on_device, &shape, from, &mut forward).unwrap();
            let mut found = vec![0; space.len() * most];
            forward.keys.download(&mut found).unwrap();
            let mut pruner = Pruner::new(space, Some(graph), strategy);
            for (&node, keys) in nodes.iter().zip(candidates.chunks_exact(stride)) {
                let count = keys.iter().take_while(|&&key| key != key::NONE).count();
                let mut expected = Vec::new();
                if pass_short && count <= most {
                    expected.extend(&keys[..count]);
                } else {
                    pruner.filter(node, &keys[..count], most, &mut expected);
                }
                expected.resize(most, key::NONE);
                let found = &found[node as usize * most..][..most];
                assert_eq!(found, expected, "{strategy:?} of {node} under {}, {pass_short}", space.metric());
            }
        }
    }

    #[test]
    fn rules_accept_the_same_on_cpu_and_gpu() {
        let strategies = [
            Strategy::nsg(),
            Strategy::vamana(),
            Strategy::nssg().collect(Collect::OneHop),
            Strategy::dpg(),
            Strategy::tau_mng().filter(Filter::tau_monotonic(0.3).unwrap()),
            Strategy::nsg().filter(Filter::alpha_convergent(1.3, 0.1).unwrap()),
            Strategy::custom("far", Far { factor: 1.5 }, None, 0.25).unwrap(),
        ];
        let types = [ElementType::F32, ElementType::U8, ElementType::F16, ElementType::I8];
        for gpu in std::iter::once(Gpu::emulated(1)).chain(Gpu::cuda_for_tests()) {
            for (element, dim) in types.into_iter().zip([261, 33, 1, 4]) {
                let base = base(60, dim, element);
                for metric in [Metric::L2, Metric::Cosine, Metric::InnerProduct] {
                    let space = Space::new(&base, metric, &Progress::silent()).unwrap();
                    let graph =
                        Descent::new().metric(metric).knn(12).device(Device::Cpu).build(&base).unwrap();
                    for strategy in
                        strategies.iter().filter(|strategy| strategy.filters_on_gpu(gpu.takes_ptx()))
                    {
                        let element = space.vectors().element_type();
                        with_device_type!(element, T => compare::<T>(&gpu, &space, &graph, strategy));
                    }
                }
            }
        }
    }

    #[test]
    fn a_filter_without_a_kernel_is_an_error() {
        let gpu = Gpu::emulated(0);
        let base = base(6, 2, ElementType::U8);
        let space = Space::new(&base, Metric::L2, &Progress::silent()).unwrap();
        let plan = MemoryPlan::new().with::<Key>("keys", 4).with::<Key>("edges", 4);
        let memory = plan.with::<u32>("nodes", 1).reserve(&gpu).unwrap();
        let keys = memory.buffer("keys").unwrap();
        let mut forward = Forward { keys: memory.buffer("edges").unwrap(), rows: 4, width: 1 };
        let nodes: Buffer<u32> = memory.buffer("nodes").unwrap();
        let chunk = Chunk { order: &nodes, range: 0..1 };
        let rows = Origin::<u8>::new(&gpu, space.vectors()).unwrap();
        let base = Base::upload(&gpu, &space, &rows).unwrap();
        let from = Candidates::by_place(&chunk, &keys, 4);
        let strategy = Strategy::cagra();
        let shape = PruneShape::new(&strategy, space.len(), space.dim(), 4, space.metric());
        let error = filter(&gpu, &base, &shape, from, &mut forward).unwrap_err();
        assert!(error.to_string().contains("rank"), "{error}");
    }
}
