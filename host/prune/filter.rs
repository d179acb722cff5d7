//! Filter: which candidates become neighbours (paper section 5.1).

use tagore_device::descent::key::{self, Key};
use tagore_device::prune::rule::{Angle, Distance, Form, Rule, Spread, survives};

use super::strategy::{Filter, Strategy};
use crate::descent::KnnGraph;
use crate::vectors::space::Space;

/// Filters the candidates of one node after another.
pub(super) struct Pruner<'a> {
    space: &'a Space<'a>,
    graph: &'a KnnGraph,
    strategy: &'a Strategy,
    alive: Vec<Candidate>,
    ids: Vec<u32>,
    distances: Vec<f32>,
    detours: Vec<(u32, u32)>,
    places: Vec<u32>,
}

#[derive(Clone, Copy)]
struct Candidate {
    key: Key,
    score: f32,
}

impl<'a> Pruner<'a> {
    pub(super) fn new(space: &'a Space<'a>, graph: &'a KnnGraph, strategy: &'a Strategy) -> Self {
        let places = if matches!(strategy.filter, Filter::Rank) { space.len() } else { 0 };
        Self {
            space,
            graph,
            strategy,
            alive: Vec::new(),
            ids: Vec::new(),
            distances: Vec::new(),
            detours: Vec::new(),
            places: vec![u32::MAX; places],
        }
    }

    /// Writes to `accepted` at most `most` of the `candidates` (nearest first), in the order in
    /// which the filter accepts them.
    pub(super) fn filter(&mut self, candidates: &[Key], most: usize, accepted: &mut Vec<Key>) {
        let threshold = self.strategy.threshold.unwrap_or(0.0);
        match &self.strategy.filter {
            Filter::Distance => self.select(&Distance, threshold, candidates, most, accepted),
            Filter::Angle => self.select(&Angle, threshold, candidates, most, accepted),
            Filter::Spread => self.select(&Spread, threshold, candidates, most, accepted),
            Filter::Custom(rule) => self.select(rule.as_ref(), threshold, candidates, most, accepted),
            Filter::Rank => self.rank(candidates, most, accepted),
        }
    }

    /// The serial paradigm: accepts one candidate, tests all that are left against it, and so on
    /// (section 5.2 calls this the wavefront; each candidate meets the accepted ones in the same
    /// order as in the serial algorithm, so the result is the same).
    fn select<R: Rule + ?Sized>(
        &mut self,
        rule: &R,
        threshold: f32,
        candidates: &[Key],
        most: usize,
        accepted: &mut Vec<Key>,
    ) {
        let t = rule.prepare(threshold);
        let Self { space, alive, ids, distances, .. } = self;
        accepted.clear();
        alive.clear();
        alive.extend(candidates.iter().map(|&key| Candidate { key, score: 0.0 }));
        while accepted.len() < most && !alive.is_empty() {
            let next = match rule.form() {
                Form::Keep => 0,
                // The first of equals is the nearest: the candidates stay in their order.
                Form::Score => (1..alive.len()).fold(0, |best, i| if alive[i].score < alive[best].score { i } else { best }),
            };
            let neighbour = alive.remove(next).key;
            accepted.push(neighbour);
            ids.clear();
            ids.extend(alive.iter().map(|candidate| candidate.key as u32));
            space.rule_distances(neighbour as u32, ids, distances);
            let d_pa = key::distance(neighbour);
            let mut index = 0;
            alive.retain_mut(|candidate| {
                let (d_pc, d_ac) = (key::distance(candidate.key), distances[index]);
                index += 1;
                match rule.form() {
                    Form::Keep => survives(rule, d_pc, d_pa, d_ac, t),
                    Form::Score => {
                        candidate.score += rule.score(d_pc, d_pa, d_ac, t);
                        true
                    }
                }
            });
        }
    }

    /// CAGRA: the candidates with the fewest detours, nearer ones first among equals. A detour of B
    /// is a better-ranked candidate D whose list holds B.
    fn rank(&mut self, candidates: &[Key], most: usize, accepted: &mut Vec<Key>) {
        let Self { graph, detours, places, .. } = self;
        detours.clear();
        for (&key, place) in candidates.iter().zip(0..) {
            places[key as u32 as usize] = place;
            detours.push((0, place));
        }
        for (&via, place_via) in candidates.iter().zip(0..) {
            for (&id, rank_in_list) in graph.neighbors(via as u32 as usize).iter().zip(0..) {
                let place = places[id as usize];
                // u32::MAX, which no candidate has, is caught by the second comparison.
                if place_via < place && place != u32::MAX && (!self.strategy.strict_detours || rank_in_list < place) {
                    detours[place as usize].0 += 1;
                }
            }
        }
        for &key in candidates {
            places[key as u32 as usize] = u32::MAX;
        }
        if let Some(limit) = self.strategy.threshold {
            detours.retain(|&(count, _)| count as f32 <= limit);
        }
        detours.sort_unstable();
        accepted.clear();
        accepted.extend(detours.iter().take(most).map(|&(_, place)| candidates[place as usize]));
    }
}
