//! Joins parts that have graphs of their own to the graph of the parts before them.
//!
//! A node of the joining part gets the nearest nodes of the graph as more candidates for its row,
//! and its neighbours take edges back. Most searches are short: nodes near to each other have
//! neighbours near to each other, so a search begins at what was found for a neighbour in the own
//! part. A sample of the nodes is searched for from the entry points, then the nodes with an edge
//! to one of these, and so on.

use super::kept::KeptRows;
use crate::Result;
use crate::loops::{map, map_with, try_map};
use crate::progress::StageProgress;
use crate::prune::change::RowChanges;
use crate::prune::reach::NodeSearches;
use crate::prune::{GraphRows, Store};

/// Where no neighbour of a node has been searched for, one node in this many is searched for from
/// the entry points.
const ONE_IN: usize = 16;

/// The beam of a search from the nodes found for neighbours, and the candidates of a node: of a
/// kind that filters all edges of a row together, and of one that takes half of them by rank. With
/// more the latter finds no more.
const WIDTHS: [usize; 2] = [48, 20];

/// One in this many of the nodes for which no near node was found is searched for again from the
/// entry points.
const ONE_LOST_IN: usize = 4;

/// Neighbours whose nodes found start a search, and how many of each.
const NEIGHBORS: usize = 3;
const OF_EACH: usize = 4;

/// The nodes found for each node of a joining part, nearest first; none yet for the others.
struct Found<'a> {
    changes: &'a RowChanges<'a>,
    width: usize,
    rows: &'a GraphRows,
    searches: NodeSearches<'a>,
    /// Whether a node is in the graph that the part joins.
    is_joined: &'a [bool],
    lists: Vec<Vec<u32>>,
}

/// Joins each part of `kept` in turn. The result does not depend on the number of threads.
///
/// # Errors
/// If the work is cancelled.
pub(super) fn join_parts(
    changes: &RowChanges<'_>,
    kept: &mut KeptRows,
    stage: &StageProgress<'_>,
) -> Result<()> {
    let changes = &RowChanges { more: changes.strategy.degree / 4, ..*changes };
    let KeptRows { rows, joining, start, .. } = kept;
    let [of_refilter, of_interleave] = WIDTHS;
    let width = if changes.strategy.store == Store::Refilter { of_refilter } else { of_interleave };
    let mut is_joined = vec![true; rows.len()];
    joining.iter().flatten().for_each(|&node| is_joined[node as usize] = false);
    let mut lists = vec![Vec::new(); rows.len()];
    for nodes in joining.iter() {
        let searches = NodeSearches::new(changes.space, start.start());
        let mut found = Found { changes, width, rows, searches, is_joined: &is_joined, lists };
        found.search_from_neighbors(nodes.clone())?;
        // Where the first search of a neighbourhood went astray, all others did.
        let lost = found.lost(nodes);
        lost.iter().for_each(|&node| found.lists[node as usize].clear());
        let (first, others) = Found::every(lost, ONE_LOST_IN);
        found.search_from_start(&first);
        found.search_from_neighbors(others)?;
        lists = found.lists;
        let mut take = |&node: &u32| (node, std::mem::take(&mut lists[node as usize]));
        let candidates: Vec<(u32, Vec<u32>)> = nodes.iter().map(&mut take).collect();
        changes.join(rows, &candidates)?;
        changes.offer(rows, nodes, |id| is_joined[id as usize])?;
        nodes.iter().for_each(|&node| is_joined[node as usize] = true);
        stage.advance(nodes.len() as u64)?;
    }
    Ok(())
}

impl Found<'_> {
    /// Searches for all of `waiting`: for each from what was found for neighbours, for some from
    /// the entry points where nothing was found yet.
    fn search_from_neighbors(&mut self, mut waiting: Vec<u32>) -> Result<()> {
        while !waiting.is_empty() {
            let starts = map(&waiting[..], |&node| self.start_of(node));
            let (ready, unready): (Vec<_>, Vec<_>) =
                waiting.into_iter().zip(starts).partition(|(_, start)| !start.is_empty());
            waiting = unready.into_iter().map(|(node, _)| node).collect();
            let search = |(node, start): &(u32, Vec<u32>)| {
                self.changes.progress.check()?;
                Ok(self.searches.nearest_from(self.rows, *node, start, self.width))
            };
            let near = try_map(&ready[..], search)?;
            for ((node, _), near) in ready.iter().zip(near) {
                self.lists[*node as usize] = near;
            }
            if ready.is_empty() {
                let (first, others) = Self::every(waiting, ONE_IN);
                self.search_from_start(&first);
                waiting = others;
            }
        }
        Ok(())
    }

    /// Every node in `one_in` of `nodes`, and the others.
    fn every(nodes: Vec<u32>, one_in: usize) -> (Vec<u32>, Vec<u32>) {
        let (first, others): (Vec<_>, Vec<_>) =
            nodes.into_iter().enumerate().partition(|(place, _)| place % one_in == 0);
        let nodes = |places: Vec<(usize, u32)>| places.into_iter().map(|(_, node)| node).collect();
        (nodes(first), nodes(others))
    }

    /// Searches for `nodes` from the entry points.
    fn search_from_start(&mut self, nodes: &[u32]) {
        for (&node, mut near) in nodes.iter().zip(self.searches.nearest(self.rows, nodes)) {
            near.truncate(self.width);
            self.lists[node as usize] = near;
        }
    }

    /// The nodes for which none was found as near as a neighbour.
    fn lost(&self, nodes: &[u32]) -> Vec<u32> {
        let space = self.changes.space;
        let is_lost = |distances: &mut Vec<f32>, &node: &u32| {
            let first = self.lists[node as usize].first();
            let ids: Vec<u32> = first.into_iter().chain(self.rows.row(node)).copied().collect();
            space.list_distances(space.query(node), &ids, distances);
            distances.split_first().is_some_and(|(first, near)| near.iter().all(|near| first > near))
        };
        let is_lost = map_with(nodes, Vec::new, is_lost);
        nodes.iter().zip(is_lost).filter(|(_, is_lost)| *is_lost).map(|(&node, _)| node).collect()
    }

    /// Where a search for `node` starts: at what was found for its first neighbours; empty if
    /// nothing was yet.
    fn start_of<'s>(&'s self, node: u32) -> Vec<u32> {
        let near = |id: &'s u32| -> &'s [u32] {
            match &self.lists[*id as usize] {
                found if !found.is_empty() => &found[..found.len().min(OF_EACH)],
                _ if self.is_joined[*id as usize] => std::slice::from_ref(id),
                _ => &[],
            }
        };
        let mut start = Vec::with_capacity(NEIGHBORS * OF_EACH);
        let lists = self.rows.row(node).iter().map(near).filter(|list| !list.is_empty());
        for &id in lists.take(NEIGHBORS).flatten() {
            if !start.contains(&id) {
                start.push(id);
            }
        }
        start
    }
}
