//! Indexes of every kind: invariants, reproducibility, quality.

use std::collections::{BTreeMap, BTreeSet};
use std::f64::consts::TAU;

use tagore::{
    Builder, Collect, Descent, Description, Error, Filter, Index, MAX_LAYER_BEAM, Metric, Progress, Start,
    Strategy, Synth, TestQueries, Vectors, evaluate, ground_truth,
};
use tagore_device::prune::rule::Rule;
use tagore_device::random::{Draws, Stage};
use tagore_device::rule_kernels;

use crate::reference::{check_graph, hard_cases, reachable, search, separated, uniform};

/// The kinds that guarantee a path from the entry points to every node, under L2 and cosine.
const CONNECTED: [&str; 5] = ["nsg", "nssg", "vamana", "tau-mng", "alpha-cng"];

fn rows(index: &Index) -> Vec<Vec<u32>> {
    (0..index.len()).map(|node| index.neighbors(node).to_vec()).collect()
}

#[test]
fn every_kind_keeps_its_invariants_on_hard_data() {
    const ROWS: usize = 220;
    for (name, base) in hard_cases(ROWS, 6, 9) {
        for metric in [Metric::L2, Metric::Cosine, Metric::InnerProduct] {
            let graph = Descent::new().metric(metric).knn(40).build(&base).unwrap();
            for strategy in Strategy::all() {
                let degree = strategy.max_degree();
                let index = Builder::new(strategy).metric(metric).build_from(&base, &graph).unwrap();
                let what = format!("{} on {name}, {metric}", index.kind());
                check_graph(&index, &what);
                index.verify(&Progress::silent()).unwrap();
                if CONNECTED.contains(&index.kind()) {
                    // Under inner product, short rows without incoming edges may stay apart.
                    let listed = rows(&index).into_iter().flatten().chain(index.entries().iter().copied());
                    let listed = listed.collect::<BTreeSet<u32>>().len();
                    let expected = if metric == Metric::InnerProduct { listed } else { ROWS };
                    // Layers may lead to a few more.
                    let unreachable = index.statistics(&Progress::silent()).unwrap().unreachable;
                    let reached = ROWS - unreachable as usize;
                    assert!(expected <= reached && reached <= ROWS, "{what}: {reached}");
                }
                if index.kind() == "cagra" {
                    // Equal rows are one node.
                    let degree = degree.min(index.len() - index.repeated().len() - 1);
                    let full = (0..ROWS).all(|node| index.neighbors(node).len() == degree);
                    assert!(full, "{what}: a row is not full");
                }
            }
        }
    }
}

#[test]
fn every_kind_builds_at_every_small_size() {
    for n in [1, 2, 3, 31, 32, 33, 95, 96, 97, 98] {
        for dim in [1, 97] {
            let base = uniform(n, dim, n as u64);
            for strategy in Strategy::all() {
                let index = Builder::new(strategy).build(&base).unwrap();
                let what = format!("{} of {n} x {dim}", index.kind());
                check_graph(&index, &what);
                assert_eq!(index.len(), n);
                assert_eq!(index.statistics(&Progress::silent()).unwrap().unreachable, 0, "{what}");
                let result = search(index, &base, &base, 1, 100).unwrap();
                let found = (0..n).filter(|&query| result.distances(query)[0] == 0.0).count();
                assert!(found * 10 >= n * 9, "{what}: {found} queries found themselves");
            }
        }
    }
}

#[test]
fn every_kind_finds_the_neighbours_of_queries() {
    let synth = Synth::new(4000, 40, 2).unwrap();
    let (base, queries) = (synth.base(), synth.queries(200));
    for metric in [Metric::L2, Metric::Cosine] {
        let truth = ground_truth(&base, &queries, metric, 10, &Progress::silent()).unwrap();
        let graph = Descent::new().metric(metric).knn(64).build(&base).unwrap();
        for strategy in Strategy::all() {
            let index = Builder::new(strategy).metric(metric).build_from(&base, &graph).unwrap();
            let found = evaluate(
                &index,
                &base,
                TestQueries::new(&queries, &truth, 10),
                &[20, 100],
                &Progress::silent(),
            )
            .unwrap();
            let what = format!("{}, {metric}: {found:?}", index.kind());
            assert!(
                found[1].recall > 0.98 && found[0].recall > 0.85 && found[0].recall < found[1].recall,
                "{what}"
            );
            assert!(found[0].distances < found[1].distances && found[1].distances < 2500.0, "{what}");
        }
    }
}

#[test]
fn every_kind_finds_separate_clusters() {
    // Clusters of 50.
    const ROWS: usize = 1800;
    let (base, queries) = (separated(ROWS, 36, 16, 0), separated(108, 36, 16, 1));
    for metric in [Metric::L2, Metric::Cosine] {
        let truth = ground_truth(&base, &queries, metric, 10, &Progress::silent()).unwrap();
        // No list leaves its cluster.
        let graph = Descent::new().metric(metric).knn(40).build(&base).unwrap();
        // Metrics matter to distances alone: every second kind is enough for the other one.
        let step = if metric == Metric::L2 { 1 } else { 2 };
        for strategy in Strategy::all().into_iter().step_by(step) {
            let builder = Builder::new(strategy).metric(metric);
            let index = builder.build_from(&base, &graph).unwrap();
            let what = format!("{}, {metric}", index.kind());
            check_graph(&index, &what);
            index.verify(&Progress::silent()).unwrap();
            assert_eq!(reachable(&index), ROWS, "{what}");
            assert_eq!(index.statistics(&Progress::silent()).unwrap().unreachable, 0, "{what}");
            if index.kind() == "cagra" {
                assert!((0..ROWS).all(|node| index.neighbors(node).len() == 32), "{what}: a row is not full");
            }
            let recall = |index: &Index| {
                evaluate(index, &base, TestQueries::new(&queries, &truth, 10), &[40], &Progress::silent())
                    .unwrap()[0]
                    .recall
            };
            assert!(recall(&index) >= 0.995, "{what}: {}", recall(&index));
            let plain = builder.layers(false).build_from(&base, &graph).unwrap();
            assert!(plain.layers().is_empty(), "{what}");
            assert_eq!(reachable(&plain), ROWS, "{what} without layers");
        }
    }
}

#[test]
fn layers_are_built_only_where_searches_need_them() {
    let base = Synth::new(3000, 24, 5).unwrap().base();
    for strategy in Strategy::all() {
        let index = Builder::new(strategy).knn(48).build(&base).unwrap();
        assert!(index.layers().is_empty(), "{}", index.kind());
    }
    let base = separated(3000, 60, 16, 0);
    let index = Builder::new(Strategy::cagra()).knn(40).build(&base).unwrap();
    let layers = index.layers();
    assert!(!layers.is_empty());
    for (layer, below) in layers.iter().zip([3000].into_iter().chain(layers.iter().map(|l| l.nodes().len())))
    {
        assert!(layer.nodes().len() <= below / 8 && layer.beam() <= MAX_LAYER_BEAM);
        // Every cluster has a node in the layer.
        let clusters: BTreeSet<u32> = layer.nodes().iter().map(|node| node % 60).collect();
        assert!(clusters.len() == 60 || layer.nodes().len() < 120, "{} clusters", clusters.len());
    }
    assert!(index.entries().iter().all(|entry| layers[layers.len() - 1].nodes().contains(entry)));
}

#[test]
fn inner_product_finds_the_largest_products() {
    let base = uniform(2000, 12, 3);
    let queries = uniform(100, 12, 4);
    let truth = ground_truth(&base, &queries, Metric::InnerProduct, 10, &Progress::silent()).unwrap();
    for strategy in [Strategy::nsg(), Strategy::vamana(), Strategy::cagra()] {
        let index = Builder::new(strategy).metric(Metric::InnerProduct).knn(64).build(&base).unwrap();
        let found =
            evaluate(&index, &base, TestQueries::new(&queries, &truth, 10), &[100], &Progress::silent())
                .unwrap();
        assert!(found[0].recall > 0.9, "{}: {found:?}", index.kind());
    }
}

/// Evenly spread directions.
fn normal(rows: usize, dim: usize, seed: u64) -> Vec<Vec<f32>> {
    let draws = Draws::new(seed, Stage::Test, 3, 0);
    // Box-Muller, of two draws.
    let value = |i: usize| {
        let (length, angle) = (1.0 - draws.unit(2 * i as u64), draws.unit(2 * i as u64 + 1));
        ((-2.0 * length.ln()).sqrt() * (TAU * angle).cos()) as f32
    };
    (0..rows).map(|row| (0..dim).map(|d| value(row * dim + d)).collect()).collect()
}

#[test]
fn inner_product_finds_rows_of_any_norm() {
    let (rows, dim) = (3000, 24);
    let mut values = normal(rows, dim, 5);
    for (row, norm) in values.iter_mut().zip(normal(rows, 1, 6)) {
        row.iter_mut().for_each(|x| *x *= (0.4 * norm[0]).exp());
    }
    let base = Vectors::from_f32(values.concat(), dim).unwrap();
    let queries = Vectors::from_f32(normal(300, dim, 7).concat(), dim).unwrap();
    let truth = ground_truth(&base, &queries, Metric::InnerProduct, 10, &Progress::silent()).unwrap();
    let graph = Descent::new().metric(Metric::InnerProduct).build(&base).unwrap();
    // With candidates in the order of rule distances CAGRA found 0.80, NSG 0.32 and Vamana 0.46.
    for strategy in [Strategy::cagra(), Strategy::nsg(), Strategy::vamana()] {
        let index = Builder::new(strategy).metric(Metric::InnerProduct).build_from(&base, &graph).unwrap();
        let found =
            evaluate(&index, &base, TestQueries::new(&queries, &truth, 10), &[32], &Progress::silent())
                .unwrap();
        assert!(found[0].recall > 0.95, "{}: {found:?}", index.kind());
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let base = Synth::new(1200, 18, 6).unwrap().base();
    let folder = tempfile::tempdir().unwrap();
    let build = |strategy: Strategy, threads: usize, seed: u64| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let builder = Builder::new(strategy).knn(32).start(Start::Random).seed(seed);
        let path = folder.path().join("x.tagore");
        pool.install(|| builder.build(&base)).unwrap().save(&path).unwrap();
        std::fs::read(&path).unwrap()
    };
    for strategy in Strategy::all() {
        let one = build(strategy.clone(), 1, 5);
        assert!(one == build(strategy.clone(), 2, 5), "{}", strategy.kind());
        assert!(one != build(strategy.clone(), 2, 6), "{}", strategy.kind());
    }
}

#[test]
fn any_collect_filter_and_threshold_combine() {
    let base = Synth::new(800, 16, 6).unwrap().base();
    let graph = Descent::new().knn(40).build(&base).unwrap();
    let mut different = std::collections::HashSet::new();
    for collect in [Collect::OneHop, Collect::TwoHop, Collect::Path] {
        let named = ["dist", "angle", "rank", "alpha-cng"].map(|name| name.parse().unwrap());
        for filter in named.into_iter().chain([Filter::Spread]) {
            let strategy = Strategy::nsg().collect(collect).filter(filter.clone()).degree(12);
            let index = Builder::new(strategy).build_from(&base, &graph).unwrap();
            let what = format!("{collect:?} {filter:?}");
            check_graph(&index, &what);
            assert_eq!(reachable(&index), 800, "{what}");
            assert_eq!(index.description().parameters["filter"], filter.name());
            different.insert(rows(&index));
        }
    }
    assert_eq!(different.len(), 15, "two combinations gave the same graph");
}

#[test]
fn a_larger_alpha_and_a_smaller_angle_keep_more_edges() {
    let base = Synth::new(1500, 16, 6).unwrap().base();
    let graph = Descent::new().knn(48).build(&base).unwrap();
    let degree = |strategy: Strategy, filter: tagore::Result<Filter>| {
        let builder = Builder::new(strategy.filter(filter.unwrap()));
        builder.build_from(&base, &graph).unwrap().mean_degree()
    };
    let (vamana, nssg) = (Strategy::vamana, Strategy::nssg);
    assert!(degree(vamana(), Filter::distance(1.0)) < degree(vamana(), Filter::distance(1.3)));
    assert!(degree(nssg(), Filter::angle(70.0)) < degree(nssg(), Filter::angle(50.0)));
}

/// Accepts every candidate, so the nearest ones remain.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct All;

impl Rule for All {
    #[inline(always)]
    fn keep(&self, _: f32, _: f32, _: f32, _: f32) -> bool {
        true
    }
}

rule_kernels! {
    unsafe All: all_f32 all_f16 all_u8 all_i8;
}

#[test]
fn a_custom_rule_prunes() {
    let base = uniform(300, 4, 1);
    let graph = Descent::new().knn(30).build(&base).unwrap();
    let strategy = Strategy::custom("all", All, None, 0.0).unwrap().degree(300);
    let all = Builder::new(strategy).build_from(&base, &graph).unwrap();
    for node in 0..300 {
        assert!(graph.neighbors(node).iter().all(|id| all.neighbors(node).contains(id)));
    }
    assert_eq!(all.kind(), "all");
}

#[test]
fn a_larger_tau_keeps_more_edges() {
    let base = uniform(300, 4, 1);
    let graph = Descent::new().knn(30).build(&base).unwrap();
    let index = |strategy: Strategy| Builder::new(strategy).build_from(&base, &graph).unwrap();
    let plain = index(Strategy::nsg()).mean_degree();
    // At tau 0 the rules are those of NSG and Vamana.
    assert_eq!(rows(&index(Strategy::tau_mng())), rows(&index(Strategy::nsg())));
    let convergent =
        |alpha, tau| index(Strategy::alpha_cng().filter(Filter::alpha_convergent(alpha, tau).unwrap()));
    let (at_one, scaled) = (convergent(1.0, 0.0), convergent(1.2, 0.0));
    assert!(rows(&at_one) == rows(&index(Strategy::nsg())) && plain < scaled.mean_degree());
    assert_eq!(scaled.description().parameters["alpha"], "1.2");
    let shifted = index(Strategy::tau_mng().filter(Filter::tau_monotonic(0.05).unwrap()));
    for wide in [shifted, convergent(1.0, 0.05)] {
        check_graph(&wide, wide.kind());
        assert!(wide.mean_degree() > plain);
    }
}

#[test]
fn parameters_out_of_range_are_errors() {
    let base = uniform(200, 4, 1);
    let what = |builder: Builder| match builder.build(&base).unwrap_err() {
        Error::Argument { parameter, .. } => parameter,
        other => panic!("{other}"),
    };
    assert_eq!(what(Builder::new(Strategy::nsg().degree(0))), "degree");
    assert_eq!(what(Builder::new(Strategy::nsg().degree(513))), "degree");
    assert_eq!(what(Builder::new(Strategy::nsg().candidates(0))), "candidates");
    assert_eq!(what(Builder::new(Strategy::nsg()).knn(200)), "knn");
    assert_eq!(what(Builder::new(Strategy::cagra().degree(33)).knn(32)), "knn");
    assert_eq!(what(Builder::new(Strategy::nsg()).descent(Descent::new().expand(0))), "expand");
    for (filter, expected) in [
        (Filter::distance(f32::NAN), "alpha: found NaN, expected an alpha from 0.01 to 100"),
        (Filter::distance(-1.0), "alpha: found -1, expected an alpha from 0.01 to 100"),
        (Filter::distance(f32::INFINITY), "alpha: found inf, expected an alpha from 0.01 to 100"),
        (Filter::angle(181.0), "angle: found 181, expected degrees from 0 to 180"),
        (Filter::angle(f32::NAN), "angle: found NaN, expected degrees from 0 to 180"),
        (Filter::rank(-1.0), "max_detours: found -1, expected a number of detours from 0"),
        (Filter::tau_monotonic(-0.5), "tau: found -0.5, expected a tau from 0"),
        (Filter::tau_monotonic(f32::NAN), "tau: found NaN, expected a tau from 0"),
        (Filter::alpha_convergent(0.0, 0.0), "alpha: found 0, expected an alpha from 0.01 to 100"),
        (Filter::alpha_convergent(f32::NAN, 0.0), "alpha: found NaN, expected an alpha from 0.01 to 100"),
    ] {
        assert_eq!(filter.unwrap_err().to_string(), expected);
    }
    assert!(Strategy::custom("all", All, None, f32::INFINITY).is_err());
}

#[test]
fn a_graph_of_other_data_is_refused() {
    let (base, other) = (uniform(100, 4, 1), uniform(90, 4, 1));
    let graph = Descent::new().knn(10).build(&base).unwrap();
    let error = Builder::new(Strategy::nsg()).build_from(&other, &graph).unwrap_err().to_string();
    assert!(error.contains("100") && error.contains("90"), "{error}");
    let builder = Builder::new(Strategy::nsg()).metric(Metric::Cosine);
    assert!(matches!(builder.build_from(&base, &graph), Err(Error::Mismatch { .. })));
}

#[test]
fn a_given_graph_becomes_an_index() {
    let base = Vectors::from_f32(vec![0.0, 1.0, 2.0, 3.0], 1).unwrap();
    let description =
        || Description { kind: "line".into(), metric: Metric::L2, seed: 0, parameters: BTreeMap::new() };
    let line = [vec![1], vec![0, 2], vec![1, 3], vec![2]];
    let index = Index::from_rows(description(), &base, &line, vec![0]).unwrap();
    let query = Vectors::from_f32(vec![2.9], 1).unwrap();
    let result = search(index, &base, &query, 2, 2).unwrap();
    assert_eq!(result.ids(0), [3, 2]);
    for wrong in [
        [vec![1], vec![1, 2], vec![1, 3], vec![2]],
        [vec![1], vec![0, 0], vec![1, 3], vec![2]],
        [vec![1], vec![0, 4], vec![1, 3], vec![2]],
    ] {
        assert!(matches!(
            Index::from_rows(description(), &base, &wrong, vec![0]),
            Err(Error::Mismatch { .. })
        ));
    }
    assert!(Index::from_rows(description(), &base, &line, vec![]).is_err());
    assert!(Index::from_rows(description(), &base, &line, vec![4]).is_err());
    assert!(Index::from_rows(description(), &base, &line[..3], vec![0]).is_err());
}
