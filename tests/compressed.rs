//! Builds on codes, and searches on codes, whose answers are reranked by the vectors.

use half::f16;
use tagore::outofcore::{ClusterPlan, Limits};
use tagore::{
    Builder, Collect, Compression, DataShape, Device, ElementType, IdSet, Metric, Progress, Search,
    SearchResult, Searcher, Start, Strategy, Target, Vectors, ground_truth,
};

use crate::dirty_codes::{Searched, dirty, recall_by_distance, searched};
use crate::gpu::devices;
use crate::reference::uniform;

pub(crate) const METRICS: [Metric; 3] = [Metric::L2, Metric::InnerProduct, Metric::Cosine];

const COMPRESSIONS: [Compression; 2] = [Compression::F16, Compression::Int8];

/// Vectors far from the origin, some of them zero.
fn shifted(rows: usize, dim: usize, seed: u64) -> Vectors {
    let plain = uniform(rows, dim, seed);
    let component = |row: usize, (i, x): (usize, f32)| {
        if row % 97 == 5 { 0.0 } else { x * 3.0 + if i % 3 == 0 { 40.0 } else { -2.0 } }
    };
    let rows = (0..rows).flat_map(|row| {
        let values = plain.row_to_f32(row).unwrap().into_owned();
        values.into_iter().enumerate().map(move |at| component(row, at)).collect::<Vec<_>>()
    });
    Vectors::from_f32(rows.collect(), dim).unwrap()
}

pub(crate) fn searcher(base: Vectors, metric: Metric) -> Searcher {
    let (degree, knn) = (16.min(base.len() - 1), 32.min(base.len() - 1));
    let builder = Builder::new(Strategy::cagra().degree(degree)).knn(knn).metric(metric).device(Device::Cpu);
    let index = builder.build(&base).unwrap();
    Searcher::new(index, base, &Progress::silent()).unwrap()
}

/// The share of the first ten of each exact answer that was found.
fn recall(base: &Vectors, queries: &Vectors, metric: Metric, found: &SearchResult) -> f64 {
    let truth = ground_truth(base, queries, metric, 10, &Progress::silent()).unwrap();
    let hits = (0..queries.len())
        .map(|query| found.ids(query).iter().filter(|id| truth.ids(query).contains(id)).count());
    hits.sum::<usize>() as f64 / (queries.len() * 10) as f64
}

#[test]
fn answers_are_exact_and_nearly_those_of_a_search_on_the_vectors() {
    let silent = Progress::silent();
    for metric in METRICS {
        let (base, queries) = (shifted(1500, 33, 1), shifted(60, 33, 2));
        let full = searcher(base.clone(), metric);
        let search = Search::new(10).beam(64);
        let expected = recall(&base, &queries, metric, &full.search(&queries, search, &silent).unwrap());
        for compression in COMPRESSIONS {
            let coded = full.clone().compressed(compression).unwrap();
            let found = coded.search(&queries, search, &silent).unwrap();
            let reached = recall(&base, &queries, metric, &found);
            assert!(reached > expected - 0.02, "{metric} {compression}: {reached} of {expected}");
            let exact = ground_truth(&base, &queries, metric, base.len(), &silent).unwrap();
            for query in 0..queries.len() {
                for found in found.neighbors(query) {
                    let rank = exact.ids(query).iter().position(|&id| id == found.id).unwrap();
                    assert_eq!(exact.distances(query).unwrap()[rank].to_bits(), found.distance.to_bits());
                }
                assert!(found.distances(query).is_sorted());
                let one = coded.search_one(&queries.row_to_f32(query).unwrap(), search).unwrap();
                assert!(found.neighbors(query).eq(one), "{metric} {compression}, query {query}");
            }
        }
    }
}

#[test]
fn devices_give_the_answers_of_the_cpu() {
    let silent = Progress::silent();
    let (f32s, queries) = (shifted(400, 37, 3), shifted(9, 37, 4));
    let halves = |vectors: &Vectors| {
        let rows = (0..vectors.len()).flat_map(|row| vectors.row_to_f32(row).unwrap().into_owned());
        Vectors::from_f16(rows.map(f16::from_f32).collect(), 37).unwrap()
    };
    let half = IdSet::from_ids(400, (0..400).filter(|id| id % 2 == 0)).unwrap();
    for metric in METRICS {
        for (base, compression) in [
            (f32s.clone(), Compression::F16),
            (f32s.clone(), Compression::Int8),
            (halves(&f32s), Compression::Int8),
        ] {
            let on_cpu = searcher(base, metric).compressed(compression).unwrap();
            for device in devices() {
                let searcher = on_cpu.clone().device(device).unwrap();
                for (search, rerank) in [
                    (Search::new(10).beam(50), 40),
                    (Search::new(3).beam(20), 1),
                    (Search::new(5).beam(400), 1000),
                    (Search::new(4).beam(20).radius(600.0), 20),
                    (Search::new(4).beam(20).among(&half), 5),
                ] {
                    let (on_cpu, searcher) = (on_cpu.clone().rerank(rerank), searcher.clone().rerank(rerank));
                    let expected = on_cpu.search(&queries, search, &silent).unwrap();
                    let found = searcher.search(&queries, search, &silent).unwrap();
                    assert!(found.computed() >= expected.computed());
                    let shape = format!("{metric} {compression} {search:?} on {device}");
                    assert_eq!(found.into_parts(), expected.into_parts(), "{shape}");
                    let one = searcher.search_one(&queries.row_to_f32(3).unwrap(), search).unwrap();
                    assert_eq!(
                        one,
                        on_cpu.search_one(&queries.row_to_f32(3).unwrap(), search).unwrap(),
                        "{shape}"
                    );
                }
            }
        }
    }
}

#[test]
fn codes_may_come_after_the_device() {
    let silent = Progress::silent();
    let (base, queries) = (uniform(300, 24, 5), uniform(5, 24, 6));
    let full = searcher(base, Metric::L2);
    let search = Search::new(6).beam(30);
    let expected = full.clone().compressed(Compression::Int8).unwrap();
    let expected = expected.search(&queries, search, &silent).unwrap().into_parts();
    for device in devices() {
        let coded = full.clone().device(device).unwrap().compressed(Compression::Int8).unwrap();
        assert_eq!(coded.runs_on(), device.to_string());
        assert_eq!(coded.search(&queries, search, &silent).unwrap().into_parts(), expected);
    }
}

#[test]
fn equal_rows_and_indexes_of_few_rows_are_searched() {
    let silent = Progress::silent();
    let base = Vectors::from_f32([1.5, 2.5, 3.5].repeat(4), 3).unwrap();
    let queries = Vectors::from_f32(vec![1.0, 2.0, 3.0, 1e9, 0.0, -1e9], 3).unwrap();
    for device in devices().into_iter().chain([Device::Cpu]) {
        let searcher = searcher(base.clone(), Metric::L2).compressed(Compression::Int8).unwrap();
        let found = searcher.device(device).unwrap().search(&queries, Search::new(4), &silent).unwrap();
        let mut ids = found.ids(0).to_vec();
        ids.sort_unstable();
        assert_eq!(ids, [0, 1, 2, 3], "{device}");
        assert_eq!(found.distances(0), [0.75; 4], "{device}");
    }
}

#[test]
fn codes_of_dirty_data_hold_or_warn() {
    let silent = Progress::silent();
    for Searched { name, queries, truth, full } in searched() {
        let (name, metric) = (*name, full.index().metric());
        let search = Search::new(10).beam(100);
        let expected = recall_by_distance(truth, &full.search(queries, search, &silent).unwrap());
        assert!(full.code_warning().is_none() && full.code_recall().is_none());
        for compression in COMPRESSIONS {
            let coded = full.clone().compressed(compression).unwrap();
            let reached = recall_by_distance(truth, &coded.search(queries, search, &silent).unwrap());
            let (measured, warning) = (coded.code_recall().unwrap(), coded.code_warning());
            let what = format!("{name}, {metric} {compression}: {reached} of {expected}, {measured}");
            assert!(reached > expected - 0.01 || warning.is_some(), "{what}");
            assert!(name != "clean" || warning.is_none(), "{what}: {warning:?}");
            if let Some(warning) = warning {
                assert!(warning.ends_with("use the full vectors"), "{warning}");
                assert!(measured < 0.98, "{what}");
            }
            // What one scale for most rows and the search on vectors for the others hold.
            let is_held = name.contains("sentinel") || name.contains("row") || name.contains("offset");
            let is_held = is_held && metric != Metric::InnerProduct;
            let is_held = is_held || name.contains("offset") || name.contains("far");
            assert!(!is_held || reached > expected - 0.01, "{what}");
        }
    }
}

#[test]
fn queries_that_codes_do_not_hold_are_searched_for_on_the_vectors() {
    let silent = Progress::silent();
    let half = IdSet::from_ids(1100, (0..1100).filter(|id| id % 2 == 0)).unwrap();
    let [base, _] = dirty().remove(1).1;
    // At ten sentinels and at rows between them.
    let near = (0..40)
        .flat_map(|i| base.row_to_f32(25 * i + 4).unwrap().iter().map(|x| x + 0.1).collect::<Vec<_>>());
    let queries = Vectors::from_f32(near.collect(), 32).unwrap();
    for metric in [Metric::L2, Metric::InnerProduct] {
        let full = searcher(base.clone(), metric);
        for compression in COMPRESSIONS {
            let coded = full.clone().compressed(compression).unwrap();
            for search in [Search::new(10), Search::new(4).beam(20).among(&half)] {
                let expected = coded.search(&queries, search, &silent).unwrap();
                let answers = full.search(&queries, search, &silent).unwrap();
                for query in 0..queries.len() {
                    let one = coded.search_one(&queries.row_to_f32(query).unwrap(), search).unwrap();
                    assert!(expected.neighbors(query).eq(one), "query {query}");
                    let is_far = queries.row_to_f32(query).unwrap().iter().any(|x| *x < -1000.0);
                    if is_far && (metric, compression) == (Metric::L2, Compression::Int8) {
                        assert_eq!(expected.ids(query), answers.ids(query), "{compression}, query {query}");
                    }
                }
                if (metric, compression) != (Metric::L2, Compression::Int8) {
                    continue;
                }
                for device in devices() {
                    let searcher = coded.clone().device(device).unwrap();
                    let found = searcher.search(&queries, search, &silent).unwrap();
                    assert_eq!(
                        found.into_parts(),
                        expected.clone().into_parts(),
                        "{compression} on {device}"
                    );
                    let one = searcher.search_one(&queries.row_to_f32(0).unwrap(), search).unwrap();
                    assert!(expected.neighbors(0).eq(one), "{compression} on {device}");
                }
            }
        }
    }
}

#[test]
fn codes_that_save_nothing_and_unknown_types_are_refused() {
    let bytes = Vectors::from_u8((0..200 * 8).map(|i| (i % 251) as u8).collect(), 8).unwrap();
    let error = searcher(bytes, Metric::L2).compressed(Compression::Int8).unwrap_err().to_string();
    assert_eq!(error, "vectors: found int8 for a base of u8, expected full: codes would not be smaller");
    let error = Compression::named("f32").unwrap_err().to_string();
    assert_eq!(error, "vectors: found f32, expected full, f16 or int8");
}

#[test]
fn builds_on_codes_leave_repeated_rows_out_of_the_graph() {
    let silent = Progress::silent();
    let once = uniform(300, 24, 9);
    // Row 300 + i repeats row 3 i.
    let rows = (0..300).chain((0..100).map(|i| 3 * i));
    let base =
        Vectors::from_f32(rows.flat_map(|row| once.row_to_f32(row).unwrap().into_owned()).collect(), 24)
            .unwrap();
    for device in devices().into_iter().chain([Device::Cpu]) {
        let builder = Builder::new(Strategy::nsg().degree(16)).knn(32).device(device);
        let builder = builder.compressed(Compression::Int8);
        let (index, stats) = builder.build_with_stats(&base, None).unwrap();
        assert_eq!((stats.repeated, index.repeated().len()), (100, 100), "{device}");
        assert_eq!(index.repeated().first_of(317), 51, "{device}");
        let searcher = Searcher::new(index, base.clone(), &silent).unwrap();
        let found = searcher.search_one(&base.row_to_f32(51).unwrap(), Search::new(2).beam(40)).unwrap();
        let found: Vec<_> = found.iter().map(|found| (found.id, found.distance)).collect();
        assert_eq!(found, [(51, 0.0), (317, 0.0)], "{device}");
    }
}

#[test]
fn builds_on_codes_give_nearly_as_good_an_index_of_the_vectors() {
    let silent = Progress::silent();
    for (metric, strategy) in
        METRICS.into_iter().zip([Strategy::cagra(), Strategy::nsg(), Strategy::vamana()])
    {
        let (base, queries) = (uniform(1200, 40, 7), uniform(50, 40, 8));
        let builder =
            Builder::new(strategy.degree(16)).knn(32).metric(metric).device(Device::Cpu).sample(100);
        let found = |builder: &Builder| {
            let (index, stats) = builder.build_with_stats(&base, None).unwrap();
            let searcher = Searcher::new(index, base.clone(), &silent).unwrap();
            let result = searcher.search(&queries, Search::new(10).beam(60), &silent).unwrap();
            (recall(&base, &queries, metric, &result), searcher, stats.sample)
        };
        let (expected, plain, _) = found(&builder);
        let full = plain.index().description();
        for compression in COMPRESSIONS {
            let (reached, searcher, sample) = found(&builder.clone().compressed(compression));
            let (index, coded) = (searcher.index(), searcher.index().description());
            assert!(reached > expected - 0.03, "{metric} {compression}: {reached} of {expected}");
            let parameters = coded.parameters.iter().filter(|(name, _)| *name != "vectors");
            assert_eq!(parameters.collect::<Vec<_>>(), full.parameters.iter().collect::<Vec<_>>());
            assert_eq!((coded.parameters["vectors"].as_str(), coded.metric), (compression.name(), metric));
            // Of these, CAGRA alone takes its candidates from lists alone, which are settled.
            let least = if coded.kind == "cagra" { 0.99 } else { 0.97 };
            let measure = tagore::Measure::default();
            let report = tagore::Report::measure(index, Some(&base), &sample, &measure).unwrap();
            let knn = report.knn.unwrap().recall[&32];
            assert!(knn > least, "{metric} {compression}: recall of the k-NN graph {knn}");
        }
    }
}

#[test]
fn settled_lists_are_pruned_alike_on_all_devices() {
    // The last is positive, so a long row has more edges to it than are filtered again.
    let shapes = [(64, 17, 30, 5), (44, 96, 20, 5), (800, 1, 16, 4)];
    for (number, (rows, dim, knn, power)) in shapes.into_iter().enumerate() {
        let plain = uniform(rows, dim, 14);
        // Heavy tails, so that some codes are cut and the others are coarse.
        let tailed = |x: f32| x.powi(power);
        let values = (0..rows)
            .flat_map(|row| plain.row_to_f32(row).unwrap().iter().map(|&x| tailed(x)).collect::<Vec<_>>());
        let base = Vectors::from_f32(values.collect(), dim).unwrap();
        let kinds =
            [Strategy::cagra(), Strategy::nsg(), Strategy::nssg(), Strategy::vamana(), Strategy::dpg()];
        // Emulated builds take long: each kind has one metric in the first shape, and the other one
        // in the second. All but CAGRA filter edges again in one way, and rows are long under inner
        // product.
        let metrics = [Metric::L2, Metric::InnerProduct].into_iter().cycle().skip(number);
        let cases: Vec<_> = match number {
            2 => vec![(Strategy::cagra(), Metric::L2), (Strategy::vamana(), Metric::InnerProduct)],
            _ => kinds.into_iter().zip(metrics).collect(),
        };
        for (strategy, metric) in cases {
            let name = format!("{rows} x {dim}, {metric}, {}", strategy.kind());
            let strategy = strategy.degree(8).collect(Collect::OneHop);
            let builder = Builder::new(strategy).knn(knn).metric(metric).start(Start::AllPairs);
            let builder = builder.compressed(Compression::Int8).layers(false);
            let built = |device| builder.clone().device(device).build(&base).unwrap();
            let expected = built(Device::Cpu);
            for device in devices() {
                let found = built(device);
                let differ = (0..rows).filter(|&node| found.neighbors(node) != expected.neighbors(node));
                assert_eq!(differ.count(), 0, "{name} on {device}");
            }
        }
    }
}

#[test]
fn one_row_is_built_on_codes() {
    let base = uniform(1, 24, 13);
    for device in devices().into_iter().chain([Device::Cpu]) {
        let builder = Builder::new(Strategy::nsg()).device(device).compressed(Compression::Int8);
        assert_eq!(builder.build(&base).unwrap().neighbors(0), [0u32; 0], "{device}");
    }
}

#[test]
fn builds_on_codes_collect_candidates_in_any_way() {
    for device in devices().into_iter().chain([Device::Cpu]) {
        // The emulator is slow.
        let rows = if device == Device::Emulated { 130 } else { 700 };
        let base = uniform(rows, 24, 11);
        for collect in [Collect::OneHop, Collect::TwoHop, Collect::Path] {
            let strategy = Strategy::vamana().degree(12).collect(collect);
            let builder = Builder::new(strategy).knn(16).device(device).compressed(Compression::Int8);
            let index = builder.build(&base).unwrap();
            assert_eq!(index.description().parameters["collect"], collect.name());
            for node in 0..rows {
                let mut row = index.neighbors(node).to_vec();
                row.sort_unstable();
                row.dedup();
                assert_eq!(row.len(), index.neighbors(node).len(), "{collect:?} on {device}, node {node}");
            }
        }
    }
}

#[test]
fn lists_on_codes_keep_near_neighbours_where_others_lie_apart() {
    // Of three rows in four, neighbours are twelve times nearer than those of the fourth.
    let near = |row: usize| if row.is_multiple_of(4) { 1.0 } else { 1.0 / 12.0 };
    for device in devices().into_iter().chain([Device::Cpu]) {
        // The emulator is slow.
        let count = if device == Device::Emulated { 500 } else { 1200 };
        let values = uniform(count, 24, 12).to_f32().unwrap();
        let rows = values.iter().enumerate().map(|(place, x)| x * near(place / 24)).collect();
        let base = Vectors::from_f32(rows, 24).unwrap();
        let builder = Builder::new(Strategy::cagra().degree(16)).knn(32).device(device).sample(300);
        let (index, stats) = builder.compressed(Compression::Int8).build_with_stats(&base, None).unwrap();
        let report =
            tagore::Report::measure(&index, Some(&base), &stats.sample, &tagore::Measure::default()).unwrap();
        let recall = report.knn.unwrap().recall[&32];
        assert!(recall > 0.99, "{device}: recall of the k-NN graph {recall}");
    }
}

#[test]
fn builds_on_codes_take_repeated_rows_and_devices() {
    let plain = uniform(600, 24, 9);
    let rows = (0..900).flat_map(|row| plain.row_to_f32(row % 600).unwrap().into_owned());
    let base = Vectors::from_f32(rows.collect(), 24).unwrap();
    let builder = Builder::new(Strategy::cagra().degree(12)).knn(24).compressed(Compression::Int8);
    let index = builder.clone().device(Device::Cpu).build(&base).unwrap();
    assert_eq!(index.repeated().len(), 300);
    let searcher = Searcher::new(index, base.clone(), &Progress::silent()).unwrap();
    let found = searcher.search_one(&base.row_to_f32(5).unwrap(), Search::new(2)).unwrap();
    assert_eq!(found.iter().map(|row| (row.id, row.distance)).collect::<Vec<_>>(), [(5, 0.0), (605, 0.0)]);
    for device in devices() {
        let index = builder.clone().device(device).build(&base).unwrap();
        assert_eq!(index.repeated().len(), 300, "{device}");
    }
}

#[test]
fn a_gpu_holds_less_for_builds_on_codes() {
    let data = DataShape::new(1_000_000, 960, ElementType::F32).unwrap();
    let builder = Builder::new(Strategy::nsg());
    let bytes = |builder: &Builder| {
        let plan = builder.plan(&data, Target::cuda()).unwrap();
        (plan.peak_device_bytes(), plan.peak_host_bytes())
    };
    let (full, int8) = (bytes(&builder), bytes(&builder.clone().compressed(Compression::Int8)));
    assert!(int8.0 + 3_500_000_000 < full.0, "{int8:?} {full:?}");
    assert!(int8.1 >= full.1 + 960_000_000, "{int8:?} {full:?}");
}

#[test]
fn builds_on_codes_that_cannot_be_are_refused() {
    let base = uniform(300, 8, 10);
    let builder = Builder::new(Strategy::cagra().degree(8)).knn(16).device(Device::Cpu);
    let graph = tagore::Descent::new().knn(16).device(Device::Cpu).build(&base).unwrap();
    let coded = builder.clone().compressed(Compression::Int8);
    let error = coded.build_from(&base, &graph).unwrap_err().to_string();
    assert_eq!(
        error,
        "vectors: found int8 for a build from a given k-NN graph, expected full: it takes the vectors themselves"
    );
    let limits = Limits { cluster_size: Some(100), ..Limits::default() };
    let error = ClusterPlan::new(&coded, &base, &limits).unwrap_err().to_string();
    assert_eq!(
        error,
        "vectors: found int8 for a build out of core, since it exceeds the limits of memory, expected full: it takes the vectors themselves"
    );
    let bytes = Vectors::from_u8((0..300 * 8).map(|i| (i % 251) as u8).collect(), 8).unwrap();
    let error = coded.build(&bytes).unwrap_err().to_string();
    assert_eq!(error, "vectors: found int8 for a base of u8, expected full: codes would not be smaller");
}
