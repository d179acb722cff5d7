//! Data whose rows one scale does not suit, and indexes of it that tests of codes share.

use std::sync::OnceLock;

use tagore::{GroundTruth, Progress, SearchResult, Searcher, Vectors, ground_truth};

use crate::compressed::{METRICS, searcher};
use crate::reference::uniform;

/// Rows of 32 components of `uniform`, changed by `change`: of a base, and of queries.
fn changed(change: impl Fn(usize, &mut [f32])) -> [Vectors; 2] {
    // From 1,024 rows on, the CPU compares codes in panels.
    [(1100, 31), (60, 32)].map(|(rows, seed)| {
        let plain = uniform(rows, 32, seed);
        let row = |row: usize| {
            let mut values = plain.row_to_f32(row).unwrap().into_owned();
            change(row, &mut values);
            values
        };
        Vectors::from_f32((0..rows).flat_map(row).collect(), 32).unwrap()
    })
}

/// Data whose rows one scale does not suit, by name.
pub(crate) fn dirty() -> Vec<(&'static str, [Vectors; 2])> {
    let sentinel = |value: f32, each: usize| {
        changed(move |row, values| {
            if row % each == 4 {
                values[row / each % 32] = value;
            }
        })
    };
    let one_row = |place: usize| {
        changed(move |row, values| {
            if row == place {
                values.fill(1e4);
            }
        })
    };
    let offset = |offset: f32| changed(move |_, values| values.iter_mut().for_each(|x| *x += offset));
    // Of Student's t with 1.5 degrees of freedom, about: the tail of a power.
    let tail = |x: &mut f32| *x = x.signum() * ((1.0 - x.abs() / 10.01).powf(-1.0 / 1.5) - 1.0);
    vec![
        ("clean", changed(|_, _| ())),
        ("sentinels", sentinel(-9999.0, 100)),
        ("large sentinels", sentinel(1e4, 100)),
        ("many sentinels", sentinel(-9999.0, 6)),
        ("the first row", one_row(0)),
        ("a row", one_row(700)),
        ("the last row", one_row(1099)),
        ("heavy tails", changed(|_, values| values.iter_mut().for_each(tail))),
        ("an offset", offset(30.0)),
        ("a large offset", offset(600.0)),
        ("a far component", changed(|_, values| values[3] += 3e7)),
        ("constant components", changed(|_, values| values[..16].fill(1e4))),
        ("a wide component", changed(|_, values| values[3] *= 1000.0)),
        (
            "large rows",
            changed(|row, values| {
                if row % 30 == 9 {
                    values.iter_mut().for_each(|x| *x *= 100.0);
                }
            }),
        ),
        (
            "a dense ball",
            changed(|row, values| {
                if row % 4 == 1 {
                    values.iter_mut().for_each(|x| *x *= 1e-4);
                }
            }),
        ),
    ]
}

/// An index of dirty data, and what searches should find.
pub(crate) struct Searched {
    pub name: &'static str,
    pub queries: Vectors,
    pub truth: GroundTruth,
    pub full: Searcher,
}

/// Each kind of dirty data under two of the metrics in turn, clean data under all.
pub(crate) fn searched() -> &'static [Searched] {
    static ALL: OnceLock<Vec<Searched>> = OnceLock::new();
    ALL.get_or_init(|| {
        let cases = dirty().into_iter().enumerate().flat_map(|(number, (name, data))| {
            let metrics = METRICS.into_iter().enumerate();
            let metrics = metrics.filter(move |&(place, _)| number == 0 || (number + place) % 3 > 0);
            metrics.map(move |(_, metric)| (name, data.clone(), metric))
        });
        let searched = |(name, [base, queries], metric): (_, [Vectors; 2], _)| {
            let truth = ground_truth(&base, &queries, metric, 10, &Progress::silent()).unwrap();
            Searched { name, queries, truth, full: searcher(base, metric) }
        };
        cases.map(searched).collect()
    })
}

/// The share of the answers that are no farther than the tenth of the exact answer.
pub(crate) fn recall_by_distance(truth: &GroundTruth, found: &SearchResult) -> f64 {
    let hits = (0..found.len()).map(|query| {
        let last = truth.distances(query).unwrap()[9];
        found.neighbors(query).filter(|row| row.distance <= last).count()
    });
    hits.sum::<usize>() as f64 / (found.len() * 10) as f64
}
