//! The k-NN graph on a GPU: all pairs where they are affordable, else descent from a random start, or from
//! cells of near vectors.
//!
//! Lists stay on the device from the first iteration to the last. Distances in them are those of the tensor
//! cores until, in the end, those of every list are computed exactly in f32, and the list is sorted.

mod cells;
mod clusters;
mod phases;

use std::time::Instant;

use tagore_device::descent::cells::Finish;
use tagore_device::descent::key::{self, Key};
use tagore_device::search::exact::SETTLE_THREADS;

use super::{DescentStats, Iterations, Start};
use crate::gpu::{Buffer, Gpu, Plan};
use crate::search::gpu::{Points, add_zero_vectors, nearest};
use crate::vectors::gpu::{OnDevice, Preparation, ROWS, Rounding, Side, metric_number};
use crate::vectors::space::Space;
use crate::vectors::{Matrix, Rows};
use crate::{Metric, Progress, Result};

/// The most nodes for which `Start::Auto` compares all pairs: exact, and not slower than descent.
const ALL_PAIRS: usize = 200_000;

/// The longest lists of descent; longer ones come from all pairs.
const MAX_K: usize = 256;

/// What a build is run with, checked and complete.
pub(super) struct Build<'a> {
    pub gpu: &'a Gpu,
    pub space: &'a Space<'a>,
    pub k: usize,
    pub start: Start,
    pub iterations: Iterations,
    pub expand: usize,
    pub seed: u64,
    pub progress: &'a Progress,
}

/// The nodes on the device, and their lists.
struct Nodes<T: OnDevice> {
    side: Side<T>,
    lists: Buffer<Key>,
    largest: Buffer<u32>,
    rounding: Rounding,
}

impl Build<'_> {
    /// The k nearest neighbours of every node, `k` keys to a row, each at its exact distance.
    pub(super) fn run(&self) -> Result<(Vec<Key>, DescentStats)> {
        if self.k == 0 {
            return Ok((Vec::new(), DescentStats::default()));
        }
        let start = self.choose_start();
        if start == Start::Auto {
            return self.all_pairs();
        }
        match self.space.rows() {
            Rows::F32(rows) => self.descend(rows, start),
            Rows::F16(rows) => self.descend(rows, start),
            Rows::U8(rows) => self.descend(rows, start),
            Rows::I8(rows) => self.descend(rows, start),
        }
    }

    /// The start that is best for the data, if another was not asked for; `Auto` stands for all pairs.
    fn choose_start(&self) -> Start {
        let n = self.space.len();
        if self.k > MAX_K || n <= 2 * self.k || self.start == Start::Auto && n <= ALL_PAIRS {
            return Start::Auto;
        }
        // Cells are of L2 balls: inner products order neighbours otherwise.
        let cells_possible = self.space.metric() != Metric::InnerProduct && cells::possible(n);
        match self.start {
            Start::Auto | Start::Cells if cells_possible => Start::Cells,
            Start::Auto | Start::Random => Start::Random,
            Start::Cells => Start::Auto,
        }
    }

    fn all_pairs(&self) -> Result<(Vec<Key>, DescentStats)> {
        let (space, n) = (self.space, self.space.len());
        let began = Instant::now();
        let nodes: Vec<u32> = (0..n as u32).collect();
        let keys = nearest(self.gpu, space, &Points::of_nodes(space, &nodes), self.k, None, self.progress)?;
        let distances = n as u64 * (n as u64 - 1);
        let seconds = began.elapsed().as_secs_f64();
        Ok((keys, DescentStats { distances, seconds, ..DescentStats::default() }))
    }

    fn descend<T: OnDevice>(&self, rows: Matrix<'_, T>, start: Start) -> Result<(Vec<Key>, DescentStats)> {
        let mut stats = DescentStats::default();
        let copying = Instant::now();
        let mut nodes = self.upload(rows)?;
        self.gpu.synchronize()?;
        stats.copy = copying.elapsed().as_secs_f64();

        let descending = Instant::now();
        self.prepare(&mut nodes)?;
        match start {
            Start::Cells => self.cells(&mut nodes, &mut stats)?,
            _ => self.phases(&mut nodes, &mut stats)?,
        }
        self.finish(&mut nodes)?;
        self.gpu.synchronize()?;
        stats.seconds = descending.elapsed().as_secs_f64();

        let copying = Instant::now();
        let mut keys = vec![key::NONE; self.space.len() * self.k];
        nodes.lists.download(&mut keys)?;
        drop(nodes);
        stats.copy += copying.elapsed().as_secs_f64();

        let completing = Instant::now();
        self.complete(&mut keys)?;
        stats.seconds += completing.elapsed().as_secs_f64();
        Ok((keys, stats))
    }

    /// Puts the vectors on the device, and makes room for the lists, which are empty.
    fn upload<T: OnDevice>(&self, rows: Matrix<'_, T>) -> Result<Nodes<T>> {
        let (n, dim) = (self.space.len(), self.space.dim());
        let memory = Side::<T>::plan(Plan::new(), ROWS, n, dim)
            .with::<Key>("lists", n * self.k)
            .with::<u32>("largest norm", 1)
            .reserve(self.gpu)?;
        let mut nodes = Nodes::<T> {
            side: Side::new(&memory, ROWS, dim)?,
            lists: memory.buffer("lists")?,
            largest: memory.buffer("largest norm")?,
            rounding: Rounding::of(self.space.metric(), (rows, n), (rows, n), |row| row),
        };
        let stride = nodes.side.stride;
        nodes.side.values.upload_rows(n, stride, |row| rows.row(row))?;
        // The bytes of empty slots.
        nodes.lists.fill(0xff)?;
        nodes.largest.fill(0)?;
        Ok(nodes)
    }

    fn prepare<T: OnDevice>(&self, nodes: &mut Nodes<T>) -> Result<()> {
        let mean = Plan::new().with::<f32>("mean", self.space.dim()).reserve(self.gpu)?;
        let mut mean: Buffer<f32> = mean.buffer("mean")?;
        mean.upload(&nodes.rounding.mean)?;
        let task = Preparation {
            count: self.space.len(),
            dim: self.space.dim(),
            mean: &mean,
            largest: nodes.largest.view_mut(),
            scale: nodes.rounding.row_scale,
            error_limit: f32::INFINITY,
            norm_weight: i32::from(self.space.metric() != Metric::InnerProduct),
            skip_zero: self.space.metric() == Metric::Cosine,
        };
        T::prepare(self.gpu, &mut nodes.side, &task)?;
        // The mean is read until the work is done.
        self.gpu.synchronize()
    }

    fn finish<T: OnDevice>(&self, nodes: &mut Nodes<T>) -> Result<()> {
        let finish = Finish::<T> {
            rows: nodes.side.values.view(),
            lists: nodes.lists.view_mut(),
            stride: nodes.side.stride as u32,
            dim: self.space.dim() as u32,
            k: self.k as u32,
            metric: metric_number(self.space.metric()),
        };
        let grid = [self.space.len() as u32, 1, 1];
        // SAFETY: lists hold ids of rows; the memory outlives the work.
        unsafe { self.gpu.launch::<T::Finish>(grid, SETTLE_THREADS, (finish,)) }
    }

    /// Searches exactly for the nodes whose lists are not full, and adds the zero vectors under cosine.
    fn complete(&self, keys: &mut [Key]) -> Result<()> {
        let (space, k) = (self.space, self.k);
        let everyone: Vec<u32> = (0..space.len() as u32).collect();
        add_zero_vectors(space, &Points::of_nodes(space, &everyone), k, keys);
        let lacking: Vec<u32> =
            everyone.into_iter().filter(|&node| keys[node as usize * k + k - 1] == key::NONE).collect();
        let found = nearest(self.gpu, space, &Points::of_nodes(space, &lacking), k, None, self.progress)?;
        for (&node, list) in lacking.iter().zip(found.chunks_exact(k)) {
            keys[node as usize * k..][..k].copy_from_slice(list);
        }
        Ok(())
    }
}
