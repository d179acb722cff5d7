//! The answer of a query, from the nearest nodes that a search found.
//!
//! A filter changes the answer and not the walk: the beam is wider, and the answer is the nearest
//! passing nodes in it. A beam holds the nearest of all nodes that the search visited, so a second
//! list of passing nodes would hold nothing nearer. Kernels need no filter, and a GPU gives the
//! CPU's bytes. Where too few nodes of the beam pass, exact search over the passing rows answers:
//! the fewer pass, the less it costs.

use tagore_device::key::{self, Key};

use super::options::{Filter, Search};
use crate::Index;
use crate::index::Spots;
use crate::vectors::Repeated;

/// The parts of a search that decide which of the nodes found are its answer.
#[derive(Clone, Copy)]
pub(super) struct Answer<'a> {
    k: usize,
    radius: f32,
    filter: Option<Filter<'a>>,
    repeated: &'a Repeated,
    spots: Option<&'a Spots>,
}

impl<'a> Answer<'a> {
    pub(super) fn new(search: &Search<'a>, index: &'a Index) -> Self {
        let Search { k, radius, filter, .. } = *search;
        Self { k, radius, filter, repeated: index.repeated(), spots: index.spots() }
    }

    /// Writes the answer to `rows`: the nearest `k` rows of the `nodes` of a beam that pass, by
    /// (distance, id), each with the rows that repeat it. Returns false if too few of the beam's
    /// `width` nodes pass to tell.
    pub(super) fn take(
        &self,
        nodes: impl ExactSizeIterator<Item = Key>,
        width: usize,
        rows: &mut Vec<Key>,
    ) -> bool {
        let passes = |id: u32| self.filter.is_none_or(|filter| filter.passes(id));
        rows.clear();
        let is_full = nodes.len() == width;
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
        let reaches_radius = || is_full && last.is_some_and(|bits| !self.is_within(bits << 32));
        let is_complete = self.filter.is_none() || rows.len() >= self.k || reaches_radius();
        rows.truncate(self.k);
        rows.truncate(rows.partition_point(|&key| self.is_within(key)));
        is_complete
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

    /// Whether the answer takes the whole beam: to find the rows that pass a filter, or dense
    /// spots.
    pub(super) fn takes_beam(&self) -> bool {
        self.filter.is_some() || self.spots.is_some()
    }

    /// Whether the search goes on in a dense spot that a node of the beam represents.
    pub(super) fn meets_spot(&self, nodes: &[Key]) -> bool {
        let is_met = |spots: &Spots| nodes.iter().any(|&key| !spots.entries_of(key as u32).is_empty());
        self.spots.is_some_and(is_met)
    }

    /// Whether the first `k` nodes are the answer.
    pub(super) fn is_plain(&self) -> bool {
        !self.takes_beam() && self.radius == f32::INFINITY && self.repeated.is_empty()
    }
}
