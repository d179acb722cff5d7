//! What a descent takes of a device: its memory, and the kernels that it launches. Buffers are
//! taken from these plans; a test checks that builds take and launch no others.

use cuda_std::f16;
use cuda_std::launch::Kernel;
use tagore_device::descent::cells::{
    MAX_EXACT, cells_finish_exact, cells_known_sets, cells_merge_candidates, cells_merge_proposals,
};
use tagore_device::descent::merge::{COUNTERS, JOIN_PROPOSALS, descent_merge};
use tagore_device::descent::renumber::{renumber_ids, renumber_values, renumber_vectors};
use tagore_device::descent::sample::{ROW, descent_gather, descent_sample, descent_start};
use tagore_device::key::Key;
use tagore_device::vectors::copy::vectors_copy_packed;

use super::cells::JoinSizes;
use super::{ALL_PAIRS, ALL_PAIRS_OF_PRODUCTS, CellSettings, DescentKernels, MAX_K};
use crate::cluster::{self, ClusterKernels, Clustering};
use crate::descent::plan::{DevicePlan, PlannedStage, most_knn};
use crate::descent::{Iterations, Purpose, Start};
use crate::gpu::{Gpu, MemoryPlan};
use crate::search::exact::gpu::{all_pairs_plan, least_plan};
use crate::vectors::gpu::{Base, ByChunks, OnDevice, ROWS, Side, bits_plan, spare_bytes};
use crate::vectors::space::Space;
use crate::{ElementType, Metric, Remedy, Result};

/// The buffers of centres that stay with their cells.
const CENTRES: [&str; 2] = cluster::KEPT_CENTRES;

/// The stage that ends a descent.
const FINISH: &str = "finish";

/// Minimum number of nodes that make enough cells to choose from.
const MIN_FOR_CELLS: usize = 768;

/// The sizes and parameters that the buffers of a descent depend on.
#[derive(Clone, Copy)]
pub(in crate::descent) struct DescentShape {
    pub n: usize,
    pub dim: usize,
    pub k: usize,
    pub metric: Metric,
    /// The start: the requested one, unless that is `Auto` or the data do not allow it. Never
    /// `Auto`.
    pub start: Start,
    pub iterations: Iterations,
    pub settings: CellSettings,
    /// Whether the device takes f32 vectors as bytes.
    pub narrowed: bool,
    /// The type of the vectors as they are given.
    pub stored: ElementType,
    /// Whether they are codes, which tiles read without rounding them.
    pub of_codes: bool,
    pub purpose: Purpose,
}

impl DescentShape {
    /// This shape with the start that a descent takes, for a requested start.
    pub(in crate::descent) fn with_start(self) -> Self {
        Self { start: self.choose_start(), ..self }
    }

    fn choose_start(&self) -> Start {
        // Cells are L2 balls, and neighbours by inner product lie anywhere.
        let is_product = self.metric == Metric::InnerProduct;
        let all_pairs = if is_product { ALL_PAIRS_OF_PRODUCTS } else { ALL_PAIRS };
        if self.k > MAX_K || self.n <= 2 * self.k || self.start == Start::Auto && self.n <= all_pairs {
            return Start::AllPairs;
        }
        let cells_possible = !is_product && self.n >= MIN_FOR_CELLS;
        match self.start {
            Start::Auto | Start::Cells if cells_possible => Start::Cells,
            Start::Auto | Start::Random => Start::Random,
            Start::Cells | Start::AllPairs => Start::AllPairs,
        }
    }

    /// Whether descent builds the graph, and not a comparison of all pairs.
    pub(in crate::descent) fn is_descent(&self) -> bool {
        self.start != Start::AllPairs
    }

    /// The first clustering, or a later one that knows the `known` cells of the first.
    pub(super) fn clustering(&self, known: Option<usize>) -> Clustering {
        self.settings.cells(self.n, self.dim, self.start, self.purpose, known)
    }

    /// Maximum number of clusterings of a start from cells.
    pub(super) fn clusterings(&self) -> usize {
        self.settings.clusterings(self.n, self.dim, self.purpose)
    }

    /// Maximum number of iterations of each phase.
    pub(super) fn phases(&self) -> (u32, u32) {
        CellSettings::iterations(self.iterations, self.start, self.purpose)
    }

    /// Whether tiles read a rounded copy of vectors of type `T`; else the values, which are put in
    /// the order of nodes meanwhile.
    pub(super) fn is_rounded<T: OnDevice>(&self) -> bool {
        T::ROUNDED && !self.of_codes
    }

    /// Whether expansions read packed bits in place of the bytes that tiles read.
    pub(super) fn is_packed(&self) -> bool {
        self.stored == ElementType::B1
    }

    /// Whether the keys of vectors of type `T` hold exact distances, but for the norm of their
    /// node: products of bytes are exact. Random neighbours have no distance before a join.
    pub(super) fn has_exact_keys<T: OnDevice>(&self) -> bool {
        let is_computed = self.phases().0 > 0 || self.start == Start::Cells;
        let is_bytes = matches!(T::TYPE, ElementType::U8 | ElementType::I8);
        is_bytes && is_computed && self.metric == Metric::L2 && self.dim <= MAX_EXACT
    }

    /// Words of 32 bits per packed vector: rows are multiples of 16 bytes.
    pub(super) fn packed_words(&self) -> usize {
        self.dim.div_ceil(128) * 4
    }

    /// Buffer of the packed vectors, if expansions read any.
    pub(super) fn packed(&self) -> MemoryPlan {
        let plan = MemoryPlan::new();
        if self.is_packed() { plan.with::<u32>("packed vectors", self.n * self.packed_words()) } else { plan }
    }

    /// Buffer of bits on their way to the device.
    fn bits(&self) -> MemoryPlan {
        if self.stored == ElementType::B1 { bits_plan(self.n, self.dim) } else { MemoryPlan::new() }
    }

    /// Buffers of the vectors.
    pub(super) fn upload<T: OnDevice>(&self) -> MemoryPlan {
        let plan = Side::<T>::plan(MemoryPlan::new(), ROWS, self.n, self.dim, self.is_rounded::<T>());
        plan.with::<f32>("mean", self.dim)
    }

    /// Buffers of the preparation of the vectors.
    pub(super) fn prepare() -> MemoryPlan {
        MemoryPlan::new().with::<u32>("largest norm", 1)
    }

    /// Buffers of the first clustering, or of a later one that knows the `known` cells of the
    /// first.
    fn cluster<T: ClusterKernels>(&self, known: Option<usize>) -> MemoryPlan {
        let request = self.clustering(known);
        cluster::plan::<T>(MemoryPlan::new(), self.n, self.dim, request)
    }

    /// Buffers of the renumbered nodes.
    pub(super) fn renumber<T: OnDevice>(&self) -> MemoryPlan {
        let copy = self.n * Side::<T>::tile_bytes(self.dim);
        let moved = if self.is_rounded::<T>() {
            MemoryPlan::new().with::<u8>("vectors", copy)
        } else {
            self.reorder::<T>()
        };
        moved.with::<T::Sum>("biases", self.n).with::<u32>("places", self.n)
    }

    /// Buffers of vectors that change their order where they are.
    pub(super) fn reorder<T: OnDevice>(&self) -> MemoryPlan {
        MemoryPlan::new().with::<u8>("vectors", spare_bytes(self.n, Side::<T>::tile_bytes(self.dim)))
    }

    /// Buffer of the lists.
    pub(super) fn lists(&self) -> MemoryPlan {
        MemoryPlan::new().with::<Key>("lists", self.n * self.k)
    }

    /// Buffers of `count` iterations of both phases together.
    pub(super) fn iterations(&self, count: u32) -> MemoryPlan {
        MemoryPlan::new()
            .with::<u32>("samples", self.n * ROW as usize)
            .with::<u32>("changes", COUNTERS as usize * count as usize)
            .with::<u64>("distances", COUNTERS as usize)
    }

    /// Further buffers of phase 1.
    pub(super) fn joins(&self) -> MemoryPlan {
        MemoryPlan::new()
            .with::<Key>("candidates", self.n * JOIN_PROPOSALS as usize)
            .with::<f32>("list bounds", self.n)
    }

    /// Buffers of the final lists.
    pub(super) fn finish(&self) -> MemoryPlan {
        MemoryPlan::new()
            .with::<Key>("nearest", self.n * self.k)
            .with::<u32>("lacking", self.n)
            .with::<u32>("lacking count", 1)
    }

    /// Bytes for the exact search that completes lists: the peak of the build less the buffers of
    /// its last stage.
    pub(super) fn room_to_complete<T: ClusterKernels>(&self) -> u64 {
        let stages = self.stages::<T>();
        let bytes = |stage: &PlannedStage| stage.buffers.bytes();
        let finish = stages.iter().find(|stage| stage.name == FINISH).map_or(0, bytes);
        stages.iter().map(bytes).max().unwrap_or(0) - finish
    }

    /// All stages, each with its own buffers and the buffers kept for later stages.
    pub(in crate::descent) fn stages<T: ClusterKernels>(&self) -> Vec<PlannedStage> {
        if self.k == 0 {
            return Vec::new();
        }
        let start = self.start;
        if start == Start::AllPairs {
            let buffers = all_pairs_plan::<T>(self.n, self.dim, self.k).and(&self.bits());
            return vec![PlannedStage { name: "exact search", buffers }];
        }
        let mut stages = Vec::new();
        let mut stage = |name, plans: &[&MemoryPlan]| {
            let buffers = plans.iter().fold(MemoryPlan::new(), |all, plan| all.and(plan));
            stages.push(PlannedStage { name, buffers });
        };
        let base = self.upload::<T>();
        stage("prepare", &[&base, &Self::prepare(), &self.bits()]);
        let clusters = self.cluster::<T>(None);
        stage("cluster", &[&base, &clusters]);
        let (members, order) = (clusters.only(&["members"]), clusters.only(&["order"]));
        let centres = clusters.only(&CENTRES);
        let renumbered = self.renumber::<T>();
        stage("order", &[&base, &members, &order, &centres, &renumbered]);
        // The values and their errors stay. Tile vectors are in the order of nodes by now.
        let original = base.only(&["rows", "row errors", "mean"]);
        let lists = self.lists();
        let rounded = self.is_rounded::<T>();
        let kept = if rounded {
            renumbered.only(&["vectors", "biases"])
        } else {
            renumbered.only(&["biases", "places"])
        };
        let nodes = kept.and(&order).and(&lists);
        if start == Start::Cells {
            let request = self.clustering(None);
            let sizes = JoinSizes {
                nodes: self.n,
                cells: request.cells,
                probes: request.probes.min(request.cells),
                assignments: CellSettings::assignments(self.n, self.dim),
                k: self.k,
            };
            let (kept, cells) = (sizes.kept_plan(), sizes.plan());
            stage("cells", &[&original, &nodes, &members, &centres, &kept, &cells]);
            if self.clusterings() > 1 {
                let clusters = self.cluster::<T>(Some(request.cells));
                stage("cluster again", &[&original, &nodes, &centres, &kept, &clusters]);
                let centres = centres.and(&clusters.only(&CENTRES));
                stage("cells again", &[&original, &nodes, &members, &centres, &kept, &cells]);
            }
        }
        let (joins, expands) = self.phases();
        let iterations = self.iterations(joins.saturating_add(expands));
        if joins > 0 {
            stage("join", &[&original, &nodes, &iterations, &self.joins()]);
        }
        if expands > 0 {
            stage("refine", &[&original, &nodes, &iterations, &self.packed()]);
        }
        let lifts = Base::<T>::lifts(if self.metric == Metric::L2 { 0 } else { self.n });
        let finish = self.finish().and(&lifts);
        if !rounded {
            stage("reorder", &[&original, &nodes, &self.reorder::<T>()]);
        }
        let nodes = renumbered.only(&["biases"]).and(&order).and(&lists);
        stage(FINISH, &[&original, &nodes, &finish]);
        // Exact search may keep the element type of the vectors.
        let least = if self.narrowed { least_plan::<f32> } else { least_plan::<T> };
        let search =
            MemoryPlan::new().with::<u8>("exact search", least(self.n, self.dim, self.k).bytes() as usize);
        stage("complete", &[&original, &nodes, &finish, &search]);
        stages
    }

    /// The kernels of a descent over vectors of type `T` on the device; none if all pairs are
    /// compared. The data decides whether a few rows need an exact search at the end.
    pub(in crate::descent) fn kernels<T: DescentKernels>(&self) -> Vec<&'static str> {
        let (n, dim, start) = (self.n, self.dim, self.start);
        if start == Start::AllPairs {
            return Vec::new();
        }
        let (joins, expands) = self.phases();
        let mut kernels = cluster::kernels::<T>(n, self.clustering(None));
        kernels.extend([
            T::PREPARATION,
            renumber_vectors::NAME,
            renumber_values::NAME,
            renumber_ids::NAME,
            if self.has_exact_keys::<T>() { cells_finish_exact::NAME } else { T::Finish::NAME },
        ]);
        if start == Start::Cells {
            let units = Side::<T>::tile_units(dim);
            kernels.extend([
                T::IntraCellJoin::name(units),
                cells_merge_candidates::NAME,
                T::CrossCellJoin::name(units),
                cells_merge_proposals::NAME,
            ]);
            if self.clusterings() > 1 {
                kernels.push(cells_known_sets::NAME);
                // Any number of known cells has the same kernels.
                kernels.extend(cluster::kernels::<T>(n, self.clustering(Some(1))));
            }
        }
        if joins > 0 {
            kernels.extend([T::Join::NAME, descent_merge::NAME]);
            if start == Start::Random {
                kernels.push(descent_start::NAME);
            } else {
                kernels.push(descent_gather::NAME);
            }
            if start != Start::Random || joins > 1 {
                kernels.push(descent_sample::NAME);
            }
        }
        if expands > 0 {
            kernels.push(descent_gather::NAME);
            if self.is_packed() {
                kernels.extend([vectors_copy_packed::NAME, T::ExpandPacked::NAME]);
            } else {
                kernels.push(T::Expand::NAME);
            }
        }
        kernels
    }

    /// Host memory throughout the descent.
    pub(in crate::descent) fn on_host(&self) -> MemoryPlan {
        Space::plan(self.n, self.dim, self.stored, self.metric)
    }

    /// The plan of a descent of vectors of type `T`.
    pub(in crate::descent) fn plan<T: ClusterKernels>(&self) -> DevicePlan {
        let keys = self.n * self.k;
        let host = self.on_host().with::<Key>("nearest", keys).with::<u32>("ids", keys);
        let host = host.with::<f32>("distances", keys);
        let (start, element) = (self.start, T::TYPE);
        DevicePlan { start, k: self.k, nodes: self.n, element, stages: self.stages::<T>(), host }
    }

    /// Fails before the first stage if a stage does not fit the device.
    pub(super) fn check<T: ClusterKernels>(&self, gpu: &Gpu) -> Result<()> {
        let (plan, free) = (self.plan::<T>(), gpu.free_memory()?);
        let Some(stage) = plan.largest_stage().filter(|stage| stage.buffers.bytes() > free) else {
            return Ok(());
        };
        let fits = |k| Self { k, ..*self }.plan::<T>().peak_bytes() <= free;
        let mut remedies = Vec::from_iter(most_knn(self.k, fits).map(Remedy::Knn));
        if size_of::<T>() > 2 && self.plan::<f16>().peak_bytes() <= free {
            remedies.push(Remedy::ElementType(ElementType::F16));
        } else if size_of::<T>() > 1 && self.plan::<u8>().peak_bytes() <= free {
            remedies.push(Remedy::ElementType(ElementType::U8));
        }
        remedies.push(Remedy::Cpu);
        Err(stage.does_not_fit(gpu, free, remedies))
    }
}
