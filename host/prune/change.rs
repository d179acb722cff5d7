//! Changes of a pruned graph: rows that lost neighbours are filtered again, and nodes are added.
//!
//! Both are steps of Collect-Filter-Store for some of the nodes. Candidates come from the graph
//! itself. A row that lost neighbours gets the neighbours of the lost ones (Singh et al.,
//! *FreshDiskANN*, 2021). A new node gets the nodes that a search for it finds.

use rayon::prelude::*;
use tagore_device::key::{self, Key};

use super::filter::Pruner;
use super::rows::GraphRows;
use super::strategy::{Store, Strategy};
use crate::loops::{map_with, try_map_with};
use crate::vectors::space::Space;
use crate::{Progress, Result};

/// Changes rows of a graph over the rows of `space`. Results do not depend on the number of
/// threads.
#[derive(Clone, Copy)]
pub(crate) struct RowChanges<'a> {
    pub space: &'a Space<'a>,
    pub strategy: &'a Strategy,
    pub progress: &'a Progress,
    /// Edges whose detours are counted, the nearest ones, beyond those that are chosen: counting
    /// takes time with the square of the edges.
    pub more: usize,
}

/// An edge that a new node offers to one of its neighbours, ordered by this neighbour and the rank.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Offer {
    to: u32,
    /// The place in the row of the source if detours are counted, else the order distance.
    rank: u32,
    /// The order distance and the source.
    key: Key,
}

/// Scratch memory of one thread.
struct Scratch<'a> {
    pruner: Pruner<'a>,
    distances: Vec<f32>,
    edges: Vec<Key>,
    accepted: Vec<Key>,
}

impl<'a> Scratch<'a> {
    fn new(&RowChanges { space, strategy, .. }: &RowChanges<'a>) -> Self {
        let pruner = Pruner::new(space, None, strategy);
        Self { pruner, distances: Vec::new(), edges: Vec::new(), accepted: Vec::new() }
    }
}

/// The edges from `node` to `ids` as keys of order distances, in the order of the ids.
fn keys_to<'s>(
    space: &Space<'_>,
    node: u32,
    ids: &'s [u32],
    distances: &'s mut Vec<f32>,
) -> impl Iterator<Item = Key> + 's {
    space.order_distances(node, ids, distances);
    ids.iter().zip(&*distances).map(|(&id, &distance)| key::pack(distance, id))
}

impl RowChanges<'_> {
    /// Filters the row of each of `nodes` again, with more candidates, which may repeat and hold
    /// the node itself.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn mend(&self, rows: &mut GraphRows, nodes: &[(u32, Vec<u32>)]) -> Result<()> {
        self.rewrite(rows, nodes, |scratch, rows, (node, candidates)| {
            self.collect(scratch, *node, &[rows.row(*node), candidates]);
            // Detours tell good edges of both halves of a row.
            let Strategy { degree, store, .. } = *self.strategy;
            let is_whole = store == Store::Refilter || self.strategy.counts_detours();
            let most = if is_whole { degree } else { degree.div_ceil(2) };
            let counted = if self.strategy.counts_detours() { self.more } else { usize::MAX };
            let mut ids = self.filter_edges(scratch, *node, most, most.saturating_add(counted));
            match store {
                Store::Interleave => self.fill_back(&mut ids, scratch, rows, *node),
                Store::Refilter => self.fill_mutual(&mut ids, scratch, rows, *node),
            }
            (*node, ids)
        })
    }

    /// Filters the rows of `nodes` of a part that joins, with the candidates found for each.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn join(&self, rows: &mut GraphRows, nodes: &[(u32, Vec<u32>)]) -> Result<()> {
        match self.strategy.store {
            Store::Interleave => self.mend(rows, nodes),
            // Edges back come later, from the nodes on the other side.
            Store::Refilter => self.choose(rows, nodes),
        }
    }

    /// Filters the neighbours of each of `nodes` together with its candidates, which may repeat and
    /// hold the node itself.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn choose(&self, rows: &mut GraphRows, nodes: &[(u32, Vec<u32>)]) -> Result<()> {
        self.rewrite(rows, nodes, |scratch, rows, (node, candidates)| {
            self.collect(scratch, *node, &[rows.row(*node), candidates]);
            (*node, self.filter_edges(scratch, *node, self.strategy.degree, usize::MAX))
        })
    }

    /// Gives the neighbours of each of `nodes` an edge back: a row that has no slot for its edges
    /// is filtered again. Only nodes that `takes` accepts get one.
    ///
    /// # Errors
    /// If the work is cancelled.
    pub(crate) fn offer(
        &self,
        rows: &mut GraphRows,
        nodes: &[u32],
        takes: impl Fn(u32) -> bool + Sync,
    ) -> Result<()> {
        let by_place = self.strategy.counts_detours();
        let offers_of = |distances: &mut Vec<f32>, &node: &u32| {
            let keys = keys_to(self.space, node, rows.row(node), distances).zip(0..);
            let offer = |(edge, place): (Key, u32)| Offer {
                to: edge as u32,
                rank: if by_place { place } else { (edge >> 32) as u32 },
                key: edge >> 32 << 32 | Key::from(node),
            };
            keys.map(offer).filter(|offer| takes(offer.to)).collect::<Vec<_>>()
        };
        let mut offers = map_with(nodes, Vec::new, offers_of).concat();
        offers.par_sort_unstable();
        let groups: Vec<&[Offer]> = offers.chunk_by(|a, b| a.to == b.to).collect();
        self.rewrite(rows, &groups, |scratch, rows, offers| {
            (offers[0].to, self.row_with(scratch, rows, offers))
        })
    }

    /// Gives nodes other rows: `row_of` makes each from the rows before.
    fn rewrite<T: Sync>(
        &self,
        rows: &mut GraphRows,
        changes: &[T],
        row_of: impl Fn(&mut Scratch<'_>, &GraphRows, &T) -> (u32, Vec<u32>) + Sync,
    ) -> Result<()> {
        let row_of = |scratch: &mut Scratch<'_>, change: &T| {
            self.progress.check()?;
            Ok(row_of(scratch, rows, change))
        };
        let changed = try_map_with(changes, || Scratch::new(self), row_of)?;
        changed.iter().for_each(|(node, ids)| rows.set(*node, ids));
        Ok(())
    }

    /// Collects the edges from `node` to the ids of `lists` in `scratch`.
    fn collect(&self, Scratch { distances, edges, .. }: &mut Scratch<'_>, node: u32, lists: &[&[u32]]) {
        edges.clear();
        for ids in lists {
            edges.extend(keys_to(self.space, node, ids, distances));
        }
        edges.retain(|&key| key as u32 != node);
    }

    /// The new row of the node that these `offers` are for.
    fn row_with(&self, scratch: &mut Scratch<'_>, rows: &GraphRows, offers: &[Offer]) -> Vec<u32> {
        let Self { space, strategy, .. } = self;
        let Scratch { distances, edges, .. } = scratch;
        let (node, degree) = (offers[0].to, strategy.degree);
        let row = rows.row(node);
        let new: Vec<Offer> = offers.iter().copied().filter(|o| !row.contains(&(o.key as u32))).collect();
        if row.len() + new.len() <= degree {
            return row.iter().copied().chain(new.iter().map(|offer| offer.key as u32)).collect();
        }
        edges.clear();
        edges.extend(keys_to(space, node, row, distances));
        let old = edges.clone();
        edges.extend(new.iter().map(|offer| offer.key));
        let half = degree.div_ceil(2);
        if strategy.store == Store::Refilter {
            let mut ids = self.filter_edges(scratch, node, degree, usize::MAX);
            self.fill_mutual(&mut ids, scratch, rows, node);
            return ids;
        }
        if !strategy.counts_detours() {
            // DPG's filter asks for directions alone, and would choose the farthest reverse edges.
            let mut ids = self.filter_edges(scratch, node, half, half + half / 3);
            self.fill_back(&mut ids, scratch, rows, node);
            return ids;
        }
        // Reverse edges follow by rank: the second half of a row is in this order. The rest of the
        // first half comes last.
        let mut ids = self.filter_edges(scratch, node, half, half.saturating_add(self.more));
        let rank_of = |(place, &key): (usize, &Key)| ((place - half) as u32, key as u32);
        let mut others: Vec<(u32, u32)> = old.iter().enumerate().skip(half).map(rank_of).collect();
        others.extend(new.iter().map(|offer| (offer.rank, offer.key as u32)));
        others.sort_by_key(|&(rank, _)| rank);
        let first = old.iter().take(half).map(|&key| key as u32);
        self.fill(&mut ids, others.into_iter().map(|(_, id)| id).chain(first));
        ids
    }

    /// The first `most` edges that the filter accepts among the nearest `pool` edges of `node` in
    /// `scratch`, which it sorts.
    fn filter_edges(&self, scratch: &mut Scratch<'_>, node: u32, most: usize, pool: usize) -> Vec<u32> {
        let Scratch { pruner, edges, accepted, .. } = scratch;
        edges.sort_unstable();
        edges.dedup();
        let pool = &edges[..edges.len().min(self.strategy.candidates).min(pool)];
        pruner.filter(node, pool, most, accepted);
        accepted.iter().map(|&key| key as u32).collect()
    }

    /// Fills a row up with those of `others` that it lacks.
    fn fill(&self, row: &mut Vec<u32>, others: impl Iterator<Item = u32>) {
        for id in others {
            if row.len() < self.strategy.degree && !row.contains(&id) {
                row.push(id);
            }
        }
    }

    /// Fills the row of `node` up with edges of `scratch`: those back to nodes that have chosen it
    /// first, nearest first.
    fn fill_back(&self, row: &mut Vec<u32>, scratch: &Scratch<'_>, rows: &GraphRows, node: u32) {
        let ids = || scratch.edges.iter().map(|&key| key as u32);
        let half = |id: u32| rows.row(id).iter().take(self.strategy.degree.div_ceil(2));
        self.fill(row, ids().filter(|&id| half(id).any(|&chosen| chosen == node)));
        self.fill(row, ids());
    }

    /// Fills the row of `node` up with edges of `scratch` that lead both ways. Rows with a slot
    /// take such edges unfiltered; without them rows would shrink each time they are filtered.
    fn fill_mutual(&self, row: &mut Vec<u32>, scratch: &Scratch<'_>, rows: &GraphRows, node: u32) {
        let ids = scratch.edges.iter().map(|&key| key as u32);
        self.fill(row, ids.filter(|&id| rows.row(id).contains(&node)));
    }
}
