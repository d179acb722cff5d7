//! Searches with a radius or a filter, and of one query, compared with definitions.

use std::collections::BTreeMap;
use std::sync::Arc;

use half::f16;
use tagore::{
    Builder, Description, Device, Error, ExactSearch, IdSet, Index, Metric, Neighbor, Progress, Search,
    Searcher, Strategy, TestQueries, Vectors, ground_truth,
};

use crate::gpu::devices;
use crate::reference::uniform;

const METRICS: [Metric; 3] = [Metric::L2, Metric::InnerProduct, Metric::Cosine];

fn searcher(base: Vectors, metric: Metric) -> Searcher {
    let builder = Builder::new(Strategy::cagra().degree(16)).knn(32).metric(metric).device(Device::Cpu);
    let index = builder.build(&base).unwrap();
    Searcher::new(index, base, &Progress::silent()).unwrap()
}

/// The answers of a batch.
fn batch(searcher: &Searcher, queries: &Vectors, search: Search<'_>) -> Vec<Vec<Neighbor>> {
    let found = searcher.search(queries, search, &Progress::silent()).unwrap();
    (0..queries.len()).map(|query| found.neighbors(query).collect()).collect()
}

/// The nearest rows that pass, by exact search.
fn exact(searcher: &Searcher, queries: &Vectors, passes: impl Fn(u32) -> bool) -> Vec<Vec<Neighbor>> {
    let (base, metric) = (searcher.base(), searcher.index().metric());
    let truth = ground_truth(base, queries, metric, base.len(), &Progress::silent()).unwrap();
    let of = |query: usize| {
        let pairs = truth.ids(query).iter().zip(truth.distances(query).unwrap());
        pairs.filter(|&(&id, _)| passes(id)).map(|(&id, &distance)| Neighbor { id, distance }).collect()
    };
    (0..queries.len()).map(of).collect()
}

/// The share of `found` that is among the first k of `expected`.
fn recall(found: &[Vec<Neighbor>], expected: &[Vec<Neighbor>], k: usize) -> f64 {
    let hits = found.iter().zip(expected).map(|(found, expected)| {
        assert_eq!(found.len(), k.min(expected.len()));
        found.iter().filter(|row| expected[..k].contains(row)).count()
    });
    hits.sum::<usize>() as f64 / (found.len() * k) as f64
}

#[test]
fn a_radius_cuts_the_answer_where_distances_exceed_it() {
    let queries = uniform(20, 8, 2);
    for metric in METRICS {
        let searcher = searcher(uniform(500, 8, 1), metric);
        let search = Search::new(10).beam(50);
        let all = batch(&searcher, &queries, search);
        for place in [0, 4, 9] {
            let radius = all[0][place].distance;
            let expected: Vec<Vec<Neighbor>> = all
                .iter()
                .map(|all| all.iter().copied().take_while(|row| row.distance <= radius).collect())
                .collect();
            assert_eq!(expected[0].len(), place + 1);
            assert_eq!(batch(&searcher, &queries, search.radius(radius)), expected, "{metric}");
            let found = searcher.search_one(&queries.row_to_f32(0).unwrap(), search.radius(radius)).unwrap();
            assert_eq!(found, expected[0]);
        }
        assert!(batch(&searcher, &queries, search.radius(f32::NEG_INFINITY)).iter().all(Vec::is_empty));
    }
}

#[test]
fn one_query_finds_what_a_batch_finds() {
    let of = |rows: usize, seed: u64| -> Vec<f32> {
        let values = uniform(rows, 9, seed);
        (0..rows)
            .flat_map(|row| values.row_to_f32(row).unwrap().into_owned())
            .map(|x| x.round().abs())
            .collect()
    };
    let bytes = |values: Vec<f32>| Vectors::from_u8(values.iter().map(|&x| x as u8).collect(), 9).unwrap();
    let halves =
        |values: Vec<f32>| Vectors::from_f16(values.iter().map(|&x| f16::from_f32(x)).collect(), 9).unwrap();
    let queries = Vectors::from_f32(of(10, 2), 9).unwrap();
    let some = IdSet::from_ids(700, (0..700).filter(|id| id % 3 > 0)).unwrap();
    for base in [Vectors::from_f32(of(700, 1), 9).unwrap(), bytes(of(700, 1)), halves(of(700, 1))] {
        for metric in METRICS {
            let searcher = searcher(base.clone(), metric);
            for search in [Search::new(7), Search::new(1).beam(1), Search::new(5).beam(9).among(&some)] {
                let all = batch(&searcher, &queries, search);
                for (query, expected) in all.iter().enumerate() {
                    let found = searcher.search_one(&queries.row_to_f32(query).unwrap(), search).unwrap();
                    assert_eq!(&found, expected, "{metric} of {}, {search:?}", base.element_type());
                }
            }
        }
    }
}

#[test]
fn a_filter_keeps_its_promise_at_every_share() {
    let (base, queries) = (uniform(4000, 6, 1), uniform(40, 6, 2));
    for metric in METRICS {
        let searcher = searcher(base.clone(), metric);
        for one_in in [1, 2, 3, 20, 4000] {
            let passes = |id: u32| id.is_multiple_of(one_in);
            let ids = IdSet::from_ids(4000, (0..4000).filter(|&id| passes(id))).unwrap();
            let expected = exact(&searcher, &queries, passes);
            let among = Search::new(10).beam(16).among(&ids);
            let found = batch(&searcher, &queries, among);
            let recall = recall(&found, &expected, 10.min(ids.len()));
            assert!(recall >= 0.95, "{metric}, one in {one_in}: {recall}");
            // A predicate may take another way, but must find as much.
            let accepted = batch(&searcher, &queries, Search::new(10).beam(16).accept(&passes));
            let recall = self::recall(&accepted, &expected, 10.min(ids.len()));
            assert!(recall >= 0.95, "{metric}, one in {one_in} by predicate: {recall}");
        }
        let none = IdSet::new(4000);
        assert!(batch(&searcher, &queries, Search::new(10).among(&none)).iter().all(Vec::is_empty));
        assert!(
            searcher
                .search_one(&queries.row_to_f32(0).unwrap(), Search::new(1).accept(&|_| false))
                .unwrap()
                .is_empty()
        );
    }
}

#[test]
fn rows_far_from_the_query_are_found_among_those_that_pass() {
    // Half of the rows pass, and none of them lies near the queries.
    let base = uniform(8000, 4, 1);
    let is_near = |row: &[f32]| row[0] > -1.0;
    let far: Vec<u32> = (0..8000).filter(|&row| !is_near(&base.row_to_f32(row as usize).unwrap())).collect();
    let rows = (0..30).flat_map(|row| vec![9.0, row as f32 / 10.0, 0.0, 1.0]);
    let queries = Vectors::from_f32(rows.collect(), 4).unwrap();
    let on_cpu = searcher(base, Metric::L2);
    let ids = IdSet::from_ids(8000, far).unwrap();
    let expected = exact(&on_cpu, &queries, |id| ids.contains(id));
    let search = Search::new(10).beam(25).among(&ids);
    let found = on_cpu.search(&queries, search, &Progress::silent()).unwrap();
    assert!(found.computed() < 30 * 900, "{} distances", found.computed());
    let recall = recall(&batch(&on_cpu, &queries, search), &expected, 10);
    assert!(recall > 0.9, "{recall}");
    // No row lies within this radius, and no exact search is needed to tell.
    let near = search.radius(1.0);
    let found = on_cpu.search(&queries, near, &Progress::silent()).unwrap();
    assert!((0..30).all(|query| found.neighbors(query).next().is_none()));
    assert!(found.computed() < 30 * 900, "{} distances", found.computed());
    // One row of these passes; the graph leads to few others that do.
    let few = IdSet::from_ids(8000, [5]).unwrap();
    let found = batch(&on_cpu, &queries, Search::new(3).beam(3).among(&few));
    assert!(found.iter().all(|rows| rows.len() == 1 && rows[0].id == 5));
}

#[test]
fn a_filter_may_pass_a_row_and_not_the_one_that_it_repeats() {
    let values = uniform(4000, 5, 1);
    let rows = (0..8000).flat_map(|row| values.row_to_f32(row % 4000).unwrap().into_owned());
    let base = Vectors::from_f32(rows.collect(), 5).unwrap();
    let (searcher, queries) = (searcher(base, Metric::L2), uniform(20, 5, 2));
    assert_eq!(searcher.index().repeated().len(), 4000);
    let later = IdSet::from_ids(8000, 4000..8000).unwrap();
    let expected = exact(&searcher, &queries, |id| id >= 4000);
    let search = Search::new(10).beam(12).among(&later);
    for device in devices().into_iter().chain([Device::Cpu]) {
        let found = batch(&searcher.clone().device(device).unwrap(), &queries, search);
        assert!(recall(&found, &expected, 10) >= 0.95, "{device}");
    }
}

#[test]
fn every_device_finds_what_the_cpu_finds_or_exactly_the_nearest() {
    let (base, queries) = (uniform(3000, 5, 1), uniform(5, 5, 2));
    let set =
        |passes: &dyn Fn(u32) -> bool| IdSet::from_ids(3000, (0..3000).filter(|&id| passes(id))).unwrap();
    let (few, many, later) = (set(&|id| id % 50 == 0), set(&|id| id % 4 > 0), set(&|id| id > 1000));
    let is_odd = |id: u32| id % 2 == 1;
    for metric in METRICS {
        let on_cpu = searcher(base.clone(), metric);
        let radius = batch(&on_cpu, &queries, Search::new(4))[0][2].distance;
        let searches: [(Search<'_>, &dyn Fn(u32) -> bool); 7] = [
            (Search::new(4).beam(4).among(&few), &|id| few.contains(id)),
            (Search::new(1).beam(1).among(&many), &|id| many.contains(id)),
            (Search::new(200).beam(260).among(&later), &|id| later.contains(id)),
            (Search::new(4).beam(8).accept(&is_odd), &is_odd),
            (Search::new(1500).beam(1500).among(&later), &|id| later.contains(id)),
            (Search::new(4).beam(8).radius(radius), &|_| true),
            (Search::new(4).beam(8).among(&many).radius(radius), &|id| many.contains(id)),
        ];
        for device in devices() {
            let searcher = on_cpu.clone().device(device).unwrap().batch(4);
            for &(search, passes) in &searches {
                let of_cpu = batch(&on_cpu, &queries, search);
                let Ok(found) = searcher.search(&queries, search, &Progress::silent()) else {
                    assert!(of_cpu[0].len() > 1024, "{search:?}");
                    continue;
                };
                let found: Vec<Vec<Neighbor>> =
                    (0..queries.len()).map(|query| found.neighbors(query).collect()).collect();
                let near = exact(&on_cpu, &queries, passes);
                for (query, rows) in found.iter().enumerate() {
                    let is_exact = near[query].starts_with(rows);
                    assert!(is_exact || rows == &of_cpu[query], "{metric}, {device}, {search:?}");
                    assert!(rows.len() >= of_cpu[query].len());
                }
                let one = searcher.search_one(&queries.row_to_f32(0).unwrap(), search).unwrap();
                assert_eq!(one, found[0], "{metric}, {device}, {search:?}");
            }
        }
    }
}

#[test]
fn exact_search_among_some_rows_judges_filtered_searches() {
    let (base, queries) = (uniform(3000, 5, 1), uniform(12, 5, 2));
    let ids = IdSet::from_ids(3000, (0..3000).filter(|id: &u32| id.is_multiple_of(3))).unwrap();
    let left_out = IdSet::from_ids(3000, (0..3000).filter(|id: &u32| id.is_multiple_of(5))).unwrap();
    for metric in METRICS {
        let builder = Builder::new(Strategy::cagra().degree(16)).knn(32).metric(metric).device(Device::Cpu);
        let whole = builder.clone().build(&base).unwrap();
        let part = builder.among(left_out.complement()).build(&base).unwrap();
        for index in [whole, part] {
            let has_all = index.left_out().is_none();
            let may_be_found = |id: u32| id.is_multiple_of(3) && (has_all || !id.is_multiple_of(5));
            let searcher = Searcher::new(index, base.clone(), &Progress::silent()).unwrap();
            let expected = exact(&searcher, &queries, may_be_found);
            let rows = IdSet::from_ids(3000, (0..3000).filter(|&id| may_be_found(id))).unwrap();
            for device in devices().into_iter().chain([Device::Cpu]) {
                let search = ExactSearch::new(7).metric(metric).among(rows.clone()).device(device);
                let (truth, _) = search.run(&base, &queries).unwrap();
                for (query, expected) in expected.iter().enumerate() {
                    let ids = expected[..7].iter().map(|row| row.id);
                    assert!(ids.eq(truth.ids(query).iter().copied()), "{metric}, {device}");
                    let distances = expected[..7].iter().map(|row| row.distance);
                    assert!(distances.eq(truth.distances(query).unwrap().iter().copied()));
                }
            }
            // A truth of all rows serves too, if enough of its rows may be found.
            let truth = ground_truth(&base, &queries, metric, 200, &Progress::silent()).unwrap();
            let judged = |test: TestQueries<'_>| searcher.evaluate(test, &[100], &Progress::silent());
            let test = TestQueries::new(&queries, &truth, 7);
            let found = batch(&searcher, &queries, Search::new(7).beam(100).among(&ids));
            let evaluation = judged(test.among(&ids)).unwrap()[0];
            assert!((evaluation.recall_ids - recall(&found, &expected, 7)).abs() < 1e-12, "{metric}");
            assert!(evaluation.recall > 0.9, "{metric}: {}", evaluation.recall);
            let short = ground_truth(&base, &queries, metric, 7, &Progress::silent()).unwrap();
            let error = judged(TestQueries::new(&queries, &short, 7).among(&ids)).unwrap_err().to_string();
            assert!(error.contains("that a search may find, expected 7: make it with more"), "{error}");
            let other = IdSet::all(2999);
            let error = judged(test.among(&other)).unwrap_err().to_string();
            assert!(error.contains("filter: found a set of 2999 rows, expected 3000"), "{error}");
        }
    }
    let refused =
        |k: usize, ids: IdSet| ExactSearch::new(k).among(ids).run(&base, &queries).unwrap_err().to_string();
    assert!(refused(1001, ids).contains("k: found 1001, expected 1 to the 1000 rows in the set of"));
    assert!(refused(1, IdSet::new(3000)).contains("k: found 1, expected 1 to the 0 rows in the set of"));
    assert!(refused(1, IdSet::all(9)).contains("filter: found a set of 9 rows, expected 3000"));
}

#[test]
fn filters_hold_on_zero_vectors_and_on_bytes_given_as_floats() {
    // Exact search on a GPU takes the rows that it holds: bytes, if they are, until a query is not.
    let values = |rows: usize, seed| {
        let values = uniform(rows, 6, seed);
        let row = |row| values.row_to_f32(row).unwrap().into_owned();
        (0..rows).flat_map(row).map(|x| (20.0 * x).abs().round()).collect::<Vec<f32>>()
    };
    let mut rows = values(3000, 1);
    rows[6 * 10..6 * 14].fill(0.0);
    let base = Vectors::from_f32(rows, 6).unwrap();
    let whole = Vectors::from_f32(values(20, 2), 6).unwrap();
    let broken = Vectors::from_f32(values(20, 3).iter().map(|x| x / 3.0).collect(), 6).unwrap();
    let zero = Vectors::from_f32(vec![0.0; 6], 6).unwrap();
    let ids = IdSet::from_ids(3000, (0..3000).filter(|id| id % 2 == 0)).unwrap();
    for metric in METRICS {
        let on_cpu = searcher(base.clone(), metric);
        for device in devices() {
            let searcher = on_cpu.clone().device(device).unwrap();
            for queries in [&whole, &broken, &zero, &whole] {
                let expected = exact(&on_cpu, queries, |id| ids.contains(id));
                for (found, expected) in
                    batch(&searcher, queries, Search::new(9).beam(20).among(&ids)).iter().zip(&expected)
                {
                    assert_eq!(found, &expected[..9], "{metric}, {device}");
                }
            }
        }
    }
}

#[test]
fn wrong_options_are_refused() {
    let (base, n) = (uniform(30_000, 3, 1), 30_000);
    let ring: Vec<Vec<u32>> = (0..n).map(|node| vec![(node + 1) % n]).collect();
    let parameters = BTreeMap::new();
    let description = Description { kind: "ring".into(), metric: Metric::L2, seed: 0, parameters };
    let index = Index::from_rows(description, &base, &ring, vec![0]).unwrap();
    let searcher = Searcher::new(index, base, &Progress::silent()).unwrap();
    let text = |searcher: &Searcher, query: &[f32], search: Search<'_>| {
        searcher.search_one(query, search).unwrap_err().to_string()
    };
    let row = [1.0, 2.0, 3.0];
    let other = IdSet::new(7);
    let cases = [
        (Search::new(0), "k: found 0, expected 1 to the 30000 rows of the base"),
        (Search::new(3).beam(2), "beam: found 2, expected at least k = 3"),
        (Search::new(3).radius(f32::NAN), "radius: found NaN, expected a distance"),
        (Search::new(3).among(&other), "filter: found a set of 7 rows, expected 30000 as in vectors"),
    ];
    for (search, expected) in cases {
        assert_eq!(text(&searcher, &row, search), expected);
        let queries = Vectors::from_f32(row.to_vec(), 3).unwrap();
        let error = searcher.search(&queries, search, &Progress::silent()).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    assert_eq!(
        text(&searcher, &row[..2], Search::new(3)),
        "query: found dimension 2, expected 3 as in the base"
    );
    let error = searcher.search_one(&[1.0, f32::NAN, 2.0], Search::new(3)).unwrap_err();
    assert!(matches!(error, Error::Value { row: 0, dim: 1, .. }), "{error}");
    let on_gpu = searcher.device(Device::Emulated).unwrap();
    let error = text(&on_gpu, &row, Search::new(10).beam(513));
    assert_eq!(error, "beam: found 513, expected at most 512 on a GPU");
}

#[test]
fn a_searcher_is_shared_by_threads() {
    fn check<T: Send + Sync + Clone + 'static>(_: &T) {}
    let (base, queries) = (Arc::new(uniform(500, 8, 1)), uniform(64, 8, 2));
    let index: Arc<Index> = Arc::new(Builder::new(Strategy::nsg()).knn(24).build(&base).unwrap());
    let searcher = Searcher::new(Arc::clone(&index), Arc::clone(&base), &Progress::silent()).unwrap();
    check(&searcher);
    assert!(std::ptr::eq(searcher.base(), &*base) && std::ptr::eq(searcher.index(), &*index));
    let expected = batch(&searcher, &queries, Search::new(5).beam(20));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let searcher = searcher.clone();
            let (queries, expected) = (&queries, &expected);
            scope.spawn(move || {
                for (query, expected) in expected.iter().enumerate() {
                    let found = searcher
                        .search_one(&queries.row_to_f32(query).unwrap(), Search::new(5).beam(20))
                        .unwrap();
                    assert_eq!(&found, expected);
                }
            });
        }
    });
}
