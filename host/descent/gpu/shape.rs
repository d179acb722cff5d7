//! The sizes and parameters of a descent, its start, and the list of its stages. Each stage is
//! planned in the file that runs it.

use cuda_std::f16;
use cuda_std::launch::Kernel;
use tagore_device::descent::cells::MAX_EXACT;
use tagore_device::key::Key;
use tagore_device::vectors::copy::vectors_copy_bits;

use super::{ALL_PAIRS, ALL_PAIRS_OF_PRODUCTS, CellSettings, DescentKernels, MAX_K};
use crate::cluster::{self, Clustering};
use crate::descent::plan::{DevicePlan, most_knn};
use crate::descent::{Iterations, Purpose, Start};
use crate::gpu::{Gpu, MemoryPlan, PlannedStage, Stages};
use crate::search::exact::gpu::{all_pairs_plan, kernels as exact_kernels};
use crate::vectors::gpu::{OnDevice, bits_plan};
use crate::vectors::space::Space;
use crate::{ElementType, Metric, Remedy, Result};

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

    /// Whether the vectors are bits.
    pub(super) fn is_bits(&self) -> bool {
        self.stored == ElementType::B1
    }

    /// Whether the keys of vectors of type `T` hold exact distances, but for the norm of their
    /// node: products of bytes are exact. Random neighbours have no distance before a join.
    pub(super) fn has_exact_keys<T: OnDevice>(&self) -> bool {
        let is_computed = self.phases().0 > 0 || self.start == Start::Cells;
        let is_bytes = matches!(T::TYPE, ElementType::U8 | ElementType::I8);
        is_bytes && is_computed && self.metric == Metric::L2 && self.dim <= MAX_EXACT
    }

    /// Buffer of bits on their way to the device.
    pub(super) fn bits(&self) -> MemoryPlan {
        if self.is_bits() { bits_plan(self.n, self.dim) } else { MemoryPlan::new() }
    }

    /// The kernel that widens bits to bytes, if the vectors are bits.
    pub(super) fn bits_kernel(&self) -> Option<&'static str> {
        self.is_bits().then_some(vectors_copy_bits::NAME)
    }

    /// Buffer of the lists.
    pub(super) fn lists(&self) -> MemoryPlan {
        MemoryPlan::new().with::<Key>("lists", self.n * self.k)
    }

    /// All stages of a build from vectors of type `T`.
    pub(in crate::descent) fn stages<T: DescentKernels>(&self) -> Vec<PlannedStage> {
        if self.k == 0 {
            return Vec::new();
        }
        let mut stages = Stages::default();
        if !self.is_descent() {
            let buffers = all_pairs_plan::<T>(self.n, self.dim, self.k).and(&self.bits());
            let kernels = exact_kernels::<T>(self.dim).into_iter().chain(self.bits_kernel());
            stages.add("exact search", &buffers, kernels);
            return stages.into_vec();
        }
        self.plan_order::<T>(&mut stages);
        stages.hold(&self.lists());
        if self.start == Start::Cells {
            self.plan_cells::<T>(&mut stages);
        }
        stages.free(&cluster::KEPT);
        self.plan_phases::<T>(&mut stages);
        self.plan_finish::<T>(&mut stages);
        stages.into_vec()
    }

    /// Host memory throughout the descent.
    pub(in crate::descent) fn on_host(&self) -> MemoryPlan {
        Space::plan(self.n, self.dim, self.stored, self.metric)
    }

    /// The plan of a descent of vectors of type `T`.
    pub(in crate::descent) fn plan<T: DescentKernels>(&self) -> DevicePlan {
        let keys = self.n * self.k;
        let host = self.on_host().with::<Key>("nearest", keys).with::<u32>("ids", keys);
        let host = host.with::<f32>("distances", keys);
        let (start, element) = (self.start, T::TYPE);
        DevicePlan { start, k: self.k, nodes: self.n, element, stages: self.stages::<T>(), host }
    }

    /// Fails before the first stage if a stage does not fit the device.
    pub(super) fn check<T: DescentKernels>(&self, gpu: &Gpu) -> Result<()> {
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
