//! A start from cells: all pairs of overlapping groups of near vectors.
//!
//! Each node is in the cells of its nearest centres (`clusters.rs`). Inside a cell every member meets every
//! other on tensor cores, in tiles: those whose distance, so computed, is below the node's present bound are
//! noted and merged into the node's list. A node's first cell goes first, in growing ranges; the later
//! cells find bounds that are tight already.

use tagore_device::block::tile;
use tagore_device::descent::cells::Merge;
use tagore_device::descent::key::Key;
use tagore_device::search::exact::{CellFilter, JOB_WORDS, Job, SETTLE_THREADS, Tiles};

use super::clusters::Cells;
use super::{Build, Nodes};
use crate::descent::{DescentStats, Iterations};
use crate::gpu::{Buffer, Plan};
use crate::progress::StageProgress;
use crate::vectors::gpu::OnDevice;
use crate::{Metric, Result};

/// Nodes per centre. A cell has as many members for each of a node's memberships.
const NODES_PER_CELL: usize = 2000;

/// Cells that each node is in.
const MEMBERSHIPS: usize = 6;

/// Queries that are worked on together.
const SLAB: usize = 65_536;

/// Rows that are noted per query between two settlings; more are lost.
const CAPACITY: usize = 1024;

/// Iterations of phase 2 after the cells.
const STEPS: u32 = 1;

/// Whether `n` nodes make enough cells.
pub(super) fn possible(n: usize) -> bool {
    cell_count(n) >= 2 * MEMBERSHIPS
}

/// Centres for `n` nodes; of few nodes, more than their number would give, so that there is a choice.
fn cell_count(n: usize) -> usize {
    (n / NODES_PER_CELL).max((n / 64).min(16))
}

/// What the passes work with on the device, beside the nodes.
struct Memory<T: OnDevice> {
    members: Buffer<u32>,
    jobs: Buffer<u32>,
    nodes: Buffer<u32>,
    bounds: Buffer<T::Sum>,
    counts: Buffer<u32>,
    noted: Buffer<Key>,
    overflow: Buffer<u32>,
}

/// Up to 128 nodes of one layer of one cell.
struct QueryTile {
    cell: usize,
    /// The first among the nodes of the layer.
    first: usize,
    count: usize,
}

impl Build<'_> {
    /// Lists from cells, and what phase 2 adds.
    pub(super) fn cells<T: OnDevice>(&self, nodes: &mut Nodes<T>, stats: &mut DescentStats) -> Result<()> {
        let n = self.space.len();
        let cells = Cells::new(self.gpu, self.space, cell_count(n), MEMBERSHIPS, self.seed, self.progress)?;
        let mut memory = self.memory_of_cells::<T>(&cells)?;
        let stage = self.progress.stage("cells", (n * MEMBERSHIPS) as u64);
        for rank in 0..MEMBERSHIPS {
            self.pass(&cells, rank, nodes, &mut memory, &stage)?;
        }
        // Its memory is used until the work is done.
        self.gpu.synchronize()?;
        drop(memory);
        let size = |pair: &[usize]| ((pair[1] - pair[0]) as u64).pow(2);
        stats.distances += cells.starts.windows(2).map(size).sum::<u64>();
        let steps = if self.iterations == Iterations::Auto { STEPS } else { self.iterations.limits().1 };
        self.refine(nodes, steps, stats)
    }

    /// Allocates everything, and puts the cells on the device.
    fn memory_of_cells<T: OnDevice>(&self, cells: &Cells) -> Result<Memory<T>> {
        let jobs = SLAB / tile::SIDE as usize + cells.starts.len();
        let memory = Plan::new()
            .with::<u32>("members", cells.members.len())
            .with::<u32>("jobs", jobs * JOB_WORDS)
            .with::<u32>("nodes", SLAB)
            .with::<T::Sum>("bounds", SLAB)
            .with::<u32>("counts", SLAB)
            .with::<Key>("noted rows", SLAB * CAPACITY)
            .with::<u32>("overflow", 1)
            .reserve(self.gpu)?;
        let mut memory = Memory::<T> {
            members: memory.buffer("members")?,
            jobs: memory.buffer("jobs")?,
            nodes: memory.buffer("nodes")?,
            bounds: memory.buffer("bounds")?,
            counts: memory.buffer("counts")?,
            noted: memory.buffer("noted rows")?,
            overflow: memory.buffer("overflow")?,
        };
        memory.members.upload(&cells.members)?;
        memory.overflow.fill(0)?;
        Ok(memory)
    }

    /// Lets the nodes of layer `rank` meet the members of their cell.
    fn pass<T: OnDevice>(
        &self,
        cells: &Cells,
        rank: usize,
        nodes: &mut Nodes<T>,
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
            let queries = &layer.nodes[first.first..last.first + last.count];
            memory.nodes.upload(queries)?;
            memory.counts.fill(0)?;
            // The bounds, by the lists of earlier passes.
            self.merge(nodes, memory, queries.len())?;
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
                    self.filter(nodes, memory, jobs.len() / JOB_WORDS)?;
                    self.merge(nodes, memory, queries.len())?;
                }
                begin = end;
            }
            stage.advance(queries.len() as u64)?;
        }
        Ok(())
    }

    fn filter<T: OnDevice>(&self, nodes: &Nodes<T>, memory: &mut Memory<T>, jobs: usize) -> Result<()> {
        let (stride, units) = nodes.side.tile_stride();
        let filter = CellFilter::<T::Sum> {
            tiles: Tiles {
                queries: nodes.side.tile_vectors(),
                rows: nodes.side.tile_vectors(),
                biases: nodes.side.biases.view(),
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

    fn merge<T: OnDevice>(&self, nodes: &mut Nodes<T>, memory: &mut Memory<T>, queries: usize) -> Result<()> {
        let merge = Merge::<T::Sum> {
            found: memory.noted.view(),
            counts: memory.counts.view_mut(),
            nodes: memory.nodes.view(),
            lists: nodes.lists.view_mut(),
            bounds: memory.bounds.view_mut(),
            capacity: CAPACITY as u32,
            k: self.k as u32,
        };
        // SAFETY: as for the filter; lists are of all nodes.
        unsafe { self.gpu.launch::<T::Merge>([queries as u32, 1, 1], SETTLE_THREADS, (merge,)) }
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
