//! The nodes among which a search with a filter walks.
//!
//! Such a search keeps passing nodes alone, so its beam is no wider than without a filter and leads
//! to the nearest passing nodes wherever they lie. From a node it goes to the neighbours that pass.
//! It also goes [through](through) some of the other neighbours, to those of their neighbours that
//! pass, as ACORN does (Patel et al., SIGMOD 2024, ACORN-1). It starts at passing nodes, drawn at
//! random.

use std::sync::OnceLock;

use tagore_device::random::{Draws, Stage};
use tagore_device::search::beam::passing::through;

use super::gpu::MAX_BEAM;
use super::options::Filter;
use crate::index::{Graph, Spots};
use crate::memory::{collected, collected_in_parallel};
use crate::vectors::Repeated;
use crate::{Index, Result};

/// Maximum number of passing nodes where a search starts.
pub(super) const ENTRIES: usize = 32;

/// Maximum number of ids that are drawn for them.
const DRAWS: u64 = 8192;

/// Where a walk goes from a node.
#[derive(Default)]
pub(super) struct Steps {
    pub found: Vec<u32>,
    /// Neighbours that do not pass.
    others: Vec<u32>,
}

/// The nodes of an index on which a search with a filter walks: those of passing rows.
pub(crate) struct Passing<'a> {
    filter: Filter<'a>,
    repeated: &'a Repeated,
    spots: Option<&'a Spots>,
    entries: [u32; ENTRIES],
    /// Ids of `entries` in use.
    count: usize,
    /// The share of rows that pass.
    share: f64,
    /// A bit per node, once a GPU has needed them; not if they are those of the filter's set.
    words: OnceLock<Vec<u64>>,
}

impl<'a> Passing<'a> {
    /// The nodes of `index` that pass, a `share` of all. None if too few rows pass to find one by
    /// chance.
    pub(super) fn new(filter: Filter<'a>, share: f64, index: &'a Index) -> Option<Self> {
        let (repeated, spots) = (index.repeated(), index.spots());
        let (entries, words) = ([0; ENTRIES], OnceLock::new());
        let mut passing = Self { filter, repeated, spots, entries, count: 0, share, words };
        let draws = Draws::new(0, Stage::Entry, 0, 0);
        for draw in 0..DRAWS {
            let node = repeated.first_of(draws.below(draw, index.len() as u64) as u32);
            let is_new = !passing.entries().contains(&node) && !index.is_left_out(node);
            if is_new && passing.contains(node) {
                passing.entries[passing.count] = node;
                passing.count += 1;
            }
            if passing.count == ENTRIES {
                break;
            }
        }
        (passing.count > 0).then_some(passing)
    }

    /// The beam of a walk that would have one of `beam` nodes without a filter, in a graph of this
    /// degree: wider where so few pass that a node leads to fewer nodes than its degree. No wider
    /// than a GPU has it.
    pub(super) fn beam(&self, beam: usize, degree: usize) -> usize {
        let thinned = 1.0 / (degree as f64 * self.share);
        if thinned <= 1.0 { beam } else { ((beam as f64 * thinned) as usize).min(MAX_BEAM.max(beam)) }
    }

    /// Whether a search walks on `node`: its row passes, or one that repeats it; or it represents a
    /// dense spot, whose rows may.
    pub(super) fn contains(&self, node: u32) -> bool {
        self.filter.passes(node)
            || !self.repeated.is_empty() && self.repeated.copies_of(node).any(|row| self.filter.passes(row))
            || self.spots.is_some_and(|spots| !spots.entries_of(node).is_empty())
    }

    /// The nodes that a search walks on, as bits: node i is bit i % 64 of word i / 64.
    ///
    /// # Errors
    /// If they exceed the memory.
    pub(super) fn words(&self, nodes: usize) -> Result<&[u64]> {
        let is_plain = self.repeated.is_empty() && self.spots.is_none();
        if let (Filter::Among(ids), true) = (self.filter, is_plain) {
            return Ok(ids.words());
        }
        if let Some(words) = self.words.get() {
            return Ok(words);
        }
        let words = self.make_words(nodes)?;
        Ok(self.words.get_or_init(|| words))
    }

    fn make_words(&self, nodes: usize) -> Result<Vec<u64>> {
        let mut words = match self.filter {
            Filter::Among(ids) => collected(ids.words().iter().copied())?,
            Filter::Accept(accepts) => {
                let word = |place: usize| {
                    let ids = (64 * place) as u32..nodes.min(64 * (place + 1)) as u32;
                    ids.fold(0, |word, id| word | u64::from(accepts(id)) << (id % 64))
                };
                collected_in_parallel(0..nodes.div_ceil(64), word)?
            }
        };
        let mut set = |node: u32| words[node as usize / 64] |= 1 << (node % 64);
        for (row, first) in self.repeated.pairs() {
            if self.filter.passes(row) {
                set(first);
            }
        }
        self.spots.into_iter().flat_map(Spots::all).for_each(|(node, _)| set(node));
        Ok(words)
    }

    /// Passing nodes where a search starts.
    pub(super) fn entries(&self) -> &[u32] {
        &self.entries[..self.count]
    }

    /// Fills `steps` with the nodes where a walk goes from a node whose neighbours are `ids`: those
    /// that pass, and neighbours of the others. `is_new` is asked about each of the others once; it
    /// returns false if the walk went through that node before, and so has visited its neighbours.
    pub(super) fn follow(
        &self,
        graph: &impl Graph,
        ids: &[u32],
        mut is_new: impl FnMut(u32) -> bool,
        steps: &mut Steps,
    ) {
        let Steps { found, others } = steps;
        found.clear();
        others.clear();
        for &id in ids {
            if self.contains(id) { found.push(id) } else { others.push(id) }
        }
        let through = through(found.len() as u32, others.len() as u32) as usize;
        for &id in others.iter().take(through) {
            if is_new(id) {
                found.extend(graph.neighbors(id).iter().copied().filter(|&id| self.contains(id)));
            }
        }
    }
}
