//! CAGRA's filter on a device: the edges with the fewest detours.

use cuda_std::launch::Kernel;
use cuda_std::memory::Global;
use tagore_device::descent::key::Key;
use tagore_device::prune::detours::{DETOUR_THREADS, Detours};
use tagore_device::prune::places::MOST_PLACES;

use super::ids::take_ids;
use crate::Result;
use crate::gpu::{Buffer, Gpu, MemoryPlan};
use crate::prune::strategy::{MAX_CANDIDATES, Strategy};

const _: () = assert!(MAX_CANDIDATES <= MOST_PLACES as usize);

/// The ids of the k-NN lists: half of what the lists take, and all that counting reads of them.
pub(super) struct RankedLists {
    ids: Buffer<u32>,
    /// Ids from one list to the next: pieces of four begin at multiples of 16 bytes.
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

    /// Takes the ids of `n` lists of `k` keys.
    pub(super) fn new(gpu: &Gpu, keys: &Buffer<Key>, n: usize, k: usize) -> Result<Self> {
        let mut ids = Self::plan(MemoryPlan::new(), n, k).reserve(gpu)?.buffer("list ids")?;
        take_ids(gpu, keys, (n, k), &mut ids, Self::stride(k))?;
        Ok(Self { ids, stride: Self::stride(k) })
    }
}

/// Candidates of nodes, nearest first.
#[derive(Clone, Copy)]
pub(super) struct Candidates<'a> {
    /// `stride` keys for each node.
    pub keys: &'a Buffer<Key>,
    /// Keys from one node to the next.
    pub stride: usize,
    /// How many of them are candidates: at most `stride`.
    pub count: usize,
    /// Whether they lie by rows, as the k-NN lists do; else by the places of the nodes.
    pub by_row: bool,
    /// Whether nodes of no more than are accepted keep them all.
    pub pass_short: bool,
}

/// Writes to `forward` at most `most` of the candidates of each of `nodes` (a row each, and how many), in the order
/// in which they are accepted, `most` keys for each row. `K` is [`prune_detours`] or, to compare with,
/// [`prune_detours_unbalanced`].
///
/// [`prune_detours`]: tagore_device::prune::detours::prune_detours
/// [`prune_detours_unbalanced`]: tagore_device::prune::detours::prune_detours_unbalanced
pub(super) fn rank<K: Kernel<Arguments = (Detours,)>>(
    gpu: &Gpu,
    strategy: &Strategy,
    lists: &RankedLists,
    candidates: Candidates<'_>,
    (nodes, node_count): (Global<u32>, usize),
    forward: &mut Buffer<Key>,
    most: usize,
) -> Result<()> {
    let detours = Detours {
        candidates: candidates.keys.view(),
        lists: lists.ids.view(),
        nodes,
        forward: forward.view_mut(),
        stride: candidates.stride as u32,
        count: candidates.count as u32,
        by_row: u32::from(candidates.by_row),
        list_stride: lists.stride as u32,
        most: most as u32,
        strict: u32::from(strategy.strict_detours),
        limit: strategy.threshold.unwrap_or(f32::INFINITY),
        pass_short: u32::from(candidates.pass_short),
    };
    // SAFETY: the buffers hold what the sizes say, and outlive the work.
    unsafe { gpu.launch::<K>([node_count as u32, 1, 1], DETOUR_THREADS, (detours,))? };
    let of_lists = candidates.count * lists.stride * size_of::<u32>();
    let of_keys = (candidates.count + most) * size_of::<Key>();
    gpu.count_work::<K>((node_count * (of_lists + of_keys)) as u64, 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use tagore_device::descent::key;
    use tagore_device::prune::detours::{prune_detours, prune_detours_unbalanced};

    use super::super::testing::{cases, devices, download, forward_on_cpu, list_keys, upload};
    use super::*;
    use crate::Metric;
    use crate::prune::collect::Collector;
    use crate::prune::strategy::Collect;

    #[test]
    fn candidates_are_accepted_as_on_the_cpu() {
        cases(|space, graph| {
            let (n, k) = (graph.len(), graph.k());
            let order: Vec<u32> = (0..n as u32).rev().collect();
            let strategies = [
                (Strategy::cagra(), 5),
                (Strategy::cagra().strict_detours(true).candidates(7), 9),
                (Strategy::cagra().threshold(1.0).collect(Collect::TwoHop), 40),
            ];
            for (strategy, most) in strategies {
                let expected = forward_on_cpu(space, graph, &strategy, most);
                let stride = n;
                let mut collector = Collector::new(space, graph, &[], strategy.collect, strategy.candidates);
                let (mut keys, mut one) = (Vec::new(), Vec::new());
                for &node in &order {
                    collector.collect(node, &mut one);
                    one.resize(stride, key::NONE);
                    keys.extend_from_slice(&one);
                }
                for gpu in devices() {
                    let lists = RankedLists::new(&gpu, &upload(&gpu, &list_keys(graph)), n, k).unwrap();
                    let (keys, nodes) = (upload(&gpu, &keys), upload(&gpu, &order));
                    let candidates =
                        Candidates { keys: &keys, stride, count: stride, by_row: false, pass_short: false };
                    let mut forward = upload(&gpu, &vec![1u64; n * most]);
                    let to = (nodes.view(), n);
                    rank::<prune_detours>(&gpu, &strategy, &lists, candidates, to, &mut forward, most)
                        .unwrap();
                    assert_eq!(download(&forward, n * most), expected);
                    forward.fill(1).unwrap();
                    rank::<prune_detours_unbalanced>(
                        &gpu,
                        &strategy,
                        &lists,
                        candidates,
                        to,
                        &mut forward,
                        most,
                    )
                    .unwrap();
                    assert_eq!(download(&forward, n * most), expected);
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
                let candidates =
                    Candidates { keys: &keys, stride: k, count, by_row: true, pass_short: false };
                let (nodes, mut forward) = (upload(&gpu, &order), upload(&gpu, &vec![1u64; n * 4]));
                let to = (nodes.view(), n);
                rank::<prune_detours>(&gpu, &strategy, &lists, candidates, to, &mut forward, 4).unwrap();
                assert_eq!(download(&forward, n * 4), expected);
            }
        });
    }
}
