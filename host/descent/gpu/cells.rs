//! A start from cells: all pairs of near groups of vectors.
//!
//! Every vector is in its own cell, that of its nearest centre ([`cluster`](crate::cluster)), and visits the cells of
//! its next nearest centres. First the members of a cell meet one another on tensor cores, in tiles: those whose
//! distance, so computed, is below the node's present bound are noted and merged into the node's list. Then, from
//! near to far, cells meet their visitors, and whoever of a pair has the other nearer than its bound is offered it:
//! neighbours find each other if only one of them visits the other's cell, which takes half as many cells.
//!
//! All of this is done several times, with centres of other samples: what one clustering parts, another joins. From the
//! second on, the cells of the first tell which centres are near a vector, and members of a cell are offered to each
//! other as visitors are.

use std::cmp::Reverse;
use std::ops::Range;

use tagore_device::block::tile;
use tagore_device::descent::cells::{
    CellFilter, JOB_WORDS, Job, Meet, MergeNoted, MergeOffers, OFFERS, PARTY_WORDS, cells_filter_f16,
    cells_filter_i8, cells_filter_u8, cells_meet_f16, cells_meet_i8, cells_meet_u8, cells_merge_noted,
    cells_merge_offers,
};
use tagore_device::descent::key::Key;
use tagore_device::descent::merge::{MERGE_NODES, MERGE_THREADS};
use tagore_device::random::{Draws, Stage};
use tagore_device::search::exact::{SETTLE_THREADS, Tiles};

use super::{Build, CellSettings, Nodes};
use crate::cluster::{self, Cells, ClusterKernels, Known};
use crate::descent::{DescentStats, Start};
use crate::gpu::{Buffer, MemoryPlan};
use crate::vectors::gpu::{OnDevice, TileVectors, stage_kernels};
use crate::{Metric, Result};

stage_kernels! {
    /// Kernels that compare vectors in cells.
    pub(crate) trait JoinKernels {
        CellFilter (CellFilter<Self::Sum>,):
            cells_filter_f16 cells_filter_f16 cells_filter_u8 cells_filter_i8;
        Meet (Meet<Self::Sum>,): cells_meet_f16 cells_meet_f16 cells_meet_u8 cells_meet_i8;
    }
}

/// Kernels of cells: of clustering, and of both joins.
pub(crate) trait CellKernels: JoinKernels + ClusterKernels {}

impl<T: JoinKernels + ClusterKernels> CellKernels for T {}

/// Members of its cell that a node meets between two mergings, at most.
pub(crate) const ROUND: usize = 1024;

/// Members of its cell that a node meets first, if it is a large one: it notes all of them, and of the others only those
/// that are nearer than the last of its list.
const FIRST_ROUND: usize = 384;

/// The most members of a cell that a node meets at once.
const ONE_ROUND: usize = 640;

/// Keys that are noted between two mergings, of all queries that are worked on together, at least if there are so
/// many, and at most: the room is that of the offers later.
const NOTED: (usize, usize) = (1 << 25, 1 << 27);

/// Where the ranks of the visits of one pass end and those of the next begin. The nearest cells go first and alone,
/// so that the bounds are tight when the many come, and few that stay are offered to a node at once.
const PASSES: [usize; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32];

/// Members of a rank of a cell that others meet, at most, in multiples of what a cell has on average: where
/// clusters are bad, as among equal vectors, not all pairs of a huge one are compared.
const MOST_MEMBERS: usize = 8;

/// As [`PASSES`], where nodes were in other cells before: most of those that are near are known by then, and members of a
/// cell meet one another in the first pass.
const LATER_PASSES: [usize; 7] = [0, 1, 3, 6, 11, 20, 32];

/// Multiples of the average number of visitors from which on a cell is large: its parties would still be at work when
/// all others are done.
const LARGE: usize = 4;

/// What the passes work with on the device, beside the nodes.
struct Memory {
    jobs: Buffer<u32>,
    parties: Buffer<u32>,
    starts: Buffer<u32>,
    counts: Buffer<u32>,
}

/// What stays from one clustering to the next.
struct Kept {
    bounds: Buffer<f32>,
    /// What is noted, then what is offered.
    keys: Buffer<Key>,
}

/// The members of a cell, of a rank, that others meet at most, of `n` nodes in `count` cells.
fn most_members(n: usize, count: usize) -> usize {
    MOST_MEMBERS * (n / count.max(1)).max(tile::SIDE as usize)
}

/// The most tiles of `n` members in `count` cells: the last of each cell may have a single member.
fn most_tiles(n: usize, count: usize) -> usize {
    let side = tile::SIDE as usize;
    (n + (side - 1) * count) / side
}

/// Tiles of `n` nodes whose keys are noted together.
fn tiles_of_slab(n: usize) -> usize {
    (OFFERS as usize * n).clamp(NOTED.0, NOTED.1) / (ROUND * tile::SIDE as usize)
}

/// Lines of the tiles of `n` nodes in `count` cells whose keys are noted together.
fn lines_of_slab(n: usize, count: usize) -> usize {
    most_tiles(n, count).min(tiles_of_slab(n)) * tile::SIDE as usize
}

/// The device memory for `n` nodes in `count` cells that stays from one clustering to the next.
pub(super) fn kept_plan(n: usize, count: usize) -> MemoryPlan {
    let lines = lines_of_slab(n, count);
    MemoryPlan::new()
        .with::<f32>("list bounds", n)
        .with::<Key>("offers", (lines * ROUND).max(n * OFFERS as usize))
}

/// The device memory for `n` nodes in `count` cells of one clustering. Each node visits `memberships`, and in the first `hosts` of them it
/// is visited.
pub(super) fn plan(n: usize, count: usize, (memberships, hosts): (usize, usize)) -> MemoryPlan {
    let tiles = most_tiles(n, count);
    let rounds = 1 + most_members(n, count).div_ceil(ROUND);
    MemoryPlan::new()
        .with::<u32>("jobs", tiles * rounds * JOB_WORDS)
        .with::<u32>("parties", most_tiles(hosts * n, count) * PARTY_WORDS)
        .with::<u32>("cell starts", count * memberships + 1)
        .with::<u32>("counts", lines_of_slab(n, count))
}

/// Where the nodes whose own cell is each begin, in the order of cells, and the end of the last.
fn own_starts<T: CellKernels>(cells: &Cells<T>) -> Vec<u32> {
    let own = cells.starts.windows(2).step_by(cells.probes).map(|own| own[1] - own[0]);
    let ends = own.scan(0, |end, own| {
        *end += own as u32;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

/// The ranks of the visits of each pass, where a node visits `m` cells.
fn passes(m: usize, is_first: bool) -> Vec<Range<usize>> {
    let ends: &[usize] = if is_first { &PASSES } else { &LATER_PASSES };
    ends.windows(2).filter(|ranks| ranks[0] < m).map(|ranks| ranks[0]..ranks[1].min(m)).collect()
}

impl Build<'_> {
    /// Fills the lists with the nearest that the nodes meet in cells, first in these, then in others.
    pub(super) fn cells<T: CellKernels>(
        &self,
        nodes: &mut Nodes<T>,
        cells: Cells<T>,
        stats: &mut DescentStats,
    ) -> Result<()> {
        let (n, dim) = (self.space.len(), self.space.dim());
        let clusterings = self.settings.clusterings(n, dim);
        let memory = kept_plan(n, cells.centres.count).reserve(self.gpu)?;
        let mut kept = Kept { bounds: memory.buffer("list bounds")?, keys: memory.buffer("offers")? };
        // As good as infinite.
        kept.bounds.fill(0x7f)?;
        let stage = self.progress.stage("cells", clusterings as u64);
        self.meet(nodes, &mut kept, &cells, 0, stats)?;
        stage.advance(1)?;
        let starts = own_starts(&cells);
        let centres = cells.centres;
        drop(cells.members);
        let asked = self.settings.cells(n, dim, Start::Cells, Some(centres.count));
        for clustering in 1..clusterings {
            let tiles = TileVectors { vectors: nodes.vectors.view(), stride: nodes.stride };
            let seed = Draws::new(self.seed, Stage::Cells, u32::MAX, clustering as u64).bits(0);
            let known = Known { centres: &centres, starts: &starts };
            let cells = cluster::cells::<T>(self.gpu, tiles.rows(n, dim), asked, seed, Some(known))?;
            self.meet(nodes, &mut kept, &cells, clustering, stats)?;
            stage.advance(1)?;
        }
        Ok(())
    }

    /// Members, hosts and visitors of the cells of one clustering meet.
    fn meet<T: CellKernels>(
        &self,
        nodes: &mut Nodes<T>,
        kept: &mut Kept,
        cells: &Cells<T>,
        clustering: usize,
        stats: &mut DescentStats,
    ) -> Result<()> {
        let (n, m) = (self.space.len(), cells.probes);
        let count = cells.centres.count;
        let hosts = CellSettings::hosts(n, self.space.dim()).min(m);
        let most = most_members(n, count);
        let groups = (&cells.starts[..], m);
        let slabs = if clustering == 0 { slabs(groups, (tiles_of_slab(n), most)) } else { Vec::new() };
        let plan = plan(n, count, (m, hosts)).reserve(self.gpu)?;
        let mut memory = Memory {
            jobs: plan.buffer("jobs")?,
            parties: plan.buffer("parties")?,
            starts: plan.buffer("cell starts")?,
            counts: plan.buffer("counts")?,
        };
        let words = |job: &Job| [job.first_query, job.query_count, job.first_row, job.row_count];
        memory.jobs.upload(&slabs.iter().flatten().flat_map(words).collect::<Vec<u32>>())?;
        memory.starts.upload(&cells.starts.iter().map(|&start| start as u32).collect::<Vec<u32>>())?;
        let mut first_job = 0;
        for slab in &slabs {
            self.meet_own(nodes, kept, &mut memory, cells, first_job..first_job + slab.len())?;
            first_job += slab.len();
        }
        // While they meet.
        let parties = parties(groups, (hosts, most));
        memory.parties.upload(&parties)?;
        if clustering == 0 {
            // The bytes of empty slots, as mergings leave them.
            kept.keys.fill(0xff)?;
        }
        let passes = passes(m, clustering == 0);
        for (pass, ranks) in passes.iter().enumerate() {
            let draw = self.draw(((1 + clustering) << 16 | pass) as u32);
            self.meet_visitors(
                nodes,
                kept,
                &mut memory,
                cells,
                (parties.len() / PARTY_WORDS, most),
                (ranks.clone(), draw),
            )?;
        }
        stats.distances +=
            self.count_cells::<T>(nodes.stride, cells, (hosts, most), (clustering == 0, passes.len()));
        // Its memory is used until the work is done.
        self.gpu.synchronize()
    }

    /// Members of cells meet members of their own cell.
    fn meet_own<T: CellKernels>(
        &self,
        nodes: &mut Nodes<T>,
        kept: &mut Kept,
        memory: &mut Memory,
        cells: &Cells<T>,
        jobs: Range<usize>,
    ) -> Result<()> {
        let filter = CellFilter::<T::Sum> {
            tiles: nodes.tiles(),
            bounds: kept.bounds.view(),
            members: cells.members.view(),
            jobs: memory.jobs.view().offset(jobs.start * JOB_WORDS),
            counts: memory.counts.view_mut(),
            found: kept.keys.view_mut(),
            capacity: ROUND as u32,
            padding: 0,
        };
        let merge = MergeNoted {
            found: kept.keys.view(),
            counts: memory.counts.view(),
            members: cells.members.view(),
            jobs: memory.jobs.view().offset(jobs.start * JOB_WORDS),
            lists: nodes.lists.view_mut(),
            bounds: kept.bounds.view_mut(),
            capacity: ROUND as u32,
            k: self.k as u32,
        };
        let (tiles, lines) = ([jobs.len() as u32, 1, 1], [jobs.len() as u32 * tile::SIDE, 1, 1]);
        // SAFETY: members are nodes, and the jobs name members; there is room for the lines of a slab; lists and
        // bounds are of all nodes; and the memory outlives the work.
        unsafe {
            self.gpu.launch::<T::CellFilter>(tiles, tile::THREADS, (filter,))?;
            self.gpu.launch::<cells_merge_noted>(lines, SETTLE_THREADS, (merge,))
        }
    }

    /// All `parties` of hosts meet those whose cells of these ranks theirs are, at most `most` for each rank.
    fn meet_visitors<T: CellKernels>(
        &self,
        nodes: &mut Nodes<T>,
        kept: &mut Kept,
        memory: &mut Memory,
        cells: &Cells<T>,
        (parties, most): (usize, usize),
        (ranks, draw): (Range<usize>, u32),
    ) -> Result<()> {
        let meet = Meet::<T::Sum> {
            tiles: nodes.tiles(),
            bounds: kept.bounds.view(),
            members: cells.members.view(),
            starts: memory.starts.view(),
            parties: memory.parties.view(),
            offers: kept.keys.view_mut(),
            memberships: cells.probes as u32,
            first_rank: ranks.start as u32,
            end_rank: ranks.end as u32,
            most: (most * ranks.len()) as u32,
            draw,
            padding: 0,
        };
        let n = self.space.len() as u32;
        let merge = MergeOffers {
            lists: nodes.lists.view_mut(),
            offers: kept.keys.view_mut(),
            bounds: kept.bounds.view_mut(),
            nodes: n,
            k: self.k as u32,
            draw,
            padding: 0,
        };
        let grid = [n.div_ceil(MERGE_NODES), 1, 1];
        // SAFETY: as above; there are slots for all nodes.
        unsafe {
            self.gpu.launch::<T::Meet>([parties as u32, 1, 1], tile::THREADS, (meet,))?;
            self.gpu.launch::<cells_merge_offers>(grid, MERGE_THREADS, (merge,))
        }
    }
}

impl<T: OnDevice> Nodes<T> {
    /// Nodes that are compared with nodes.
    fn tiles(&self) -> Tiles<T::Sum> {
        Tiles {
            queries: self.vectors.view(),
            rows: self.vectors.view(),
            biases: self.biases.view(),
            query_stride: self.stride,
            row_stride: self.stride,
            units: self.stride / 16,
            weight: T::weight(Metric::L2),
        }
    }
}

/// What members of cells do in their own cell, in order: the jobs between two mergings, of `tiles` tiles at most.
fn slabs((starts, m): (&[usize], usize), (tiles, most): (usize, usize)) -> Vec<Vec<Job>> {
    let side = tile::SIDE as usize;
    // A tile of members, and all members that it meets.
    let mut own: Vec<(Range<usize>, Range<usize>)> = Vec::new();
    for cell in starts.chunks_exact(m).zip(starts[1..].iter().step_by(m)) {
        let (first, end) = (cell.0[0], *cell.1);
        let rows = first..end.min(first + most);
        own.extend((first..end).step_by(side).map(|query| (query..end.min(query + side), rows.clone())));
    }
    let mut slabs = Vec::new();
    for own in own.chunks_mut(tiles) {
        own.sort_by_key(|(_, rows)| Reverse(rows.len()));
        for round in 0.. {
            let mut jobs: Vec<Job> = own
                .iter()
                .map_while(|(queries, rows)| {
                    let met = round_of(rows.len(), round)?;
                    Some(Job {
                        first_query: queries.start as u32,
                        query_count: queries.len() as u32,
                        first_row: (rows.start + met.start) as u32,
                        row_count: met.len() as u32,
                    })
                })
                .collect();
            if jobs.is_empty() {
                break;
            }
            // The longest first, so that those that are left in the end are short.
            jobs.sort_by_key(|job| Reverse(job.row_count));
            slabs.push(jobs);
        }
    }
    slabs
}

/// Which of a cell's `rows` members are met in this round, if any are left; the larger a cell, the more rounds.
fn round_of(rows: usize, round: usize) -> Option<Range<usize>> {
    if rows <= ONE_ROUND {
        return (round == 0).then_some(0..rows);
    }
    let begin = if round == 0 { 0 } else { FIRST_ROUND + (round - 1) * ROUND };
    let end = FIRST_ROUND + round * ROUND;
    (begin < rows).then_some(begin..end.min(rows))
}

/// The words of the [parties](tagore_device::descent::cells::Party) of the first `hosts` ranks of all cells: cell by
/// cell, as near cells share visitors, but those with the most come first.
fn parties((starts, m): (&[usize], usize), (hosts, most): (usize, usize)) -> Vec<u32> {
    let side = tile::SIDE as usize;
    let count = (starts.len() - 1) / m;
    let visitors = |cell: usize| (starts[(cell + 1) * m] - starts[cell * m + 1]).min(most * (m - 1));
    let average = (0..count).map(visitors).sum::<usize>() / count;
    let mut of_cells: Vec<usize> = (0..count).collect();
    of_cells.sort_by_cached_key(|&cell| Reverse(visitors(cell) / (LARGE * average).max(1)));
    let mut parties = Vec::new();
    for cell in of_cells {
        let (first, end) = (starts[cell * m], starts[cell * m + hosts]);
        for first in (first..end).step_by(side) {
            parties.extend([cell, first, side.min(end - first)].map(|word| word as u32));
        }
    }
    parties
}

#[cfg(test)]
mod tests {
    use tagore_device::descent::cells::Party;

    use super::*;

    /// Where groups begin of cells with so many members of each of two ranks.
    fn starts(sizes: &[(usize, usize)]) -> Vec<usize> {
        let mut starts = vec![0];
        for &(own, second) in sizes {
            let first = starts[starts.len() - 1];
            starts.extend([first + own, first + own + second]);
        }
        starts
    }

    #[test]
    fn every_member_meets_its_cell_once() {
        let sizes = [(0, 40), (1, 0), (128, 7), (3000, 9), (129, 1), (2049, 0), (5, 5)];
        let starts = starts(&sizes);
        let most = 2500;
        let slabs = slabs((&starts, 2), (10, most));
        // Where each member is, and how many rows its tile has met.
        let mut met = vec![0; starts[starts.len() - 1]];
        for slab in &slabs {
            assert!(!slab.is_empty() && slab.len() <= 10);
            assert!(slab.is_sorted_by_key(|job| Reverse(job.row_count)));
            for job in slab {
                assert!(job.query_count as usize <= tile::SIDE as usize && job.row_count as usize <= ROUND);
                let cell = starts.iter().rposition(|&start| start <= job.first_query as usize).unwrap();
                for member in job.first_query..job.first_query + job.query_count {
                    let met = &mut met[member as usize];
                    assert_eq!(job.first_row as usize, starts[cell] + *met, "rows in order");
                    *met += job.row_count as usize;
                }
            }
        }
        for (cell, (own, _)) in sizes.into_iter().enumerate() {
            let (first, end) = (starts[2 * cell], starts[2 * cell + 1]);
            assert!(met[first..end].iter().all(|&met| met == own.min(most)), "cell {cell}");
            assert!(met[end..starts[2 * cell + 2]].iter().all(|&met| met == 0), "cell {cell}");
        }
    }

    #[test]
    fn every_host_is_in_one_party() {
        let sizes = [(0, 40), (1, 0), (128, 7), (300, 900), (129, 1)];
        let starts = starts(&sizes);
        for hosts in [1, 2] {
            let words = parties((&starts, 2), (hosts, 1000));
            let party = |words: &[u32]| Party { cell: words[0], first: words[1], count: words[2] };
            let parties: Vec<Party> = words.chunks_exact(PARTY_WORDS).map(party).collect();
            assert!(parties.len() <= most_tiles(starts[10], sizes.len()));
            let of = |party: &Party| party.first as usize..(party.first + party.count) as usize;
            let mut all: Vec<usize> = parties.iter().flat_map(of).collect();
            all.sort_unstable();
            let expected: Vec<usize> =
                (0..sizes.len()).flat_map(|cell| starts[2 * cell]..starts[2 * cell + hosts]).collect();
            assert_eq!(all, expected);
            for party in &parties {
                let cell = 2 * party.cell as usize;
                assert!((1..=tile::SIDE).contains(&party.count));
                let members = starts[cell]..starts[cell + hosts];
                assert!(members.contains(&of(party).start) && of(party).end <= members.end);
            }
            // A cell with many visitors comes first.
            assert_eq!(parties[0].cell, 3);
        }
    }
}
