//! Collect-Filter-Store on the CPU (paper section 5.1, Algorithm 2).

use tagore_device::descent::key::{self, Key};
use tagore_device::prune::store::MERGED;
use tagore_device::random::{Draws, Stage};

use super::collect::Collector;
use super::filter::Pruner;
use super::rows::Rows;
use super::strategy::{Entry, RANDOM_ENTRIES, Store, Strategy};
use crate::Result;
use crate::descent::KnnGraph;
use crate::descent::reverse::Reverse;
use crate::parallel::for_each_row;
use crate::progress::Progress;
use crate::search::visited::Visited;
use crate::vectors::space::Space;

/// Prunes `graph` into an index of at most `strategy.degree` edges per node: rows and entry points.
pub(super) fn prune(
    space: &Space<'_>,
    graph: &KnnGraph,
    strategy: &Strategy,
    seed: u64,
    progress: &Progress,
) -> Result<(Rows, Vec<u32>)> {
    let nodes = space.len();
    let entries = entries(space, strategy.entry, seed);
    let stage = progress.stage("prune", 2 * nodes as u64);
    let degree = strategy.degree;

    let mut forward = vec![key::NONE; nodes * degree];
    let scratch = || {
        let collector = Collector::new(space, graph, &entries, strategy.collect, strategy.candidates);
        (collector, Pruner::new(space, graph, strategy), Vec::new(), Vec::new())
    };
    for_each_row(&mut forward, degree, &stage, scratch, |scratch, node, row| {
        let (collector, pruner, candidates, accepted) = scratch;
        collector.collect(node, candidates);
        pruner.filter(candidates, degree, accepted);
        row[..accepted.len()].copy_from_slice(accepted);
    })?;
    let forward_of = |node: u32| {
        let row = &forward[node as usize * degree..][..degree];
        row.iter().copied().take_while(|&key| key != key::NONE)
    };

    let reverse = Reverse::new(nodes, |source, visit| {
        for (key, place) in forward_of(source).zip(0..) {
            // CAGRA knows ranks, not distances.
            let rank = if strategy.counts_detours() { place } else { (key >> 32) as u32 };
            visit(key as u32, rank);
        }
    });

    let mut ids = vec![u32::MAX; nodes * degree];
    let scratch =
        || (Pruner::new(space, graph, strategy), Visited::new(nodes), Vec::new(), Vec::new(), Vec::new());
    for_each_row(&mut ids, degree, &stage, scratch, |scratch, node, row| {
        let (pruner, seen, edges, distances, accepted) = scratch;
        seen.clear();
        let forward = || forward_of(node).map(|key| key as u32);
        let mut slots = row.iter_mut();
        let mut fill = |ids: &mut dyn Iterator<Item = u32>| {
            // The id first: a slot that is taken and then finds no id would be lost.
            for (id, slot) in ids.filter(|&id| seen.insert(id)).zip(&mut slots) {
                *slot = id;
            }
        };
        match strategy.store {
            Store::Interleave => {
                fill(&mut forward().take(degree.div_ceil(2)));
                fill(&mut reverse.sources(node));
                fill(&mut forward());
            }
            Store::Refilter => {
                edges.clear();
                edges.extend(forward().chain(reverse.sources(node)).filter(|&id| seen.insert(id)));
                space.rule_distances(node, edges, distances);
                let mut keys: Vec<Key> =
                    edges.iter().zip(&*distances).map(|(&id, &d)| key::pack(d, id)).collect();
                keys.sort_unstable();
                // A hub has any number of reverse edges: a GPU has room for the nearest, and what is accepted is
                // nearly always among them.
                keys.truncate(MERGED as usize);
                if keys.len() > degree {
                    pruner.filter(&keys, degree, accepted);
                    keys.clone_from(accepted);
                }
                row.iter_mut().zip(keys).for_each(|(slot, key)| *slot = key as u32);
            }
        }
    })?;
    Ok((Rows::from_padded(ids, degree), entries))
}

/// Where an index is entered.
fn entries(space: &Space<'_>, entry: Entry, seed: u64) -> Vec<u32> {
    match entry {
        Entry::Medoid => vec![space.medoid()],
        Entry::Random => random_entries(space.len(), seed),
    }
}

/// Different random nodes; all nodes if there are few.
pub(crate) fn random_entries(nodes: usize, seed: u64) -> Vec<u32> {
    if nodes <= RANDOM_ENTRIES {
        return (0..nodes as u32).collect();
    }
    let draws = Draws::new(seed, Stage::Entry, 0, 0);
    let mut entries = Vec::with_capacity(RANDOM_ENTRIES);
    for draw in 0.. {
        let node = draws.below(draw, nodes as u64) as u32;
        if !entries.contains(&node) {
            entries.push(node);
        }
        if entries.len() == RANDOM_ENTRIES {
            break;
        }
    }
    entries
}
