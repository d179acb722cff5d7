//! Greedy beam search over a graph.

use tagore_device::key::{self, Key, NONE};
use tagore_device::search::beam::stop::Stop;

use super::breadth::Breadth;
use super::bridge::Bridges;
use super::passing::{Passing, Steps};
use super::visited::Visited;
use crate::index::{Graph, Layer, Spots, Start};
use crate::vectors::space::{Query, Space};

/// Rows whose distances a scan computes at a time.
const SCANNED: usize = 256;

/// The buffers of a search, made once per thread and reused.
#[derive(Default)]
pub(crate) struct BeamSearch {
    visited: Visited,
    beam: Vec<Slot>,
    fresh: Vec<u32>,
    distances: Vec<f32>,
    computed: u64,
    /// A node that the search leaves out, if any.
    without: Option<u32>,
    /// Whether bridges replace the edges to it.
    is_bridged: bool,
    bridges: Bridges,
    /// Where the last expansion led, of a search with a filter.
    steps: Steps,
    /// The growth of the distances of the graph being searched, if it is known.
    growth: Option<f32>,
}

#[derive(Clone, Copy)]
struct Slot {
    key: Key,
    expanded: bool,
}

/// Limits of a search.
#[derive(Clone, Copy)]
pub(crate) struct BeamLimits {
    /// Nodes kept (L).
    pub beam: usize,
    /// Maximum number of nodes expanded.
    pub expansions: usize,
    pub stop: Stop,
}

impl BeamLimits {
    /// The limits of a search that expands every node of its beam.
    pub(crate) const fn all_of(beam: usize) -> Self {
        Self { beam, expansions: usize::MAX, stop: Stop::NEVER }
    }
}

/// One search.
#[derive(Clone, Copy)]
pub(crate) struct BeamTask<'a> {
    pub query: Query<'a>,
    pub start: Start<'a>,
    pub limits: BeamLimits,
    /// The nodes that a search with a filter walks on; none for all.
    pub among: Option<&'a Passing<'a>>,
}

impl BeamSearch {
    pub(crate) fn new(nodes: usize) -> Self {
        Self { visited: Visited::new(nodes), ..Self::default() }
    }

    /// Searches for the nodes nearest to the query, first in the layers, then in the graph. Calls
    /// `on_visit` with the key (list distance, id) of every visited node of the graph.
    pub(crate) fn run(
        &mut self,
        space: &Space<'_>,
        graph: &impl Graph,
        task: BeamTask<'_>,
        mut on_visit: impl FnMut(Key),
    ) {
        let BeamTask { query, start, limits, among } = task;
        self.begin(space, task, &mut on_visit);
        if let Some(passing) = among {
            self.visit(space, query, passing.entries(), limits.beam, &mut on_visit);
        }
        self.walk(space, graph, task, &mut on_visit);
        let Some(spots) = start.spots else { return };
        self.walk_spots(space, graph, spots, task, &mut on_visit);
        for &node in spots.walked_always() {
            if !self.may_find(space, task, node) {
                continue;
            }
            let others = std::mem::take(&mut self.beam);
            self.enter_spot(space, spots.entries_of(node).to_vec(), task, &mut on_visit);
            self.walk(space, graph, task, &mut on_visit);
            self.walk_spots(space, graph, spots, task, &mut on_visit);
            self.beam.extend(others);
            self.beam.sort_unstable_by_key(|slot| slot.key);
            self.beam.truncate(limits.beam);
        }
    }

    /// Searches the layers; the beam then holds the nodes where the search of the graph starts.
    pub(super) fn begin(&mut self, space: &Space<'_>, task: BeamTask<'_>, on_visit: &mut impl FnMut(Key)) {
        let BeamTask { start, limits, .. } = task;
        self.growth = start.growth;
        self.forget();
        self.beam.clear();
        let mut layers = start.layers.iter().rev();
        if let Some(top) = layers.next() {
            self.enter(space, start.entries, task, top.beam(), &mut |_| ());
            self.walk_layer(space, top, task);
            for layer in layers {
                self.keep(layer.beam());
                self.walk_layer(space, layer, task);
            }
            self.keep(limits.beam);
            self.beam.iter().for_each(|slot| on_visit(slot.key));
        } else {
            self.enter(space, start.entries, task, limits.beam, on_visit);
        }
    }

    /// Visits the entry points; under a filter only those that pass.
    fn enter(
        &mut self,
        space: &Space<'_>,
        entries: &[u32],
        BeamTask { query, among, .. }: BeamTask<'_>,
        width: usize,
        on_visit: &mut impl FnMut(Key),
    ) {
        let Some(passing) = among else {
            self.visit(space, query, entries, width, on_visit);
            return;
        };
        let mut steps = std::mem::take(&mut self.steps);
        steps.found.clear();
        steps.found.extend(entries.iter().copied().filter(|&id| passing.contains(id)));
        self.visit(space, query, &steps.found, width, on_visit);
        self.steps = steps;
    }

    /// Whether the search would expand a row as long as `node` if the query pointed there. None of
    /// the spot that `node` represents is longer.
    fn may_find(&self, space: &Space<'_>, BeamTask { query, limits, .. }: BeamTask<'_>, node: u32) -> bool {
        let norm = space.norm(query);
        key::pack(-norm * space.norm(space.query(node)), 0) <= self.last(limits.stop.of_query(norm))
    }

    /// The expanded nodes of the beam.
    fn expanded(&self) -> impl Iterator<Item = u32> + '_ {
        self.beam.iter().filter(|slot| slot.expanded).map(|slot| slot.key as u32)
    }

    /// The largest key of a node that the search still expands.
    fn last(&self, stop: Stop) -> Key {
        let at_rank = self.beam.get(stop.rank as usize).map_or(NONE, |slot| slot.key);
        stop.last((at_rank >> 32) as u32)
    }

    /// Searches the dense spots whose representatives were expanded, except those with a beam of
    /// their own.
    fn walk_spots(
        &mut self,
        space: &Space<'_>,
        graph: &impl Graph,
        spots: &Spots,
        task: BeamTask<'_>,
        on_visit: &mut impl FnMut(Key),
    ) {
        // A spot may have spots of its own.
        loop {
            let met = self.expanded().filter(|&node| !spots.is_walked_always(node));
            let entries = met.flat_map(|node| spots.entries_of(node)).copied().collect();
            let before = self.computed;
            self.enter_spot(space, entries, task, on_visit);
            if self.computed == before {
                return;
            }
            self.walk(space, graph, task, on_visit);
        }
    }

    /// Visits the nodes where a search of dense spots begins. Under a filter it visits only those
    /// that pass, unless none does.
    fn enter_spot(
        &mut self,
        space: &Space<'_>,
        mut entries: Vec<u32>,
        task: BeamTask<'_>,
        on_visit: &mut impl FnMut(Key),
    ) {
        if let Some(passing) = task.among.filter(|all| entries.iter().any(|&id| all.contains(id))) {
            entries.retain(|&id| passing.contains(id));
        }
        self.visit(space, task.query, &entries, task.limits.beam, on_visit);
    }

    /// Whether the last search, which did not go on in any of `spots`, was to go on in one.
    pub(super) fn meets(&self, spots: &Spots) -> bool {
        spots.are_met_by(self.expanded())
    }

    /// Sets the node that searches leave out, as if the graph were without it: it is neither found
    /// nor expanded, and [bridges](super::bridge) may replace the edges to it. A search that would
    /// start there alone starts at its neighbours.
    pub(super) fn leave_out(&mut self, node: Option<u32>, is_bridged: bool) {
        (self.without, self.is_bridged) = (node, is_bridged);
        self.bridges.forget();
    }

    /// Empties the set of visited nodes, but for the node that is left out.
    fn forget(&mut self) {
        self.visited.clear();
        if let Some(node) = self.without {
            self.visited.insert(node);
        }
    }

    fn walk_layer(&mut self, space: &Space<'_>, layer: &Layer, task: BeamTask<'_>) {
        let Breadth { kept: beam, stop, .. } = Breadth::of_layer(layer.beam(), space.metric());
        let limits = BeamLimits { stop, ..BeamLimits::all_of(beam) };
        self.walk(space, layer, BeamTask { limits, ..task }, &mut |_| ());
    }

    /// Starts the next layer's beam with the results of this one, up to `width` nodes.
    fn keep(&mut self, width: usize) {
        self.forget();
        self.beam.truncate(width);
        for slot in &mut self.beam {
            slot.expanded = false;
            self.visited.insert(slot.key as u32);
        }
    }

    /// Expands the nearest unexpanded node of the beam until all are expanded, or the nearest is
    /// beyond the bound.
    fn walk(
        &mut self,
        space: &Space<'_>,
        graph: &impl Graph,
        BeamTask { query, limits, among, .. }: BeamTask<'_>,
        on_visit: &mut impl FnMut(Key),
    ) {
        let norm = if limits.stop.takes_norm() { space.norm(query) } else { 0.0 };
        let stop = limits.stop.of_query(norm);
        if let (true, Some(node)) = (self.beam.is_empty(), self.without) {
            self.visit(space, query, graph.neighbors(node), limits.beam, on_visit);
        }
        let mut cursor = 0;
        for _ in 0..limits.expansions {
            let Some(next) = self.beam[cursor..].iter().position(|slot| !slot.expanded) else {
                break;
            };
            let current = cursor + next;
            if self.beam[current].key > self.last(stop) {
                break;
            }
            self.beam[current].expanded = true;
            let node = self.beam[current].key as u32;
            if let Some(next) = self.beam[current..].iter().find(|slot| !slot.expanded) {
                graph.fetch(next.key as u32);
            }
            let neighbors = graph.neighbors(node);
            let mut lowest = match among {
                None => self.visit(space, query, neighbors, limits.beam, on_visit),
                Some(passing) => {
                    let mut steps = std::mem::take(&mut self.steps);
                    passing.follow(graph, neighbors, |id| self.visited.insert(id), &mut steps);
                    let lowest = self.visit(space, query, &steps.found, limits.beam, on_visit);
                    self.steps = steps;
                    lowest
                }
            };
            if let Some(gone) = self.without.filter(|gone| self.is_bridged && neighbors.contains(gone)) {
                let mut bridges = std::mem::take(&mut self.bridges);
                let ids = bridges.replacements(space, graph, self.growth, node, gone);
                lowest = lowest.min(self.visit(space, query, ids, limits.beam, on_visit));
                self.bridges = bridges;
            }
            cursor = if lowest <= current { lowest } else { current + 1 };
        }
    }

    /// Computes the distances of the unvisited nodes of `ids` and inserts them into the beam;
    /// returns the lowest position of an inserted node.
    fn visit(
        &mut self,
        space: &Space<'_>,
        query: Query<'_>,
        ids: &[u32],
        width: usize,
        on_visit: &mut impl FnMut(Key),
    ) -> usize {
        self.visited.insert_all(ids, &mut self.fresh);
        space.list_distances(query, &self.fresh, &mut self.distances);
        self.computed += self.fresh.len() as u64;
        let mut lowest = usize::MAX;
        for index in 0..self.fresh.len() {
            let key = key::pack(self.distances[index], self.fresh[index]);
            on_visit(key);
            lowest = lowest.min(self.offer(key, width));
        }
        lowest
    }

    /// Inserts a node if it is among the nearest `width`; returns its position, or `usize::MAX`.
    #[inline(always)]
    fn offer(&mut self, key: Key, width: usize) -> usize {
        if self.beam.len() == width {
            if self.beam.last().is_some_and(|worst| key >= worst.key) {
                return usize::MAX;
            }
            self.beam.pop();
        }
        let place = self.beam.partition_point(|slot| slot.key < key);
        self.beam.insert(place, Slot { key, expanded: false });
        place
    }

    /// Compares the query with all rows that `each` hands out; the beam holds the nearest `width`.
    pub(crate) fn scan(
        &mut self,
        space: &Space<'_>,
        query: Query<'_>,
        width: usize,
        each: impl FnOnce(&mut dyn FnMut(u32)),
    ) {
        self.beam.clear();
        self.fresh.clear();
        each(&mut |id| {
            self.fresh.push(id);
            if self.fresh.len() == SCANNED {
                self.compare_fresh(space, query, width);
            }
        });
        self.compare_fresh(space, query, width);
    }

    fn compare_fresh(&mut self, space: &Space<'_>, query: Query<'_>, width: usize) {
        space.list_distances(query, &self.fresh, &mut self.distances);
        self.computed += self.fresh.len() as u64;
        for index in 0..self.fresh.len() {
            self.offer(key::pack(self.distances[index], self.fresh[index]), width);
        }
        self.fresh.clear();
    }

    /// The set of visited nodes, emptied.
    pub(super) fn no_nodes(&mut self) -> &mut Visited {
        self.visited.clear();
        &mut self.visited
    }

    /// The keys of the last search's beam, nearest first.
    pub(crate) fn found(&self) -> impl ExactSizeIterator<Item = Key> + '_ {
        self.beam.iter().map(|slot| slot.key)
    }

    /// Distances computed by all searches so far.
    pub(crate) fn computed(&self) -> u64 {
        self.computed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prune::GraphRows;
    use crate::vectors::QueryBuffer;
    use crate::{Metric, Progress, Vectors};

    /// Distances that a search computes in a layer: a cycle through all `rows`, with an edge from
    /// every node to the first. The search enters at the second.
    fn computed_in_layer(rows: &[[f32; 2]], query: [f32; 2], metric: Metric) -> u64 {
        let base = Vectors::from_rows(rows).unwrap();
        let space = Space::new(&base, metric, &Progress::silent()).unwrap();
        let n = rows.len() as u32;
        let edges = (0..n).flat_map(|node| [0, (node + 1) % n]).collect();
        let layers = [Layer::new((0..n).collect(), 2, edges, 8)];
        let graph = GraphRows::from_padded(vec![key::NO_ID; rows.len()], 1).unwrap();
        let mut search = BeamSearch::new(rows.len());
        let mut buffer = QueryBuffer::default();
        let query = space.query_of(&query, &mut buffer).unwrap();
        let start = Start { layers: &layers, ..Start::at(&[1]) };
        let task = BeamTask { query, start, limits: BeamLimits::all_of(8), among: None };
        search.run(&space, &graph, task, |_| ());
        assert_eq!(search.found().next().map(|key| key as u32), Some(0));
        search.computed()
    }

    #[test]
    fn a_search_of_a_layer_expands_no_node_twice_as_far_as_the_nearest() {
        let rows = |far: f32| [[1.0, 0.0], [0.0, far], [0.0, far], [0.0, far], [0.0, far], [0.0, far]];
        // The first expansion computes nodes 0 and 2.
        assert_eq!(computed_in_layer(&rows(2.1), [0.0, 0.0], Metric::L2), 3);
        assert_eq!(computed_in_layer(&rows(1.9), [0.0, 0.0], Metric::L2), 6);
        assert_eq!(computed_in_layer(&rows(2.1), [1.0, 0.1], Metric::Cosine), 3);
        assert_eq!(computed_in_layer(&rows(2.1), [1.0, 1.0], Metric::Cosine), 6);
        assert_eq!(computed_in_layer(&rows(0.1), [1.0, 0.1], Metric::InnerProduct), 6);
    }
}
