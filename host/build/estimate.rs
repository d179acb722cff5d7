//! How long a build will take, by rates that were measured on few machines and data sets
//! (docs/descent.md, docs/pruning.md, docs/measurements.md): an estimate, of the right order.

use super::{Builder, Target};
use crate::vectors::shape::device_type;
use crate::{Collect, DataShape, Filter, Start, Strategy};

/// All rates. Those of a GPU were measured on one H200, those of a CPU on cores of a Xeon with
/// AVX-512.
mod rates {
    /// Seconds until a CUDA device is open and the kernels are there, from the driver's cache.
    pub const OPEN: f64 = 0.4;

    /// Bytes a second to and from a device.
    pub const COPY: f64 = 20e9;

    /// Bytes a second and core while a data set is checked, and to a disk.
    pub const READ: f64 = 4e9;
    pub const WRITE: f64 = 1e9;

    /// All pairs on a GPU: seconds of a pair, and more of each component.
    pub const PAIR: (f64, f64) = (0.2e-12, 9.3e-15);

    /// Descent on a GPU at K = 96: seconds of a node, and more of each byte of its vector on tensor
    /// cores.
    pub const DESCENT: (f64, f64) = (1.2e-7, 1.3e-10);

    /// What other K take of that: this, and more of each neighbour.
    pub const DESCENT_LIST: (f64, f64) = (0.6, 0.0042);

    /// From so many nodes on a node takes longer, so many times.
    pub const MANY: (usize, f64) = (2_000_000, 1.5);

    /// Pruning on a GPU at K = 96: seconds of a node, and more of each byte of its vector: by
    /// detours, 1-hop, 2-hop, path.
    pub const DETOURS: (f64, f64) = (1.6e-8, 0.0);
    pub const ONE_HOP: (f64, f64) = (3.0e-8, 1.9e-10);
    pub const TWO_HOP: (f64, f64) = (2.0e-8, 8.3e-11);
    pub const PATH: (f64, f64) = (3.6e-8, 2.22e-10);

    /// The K that paths and detours were measured with, which look at as many more nodes as K is
    /// larger.
    pub const K: f64 = 96.0;

    /// Candidates of a node that paths were measured with: they take half of the time.
    pub const PATH_CANDIDATES: f64 = 72.0;

    /// Making all nodes reachable: seconds of a node and core.
    pub const REACH: f64 = 5e-7;

    /// Descent on a CPU: distances of a node, and more of each neighbour of its list; seconds of a
    /// distance and core, and more of each component.
    pub const CPU_DISTANCES: (f64, f64) = (2000.0, 40.0);
    pub const CPU_DISTANCE: (f64, f64) = (5.0e-8, 3.2e-10);

    /// All pairs on a CPU: seconds of a pair and core, and more of each component.
    pub const CPU_PAIR: (f64, f64) = (3.0e-9, 4.0e-11);

    /// Pruning on a CPU: seconds of a node and core, and more of each component, by 1-hop and by
    /// 2-hop; by detours for each neighbour of a list; by paths both.
    pub const CPU_ONE_HOP: (f64, f64) = (5.0e-6, 2.0e-7);
    pub const CPU_TWO_HOP: (f64, f64) = (5.0e-5, 5.5e-7);
    pub const CPU_DETOURS: f64 = 5.5e-7;
    pub const CPU_PATH: f64 = 1.0e-5;
    pub const CPU_PATH_LIST: (f64, f64) = (5.0e-7, 4.0e-9);
}

/// A constant, and what comes to it for each of `count`.
fn linear((constant, each): (f64, f64), count: f64) -> f64 {
    constant + each * count
}

/// The stages of a build, and the seconds of each.
pub(super) fn seconds(
    builder: &Builder,
    data: &DataShape,
    k: usize,
    target: Target,
) -> Vec<(&'static str, f64)> {
    let Builder { strategy, descent, .. } = builder;
    let (n, dim, cores) = (data.rows as f64, data.dim as f64, target.threads as f64);
    let list = k as f64;
    let mut stages = vec![("read", n * data.row_bytes() as f64 / rates::READ / cores)];
    if target.gpu.is_some() {
        let there = device_type(data, descent.metric).size() as f64;
        let rows_bytes = n * (dim * there + 4.0 * strategy.degree as f64);
        // Tensor cores take floats as f16.
        let tile = dim * there.min(2.0);
        let start = descent.plan_of(data, k).start;
        let descent = if start == Start::AllPairs {
            n * n * linear(rates::PAIR, dim)
        } else {
            let many = if data.rows < rates::MANY.0 { 1.0 } else { rates::MANY.1 };
            n * linear(rates::DESCENT, tile) * linear(rates::DESCENT_LIST, list) * many
        };
        let lists = if start == Start::AllPairs { 16.0 * n * list / rates::COPY } else { 0.0 };
        stages.push(("open", rates::OPEN));
        stages.push(("copy", rows_bytes / rates::COPY + lists));
        stages.push(("descent", descent));
        stages.push(("prune", n * pruning_on_gpu(strategy, list, dim * there)));
    } else {
        let descent = if descent.compares_all_pairs_on_cpu(data.rows, k) {
            n * n * linear(rates::CPU_PAIR, dim)
        } else {
            n * linear(rates::CPU_DISTANCES, list) * linear(rates::CPU_DISTANCE, dim)
        };
        stages.push(("descent", descent / cores));
        stages.push(("prune", n * pruning_on_cpu(strategy, list, dim) / cores));
    }
    if strategy.connect {
        stages.push(("reach", n * rates::REACH / cores));
    }
    stages.push(("write", n * 4.0 * (1 + strategy.degree) as f64 / rates::WRITE));
    stages
}

/// Seconds of a node whose vector has so many bytes, on a GPU.
fn pruning_on_gpu(strategy: &Strategy, k: f64, bytes: f64) -> f64 {
    match (strategy.collect, &strategy.filter) {
        (Collect::OneHop, Filter::Rank) => linear(rates::DETOURS, bytes) * k / rates::K,
        (Collect::OneHop, _) => linear(rates::ONE_HOP, bytes),
        (Collect::TwoHop, _) => linear(rates::TWO_HOP, bytes),
        (Collect::Path, _) => {
            let candidates = strategy.candidates as f64 / rates::PATH_CANDIDATES;
            linear(rates::PATH, bytes) * 0.5 * (k / rates::K + candidates)
        }
    }
}

/// Seconds of a node whose vector has so many components, on a core of the CPU.
fn pruning_on_cpu(strategy: &Strategy, k: f64, dim: f64) -> f64 {
    match (strategy.collect, &strategy.filter) {
        (Collect::OneHop, Filter::Rank) => rates::CPU_DETOURS * k,
        (Collect::OneHop, _) => linear(rates::CPU_ONE_HOP, dim),
        (Collect::TwoHop, _) => linear(rates::CPU_TWO_HOP, dim),
        (Collect::Path, _) => rates::CPU_PATH + k * linear(rates::CPU_PATH_LIST, dim),
    }
}
