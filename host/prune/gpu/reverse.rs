//! Reverse edges on a device: counted, scanned and sorted.

use cuda_std::launch::Kernel;
use tagore_device::key::Key;
use tagore_device::prune::reverse::{
    EDGE_SLOTS, EDGE_THREADS, Edges, Sources, prune_edge_sources, prune_edge_targets, prune_edges,
    prune_edges_count,
};
use tagore_device::sort::{scan_threads, sort_scan};

use super::KeyRows;
use crate::Result;
use crate::gpu::sort::{self, SortRoom};
use crate::gpu::{Buffer, Gpu, MemoryPlan};

/// Maximum number of forward slots of all rows: a slot number is half a key.
const MAX_SLOTS: usize = u32::MAX as usize - EDGE_SLOTS as usize;

/// The order of the reverse edges of a row; ties by source.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Rank {
    /// The distance in the forward key.
    Distance,
    /// The place in the source's row (CAGRA).
    Place,
}

/// Sources of the edges to each row.
pub(super) struct Reverse {
    /// Keys of the rank above the source, ascending within each row.
    pub sources: Buffer<Key>,
    /// Row offsets, and the number of all edges.
    pub offsets: Buffer<u32>,
}

/// Bits of the numbers below `n`.
fn bits_below(n: usize) -> u32 {
    usize::BITS - n.saturating_sub(1).leading_zeros()
}

impl Reverse {
    /// Buffers of [`edges`](Self::edges) that are kept: the result ends in the spare edges.
    pub(super) const KEPT: [&str; 2] = ["spare edges", "reverse offsets"];

    /// The kernels that reverse edges in this order.
    pub(super) fn kernels(rank: Rank) -> impl Iterator<Item = &'static str> {
        let targets = (rank == Rank::Distance).then_some(prune_edge_targets::NAME);
        let kernels = [prune_edges_count::NAME, prune_edges::NAME, prune_edge_sources::NAME];
        kernels.into_iter().chain(targets).chain(sort::KERNELS)
    }

    /// Buffers for counting the edges in `slots` slots.
    pub(super) fn counts(slots: usize) -> MemoryPlan {
        MemoryPlan::new()
            .with::<u32>("edge counts", slots.div_ceil(EDGE_SLOTS as usize))
            .with::<u32>("edge total", 1)
    }

    /// Buffers for reversing `count` edges of `rows` rows.
    pub(super) fn edges(rows: usize, count: usize) -> MemoryPlan {
        let plan = MemoryPlan::new()
            .with::<u64>("edges", count)
            .with::<u64>("spare edges", count)
            .with::<u32>("reverse offsets", rows + 1);
        SortRoom::plan(plan, count)
    }

    /// Reverses forward edges, with [`NONE`] in empty slots.
    ///
    /// [`NONE`]: tagore_device::key::NONE
    ///
    /// # Errors
    /// If there are too many slots, or the device lacks memory.
    pub(super) fn new(gpu: &Gpu, forward: KeyRows<'_>, rank: Rank) -> Result<Self> {
        let KeyRows { keys: forward, rows, width } = forward;
        let slots = rows * width;
        if slots > MAX_SLOTS {
            return Err(gpu.error(format_args!(
                "found {rows} rows of {width} edges, expected at most {MAX_SLOTS} edges in all"
            )));
        }
        let memory = Self::counts(slots).reserve(gpu)?;
        let (mut starts, mut total) = (memory.buffer("edge counts")?, memory.buffer("edge total")?);
        let blocks = slots.div_ceil(EDGE_SLOTS as usize) as u32;
        let grid = [blocks, 1, 1];
        let by_place = u32::from(rank == Rank::Place);
        let mut edges = Edges {
            forward: forward.view(),
            starts: starts.view_mut(),
            // Counting writes no keys.
            keys: starts.view_mut().cast(),
            rows: rows as u32,
            width: width as u32,
            by_place,
            padding: 0,
        };
        // SAFETY: `forward` holds `width` keys for each of `rows` rows, `starts` a count for each
        // block of slots and `total` one; all outlive the work.
        unsafe {
            gpu.launch::<prune_edges_count>(grid, EDGE_THREADS, (edges,))?;
            let counts = (starts.view_mut(), total.view_mut(), blocks);
            gpu.launch::<sort_scan>([1, 1, 1], scan_threads(blocks), counts)?;
        }
        let mut count = [0];
        total.download(&mut count)?;
        let count = count[0];

        let memory = Self::edges(rows, count as usize).reserve(gpu)?;
        let (mut keys, mut spare): (Buffer<u64>, Buffer<u64>) =
            (memory.buffer("edges")?, memory.buffer("spare edges")?);
        let (mut offsets, mut room) = (memory.buffer("reverse offsets")?, SortRoom::new(&memory)?);
        if count == 0 {
            offsets.fill(0)?;
            return Ok(Self { sources: keys, offsets });
        }
        edges.keys = keys.view_mut();
        let (len, per_edge) = (count as usize, [count.div_ceil(EDGE_THREADS), 1, 1]);
        // SAFETY: `forward` and `starts` are those of the count, which found as many edges as
        // `keys` holds; all outlive the work.
        unsafe { gpu.launch::<prune_edges>(grid, EDGE_THREADS, (edges,))? };
        if rank == Rank::Distance {
            room.sort(gpu, &mut keys, &mut spare, len, 32..64)?;
            let targets = (keys.view_mut(), forward.view(), count);
            // SAFETY: `keys` holds `count` slots of `forward`, and both outlive the work.
            unsafe { gpu.launch::<prune_edge_targets>(per_edge, EDGE_THREADS, targets)? };
        }
        // The sort is stable, so the sources of a target stay in rank order.
        room.sort(gpu, &mut keys, &mut spare, len, 32..32 + bits_below(rows))?;
        let sources = Sources {
            keys: keys.view(),
            forward: forward.view(),
            sources: spare.view_mut(),
            offsets: offsets.view_mut(),
            count,
            rows: rows as u32,
            width: width as u32,
            by_place,
        };
        // SAFETY: `keys` and `spare` hold `count` edges, whose targets are rows, `offsets` a number
        // for each row and one more, and all outlive the work.
        unsafe { gpu.launch::<prune_edge_sources>(per_edge, EDGE_THREADS, (sources,))? };
        let (slots, count) = (slots as u64 * 8, u64::from(count) * 8);
        gpu.count_work(prune_edges_count::NAME, slots, 0);
        gpu.count_work(prune_edges::NAME, slots + count, 0);
        gpu.count_work(prune_edge_sources::NAME, 2 * count, 0);
        // After this wait the memory of buffers dropped here serves larger ones.
        gpu.synchronize()?;
        Ok(Self { sources: spare, offsets })
    }
}

#[cfg(test)]
mod tests {
    use tagore_device::key::NONE;

    use super::super::testing::{cases, devices, download, forward_on_cpu, upload};
    use super::*;
    use crate::descent::reverse;
    use crate::prune::Strategy;

    #[test]
    fn edges_are_reversed_as_on_the_cpu() {
        cases(|space, graph| {
            let (n, width) = (graph.len(), 9);
            // NSG's filter leaves some slots empty.
            let of = |strategy| forward_on_cpu(space, graph, &strategy, width);
            for (forward, rank) in [
                (of(Strategy::nsg()), Rank::Distance),
                (of(Strategy::nsg()), Rank::Place),
                (of(Strategy::cagra()), Rank::Place),
                (vec![NONE; n * width], Rank::Distance),
            ] {
                let expected = reverse::Reverse::new(n, |source, visit| {
                    let row = &forward[source as usize * width..][..width];
                    for (&key, place) in row.iter().zip(0..).filter(|edge| *edge.0 != NONE) {
                        visit(key as u32, if rank == Rank::Place { place } else { (key >> 32) as u32 });
                    }
                })
                .unwrap();
                for gpu in devices() {
                    let found =
                        Reverse::new(&gpu, KeyRows { keys: &upload(&gpu, &forward), rows: n, width }, rank)
                            .unwrap();
                    let offsets = download(&found.offsets, n + 1);
                    let sources = download(&found.sources, offsets[n] as usize);
                    for node in 0..n {
                        let sources = &sources[offsets[node] as usize..offsets[node + 1] as usize];
                        assert!(sources.iter().map(|&key| key as u32).eq(expected.sources(node as u32)));
                    }
                }
            }
        });
    }

    #[test]
    fn too_many_edges_are_an_error() {
        let gpu = Gpu::emulated(0);
        let edges = upload(&gpu, &[NONE]);
        let forward = KeyRows { keys: &edges, rows: 1 << 31, width: 2 };
        let error = Reverse::new(&gpu, forward, Rank::Place);
        assert!(error.err().unwrap().to_string().contains("expected at most 4294965247 edges"));
    }
}
