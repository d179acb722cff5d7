//! Edges that join the nearest rows of each sample query.

use std::cmp::Reverse;
use std::collections::HashMap;

use rayon::prelude::*;

use super::{Lists, NEAREST, known};
use crate::index::Graph;
use crate::loops::{for_each, numbered, try_map};
use crate::vectors::space::Space;
use crate::{Progress, Result};

/// A search that keeps this many nodes is to find as many of the nearest rows.
const BEAMS: [usize; 3] = [10, 32, NEAREST];

/// Parts of the sample. The edges that one part needs are there before the next is asked: most of
/// its queries need them too.
pub(super) const PARTS: usize = 4;

/// Parts of the changed rows, which threads change at the same time.
const SHARDS: usize = 64;

/// A row gives one place in this many to such edges.
const PLACES_PER_EDGE: usize = 3;

/// A graph with edges for queries. Rows that got none are those of the graph.
pub(crate) struct WithEdges<'a, G> {
    graph: &'a G,
    degree: usize,
    /// Changed rows by their node, in the shard of its remainder.
    shards: Vec<HashMap<u32, WithAdded>>,
}

/// A row that got edges.
#[derive(Default)]
struct WithAdded {
    row: Vec<u32>,
    added: Vec<Added>,
}

/// An edge that a row got, and the queries that asked for it.
#[derive(Clone, Copy)]
struct Added {
    to: u32,
    queries: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Edge {
    from: u32,
    to: u32,
}

impl<G: Graph> Graph for WithEdges<'_, G> {
    fn neighbors(&self, node: u32) -> &[u32] {
        self.shards[node as usize % SHARDS]
            .get(&node)
            .map_or_else(|| self.graph.neighbors(node), |with| &with.row)
    }
}

impl<'a, G: Graph> WithEdges<'a, G> {
    /// A graph with rows of at most `degree` edges, before it gets any.
    pub(super) fn over(graph: &'a G, degree: usize) -> Self {
        Self { graph, degree, shards: (0..SHARDS).map(|_| HashMap::new()).collect() }
    }

    /// Adds the edges that the queries of one of the [`PARTS`] of `lists` need. `space` tells how
    /// near rows are to one another.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(super) fn add(
        &mut self,
        part: usize,
        space: &Space<'_>,
        lists: Lists<'_>,
        progress: &Progress,
    ) -> Result<()> {
        let needed = |(number, list): (usize, &[u32])| {
            progress.check()?;
            Ok(if number % PARTS == part { self.needed(space, known(list)) } else { Vec::new() })
        };
        let mut edges = try_map(numbered(lists.rows()), needed)?.concat();
        edges.par_sort_unstable();
        let of_rows: Vec<&[Edge]> = edges.chunk_by(|a, b| a.from == b.from).collect();
        let (graph, degree) = (self.graph, self.degree);
        for_each(numbered(&mut self.shards[..]), |(shard, rows)| {
            for edges in of_rows.iter().filter(|edges| edges[0].from as usize % SHARDS == shard) {
                let with = rows.entry(edges[0].from).or_default();
                with.add(graph.neighbors(edges[0].from), edges, degree);
            }
        });
        Ok(())
    }

    /// The changed rows, by ascending node.
    pub(super) fn into_rows(self) -> Vec<(u32, Vec<u32>)> {
        let rows = self.shards.into_iter().flatten();
        let mut rows: Vec<_> = rows.map(|(node, with)| (node, with.row)).collect();
        rows.par_sort_unstable();
        rows
    }

    /// Edges that were added.
    pub(super) fn added(&self) -> usize {
        self.shards.iter().flat_map(HashMap::values).map(|with| with.added.len()).sum()
    }

    /// The edges without which a search among the rows of a list, nearest first, misses some.
    ///
    /// Paths inside the list lead from its first row to all others, and from all others to it: a
    /// search may come from anywhere.
    fn needed(&self, space: &Space<'_>, list: &[u32]) -> Vec<Edge> {
        if list.is_empty() {
            return Vec::new();
        }
        let mut ways = self.ways(list);
        let (mut edges, mut reached_ids, mut distances) = (Vec::new(), Vec::new(), Vec::new());
        for beam in BEAMS {
            let within = u64::MAX >> (NEAREST - beam.min(list.len()));
            for is_back in [false, true] {
                let mut reached = ways.reached(is_back, 1, within);
                while reached != within {
                    let lost = (within & !reached).trailing_zeros() as usize;
                    let places: Vec<usize> = bits(reached).collect();
                    reached_ids.clear();
                    reached_ids.extend(places.iter().map(|&place| list[place]));
                    space.list_distances(space.query(list[lost]), &reached_ids, &mut distances);
                    let nearest = (0..places.len()).min_by(|&a, &b| distances[a].total_cmp(&distances[b]));
                    let near = places[nearest.unwrap_or(0)];
                    let (from, to) = if is_back { (lost, near) } else { (near, lost) };
                    ways.add(from, to);
                    edges.push(Edge { from: list[from], to: list[to] });
                    reached = ways.reached(is_back, reached | 1 << lost, within);
                }
            }
        }
        edges
    }

    /// The edges among the rows of a list.
    fn ways(&self, list: &[u32]) -> Ways {
        let places = Places::new(list);
        let mut ways = Ways { to: [0; NEAREST], from: [0; NEAREST] };
        for (from, &node) in list.iter().enumerate() {
            for to in self.neighbors(node).iter().filter_map(|&id| places.find(id)) {
                ways.add(from, to);
            }
        }
        ways
    }
}

impl WithAdded {
    /// Adds the edges that most queries ask for. In a full row they replace the last ones of the
    /// graph's `own` row. `edges` are sorted.
    fn add(&mut self, own: &[u32], edges: &[Edge], degree: usize) {
        let Self { row, added } = self;
        let new = edges.chunk_by(|a, b| a.to == b.to);
        added.extend(new.map(|same| Added { to: same[0].to, queries: same.len() as u32 }));
        added.sort_by_key(|edge| (Reverse(edge.queries), edge.to));
        added.truncate(degree.div_ceil(PLACES_PER_EDGE));
        row.clear();
        row.extend(own.iter().filter(|&&id| added.iter().all(|edge| edge.to != id)));
        row.truncate(degree - added.len());
        row.extend(added.iter().map(|edge| edge.to));
    }
}

/// Edges among at most [`NEAREST`] rows: for each row the set of those it leads to, and of those
/// that lead to it.
struct Ways {
    to: [u64; NEAREST],
    from: [u64; NEAREST],
}

impl Ways {
    fn add(&mut self, from: usize, to: usize) {
        self.to[from] |= 1 << to;
        self.from[to] |= 1 << from;
    }

    /// The rows `within` that paths inside reach from those of `start`; backwards if `is_back`.
    fn reached(&self, is_back: bool, start: u64, within: u64) -> u64 {
        let next = if is_back { &self.from } else { &self.to };
        let (mut reached, mut fresh) = (start, start);
        while fresh != 0 {
            let all = bits(fresh).fold(0, |all, place| all | next[place]);
            fresh = all & within & !reached;
            reached |= fresh;
        }
        reached
    }
}

/// The places of the ones of `set`.
fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let place = set.trailing_zeros() as usize;
        set &= set.wrapping_sub(1);
        (place < 64).then_some(place)
    })
}

/// The place of each id in a list of at most [`NEAREST`] distinct ones, by a hash table.
struct Places<'a> {
    list: &'a [u32],
    /// A place and one; 0 in empty slots.
    slots: [u8; Places::SLOTS],
}

impl<'a> Places<'a> {
    const SLOTS: usize = 256;

    fn new(list: &'a [u32]) -> Self {
        let mut places = Self { list, slots: [0; Self::SLOTS] };
        for (place, &id) in list.iter().enumerate() {
            let slot = places.slot(id);
            places.slots[slot] = place as u8 + 1;
        }
        places
    }

    /// The slot of `id`, or the empty one where it would be.
    fn slot(&self, id: u32) -> usize {
        // Knuth's multiplicative hash.
        let mut slot = (id.wrapping_mul(0x9E37_79B1) >> 24) as usize;
        while self.slots[slot] != 0 && self.list[usize::from(self.slots[slot] - 1)] != id {
            slot = (slot + 1) % Self::SLOTS;
        }
        slot
    }

    fn find(&self, id: u32) -> Option<usize> {
        usize::from(self.slots[self.slot(id)]).checked_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prune::GraphRows;
    use crate::{Metric, Vectors};

    /// A graph of `count` points on a line with these edges, at most four from each.
    fn graph(count: usize, edges: &[(u32, u32)]) -> GraphRows {
        let mut rows = GraphRows::new(count, 4);
        edges.iter().for_each(|&(from, to)| assert!(rows.push(from, to)));
        rows
    }

    fn with_edges<'a>(graph: &'a GraphRows, lists: &[u32], depth: usize) -> WithEdges<'a, GraphRows> {
        let points = Vectors::from_f32((0..graph.len()).map(|x| x as f32).collect(), 1).unwrap();
        let space = Space::unprepared(&points, Metric::L2);
        let mut with = WithEdges::over(graph, 4);
        for part in 0..PARTS {
            with.add(part, &space, Lists { ids: lists, depth }, &Progress::silent()).unwrap();
        }
        with
    }

    #[test]
    fn rows_of_a_list_get_the_edges_that_join_them_both_ways() {
        // The nearest rows of the query are 0, 5 and 1; one edge leads from 0 to 1.
        let graph = graph(6, &[(0, 1), (5, 3)]);
        let with = with_edges(&graph, &[0, 5, 1], 3);
        // Row 1 is the nearest to 5 that a path leads to.
        assert_eq!((with.neighbors(0), with.neighbors(1)), (&[1][..], &[5][..]));
        // Back to the first.
        assert_eq!((with.neighbors(5), with.neighbors(3)), (&[3, 0][..], &[][..]));
        assert_eq!(with.added(), 2);
    }

    #[test]
    fn a_list_that_is_joined_needs_nothing() {
        let chain: Vec<(u32, u32)> = (0..63).flat_map(|node| [(node, node + 1), (node + 1, node)]).collect();
        let graph = graph(64, &chain);
        let ids: Vec<u32> = (0..64).collect();
        assert_eq!(with_edges(&graph, &ids, 64).added(), 0);
        // Every other row of it has none between.
        let ids: Vec<u32> = (0..64).step_by(2).collect();
        assert_eq!(with_edges(&graph, &ids, 32).added(), 62);
    }

    #[test]
    fn a_full_row_gives_its_last_places_to_the_edges_that_most_queries_need() {
        let graph = graph(9, &[(0, 1), (0, 2), (0, 3), (0, 4)]);
        // A third of four places is two. Row 5 is asked for twice in a part, the others once.
        let lists = [[0, 5], [9, 9], [9, 9], [9, 9], [0, 5], [9, 9], [9, 9], [9, 9], [0, 6], [9, 9], [9, 9]]
            .map(|list| list.map(|id| if id == 9 { u32::MAX } else { id }));
        let with = with_edges(&graph, lists.as_flattened(), 2);
        assert_eq!(with.neighbors(0), [1, 2, 5, 6]);
        let more = [[0, 5], [0, 5], [0, 6], [0, 7], [0, 8], [0, 5], [0, 6], [0, 7], [0, 8], [0, 5]];
        let with = with_edges(&graph, more.as_flattened(), 2);
        assert_eq!(with.neighbors(0).len(), 4);
        assert_eq!(with.neighbors(0)[..2], [1, 2]);
        assert_eq!(with.into_rows().iter().map(|row| row.0).collect::<Vec<_>>(), [0, 5, 6, 7, 8]);
    }

    #[test]
    fn the_table_of_places_finds_every_id_of_a_list_and_no_other() {
        // Ids that share their first slot among them.
        let ids: Vec<u32> = (0..64).map(|place| place * 0x0100_0000 + place % 3).collect();
        let places = Places::new(&ids);
        ids.iter().enumerate().for_each(|(place, &id)| assert_eq!(places.find(id), Some(place)));
        assert!((0..10_000).filter(|id| !ids.contains(id)).all(|id| places.find(id).is_none()));
    }
}
