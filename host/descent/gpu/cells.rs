//! A start from cells: all pairs of overlapping groups of near vectors.
//!
//! Inside a cell ([`cluster`](crate::cluster)) every member meets every other on tensor cores, in tiles: those
//! whose distance, so computed, is below the node's present bound are noted and merged into the node's
//! list. A node's first cell goes first: a sample of its members says how near the neighbours will be, then come
//! the others. The later cells find bounds that are tight already.

use std::cmp::Reverse;
use std::ops::Range;

use tagore_device::block::element::TileSum;
use tagore_device::block::tile;
use tagore_device::descent::cells::Merge;
use tagore_device::descent::key::Key;
use tagore_device::search::exact::{CellFilter, JOB_WORDS, Job, SETTLE_THREADS, Tiles};

use super::{Build, Nodes};
use crate::cluster::Cells;
use crate::descent::DescentStats;
use crate::gpu::{Buffer, Plan};
use crate::vectors::gpu::OnDevice;
use crate::{Metric, Result};

/// Keys that are noted between two mergings, of all queries that are worked on together, at most.
const NOTED: usize = 1 << 27;

/// As many for each node, so that they take no more of a device than what comes after them; but enough to keep it busy.
const NOTED_PER_NODE: usize = 128;
const LEAST_NOTED: usize = 1 << 25;

/// Keys that are noted of each query in its first cell, where little is known of how near its neighbours are. A
/// query with more loses them.
const FIRST_CAPACITY: usize = 1024;

/// Keys that are noted of each query in later cells: most of those below the bound are known already.
fn later_capacity(k: usize) -> usize {
    (4 * k).next_multiple_of(128).clamp(256, FIRST_CAPACITY)
}

/// Members of a cell that others meet, at most, in multiples of what a cell has on average: where clusters
/// are bad, as among equal vectors, not all pairs of a huge one are compared.
const MOST_MEMBERS: usize = 8;

/// What the passes work with on the device, beside the nodes.
struct Memory<T: OnDevice> {
    jobs: Buffer<u32>,
    bounds: Buffer<T::Sum>,
    counts: Buffer<u32>,
    noted: Buffer<Key>,
}

/// The device memory for `n` nodes in `memberships` of `count` cells each, however full the cells will be.
pub(super) fn plan<T: OnDevice>(n: usize, k: usize, count: usize, memberships: usize) -> Plan {
    let side = tile::SIDE as usize;
    // The last tile of each cell may have a single node.
    let tiles = (n + (side - 1) * count) / side;
    let lines = |capacity: usize| tiles.min(tiles_of_slab(n, capacity)) * side;
    let (first, later) = (FIRST_CAPACITY, later_capacity(k));
    Plan::new()
        .with::<u32>("jobs", tiles * (memberships + 1) * JOB_WORDS)
        .with::<T::Sum>("list bounds", n)
        .with::<u32>("counts", lines(first).max(lines(later)))
        .with::<Key>("noted rows", (lines(first) * first).max(lines(later) * later))
}

/// Tiles of `n` nodes that are worked on together.
fn tiles_of_slab(n: usize, capacity: usize) -> usize {
    (NOTED_PER_NODE * n).clamp(LEAST_NOTED, NOTED) / (capacity * tile::SIDE as usize)
}

impl Build<'_> {
    /// Fills the lists with the nearest of each node's cells, of which there are `count`.
    pub(super) fn cells<T: OnDevice>(
        &self,
        nodes: &mut Nodes<T>,
        cells: &Cells,
        stats: &mut DescentStats,
    ) -> Result<()> {
        let slabs = Slab::all(cells, (self.space.len(), self.k));
        let jobs: Vec<u32> = slabs
            .iter()
            .flat_map(|slab| &slab.jobs)
            .flat_map(|job| [job.first_query, job.query_count, job.first_row, job.row_count, job.bound_place])
            .collect();
        let count = (cells.starts.len() - 1) / cells.memberships;
        let plan = plan::<T>(self.space.len(), self.k, count, cells.memberships).reserve(self.gpu)?;
        let mut memory = Memory::<T> {
            jobs: plan.buffer("jobs")?,
            bounds: plan.buffer("list bounds")?,
            counts: plan.buffer("counts")?,
            noted: plan.buffer("noted rows")?,
        };
        memory.jobs.upload(&jobs)?;
        memory.bounds.fill(T::Sum::OPEN_BYTE)?;
        let stage = self.progress.stage("cells", slabs.len() as u64);
        let mut first_job = 0;
        for slab in &slabs {
            for jobs in slab.jobs.chunks(slab.tiles) {
                let work = Work { cells, first_job, jobs: jobs.len(), capacity: slab.capacity as u32 };
                self.filter(nodes, &mut memory, work)?;
                self.merge(nodes, &mut memory, work)?;
                first_job += jobs.len();
                let pairs = jobs.iter().map(|job| u64::from(job.query_count) * u64::from(job.row_count));
                stats.distances += pairs.sum::<u64>();
            }
            stage.advance(1)?;
        }
        self.count_cells::<T>(nodes.stride, slabs.iter().flat_map(|slab| &slab.jobs));
        // Its memory is used until the work is done.
        self.gpu.synchronize()
    }

    fn filter<T: OnDevice>(&self, nodes: &Nodes<T>, memory: &mut Memory<T>, work: Work<'_>) -> Result<()> {
        let filter = CellFilter::<T::Sum> {
            tiles: Tiles {
                queries: nodes.vectors.view(),
                rows: nodes.vectors.view(),
                biases: nodes.biases.view(),
                query_stride: nodes.stride,
                row_stride: nodes.stride,
                units: nodes.stride / 16,
                weight: T::weight(Metric::L2),
            },
            bounds: memory.bounds.view(),
            members: work.cells.members.view(),
            jobs: memory.jobs.view().offset(work.first_job * JOB_WORDS),
            counts: memory.counts.view_mut(),
            found: memory.noted.view_mut(),
            capacity: work.capacity,
            padding: 0,
        };
        // SAFETY: members are nodes, and the jobs name members; there is room for the lines of a slab, and the
        // memory outlives the work.
        unsafe { self.gpu.launch::<T::CellFilter>([work.jobs as u32, 1, 1], tile::THREADS, (filter,)) }
    }

    fn merge<T: OnDevice>(&self, nodes: &mut Nodes<T>, memory: &mut Memory<T>, work: Work<'_>) -> Result<()> {
        let merge = Merge::<T::Sum> {
            found: memory.noted.view(),
            counts: memory.counts.view(),
            members: work.cells.members.view(),
            jobs: memory.jobs.view().offset(work.first_job * JOB_WORDS),
            lists: nodes.lists.view_mut(),
            bounds: memory.bounds.view_mut(),
            capacity: work.capacity,
            k: self.k as u32,
        };
        let lines = work.jobs as u32 * tile::SIDE;
        // SAFETY: as for the filter; lists and bounds are of all nodes.
        unsafe { self.gpu.launch::<T::Merge>([lines, 1, 1], SETTLE_THREADS, (merge,)) }
    }
}

/// What one filter and the merging after it do: `jobs` jobs from `first_job` on.
#[derive(Clone, Copy)]
struct Work<'a> {
    cells: &'a Cells,
    first_job: usize,
    jobs: usize,
    capacity: u32,
}

/// Query tiles that are worked on together, each a block's.
struct Slab {
    tiles: usize,
    /// Keys that are noted of each query.
    capacity: usize,
    /// A job of each tile for the first range of rows, then, if there is another, of each for that.
    jobs: Vec<Job>,
}

/// Up to 128 nodes of one rank of one cell.
struct Tile {
    queries: Range<usize>,
    /// The members that they meet.
    rows: Range<usize>,
    /// Nodes of this rank in the cell, which come first among its members.
    of_rank: usize,
}

impl Slab {
    /// Everything that is to be done, in order: for each rank the nodes whose cell of that rank it is meet the
    /// members of the cell.
    fn all(cells: &Cells, (n, k): (usize, usize)) -> Vec<Self> {
        let m = cells.memberships;
        let count = (cells.starts.len() - 1) / m;
        let side = tile::SIDE as usize;
        let most = MOST_MEMBERS * (cells.starts[count * m] / count.max(1)).max(side);
        let mut slabs = Vec::new();
        for rank in 0..m {
            let mut tiles = Vec::new();
            for cell in 0..count {
                let all = &cells.starts[cell * m..=(cell + 1) * m];
                let rows = all[0]..all[m].min(all[0] + most);
                let (first, end) = (all[rank], all[rank + 1]);
                tiles.extend((first..end).step_by(side).map(|query| Tile {
                    queries: query..end.min(query + side),
                    rows: rows.clone(),
                    of_rank: end - first,
                }));
            }
            let capacity = if rank == 0 { FIRST_CAPACITY } else { later_capacity(k) };
            let slab = |tiles: &[Tile]| {
                let job = |tile: &Tile, rows: Range<usize>, bound_place| Job {
                    first_query: tile.queries.start as u32,
                    query_count: tile.queries.len() as u32,
                    first_row: rows.start as u32,
                    row_count: rows.len() as u32,
                    bound_place: bound_place as u32,
                };
                let jobs = if rank == 0 {
                    let cut = |tile: &Tile| tile.rows.end.min(tile.rows.start + sample_size(k));
                    let sample = tiles.iter().map(|tile| {
                        let place = bound_place(k, tile.of_rank, tile.rows.len());
                        job(tile, tile.rows.start..cut(tile), place)
                    });
                    let rest = tiles.iter().map(|tile| job(tile, cut(tile)..tile.rows.end, k - 1));
                    sample.chain(rest).collect()
                } else {
                    tiles.iter().map(|tile| job(tile, tile.rows.clone(), k - 1)).collect()
                };
                Self { tiles: tiles.len(), capacity, jobs }
            };
            slabs.extend(tiles.chunks_mut(tiles_of_slab(n, capacity)).map(|tiles| {
                // The longest first, so that those that are left in the end are short.
                tiles.sort_by_key(|tile| Reverse(tile.rows.len()));
                slab(tiles)
            }));
        }
        slabs
    }
}

/// Members of a node's first cell that it meets first.
fn sample_size(k: usize) -> usize {
    (2 * k).next_multiple_of(tile::SIDE as usize).max(256)
}

/// The place in a node's list, after it has met a sample of its cell's `rows` members, beyond which nothing of the
/// rest will stay in the list: of the `of_rank` members that are nearest to the cell, and of which the sample
/// is, k will be nearer than the place's distance, with three standard deviations to spare. It is a nearer
/// place where too many would be noted.
fn bound_place(k: usize, of_rank: usize, rows: usize) -> usize {
    let sample = sample_size(k);
    let Some(rest) = rows.checked_sub(sample).filter(|&rest| rest > 0) else { return k - 1 };
    let expected = (k * sample) as f64 / of_rank.max(sample) as f64;
    let safe = expected + 3.0 * expected.sqrt() + 2.0;
    let room = (sample * FIRST_CAPACITY) as f64 * 0.6 / rest as f64;
    (safe.min(room).max(1.0) as usize).min(k) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_leave_enough_and_not_too_much() {
        // No rest; a rest as near as the sample, a small one; a large cell.
        assert_eq!(bound_place(96, 200, 256), 95);
        assert_eq!(bound_place(96, 256, 300), 95);
        assert_eq!(bound_place(96, 1000, 2000), 24 + 14 + 2);
        assert!(bound_place(96, 1000, 5000) < 40);
        assert!(bound_place(96, 100_000, 400_000) * 400_000 / 256 < FIRST_CAPACITY);
        for k in [1, 8, 256] {
            assert!(bound_place(k, 1000, 5000) < k && sample_size(k) <= FIRST_CAPACITY);
        }
    }
}
