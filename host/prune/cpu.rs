//! Collect-Filter-Store on the CPU (paper section 5.1, Algorithm 2).

use std::time::Instant;

use tagore_device::key::{self, Key, NO_ID};
use tagore_device::prune::store::MERGED;

use super::collect::Collector;
use super::filter::Pruner;
use super::rows::GraphRows;
use super::strategy::{Entry, Store, Strategy};
use super::{PruneStats, Pruned};
use crate::Result;
use crate::descent::KnnGraph;
use crate::descent::reverse::Incoming;
use crate::index::random_entries;
use crate::memory::{filled, peak_host_bytes};
use crate::parallel::for_each_row;
use crate::progress::Progress;
use crate::search::visited::Visited;
use crate::vectors::space::Space;

/// Pieces in which the edges of full rows are reversed.
const PIECES: usize = 8;

/// Maximum number of edges reversed at a time: a fraction of the slots, since the number that a
/// rule fills is not known before. A single node may still have an edge from every other.
pub(crate) fn reversed_at_once(nodes: usize, degree: usize) -> usize {
    nodes * (degree / PIECES).max(1)
}

/// Prunes `graph` into rows of at most `strategy.degree` edges.
pub(crate) fn prune(
    space: &Space<'_>,
    graph: &KnnGraph,
    strategy: &Strategy,
    seed: u64,
    progress: &Progress,
) -> Result<Pruned> {
    let began = Instant::now();
    let nodes = space.len();
    let entries = entries(space, strategy.entry, seed, progress)?;
    let stage = progress.stage("prune", 2 * nodes as u64);
    let degree = strategy.degree;

    let mut forward = filled(key::NONE, nodes * degree)?;
    let scratch = || {
        let collector =
            Collector::new(space, graph, &entries, strategy.collect_from(graph.k()), strategy.candidates);
        (collector, Pruner::new(space, Some(graph), strategy), Vec::new(), Vec::new())
    };
    for_each_row(&mut forward, degree, &stage, scratch, |scratch, node, row| {
        let (collector, pruner, candidates, accepted) = scratch;
        collector.collect(node, candidates);
        pruner.filter(node, candidates, degree, accepted);
        row[..accepted.len()].copy_from_slice(accepted);
    })?;
    let forward_of = |node: u32| {
        let row = &forward[node as usize * degree..][..degree];
        row.iter().copied().take_while(|&key| key != key::NONE)
    };

    // CAGRA ranks edges by place. Edges that are filtered again are ranked by distance.
    let by_place = strategy.counts_detours() && strategy.store == Store::Interleave;
    let edges_of = |source: u32, visit: &mut dyn FnMut(u32, u32)| {
        for (key, place) in forward_of(source).zip(0..) {
            let rank = if by_place { place } else { (key >> 32) as u32 };
            visit(key as u32, rank);
        }
    };
    let incoming = Incoming::count(nodes, edges_of)?;

    let mut ids = filled(NO_ID, nodes * degree)?;
    for piece in incoming.pieces(reversed_at_once(nodes, degree)) {
        let reverse = incoming.reverse(piece.clone(), edges_of)?;
        let rows = &mut ids[piece.start * degree..piece.end * degree];
        let storer = || Storer::new(space, graph, strategy);
        for_each_row(rows, degree, &stage, storer, |storer, place, row| {
            let node = piece.start as u32 + place;
            match strategy.store {
                Store::Interleave => {
                    let forward = || forward_of(node).map(|key| key as u32);
                    storer.interleave(forward, reverse.sources(node), row);
                }
                Store::Refilter => storer.refilter(node, forward_of(node), reverse.keys(node), row),
            }
        })?;
    }
    let rows = GraphRows::from_padded(ids, degree)?;
    let stats = PruneStats {
        device: "cpu".to_owned(),
        seconds: began.elapsed().as_secs_f64(),
        peak_host_bytes: peak_host_bytes(),
        ..PruneStats::default()
    };
    Ok(Pruned { rows, entries, stats })
}

/// Fills rows from forward and reverse edges, one at a time.
struct Storer<'a> {
    pruner: Pruner<'a>,
    seen: Visited,
    edges: Vec<Key>,
    accepted: Vec<Key>,
}

impl<'a> Storer<'a> {
    fn new(space: &'a Space<'a>, graph: &'a KnnGraph, strategy: &'a Strategy) -> Self {
        let nodes = if strategy.store == Store::Interleave { space.len() } else { 0 };
        let (pruner, seen) = (Pruner::new(space, Some(graph), strategy), Visited::new(nodes));
        Self { pruner, seen, edges: Vec::new(), accepted: Vec::new() }
    }

    /// Fills a row with the better half of the forward edges, then reverse edges, then the other
    /// forward edges.
    fn interleave<I: Iterator<Item = u32>>(
        &mut self,
        forward: impl Fn() -> I,
        reverse: impl Iterator<Item = u32>,
        row: &mut [u32],
    ) {
        self.seen.clear();
        let half = row.len().div_ceil(2);
        let ids = forward().take(half).chain(reverse).chain(forward().skip(half));
        // `zip` takes the id first: a slot taken without an id would stay empty.
        for (id, slot) in ids.filter(|&id| self.seen.insert(id)).zip(row) {
            *slot = id;
        }
    }

    /// Fills a row with all edges, or with those the rule accepts if they exceed the row. The
    /// reverse edges are the keys of their sources, nearest first.
    fn refilter(&mut self, node: u32, forward: impl Iterator<Item = Key>, reverse: &[Key], row: &mut [u32]) {
        let Self { pruner, edges, accepted, .. } = self;
        edges.clear();
        edges.extend(forward);
        // A hub may have any number of reverse edges. A GPU has room for the nearest, and the
        // accepted ones are nearly always among these.
        edges.extend(reverse.iter().take(MERGED as usize));
        edges.sort_unstable();
        // The key of an id is the same in both directions.
        edges.dedup();
        edges.truncate(MERGED as usize);
        if edges.len() > row.len() {
            pruner.filter(node, edges, row.len(), accepted);
            edges.clone_from(accepted);
        }
        row.iter_mut().zip(&*edges).for_each(|(slot, &key)| *slot = key as u32);
    }
}

/// The entry points of an index.
pub(crate) fn entries(space: &Space<'_>, entry: Entry, seed: u64, progress: &Progress) -> Result<Vec<u32>> {
    match entry {
        Entry::Medoid => Ok(vec![space.medoid(progress)?]),
        Entry::Random => Ok(random_entries(space.len(), seed)),
    }
}
