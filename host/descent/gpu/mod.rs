//! The k-NN graph on a GPU: all pairs where they are affordable, else descent from a random start, or from
//! cells of near vectors.
//!
//! Vectors are put into an order in which those that are near follow one another, and nodes are numbered by it.
//! Lists stay on the device from the first iteration to the last. Distances in them are those of the tensor
//! cores until, in the end, those of every list are computed exactly in f32 from the original vectors, and
//! the list is sorted.

mod cells;
mod phases;
mod plan;
mod random;
mod settings;
mod work;

use std::time::Instant;

use rayon::prelude::*;
use tagore_device::descent::cells::Finish;
use tagore_device::descent::key::{self, Key};
use tagore_device::descent::renumber::{RENUMBER_THREADS, Renumber, renumber_ids, renumber_vectors};
use tagore_device::search::exact::SETTLE_THREADS;

pub(super) use plan::Shape;
pub(super) use settings::Settings;

use super::{DescentStats, Iterations, Start};
use crate::cluster::{self, Cells};
use crate::gpu::{Buffer, Gpu};
use crate::search::gpu::{Points, add_zero_vectors, nearest};
use crate::vectors::gpu::{OnDevice, Preparation, ROWS, Rounding, Side, as_bytes, metric_number};
use crate::vectors::space::Space;
use crate::vectors::{Matrix, Rows};
use crate::{Metric, Progress, Result};

/// The most nodes for which `Start::Auto` compares all pairs: exact, and not slower than descent.
const ALL_PAIRS: usize = 200_000;

/// The longest lists of descent; longer ones come from all pairs.
const MAX_K: usize = 256;

/// A list is trusted if its last distance is at least so many times as far as rounding moved its node.
const MOST_ROUNDING: f32 = 16.0;

/// What a build is run with, checked and complete.
pub(super) struct Build<'a> {
    pub gpu: &'a Gpu,
    pub space: &'a Space<'a>,
    pub k: usize,
    pub start: Start,
    pub iterations: Iterations,
    pub expand: usize,
    pub settings: Settings,
    pub seed: u64,
    pub progress: &'a Progress,
}

/// The vectors as they were given, and how far rounding moved each.
struct Original<T> {
    values: Buffer<T>,
    stride: usize,
    errors: Buffer<f32>,
}

/// The nodes on the device, in their order, and their lists.
struct Nodes<T: OnDevice> {
    /// Tile vectors, `stride` bytes apart, and their biases.
    vectors: Buffer<u8>,
    biases: Buffer<T::Sum>,
    stride: u32,
    /// The row that each node is.
    order: Buffer<u32>,
    lists: Buffer<Key>,
}

impl Build<'_> {
    /// The k nearest neighbours of every node, `k` keys to a row, each at its exact distance.
    pub(super) fn run(&self) -> Result<(Vec<Key>, DescentStats)> {
        if self.k == 0 {
            return Ok((Vec::new(), DescentStats::default()));
        }
        let start = self.shape().choose_start();
        if start == Start::Auto {
            return self.all_pairs();
        }
        match self.space.rows() {
            Rows::F32(rows) => {
                let (n, dim) = (self.space.len(), rows.dim());
                let cosine = self.space.metric() == Metric::Cosine;
                match if cosine { None } else { as_bytes(rows, n) } {
                    Some(bytes) => self.descend(Matrix::new(&bytes, dim, dim), start),
                    None => self.descend(rows, start),
                }
            }
            Rows::F16(rows) => self.descend(rows, start),
            Rows::U8(rows) => self.descend(rows, start),
            Rows::I8(rows) => self.descend(rows, start),
        }
    }

    /// What the sizes of the buffers depend on.
    fn shape(&self) -> Shape {
        Shape {
            n: self.space.len(),
            dim: self.space.dim(),
            k: self.k,
            metric: self.space.metric(),
            start: self.start,
            iterations: self.iterations,
            settings: self.settings,
            copied: 0,
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
        self.shape().check::<T>(self.gpu)?;
        let mut stats = DescentStats::default();
        let copying = Instant::now();
        let (mut side, rounding, mean) = self.upload(rows)?;
        self.gpu.synchronize()?;
        stats.copy = copying.elapsed().as_secs_f64();

        let descending = Instant::now();
        self.prepare(&mut side, &rounding, &mean)?;
        let (original, mut nodes, cells) = self.renumber(side, start)?;
        let (joins, expands) = Settings::iterations(self.iterations, start);
        let mut filling = 0.0;
        if start == Start::Random && joins == 0 && expands > 0 {
            let began = Instant::now();
            self.random_lists(&mut nodes.lists)?;
            self.gpu.synchronize()?;
            filling = began.elapsed().as_secs_f64();
        }
        if start == Start::Cells {
            self.cells(&mut nodes, &cells, &mut stats)?;
        }
        drop(cells);
        self.phases(&mut nodes, start, (joins, expands), &mut stats)?;
        let nearest = self.finish(&original, nodes)?;
        stats.seconds = descending.elapsed().as_secs_f64() - filling;
        stats.copy += filling;

        let copying = Instant::now();
        // Touched by all threads: the pages of so much memory take longer to come than what fills them.
        let mut keys: Vec<Key> = rayon::iter::repeat_n(key::NONE, self.space.len() * self.k).collect();
        nearest.download(&mut keys)?;
        let mut errors = vec![0f32; self.space.len()];
        original.errors.download(&mut errors)?;
        drop((nearest, original));
        stats.copy += copying.elapsed().as_secs_f64();

        let completing = Instant::now();
        errors.iter_mut().for_each(|error| *error /= rounding.row_scale);
        self.complete(&errors, &mut keys, &mut stats)?;
        stats.seconds += completing.elapsed().as_secs_f64();
        Ok((keys, stats))
    }

    /// Puts the vectors on the device, and how they are rounded.
    fn upload<T: OnDevice>(&self, rows: Matrix<'_, T>) -> Result<(Side<T>, Rounding, Buffer<f32>)> {
        let (n, dim) = (self.space.len(), self.space.dim());
        let memory = self.shape().upload::<T>().reserve(self.gpu)?;
        let mut side = Side::<T>::new(&memory, ROWS, dim)?;
        let rounding = Rounding::of(self.space.metric(), (rows, n), (rows, n), |row| row);
        let mut mean: Buffer<f32> = memory.buffer("mean")?;
        mean.upload(&rounding.mean)?;
        let stride = side.stride;
        side.values.upload_rows(n, stride, |row| rows.row(row))?;
        Ok((side, rounding, mean))
    }

    fn prepare<T: OnDevice>(
        &self,
        side: &mut Side<T>,
        rounding: &Rounding,
        mean: &Buffer<f32>,
    ) -> Result<()> {
        let memory = Shape::prepare().reserve(self.gpu)?;
        let mut largest: Buffer<u32> = memory.buffer("largest norm")?;
        largest.fill(0)?;
        let task = Preparation {
            count: self.space.len(),
            dim: self.space.dim(),
            mean,
            largest: largest.view_mut(),
            scale: rounding.row_scale,
            error_limit: f32::INFINITY,
            norm_weight: i32::from(self.space.metric() != Metric::InnerProduct),
            skip_zero: self.space.metric() == Metric::Cosine,
        };
        T::prepare(self.gpu, side, &task)?;
        // The buffer is used until the work is done.
        self.gpu.synchronize()
    }

    /// Clusters the vectors and puts them in order.
    fn renumber<T: OnDevice>(&self, side: Side<T>, start: Start) -> Result<(Original<T>, Nodes<T>, Cells)> {
        let (n, dim) = (self.space.len(), self.space.dim());
        let asked = self.settings.cells(n, dim, start);
        let mut cells = cluster::cells(self.gpu, &side, n, dim, asked, self.seed)?;
        let (stride, units) = side.tile_stride();
        let memory = self.shape().renumber::<T>().reserve(self.gpu)?;
        let mut vectors: Buffer<u8> = memory.buffer("vectors")?;
        let mut biases: Buffer<T::Sum> = memory.buffer("biases")?;
        let mut places: Buffer<u32> = memory.buffer("places")?;
        let renumber = Renumber {
            from: side.tile_vectors().cast(),
            to: vectors.view_mut().cast(),
            biases: side.biases.view().cast(),
            biases_to: biases.view_mut().cast(),
            order: cells.order.view(),
            places: places.view_mut(),
            count: n as u32,
            units,
        };
        let grid = [(n as u32).div_ceil(RENUMBER_THREADS / 32), 1, 1];
        let members = n * cells.memberships;
        let ids = (cells.members.view_mut(), places.view(), members as u32);
        // SAFETY: the order holds every vector once, and members are vectors; the memory outlives the work.
        unsafe {
            self.gpu.launch::<renumber_vectors>(grid, RENUMBER_THREADS, (renumber,))?;
            let grid = [members.div_ceil(RENUMBER_THREADS as usize) as u32, 1, 1];
            self.gpu.launch::<renumber_ids>(grid, RENUMBER_THREADS, ids)?;
        }
        self.count_renumbering(stride);
        // The rounded copy and the places go now.
        self.gpu.synchronize()?;
        let (values, value_stride, errors) = side.into_original();
        let original = Original { values, stride: value_stride, errors };
        drop(places);
        let memory = self.shape().lists().reserve(self.gpu)?;
        let mut lists: Buffer<Key> = memory.buffer("lists")?;
        // The bytes of empty slots.
        lists.fill(0xff)?;
        let order = std::mem::replace(&mut cells.order, memory.buffer("no order")?);
        Ok((original, Nodes { vectors, biases, stride, order, lists }, cells))
    }

    /// Computes the exact distances of the lists, of rows, and sorts them.
    fn finish<T: OnDevice>(&self, original: &Original<T>, nodes: Nodes<T>) -> Result<Buffer<Key>> {
        let n = self.space.len();
        let memory = self.shape().finish().reserve(self.gpu)?;
        let mut nearest: Buffer<Key> = memory.buffer("nearest")?;
        let finish = Finish::<T> {
            rows: original.values.view(),
            order: nodes.order.view(),
            lists: nodes.lists.view(),
            nearest: nearest.view_mut(),
            stride: original.stride as u32,
            dim: self.space.dim() as u32,
            k: self.k as u32,
            metric: metric_number(self.space.metric()),
        };
        // SAFETY: lists hold nodes, the order rows; the memory outlives the work.
        unsafe { self.gpu.launch::<T::Finish>([n as u32, 1, 1], SETTLE_THREADS, (finish,))? };
        self.count_finish::<T>(original.stride);
        self.gpu.synchronize()?;
        Ok(nearest)
    }

    /// Searches exactly for the nodes whose lists are not full, or are not to be trusted since rounding moved
    /// the node by `errors` of about the distances; and adds the zero vectors under cosine.
    fn complete(&self, errors: &[f32], keys: &mut [Key], stats: &mut DescentStats) -> Result<()> {
        let (space, k) = (self.space, self.k);
        let everyone: Vec<u32> = (0..space.len() as u32).collect();
        add_zero_vectors(space, &Points::of_nodes(space, &everyone), k, keys);
        let is_lacking = |node: &u32| {
            let last = keys[*node as usize * k + k - 1];
            let squared = match space.metric() {
                Metric::L2 => key::distance(last),
                Metric::Cosine => 2.0 * key::distance(last),
                // Inner products have no such scale.
                Metric::InnerProduct => f32::INFINITY,
            };
            let error = errors[*node as usize];
            // Nothing is nearer than an equal vector.
            last == key::NONE || squared > 0.0 && error * MOST_ROUNDING > squared.sqrt()
        };
        let lacking: Vec<u32> = everyone.into_par_iter().filter(is_lacking).collect();
        stats.completed = lacking.len() as u64;
        stats.distances += stats.completed * (space.len() as u64 - 1);
        let found = nearest(self.gpu, space, &Points::of_nodes(space, &lacking), k, None, self.progress)?;
        for (&node, list) in lacking.iter().zip(found.chunks_exact(k)) {
            keys[node as usize * k..][..k].copy_from_slice(list);
        }
        Ok(())
    }
}
