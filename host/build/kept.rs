//! The rows that an index of an earlier state of its base leaves to one of the present state.

use tagore_device::key::NO_ID;

use crate::index::{Index, Layer, Layered, RANDOM_ENTRIES};
use crate::loops::{gather, numbered, rows_mut};
use crate::memory::{collected_in_parallel, filled};
use crate::prune::GraphRows;
use crate::{IdSet, Result};

/// Neighbours of a lost neighbour that become candidates, the first of its row: more hardly add to
/// what is found, and take time with their square.
const OF_GONE: usize = 16;

/// Indexes of parts of a base, or of an earlier state of it.
pub(super) struct Earlier<'a> {
    /// Searches start in the first.
    pub parts: Vec<Part<'a>>,
    /// The rows of the base whose vectors no index knows.
    pub fresh: &'a IdSet,
}

/// An index of rows of a base that follow one another.
#[derive(Clone, Copy)]
pub(super) struct Part<'a> {
    pub index: &'a Index,
    /// The first of the rows.
    pub first: u32,
}

/// A row of a part.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct RowOf {
    part: u32,
    row: u32,
}

/// A graph whose nodes have the rows that earlier indexes leave them.
pub(super) struct KeptRows {
    pub rows: GraphRows,
    /// The nodes that lost neighbours, each with the neighbours of the lost ones as candidates.
    pub torn: Vec<(u32, Vec<u32>)>,
    /// The nodes of each part after the first that no part before it has, ascending. No edge leads
    /// to them from the parts before, but from nodes of equal rows.
    pub joining: Vec<Vec<u32>>,
    /// The nodes without a row, ascending.
    pub fresh: Vec<u32>,
    /// Where searches of the first part start.
    pub start: Layered,
}

impl Earlier<'_> {
    /// The rows left to the `nodes` nodes of a graph with `degree` slots for each. `places` has the
    /// node of each row of the base, none (`u32::MAX`) if it is left out.
    pub(super) fn kept(&self, places: &[u32], nodes: usize, degree: usize) -> Result<KeptRows> {
        let Self { parts, fresh } = self;
        let names = parts.iter().map(|part| part.names(places, fresh)).collect::<Result<Vec<_>>>()?;
        const NO_ROW: RowOf = RowOf { part: NO_ID, row: NO_ID };
        let mut rows_of: Vec<RowOf> = filled(NO_ROW, nodes)?;
        // Rows that have become equal are one node, with the neighbours of all.
        let mut joined: Vec<(u32, RowOf)> = Vec::new();
        let mut joining: Vec<Vec<u32>> = vec![Vec::new(); parts.len()];
        for (part, names) in (0..).zip(&names) {
            for (row, &node) in (0..).zip(names).filter(|&(_, &node)| node != NO_ID) {
                let (first, row) = (&mut rows_of[node as usize], RowOf { part, row });
                if *first == NO_ROW {
                    *first = row;
                    joining[part as usize].push(node);
                } else {
                    joined.push((node, row));
                }
            }
        }
        joined.sort_unstable();
        joining.iter_mut().for_each(|nodes| nodes.sort_unstable());

        let neighbors = |at: RowOf| parts[at.part as usize].index.neighbors(at.row as usize);
        let name = |at: RowOf, id: u32| names[at.part as usize][id as usize];
        let named = |at: RowOf| neighbors(at).iter().map(move |&id| name(at, id));
        let mut ids: Vec<u32> = filled(NO_ID, nodes * degree)?;
        let rows = numbered((rows_mut(&mut ids, degree), &rows_of[..]));
        let torn = gather(rows, |(node, (slots, &row)), torn| {
            if row == NO_ROW {
                return;
            }
            let node = node as u32;
            let is_other = |&id: &u32| id != NO_ID && id != node;
            let (mut near, mut more): (Vec<u32>, Vec<u32>) = (Vec::new(), Vec::new());
            for id in named(row).filter(is_other) {
                // Rows that have become equal are one neighbour.
                if near.len() < degree && (joined.is_empty() || !near.contains(&id)) {
                    near.push(id)
                } else {
                    more.push(id)
                }
            }
            slots[..near.len()].copy_from_slice(&near);
            let gone = neighbors(row).iter().filter(|&&id| name(row, id) == NO_ID);
            let of_gone = gone.flat_map(|&id| named(RowOf { row: id, ..row }).take(OF_GONE));
            more.extend(of_gone.filter(is_other));
            let place = joined.partition_point(|pair| pair.0 < node);
            let others = joined[place..].iter().take_while(|pair| pair.0 == node);
            more.extend(others.flat_map(|pair| named(pair.1)).filter(is_other));
            let is_whole = named(row).filter(|&id| id != node).count() == near.len();
            torn.extend((!is_whole || !more.is_empty()).then_some((node, more)));
        });
        let is_known = |&node: &u32| rows_of[node as usize] != NO_ROW;
        let fresh = (0..nodes as u32).filter(|node| !is_known(node)).collect();
        let (index, names) = (parts[0].index, &names[0]);
        let mut entries: Vec<u32> = index.entries().iter().map(|&entry| names[entry as usize]).collect();
        entries.retain(|&entry| entry != NO_ID);
        let mut layers: Vec<Layer> = index.layers().iter().map(|layer| layer.kept(names)).collect();
        layers.retain(|layer| !layer.nodes().is_empty());
        if entries.is_empty() {
            // Any nodes of the highest layer, or of the graph.
            let highest = layers.last().map_or(&joining[0][..], Layer::nodes);
            entries = highest.iter().copied().take(RANDOM_ENTRIES).collect();
        }
        let start = Layered { entries, layers, growth: index.start().growth };
        joining.remove(0);
        Ok(KeptRows { rows: GraphRows::from_padded(ids, degree)?, torn, joining, fresh, start })
    }
}

impl Part<'_> {
    /// The rows of the index that are not left out.
    pub(super) fn live(&self) -> usize {
        self.index.len() - self.index.left_out().map_or(0, IdSet::len)
    }

    /// The node of each node of the index; none (`u32::MAX`) if it is gone. One whose own
    /// row is gone lives on in a row that repeats it.
    fn names(&self, places: &[u32], fresh: &IdSet) -> Result<Vec<u32>> {
        let &Self { index, first } = self;
        let node_of = |row: u32| match first + row {
            row if fresh.contains(row) => NO_ID,
            row => places[row as usize],
        };
        collected_in_parallel(0..index.len() as u32, |row| {
            if index.is_left_out(row) || index.repeated().contains(row) {
                return NO_ID;
            }
            let rows = std::iter::once(row).chain(index.repeated().copies_of(row));
            rows.map(node_of).find(|&node| node != NO_ID).unwrap_or(NO_ID)
        })
    }
}
