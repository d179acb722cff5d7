//! The check of ground truth: errors for a wrong one, no errors for a right one of any convention.

use std::sync::Arc;

use half::f16;
use tagore::{
    Builder, Device, DistanceConvention, ElementType, Error, Evaluation, GroundTruth, Index, Metric,
    Progress, Result, Searcher, Strategy, Synth, TestQueries, Vectors, evaluate, ground_truth,
};

use crate::reference::uniform;

const K: usize = 10;
const METRICS: [Metric; 3] = [Metric::L2, Metric::InnerProduct, Metric::Cosine];

/// A convention, and its function of a list distance.
type Written = (DistanceConvention, fn(f32) -> f32);

/// A base, queries, an index and the exact neighbours; tests use the first K neighbours.
struct Case {
    base: Vectors,
    queries: Vectors,
    index: Arc<Index>,
    truth: GroundTruth,
}

impl Case {
    fn new(base: Vectors, queries: Vectors, metric: Metric) -> Self {
        let index = Builder::new(Strategy::vamana()).metric(metric).knn(24).build(&base).unwrap();
        let index = Arc::new(index);
        let truth = ground_truth(&base, &queries, metric, 2 * K, &Progress::silent()).unwrap();
        Self { base, queries, index, truth }
    }

    /// 600 rows around the origin whose norms differ by up to a factor of ten.
    fn scaled(metric: Metric) -> Self {
        let base = uniform(600, 12, 1);
        let scaled = (0..base.len()).flat_map(|row| {
            let scale = 0.3 + (row % 10) as f32 * 0.3;
            base.row_to_f32(row).unwrap().iter().map(|x| x * scale).collect::<Vec<_>>()
        });
        Self::new(Vectors::from_f32(scaled.collect(), 12).unwrap(), uniform(60, 12, 2), metric)
    }

    fn evaluate_at(&self, truth: &GroundTruth, k: usize) -> Result<Evaluation> {
        let found = evaluate(
            &self.index,
            &self.base,
            TestQueries::new(&self.queries, truth, k),
            &[300],
            &Progress::silent(),
        );
        found.map(|evaluations| evaluations[0])
    }

    /// The error of a wrong ground truth; must be one line.
    fn refused(&self, truth: &GroundTruth, k: usize) -> String {
        match self.evaluate_at(truth, k) {
            Err(error @ Error::Mismatch { .. }) => error.to_string(),
            other => panic!("found {other:?}, expected an error"),
        }
    }

    /// The convention detected in a ground truth, which must pass the check.
    fn convention(&self, truth: &GroundTruth) -> Option<DistanceConvention> {
        let recall = self.evaluate_at(truth, K).unwrap().recall;
        assert!(recall > 0.9, "{recall}");
        let searcher =
            Searcher::new(Arc::clone(&self.index), self.base.clone(), &Progress::silent()).unwrap();
        searcher.distance_convention(&self.queries, truth, K).unwrap()
    }

    /// The ground truth with other distances.
    fn with_distances(&self, of: impl Fn(f32) -> f32) -> GroundTruth {
        rows(&self.truth, |query| {
            let distances = self.truth.distances(query).unwrap().iter().map(|&distance| of(distance));
            (self.truth.ids(query).to_vec(), distances.collect())
        })
    }

    /// The ground truth with other lists and without distances.
    fn with_lists(&self, list: impl Fn(usize) -> Vec<u32>) -> GroundTruth {
        let ids: Vec<u32> = (0..self.truth.len()).flat_map(list).collect();
        GroundTruth::new(ids.len() / self.truth.len(), ids, None).unwrap()
    }
}

/// A ground truth of the ids and distances that `row` gives per query.
fn rows(truth: &GroundTruth, row: impl Fn(usize) -> (Vec<u32>, Vec<f32>)) -> GroundTruth {
    let (ids, distances): (Vec<_>, Vec<_>) = (0..truth.len()).map(row).unzip();
    GroundTruth::new(truth.k(), ids.concat(), Some(distances.concat())).unwrap()
}

// Their k-th distance is so large that every result was a hit: recall 1.0.
#[test]
fn random_ids_are_refused() {
    for metric in METRICS {
        let case = Case::scaled(metric);
        let n = case.base.len() as u32;
        let random = rows(&case.truth, |query| {
            let ids = (0..2 * K as u32).map(|place| (query as u32 * 37 + place * 101 + 5) % n);
            (ids.collect(), vec![0.0; 2 * K])
        });
        for k in [1, K] {
            let error = case.refused(&random, k);
            assert!(
                error.contains("neighbour 0 of query 0") && error.contains("not the nearest rows"),
                "{error}"
            );
        }
    }
}

// Lists of other queries also have a large k-th distance.
#[test]
fn rows_in_another_order_are_refused_and_recognised() {
    for metric in METRICS {
        let case = Case::scaled(metric);
        let count = case.truth.len();
        let reversed = case.with_lists(|query| case.truth.ids(count - 1 - query).to_vec());
        let shifted = case.with_lists(|query| case.truth.ids((query + 1) % count).to_vec());
        for wrong in [reversed, shifted] {
            for k in [1, K] {
                let error = case.refused(&wrong, k);
                assert!(
                    error.contains("the rows are in another order than the queries"),
                    "{metric}: {error}"
                );
            }
        }
    }
}

// Recall was 0.9975 where ids overlapped by 0.906.
#[test]
fn truth_of_another_metric_is_refused_and_named() {
    for metric in METRICS {
        let case = Case::scaled(metric);
        for other in METRICS.into_iter().filter(|&other| other != metric) {
            let truth = ground_truth(&case.base, &case.queries, other, K, &Progress::silent()).unwrap();
            let error = case.refused(&truth, K);
            assert!(
                error.contains(&format!("the list is ordered by {other}: make the ground truth by {metric}")),
                "{error}"
            );
        }
    }
}

#[test]
fn wrong_lists_are_refused_at_any_place() {
    let case = Case::scaled(Metric::L2);
    let edited = |edit: fn(&mut Vec<u32>)| {
        case.with_lists(|query| {
            let mut ids = case.truth.ids(query).to_vec();
            edit(&mut ids);
            ids
        })
    };
    // The second and third id swapped.
    let error = case.refused(&edited(|ids| ids.swap(1, 2)), K);
    assert!(error.contains("neighbour 1 of query"), "{error}");
    // The nearest is missing, as after an approximate search.
    let error = case.refused(&edited(|ids| _ = ids.remove(0)), K);
    assert!(error.contains("not the nearest rows"), "{error}");
    let error = case.refused(&edited(|ids| ids[7] = ids[3]), K);
    assert!(error.contains("twice for query 0") && error.contains("10 distinct ids"), "{error}");
    // Ids after the first K do not matter.
    case.evaluate_at(&edited(|ids| ids[K..].fill(u32::MAX)), K).unwrap();
    let error = case.refused(&edited(|ids| ids[K - 1] = u32::MAX), K);
    assert!(error.contains("id 4294967295 for query 0"), "{error}");
}

// The sample has 64 of 3,000 queries; one list is in descending order.
#[test]
fn one_unsorted_list_is_found_among_many() {
    let synth = Synth::new(500, 6, 1).unwrap();
    let case = Case::new(synth.base(), synth.queries(3000), Metric::L2);
    let wrong = case.with_lists(|query| {
        let ids = case.truth.ids(query).iter().copied();
        if query == 1717 { ids.rev().collect() } else { ids.collect() }
    });
    assert!(case.refused(&wrong, 2 * K).contains("of query 1717"));
}

// The norms are a million times the distances, and the tolerance must not follow them.
#[test]
fn random_ids_far_from_the_origin_are_refused() {
    let far = |vectors: Vectors| {
        let values = (0..vectors.len())
            .flat_map(|row| vectors.row_to_f32(row).unwrap().iter().map(|x| x + 5000.0).collect::<Vec<_>>());
        Vectors::from_f32(values.collect(), 2).unwrap()
    };
    let case = Case::new(far(uniform(600, 2, 1)), far(uniform(60, 2, 2)), Metric::L2);
    let random =
        case.with_lists(|query| (0..K as u32).map(|place| (query as u32 * 37 + place * 101) % 600).collect());
    case.refused(&random, K);
    case.convention(&case.truth);
}

#[test]
fn right_ids_pass_with_any_distances() {
    use DistanceConvention as Convention;
    for metric in METRICS {
        let case = Case::scaled(metric);
        let ours = Convention::for_metric(metric);
        assert_eq!(case.convention(&case.with_lists(|query| case.truth.ids(query).to_vec())), None);
        assert_eq!(case.convention(&case.truth), Some(ours));
        assert_eq!(case.convention(&case.with_distances(|d| d * (1.0 + 1e-6))), Some(ours));
        assert_eq!(case.convention(&case.with_distances(|_| 0.0)), Some(Convention::Unknown));
        assert_eq!(case.convention(&case.with_distances(|_| f32::NAN)), Some(Convention::Unknown));
        let conventions: &[Written] = match metric {
            Metric::L2 => &[(Convention::L2, f32::sqrt)],
            Metric::InnerProduct => {
                &[(Convention::InnerProduct, |d| -d), (Convention::OneMinusInnerProduct, |d| 1.0 + d)]
            }
            Metric::Cosine => &[
                (Convention::Cosine, |d| 1.0 - d),
                (Convention::NegatedCosine, |d| d - 1.0),
                (Convention::SquaredUnitL2, |d| 2.0 * d),
                (Convention::UnitL2, |d| (2.0 * d).sqrt()),
            ],
        };
        for &(convention, of) in conventions {
            assert_eq!(case.convention(&case.with_distances(of)), Some(convention));
        }
    }
}

// Equal rows may be in any order: recall by distance allows it, recall by id does not.
#[test]
fn ties_pass_in_any_order() {
    let once = uniform(200, 6, 1);
    let twice: Vec<f32> = (0..400).flat_map(|row| once.row_to_f32(row / 2).unwrap().to_vec()).collect();
    for metric in METRICS {
        let case = Case::new(Vectors::from_f32(twice.clone(), 6).unwrap(), uniform(40, 6, 2), metric);
        let twins = case.with_lists(|query| case.truth.ids(query).iter().map(|id| id ^ 1).collect());
        assert!(case.evaluate_at(&twins, K).unwrap().recall > 0.95);
        // The two nearest rows are equal; the search finds the first.
        let (same, other) = (case.evaluate_at(&case.truth, 1).unwrap(), case.evaluate_at(&twins, 1).unwrap());
        assert_eq!((same.recall, same.recall_ids), (1.0, 1.0), "{metric}");
        assert_eq!((other.recall, other.recall_ids), (1.0, 0.0), "{metric}");
    }
}

// Near the queries, the rounding of |q|² + |x|² − 2⟨q, x⟩ in f32 changes the order.
#[test]
fn truth_of_other_arithmetic_passes() {
    let base = uniform(400, 16, 1);
    let near = |row: usize, by: f32| {
        base.row_to_f32(row % 20).unwrap().iter().map(move |x| x + by * 1e-4).collect::<Vec<f32>>()
    };
    let crowded: Vec<f32> = (0..400).flat_map(|row| near(row, (row / 20) as f32)).collect();
    let queries: Vec<f32> = (0..40).flat_map(|row| near(row, 3.1)).collect();
    let case = Case::new(
        Vectors::from_f32(crowded, 16).unwrap(),
        Vectors::from_f32(queries, 16).unwrap(),
        Metric::L2,
    );
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).fold(0f32, |sum, (x, y)| sum + x * y);
    let rough = case.with_lists(|query| {
        let query = case.queries.row_to_f32(query).unwrap();
        let distance = |id: u32| {
            let row = case.base.row_to_f32(id as usize).unwrap();
            dot(&query, &query) + dot(&row, &row) - 2.0 * dot(&query, &row)
        };
        let mut ids: Vec<u32> = (0..400).collect();
        ids.sort_by(|&a, &b| distance(a).total_cmp(&distance(b)));
        ids.truncate(K);
        ids
    });
    assert!((0..40).any(|query| rough.ids(query) != &case.truth.ids(query)[..K]));
    case.evaluate_at(&rough, K).unwrap();
}

#[test]
fn truth_of_f32_passes_for_the_same_vectors_in_f16() {
    let synth = Synth::new(2000, 48, 4).unwrap();
    let (base, queries) = (synth.base(), synth.queries(100));
    let halves = |vectors: &Vectors| {
        let values = (0..vectors.len()).flat_map(|row| {
            vectors.row_to_f32(row).unwrap().iter().map(|&x| f16::from_f32(x)).collect::<Vec<_>>()
        });
        Vectors::from_f16(values.collect(), 48).unwrap()
    };
    let truth = ground_truth(&base, &queries, Metric::L2, K, &Progress::silent()).unwrap();
    let case = Case::new(halves(&base), halves(&queries), Metric::L2);
    assert_eq!(case.base.element_type(), ElementType::F16);
    assert!((0..100).any(|query| truth.ids(query) != &case.truth.ids(query)[..K]));
    assert_eq!(case.convention(&truth), Some(DistanceConvention::SquaredL2));
}

#[test]
fn every_device_gives_the_same_error() {
    let case = Case::scaled(Metric::InnerProduct);
    let wrong = ground_truth(&case.base, &case.queries, Metric::L2, K, &Progress::silent()).unwrap();
    let searcher = Searcher::new(Arc::clone(&case.index), case.base.clone(), &Progress::silent())
        .unwrap()
        .device(Device::Emulated)
        .unwrap();
    let error = searcher
        .evaluate(TestQueries::new(&case.queries, &wrong, K), &[20], &Progress::silent())
        .unwrap_err();
    assert_eq!(error.to_string(), case.refused(&wrong, K));
}
