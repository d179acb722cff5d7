//! Filter: chooses neighbours among the candidates (paper section 5.1).

use tagore_device::key::{self, Key};
use tagore_device::prune::filter::filled;
use tagore_device::prune::rule::{Form, Rule, survives};

use super::places::Places;
use super::strategy::{Filter, Strategy};
use crate::descent::KnnGraph;
use crate::memory::fetch;
use crate::vectors::space::Space;

/// Lists that are on their way to the cache while one is read.
const AHEAD: usize = 4;

/// Filters candidates on the CPU, one node at a time.
pub(super) struct Pruner<'a> {
    space: &'a Space<'a>,
    /// Without lists, detours are counted by distances.
    graph: Option<&'a KnnGraph>,
    strategy: &'a Strategy,
    alive: Vec<Candidate>,
    ids: Vec<u32>,
    distances: Vec<f32>,
    counts: Vec<u32>,
    detours: Vec<(u32, u32)>,
    places: Places,
}

#[derive(Clone, Copy)]
struct Candidate {
    key: Key,
    /// The rule distance from the node.
    distance: f32,
    score: f32,
}

impl<'a> Pruner<'a> {
    pub(super) fn new(space: &'a Space<'a>, graph: Option<&'a KnnGraph>, strategy: &'a Strategy) -> Self {
        Self {
            space,
            graph,
            strategy,
            alive: Vec::new(),
            ids: Vec::new(),
            distances: Vec::new(),
            counts: Vec::new(),
            detours: Vec::new(),
            places: Places::default(),
        }
    }

    /// Writes to `accepted` at most `most` of the `candidates` of `node` (keys of order distances,
    /// nearest first), in the order in which the filter accepts them.
    pub(super) fn filter(&mut self, node: u32, candidates: &[Key], most: usize, accepted: &mut Vec<Key>) {
        match self.strategy.filter.rule() {
            Some(rule) => rule.select(self, node, candidates, most, accepted),
            None => {
                match self.graph {
                    Some(graph) => self.count_in_lists(graph, candidates),
                    None => self.count_by_distances(candidates),
                }
                self.rank(candidates, most, accepted);
            }
        }
    }

    /// The wavefront (paper section 5.2): accepts one candidate, tests all remaining candidates
    /// against it, and repeats. Each candidate is tested against the accepted ones in the order of
    /// the serial algorithm, so the result is the same.
    pub(super) fn select<R: Rule>(
        &mut self,
        rule: &R,
        node: u32,
        candidates: &[Key],
        most: usize,
        accepted: &mut Vec<Key>,
    ) {
        let t = rule.prepare(self.strategy.filter.threshold().unwrap_or(0.0));
        let Self { space, alive, ids, distances, .. } = self;
        accepted.clear();
        alive.clear();
        alive.extend(candidates.iter().map(|&key| {
            let distance = space.rule_distance(node, key as u32, key::distance(key));
            Candidate { key, distance, score: 0.0 }
        }));
        while accepted.len() < most && !alive.is_empty() {
            let next = match rule.form() {
                Form::Keep => 0,
                // Candidates stay sorted, so the first of equal scores is the nearest.
                Form::Score => (1..alive.len())
                    .fold(0, |best, i| if alive[i].score < alive[best].score { i } else { best }),
            };
            let Candidate { key: neighbour, distance: d_pa, .. } = alive.remove(next);
            accepted.push(neighbour);
            ids.clear();
            ids.extend(alive.iter().map(|candidate| candidate.key as u32));
            space.rule_distances(neighbour as u32, ids, distances);
            let mut index = 0;
            alive.retain_mut(|candidate| {
                let (d_pc, d_ac) = (candidate.distance, distances[index]);
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
        if rule.form() == Form::Keep {
            fill(accepted, candidates, most);
        }
    }

    /// Counts the detours of each candidate B: they run through a better-ranked candidate D whose
    /// list holds B.
    fn count_in_lists(&mut self, graph: &KnnGraph, candidates: &[Key]) {
        let Self { counts, places, .. } = self;
        // Places count from 1; other nodes have place 0, which no detour leads to. So counting
        // needs no branches, which the processor would mispredict.
        let ids = candidates.iter().map(|&key| key as u32);
        places.set(ids.clone());
        counts.clear();
        counts.resize(candidates.len() + 1, 0);
        // Without strict detours, any rank in a list will do.
        let step = u32::from(self.strategy.strict_detours);
        let place_of = places.finder();
        for (via, place_via) in ids.zip(1..) {
            if let Some(&next) = candidates.get(place_via as usize + AHEAD - 1) {
                fetch(graph.neighbors(next as u32 as usize));
            }
            let mut least: u32 = step;
            for &id in graph.neighbors(via as usize) {
                let place = place_of(id);
                counts[place as usize] += u32::from(place > place_via.max(least));
                least += step;
            }
        }
    }

    /// Counts the detours of each candidate B of a node: they run through a nearer candidate D that
    /// is nearer to B than the node is. Ranks in lists stand for these distances (Ootomo et al.,
    /// section 3.2).
    fn count_by_distances(&mut self, candidates: &[Key]) {
        let Self { space, counts, ids, distances, .. } = self;
        counts.clear();
        counts.resize(candidates.len() + 1, 0);
        ids.clear();
        ids.extend(candidates.iter().map(|&key| key as u32));
        for (place, &via) in candidates.iter().enumerate() {
            space.order_distances(via as u32, &ids[place + 1..], distances);
            let farther = candidates[place + 1..].iter().zip(&*distances);
            let counts = counts[place + 2..].iter_mut();
            for (count, (&key, &distance)) in counts.zip(farther) {
                *count += u32::from(distance < key::distance(key));
            }
        }
    }

    /// CAGRA: the candidates with the fewest detours, nearer ones first among equals.
    fn rank(&mut self, candidates: &[Key], most: usize, accepted: &mut Vec<Key>) {
        let Self { counts, detours, .. } = self;
        detours.clear();
        detours.extend(counts[1..].iter().copied().zip(0..));
        if let Filter::Rank { max_detours: Some(limit) } = self.strategy.filter {
            detours.retain(|&(count, _)| count as f32 <= limit);
        }
        detours.sort_unstable();
        accepted.clear();
        accepted.extend(detours.iter().take(most).map(|&(_, place)| candidates[place as usize]));
    }
}

/// Fills a row of at most `most` up with the nearest of the `candidates` that a rule dropped, if it
/// `accepted` few ([`filled`]).
fn fill(accepted: &mut Vec<Key>, candidates: &[Key], most: usize) {
    let few = accepted.len();
    let missing = (filled(most as u32) as usize).saturating_sub(few);
    if missing > 0 {
        let dropped = |key: &Key| !accepted[..few].contains(key);
        let nearest: Vec<Key> = candidates.iter().copied().filter(dropped).take(missing).collect();
        accepted.extend(nearest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Progress;
    use crate::descent::Descent;
    use crate::vectors::{Metric, Vectors};
    use tagore_device::prune::rule::{AlphaConvergent, Angle, Distance, Spread, TauMonotonic};
    use tagore_device::random::{Draws, Stage};

    /// Small integers, so that duplicates and ties abound.
    fn base(rows: usize, dim: usize, seed: u64) -> Vectors {
        let draws = Draws::new(seed, Stage::Test, 1, 0);
        Vectors::from_u8((0..rows * dim).map(|i| draws.below(i as u64, 9) as u8).collect(), dim).unwrap()
    }

    fn rule_distance(space: &Space<'_>, a: u32, b: u32) -> f32 {
        let mut out = Vec::new();
        space.rule_distances(a, &[b], &mut out);
        out[0]
    }

    fn order_key(space: &Space<'_>, node: u32, id: u32) -> Key {
        let mut out = Vec::new();
        space.order_distances(node, &[id], &mut out);
        key::pack(out[0], id)
    }

    fn all_others(space: &Space<'_>, node: u32) -> Vec<Key> {
        let others = (0..space.len() as u32).filter(|&id| id != node);
        let mut keys: Vec<Key> = others.map(|id| order_key(space, node, id)).collect();
        keys.sort_unstable();
        keys
    }

    /// The serial algorithm: each candidate in turn, against every neighbour accepted before it.
    fn serial(
        space: &Space<'_>,
        rule: &dyn Rule,
        t: f32,
        node: u32,
        candidates: &[Key],
        most: usize,
    ) -> Vec<Key> {
        let length = |key: Key| space.rule_distance(node, key as u32, key::distance(key));
        let mut accepted: Vec<Key> = Vec::new();
        for &c in candidates {
            let kept = accepted.iter().all(|&a| {
                let d_ac = rule_distance(space, a as u32, c as u32);
                survives(rule, length(c), length(a), d_ac, t)
            });
            if kept && accepted.len() < most {
                accepted.push(c);
            }
        }
        let dropped: Vec<Key> = candidates.iter().copied().filter(|c| !accepted.contains(c)).collect();
        let missing = most.div_euclid(2).min(16).saturating_sub(accepted.len());
        accepted.extend(dropped.iter().take(missing));
        accepted
    }

    /// The greedy selection by the smallest sum of scores, all sums computed anew at each step.
    fn greedy(space: &Space<'_>, rule: &dyn Rule, node: u32, candidates: &[Key], most: usize) -> Vec<Key> {
        let length = |key: Key| space.rule_distance(node, key as u32, key::distance(key));
        let mut accepted: Vec<Key> = Vec::new();
        while accepted.len() < most.min(candidates.len()) {
            let sum = |c: Key| {
                let scores = accepted.iter().map(|&a| {
                    let d_ac = rule_distance(space, a as u32, c as u32);
                    rule.score(length(c), length(a), d_ac, 0.0)
                });
                scores.fold(0.0f32, |sum, score| sum + score)
            };
            let left = candidates.iter().copied().filter(|c| !accepted.contains(c));
            let next = left.min_by(|&x, &y| sum(x).total_cmp(&sum(y)).then(x.cmp(&y))).unwrap();
            accepted.push(next);
        }
        accepted
    }

    fn cases(check: impl Fn(&Space<'_>, &KnnGraph, u64)) {
        for seed in 0..4 {
            for (rows, dim) in [(2, 1), (3, 3), (33, 2), (97, 5), (128, 97)] {
                for metric in [Metric::L2, Metric::Cosine, Metric::InnerProduct] {
                    let base = base(rows, dim, seed);
                    let space = Space::new(&base, metric, &Progress::silent()).unwrap();
                    let graph = Descent::new().metric(metric).knn(12.min(rows - 1)).build(&base).unwrap();
                    check(&space, &graph, seed);
                }
            }
        }
    }

    #[test]
    fn the_wavefront_equals_the_serial_algorithm() {
        let filters: [(Filter, &dyn Rule, f32); 6] = [
            (Filter::Distance { alpha: 1.0 }, &Distance, 1.0),
            (Filter::Distance { alpha: 1.2 }, &Distance, 1.2),
            (Filter::Angle { degrees: 60.0 }, &Angle, 60.0),
            (Filter::Angle { degrees: 100.0 }, &Angle, 100.0),
            (Filter::TauMonotonic { tau: 0.3 }, &TauMonotonic, 0.3),
            (Filter::alpha_convergent(1.2, 0.2).unwrap(), &AlphaConvergent { alpha: 1.2 }, 0.2),
        ];
        cases(|space, graph, seed| {
            for (filter, rule, threshold) in &filters {
                let strategy = Strategy::nsg().filter(filter.clone());
                let mut pruner = Pruner::new(space, Some(graph), &strategy);
                for node in [0, space.len() as u32 - 1] {
                    let candidates = all_others(space, node);
                    for most in [1, 7, 200] {
                        let mut accepted = Vec::new();
                        pruner.filter(node, &candidates, most, &mut accepted);
                        let t = rule.prepare(*threshold);
                        let expected = serial(space, *rule, t, node, &candidates, most);
                        assert_eq!(accepted, expected, "{filter:?} node {node} most {most} seed {seed}");
                    }
                }
            }
        });
    }

    #[test]
    fn spread_is_the_greedy_selection() {
        cases(|space, graph, seed| {
            let strategy = Strategy::dpg();
            let mut pruner = Pruner::new(space, Some(graph), &strategy);
            let candidates = all_others(space, 0);
            for most in [1, 5, 16] {
                let mut accepted = Vec::new();
                pruner.filter(0, &candidates, most, &mut accepted);
                assert_eq!(accepted, greedy(space, &Spread, 0, &candidates, most), "most {most} seed {seed}");
            }
        });
    }

    #[test]
    fn detours_match_the_definition() {
        cases(|space, graph, seed| {
            for strict in [false, true] {
                let strategy = Strategy::cagra().strict_detours(strict);
                let mut pruner = Pruner::new(space, Some(graph), &strategy);
                for node in 0..space.len() as u32 {
                    let candidates: Vec<Key> = (graph.neighbors(node as usize).iter())
                        .map(|&id| order_key(space, node, id))
                        .collect();
                    let detours = |place: usize| {
                        let b = candidates[place] as u32;
                        let passes = |d: usize| {
                            let list = graph.neighbors(candidates[d] as u32 as usize);
                            list.iter().position(|&id| id == b).is_some_and(|rank| !strict || rank < place)
                        };
                        (0..place).filter(|&d| passes(d)).count()
                    };
                    let mut expected: Vec<usize> = (0..candidates.len()).collect();
                    expected.sort_by_key(|&place| (detours(place), place));
                    let expected: Vec<Key> = expected.into_iter().map(|place| candidates[place]).collect();
                    let mut accepted = Vec::new();
                    pruner.filter(node, &candidates, 200, &mut accepted);
                    assert_eq!(accepted, expected, "node {node} strict {strict} seed {seed}");
                }
            }
        });
    }

    #[test]
    fn the_rank_threshold_drops_edges_with_more_detours() {
        let base = base(60, 3, 1);
        let space = Space::new(&base, Metric::L2, &Progress::silent()).unwrap();
        let graph = Descent::new().knn(20).build(&base).unwrap();
        let (all, few) =
            (Strategy::cagra(), Strategy::cagra().filter(Filter::Rank { max_detours: Some(2.0) }));
        let candidates = all_others(&space, 5);
        let run = |strategy: &Strategy| {
            let mut accepted = Vec::new();
            Pruner::new(&space, Some(&graph), strategy).filter(5, &candidates, 100, &mut accepted);
            accepted
        };
        let (all, few) = (run(&all), run(&few));
        assert!(!few.is_empty() && few.len() < all.len());
        assert_eq!(few, all[..few.len()]);
    }
}
