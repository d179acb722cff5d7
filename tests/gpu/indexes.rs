//! Whole indexes on a device: the CPU's bytes, from the same k-NN graph.

use tagore::outofcore::{ClusterPlan, Limits, OutOfCore};
use tagore::{
    Builder, Collect, Descent, Device, Filter, Index, Metric, Progress, Strategy, Synth, TestQueries,
    Vectors, evaluate, ground_truth,
};

use super::{METRICS, devices};
use crate::reference::{hard_cases, uniform};

/// Checks that each device builds the CPU's index, both from a given k-NN graph and in one go.
fn check_build(case: &str, base: &Vectors, metric: Metric, knn: usize, strategy: &Strategy) {
    let builder = |device| {
        let descent = Descent::new().metric(metric).knn(knn).device(device);
        Builder::new(strategy.clone()).descent(descent)
    };
    for device in devices() {
        let shape =
            format!("{case}, {} x {}, {metric}, {}, {device}", base.len(), base.dim(), strategy.kind());
        let graph = Descent::new().metric(metric).knn(knn).device(device).build(base).unwrap();
        let expected = builder(Device::Cpu).build_from(base, &graph).unwrap();
        let of_graph = builder(device).build_from(base, &graph);
        let (fused, stats) = builder(device).sample(30).build_with_stats(base, None).unwrap();
        let (_, of_lists) = builder(Device::Cpu).sample(30).build_with_stats(base, Some(&graph)).unwrap();
        if stats.repeated > 0 {
            // The index has fewer nodes than the graph: equal rows are one node.
            let expected = builder(Device::Cpu).build(base).unwrap();
            assert_same(&fused, &expected, &shape);
            assert_same(&of_graph.unwrap(), &builder(Device::Cpu).build_from(base, &graph).unwrap(), &shape);
            continue;
        }
        assert_eq!(stats.sample, of_lists.sample, "{shape}");
        assert_eq!(stats.prune.device, device.to_string(), "{shape}");
        assert!(knn == 0 || !stats.prune.kernels.is_empty(), "{shape}");
        for index in [of_graph.unwrap_or_else(|error| panic!("{shape}: {error}")), fused] {
            assert_same(&index, &expected, &shape);
        }
    }
}

fn assert_same(found: &Index, expected: &Index, case: &str) {
    assert_eq!(found.entries(), expected.entries(), "{case}");
    assert_eq!(found.repeated(), expected.repeated(), "{case}");
    for node in 0..expected.len() {
        assert_eq!(found.neighbors(node), expected.neighbors(node), "{case}, node {node}");
    }
}

#[test]
fn indexes_of_every_kind_match_the_cpu() {
    let base = Synth::new(44, 13, 6).unwrap().base();
    for (strategy, metric) in Strategy::all().into_iter().zip(METRICS.into_iter().cycle()) {
        check_build("synth", &base, metric, 18, &strategy.degree(9));
    }
    check_build("synth", &base, Metric::Cosine, 18, &Strategy::cagra().degree(9));
    check_build("synth", &base, Metric::InnerProduct, 18, &Strategy::nssg().degree(9));
}

#[test]
fn indexes_of_hard_data_match_the_cpu() {
    let strategies = [Strategy::cagra(), Strategy::vamana(), Strategy::nssg(), Strategy::dpg()];
    let metrics = [Metric::L2, Metric::Cosine, Metric::L2];
    let cases = hard_cases(34, 5, 9).into_iter().zip(metrics.into_iter().cycle());
    for (((name, base), metric), strategy) in cases.zip(strategies.into_iter().cycle()) {
        check_build(name, &base, metric, 10, &strategy.degree(6));
    }
    for rows in [2, 3, 33] {
        for strategy in [Strategy::cagra(), Strategy::nsg(), Strategy::nssg()] {
            check_build("few", &uniform(rows, 1, 3), Metric::L2, rows - 1, &strategy);
        }
    }
}

#[test]
fn indexes_of_hard_data_by_inner_product_match_the_cpu() {
    let strategies = [Strategy::nssg(), Strategy::cagra(), Strategy::dpg(), Strategy::nsg()];
    for ((name, base), strategy) in hard_cases(34, 5, 9).into_iter().zip(strategies.into_iter().cycle()) {
        check_build(name, &base, Metric::InnerProduct, 10, &strategy.degree(6));
    }
}

#[test]
fn stages_of_pruning_combine() {
    let base = Synth::new(50, 33, 6).unwrap().base();
    // L2 and inner product in turn: each collection has both.
    let stages = [
        (Collect::OneHop, "angle".parse().unwrap()),
        (Collect::OneHop, "rank".parse().unwrap()),
        (Collect::TwoHop, "rank".parse().unwrap()),
        (Collect::TwoHop, "dist".parse().unwrap()),
        (Collect::Path, "rank".parse().unwrap()),
        (Collect::Path, Filter::Spread),
    ];
    let metrics = [Metric::L2, Metric::InnerProduct].into_iter().cycle();
    for ((collect, filter), metric) in stages.into_iter().zip(metrics) {
        let strategy = Strategy::nsg().collect(collect).filter(filter).degree(8).candidates(25);
        check_build("combined", &base, metric, 16, &strategy);
    }
}

#[test]
fn an_index_built_out_of_core_is_deterministic_and_as_good() {
    for device in devices() {
        // The emulator is slow.
        let (n, size, k) = if device == Device::Emulated { (120, 60, 8) } else { (30_000, 9000, 32) };
        let synth = Synth::new(n, 12, 5).unwrap();
        let (base, queries) = (synth.base(), synth.queries(100));
        let builder = Builder::new(Strategy::vamana().degree(k)).knn(k).devices(&[device]);
        let limits = Limits { cluster_size: Some(size), ..Limits::default() };
        let plan = ClusterPlan::new(&builder, &base, &limits).unwrap().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        let build = || {
            let stats = OutOfCore::new(builder.clone(), plan).build(&base, &path).unwrap();
            assert!(!stats.kernels.is_empty() && stats.peak_gpu_bytes > 0);
            std::fs::read(&path).unwrap()
        };
        assert!(build() == build(), "two builds on {device}");
        let truth = ground_truth(&base, &queries, Metric::L2, 10, &Progress::silent()).unwrap();
        let recall = |index: &Index| {
            evaluate(index, &base, TestQueries::new(&queries, &truth, 10), &[50], &Progress::silent())
                .unwrap()[0]
                .recall
        };
        // The reference is built on the CPU: recall does not depend on the device.
        let in_memory = builder.clone().devices(&[Device::Cpu]).build(&base).unwrap();
        let (found, expected) = (recall(&Index::open(&path).unwrap()), recall(&in_memory));
        assert!(found > expected - 0.02, "{found} for {expected} on {device}");
    }
}

#[test]
fn lists_too_long_for_a_block_are_pruned_on_the_cpu() {
    let base = uniform(560, 4, 32);
    let graph = Descent::new().knn(530).device(Device::Cpu).build(&base).unwrap();
    let builder = |device| Builder::new(Strategy::nsg().degree(8).collect(Collect::Path)).device(device);
    let build = |device| builder(device).build_with_stats(&base, Some(&graph)).unwrap();
    let ((expected, _), (found, stats)) = (build(Device::Cpu), build("emulated:8.9".parse().unwrap()));
    assert_eq!(stats.prune.device, "cpu");
    let rows = |index: &Index| (0..560).map(|node| index.neighbors(node).to_vec()).collect::<Vec<_>>();
    assert_eq!(rows(&found), rows(&expected));
}
