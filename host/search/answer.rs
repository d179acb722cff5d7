//! The answer of a query, from the nearest nodes that a search found.
//!
//! Under a filter these [pass](super::passing). Where a walk found fewer than k, exact search over
//! the passing rows answers.

use tagore_device::key::{self, Key};

use super::options::{Filter, Search};
use crate::index::Spots;
use crate::vectors::Repeated;
use crate::{IdSet, Index};

/// The parts of a search that decide which of the nodes found are its answer.
#[derive(Clone, Copy)]
pub(super) struct Answer<'a> {
    k: usize,
    /// Rows that a search finds unless its walk ends early, as where the graph falls apart.
    wanted: usize,
    radius: f32,
    filter: Option<Filter<'a>>,
    repeated: &'a Repeated,
    spots: Option<&'a Spots>,
}

impl<'a> Answer<'a> {
    pub(super) fn new(search: &Search<'a>, index: &'a Index) -> Self {
        let Search { k, radius, filter, .. } = *search;
        let rows = match filter {
            None => index.len() - index.left_out().map_or(0, IdSet::len),
            Some(Filter::Among(ids)) => ids.len(),
            // Not known.
            Some(Filter::Accept(_)) => k,
        };
        Self { k, wanted: k.min(rows), radius, filter, repeated: index.repeated(), spots: index.spots() }
    }

    /// Writes the answer to `rows`: the nearest `k` rows of `nodes` that pass, by (distance, id),
    /// each with the rows that repeat it. Returns whether the search found as many as there are,
    /// near or beyond the radius.
    pub(super) fn take(&self, nodes: impl Iterator<Item = Key>, rows: &mut Vec<Key>) -> bool {
        let passes = |id: u32| self.filter.is_none_or(|filter| filter.passes(id));
        rows.clear();
        let mut last = None;
        for key in nodes.take_while(|&key| key != key::NONE) {
            // Rows at the same distance as the last one may have smaller ids.
            if rows.len() >= self.k && last != Some(key >> 32) {
                break;
            }
            last = Some(key >> 32);
            if passes(key as u32) {
                rows.push(key);
            }
            if !self.repeated.is_empty() {
                let copies = self.repeated.copies_of(key as u32).filter(|&row| passes(row));
                rows.extend(copies.take(self.k).map(|row| key >> 32 << 32 | Key::from(row)));
            }
        }
        if !self.repeated.is_empty() {
            rows.sort_unstable();
        }
        let is_complete = rows.len() >= self.wanted;
        rows.truncate(self.k);
        rows.truncate(rows.partition_point(|&key| self.is_within(key)));
        is_complete
    }

    /// Whether a search whose nodes are its answer found as many as there are.
    pub(super) fn is_complete(&self, nodes: &[Key]) -> bool {
        self.wanted == 0 || nodes.get(self.wanted - 1).is_some_and(|&key| key != key::NONE)
    }

    /// Calls `with` with every id below `n` that passes, ascending.
    pub(super) fn each_passing(&self, n: usize, with: impl FnMut(u32)) {
        self.filter.unwrap_or(Filter::Accept(&|_| true)).each(n, with);
    }

    /// Whether a key is one of a row within the radius.
    pub(super) fn is_within(&self, key: Key) -> bool {
        key != key::NONE && key::distance(key) <= self.radius
    }

    /// Rows per query.
    pub(super) fn k(&self) -> usize {
        self.k
    }

    /// Whether the answer takes the whole beam, to find dense spots.
    pub(super) fn takes_beam(&self) -> bool {
        self.spots.is_some()
    }

    /// Whether the search goes on in a dense spot: one that a node of the beam represents, or one
    /// that is walked always.
    pub(super) fn meets_spot(&self, nodes: &[Key]) -> bool {
        self.spots.is_some_and(|spots| spots.are_met_by(nodes.iter().map(|&key| key as u32)))
    }

    /// Whether the first `k` nodes are the answer.
    pub(super) fn is_plain(&self) -> bool {
        !self.takes_beam() && self.radius == f32::INFINITY && self.repeated.is_empty()
    }
}
