//! Estimated seconds of a build, from rates measured on few machines and data sets
//! (docs/measurements.md, benches/results). Only the order of magnitude is right.

use super::recipe::Recipe;
use super::{Builder, Target};
use crate::{Collect, DataShape, Filter, Start, Strategy};

/// Rates. GPU rates were measured on one H200, CPU rates on a Xeon with AVX-512.
mod rates {
    /// A linear cost in seconds: `constant + each * count`.
    #[derive(Clone, Copy)]
    pub struct Rate {
        pub constant: f64,
        pub each: f64,
    }

    impl Rate {
        /// The seconds for `count` units.
        pub fn seconds(self, count: f64) -> f64 {
            self.constant + self.each * count
        }
    }

    /// Seconds to open a CUDA device and to load the kernels from the driver's cache.
    pub const OPEN: f64 = 0.4;

    /// Bytes per second to and from a device.
    pub const COPY: f64 = 20e9;

    /// Bytes per second of checking a data set, per core, and of writing to a disk.
    pub const READ: f64 = 4e9;
    pub const WRITE: f64 = 1e9;

    /// All pairs on a GPU: seconds per pair, by components.
    pub const PAIR: Rate = Rate { constant: 0.2e-12, each: 9.3e-15 };

    /// Descent on a GPU at K = 96: seconds per node, by bytes of its vector on tensor cores.
    pub const DESCENT: Rate = Rate { constant: 1.2e-7, each: 1.3e-10 };

    /// Factor on [`DESCENT`], by K.
    pub const DESCENT_LIST: Rate = Rate { constant: 0.6, each: 0.0042 };

    /// From this many nodes on, a node takes [`MANY_FACTOR`] times as long.
    pub const MANY: usize = 2_000_000;
    pub const MANY_FACTOR: f64 = 1.5;

    /// Pruning on a GPU at K = 96: seconds per node, by bytes of its vector.
    pub const DETOURS: Rate = Rate { constant: 1.6e-8, each: 0.0 };
    pub const ONE_HOP: Rate = Rate { constant: 3.0e-8, each: 1.9e-10 };
    pub const TWO_HOP: Rate = Rate { constant: 2.0e-8, each: 8.3e-11 };
    pub const PATH: Rate = Rate { constant: 3.6e-8, each: 2.22e-10 };

    /// The K of the measurements of paths and detours. Both take time in proportion to K.
    pub const K: f64 = 96.0;

    /// Candidates per node in the measurements of paths; candidates take half of the time.
    pub const PATH_CANDIDATES: f64 = 72.0;

    /// Reachability: seconds per node, times cores.
    pub const REACH: f64 = 5e-7;

    /// Fitting a graph to queries, after their exact search: seconds by queries, times cores.
    pub const QUERIES: Rate = Rate { constant: 0.6, each: 1.5e-4 };

    /// Descent on a CPU: distances per node, by neighbours of its list; and seconds per distance,
    /// by components, times cores.
    pub const CPU_DISTANCES: Rate = Rate { constant: 2000.0, each: 40.0 };
    pub const CPU_DISTANCE: Rate = Rate { constant: 5.0e-8, each: 3.2e-10 };

    /// Cells on a CPU: seconds per node, by components, times cores; and per neighbour of a list.
    pub const CPU_CELLS: Rate = Rate { constant: 2.0e-5, each: 4.0e-7 };
    pub const CPU_CELLS_LIST: f64 = 5.0e-7;

    /// All pairs on a CPU: seconds per pair, by components, times cores.
    pub const CPU_PAIR: Rate = Rate { constant: 6.0e-10, each: 1.6e-11 };

    /// Comparing rows with the centres of clusters on a CPU: seconds per pair, by components, times
    /// cores.
    pub const CPU_CENTRE: Rate = Rate { constant: 4.2e-9, each: 3.3e-11 };

    /// Pruning on a CPU: seconds per node, by components, times cores; of detours, seconds per
    /// neighbour of a list. Paths take both.
    pub const CPU_ONE_HOP: Rate = Rate { constant: 5.0e-6, each: 2.0e-7 };
    pub const CPU_TWO_HOP: Rate = Rate { constant: 5.0e-5, each: 5.5e-7 };
    pub const CPU_DETOURS: f64 = 2.1e-7;
    pub const CPU_PATH: f64 = 1.0e-5;
    pub const CPU_PATH_LIST: Rate = Rate { constant: 5.0e-7, each: 4.0e-9 };
}

/// The stages of a build with their seconds.
pub(super) fn seconds(recipe: &Recipe<'_>) -> Vec<(&'static str, f64)> {
    let &Recipe { data, target, k, start, element, gpus, .. } = recipe;
    let Builder { strategy, queries, .. } = &*recipe.builder;
    let (n, dim, cores) = (data.rows as f64, data.dim as f64, target.threads as f64);
    let list = k as f64;
    let mut stages = vec![("read", n * data.row_bytes() as f64 / rates::READ / cores)];
    if target.gpu.is_some() {
        let element = element.size() as f64;
        let rows_bytes = n * (dim * element + 4.0 * strategy.degree as f64);
        // Tensor cores take floats as f16.
        let tile = dim * element.min(2.0);
        let descent = if start == Start::AllPairs {
            n * n * rates::PAIR.seconds(dim)
        } else {
            let many = if data.rows < rates::MANY { 1.0 } else { rates::MANY_FACTOR };
            n * rates::DESCENT.seconds(tile) * rates::DESCENT_LIST.seconds(list) * many
        };
        let gpus = gpus as f64;
        let lists = if start == Start::AllPairs { 16.0 * n * list / rates::COPY } else { 0.0 };
        stages.push(("open", rates::OPEN));
        stages.push(("copy", rows_bytes / rates::COPY + lists));
        stages.push(("descent", descent / gpus));
        stages.push(("prune", n * pruning_on_gpu(strategy, list, dim * element) / gpus));
    } else {
        // Eight bits are compared in the time of one component.
        let dim = data.values() as f64;
        let descent = match start {
            Start::AllPairs => n * n * rates::CPU_PAIR.seconds(dim),
            Start::Cells => n * (rates::CPU_CELLS.seconds(dim) + rates::CPU_CELLS_LIST * list),
            _ => n * rates::CPU_DISTANCES.seconds(list) * rates::CPU_DISTANCE.seconds(dim),
        };
        stages.push(("descent", descent / cores));
        stages.push(("prune", n * pruning_on_cpu(strategy, list, dim) / cores));
    }
    if let Some(sample) = queries {
        let (count, on_gpu) = (sample.len() as f64, target.gpu.is_some());
        let pair = if on_gpu { rates::PAIR.seconds(dim) } else { rates::CPU_PAIR.seconds(dim) / cores };
        stages.push(("queries", n * count * pair + rates::QUERIES.seconds(count) / cores));
    }
    stages.push(("reach", n * rates::REACH / cores));
    stages.push(("write", n * 4.0 * (1 + strategy.degree) as f64 / rates::WRITE));
    stages
}

/// Seconds of a build of `data` in `clusters` clusters of at most `size` vectors: partition,
/// clusters, and writing the index.
pub(crate) fn out_of_core(
    builder: &Builder,
    data: &DataShape,
    clusters: usize,
    size: usize,
    target: Target,
) -> [f64; 3] {
    let (n, bytes) = (data.rows as f64, data.row_bytes() as f64);
    let size = size.min(data.rows);
    // A GPU compares while the disk works.
    let comparing = if target.gpu.is_some() { 0.0 } else { comparing(data, clusters, target) };
    // Every vector is read once and written to two clusters.
    let partition = n * (3.0 * bytes / rates::WRITE) + comparing;
    let devices = if target.gpu.is_some() { builder.all_devices().count() as f64 } else { 1.0 };
    // Every vector is in two clusters.
    let clusters = 2.0 * n / size as f64 * cluster(builder, data, size, target) / devices;
    let index = n * 8.0 * (1 + builder.strategy.degree) as f64 / rates::WRITE;
    [partition, clusters, index]
}

/// Seconds of building a cluster of `size` vectors, after they are read.
pub(crate) fn cluster(builder: &Builder, data: &DataShape, size: usize, target: Target) -> f64 {
    let k = builder.descent.k_of(size, "a cluster").unwrap_or(1);
    let stages = seconds(&builder.resolve(&data.part(size), k, target));
    let built = stages.iter().filter(|stage| ["copy", "descent", "prune"].contains(&stage.0));
    built.map(|stage| stage.1).sum()
}

/// Seconds of comparing all of `data` with the centres of `clusters` clusters.
pub(crate) fn comparing(data: &DataShape, clusters: usize, target: Target) -> f64 {
    let (pairs, dim) = (data.rows as f64 * clusters as f64, data.dim as f64);
    match target.gpu {
        Some(_) => pairs * rates::PAIR.seconds(dim),
        None => pairs * rates::CPU_CENTRE.seconds(dim) / target.threads as f64,
    }
}

/// Seconds of counting the nodes of `data` that can be reached.
pub(crate) fn reaching(data: &DataShape, target: Target) -> f64 {
    data.rows as f64 * rates::REACH / target.threads as f64
}

/// Seconds of measuring the recall of `nodes` nodes of `data`, by exact search and by searches.
pub(crate) fn measuring(data: &DataShape, nodes: usize, threads: usize) -> f64 {
    // Searches at all beams take the time of an exact search of about 10,000 rows.
    let pairs = nodes as f64 * (data.rows as f64 + SEARCHES);
    3.0 * pairs * rates::CPU_PAIR.seconds(data.values() as f64) / threads as f64
}

/// Rows whose exact search takes the time of a query's searches at all beams of a report.
pub(crate) const SEARCHES: f64 = 10_000.0;

/// Seconds per node on a GPU, for vectors of `bytes` bytes.
fn pruning_on_gpu(strategy: &Strategy, k: f64, bytes: f64) -> f64 {
    match (strategy.collect_from(k as usize), &strategy.filter) {
        (Collect::OneHop, Filter::Rank { .. }) => rates::DETOURS.seconds(bytes) * k / rates::K,
        (Collect::OneHop, _) => rates::ONE_HOP.seconds(bytes),
        (Collect::TwoHop, _) => rates::TWO_HOP.seconds(bytes),
        (Collect::Path, _) => {
            let candidates = strategy.candidates as f64 / rates::PATH_CANDIDATES;
            rates::PATH.seconds(bytes) * 0.5 * (k / rates::K + candidates)
        }
    }
}

/// Seconds per node on one core, for vectors of `dim` components.
fn pruning_on_cpu(strategy: &Strategy, k: f64, dim: f64) -> f64 {
    match (strategy.collect_from(k as usize), &strategy.filter) {
        (Collect::OneHop, Filter::Rank { .. }) => rates::CPU_DETOURS * k,
        (Collect::OneHop, _) => rates::CPU_ONE_HOP.seconds(dim),
        (Collect::TwoHop, _) => rates::CPU_TWO_HOP.seconds(dim),
        (Collect::Path, _) => rates::CPU_PATH + k * rates::CPU_PATH_LIST.seconds(dim),
    }
}
