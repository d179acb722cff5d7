//! Two-phase GNN-Descent on the CPU (paper section 4.1, Algorithm 1), from random neighbours or
//! from cells.
//!
//! Both phases propose every computed distance to the lists of both nodes. A list ends with the
//! best of all proposals, so the graph depends on the seed alone, not on the threads.

use std::sync::atomic::{AtomicU64, Ordering};

use tagore_device::key::{self, Key};
use tagore_device::random::{Draws, Stage};

use super::lists::{NeighbourLists, SharedLists};
use super::reverse::Reverse;
use super::sample::ExactLists;
use super::table::{IdTable, fill};
use super::{CellSettings, DescentStats, Iterations, Start, cells};
use crate::Result;
use crate::loops::for_each;
use crate::parallel::for_each_node;
use crate::progress::Progress;
use crate::search::visited::Visited;
use crate::vectors::panels::PanelSource;
use crate::vectors::space::Space;

/// Maximum number of neighbours of each kind in a node's join of phase 1: new, old, reverse new,
/// reverse old.
pub(super) const SAMPLE: usize = 24;

/// Nearest neighbours, and nearest reverse neighbours, that phase 2 gathers per node.
pub(super) const GATHER: usize = 64;

/// Arguments of a descent, checked and complete.
pub(super) struct CpuDescent {
    pub k: usize,
    /// From random neighbours or from cells.
    pub start: Start,
    pub cells: CellSettings,
    pub iterations: Iterations,
    pub expand: usize,
    pub seed: u64,
}

/// Runs both phases; `space` has more than `settings.k` nodes.
pub(super) fn descend(
    space: &Space<'_>,
    settings: &CpuDescent,
    progress: &Progress,
) -> Result<(Vec<Key>, DescentStats)> {
    let nodes = space.len();
    let (mut most_join, mut most_refine) = settings.iterations.limits();
    let (mut joins, refines) = settings.iterations.expected();
    let is_auto_after_cells = settings.start == Start::Cells && settings.iterations == Iterations::Auto;
    if is_auto_after_cells {
        (most_join, joins) = (0, 0);
    }
    // An iteration of phase 1 takes about twice the time of a random start or of one of phase 2.
    let start = if settings.start == Start::Cells { 4.0 } else { 1.0 };
    let [starting, joining, refining] = progress.parts([start, 2.0 * f64::from(joins), f64::from(refines)]);
    let mut descent = Descent { space, settings, distances: AtomicU64::new(0) };
    let mut lists = NeighbourLists::new(nodes, settings.k)?;
    if settings.start == Start::Cells {
        let source = PanelSource::new(space, &starting)?;
        let joined = cells::join(&source, lists, settings.cells, settings.seed, &starting)?;
        lists = joined.lists;
        if is_auto_after_cells && joined.added < SKIP_REFINE {
            let exact = ExactLists::on_cpu(space, settings.k, settings.seed, progress)?;
            if found_share(&lists, &exact) > FOUND {
                most_refine = 0;
            }
        }
        *descent.distances.get_mut() += joined.compared;
    } else {
        lists = descent.start(lists, &starting)?;
    }
    let mut stats = DescentStats::default();
    let computed = |descent: &Descent<'_>| descent.distances.load(Ordering::Relaxed);
    let at_start = computed(&descent);
    while stats.iterations.0 < most_join {
        lists = descent.join(lists, stats.iterations.0, &joining.iteration(stats.iterations.0, joins))?;
        stats.iterations.0 += 1;
        if settings.iterations == Iterations::Auto && lists.unvisited_share() < STOP_JOIN {
            break;
        }
    }
    stats.join_distances = computed(&descent) - at_start;
    lists.mark_unvisited();
    while stats.iterations.1 < most_refine {
        let before = lists.sample()?;
        lists = descent.refine(lists, &refining.iteration(stats.iterations.1, refines))?;
        stats.iterations.1 += 1;
        if settings.iterations == Iterations::Auto && lists.added_since(&before) < STOP_REFINE {
            break;
        }
    }
    stats.distances = computed(&descent);
    stats.refine_distances = stats.distances - stats.join_distances - at_start;
    Ok((lists.into_keys(), stats))
}

/// `auto` leaves phase 1 once a smaller share than this of the list entries is new. Waiting longer
/// costs a third of the time or more and gains 0.002 of recall (docs/decisions.md).
const STOP_JOIN: f64 = 0.35;

/// `auto` ends phase 2 once an iteration adds a smaller share than this of the list entries.
const STOP_REFINE: f64 = 0.015;

/// `auto` leaves phase 2 out if the last pass over cells added a smaller share than this, and lists
/// hold more than this share of the neighbours of some nodes: what finds few may leave many, as
/// where norms differ much.
const SKIP_REFINE: f64 = 0.02;
pub(super) const FOUND: f64 = 0.9;

/// The share of the exact neighbours of some nodes in their lists.
fn found_share(lists: &NeighbourLists, exact: &ExactLists) -> f64 {
    let list = |&node: &u32| -> Vec<f32> {
        lists.row(node as usize).iter().map(|&key| key::distance(key::plain(key))).collect()
    };
    exact.recall_at(exact.k, exact.sample.iter().map(list))
}

/// Whether a start from cells would leave out too many neighbours of some nodes, so that comparing
/// all pairs takes less time than finding them later.
pub(super) fn needs_all_pairs(
    space: &Space<'_>,
    settings: CellSettings,
    k: usize,
    seed: u64,
    progress: &Progress,
) -> Result<bool> {
    let exact = ExactLists::on_cpu(space, k, seed, progress)?;
    let met = cells::share_met(space, settings, seed, &exact, &progress.unwatched())?;
    tracing::debug!(met, "neighbours of some nodes that meet them in cells");
    Ok(met < FOUND)
}

struct Descent<'a> {
    space: &'a Space<'a>,
    settings: &'a CpuDescent,
    distances: AtomicU64,
}

/// Buffers of one task.
struct Scratch {
    visited: Visited,
    joined: Vec<u32>,
    others: Vec<u32>,
    distances: Vec<f32>,
}

impl Descent<'_> {
    fn scratch(&self) -> Scratch {
        Scratch {
            visited: Visited::new(self.space.len()),
            joined: Vec::new(),
            others: Vec::new(),
            distances: Vec::new(),
        }
    }

    /// Computes the distances from `node` to `others` and proposes each to both lists.
    fn propose_all(&self, lists: &SharedLists, node: u32, others: &[u32], distances: &mut Vec<f32>) {
        self.space.list_distances(self.space.query(node), others, distances);
        for (&other, &distance) in others.iter().zip(distances.iter()) {
            lists.propose(other, node, distance);
        }
        for (&other, &distance) in others.iter().zip(distances.iter()) {
            lists.propose(node, other, distance);
        }
    }

    /// Counts distances. Called once per node, since all threads share the counter.
    fn count(&self, computed: usize) {
        self.distances.fetch_add(computed as u64, Ordering::Relaxed);
    }

    /// Gives every node distinct random neighbours.
    fn start(&self, lists: NeighbourLists, progress: &Progress) -> Result<NeighbourLists> {
        let nodes = self.space.len();
        let k = lists.k();
        let shared = lists.share()?;
        let scratch = || self.scratch();
        for_each_node(nodes, &progress.stage("start", nodes as u64), scratch, |scratch, node| {
            let draws = Draws::new(self.settings.seed, Stage::Start, 0, u64::from(node));
            scratch.visited.clear();
            scratch.visited.insert(node);
            scratch.others.clear();
            let mut draw = 0;
            while scratch.others.len() < k {
                let id = draws.below(draw, nodes as u64) as u32;
                draw += 1;
                if scratch.visited.insert(id) {
                    scratch.others.push(id);
                }
            }
            self.propose_all(&shared, node, &scratch.others, &mut scratch.distances);
            self.count(k);
        })?;
        Ok(shared.into_lists())
    }

    /// One iteration of phase 1: every node compares its sampled new neighbours, forward and
    /// reverse, with each other and with its old neighbours.
    fn join(&self, mut lists: NeighbourLists, iteration: u32, progress: &Progress) -> Result<NeighbourLists> {
        let nodes = self.space.len();
        let (new, old) = sample(&mut lists)?;
        let reverse = |table: &IdTable, part: u32| {
            Reverse::new(nodes, |source, visit| {
                // A random rank makes the choice among many reverse neighbours fair.
                let draws =
                    Draws::new(self.settings.seed, Stage::Sample, iteration * 2 + part, u64::from(source));
                for (index, &target) in table.row(source).iter().enumerate() {
                    visit(target, draws.bits(index as u64) as u32);
                }
            })
        };
        let (reverse_new, reverse_old) = (reverse(&new, 0)?, reverse(&old, 1)?);
        let shared = lists.share()?;
        let scratch = || self.scratch();
        for_each_node(nodes, &progress.stage("join", nodes as u64), scratch, |scratch, node| {
            let Scratch { visited, joined, others, distances } = scratch;
            visited.clear();
            joined.clear();
            let gather =
                |joined: &mut Vec<u32>, visited: &mut Visited, forward: &IdTable, reverse: &Reverse| {
                    let ids = forward.row(node).iter().copied().chain(reverse.sources(node).take(SAMPLE));
                    joined.extend(ids.filter(|&id| visited.insert(id)));
                };
            gather(joined, visited, &new, &reverse_new);
            let new_count = joined.len();
            gather(joined, visited, &old, &reverse_old);
            let mut computed = 0;
            for index in 0..new_count {
                others.clear();
                others.extend_from_slice(&joined[index + 1..]);
                self.propose_all(&shared, joined[index], others, distances);
                computed += others.len();
            }
            self.count(computed);
        })?;
        Ok(shared.into_lists())
    }

    /// One iteration of phase 2: every node is compared with the lists and reverse lists of its
    /// nearest unvisited neighbours.
    fn refine(&self, mut lists: NeighbourLists, progress: &Progress) -> Result<NeighbourLists> {
        let nodes = self.space.len();
        let used = expand(&mut lists, self.settings.expand)?;
        let near = nearest(&lists, GATHER)?;
        let reverse = Reverse::new(nodes, |source, visit| {
            near.row(source).iter().zip(0..).for_each(|(&target, rank)| visit(target, rank));
        })?;
        let shared = lists.share()?;
        let scratch = || self.scratch();
        for_each_node(nodes, &progress.stage("refine", nodes as u64), scratch, |scratch, node| {
            let Scratch { visited, others, distances, .. } = scratch;
            visited.clear();
            others.clear();
            visited.insert(node);
            near.row(node).iter().for_each(|&id| _ = visited.insert(id));
            for &via in used.row(node) {
                let ids = near.row(via).iter().copied().chain(reverse.sources(via).take(GATHER));
                others.extend(ids.filter(|&id| visited.insert(id)));
            }
            self.propose_all(&shared, node, others, distances);
            self.count(others.len());
        })?;
        Ok(shared.into_lists())
    }
}

/// The nearest unvisited and the nearest visited neighbours of each node, [`SAMPLE`] of each. Marks
/// the former visited.
fn sample(lists: &mut NeighbourLists) -> Result<(IdTable, IdTable)> {
    let (mut new, mut old) = (IdTable::new(lists.len(), SAMPLE)?, IdTable::new(lists.len(), SAMPLE)?);
    for_each((lists.rows_mut(), (new.rows_mut(), old.rows_mut())), |(row, (new, old))| {
        let held = |row: &[Key], unvisited: bool| -> Vec<u32> {
            let keys = row.iter().filter(|&&k| k != key::NONE && key::is_unvisited(k) == unvisited);
            keys.take(SAMPLE).map(|&k| key::id(k)).collect()
        };
        fill(old, held(row, false).into_iter());
        fill(new, held(row, true).into_iter());
        let sampled = row.iter_mut().filter(|k| **k != key::NONE && key::is_unvisited(**k)).take(SAMPLE);
        sampled.for_each(|k| *k = key::plain(*k));
    });
    Ok((new, old))
}

/// The `count` nearest unvisited neighbours of each node. Marks them visited.
fn expand(lists: &mut NeighbourLists, count: usize) -> Result<IdTable> {
    let mut used = IdTable::new(lists.len(), count)?;
    for_each((lists.rows_mut(), used.rows_mut()), |(row, used)| {
        let unvisited = row.iter_mut().filter(|k| **k != key::NONE && key::is_unvisited(**k));
        let expanded = unvisited.map(|k| {
            *k = key::plain(*k);
            key::id(*k)
        });
        fill(used, expanded.take(count));
    });
    Ok(used)
}

/// The nearest neighbours of each node, at most `count`.
fn nearest(lists: &NeighbourLists, count: usize) -> Result<IdTable> {
    let mut near = IdTable::new(lists.len(), count.min(lists.k()))?;
    for_each((lists.rows(), near.rows_mut()), |(row, near)| {
        fill(near, row.iter().take_while(|&&k| k != key::NONE).map(|&k| key::id(k)));
    });
    Ok(near)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Metric, Synth, SynthKind};

    /// Data whose norms differ need all pairs, others do not: the cells of a few rows tell what
    /// lists find.
    #[test]
    fn the_cells_of_some_nodes_tell_what_a_start_from_cells_finds() {
        let (n, k, seed) = (6000, 20, 3);
        let settings = CellSettings { nodes_per_cell: Some(60), probes: Some(12), clusterings: Some(1) };
        let silent = Progress::silent();
        for (kind, needs) in [(SynthKind::Lognormal, true), (SynthKind::Mixture, false)] {
            let base = Synth::of_kind(kind, n, 48, 4).unwrap().base();
            let space = Space::new(&base, Metric::L2, &silent).unwrap();
            let exact = ExactLists::on_cpu(&space, k, seed, &silent).unwrap();
            let source = PanelSource::new(&space, &silent).unwrap();
            let lists = NeighbourLists::new(n, k).unwrap();
            let lists = cells::join(&source, lists, settings, seed, &silent).unwrap().lists;
            let found = found_share(&lists, &exact);
            assert_eq!(found < FOUND, needs, "{kind}: {found}");
            assert_eq!(needs_all_pairs(&space, settings, k, seed, &silent).unwrap(), needs, "{kind}");
        }
    }
}
