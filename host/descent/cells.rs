//! A start from cells on the CPU: every row meets the rows of its nearest cells.
//!
//! K-means on a sample gives centres. A row belongs to the cell of its nearest centre, and probes
//! the cells of the nearest few. It meets all rows of these cells, and both rows of a pair are
//! proposed to each other: of two near rows, only one needs to probe the cell of the other. As in
//! comparing all pairs, a filter drops the pairs that cannot enter the list of either row.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use tagore_device::cluster::{MAX_PROBES, drawn};
use tagore_device::key::{self, Key};
use tagore_device::random::{Draws, Stage};

use super::CellSettings;
use super::lists::{NeighbourLists, SharedLists};
use super::sample::{ExactLists, sampled};
use crate::cluster::ROUNDS;
use crate::cluster::cpu::{CentreSample, Centres};
use crate::gpu::MemoryPlan;
use crate::loops::{for_each, rows_mut, try_for_each_with};
use crate::memory::filled;
use crate::progress::{Progress, StageProgress};
use crate::search::exact::{near_rows, nearest};
use crate::vectors::panels::{PANEL, PanelSource, Panels, PerRow, Side};
use crate::vectors::space::{Query, Space};
use crate::{DataShape, Metric, Result, Vectors};

/// Defaults, by measurement (docs/decisions.md): nodes per cell, and cells that each node probes.
const NODES_PER_CELL: usize = 500;
const PROBES: usize = 32;

/// Rows of a sample per centre.
const SAMPLE_PER_CELL: usize = 16;

/// Rows whose centres are found at a time.
const ASSIGNED: usize = 1 << 14;

/// Panels of rows whose near pairs get their exact distances together.
const GROUP: usize = 4;

/// Lists that are on their way to the cache while a row is proposed to one.
const AHEAD: usize = 4;

/// Parts of a cell have at most this many times the average number of rows. Rows of different parts
/// of one cell do not meet, so a cell of rows that no centre divides costs bounded time.
const MAX_PART: usize = 8;

/// Ranks of the passes. Nearer cells come first: they leave fewer pairs to later ones.
const PASSES: [(usize, usize); 6] = [(0, 1), (1, 2), (2, 5), (5, 12), (12, 24), (24, MAX_PROBES as usize)];

/// Passes end once one adds a smaller share of the entries.
const MIN_ADDED: f64 = 0.01;

/// The members of each cell.
struct Members {
    probes: usize,
    /// The cells that each row probes, nearest first: the first is its own.
    cells_of: Vec<u32>,
    /// Rows, cell by cell and rank by rank: at rank `r`, the rows that probe it as their `r`-th.
    rows: Vec<u32>,
    /// Offsets in `rows`, and the end: rank `r` of cell `c` begins at `c * probes + r`.
    starts: Vec<usize>,
}

impl Members {
    /// The members by the cells that each row probes.
    fn new(cells_of: Vec<u32>, cells: usize, probes: usize) -> Result<Self> {
        let mut starts = filled(0usize, cells * probes + 1)?;
        let group = |(place, &cell): (usize, &u32)| cell as usize * probes + place % probes;
        for slot in cells_of.iter().enumerate().map(group) {
            starts[slot + 1] += 1;
        }
        for slot in 1..starts.len() {
            starts[slot] += starts[slot - 1];
        }
        let mut next = starts.clone();
        let mut rows = filled(0u32, cells_of.len())?;
        for (place, slot) in cells_of.iter().enumerate().map(|entry| (entry.0, group(entry))) {
            rows[next[slot]] = (place / probes) as u32;
            next[slot] += 1;
        }
        Ok(Self { probes, cells_of, rows, starts })
    }

    fn cells(&self) -> usize {
        (self.starts.len() - 1) / self.probes
    }

    /// The rows that probe `cell` at `rank`.
    fn probing(&self, cell: usize, rank: usize) -> &[u32] {
        let group = cell * self.probes + rank;
        &self.rows[self.starts[group]..self.starts[group + 1]]
    }

    /// The cells that `row` probes.
    fn cells_of(&self, row: u32) -> &[u32] {
        &self.cells_of[row as usize * self.probes..][..self.probes]
    }

    /// Whether `prober` and `owner`, of a cell that `prober` probes at `rank`, meet in the cell of
    /// `prober`.
    fn meet_elsewhere(&self, prober: u32, owner: u32, rank: usize) -> bool {
        let cell = self.cells_of(prober)[0];
        // Up to the rank, or to the one before it; all are compared, which takes no branch.
        let earlier = &self.cells_of(owner)[..rank + usize::from(owner < prober)];
        earlier.iter().fold(false, |meet, &probed| meet | (probed == cell))
    }
}

/// Cells of `n` nodes, and the cells that each node probes.
fn sizes(settings: CellSettings, n: usize) -> (usize, usize) {
    // Few nodes get more cells than their number gives, for a choice.
    let cells = (n / settings.nodes_per_cell.unwrap_or(NODES_PER_CELL)).max((n / 64).min(16)).max(1);
    (cells, settings.probes.unwrap_or(PROBES).min(cells))
}

/// Host memory of [`join`] beside the lists.
pub(super) fn plan(data: &DataShape, settings: CellSettings, threads: usize) -> MemoryPlan {
    let &DataShape { rows: n, dim, .. } = data;
    let (cells, probes) = sizes(settings, n);
    let assigned = n.min(ASSIGNED);
    // Of the rows to assign and the centres; later, for each thread, of a cell of average size and
    // of as many rows that probe it.
    let panels = (assigned + cells).max(2 * threads * n.div_ceil(cells).next_multiple_of(PANEL));
    MemoryPlan::new()
        .with::<u32>("cells of nodes", n * probes)
        .with::<u32>("members", n * probes)
        .with::<usize>("starts", 2 * cells * probes)
        .with::<f32>("centres", 2 * cells * dim)
        .with::<f32>("nodes to assign", assigned * dim)
        .with::<Key>("nearest centres", assigned * (3 * probes + 64))
        .and(&PanelSource::plan(data))
        .with::<f32>("panels", panels * dim)
        .with::<u32>("bounds and locks of lists", 2 * n)
}

/// Lists that were improved by the rows of near cells.
pub(super) struct Joined {
    pub lists: NeighbourLists,
    /// Pairs compared.
    pub compared: u64,
    /// The share of entries that the last pass added.
    pub added: f64,
}

/// Improves lists by the rows of near cells.
pub(super) fn join(
    source: &PanelSource<'_>,
    mut lists: NeighbourLists,
    settings: CellSettings,
    seed: u64,
    progress: &Progress,
) -> Result<Joined> {
    let space = source.space();
    let n = space.len();
    let clusterings = settings.clusterings.unwrap_or(1) as u32;
    let (mut compared, mut added) = (0, 1.0);
    for number in 0..clusterings {
        let progress = progress.iteration(number, clusterings);
        let seed = seed.wrapping_add(number.into());
        let (cells, probes) = sizes(settings, n);
        let members = assign(space, cells, probes, seed, &progress)?;
        let passes = PASSES.map(|(first, end)| first..end.min(probes));
        let passes: Vec<Range<usize>> = passes.into_iter().filter(|ranks| !ranks.is_empty()).collect();
        let stage = progress.stage("cells", (cells * passes.len()) as u64);
        for ranks in passes {
            lists.mark_visited();
            let pass = Pass {
                space,
                source,
                members: &members,
                ranks,
                lists: lists.share()?,
                max_part: MAX_PART * n.div_ceil(cells),
                compared: AtomicU64::new(0),
            };
            pass.run(&stage)?;
            compared += pass.compared.into_inner();
            lists = pass.lists.into_lists();
            added = lists.unvisited_share();
            tracing::debug!(added, compared, "a pass over cells ends");
            if added < MIN_ADDED {
                break;
            }
        }
    }
    Ok(Joined { lists, compared, added })
}

/// The cells that each row probes, by centres that k-means finds.
fn assign(space: &Space<'_>, cells: usize, probes: usize, seed: u64, progress: &Progress) -> Result<Members> {
    let n = space.len();
    let stage = progress.stage("cluster", (ROUNDS as usize * sample_of(cells, n) + n) as u64);
    let silent = progress.unwatched();
    let centres = centres(space, cells, seed, &stage, &silent)?;
    let mut cells_of = filled(0u32, n * probes)?;
    for (block, cells_of) in cells_of.chunks_mut(ASSIGNED * probes).enumerate() {
        let first = (block * ASSIGNED) as u32;
        let rows: Vec<u32> = (first..first + (cells_of.len() / probes) as u32).collect();
        cells_of.copy_from_slice(&nearest_centres(space, &centres, &rows, probes, &silent)?);
        stage.advance(rows.len() as u64)?;
    }
    Members::new(cells_of, cells, probes)
}

/// Rows of a sample for `cells` cells of `n` rows.
fn sample_of(cells: usize, n: usize) -> usize {
    (cells * SAMPLE_PER_CELL).min(n)
}

/// The centres of k-means on a sample.
fn centres(
    space: &Space<'_>,
    cells: usize,
    seed: u64,
    stage: &StageProgress<'_>,
    silent: &Progress,
) -> Result<Vectors> {
    let (vectors, n) = (space.vectors(), space.len());
    let count = sample_of(cells, n);
    let row_of =
        |index: u32| drawn(Draws::new(seed, Stage::Cells, 0, index.into()), index, count as u32, n as u32);
    let sample: Vec<u32> = (0..count as u32).map(row_of).collect();
    let as_vectors = |centres: &Centres| Vectors::from_f32(centres.values().to_vec(), space.dim());
    let found = |centres: &Centres| {
        let own = nearest_centres(space, &as_vectors(centres)?, &sample, 1, silent)?;
        stage.advance(count as u64)?;
        Ok(own.into_iter().map(|centre| [centre; 2]).collect())
    };
    as_vectors(&Centres::find(vectors, cells, CentreSample { count, row_of }, seed, found)?)
}

/// The nearest centres of `rows`, `probes` of each.
fn nearest_centres(
    space: &Space<'_>,
    centres: &Vectors,
    rows: &[u32],
    probes: usize,
    progress: &Progress,
) -> Result<Vec<u32>> {
    let (vectors, dim) = (space.vectors(), space.dim());
    let mut values: Vec<f32> = filled(0.0, rows.len() * dim)?;
    for_each((rows_mut(&mut values, dim), rows), |(values, &row)| {
        values.copy_from_slice(&vectors.host_row(row as usize));
    });
    let centres = Space::unprepared(centres, Metric::L2);
    let query = |index: usize| (Query::new(&values[index * dim..][..dim], false), None);
    let keys = nearest(&centres, None, rows.len(), &query, probes, progress)?;
    Ok(keys.into_iter().map(key::id).collect())
}

/// The share of the neighbours in `exact` that [`join`] would compare with their node, about: the
/// sizes of cells are those of a sample.
pub(super) fn share_met(
    space: &Space<'_>,
    settings: CellSettings,
    seed: u64,
    exact: &ExactLists,
    silent: &Progress,
) -> Result<f64> {
    let n = space.len();
    let (cells, probes) = sizes(settings, n);
    let centres = centres(space, cells, seed, &silent.stage("cluster", 0), silent)?;
    let cells_of = |rows: &[u32]| nearest_centres(space, &centres, rows, probes, silent);
    let sample = sampled(n, cells * SAMPLE_PER_CELL, seed);
    let mut members = vec![0usize; cells];
    cells_of(&sample)?.iter().step_by(probes).for_each(|&cell| members[cell as usize] += 1);
    // Rows of different parts of a cell do not meet.
    let max_part = MAX_PART * sample.len().div_ceil(cells);
    let meet_in = |cell: u32| 1.0 / members[cell as usize].div_ceil(max_part).max(1) as f64;
    let (nodes, neighbors): (Vec<u32>, Vec<u32>) = exact.near().unzip();
    let (probed, by_neighbors) = (cells_of(&nodes)?, cells_of(&neighbors)?);
    let pairs = probed.chunks_exact(probes).zip(by_neighbors.chunks_exact(probes));
    let met = pairs.map(|(node, neighbor)| {
        let sides = [(node, neighbor[0]), (neighbor, node[0])];
        sides.iter().filter(|side| side.0.contains(&side.1)).map(|side| meet_in(side.1)).fold(0.0, f64::max)
    });
    // Where all neighbours are equally far, any are as good.
    Ok(if nodes.is_empty() { 1.0 } else { met.sum::<f64>() / nodes.len() as f64 })
}

/// One pass: the rows of each cell meet the rows that probe the cell at some ranks.
struct Pass<'a> {
    space: &'a Space<'a>,
    source: &'a PanelSource<'a>,
    members: &'a Members,
    ranks: Range<usize>,
    lists: SharedLists,
    /// Maximum number of rows of a part of a cell.
    max_part: usize,
    compared: AtomicU64,
}

/// Rows of a cell, as panels unless they are bits, whose distances take less time than a filter.
struct CellRows<'a> {
    rows: &'a [u32],
    panels: Option<Panels<'static>>,
}

/// Buffers of one task.
#[derive(Default)]
struct Scratch {
    ids: Vec<u32>,
    distances: Vec<f32>,
}

impl Pass<'_> {
    fn run(&self, stage: &StageProgress<'_>) -> Result<()> {
        try_for_each_with(0..self.members.cells(), Scratch::default, |scratch, cell| {
            self.compare_cell(cell, scratch, stage)?;
            stage.advance(1)
        })
    }

    fn rows<'a>(&self, rows: &'a [u32]) -> Result<CellRows<'a>> {
        Ok(CellRows { rows, panels: self.source.some(rows)? })
    }

    fn compare_cell(&self, cell: usize, scratch: &mut Scratch, stage: &StageProgress<'_>) -> Result<()> {
        let owners = self.members.probing(cell, 0);
        let parts = owners.len().div_ceil(self.max_part);
        for (part, owners) in owners.chunks(self.max_part).enumerate() {
            let owners = self.rows(owners)?;
            for rank in self.ranks.clone() {
                stage.check()?;
                if rank == 0 {
                    self.compare(&owners, &owners, 0, scratch);
                    continue;
                }
                let probers = self.members.probing(cell, rank);
                let probers = &probers[probers.len() * part / parts..probers.len() * (part + 1) / parts];
                self.compare(&self.rows(probers)?, &owners, rank, scratch);
            }
        }
        Ok(())
    }

    /// Compares the rows of one side with those of the other, or, at rank 0, those of one side with
    /// each other.
    fn compare(&self, probers: &CellRows<'_>, owners: &CellRows<'_>, rank: usize, scratch: &mut Scratch) {
        let Scratch { ids, distances } = scratch;
        let [first_panels, panels] = [probers, owners].map(|side| side.rows.len().div_ceil(PANEL));
        for first in 0..first_panels {
            let rows = &probers.rows[first * PANEL..];
            let rows = &rows[..rows.len().min(PANEL)];
            let begin = if rank == 0 { first } else { 0 };
            for group in (begin..panels).step_by(GROUP) {
                let mut near = [[0; PANEL]; GROUP];
                for (near, other) in near.iter_mut().zip(group..panels) {
                    let others = &owners.rows[other * PANEL..];
                    let others = &others[..others.len().min(PANEL)];
                    *near = match (&probers.panels, &owners.panels) {
                        (Some(panels), Some(other_panels)) => {
                            let [bounds, other_bounds] = [rows, others].map(|rows| self.bounds(panels, rows));
                            let other = Side { panel: other, bounds: &other_bounds };
                            panels.near(Side { panel: first, bounds: &bounds }, other_panels, other)
                        }
                        _ => [u32::MAX >> (PANEL - others.len()); PANEL],
                    };
                    if rank == 0 && other == first {
                        // Each pair once, and no row with itself.
                        near.iter_mut().zip(0..).for_each(|(near, row)| *near &= (u32::MAX << row) << 1);
                    }
                }
                for (row, &node) in rows.iter().enumerate() {
                    near_rows((group * PANEL) as u32, &near, row, ids);
                    if ids.is_empty() {
                        continue;
                    }
                    ids.iter_mut().for_each(|place| *place = owners.rows[*place as usize]);
                    if rank > 0 {
                        ids.retain(|&id| !self.members.meet_elsewhere(node, id, rank));
                    }
                    self.space.list_distances(self.space.query(node), ids, distances);
                    for (place, (&id, &distance)) in ids.iter().zip(&*distances).enumerate() {
                        let next = place + AHEAD;
                        if let Some((&next, &distance)) = ids.get(next).zip(distances.get(next)) {
                            self.lists.fetch(next, distance);
                        }
                        self.lists.propose(id, node, distance);
                        self.lists.propose(node, id, distance);
                    }
                }
            }
        }
        let pairs = probers.rows.len() * owners.rows.len();
        let pairs = if rank == 0 { pairs / 2 } else { pairs };
        self.compared.fetch_add(pairs as u64, Ordering::Relaxed);
    }

    /// The largest `h` ([`Panels`]) of a pair that may enter the list of each row. Past the
    /// last row no pair may.
    fn bounds(&self, panels: &Panels<'_>, rows: &[u32]) -> PerRow {
        let mut bounds = [f32::NEG_INFINITY; PANEL];
        for (bound, &row) in bounds.iter_mut().zip(rows) {
            // An infinite bound would admit the rows that fill up a panel.
            *bound = self.lists.bound(row).map_or(f32::MAX, |distance| panels.bound(distance));
        }
        bounds
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Synth;

    /// A list holds the nearest of the rows that its node meets: the rows of the cells that it
    /// probes, and the rows that probe its own cell.
    #[test]
    fn rows_meet_the_rows_of_the_cells_that_they_probe() {
        let (n, dim, k) = (700, 9, 12);
        let silent = Progress::silent();
        let floats = Synth::new(n, dim, 4).unwrap().base();
        let bytes = (0..n * dim).map(|i| (i * i % 251) as u8).collect();
        let bits = (0..n * 2).map(|i| (i * i % 253) as u8).collect();
        let all = [
            floats,
            Vectors::from_u8(bytes, dim).unwrap(),
            Vectors::from_bits(bits, 16).unwrap(),
            Vectors::from_f32(vec![0.5; n * dim], dim).unwrap(),
        ];
        for (base, metric) in all.iter().flat_map(|base| [(base, Metric::L2), (base, Metric::Cosine)]) {
            if metric.check(base.element_type()).is_err() {
                continue;
            }
            let space = Space::new(base, metric, &silent).unwrap();
            let source = PanelSource::new(&space, &silent).unwrap();
            let settings = CellSettings { nodes_per_cell: Some(60), probes: Some(3), clusterings: Some(1) };
            let lists = NeighbourLists::new(n, k).unwrap();
            let Joined { lists, compared, .. } = join(&source, lists, settings, 7, &silent).unwrap();
            let keys = lists.into_keys();
            let (cells, probes) = sizes(settings, n);
            let members = assign(&space, cells, probes, 7, &silent).unwrap();
            let max_part = MAX_PART * n.div_ceil(cells);
            let is_whole = (0..cells).all(|cell| members.probing(cell, 0).len() <= max_part);
            for node in 0..n as u32 {
                let found: Vec<u32> =
                    keys[node as usize * k..][..k].iter().map(|&key| key::id(key)).collect();
                let meets = |&other: &u32| {
                    let probed = |row, cell| members.cells_of(row).contains(&cell);
                    let own = |row| members.cells_of(row)[0];
                    other != node && (probed(node, own(other)) || probed(other, own(node)))
                };
                let others: Vec<u32> = (0..n as u32).filter(meets).collect();
                let mut distances = Vec::new();
                space.list_distances(space.query(node), &others, &mut distances);
                let keys = distances.iter().zip(&others).map(|(&distance, &id)| key::pack(distance, id));
                let mut best: Vec<Key> = keys.collect();
                best.sort_unstable();
                let best: Vec<u32> = best.iter().take(k).map(|&key| key::id(key)).collect();
                assert!(!is_whole || found[..best.len()] == best, "{metric}, {}", base.element_type());
            }
            assert!(compared < (n * n) as u64, "{compared}");
        }
    }
}
