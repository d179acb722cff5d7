//! CAGRA's filter on a device: the edges with the fewest detours.

use cuda_std::launch::Kernel;
use tagore_device::key::Key;
use tagore_device::prune::detours::{DETOUR_THREADS, Detours, prune_detours};
use tagore_device::prune::places::MAX_PLACES;

use super::ids::take_ids;
use super::{Candidates, Forward, KeyRows};
use crate::Result;
use crate::gpu::{Buffer, Gpu, MemoryPlan};
use crate::prune::strategy::{MAX_CANDIDATES, Strategy};

const _: () = assert!(MAX_CANDIDATES <= MAX_PLACES as usize);

/// Ids of the k-NN lists. They take half the memory of the keys and suffice to count detours.
pub(super) struct RankedLists {
    ids: Buffer<u32>,
    /// Ids from one list to the next: a multiple of four, for reads of 16 bytes.
    stride: usize,
}

impl RankedLists {
    fn stride(k: usize) -> usize {
        k.next_multiple_of(4).max(4)
    }

    /// The device memory of `n` lists of `k`.
    pub(super) fn plan(plan: MemoryPlan, n: usize, k: usize) -> MemoryPlan {
        plan.with::<u32>("list ids", n * Self::stride(k))
    }

    /// Copies the ids of `n` lists of `k` keys.
    pub(super) fn new(gpu: &Gpu, keys: &Buffer<Key>, n: usize, k: usize) -> Result<Self> {
        let mut ids = Self::plan(MemoryPlan::new(), n, k).reserve(gpu)?.buffer("list ids")?;
        take_ids(gpu, KeyRows { keys, rows: n, width: k }, &mut ids, Self::stride(k))?;
        Ok(Self { ids, stride: Self::stride(k) })
    }
}

/// Filters candidates into forward edges by their detours.
pub(super) fn rank(
    gpu: &Gpu,
    strategy: &Strategy,
    lists: &RankedLists,
    candidates: Candidates<'_>,
    forward: &mut Forward,
) -> Result<()> {
    let (nodes, most) = (candidates.chunk.len(), forward.width);
    let detours = Detours {
        candidates: candidates.keys.view(),
        lists: lists.ids.view(),
        nodes: candidates.chunk.nodes(),
        forward: forward.keys.view_mut(),
        stride: candidates.stride as u32,
        count: candidates.count as u32,
        by_row: u32::from(candidates.by_row),
        list_stride: lists.stride as u32,
        most: most as u32,
        strict: u32::from(strategy.strict_detours),
        limit: strategy.filter.threshold().unwrap_or(f32::INFINITY),
        pass_short: u32::from(candidates.pass_short),
    };
    // SAFETY: the buffers have the lengths that the arguments give, and outlive the work.
    unsafe { gpu.launch::<prune_detours>([nodes as u32, 1, 1], DETOUR_THREADS, (detours,))? };
    let of_lists = candidates.count * lists.stride * size_of::<u32>();
    let of_keys = (candidates.count + most) * size_of::<Key>();
    gpu.count_work(prune_detours::NAME, (nodes * (of_lists + of_keys)) as u64, 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use tagore_device::key;

    use super::super::Chunk;
    use super::super::testing::{cases, devices, download, forward_on_cpu, list_keys, upload};
    use super::*;
    use crate::Metric;
    use crate::prune::collect::Collector;
    use crate::prune::strategy::{Collect, Filter};

    #[test]
    fn candidates_are_accepted_as_on_the_cpu() {
        cases(|space, graph| {
            let (n, k) = (graph.len(), graph.k());
            let order: Vec<u32> = (0..n as u32).rev().collect();
            let strategies = [
                (Strategy::cagra(), 5),
                (Strategy::cagra().strict_detours(true).candidates(7), 9),
                (Strategy::cagra().filter(Filter::rank(1.0).unwrap()).collect(Collect::TwoHop), 40),
            ];
            for (strategy, most) in strategies {
                let expected = forward_on_cpu(space, graph, &strategy, most);
                let stride = n;
                let mut collector =
                    Collector::new(space, graph, &[], strategy.collect_from(k), strategy.candidates);
                let (mut keys, mut one) = (Vec::new(), Vec::new());
                for &node in &order {
                    collector.collect(node, &mut one);
                    one.resize(stride, key::NONE);
                    keys.extend_from_slice(&one);
                }
                for gpu in devices() {
                    let lists = RankedLists::new(&gpu, &upload(&gpu, &list_keys(graph)), n, k).unwrap();
                    let (keys, nodes) = (upload(&gpu, &keys), upload(&gpu, &order));
                    let chunk = Chunk { order: &nodes, range: 0..n };
                    let candidates = Candidates::by_place(&chunk, &keys, stride);
                    let keys = upload(&gpu, &vec![1u64; n * most]);
                    let mut forward = Forward { keys, rows: n, width: most };
                    rank(&gpu, &strategy, &lists, candidates, &mut forward).unwrap();
                    assert_eq!(download(&forward.keys, n * most), expected);
                }
            }
        });
    }

    #[test]
    fn lists_are_their_own_candidates() {
        cases(|space, graph| {
            // Under cosine lists have other distances.
            if space.metric() == Metric::Cosine {
                return;
            }
            let (n, k, strategy) = (graph.len(), graph.k(), Strategy::cagra().candidates(6));
            let order: Vec<u32> = (0..n as u32).rev().collect();
            let expected = forward_on_cpu(space, graph, &strategy, 4);
            for gpu in devices() {
                let keys = upload(&gpu, &list_keys(graph));
                let lists = RankedLists::new(&gpu, &keys, n, k).unwrap();
                let count = k.min(strategy.candidates);
                let (nodes, edges) = (upload(&gpu, &order), upload(&gpu, &vec![1u64; n * 4]));
                let chunk = Chunk { order: &nodes, range: 0..n };
                let candidates = Candidates::by_place(&chunk, &keys, k);
                let candidates = Candidates { count, by_row: true, ..candidates };
                let mut forward = Forward { keys: edges, rows: n, width: 4 };
                rank(&gpu, &strategy, &lists, candidates, &mut forward).unwrap();
                assert_eq!(download(&forward.keys, n * 4), expected);
            }
        });
    }
}
