//! Beam search on codes of edges, on the CPU: `device/src/search/beam/on_edges.rs`, step by step.

use tagore_device::key::{self, Key, NONE};
use tagore_device::search::beam::list::{EXPANDED, Slot, id, slot};
use tagore_device::search::beam::on_edges::EDGE_THREADS;
use tagore_device::search::edges::{PLANES, estimate, product, row_words, slots, weighed, words};

use super::{EdgeCodes, QueryCode};
use crate::index::Index;
use crate::search::beam::{BeamSearch, BeamTask};
use crate::search::visited::Visited;
use crate::vectors::space::Space;

/// Slots of edges that a processor takes together.
const TOGETHER: usize = 16;

/// An index, its base, and the codes of its edges.
#[derive(Clone, Copy)]
pub(in crate::search) struct OnEdges<'a> {
    pub space: &'a Space<'a>,
    pub index: &'a Index,
    pub codes: &'a EdgeCodes,
    /// [`EdgeCodes::rows`].
    pub rows: &'a [u32],
}

/// The buffers of a search, made once per thread and reused.
#[derive(Default)]
pub(in crate::search) struct EdgeWalk {
    code: QueryCode,
    /// The nearest nodes by estimates, ascending.
    beam: Vec<Slot>,
    /// The nearest nodes expanded, by their distances, ascending.
    nearest: Vec<Key>,
    estimates: Vec<f32>,
    /// The slots that a step offers, and what they replace.
    offered: Vec<(Slot, Slot)>,
    distances: Vec<f32>,
    computed: u64,
}

impl EdgeWalk {
    /// Finds the `kept` nodes nearest to the query, nearest first: at least as many as the rank of
    /// the stop.
    pub(in crate::search) fn run(
        &mut self,
        on: OnEdges<'_>,
        search: &mut BeamSearch,
        task: BeamTask<'_>,
        kept: usize,
    ) -> &[Key] {
        self.dispatch(on, search, task, kept);
        &self.nearest
    }

    fn dispatch(&mut self, on: OnEdges<'_>, search: &mut BeamSearch, task: BeamTask<'_>, kept: usize) {
        #[cfg(target_arch = "x86_64")]
        {
            let has_avx512 = is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl");
            let has_avx512 = has_avx512 && is_x86_feature_detected!("avx512dq");
            if has_avx512 && is_x86_feature_detected!("avx512vpopcntdq") {
                // SAFETY: the processor has the features that the function is compiled for;
                // avx512bw implies avx512f.
                return unsafe { x86::avx512(self, on, search, task, kept) };
            }
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has the features that the function is compiled for.
                return unsafe { x86::avx2(self, on, search, task, kept) };
            }
        }
        self.walk(on, search, task, kept);
    }

    #[inline(always)]
    fn walk(&mut self, on: OnEdges<'_>, search: &mut BeamSearch, task: BeamTask<'_>, kept: usize) {
        let OnEdges { space, index, codes, rows } = on;
        let BeamTask { query, limits, .. } = task;
        search.begin(space, task, &mut |_| ());
        self.beam.clear();
        self.beam.extend(search.found().map(slot));
        self.nearest.clear();
        let held = search.no_nodes();
        self.beam.iter().for_each(|&slot| _ = held.insert(id(slot)));
        codes.query(query, &mut self.code);
        let norm = if limits.stop.takes_norm() { space.norm(query) } else { 0.0 };
        let stop = limits.stop.of_query(norm);
        let width = row_words(space.dim() as u32, index.max_degree() as u32) as usize;
        self.estimates.resize(slots(index.max_degree() as u32) as usize, 0.0);
        let mut cursor = 0;
        while let Some(next) = self.beam[cursor..].iter().position(|slot| slot & EXPANDED == 0) {
            let current = cursor + next;
            let at_rank = self.nearest.get(stop.rank as usize).copied().unwrap_or(NONE);
            if self.beam[current] > stop.last((at_rank >> 32) as u32) {
                break;
            }
            self.beam[current] |= EXPANDED;
            let node = id(self.beam[current]);
            let (row, ids) = (&rows[node as usize * width..][..width], index.neighbors(node as usize));
            space.list_distances(query, &[node], &mut self.distances);
            self.computed += 1;
            let distance = self.distances[0];
            self.keep(key::pack(distance, node), kept);
            estimate_all(row, space.dim(), &self.code, distance, &mut self.estimates);
            let mut lowest = usize::MAX;
            for (number, ids) in ids.chunks(EDGE_THREADS as usize).enumerate() {
                self.offer(number * EDGE_THREADS as usize, ids, limits.beam, held);
                for number in 0..self.offered.len() {
                    let (slot, old) = self.offered[number];
                    lowest = lowest.min(self.replace(slot, old, limits.beam, held));
                }
            }
            cursor = if lowest <= current { lowest } else { current + 1 };
        }
    }

    /// Distances computed by all searches so far.
    pub(in crate::search) fn computed(&self) -> u64 {
        self.computed
    }

    /// Inserts a node in the nearest `kept`, unless it is there.
    fn keep(&mut self, key: Key, kept: usize) {
        let Err(place) = self.nearest.binary_search(&key) else { return };
        if self.nearest.len() == kept {
            if place == kept {
                return;
            }
            self.nearest.pop();
        }
        self.nearest.insert(place, key);
    }

    /// Collects what the edges from `first` on, which lead to `ids`, change in a beam of `width`
    /// nodes: a node gets the least of its estimates unless it was expanded and is in the beam.
    #[inline(always)]
    fn offer(&mut self, first: usize, ids: &[u32], width: usize, held: &Visited) {
        let worst = if self.beam.len() == width { self.beam[width - 1] } else { NONE };
        self.offered.clear();
        for (&estimate, &id) in self.estimates[first..].iter().zip(ids) {
            let slot = slot(key::pack(estimate, id));
            if slot < worst {
                let old = self.old(slot, held);
                if slot < old {
                    self.offered.push((slot, old));
                }
            }
        }
    }

    /// The slot that a node with an estimate would replace in the beam: none, [`NONE`], if the
    /// beam does not hold it, and 0 if it was expanded.
    #[inline(always)]
    fn old(&self, slot: Slot, held: &Visited) -> Slot {
        if !held.contains(id(slot)) {
            return NONE;
        }
        match place_of(id(slot), &self.beam).map(|place| self.beam[place]) {
            Some(old) if old & EXPANDED != 0 => 0,
            old => old.unwrap_or(NONE),
        }
    }

    /// Inserts a slot in place of `old`, if the beam holds that, or else of the last one, if it is
    /// full. Returns its place, or `usize::MAX`.
    #[inline(always)]
    fn replace(&mut self, slot: Slot, old: Slot, width: usize, held: &mut Visited) -> usize {
        let place_of_old = self.beam.partition_point(|&here| here < old);
        if self.beam.get(place_of_old) == Some(&old) {
            self.beam.remove(place_of_old);
        } else if self.beam.len() == width {
            if self.beam.last().is_some_and(|&last| slot >= last) {
                return usize::MAX;
            }
            self.beam.pop().into_iter().for_each(|dropped| held.remove(id(dropped)));
        }
        held.insert(id(slot));
        let place = self.beam.partition_point(|&here| here < slot);
        self.beam.insert(place, slot);
        place
    }
}

/// A walk compiled for the instruction sets that it profits from.
#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{BeamSearch, BeamTask, EdgeWalk, OnEdges};

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vpopcntdq")]
    pub(super) fn avx512(
        walk: &mut EdgeWalk,
        on: OnEdges<'_>,
        search: &mut BeamSearch,
        task: BeamTask<'_>,
        kept: usize,
    ) {
        walk.walk(on, search, task, kept);
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn avx2(
        walk: &mut EdgeWalk,
        on: OnEdges<'_>,
        search: &mut BeamSearch,
        task: BeamTask<'_>,
        kept: usize,
    ) {
        walk.walk(on, search, task, kept);
    }
}

/// The place of a node in a beam.
#[inline(always)]
fn place_of(node: u32, beam: &[Slot]) -> Option<usize> {
    let is_here = |&slot: &Slot| id(slot) == node;
    // A processor compares a chunk at once.
    let chunk =
        beam.chunks(TOGETHER).position(|chunk| chunk.iter().fold(false, |any, slot| any | is_here(slot)))?;
    let first = chunk * TOGETHER;
    Some(first + beam[first..].iter().position(is_here)?)
}

/// Estimates the distances of the neighbours of a node at distance `from`, by its row of codes.
#[inline(always)]
pub(super) fn estimate_all(row: &[u32], dim: usize, code: &QueryCode, from: f32, out: &mut [f32]) {
    let (words, slots) = (words(dim as u32) as usize, out.len());
    for (group, out) in out.as_chunks_mut::<TOGETHER>().0.iter_mut().enumerate() {
        let at = |word: usize| row[word * slots + group * TOGETHER..].first_chunk::<TOGETHER>();
        let mut ones = [0; TOGETHER];
        for (word, planes) in code.planes.as_chunks::<{ PLANES as usize }>().0.iter().enumerate() {
            let Some(bits) = at(word) else { return };
            for (plane, &of_query) in planes.iter().enumerate() {
                for (ones, bits) in ones.iter_mut().zip(bits) {
                    *ones += weighed((bits & of_query).count_ones(), plane as u32);
                }
            }
        }
        let (Some(factors), Some(offsets)) = (at(words), at(words + 1)) else { return };
        for (edge, out) in out.iter_mut().enumerate() {
            let (factor, offset) = (f32::from_bits(factors[edge]), f32::from_bits(offsets[edge]));
            *out = estimate(from, offset, factor, product(ones[edge], code.sum), code.step);
        }
    }
}
