//! A start from cells: all pairs of overlapping groups of near vectors.
//!
//! Inside a cell ([`cluster`](crate::cluster)) every member meets every other on tensor cores, in tiles: those
//! whose distance, so computed, is below the node's present bound are noted and merged into the node's
//! list. A node's first cell goes first, in growing ranges; the later cells find bounds that are tight already.

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

/// Query tiles that are worked on together.
const SLAB: usize = 512;

/// Rows that are noted per query between two mergings. A query with more loses them.
const CAPACITY: usize = 1024;

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

impl Build<'_> {
    /// Fills the lists with the nearest of each node's cells, of which there are `count`.
    pub(super) fn cells<T: OnDevice>(
        &self,
        nodes: &mut Nodes<T>,
        cells: &Cells,
        stats: &mut DescentStats,
    ) -> Result<()> {
        let slabs = Slab::all(cells, self.k);
        let jobs: Vec<u32> = slabs
            .iter()
            .flat_map(|slab| &slab.jobs)
            .flat_map(|job| [job.first_query, job.query_count, job.first_row, job.row_count])
            .collect();
        let plan = Plan::new()
            .with::<u32>("jobs", jobs.len())
            .with::<T::Sum>("list bounds", self.space.len())
            .with::<u32>("counts", SLAB * tile::SIDE as usize)
            .with::<Key>("noted rows", SLAB * tile::SIDE as usize * CAPACITY)
            .reserve(self.gpu)?;
        let mut memory = Memory::<T> {
            jobs: plan.buffer("jobs")?,
            bounds: plan.buffer("list bounds")?,
            counts: plan.buffer("counts")?,
            noted: plan.buffer("noted rows")?,
        };
        memory.jobs.upload(&jobs)?;
        memory.bounds.fill(T::Sum::OPEN_BYTE)?;
        memory.counts.fill(0)?;
        let stage = self.progress.stage("cells", slabs.len() as u64);
        let mut first_job = 0;
        for slab in &slabs {
            for jobs in slab.jobs.chunks(slab.tiles) {
                self.filter(nodes, cells, &mut memory, first_job, jobs.len())?;
                self.merge(nodes, cells, &mut memory, first_job, jobs.len())?;
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

    fn filter<T: OnDevice>(
        &self,
        nodes: &Nodes<T>,
        cells: &Cells,
        memory: &mut Memory<T>,
        first_job: usize,
        jobs: usize,
    ) -> Result<()> {
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
            members: cells.members.view(),
            jobs: memory.jobs.view().offset(first_job * JOB_WORDS),
            counts: memory.counts.view_mut(),
            found: memory.noted.view_mut(),
            capacity: CAPACITY as u32,
            padding: 0,
        };
        // SAFETY: members are nodes, and the jobs name members; there is room for the lines of a slab, and the
        // memory outlives the work.
        unsafe { self.gpu.launch::<T::CellFilter>([jobs as u32, 1, 1], tile::THREADS, (filter,)) }
    }

    fn merge<T: OnDevice>(
        &self,
        nodes: &mut Nodes<T>,
        cells: &Cells,
        memory: &mut Memory<T>,
        first_job: usize,
        jobs: usize,
    ) -> Result<()> {
        let merge = Merge::<T::Sum> {
            found: memory.noted.view(),
            counts: memory.counts.view_mut(),
            members: cells.members.view(),
            jobs: memory.jobs.view().offset(first_job * JOB_WORDS),
            lists: nodes.lists.view_mut(),
            bounds: memory.bounds.view_mut(),
            capacity: CAPACITY as u32,
            k: self.k as u32,
        };
        let lines = jobs as u32 * tile::SIDE;
        // SAFETY: as for the filter; lists and bounds are of all nodes.
        unsafe { self.gpu.launch::<T::Merge>([lines, 1, 1], SETTLE_THREADS, (merge,)) }
    }
}

/// Query tiles that are worked on together, each a block's.
struct Slab {
    tiles: usize,
    /// A job of each tile for the first range of rows, then of each for the second, and so on.
    jobs: Vec<Job>,
}

impl Slab {
    /// Everything that is to be done, in order: for each rank the nodes whose cell of that rank it is meet the
    /// members of the cell.
    fn all(cells: &Cells, k: usize) -> Vec<Self> {
        let m = cells.memberships;
        let count = (cells.starts.len() - 1) / m;
        let average = cells.starts[count * m] / count.max(1);
        let side = tile::SIDE as usize;
        let mut slabs = Vec::new();
        for rank in 0..m {
            // The first query of each tile, how many it has, and the members that it meets.
            let mut tiles = Vec::new();
            for cell in 0..count {
                let (first, end) = (cells.starts[cell * m + rank], cells.starts[cell * m + rank + 1]);
                let rows = cells.starts[cell * m]..cells.starts[(cell + 1) * m];
                let rows = rows.start..rows.end.min(rows.start + MOST_MEMBERS * average.max(side));
                tiles.extend(
                    (first..end).step_by(side).map(|query| (query, side.min(end - query), rows.clone())),
                );
            }
            let largest = tiles.iter().map(|tile| tile.2.len()).max().unwrap_or(0);
            let ends = if rank == 0 { growing_ranges(k, largest) } else { vec![largest] };
            for tiles in tiles.chunks(SLAB) {
                let mut jobs = Vec::with_capacity(tiles.len() * ends.len());
                let mut begin = 0;
                for &end in &ends {
                    jobs.extend(tiles.iter().map(|(query, queries, rows)| {
                        let first = (rows.start + begin).min(rows.end);
                        Job {
                            first_query: *query as u32,
                            query_count: *queries as u32,
                            first_row: first as u32,
                            row_count: ((rows.start + end).min(rows.end) - first) as u32,
                        }
                    }));
                    begin = end;
                }
                slabs.push(Self { tiles: tiles.len(), jobs });
            }
        }
        slabs
    }
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
