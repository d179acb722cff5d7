//! Indexes that are built out of core: what they are, and how they compare with those built in memory.

use std::fs;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use tagore::outofcore::{ClusterPlan, Limits, Order, OutOfCore, OutOfCoreStats};
use tagore::{
    Builder, Device, Error, Evaluation, Index, Metric, Progress, Strategy, Synth, Vectors, evaluate,
    ground_truth,
};

use crate::reference::{check_graph, hard_cases, uniform};

fn plan(builder: &Builder, base: &Vectors, size: usize) -> ClusterPlan {
    let limits = Limits { cluster_size: Some(size), ..Limits::default() };
    ClusterPlan::new(builder, base, &limits).unwrap().unwrap()
}

fn build(builder: &Builder, base: &Vectors, plan: ClusterPlan, path: &Path) -> OutOfCoreStats {
    let stats = OutOfCore::new(builder.clone(), plan).build(base, path).unwrap();
    let names: Vec<_> = fs::read_dir(path.parent().unwrap()).unwrap().map(|e| e.unwrap().path()).collect();
    assert!(!names.iter().any(|name| name.extension().is_some_and(|e| e == "work")), "work files were left");
    stats
}

#[test]
fn recall_is_that_of_an_index_built_in_memory() {
    let synth = Synth::new(20_000, 24, 3).unwrap();
    let (base, queries) = (synth.base(), synth.queries(300));
    let truth = ground_truth(&base, &queries, Metric::L2, 10, &Progress::silent()).unwrap();
    let builder = Builder::new(Strategy::vamana()).knn(48).device(Device::Cpu);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let stats = build(&builder, &base, plan(&builder, &base, 7_600), &path);
    assert!((8..12).contains(&stats.clusters), "{} clusters", stats.clusters);
    assert_eq!(stats.cache.second_visits, 20_000);
    let index = Index::open(&path).unwrap();
    index.verify().unwrap();
    check_graph(&index, "out of core");
    assert_eq!(index.statistics().unreachable, stats.unreachable);
    assert!(stats.unreachable < 200, "{} nodes cannot be reached", stats.unreachable);
    let judge = |index: &Index| -> Vec<Evaluation> {
        evaluate(index, &base, &queries, &truth, 10, &[20, 50, 100], &Progress::silent()).unwrap()
    };
    let in_memory = judge(&builder.build(&base).unwrap());
    for (found, expected) in judge(&index).iter().zip(&in_memory) {
        assert!(found.recall > expected.recall - 0.02, "{found:?} for {expected:?}");
    }
}

#[test]
fn bytes_depend_on_neither_threads_nor_the_cache() {
    let base = Synth::new(3000, 12, 1).unwrap().base();
    let builder = Builder::new(Strategy::vamana()).knn(24).device(Device::Cpu);
    let folder = tempfile::tempdir().unwrap();
    let bytes = |threads: usize, plan: ClusterPlan| {
        let path = folder.path().join("index");
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let stats = pool.install(|| build(&builder, &base, plan, &path));
        (fs::read(path).unwrap(), stats)
    };
    let all = plan(&builder, &base, 800);
    let (expected, stats) = bytes(1, all);
    assert_eq!((stats.cache.hit_ratio(), stats.spilled_bytes), (1.0, 0));
    assert!(bytes(2, all).0 == expected, "two threads");
    // Lists come from disk; another order makes no other index but for which cluster describes it.
    let mut few = all;
    few.cache = 2;
    let (found, stats) = bytes(2, few);
    assert!(found == expected, "a small cache");
    assert!(stats.cache.hits > 0 && stats.cache.misses() > 0);
    assert_eq!(stats.spilled_bytes, stats.cache.misses() * 32 * 8);
}

#[test]
fn hard_data_of_every_metric_and_kind_has_all_lists() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    for (name, base) in hard_cases(300, 5, 2) {
        for (metric, strategy) in [
            (Metric::L2, Strategy::vamana()),
            (Metric::Cosine, Strategy::nsg()),
            (Metric::InnerProduct, Strategy::cagra()),
        ] {
            let degree = strategy.max_degree();
            let builder = Builder::new(strategy).metric(metric).knn(50).device(Device::Cpu);
            let stats = build(&builder, &base, plan(&builder, &base, 100), &path);
            let index = Index::open(&path).unwrap();
            index.verify().unwrap();
            check_graph(&index, name);
            let statistics = index.statistics();
            assert!(statistics.min_degree > 0 && statistics.max_degree <= degree, "{name}, {metric}");
            assert_eq!(stats.cache.second_visits, 300, "{name}, {metric}");
        }
    }
}

#[test]
fn every_small_size_dimension_and_type_can_be_built() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let bytes = Vectors::from_u8((0..97 * 40).map(|i| (i * i % 251) as u8).collect(), 97).unwrap();
    for base in [uniform(17, 1, 0), uniform(33, 97, 1), uniform(200, 1, 2), bytes] {
        let builder = Builder::new(Strategy::vamana()).device(Device::Cpu);
        build(&builder, &base, plan(&builder, &base, 16), &path);
        let index = Index::open(&path).unwrap();
        index.check_base(&base).unwrap();
        check_graph(&index, "small");
        assert!(index.statistics().min_degree > 0, "a node of {} has no list", base.len());
    }
}

#[test]
fn orders_build_the_same_rows() {
    let base = Synth::new(1500, 8, 4).unwrap().base();
    let builder = Builder::new(Strategy::nssg()).knn(24).device(Device::Cpu);
    let folder = tempfile::tempdir().unwrap();
    let rows = |order| {
        let path = folder.path().join("index");
        let mut plan = plan(&builder, &base, 400);
        plan.cache = 3;
        let work = folder.path().join("elsewhere");
        OutOfCore::new(builder.clone(), plan)
            .order(order)
            .work_dir(work.clone())
            .build(&base, &path)
            .unwrap();
        assert!(!work.exists());
        let index = Index::open(path).unwrap();
        (0..1500).map(|node| index.neighbors(node).to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(rows(Order::Random), rows(Order::Cluster));
}

#[test]
fn limits_decide() {
    let base = Synth::new(10_000, 16, 0).unwrap().base();
    let builder = Builder::new(Strategy::vamana()).device(Device::Cpu);
    let plan = |host_memory, cluster_size| {
        ClusterPlan::new(&builder, &base, &Limits { host_memory, cluster_size, gpu_memory: None })
    };
    assert_eq!(plan(None, None).unwrap(), None);
    assert_eq!(plan(Some(1 << 30), None).unwrap(), None);
    assert_eq!(plan(None, Some(10_000)).unwrap(), None);
    let found = plan(Some(8 << 20), None).unwrap().unwrap();
    assert!(found.cluster_size < 3500 && found.host_bytes <= 8 << 20, "{found:?}");
    assert!(found.clusters * found.cluster_size > 20_000 + found.cluster_size);
    assert_eq!(plan(None, Some(15)).unwrap_err().to_string(), "cluster-size: found 15, expected at least 16");
    let error = plan(Some(1 << 15), None).unwrap_err().to_string();
    assert!(error.starts_with("host-memory: found 32768, expected at least"), "{error}");
}

#[test]
fn errors_leave_nothing_behind() {
    let base = Synth::new(500, 4, 0).unwrap().base();
    // Stops itself once two clusters are at work.
    let handle = Arc::new(OnceLock::<Progress>::new());
    let seen = Arc::clone(&handle);
    let progress = Progress::new(move |update| {
        if (update.stage, update.done) == ("build", 2) {
            seen.get().unwrap().cancel();
        }
    });
    handle.set(progress.clone()).unwrap();
    let builder = Builder::new(Strategy::vamana()).knn(10).device(Device::Cpu).progress(progress);
    let folder = tempfile::tempdir().unwrap();
    let (path, work) = (folder.path().join("index"), folder.path().join("index.work"));
    let build = || OutOfCore::new(builder.clone(), plan(&builder, &base, 200)).build(&base, &path);
    fs::create_dir(&work).unwrap();
    fs::write(work.join("kept"), "").unwrap();
    let error = build().unwrap_err().to_string();
    assert!(error.ends_with("expected no such folder, or an empty one"), "{error}");
    assert!(work.join("kept").exists());
    fs::remove_dir_all(&work).unwrap();
    assert!(matches!(build(), Err(Error::Cancelled)));
    assert!(!work.exists() && !path.exists());
}
