//! Builds of every size, type, metric, order and number of devices.

use std::fs;

use tagore::outofcore::{ClusterPlan, Limits, OutOfCore, TaskKind};
use tagore::{Builder, Device, Index, Metric, Progress, Strategy, Synth, Vectors};

use super::{build, plan};
use crate::reference::{check_graph, hard_cases, uniform};

#[test]
fn threads_do_not_change_the_bytes() {
    let base = Synth::new(3000, 12, 1).unwrap().base();
    let builder = Builder::new(Strategy::vamana()).knn(24).device(Device::Cpu);
    let folder = tempfile::tempdir().unwrap();
    let bytes = |threads: usize, plan: ClusterPlan| {
        let path = folder.path().join("index");
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let build = OutOfCore::new(builder.clone(), plan);
        let stats = pool.install(|| build.build(&base, &path)).unwrap();
        (fs::read(path).unwrap(), stats)
    };
    let all = plan(&builder, &base, 800);
    let (expected, stats) = bytes(1, all);
    assert_eq!((stats.cache.hit_ratio(), stats.spilled_bytes), (1.0, 0));
    assert!(bytes(2, all).0 == expected, "lists in memory");
    // With a small cache, some lists are read from disk.
    let mut few = all;
    few.cache = 2;
    let (expected, stats) = bytes(1, few);
    assert!(bytes(2, few).0 == expected, "lists on disk");
    let path = folder.path().join("in memory");
    OutOfCore::new(builder.clone(), few).in_memory(true).build(&base, &path).unwrap();
    assert!(fs::read(path).unwrap() == expected, "the lists on disk are those in memory");
    assert!(stats.cache.hits > 0 && stats.cache.misses() > 0);
    assert_eq!(stats.spilled_bytes, stats.cache.misses() * 32 * 8);
}

#[test]
fn hard_data_builds_under_every_metric() {
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
            index.verify(&Progress::silent()).unwrap();
            check_graph(&index, name);
            let statistics = index.statistics(&Progress::silent()).unwrap();
            let nodes = 300 - index.repeated().len();
            // A single node has no neighbour.
            assert!(statistics.min_degree > 0 || nodes == 1, "{name}, {metric}");
            assert!(statistics.max_degree <= degree, "{name}, {metric}");
            assert_eq!(stats.cache.second_visits, nodes as u64, "{name}, {metric}");
        }
    }
}

#[test]
fn small_sizes_dimensions_and_types_build() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let bytes = Vectors::from_u8((0..97 * 40).map(|i| (i * i % 251) as u8).collect(), 97).unwrap();
    for base in [uniform(17, 1, 0), uniform(33, 97, 1), uniform(200, 1, 2), bytes] {
        let builder = Builder::new(Strategy::vamana()).device(Device::Cpu);
        build(&builder, &base, plan(&builder, &base, 16), &path);
        let index = Index::open(&path).unwrap();
        index.check_base(&base).unwrap();
        check_graph(&index, "small");
        assert!(
            index.statistics(&Progress::silent()).unwrap().min_degree > 0,
            "a node without neighbours among {}",
            base.len()
        );
    }
}

#[test]
fn all_rows_are_built_and_the_work_folder_goes() {
    let base = Synth::new(1500, 8, 4).unwrap().base();
    let builder = Builder::new(Strategy::nssg()).knn(24).device(Device::Cpu);
    let folder = tempfile::tempdir().unwrap();
    let (path, work) = (folder.path().join("index"), folder.path().join("elsewhere"));
    let mut plan = plan(&builder, &base, 400);
    plan.cache = 3;
    let stats = OutOfCore::new(builder, plan).work_dir(work.clone()).build(&base, &path).unwrap();
    assert!(!work.exists());
    assert_eq!(stats.cache.second_visits, 1500);
    let index = Index::open(&path).unwrap();
    check_graph(&index, "lists on disk");
    assert!(index.statistics(&Progress::silent()).unwrap().min_degree > 0);
}

#[test]
fn limits_decide_about_clusters() {
    let base = Synth::new(10_000, 16, 0).unwrap().base();
    let builder = Builder::new(Strategy::vamana()).device(Device::Cpu);
    // More threads take more memory.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let plan = |host_memory, cluster_size| {
        let limits = Limits { host_memory, cluster_size, gpu_memory: None };
        pool.install(|| ClusterPlan::new(&builder, &base, &limits))
    };
    assert_eq!(plan(None, None).unwrap(), None);
    assert_eq!(plan(Some(1 << 30), None).unwrap(), None);
    assert_eq!(plan(None, Some(10_000)).unwrap(), None);
    let found = plan(Some(8 << 20), None).unwrap().unwrap();
    assert!(found.cluster_size < 3500 && found.host_bytes <= 8 << 20, "{found:?}");
    assert!(found.clusters * found.cluster_size > 20_000 + found.cluster_size);
    assert_eq!(plan(None, Some(15)).unwrap_err().to_string(), "cluster_size: found 15, expected at least 16");
    let error = plan(Some(1 << 15), None).unwrap_err().to_string();
    assert!(error.starts_with("host_memory: found 32768, expected at least"), "{error}");
}

#[test]
fn several_devices_make_the_same_index() {
    let base = Synth::new(2000, 8, 4).unwrap().base();
    let builder = Builder::new(Strategy::vamana()).knn(16).device(Device::Cpu);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let mut plan = plan(&builder, &base, 400);
    plan.cache = 2;
    build(&builder, &base, plan, &path);
    let expected = fs::read(&path).unwrap();
    let stats = build(&builder.devices(&[Device::Cpu; 3]), &base, plan, &path);
    assert!(fs::read(&path).unwrap() == expected);
    assert_eq!(stats.cache.second_visits, 2000);
    for kind in [TaskKind::Partition, TaskKind::Read, TaskKind::Descent, TaskKind::Merge, TaskKind::Write] {
        assert!(stats.tasks.iter().any(|task| task.kind == kind && task.end >= task.begin), "no {kind:?}");
    }
}

#[test]
fn work_in_memory_makes_the_same_index() {
    let folder = tempfile::tempdir().unwrap();
    let (path, other) = (folder.path().join("index"), folder.path().join("other"));
    // Every third row repeats an earlier one, and most rows are in one dense part, so that clusters
    // become full.
    let repeated = |rows: usize| {
        let others = 2 * rows / 3;
        let mut values: Vec<u8> = (0..others * 6).map(|i| (i * i % 251 / (1 + i / 6 % 9)) as u8).collect();
        values.extend_from_within(..(rows - others) * 6);
        Vectors::from_u8(values, 6).unwrap()
    };
    let (many, few) = (repeated(1500), repeated(132));
    let plain = Synth::new(1200, 7, 3).unwrap().base();
    for (base, metric, strategy, devices) in [
        (&plain, Metric::L2, Strategy::vamana(), &[Device::Cpu; 3][..]),
        (&plain, Metric::InnerProduct, Strategy::nssg(), &[Device::Cpu]),
        (&plain, Metric::Cosine, Strategy::cagra(), &[Device::Cpu; 2]),
        (&many, Metric::L2, Strategy::nsg(), &[Device::Cpu; 2]),
        (&few, Metric::L2, Strategy::dpg(), &[Device::Emulated; 2]),
    ] {
        let builder = Builder::new(strategy).metric(metric).knn(40);
        let builder = builder.devices(&devices[..1]);
        // The emulator takes long for each cluster.
        let size = base.len() / if base.len() < 200 { 2 } else { 4 };
        let mut plan = plan(&builder, base, size);
        plan.cache = 3;
        plan.replicates = devices[0] == Device::Emulated;
        let on_disk = build(&builder, base, plan, &path);
        let builder = builder.devices(devices);
        // Vectors read from the base, with work files of ids.
        let reading = plan.reading_base(true);
        assert!(reading.disk_bytes < plan.disk_bytes && reading.reading_base(false) == plan);
        let read = build(&builder, base, reading, &other);
        assert!(fs::read(&path).unwrap() == fs::read(&other).unwrap(), "{metric}, {devices:?}, work files");
        assert!(read.cluster_bytes < on_disk.cluster_bytes && read.repeated == on_disk.repeated);
        let stats = OutOfCore::new(builder, plan).in_memory(true).build(base, &other).unwrap();
        assert!(fs::read(&path).unwrap() == fs::read(&other).unwrap(), "{metric}, {devices:?}");
        assert_eq!((stats.repeated, stats.built), (on_disk.repeated, on_disk.built));
        assert_eq!(stats.repeated >= base.len() as u64 / 3, base.dim() == 6);
        let names = fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(names, 2, "work files of a build in memory");
    }
}
