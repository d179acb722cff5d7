//! The sizes and parameters of a pruning, and what follows from them: its stages. Buffers are taken
//! from these plans; a test checks that builds take and launch no others.

use cuda_std::launch::Kernel;
use tagore_device::key::Key;
use tagore_device::prune::collect::collect_shared_bytes;
use tagore_device::prune::detours::{detour_shared_bytes, prune_detours};
use tagore_device::prune::filter::filter_shared_bytes;
use tagore_device::prune::gram::{gram_shared_bytes, prune_gram_spread};
use tagore_device::prune::ids::prune_ids;
use tagore_device::prune::path::path_shared_bytes;
use tagore_device::prune::rule::Form;
use tagore_device::prune::store::{MERGED, prune_merge, prune_store};

use super::filter::takes_products;
use super::rank::RankedLists;
use super::reverse::{Rank, Reverse};
use super::{PruneKernels, medoid, path};
use crate::Metric;
use crate::descent::GpuLists;
use crate::gpu::{MemoryPlan, PlannedStage, Stages};
use crate::index::RANDOM_ENTRIES;
use crate::prune::collect::{HOP, PATH};
use crate::prune::strategy::{Collect, Entry, Filter, Store, Strategy};
use crate::vectors::Element;
use crate::vectors::gpu::Base;

/// Candidates on the device at a time: 512 MiB of keys.
const CANDIDATES: usize = 1 << 26;

/// Minimum number of nodes of a chunk: fewer leave a device idle.
const MIN_AT_ONCE: usize = 256;

/// A strategy, and the sizes of a graph that it prunes.
#[derive(Clone, Copy)]
pub(crate) struct PruneShape<'a> {
    pub strategy: &'a Strategy,
    pub n: usize,
    pub dim: usize,
    /// Neighbours in the lists of the graph.
    pub k: usize,
    pub metric: Metric,
    pub collect: Collect,
}

impl<'a> PruneShape<'a> {
    /// The shape for `n` vectors of `dim` components and their graph with lists of `k` under
    /// `metric`.
    pub(crate) fn new(strategy: &'a Strategy, n: usize, dim: usize, k: usize, metric: Metric) -> Self {
        Self { strategy, n, dim, k, metric, collect: strategy.collect_from(k) }
    }

    /// Maximum bytes of shared memory per block, over all kernels.
    pub(crate) fn block_bytes(&self) -> u32 {
        let (k, dim, entries) = (self.k as u32, self.dim as u32, self.entries() as u32);
        let collect = match self.collect {
            _ if self.takes_lists() => 0,
            Collect::OneHop => collect_shared_bytes(k, 0, dim),
            Collect::TwoHop => collect_shared_bytes(k, HOP as u32, dim),
            Collect::Path => path_shared_bytes(dim, k, entries, PATH.expansions as u32),
        };
        let again = if self.strategy.store == Store::Refilter { MERGED } else { 0 };
        let candidates = again.max(self.limit() as u32);
        let filter = match self.strategy.filter.rule().map(|rule| rule.form()) {
            // No less than the wavefront.
            Some(Form::Score) => gram_shared_bytes(candidates, dim),
            Some(Form::Keep) => filter_shared_bytes(candidates, dim, Form::Keep),
            None => detour_shared_bytes(candidates),
        };
        collect.max(filter)
    }

    /// Whether a GPU with `shared` bytes of shared memory per block prunes this graph; else the CPU
    /// does. `takes_ptx` says whether the GPU's kernels come from PTX.
    pub(crate) fn fits_gpu(&self, takes_ptx: bool, shared: u32) -> bool {
        self.k > 0 && self.strategy.filters_on_gpu(takes_ptx) && self.block_bytes() <= shared
    }

    /// The order of reverse edges. CAGRA ranks them by place. Edges that are filtered again are
    /// ranked by distance.
    pub(super) fn rank(&self) -> Rank {
        let by_place = self.strategy.counts_detours() && self.strategy.store == Store::Interleave;
        if by_place { Rank::Place } else { Rank::Distance }
    }

    /// Entry points of searches for candidates.
    pub(crate) fn entries(&self) -> usize {
        match self.strategy.entry {
            Entry::Medoid => 1,
            Entry::Random => RANDOM_ENTRIES.min(self.n),
        }
    }

    /// Whether the lists of the graph serve as candidates without a copy.
    pub(super) fn takes_lists(&self) -> bool {
        self.strategy.counts_detours() && self.collect == Collect::OneHop && self.metric != Metric::Cosine
    }

    /// Maximum number of candidates of a node.
    pub(crate) fn limit(&self) -> usize {
        self.strategy.candidates.min(match self.collect {
            Collect::OneHop => self.k,
            Collect::TwoHop => self.k + HOP * HOP,
            Collect::Path => path::most(self.k, self.entries()),
        })
    }

    /// Nodes whose candidates are on the device at a time. At most a quarter of the nodes, so that
    /// candidates take less than the kept buffers; more if they fit the memory of the later
    /// reversal of edges.
    pub(super) fn collected_at_once(&self) -> usize {
        let few = (CANDIDATES / self.limit()).clamp(1, self.n.div_ceil(4).max(MIN_AT_ONCE));
        let candidates = (self.limit() * size_of::<Key>()) as u64;
        let entries = (self.entries() * size_of::<u32>()) as u64;
        let before = self.lists().only(&["lists"]).bytes() + entries;
        let room = self.reversing().bytes().saturating_sub(before) / candidates;
        few.max(usize::try_from(room).unwrap_or(usize::MAX)).min(self.n)
    }

    /// Nodes whose forward and reverse edges are filtered at a time: as many as fit the former
    /// memory of lists and candidates.
    pub(super) fn merged_at_once(&self) -> usize {
        let merged = MERGED as usize * size_of::<Key>();
        let before = self.candidates().bytes() + self.lists().only(&["lists"]).bytes();
        let after = self.reverse().bytes() + self.rows().bytes();
        let room = usize::try_from(before.saturating_sub(after)).unwrap_or(usize::MAX) / merged;
        room.clamp(MIN_AT_ONCE, CANDIDATES / MERGED as usize).min(self.n)
    }

    /// Buffer of the forward edges.
    pub(super) fn forward(&self) -> MemoryPlan {
        MemoryPlan::new().with::<Key>("forward edges", self.n * self.strategy.degree)
    }

    /// Candidates of a chunk of nodes, and the entries of searches for them.
    pub(super) fn candidates(&self) -> MemoryPlan {
        if self.takes_lists() {
            return MemoryPlan::new();
        }
        MemoryPlan::new()
            .with::<Key>("candidates", self.collected_at_once() * self.limit())
            .with::<u32>("entries", self.entries())
    }

    /// Buffer of the rows of the index.
    pub(super) fn rows(&self) -> MemoryPlan {
        MemoryPlan::new().with::<u32>("index rows", self.n * self.strategy.degree)
    }

    /// Forward and reverse edges of a chunk of nodes.
    pub(super) fn merged(&self) -> MemoryPlan {
        match self.strategy.store {
            Store::Interleave => MemoryPlan::new(),
            Store::Refilter => {
                MemoryPlan::new().with::<Key>("merged edges", self.merged_at_once() * MERGED as usize)
            }
        }
    }

    /// The lists of the graph, and an order of the nodes.
    fn lists(&self) -> MemoryPlan {
        GpuLists::plan(MemoryPlan::new(), self.n, self.k)
    }

    /// The ids of the lists, where detours are counted.
    fn list_ids(&self) -> MemoryPlan {
        if self.strategy.counts_detours() {
            RankedLists::plan(MemoryPlan::new(), self.n, self.k)
        } else {
            MemoryPlan::new()
        }
    }

    /// Buffers for reversing edges. They have room for all candidates, since the number of accepted
    /// ones is not known before.
    fn reversing(&self) -> MemoryPlan {
        let degree = self.strategy.degree;
        let (slots, edges) = (self.n * degree, self.n * degree.min(self.limit()));
        Reverse::counts(slots).and(&Reverse::edges(self.n, edges))
    }

    /// Buffers of the reverse edges.
    fn reverse(&self) -> MemoryPlan {
        self.reversing().only(&Reverse::KEPT)
    }

    /// All stages of pruning a base of type `T`, which is on the device. The kernels of a user's
    /// rule are not among theirs.
    pub(crate) fn stages<T: PruneKernels>(&self) -> Vec<PlannedStage> {
        let base = Base::<T>::plan(self.n, self.dim, self.metric);
        let mut stages = Stages::over(base.and(&self.lists()));
        if self.strategy.entry == Entry::Medoid {
            let kernels = [T::MedoidSums::NAME, T::MedoidNearest::NAME];
            stages.add("medoid", &medoid::plan(self.n, self.dim), kernels);
        }
        stages.hold(&self.list_ids());
        stages.hold(&self.forward());
        let copy = self.strategy.counts_detours().then_some(prune_ids::NAME);
        let collect = (!self.takes_lists()).then(|| self.collect_kernel::<T>());
        let filter = self.filter_kernel::<T>();
        let kernels = copy.into_iter().chain(collect).chain(filter);
        stages.add("collect and filter", &self.candidates(), kernels);
        stages.free(&["lists"]);
        let kernels = Reverse::kernels(self.rank());
        stages.add_and_keep("reverse edges", &self.reversing(), &Reverse::KEPT, kernels);
        stages.hold(&self.rows());
        let kernels = match self.strategy.store {
            Store::Interleave => vec![prune_store::NAME],
            Store::Refilter => vec![prune_merge::NAME, prune_ids::NAME].into_iter().chain(filter).collect(),
        };
        stages.add("store", &self.merged(), kernels);
        stages.into_vec()
    }

    fn collect_kernel<T: PruneKernels>(&self) -> &'static str {
        match self.collect {
            Collect::Path => path::kernel::<T>(self.dim),
            Collect::OneHop | Collect::TwoHop => T::Collect::NAME,
        }
    }

    /// The kernel of the filter; none of a rule that brings its own.
    fn filter_kernel<T: PruneKernels>(&self) -> Option<&'static str> {
        match &self.strategy.filter {
            Filter::Rank { .. } => Some(prune_detours::NAME),
            Filter::Custom(custom) if custom.ptx.is_some() => None,
            _ if takes_products::<T>(self) => Some(prune_gram_spread::NAME),
            filter => filter.rule().map(|rule| rule.kernel(<T as Element>::TYPE)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_fit_the_memory_of_other_stages() {
        for (n, k, degree) in [(100, 20, 8), (10_000, 96, 50), (1_000_000, 96, 32), (50_000_000, 32, 64)] {
            for strategy in Strategy::all() {
                let strategy = strategy.degree(degree);
                let shape = PruneShape::new(&strategy, n, 24, k, Metric::L2);
                let bytes: Vec<u64> =
                    shape.stages::<f32>().iter().map(|stage| stage.buffers.bytes()).collect();
                let (collected, merged) = (shape.collected_at_once(), shape.merged_at_once());
                assert!((1..=n).contains(&collected) && (1..=n).contains(&merged));
                // Reversing edges cannot be split into pieces.
                let [.., collect, reverse, store] = bytes[..] else { panic!("{bytes:?}") };
                let few = CANDIDATES.max(MIN_AT_ONCE * shape.limit());
                assert!(collected * shape.limit() <= few || collect <= reverse, "{n}: {bytes:?}");
                let merged = shape.merged().bytes();
                let least = (MIN_AT_ONCE.min(n) * MERGED as usize * size_of::<Key>()) as u64;
                assert!(store <= collect || merged <= least, "{n}: {bytes:?}");
            }
        }
    }

    #[test]
    fn short_lists_of_long_rows_are_planned_tightly() {
        // Collecting takes the same memory whatever a rule accepts.
        for (n, k, degree) in
            [(200_000, 32, 50), (1_000_000, 24, 50), (10_000_000, 32, 50), (50_000_000, 24, 50)]
        {
            for strategy in Strategy::all().into_iter().filter(|strategy| !strategy.counts_detours()) {
                let name = strategy.kind().to_owned();
                let strategy = strategy.degree(degree);
                let shape = PruneShape::new(&strategy, n, 96, k, Metric::L2);
                let stages = shape.stages::<f32>();
                let taken = |name| stages.iter().find(|stage| stage.name == name).unwrap().buffers.bytes();
                let planned = stages.iter().map(|stage| stage.buffers.bytes()).max().unwrap();
                let over = planned - taken("collect and filter");
                assert!(over <= (planned / 11).max(32 << 20), "{name}, {n}, {k}: {over} of {planned}");
            }
        }
    }
}
