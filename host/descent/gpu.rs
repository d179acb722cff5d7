//! The k-NN graph on a GPU: all pairs where they are affordable, else all pairs of overlapping cells.
//!
//! Each node is in the cells of its nearest centres (`cells.rs`). Inside a cell every member meets every
//! other on tensor cores, in tiles: those whose distance, so computed, is below the node's present bound are
//! noted and merged into the node's list. A node's first cell goes first, in growing ranges; the later
//! cells find bounds that are tight already. In the end the distances of every list are computed
//! exactly in f32, and the list is sorted. What no cell of a node holds is not found.

use std::time::Instant;

use tagore_device::block::tile;
use tagore_device::descent::cells::{Finish, Merge};
use tagore_device::descent::key::{self, Key};
use tagore_device::search::exact::{CellFilter, JOB_WORDS, Job, SETTLE_THREADS, Tiles};

use super::cells::Cells;
use super::{DescentStats, Start};
use crate::gpu::{Buffer, Gpu, Plan};
use crate::progress::StageProgress;
use crate::search::gpu::{Points, add_zero_vectors, nearest};
use crate::vectors::gpu::{OnDevice, Preparation, ROWS, Rounding, Side, metric_number};
use crate::vectors::space::Space;
use crate::vectors::{Matrix, Rows};
use crate::{Error, Metric, Progress, Result};

/// The most nodes for which `Start::Auto` compares all pairs: exact, and not slower than cells.
const ALL_PAIRS: usize = 200_000;

/// Nodes per centre. A cell has as many members for each of a node's memberships.
const NODES_PER_CELL: usize = 2000;

/// Cells that each node is in.
const MEMBERSHIPS: usize = 6;

/// Queries that are worked on together.
const SLAB: usize = 65_536;

/// Rows that are noted per query between two settlings; more are lost.
const CAPACITY: usize = 1024;

/// The k nearest neighbours of every node, `k` keys to a row, each at its exact distance.
pub(super) fn build(
    gpu: &Gpu,
    space: &Space<'_>,
    k: usize,
    start: Start,
    seed: u64,
    progress: &Progress,
) -> Result<(Vec<Key>, DescentStats)> {
    let n = space.len();
    if k == 0 {
        return Ok((Vec::new(), DescentStats::default()));
    }
    if start == Start::Random {
        return Err(Error::argument("start", "random", "auto or cells on a GPU, or --device cpu"));
    }
    // Cells are of L2 balls: inner products order neighbours otherwise.
    let cells_possible = space.metric() != Metric::InnerProduct && cell_count(n) >= 2 * MEMBERSHIPS;
    if cells_possible && (start == Start::Cells || n > ALL_PAIRS) && k <= CAPACITY / 4 {
        let search = InCells { gpu, space, k, seed, progress };
        return match space.rows() {
            Rows::F32(rows) => search.run(rows),
            Rows::F16(rows) => search.run(rows),
            Rows::U8(rows) => search.run(rows),
            Rows::I8(rows) => search.run(rows),
        };
    }
    let began = Instant::now();
    let nodes: Vec<u32> = (0..n as u32).collect();
    let keys = nearest(gpu, space, &Points::of_nodes(space, &nodes), k, None, progress)?;
    let distances = n as u64 * (n as u64 - 1);
    let seconds = began.elapsed().as_secs_f64();
    let stats = DescentStats { distances, seconds, ..DescentStats::default() };
    Ok((keys, stats))
}

/// Centres for `n` nodes; of few nodes, more than their number would give, so that there is a choice.
fn cell_count(n: usize) -> usize {
    (n / NODES_PER_CELL).max((n / 64).min(16))
}

struct InCells<'a> {
    gpu: &'a Gpu,
    space: &'a Space<'a>,
    k: usize,
    seed: u64,
    progress: &'a Progress,
}

/// What the passes work with on the device.
struct Memory<T: OnDevice> {
    side: Side<T>,
    members: Buffer<u32>,
    jobs: Buffer<u32>,
    nodes: Buffer<u32>,
    bounds: Buffer<T::Sum>,
    counts: Buffer<u32>,
    noted: Buffer<Key>,
    overflow: Buffer<u32>,
    lists: Buffer<Key>,
    largest: Buffer<u32>,
    rounding: Rounding,
}

/// Up to 128 nodes of one layer of one cell.
struct QueryTile {
    cell: usize,
    /// The first among the nodes of the layer.
    first: usize,
    count: usize,
}

impl InCells<'_> {
    fn run<T: OnDevice>(&self, rows: Matrix<'_, T>) -> Result<(Vec<Key>, DescentStats)> {
        let (n, k, gpu) = (self.space.len(), self.k, self.gpu);
        let began = Instant::now();
        let cells = Cells::new(gpu, self.space, cell_count(n), MEMBERSHIPS, self.seed, self.progress)?;
        let clustering = began.elapsed().as_secs_f64();

        let copying = Instant::now();
        let mut memory = self.memory(rows, &cells)?;
        gpu.synchronize()?;
        let mut copy = copying.elapsed().as_secs_f64();

        let passing = Instant::now();
        let stage = self.progress.stage("descent", (n * MEMBERSHIPS) as u64);
        self.prepare(&mut memory)?;
        for rank in 0..MEMBERSHIPS {
            self.pass(&cells, rank, &mut memory, &stage)?;
        }
        self.finish(&mut memory)?;
        gpu.synchronize()?;
        let passes = passing.elapsed().as_secs_f64();

        let copying = Instant::now();
        let mut keys = vec![key::NONE; n * k];
        memory.lists.download(&mut keys)?;
        copy += copying.elapsed().as_secs_f64();
        drop(memory);

        let completing = Instant::now();
        self.complete(&mut keys)?;
        let size = |pair: &[usize]| ((pair[1] - pair[0]) as u64).pow(2);
        let stats = DescentStats {
            distances: cells.starts.windows(2).map(size).sum(),
            seconds: clustering + passes + completing.elapsed().as_secs_f64(),
            copy,
            ..DescentStats::default()
        };
        Ok((keys, stats))
    }

    /// Allocates everything, and puts the vectors and the cells on the device.
    fn memory<T: OnDevice>(&self, rows: Matrix<'_, T>, cells: &Cells) -> Result<Memory<T>> {
        let (n, k, dim) = (self.space.len(), self.k, self.space.dim());
        let jobs = SLAB / tile::SIDE as usize + cells.starts.len();
        let memory = Side::<T>::plan(Plan::new(), ROWS, n, dim)
            .with::<u32>("members", cells.members.len())
            .with::<u32>("jobs", jobs * JOB_WORDS)
            .with::<u32>("nodes", SLAB)
            .with::<T::Sum>("bounds", SLAB)
            .with::<u32>("counts", SLAB)
            .with::<Key>("noted rows", SLAB * CAPACITY)
            .with::<u32>("overflow", 1)
            .with::<Key>("lists", n * k)
            .with::<u32>("largest norm", 1)
            .reserve(self.gpu)?;
        let mut memory = Memory::<T> {
            side: Side::new(&memory, ROWS, dim)?,
            members: memory.buffer("members")?,
            jobs: memory.buffer("jobs")?,
            nodes: memory.buffer("nodes")?,
            bounds: memory.buffer("bounds")?,
            counts: memory.buffer("counts")?,
            noted: memory.buffer("noted rows")?,
            overflow: memory.buffer("overflow")?,
            lists: memory.buffer("lists")?,
            largest: memory.buffer("largest norm")?,
            rounding: Rounding::of(self.space.metric(), (rows, n), (rows, n), |row| row),
        };
        let stride = memory.side.stride;
        memory.side.values.upload_rows(n, stride, |row| rows.row(row))?;
        memory.members.upload(&cells.members)?;
        // The bytes of empty slots.
        memory.lists.fill(0xff)?;
        memory.largest.fill(0)?;
        memory.overflow.fill(0)?;
        Ok(memory)
    }

    fn prepare<T: OnDevice>(&self, memory: &mut Memory<T>) -> Result<()> {
        let mut mean =
            Plan::new().with::<f32>("mean", self.space.dim()).reserve(self.gpu)?.buffer::<f32>("mean")?;
        mean.upload(&memory.rounding.mean)?;
        let task = Preparation {
            count: self.space.len(),
            dim: self.space.dim(),
            mean: &mean,
            largest: memory.largest.view_mut(),
            scale: memory.rounding.row_scale,
            error_limit: f32::INFINITY,
            norm_weight: 1,
            skip_zero: self.space.metric() == Metric::Cosine,
        };
        T::prepare(self.gpu, &mut memory.side, &task)?;
        // The mean is read until the work is done.
        self.gpu.synchronize()
    }

    /// Lets the nodes of layer `rank` meet the members of their cell.
    fn pass<T: OnDevice>(
        &self,
        cells: &Cells,
        rank: usize,
        memory: &mut Memory<T>,
        stage: &StageProgress<'_>,
    ) -> Result<()> {
        let layer = &cells.layers[rank];
        let side = tile::SIDE as usize;
        let mut tiles = Vec::new();
        for cell in 0..layer.starts.len() - 1 {
            let end = layer.starts[cell + 1];
            for first in (layer.starts[cell]..end).step_by(side) {
                tiles.push(QueryTile { cell, first, count: side.min(end - first) });
            }
        }
        let largest = cells.starts.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0);
        let ends = if rank == 0 { growing_ranges(self.k, largest) } else { vec![largest] };
        for tiles in tiles.chunks(SLAB / side) {
            let (Some(first), Some(last)) = (tiles.first(), tiles.last()) else { continue };
            let nodes = &layer.nodes[first.first..last.first + last.count];
            memory.nodes.upload(nodes)?;
            memory.counts.fill(0)?;
            // The bounds, by the lists of earlier passes.
            self.merge(memory, nodes.len())?;
            let mut begin = 0;
            for &end in &ends {
                let jobs: Vec<u32> = tiles
                    .iter()
                    .filter_map(|tile| {
                        job(cells, layer.starts[tile.cell], rank, tile, first.first, begin..end)
                    })
                    .flat_map(|job| {
                        let Job { first_member, first_query, query_count, first_row, row_count } = job;
                        [first_member, first_query, query_count, first_row, row_count]
                    })
                    .collect();
                if !jobs.is_empty() {
                    memory.jobs.upload(&jobs)?;
                    self.filter(memory, jobs.len() / JOB_WORDS)?;
                    self.merge(memory, nodes.len())?;
                }
                begin = end;
            }
            stage.advance(nodes.len() as u64)?;
        }
        Ok(())
    }

    fn filter<T: OnDevice>(&self, memory: &mut Memory<T>, jobs: usize) -> Result<()> {
        let (stride, units) = memory.side.tile_stride();
        let filter = CellFilter::<T::Sum> {
            tiles: Tiles {
                queries: memory.side.tile_vectors(),
                rows: memory.side.tile_vectors(),
                biases: memory.side.biases.view(),
                bounds: memory.bounds.view(),
                counts: memory.counts.view_mut(),
                overflow: memory.overflow.view_mut(),
                query_stride: stride,
                row_stride: stride,
                units,
                capacity: CAPACITY as u32,
                weight: T::weight(Metric::L2),
                padding: 0,
            },
            members: memory.members.view(),
            jobs: memory.jobs.view(),
            found: memory.noted.view_mut(),
        };
        // SAFETY: members and nodes are rows; the jobs name members, and queries of this slab; the memory
        // outlives the work.
        unsafe { self.gpu.launch::<T::CellFilter>([jobs as u32, 1, 1], tile::THREADS, (filter,)) }
    }

    fn merge<T: OnDevice>(&self, memory: &mut Memory<T>, nodes: usize) -> Result<()> {
        let merge = Merge::<T::Sum> {
            found: memory.noted.view(),
            counts: memory.counts.view_mut(),
            nodes: memory.nodes.view(),
            lists: memory.lists.view_mut(),
            bounds: memory.bounds.view_mut(),
            capacity: CAPACITY as u32,
            k: self.k as u32,
        };
        // SAFETY: as for the filter; lists are of all nodes.
        unsafe { self.gpu.launch::<T::Merge>([nodes as u32, 1, 1], SETTLE_THREADS, (merge,)) }
    }

    fn finish<T: OnDevice>(&self, memory: &mut Memory<T>) -> Result<()> {
        let finish = Finish::<T> {
            rows: memory.side.values.view(),
            lists: memory.lists.view_mut(),
            stride: memory.side.stride as u32,
            dim: self.space.dim() as u32,
            k: self.k as u32,
            metric: metric_number(self.space.metric()),
        };
        let nodes = self.space.len() as u32;
        // SAFETY: lists hold ids of rows; the memory outlives the work.
        unsafe { self.gpu.launch::<T::Finish>([nodes, 1, 1], SETTLE_THREADS, (finish,)) }
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

/// The job of a tile of queries with the members of its cell that are in `range`, if there are any;
/// `first` is the first query of the slab.
fn job(
    cells: &Cells,
    layer_start: usize,
    rank: usize,
    tile: &QueryTile,
    first: usize,
    range: std::ops::Range<usize>,
) -> Option<Job> {
    let start = cells.starts[tile.cell];
    let members = cells.starts[tile.cell + 1] - start;
    let end = range.end.min(members);
    // The members of the layers before this one come first in the cell.
    let before: usize =
        cells.layers[..rank].iter().map(|l| l.starts[tile.cell + 1] - l.starts[tile.cell]).sum();
    (range.start < end).then(|| Job {
        first_member: (start + before + tile.first - layer_start) as u32,
        first_query: (tile.first - first) as u32,
        query_count: tile.count as u32,
        first_row: (start + range.start) as u32,
        row_count: (end - range.start) as u32,
    })
}

/// The ends of ranges of a cell's members that keep what is noted of each within its room: of `seen`
/// members k are nearer than the bound, so of the next r about k r / seen.
fn growing_ranges(k: usize, members: usize) -> Vec<usize> {
    let side = tile::SIDE as usize;
    let mut ends = vec![(2 * k).next_multiple_of(side).max(2 * side)];
    while let Some(&seen) = ends.last()
        && seen < members
    {
        let growth = CAPACITY as f64 / (3 * k.max(32)) as f64;
        ends.push(seen + ((seen as f64 * growth) as usize).next_multiple_of(side));
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_grow_to_the_end() {
        for (k, members) in [(1, 0), (10, 100), (96, 12_000), (256, 50_000)] {
            let ends = growing_ranges(k, members);
            assert!(ends.windows(2).all(|pair| pair[0] < pair[1]));
            assert!(*ends.last().unwrap() >= members && ends[0] <= CAPACITY);
        }
    }
}
