//! The memory plan of a descent.

use std::fmt;

use tagore_device::key::Key;

use super::cpu::{GATHER, SAMPLE};
use super::lists::SAMPLED;
use super::reverse::Reverse;
use super::{Descent, Iterations, Start, all_pairs, cells, gpu};
use crate::gpu::{MemoryPlan, PlannedStage};
use crate::search::visited::Visited;
use crate::{DataShape, ElementType, Metric};

/// Numbers of nodes above which `Start::Auto` chooses another start, on the CPU or on a GPU; a node
/// has `values` values.
pub(crate) fn steps(values: usize, metric: Metric) -> [usize; 3] {
    [most_pairs(values, metric), gpu::ALL_PAIRS, gpu::ALL_PAIRS_OF_PRODUCTS]
}

/// Maximum number of nodes of `values` values each for which `Start::Auto` compares all pairs on
/// the CPU: a few less than another start takes as long for (benches/results/cpu.md).
pub(super) fn most_pairs(values: usize, metric: Metric) -> usize {
    match metric {
        Metric::InnerProduct => (40_000_000 / values.max(1)).min(200_000),
        Metric::L2 | Metric::Cosine => 80_000,
    }
}

/// Maximum number of nodes for which `Start::Auto` compares all pairs on the CPU where cells would
/// leave out many neighbours: finding them in other ways takes as long, and finds fewer
/// (benches/results/cpu.md).
pub(super) const MAX_HARD_PAIRS: usize = 400_000;

/// Maximum number of neighbours per node, below `k`, that fit, if any. Memory grows with the
/// neighbours per node.
pub(crate) fn most_knn(k: usize, fits: impl Fn(usize) -> bool) -> Option<usize> {
    let (mut most, mut too_many) = (0, k);
    while too_many - most > 1 {
        let middle = most.midpoint(too_many);
        if fits(middle) { most = middle } else { too_many = middle }
    }
    (most > 0).then_some(most)
}

/// Memory of a GPU and of the host for the k-NN graph of a data set.
///
/// At the end, exact search completes the lists that descent leaves short, in pieces that fit the
/// peak of the earlier stages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DevicePlan {
    /// The start of descent; never `Auto`.
    pub start: Start,
    /// Neighbours per node.
    pub k: usize,
    /// Nodes.
    pub nodes: usize,
    /// Element type on the device: u8 for f32 values that are all whole numbers from 0 to 255.
    pub element: ElementType,
    /// The stages, in order.
    pub stages: Vec<PlannedStage>,
    /// Host memory at the end, without the data set.
    pub host: MemoryPlan,
}

impl DevicePlan {
    /// The stage with the most device memory.
    pub fn largest_stage(&self) -> Option<&PlannedStage> {
        PlannedStage::largest(&self.stages)
    }

    /// Peak bytes of device memory.
    pub fn peak_bytes(&self) -> u64 {
        PlannedStage::peak(&self.stages)
    }

    /// Bytes of device memory per vector, at the peak.
    pub fn bytes_per_vector(&self) -> f64 {
        self.peak_bytes() as f64 / self.nodes.max(1) as f64
    }

    /// Bytes of host memory.
    pub fn host_bytes(&self) -> u64 {
        self.host.bytes()
    }
}

impl fmt::Display for DevicePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for stage in &self.stages {
            writeln!(f, "{}", stage.name)?;
            for line in stage.buffers.to_string().lines() {
                writeln!(f, "  {line}")?;
            }
        }
        writeln!(f, "host")?;
        for line in self.host.to_string().lines() {
            writeln!(f, "  {line}")?;
        }
        let stage = self.largest_stage().map_or("nothing", |stage| stage.name);
        write!(f, "peak {} bytes of device memory, in {stage}", self.peak_bytes())?;
        write!(f, ": {:.0} per vector", self.bytes_per_vector())
    }
}

/// Freed memory that the allocator keeps, on the CPU: a share of the buffers (one in `KEPT.0`), up
/// to `KEPT.1` bytes, since it returns large buffers to the system. Measured
/// (benches/results/memory.md).
const KEPT: (u64, u64) = (8, 24 << 20);

/// Adds the memory kept by the allocator to `buffers`.
fn with_kept(buffers: MemoryPlan) -> MemoryPlan {
    let kept = (buffers.bytes() / KEPT.0).min(KEPT.1);
    buffers.with::<u8>("kept by the allocator", kept as usize)
}

/// The stages of a descent on the CPU, or of comparing all pairs, with their host buffers.
pub(super) fn stages_on_cpu(
    data: &DataShape,
    k: usize,
    descent: &Descent,
    start: Start,
    threads: usize,
) -> Vec<PlannedStage> {
    let n = data.rows;
    let lists = MemoryPlan::new().with::<Key>("lists", n * k);
    let mut stages = Vec::new();
    if start == Start::AllPairs || descent.may_compare_all(data, start) {
        let [bounding, pairs, gathered] = all_pairs::plans(data, k, threads);
        if bounding.bytes() > 0 {
            stages.push(on_cpu("cells", bounding));
        }
        stages.extend([on_cpu("all pairs", pairs), on_cpu("lists", gathered)]);
    }
    if start == Start::AllPairs {
        return stages;
    }
    let visited = Visited::plan(n, threads);
    if start == Start::Cells {
        stages.push(on_cpu("cells", lists.clone().and(&cells::plan(data, descent.settings, threads))));
    }
    if start == Start::Random || descent.iterations != Iterations::Auto {
        // Bounds and locks of lists exist only while no edges are reversed, and take less.
        let join = lists
            .clone()
            .with::<u32>("samples", 2 * n * SAMPLE)
            .with::<usize>("offsets of the other part", n + 1)
            .and(&Reverse::plan(n, n * k.min(2 * SAMPLE)));
        stages.push(on_cpu("join", join.and(&visited)));
    }
    let near = GATHER.min(k);
    let refine = lists
        .with::<Key>("sampled lists", n.div_ceil(SAMPLED) * k)
        .with::<u32>("used", n * descent.expand)
        .with::<u32>("near", n * near)
        .and(&Reverse::plan(n, n * near));
    stages.push(on_cpu("refine", refine.and(&visited)));
    stages
}

/// A stage on the CPU, with the memory that the allocator keeps.
pub(crate) fn on_cpu(name: &'static str, buffers: MemoryPlan) -> PlannedStage {
    PlannedStage::on_host(name, with_kept(buffers))
}

/// The stage on the CPU that settles lists of `longer` neighbours, and keeps `k`.
pub(super) fn settling_on_cpu(n: usize, longer: usize, k: usize) -> PlannedStage {
    let lists = MemoryPlan::new().with::<Key>("lists", n * longer).with::<Key>("nearest", n * k);
    on_cpu("settle", lists)
}

/// The stage on the CPU that makes a graph of lists of `k` neighbours.
pub(super) fn graph_on_cpu(n: usize, k: usize) -> PlannedStage {
    let lists = MemoryPlan::new().with::<Key>("lists", n * k);
    on_cpu("graph", lists.with::<u32>("ids", n * k).with::<f32>("distances", n * k))
}
