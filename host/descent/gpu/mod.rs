//! The k-NN graph on a GPU: all pairs where they are affordable, else descent from a random start,
//! or from cells of near vectors.
//!
//! Vectors are sorted so that near vectors are adjacent, and nodes are numbered in that order.
//! Several devices build one graph, the same as one device alone: all have the vectors, and each
//! compares those of a part of the cells, and expands a part of the nodes.
//!
//! Lists stay on the device throughout. Until the end they hold distances of rounded vectors,
//! computed on tensor cores. Then exact distances are computed in f32 from the original vectors,
//! and the lists are sorted.

pub(crate) mod cells;
mod finish;
mod lists;
mod order;
pub(crate) mod phases;
mod random;
mod settings;
mod settle;
mod shape;

use std::time::Instant;

use tagore_device::key::Key;

use cells::CellKernels;
use finish::{FinishKernels, Lacking};
pub(crate) use lists::GpuLists;
use phases::PhaseKernels;
pub use settings::CellSettings;
pub(super) use settle::SettleShape;
pub(super) use shape::DescentShape;

use super::{DescentStats, Iterations, KnnGraph, Start};
use crate::gpu::{Buffer, Communicator, Gpu};
use crate::search::exact::gpu::{ExactKernels, GpuSearch, QuerySet};
use crate::vectors::gpu::{AnyOrigin, Base, DeviceBase, OnDevice, Origin, TileVectors, with_typed};
use crate::vectors::space::Space;
use crate::{Progress, Result};

/// Maximum number of nodes for which `Start::Auto` compares all pairs: exact, and not slower than
/// descent.
pub(super) const ALL_PAIRS: usize = 200_000;

/// As [`ALL_PAIRS`], under inner product: descent then starts from random neighbours and misses one
/// neighbour in ten.
pub(super) const ALL_PAIRS_OF_PRODUCTS: usize = 1_000_000;

/// Longest lists of descent; longer lists come from comparing all pairs.
pub(crate) const MAX_K: usize = 256;

/// Bytes of an id, a bias or a bound, for counts of work.
const WORD: u64 = 4;

/// Time of the joins in cells, in times of the iterations that follow them.
const CELLS_WEIGHT: f64 = 3.0;

/// Kernels of all steps of descent, and of exact search.
pub(crate) trait DescentKernels: CellKernels + PhaseKernels + FinishKernels + ExactKernels {}

impl<T: CellKernels + PhaseKernels + FinishKernels + ExactKernels> DescentKernels for T {}

/// Arguments of a descent, checked and complete.
pub(super) struct Build<'a> {
    pub gpu: &'a Gpu,
    /// The rank of this device among those that build the graph.
    pub devices: Communicator<'a>,
    pub space: &'a Space<'a>,
    pub shape: DescentShape,
    pub expand: usize,
    pub seed: u64,
    pub progress: &'a Progress,
}

/// The vectors before rounding, and the rounding error of each.
struct Original<T> {
    values: Buffer<T>,
    stride: usize,
    errors: Buffer<f32>,
    /// The node of each row, if the values are in the order of nodes, where tiles read them.
    places: Option<Buffer<u32>>,
}

/// The nodes on the device, in their order, and their lists.
struct Nodes<T: OnDevice> {
    /// The rounded vectors; none if tiles read the values.
    rounded: Option<Buffer<u8>>,
    /// What tiles read, and its biases.
    tiles: TileVectors,
    biases: Buffer<T::Sum>,
    /// The row of each node.
    order: Buffer<u32>,
    lists: Buffer<Key>,
}

/// A k-NN graph on a device, and its base.
pub(crate) struct DeviceGraph {
    pub base: DeviceBase,
    pub lists: GpuLists,
    pub stats: DescentStats,
    lacking: Lacking,
}

impl DeviceGraph {
    /// Copies the rows of `space`, and a graph of them, to a device.
    pub(crate) fn upload(gpu: &Gpu, space: &Space<'_>, graph: &KnnGraph) -> Result<Self> {
        with_typed!(AnyOrigin::of_space(gpu, space)?, rows => {
            let base = OnDevice::wrap(Base::upload(gpu, space, &rows)?);
            let (lists, stats) = (GpuLists::from_graph(gpu, graph)?, graph.stats().clone());
            Ok(Self { base, lists, stats, lacking: Lacking::default() })
        })
    }

    /// Whether some lists are not those of an exact search, though descent could not tell their
    /// distances from rounding errors.
    pub(super) fn is_lacking(&self) -> bool {
        !self.lacking.is_empty()
    }
}

impl Build<'_> {
    /// Builds the graph: `k` keys per node, at exact distances.
    pub(super) fn run(&self) -> Result<(Vec<Key>, DescentStats)> {
        if self.shape.k == 0 {
            return Ok((Vec::new(), DescentStats::default()));
        }
        if !self.shape.is_descent() {
            return self.all_pairs();
        }
        let mut graph = self.run_on_device()?;
        self.complete(&mut graph)?;
        let DeviceGraph { lists, mut stats, .. } = graph;
        let copying = Instant::now();
        let keys = lists.download()?;
        stats.copy += copying.elapsed().as_secs_f64();
        Ok((keys, stats))
    }

    /// Builds the graph and leaves it on the device; [`complete`](Self::complete) has to follow.
    pub(super) fn run_on_device(&self) -> Result<DeviceGraph> {
        with_typed!(AnyOrigin::of_space(self.gpu, self.space)?, rows => self.graph(&rows))
    }

    fn graph<T: DescentKernels>(&self, rows: &Origin<'_, T>) -> Result<DeviceGraph> {
        if self.shape.is_descent() {
            return self.descend(rows, self.shape.start);
        }
        let (keys, mut stats) = self.all_pairs()?;
        let copying = Instant::now();
        let base = Base::upload(self.gpu, self.space, rows)?;
        let lists = GpuLists::upload(self.gpu, &keys, self.space.len(), self.shape.k, self.space.metric())?;
        stats.copy += copying.elapsed().as_secs_f64();
        Ok(DeviceGraph { base: T::wrap(base), lists, stats, lacking: Lacking::default() })
    }

    fn all_pairs(&self) -> Result<(Vec<Key>, DescentStats)> {
        let (space, n) = (self.space, self.space.len());
        let began = Instant::now();
        let nodes: Vec<u32> = (0..n as u32).collect();
        let keys = self.search(&QuerySet::of_nodes(space, &nodes), None)?;
        let distances = n as u64 * (n as u64 - 1);
        let seconds = began.elapsed().as_secs_f64();
        Ok((keys, DescentStats { distances, seconds, ..DescentStats::default() }))
    }

    /// Finds the exact neighbours of some nodes, in at most `budget` bytes of the device.
    fn search(&self, queries: &QuerySet<'_>, budget: Option<u64>) -> Result<Vec<Key>> {
        let Self { gpu, space, progress, shape: DescentShape { k, .. }, .. } = *self;
        GpuSearch { gpu, space, subset: None, queries, k, budget, progress }.run()
    }

    fn descend<T: DescentKernels>(&self, rows: &Origin<'_, T>, start: Start) -> Result<DeviceGraph> {
        self.shape.check::<T>(self.gpu)?;
        let mut stats = DescentStats::default();
        let copying = Instant::now();
        let (mut side, rounding, mean) = self.upload(rows)?;
        self.gpu.synchronize()?;
        stats.copy = copying.elapsed().as_secs_f64();
        tracing::debug!(stage = "copy", seconds = stats.copy, "a stage ends");

        let descending = Instant::now();
        self.prepare(&mut side, &rounding, &mean)?;
        let (original, mut nodes, cells) = self.renumber(side)?;
        let (joins, mut expands) = self.shape.phases();
        let clusterings = if start == Start::Cells { CELLS_WEIGHT } else { 0.0 };
        let [in_cells, in_phases] = self.progress.parts([clusterings, 1.0]);
        let mut filling = 0.0;
        if start == Start::Random && joins == 0 && expands > 0 {
            let began = Instant::now();
            self.random_lists(&mut nodes.lists)?;
            self.gpu.synchronize()?;
            filling = began.elapsed().as_secs_f64();
        }
        if start == Start::Cells {
            let found = Build { progress: &in_cells, ..*self }.cells(&mut nodes, cells, &mut stats)?;
            let DescentShape { n, dim, purpose, iterations, .. } = self.shape;
            if iterations == Iterations::Auto && CellSettings::can_skip_phase2(n, dim, purpose, found) {
                expands = 0;
            }
        } else {
            drop(cells);
        }
        Build { progress: &in_phases, ..*self }.phases(&mut nodes, start, joins, expands, &mut stats)?;
        let (base, lists, lacking) = self.finish(original, nodes, rounding.scale)?;
        stats.seconds = descending.elapsed().as_secs_f64() - filling;
        stats.copy += filling;
        Ok(DeviceGraph { base: T::wrap(base), lists, stats, lacking })
    }

    /// Number of nodes, for counts of work.
    fn nodes(&self) -> u64 {
        self.space.len() as u64
    }

    /// Bytes of a list.
    fn list_bytes(&self) -> u64 {
        (self.shape.k * size_of::<Key>()) as u64
    }

    /// Operations of a product.
    fn operations(&self) -> u64 {
        2 * self.space.dim() as u64
    }

    /// Counts work that all devices share.
    fn count_shared(&self, kernel: &'static str, bytes: u64, operations: u64) {
        if self.devices.is_first() {
            self.gpu.count_work(kernel, bytes, operations);
        }
    }
}
