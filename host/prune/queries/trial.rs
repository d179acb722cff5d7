//! Whether searches for queries held out find more.

use tagore_device::key;

use super::QuerySample;
use crate::index::{Graph, Start};
use crate::loops::try_map_with;
use crate::search::beam::{BeamLimits, BeamSearch, BeamTask};
use crate::vectors::queries::Queries;
use crate::vectors::space::Space;
use crate::{Progress, Result};

/// Rows that a search is to find.
const K: usize = 10;

/// Beams of the searches.
const BEAMS: [usize; 4] = [16, 32, 64, 128];

/// A gain of fewer standard deviations than this may be chance.
const DEVIATIONS: f64 = 2.0;

/// Distances that count as equal: this many times as many.
const NEARLY: f64 = 1.1;

/// Searches for queries held out.
pub(super) struct Trial<'a> {
    space: &'a Space<'a>,
    queries: &'a Queries<'a>,
    /// The numbers of its queries among these, each with the distance of the last row to find.
    bounds: Vec<(u32, f32)>,
    k: usize,
    progress: &'a Progress,
}

/// What searches with one beam find.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// Rows that the searches missed, of all queries.
    missed: f64,
    pub recall: f64,
    /// Distances per query.
    pub distances: f64,
}

/// Outcomes by ascending beam.
pub(super) type Curve = [Outcome; BEAMS.len()];

impl<'a> Trial<'a> {
    /// A trial with some queries of a sample.
    pub(super) fn new(sample: &'a QuerySample<'a>, held_out: &[u32]) -> Self {
        let &QuerySample { space, queries, depth, progress, .. } = sample;
        let k = K.min(depth);
        let bound = |&query: &u32| {
            let known = sample.keys_of(query)[..k].iter().rev().find(|&&key| key != key::NONE);
            (query, known.map_or(0.0, |&key| key::distance(key)))
        };
        Self { space, queries, bounds: held_out.iter().map(bound).collect(), k, progress }
    }

    /// Searches `graph` from `start` with each beam.
    pub(super) fn run(&self, graph: &impl Graph, start: Start<'_>) -> Result<Curve> {
        let mut curve = [Outcome { missed: 0.0, recall: 0.0, distances: 0.0 }; BEAMS.len()];
        for (outcome, beam) in curve.iter_mut().zip(BEAMS) {
            *outcome = self.search(graph, start, beam)?;
        }
        Ok(curve)
    }

    fn search(&self, graph: &impl Graph, start: Start<'_>, beam: usize) -> Result<Outcome> {
        let limits = BeamLimits::all_of(beam);
        let one = |search: &mut BeamSearch, &(query, bound): &(u32, f32)| {
            self.progress.check()?;
            let before = search.computed();
            let task = BeamTask { query: self.queries.query(query as usize), start, limits, among: None };
            search.run(self.space, graph, task, |_| ());
            let found = search.found().take(self.k).filter(|&key| key::distance(key) <= bound).count();
            Ok([found as u64, search.computed() - before])
        };
        let nodes = self.space.len();
        let each = try_map_with(&self.bounds[..], || BeamSearch::new(nodes), one)?;
        let count = self.bounds.len() as f64;
        let sum = |place: usize| each.iter().map(|counts| counts[place]).sum::<u64>() as f64;
        let (found, all) = (sum(0), count * self.k as f64);
        Ok(Outcome { missed: all - found, recall: found / all, distances: sum(1) / count })
    }
}

/// Whether `with` leaves at most `share` of the misses of `without` at equal distances, and not by
/// chance.
pub(super) fn finds_more(with: &Curve, without: &Curve, share: f64) -> bool {
    let (mut after, mut before) = (0.0, 0.0);
    for outcome in without {
        // A curve that begins later has no such distances.
        if let Some(missed) = missed_at(with, outcome.distances) {
            after += missed;
            before += outcome.missed;
        }
    }
    after <= share * before && before - after > DEVIATIONS * before.sqrt()
}

/// The misses of a curve at `distances`: between its outcomes on a logarithmic scale, past the last
/// those of the last.
fn missed_at(curve: &Curve, distances: f64) -> Option<f64> {
    let after = curve.iter().position(|outcome| outcome.distances >= distances);
    match after {
        Some(0) => (curve[0].distances <= NEARLY * distances).then_some(curve[0].missed),
        Some(after) => {
            let (a, b) = (curve[after - 1], curve[after]);
            let part = libm::log(distances / a.distances) / libm::log(b.distances / a.distances);
            Some(a.missed + part * (b.missed - a.missed))
        }
        None => curve.last().map(|last| last.missed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(outcomes: [(f64, f64); 4]) -> Curve {
        outcomes.map(|(recall, distances)| Outcome { missed: 5000.0 * (1.0 - recall), recall, distances })
    }

    #[test]
    fn misses_are_compared_at_equal_distances() {
        let without = curve([(0.5, 100.0), (0.6, 200.0), (0.7, 400.0), (0.8, 800.0)]);
        // The same curve at other beams.
        let same = curve([(0.55, 141.42), (0.65, 282.84), (0.75, 565.69), (0.85, 1131.4)]);
        assert!(!finds_more(&same, &without, 0.999));
        let half = curve([(0.75, 100.0), (0.8, 200.0), (0.85, 400.0), (0.9, 800.0)]);
        assert!(finds_more(&half, &without, 0.5) && !finds_more(&half, &without, 0.49));
        assert!(!finds_more(&without, &half, 1.0));
        // More recall for more distances alone is no gain.
        let wider = curve([(0.6, 200.0), (0.7, 400.0), (0.8, 800.0), (0.9, 1600.0)]);
        assert!(!finds_more(&wider, &without, 0.99));
        // A few misses fewer of a few are chance.
        let few = |count: f64| {
            [1.0, 2.0, 4.0, 8.0].map(|distances| Outcome { missed: count, recall: 0.99, distances })
        };
        assert!(!finds_more(&few(8.5), &few(10.0), 0.9) && finds_more(&few(1.0), &few(10.0), 0.9));
        let nothing_missed = curve([(1.0, 100.0); 4]);
        assert!(!finds_more(&nothing_missed, &nothing_missed, 1.0));
    }
}
