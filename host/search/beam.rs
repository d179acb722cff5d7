//! Greedy beam search over a graph.

use tagore_device::descent::key::{self, Key};

use super::visited::Visited;
use crate::vectors::space::{Point, Space};

/// What a search walks on.
pub(crate) trait Graph: Sync {
    fn neighbors(&self, node: u32) -> &[u32];
}

/// The state of one search at a time; made once per thread and used for many searches.
pub(crate) struct BeamSearch {
    visited: Visited,
    beam: Vec<Slot>,
    fresh: Vec<u32>,
    distances: Vec<f32>,
    computed: u64,
}

#[derive(Clone, Copy)]
struct Slot {
    key: Key,
    expanded: bool,
}

/// How far a search goes.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    /// Nodes kept at a time (L).
    pub beam: usize,
    /// Nodes whose neighbours are looked at.
    pub expansions: usize,
}

impl BeamSearch {
    pub(crate) fn new(nodes: usize) -> Self {
        Self {
            visited: Visited::new(nodes),
            beam: Vec::new(),
            fresh: Vec::new(),
            distances: Vec::new(),
            computed: 0,
        }
    }

    /// Searches from `entries` for the nodes nearest to `point`: always expands the nearest node of
    /// the beam that has not been expanded, until all of the beam has been. Calls `met` with the key
    /// (list distance, id) of every node whose distance is computed.
    pub(crate) fn run(
        &mut self,
        space: &Space<'_>,
        graph: &impl Graph,
        point: Point<'_>,
        entries: &[u32],
        limits: Limits,
        mut met: impl FnMut(Key),
    ) {
        self.visited.clear();
        self.beam.clear();
        self.visit(space, point, entries, limits.beam, &mut met);
        let mut cursor = 0;
        for _ in 0..limits.expansions {
            let Some(next) = self.beam[cursor..].iter().position(|slot| !slot.expanded) else {
                break;
            };
            let current = cursor + next;
            self.beam[current].expanded = true;
            let neighbors = graph.neighbors(self.beam[current].key as u32);
            let lowest = self.visit(space, point, neighbors, limits.beam, &mut met);
            cursor = if lowest <= current { lowest } else { current + 1 };
        }
    }

    /// Computes the distances of the nodes of `ids` not met before and puts them into the beam;
    /// returns the lowest place that one of them took.
    fn visit(
        &mut self,
        space: &Space<'_>,
        point: Point<'_>,
        ids: &[u32],
        width: usize,
        met: &mut impl FnMut(Key),
    ) -> usize {
        self.fresh.clear();
        self.fresh.extend(ids.iter().copied().filter(|&id| self.visited.insert(id)));
        space.list_distances(point, &self.fresh, &mut self.distances);
        self.computed += self.fresh.len() as u64;
        let mut lowest = usize::MAX;
        for (&id, &distance) in self.fresh.iter().zip(&self.distances) {
            let key = key::pack(distance, id);
            met(key);
            if self.beam.len() == width {
                if self.beam.last().is_some_and(|worst| key >= worst.key) {
                    continue;
                }
                self.beam.pop();
            }
            let place = self.beam.partition_point(|slot| slot.key < key);
            self.beam.insert(place, Slot { key, expanded: false });
            lowest = lowest.min(place);
        }
        lowest
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
