//! The rows that an index of an earlier state of its base leaves to one of the present state.

use rayon::prelude::*;
use tagore_device::key::NO_ID;

use crate::index::{Index, Layer, Layered, RANDOM_ENTRIES};
use crate::memory::{collected_in_parallel, filled};
use crate::prune::GraphRows;
use crate::{IdSet, Result};

/// Neighbours of a lost neighbour that become candidates, the first of its row: more hardly add to
/// what is found, and take time with their square.
const OF_GONE: usize = 16;

/// The index of an earlier state of a base, which had no more rows.
pub(super) struct Earlier<'a> {
    pub index: &'a Index,
    /// The rows of the base whose vectors the index does not know.
    pub fresh: &'a IdSet,
}

/// A graph whose nodes have the rows that an earlier index leaves them.
pub(super) struct KeptRows {
    pub rows: GraphRows,
    /// The nodes that lost neighbours, each with the neighbours of the lost ones as candidates.
    pub torn: Vec<(u32, Vec<u32>)>,
    /// The nodes without a row, ascending.
    pub fresh: Vec<u32>,
    /// Where searches of the kept rows start.
    pub start: Layered,
}

impl Earlier<'_> {
    /// The rows left to the `nodes` nodes of a graph with `degree` slots for each. `places` has the
    /// node of each row of the base, none (`u32::MAX`) if it is left out.
    pub(super) fn kept(&self, places: &[u32], nodes: usize, degree: usize) -> Result<KeptRows> {
        let Self { index, .. } = self;
        let names = self.names(places)?;
        let mut rows_of: Vec<u32> = filled(NO_ID, nodes)?;
        // Rows that have become equal are one node, with the neighbours of all.
        let mut joined: Vec<(u32, u32)> = Vec::new();
        for (row, &node) in (0..).zip(&names).filter(|&(_, &node)| node != NO_ID) {
            let first = &mut rows_of[node as usize];
            if *first == NO_ID { *first = row } else { joined.push((node, row)) }
        }
        joined.sort_unstable();

        let named = |row: u32| index.neighbors(row as usize).iter().map(|&id| names[id as usize]);
        let mut ids: Vec<u32> = filled(NO_ID, nodes * degree)?;
        let rows = ids.par_chunks_exact_mut(degree).zip(&rows_of).enumerate();
        let torn = rows.filter(|&(_, (_, &row))| row != NO_ID).filter_map(|(node, (slots, &row))| {
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
            let gone = index.neighbors(row as usize).iter().filter(|&&id| names[id as usize] == NO_ID);
            more.extend(gone.flat_map(|&id| named(id).take(OF_GONE)).filter(is_other));
            let place = joined.partition_point(|pair| pair.0 < node);
            let others = joined[place..].iter().take_while(|pair| pair.0 == node);
            more.extend(others.flat_map(|pair| named(pair.1)).filter(is_other));
            let is_whole = named(row).filter(|&id| id != node).count() == near.len();
            (!is_whole || !more.is_empty()).then_some((node, more))
        });
        let torn: Vec<(u32, Vec<u32>)> = torn.collect();
        let fresh = (0..nodes as u32).filter(|&node| rows_of[node as usize] == NO_ID).collect();
        let mut entries: Vec<u32> = index.entries().iter().map(|&entry| names[entry as usize]).collect();
        entries.retain(|&entry| entry != NO_ID);
        let mut layers: Vec<Layer> = index.layers().iter().map(|layer| layer.kept(&names)).collect();
        layers.retain(|layer| !layer.nodes().is_empty());
        if entries.is_empty() {
            // Any nodes of the highest layer, or of the graph.
            let known = || (0..nodes as u32).filter(|&node| rows_of[node as usize] != NO_ID);
            let highest = layers.last().map_or_else(|| known().collect(), |layer| layer.nodes().to_vec());
            entries = highest.into_iter().take(RANDOM_ENTRIES).collect();
        }
        let start = Layered { entries, layers, growth: index.start().growth };
        Ok(KeptRows { rows: GraphRows::from_padded(ids, degree)?, torn, fresh, start })
    }

    /// The node of each node of the earlier index; none (`u32::MAX`) if it is gone. One whose own
    /// row is gone lives on in a row that repeats it.
    fn names(&self, places: &[u32]) -> Result<Vec<u32>> {
        let Self { index, fresh } = self;
        let node_of = |row: u32| if fresh.contains(row) { NO_ID } else { places[row as usize] };
        collected_in_parallel((0..index.len() as u32).into_par_iter().map(|row| {
            if index.is_left_out(row) || index.repeated().contains(row) {
                return NO_ID;
            }
            let rows = std::iter::once(row).chain(index.repeated().copies_of(row));
            rows.map(node_of).find(|&node| node != NO_ID).unwrap_or(NO_ID)
        }))
    }
}
