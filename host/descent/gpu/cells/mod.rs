//! A start from cells: the intra-cell and cross-cell joins.
//!
//! A vector is assigned to the cell of its nearest centre, or of its nearest two, and probes
//! further near cells ([`cluster`](crate::cluster)). First the intra-cell join compares the members
//! of each cell with one another on tensor cores. The nearest ones are merged into each list. Then
//! the cross-cell join compares the assigned vectors of each cell, a query tile at a time, with the
//! vectors that probe it, from the nearest ranks to the farthest. It proposes each vector of a pair
//! to the other if the pair is below the bound of either. So two neighbours find each other if only
//! one of them probes the other's cell: half as many probes suffice.
//!
//! Further clusterings, with centres from other samples, join neighbours that the first separates.
//! In these, the cells of the first tell which centres are near a vector. They have no intra-cell
//! join: the cross-cell join compares the members of a cell too.

mod schedule;
mod work;

use std::ops::Range;

use cuda_std::launch::Kernel;
use tagore_device::block::tile;
use tagore_device::block::tile_walk::Tiles;
use tagore_device::descent::cells::{
    CANDIDATE_LINES, CANDIDATE_THREADS, COUNTED, CrossCellJoin, IntraCellJoin, JOB_WORDS, Job, KnownSets,
    MergeCandidates, MergeProposals, PROPOSALS, QUERY_TILE_WORDS, cells_cross_join_1_f16,
    cells_cross_join_1_i8, cells_cross_join_1_u8, cells_cross_join_2_f16, cells_cross_join_2_i8,
    cells_cross_join_2_u8, cells_cross_join_many_f16, cells_cross_join_many_i8, cells_cross_join_many_u8,
    cells_intra_join_1_f16, cells_intra_join_1_i8, cells_intra_join_1_u8, cells_intra_join_2_f16,
    cells_intra_join_2_i8, cells_intra_join_2_u8, cells_intra_join_many_f16, cells_intra_join_many_i8,
    cells_intra_join_many_u8, cells_known_sets, cells_merge_candidates, cells_merge_proposals, known_bits,
};
use tagore_device::descent::merge::{COUNTERS, MERGE_NODES, MERGE_THREADS};
use tagore_device::key::Key;
use tagore_device::random::{Draws, Stage};

pub(crate) use schedule::ROUND;
use schedule::{JoinSizes, Ranks, passes};
use work::JoinWork;

use super::settings::FoundInCells;
use super::{Build, CellSettings, DescentShape, Nodes};
use crate::cluster::{self, Cells, ClusterKernels, Known};
use crate::descent::DescentStats;
use crate::gpu::{Buffer, Communicator, MemoryPlan, Stages};
use crate::vectors::gpu::{ByChunks, OnDevice, Side, TileVectors, tile_kernels};
use crate::{Metric, Result};

tile_kernels! {
    /// Kernels of both joins.
    pub(crate) trait JoinKernels {
        IntraCellJoin (IntraCellJoin<Self::Sum>,):
            (cells_intra_join_1_f16, cells_intra_join_2_f16, cells_intra_join_many_f16),
            (cells_intra_join_1_u8, cells_intra_join_2_u8, cells_intra_join_many_u8),
            (cells_intra_join_1_i8, cells_intra_join_2_i8, cells_intra_join_many_i8);
        CrossCellJoin (CrossCellJoin<Self::Sum>,):
            (cells_cross_join_1_f16, cells_cross_join_2_f16, cells_cross_join_many_f16),
            (cells_cross_join_1_u8, cells_cross_join_2_u8, cells_cross_join_many_u8),
            (cells_cross_join_1_i8, cells_cross_join_2_i8, cells_cross_join_many_i8);
    }
}

/// Kernels of cells: of clustering, and of both joins.
pub(crate) trait CellKernels: JoinKernels + ClusterKernels {}

impl<T: JoinKernels + ClusterKernels> CellKernels for T {}

/// Buffers of the joins of one clustering.
struct JoinBuffers {
    /// Distances of the intra-cell join, two to a key; later proposals.
    keys: Buffer<Key>,
    known: Buffer<u32>,
    jobs: Buffer<u32>,
    query_tiles: Buffer<u32>,
    starts: Buffer<u32>,
}

/// What stays from one clustering to the next.
struct KeptBuffers {
    parts: Parts,
    bounds: Buffer<f32>,
    /// Keys that a clustering added to the lists of some nodes.
    changes: Buffer<u32>,
}

impl KeptBuffers {
    /// Gives all devices the bounds of all lists.
    fn gather_bounds(&mut self, devices: Communicator<'_>) -> Result<()> {
        devices.all_gather(&mut self.bounds, &self.parts.nodes, 1)
    }
}

/// What each device does: the joins of cells of the first clustering, and the lists of their
/// members, which are nodes that follow one another.
struct Parts {
    cells: Vec<Range<usize>>,
    nodes: Vec<Range<usize>>,
}

impl Parts {
    /// Even parts for `devices`, by the offsets of the cells' members.
    fn new(devices: usize, offsets: &[u32]) -> Self {
        let (cells, nodes) = (offsets.len() - 1, offsets[offsets.len() - 1] as usize);
        let first = |device: usize| {
            let share = nodes * device / devices;
            let cell = offsets.partition_point(|&offset| (offset as usize) < share);
            if device == devices { cells } else { cell }
        };
        let cells: Vec<Range<usize>> = (0..devices).map(|device| first(device)..first(device + 1)).collect();
        let members = |cells: &Range<usize>| offsets[cells.start] as usize..offsets[cells.end] as usize;
        let nodes = cells.iter().map(members).collect();
        Self { cells, nodes }
    }
}

impl DescentShape {
    /// Plans the joins of all clusterings.
    pub(super) fn plan_cells<T: CellKernels>(&self, stages: &mut Stages) {
        let request = self.clustering(None);
        let sizes = JoinSizes {
            nodes: self.n,
            cells: request.cells,
            probes: request.probes.min(request.cells),
            assignments: CellSettings::assignments(self.n, self.dim),
            k: self.k,
        };
        let units = Side::<T>::tile_units(self.dim);
        let cross = [T::CrossCellJoin::name(units), cells_merge_proposals::NAME];
        let intra = [T::IntraCellJoin::name(units), cells_merge_candidates::NAME];
        stages.hold(&sizes.kept_plan());
        stages.add("cells", &sizes.plan(), intra.into_iter().chain(cross));
        stages.free(&["members"]);
        if self.clusterings() > 1 {
            let request = self.clustering(Some(request.cells));
            let clusters = cluster::plan::<T>(MemoryPlan::new(), self.n, self.dim, request);
            let kernels = cluster::kernels::<T>(self.n, request);
            stages.add_and_keep("cluster again", &clusters, &cluster::KEPT, kernels);
            stages.add("cells again", &sizes.plan(), std::iter::once(cells_known_sets::NAME).chain(cross));
        }
        stages.free(&["list bounds", "changes"]);
    }
}

impl Build<'_> {
    /// Fills the lists by the joins of all clusterings; `cells` is the first clustering. Returns
    /// what they found.
    pub(super) fn cells<T: CellKernels>(
        &self,
        nodes: &mut Nodes<T>,
        cells: Cells<T>,
        stats: &mut DescentStats,
    ) -> Result<FoundInCells> {
        let (n, dim) = (self.space.len(), self.space.dim());
        let clusterings = self.shape.clusterings();
        let memory = self.join_sizes(&cells).kept_plan().reserve(self.gpu)?;
        let starts = Ranks { starts: &cells.starts, probes: cells.probes }.cell_offsets();
        let parts = Parts::new(self.devices.count(), &starts);
        let mut kept =
            KeptBuffers { parts, bounds: memory.buffer("list bounds")?, changes: memory.buffer("changes")? };
        // The float of these bytes is 3.4e38: no bound yet.
        kept.bounds.fill(0x7f)?;
        let stage = self.progress.stage("cells", clusterings as u64);
        self.join_cells(nodes, &mut kept, &cells, 0, stats)?;
        stage.advance(1)?;
        let centres = cells.centres;
        drop(cells.members);
        let DescentShape { settings, purpose, .. } = self.shape;
        let request = self.shape.clustering(Some(centres.count));
        let mut found = FoundInCells::new(self.share_added(&kept)?, None);
        for clustering in 1..clusterings {
            let seed = Draws::new(self.seed, Stage::Cells, u32::MAX, clustering as u64).bits(0);
            let (devices, parts) = (self.devices, &kept.parts.cells[..]);
            let known = Known { centres: &centres, starts: &starts, devices, parts };
            let cells = cluster::cells::<T>(self.gpu, nodes.tiles.rows(n, dim), request, seed, Some(known))?;
            self.join_cells(nodes, &mut kept, &cells, clustering, stats)?;
            stage.advance(1)?;
            let before = (clustering > 1).then_some(found.added);
            found = FoundInCells::new(self.share_added(&kept)?, before);
            let FoundInCells { added, missing } = found;
            tracing::debug!(clustering, added, missing, "shares of entries after a clustering");
            if settings.is_enough(purpose, missing) {
                break;
            }
        }
        self.devices.all_gather(&mut nodes.lists, &kept.parts.nodes, self.shape.k)?;
        Ok(found)
    }

    /// The share of all entries that the last clustering added to the lists.
    fn share_added(&self, kept: &KeptBuffers) -> Result<f64> {
        let mut sums = [0; COUNTERS as usize];
        kept.changes.download(&mut sums)?;
        let mut added = [sums.iter().map(|&sum| u64::from(sum)).sum()];
        self.devices.all_reduce_sum(&mut added)?;
        let counted = self.space.len().div_ceil(COUNTED as usize) * self.shape.k;
        Ok(added[0] as f64 / counted as f64)
    }

    fn join_sizes<T: CellKernels>(&self, cells: &Cells<T>) -> JoinSizes {
        let (nodes, dim) = (self.space.len(), self.space.dim());
        let assignments = CellSettings::assignments(nodes, dim).min(cells.probes);
        JoinSizes { nodes, cells: cells.centres.count, probes: cells.probes, assignments, k: self.shape.k }
    }

    /// Runs the joins of one clustering; only the first has an intra-cell join.
    fn join_cells<T: CellKernels>(
        &self,
        nodes: &mut Nodes<T>,
        kept: &mut KeptBuffers,
        cells: &Cells<T>,
        clustering: usize,
        stats: &mut DescentStats,
    ) -> Result<()> {
        kept.changes.fill(0)?;
        let sizes = self.join_sizes(cells);
        let (is_first, most) = (clustering == 0, sizes.most_members());
        let ranks = Ranks { starts: &cells.starts, probes: cells.probes };
        let own = self.devices.own(&kept.parts.cells);
        let slabs = if is_first { ranks.slabs(own, sizes.slab_tiles(), most) } else { Vec::new() };
        let memory = sizes.plan().reserve(self.gpu)?;
        let mut buffers = JoinBuffers {
            keys: memory.buffer("proposals")?,
            known: memory.buffer("known sets")?,
            jobs: memory.buffer("jobs")?,
            query_tiles: memory.buffer("query tiles")?,
            starts: memory.buffer("cell starts")?,
        };
        let words = |job: &Job| [job.first_query, job.query_count, job.first_row, job.row_count];
        buffers.jobs.upload(&slabs.iter().flatten().flat_map(words).collect::<Vec<u32>>())?;
        buffers.starts.upload(&cells.starts.iter().map(|&start| start as u32).collect::<Vec<u32>>())?;
        let mut join = Join { build: self, nodes, kept, buffers, cells, known_salt: None };
        let mut first_job = 0;
        for slab in &slabs {
            join.intra_cell(first_job..first_job + slab.len())?;
            first_job += slab.len();
        }
        join.kept.gather_bounds(self.devices)?;
        // Empty slots are all ones, as merges leave them.
        join.buffers.keys.fill(0xff)?;
        if !is_first {
            join.build_known_sets(self.salt((1 + clustering) as u32))?;
        }
        // The host computes these while the device works.
        let query_tiles = ranks.query_tiles(sizes.assignments, most, self.devices);
        join.buffers.query_tiles.upload(&query_tiles)?;
        let passes = passes(cells.probes, is_first);
        for (pass, ranks) in passes.iter().enumerate() {
            let salt = self.salt(((1 + clustering) << 16 | pass) as u32);
            join.cross_cell(query_tiles.len() / QUERY_TILE_WORDS, ranks.clone(), most, salt)?;
        }
        let work = JoinWork {
            stride: join.nodes.tiles.stride,
            assignments: sizes.assignments,
            most,
            is_first,
            passes: passes.len(),
        };
        stats.distances += self.count_cells::<T>(ranks, work);
        // After this wait the memory of these cells serves the larger buffers of the next
        // clustering.
        self.gpu.synchronize()
    }
}

/// The joins of one clustering.
struct Join<'a, 'b, T: CellKernels> {
    build: &'a Build<'b>,
    nodes: &'a mut Nodes<T>,
    kept: &'a mut KeptBuffers,
    buffers: JoinBuffers,
    cells: &'a Cells<T>,
    /// Salt of the known sets, once they are made.
    known_salt: Option<u32>,
}

impl<T: CellKernels> Join<'_, '_, T> {
    /// Runs the intra-cell join of `jobs` and merges the smallest distances.
    fn intra_cell(&mut self, jobs: Range<usize>) -> Result<()> {
        let Self { build, nodes, kept, buffers, cells, .. } = self;
        let words = buffers.jobs.view().offset(jobs.start * JOB_WORDS);
        let join = IntraCellJoin::<T::Sum> {
            tiles: nodes.both_sides(),
            members: cells.members.view(),
            jobs: words,
            distances: buffers.keys.view_mut().cast(),
            capacity: ROUND as u32,
            padding: 0,
        };
        let merge = MergeCandidates {
            distances: buffers.keys.view().cast(),
            members: cells.members.view(),
            jobs: words,
            lists: nodes.lists.view_mut(),
            bounds: kept.bounds.view_mut(),
            capacity: ROUND as u32,
            k: build.shape.k as u32,
        };
        let tiles = jobs.len() as u32;
        let blocks = tiles * (tile::SIDE / CANDIDATE_LINES);
        // SAFETY: members are nodes, and the jobs name members, at most `capacity` rows each; there
        // is room for the lines of a slab; lists and bounds are of all nodes; and the memory
        // outlives the work.
        unsafe {
            T::IntraCellJoin::launch(build.gpu, nodes.tiles.units(), [tiles, 1, 1], tile::THREADS, (join,))?;
            build.gpu.launch::<cells_merge_candidates>([blocks, 1, 1], CANDIDATE_THREADS, (merge,))
        }
    }

    /// The nodes whose lists this device has.
    fn own_nodes(&self) -> Range<usize> {
        self.build.devices.own(&self.kept.parts.nodes)
    }

    /// Makes the known sets of all lists, for the passes that follow: they do not propose a known
    /// pair again.
    fn build_known_sets(&mut self, salt: u32) -> Result<()> {
        let own = self.own_nodes();
        let Self { build, nodes, kept, buffers, .. } = self;
        let k = build.shape.k as u32;
        let bits = known_bits(k);
        let sets = KnownSets {
            lists: nodes.lists.view().offset(own.start * k as usize),
            sets: buffers.known.view_mut().offset(own.start << bits),
            nodes: own.len() as u32,
            k,
            bits,
            salt,
        };
        if !own.is_empty() {
            let grid = [sets.nodes.div_ceil(MERGE_NODES), 1, 1];
            // SAFETY: there is a set for each list; the memory outlives the work.
            unsafe { build.gpu.launch::<cells_known_sets>(grid, MERGE_THREADS, (sets,))? };
        }
        build.devices.all_gather(&mut buffers.known, &kept.parts.nodes, 1 << bits)?;
        self.known_salt = Some(salt);
        Ok(())
    }

    /// Runs the cross-cell join of all query tiles with the vectors that probe their cells at
    /// `ranks`, at most `most` per rank, and merges its proposals.
    fn cross_cell(&mut self, query_tiles: usize, ranks: Range<usize>, most: usize, salt: u32) -> Result<()> {
        let own = self.own_nodes();
        let Self { build, nodes, kept, buffers, cells, known_salt } = self;
        let join = CrossCellJoin::<T::Sum> {
            tiles: nodes.both_sides(),
            bounds: kept.bounds.view(),
            members: cells.members.view(),
            starts: buffers.starts.view(),
            query_tiles: buffers.query_tiles.view(),
            proposals: buffers.keys.view_mut(),
            known: buffers.known.view(),
            probes: cells.probes as u32,
            first_rank: ranks.start as u32,
            end_rank: ranks.end as u32,
            most: (most * ranks.len()) as u32,
            salt,
            known_bits: known_salt.map_or(0, |_| known_bits(build.shape.k as u32)),
            known_salt: known_salt.unwrap_or(0),
            padding: 0,
        };
        // SAFETY: members and starts are of all cells, members are nodes, and query tiles name
        // members; bounds, slots of proposals and known sets are of all nodes; all outlive the
        // work.
        unsafe {
            let (units, grid) = (nodes.tiles.units(), [query_tiles as u32, 1, 1]);
            T::CrossCellJoin::launch(build.gpu, units, grid, tile::THREADS, (join,))?;
        }
        build.devices.reduce_scatter_min(&mut buffers.keys, &kept.parts.nodes, PROPOSALS as usize)?;
        let merge = MergeProposals {
            lists: nodes.lists.view_mut(),
            proposals: buffers.keys.view_mut(),
            bounds: kept.bounds.view_mut(),
            changes: kept.changes.view_mut(),
            nodes: own.end as u32,
            k: build.shape.k as u32,
            salt,
            first: own.start as u32,
        };
        if !own.is_empty() {
            let grid = [(own.len() as u32).div_ceil(MERGE_NODES), 1, 1];
            // SAFETY: lists, bounds and slots of proposals are of all nodes, and outlive the work.
            unsafe { build.gpu.launch::<cells_merge_proposals>(grid, MERGE_THREADS, (merge,))? };
        }
        kept.gather_bounds(build.devices)
    }
}

impl<T: OnDevice> Nodes<T> {
    /// The nodes as both sides of the comparison.
    fn both_sides(&self) -> Tiles<T::Sum> {
        let TileVectors { vectors, stride } = self.tiles;
        Tiles {
            queries: vectors,
            rows: vectors,
            biases: self.biases.view(),
            query_stride: stride,
            row_stride: stride,
            units: self.tiles.units(),
            weight: T::weight(Metric::L2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_one_another_and_are_even_where_cells_are() {
        let even: Vec<u32> = (0..=40).map(|cell| cell * 25).collect();
        // Empty cells at both ends and in between, one with nearly all nodes, and a single cell.
        for offsets in [even, vec![0, 0, 3, 3, 990, 1000, 1000], vec![0, 1000]] {
            for devices in 1..=4 {
                let Parts { cells, nodes } = Parts::new(devices, &offsets);
                assert_eq!((cells.len(), nodes.len()), (devices, devices));
                for (parts, end) in [(&cells, offsets.len() - 1), (&nodes, 1000)] {
                    assert_eq!((parts[0].start, parts[devices - 1].end), (0, end));
                    assert!(parts.windows(2).all(|two| two[0].end == two[1].start));
                }
                let is_even = |part: &Range<usize>| part.len().abs_diff(1000 / devices) < 25;
                assert!(offsets.len() < 40 || nodes.iter().all(is_even), "{devices}: {nodes:?}");
                let members =
                    |cells: &Range<usize>| offsets[cells.start] as usize..offsets[cells.end] as usize;
                assert!(cells.iter().map(members).eq(nodes));
            }
        }
    }
}
