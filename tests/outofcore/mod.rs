//! Indexes that are built out of core: what they are, and how they compare with those built in memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::Value;
use tagore::outofcore::{ClusterPlan, Limits, Order, OutOfCore, OutOfCoreStats, TaskKind};
use tagore::{
    Builder, CellSettings, DataShape, Descent, Device, Error, Evaluation, Fingerprint, Index, Metric,
    Progress, Strategy, Synth, Target, Update, Vectors, evaluate, ground_truth,
};

use tagore_device::random::{Draws, Stage};

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
    index.verify(&Progress::silent()).unwrap();
    check_graph(&index, "out of core");
    assert_eq!(index.statistics(&Progress::silent()).unwrap().unreachable, stats.unreachable);
    assert!(stats.unreachable < 200, "{} nodes cannot be reached", stats.unreachable);
    let judge = |index: &Index| -> Vec<Evaluation> {
        evaluate(index, &base, &queries, &truth, 10, &[20, 50, 100], &Progress::silent()).unwrap()
    };
    let in_memory = judge(&builder.build(&base).unwrap());
    for (found, expected) in judge(&index).iter().zip(&in_memory) {
        assert!(found.recall > expected.recall - 0.02, "{found:?} for {expected:?}");
    }
}

/// Vectors around `clusters` centres that lie far apart.
fn separated(rows: usize, dim: usize, clusters: usize) -> Vectors {
    let draws = Draws::new(11, Stage::Test, 6, 0);
    // Of about the normal distribution, by twelve draws each.
    let normal = |place: usize| (0..12).map(|i| draws.unit((12 * place + i) as u64)).sum::<f64>() - 6.0;
    let value = |i: usize| {
        let (row, at) = (i / dim, i % dim);
        let cluster = draws.below((1 << 40) + row as u64, clusters as u64) as usize;
        (normal(cluster * dim + at) + 0.2 * normal(clusters * dim + i)) as f32
    };
    Vectors::from_f32((0..rows * dim).map(value).collect(), dim).unwrap()
}

/// Rows of a data set.
fn part(all: &Vectors, rows: impl Iterator<Item = usize>) -> Vectors {
    Vectors::from_f32(rows.flat_map(|row| all.row(row).into_owned()).collect(), all.dim()).unwrap()
}

/// Ten rows of each of `rows` different ones, in no order.
fn ten_times(all: &Vectors, rows: usize) -> Vectors {
    let draws = Draws::new(3, Stage::Test, 5, 0);
    let mut places: Vec<usize> = (0..10 * rows).map(|row| row % rows).collect();
    for end in (1..places.len()).rev() {
        places.swap(end, draws.below(end as u64, end as u64 + 1) as usize);
    }
    part(all, places.into_iter())
}

/// Builds an index of `base` in memory and one in clusters of a tenth of the vectors, and compares
/// what 200 `queries` find at beam 100. Returns the latter.
fn compare(builder: &Builder, (base, queries): (&Vectors, &Vectors), what: &str) -> Index {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let stats = build(builder, base, plan(builder, base, base.len() / 10), &path);
    let out = Index::open(&path).unwrap();
    out.verify(&Progress::silent()).unwrap();
    out.check_base(base).unwrap();
    check_graph(&out, what);
    let memory = builder.build(base).unwrap();
    assert_eq!(out.repeated(), memory.repeated(), "{what}");
    assert_eq!(stats.repeated, out.repeated().len() as u64, "{what}");
    let truth = ground_truth(base, queries, out.metric(), 10, &Progress::silent()).unwrap();
    let [expected, found] = [&memory, &out].map(|index| {
        evaluate(index, base, queries, &truth, 10, &[100], &Progress::silent()).unwrap()[0].recall
    });
    assert!(found > expected - 0.005, "{what}: {found} for {expected}");
    out
}

#[test]
fn layers_join_clusters_that_lie_apart() {
    let all = separated(4200, 24, 30);
    let (base, queries) = (part(&all, 0..4000), part(&all, 4000..4200));
    for (metric, strategy) in [
        (Metric::L2, Strategy::vamana()),
        (Metric::L2, Strategy::cagra()),
        (Metric::Cosine, Strategy::nsg()),
        (Metric::InnerProduct, Strategy::vamana()),
    ] {
        let builder = Builder::new(strategy).metric(metric).knn(32).device(Device::Cpu);
        let what = format!("{} under {metric}", builder.strategy().kind());
        let index = compare(&builder, (&base, &queries), &what);
        assert!(!index.layers().is_empty(), "{what}");
        let statistics = index.statistics(&Progress::silent()).unwrap();
        assert!(statistics.unreachable < 20, "{what}: {}", statistics.unreachable);
    }
    // Data that needs none pays nothing.
    let base = Synth::new(2000, 8, 4).unwrap().base();
    let builder = Builder::new(Strategy::vamana()).knn(24).device(Device::Cpu);
    assert!(compare(&builder, (&base, &base), "one cluster").layers().is_empty());
}

#[test]
fn equal_rows_are_grouped_wherever_their_clusters_are() {
    let (all, apart) = (uniform(600, 16, 4), separated(600, 16, 20));
    for (what, all) in [("uniform", &all), ("clusters that lie apart", &apart)] {
        let (base, queries) = (ten_times(all, 400), part(all, 400..600));
        for (metric, strategy) in [
            (Metric::L2, Strategy::vamana()),
            (Metric::Cosine, Strategy::cagra()),
            (Metric::InnerProduct, Strategy::nssg()),
        ] {
            let builder = Builder::new(strategy).metric(metric).knn(32).device(Device::Cpu);
            let what = format!("{} of {what} under {metric}", builder.strategy().kind());
            let index = compare(&builder, (&base, &queries), &what);
            assert_eq!(index.repeated().len(), 3600, "{what}");
            for (row, first) in index.repeated().pairs() {
                assert_eq!(index.neighbors(row as usize), index.neighbors(first as usize), "{what}");
            }
        }
    }
}

#[test]
fn layers_and_groups_are_the_same_after_a_stop() {
    let base = ten_times(&separated(600, 16, 20), 600);
    let builder = Builder::new(Strategy::cagra()).knn(32).device(Device::Cpu);
    let folder = tempfile::tempdir().unwrap();
    let (path, work) = (folder.path().join("index"), folder.path().join("index.work"));
    let plan = plan(&builder, &base, 100);
    let all = OutOfCore::new(builder.clone(), plan).build(&base, &path).unwrap();
    assert_eq!((all.repeated, all.cache.second_visits), (5400, 600));
    let expected = fs::read(&path).unwrap();
    assert!(!Index::open(&path).unwrap().layers().is_empty());
    fs::remove_file(&path).unwrap();
    let clusters = all.clusters as u64;
    type Stop = Box<dyn Fn(&Update) -> bool + Send + Sync>;
    let stops: [Stop; 4] = [
        Box::new(|update| (update.stage, update.done) == ("build", 3)),
        Box::new(move |update| (update.stage, update.done) == ("build", clusters)),
        Box::new(|update| (update.stage, update.done) == ("write", 2)),
        // As the first layer is built: all rows have been written.
        Box::new(|update| update.stage == "exact search"),
    ];
    for (number, stop) in stops.into_iter().enumerate() {
        let stopped = builder.clone().progress(stops_when(stop));
        let stopped = OutOfCore::new(stopped, plan).checkpoint(Duration::ZERO).build(&base, &path);
        assert!(matches!(stopped, Err(Error::Cancelled)), "stop {number}");
        assert!(work.exists() && !path.exists(), "stop {number}");
        let mut repaired = Vec::new();
        if number == 2 {
            // The rows that are in no cluster, too, are made again.
            let mut content = fs::read(work.join("repeated")).unwrap();
            content[77] ^= 1;
            fs::write(work.join("repeated"), content).unwrap();
            repaired.push("repeated");
        }
        let stats = OutOfCore::new(builder.clone(), plan).resume(true).build(&base, &path).unwrap();
        assert!(fs::read(&path).unwrap() == expected, "stop {number}");
        assert_eq!((stats.repaired, stats.repeated), (repaired, 5400), "stop {number}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "stop {number}: something was left");
        fs::remove_file(&path).unwrap();
    }
    // However many threads there are.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| OutOfCore::new(builder, plan).build(&base, &path)).unwrap();
    assert!(fs::read(&path).unwrap() == expected, "one thread");
}

#[test]
fn bytes_depend_on_neither_threads_nor_where_lists_wait() {
    let base = Synth::new(3000, 12, 1).unwrap().base();
    let builder = Builder::new(Strategy::vamana()).knn(24).device(Device::Cpu);
    let folder = tempfile::tempdir().unwrap();
    let bytes = |threads: usize, plan: ClusterPlan| {
        let path = folder.path().join("index");
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        // An order that does not depend on the cache.
        let build = OutOfCore::new(builder.clone(), plan).order(Order::Gorder);
        let stats = pool.install(|| build.build(&base, &path)).unwrap();
        (fs::read(path).unwrap(), stats)
    };
    let all = plan(&builder, &base, 800);
    let (expected, stats) = bytes(1, all);
    assert_eq!((stats.cache.hit_ratio(), stats.spilled_bytes), (1.0, 0));
    assert!(bytes(2, all).0 == expected, "two threads");
    // Lists come from disk.
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
            index.verify(&Progress::silent()).unwrap();
            check_graph(&index, name);
            let statistics = index.statistics(&Progress::silent()).unwrap();
            let nodes = 300 - index.repeated().len();
            // One node has no neighbour.
            assert!(statistics.min_degree > 0 || nodes == 1, "{name}, {metric}");
            assert!(statistics.max_degree <= degree, "{name}, {metric}");
            assert_eq!(stats.cache.second_visits, nodes as u64, "{name}, {metric}");
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
        assert!(
            index.statistics(&Progress::silent()).unwrap().min_degree > 0,
            "a node of {} has no list",
            base.len()
        );
    }
}

#[test]
fn every_order_builds_all_rows() {
    let base = Synth::new(1500, 8, 4).unwrap().base();
    let builder = Builder::new(Strategy::nssg()).knn(24).device(Device::Cpu);
    let folder = tempfile::tempdir().unwrap();
    let (path, work) = (folder.path().join("index"), folder.path().join("elsewhere"));
    let mut plan = plan(&builder, &base, 400);
    plan.cache = 3;
    for order in Order::ALL {
        let build = OutOfCore::new(builder.clone(), plan).order(order).work_dir(work.clone());
        let stats = build.build(&base, &path).unwrap();
        assert!(!work.exists());
        assert_eq!(stats.cache.second_visits, 1500);
        let index = Index::open(&path).unwrap();
        check_graph(&index, &order.to_string());
        assert!(index.statistics(&Progress::silent()).unwrap().min_degree > 0, "{order}");
    }
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

/// A progress handle that stops the build once `clusters` clusters are done.
fn stops_at(clusters: u64) -> Progress {
    stops_when(move |update| (update.stage, update.done) == ("build", clusters))
}

/// A progress handle that stops the build at such an update.
fn stops_when(is_it: impl Fn(&Update) -> bool + Send + Sync + 'static) -> Progress {
    let handle = Arc::new(OnceLock::<Progress>::new());
    let seen = Arc::clone(&handle);
    let progress = Progress::new(move |update| {
        if is_it(&update) {
            seen.get().unwrap().cancel();
        }
    });
    handle.set(progress.clone()).unwrap();
    progress
}

#[test]
fn a_build_that_was_stopped_goes_on_to_the_same_bytes() {
    let base = Synth::new(3000, 12, 1).unwrap().base();
    let builder = Builder::new(Strategy::vamana()).knn(24).device(Device::Cpu);
    let folder = tempfile::tempdir().unwrap();
    let (path, work) = (folder.path().join("index"), folder.path().join("index.work"));
    let mut plan = plan(&builder, &base, 600);
    plan.cache = 3;
    let all = OutOfCore::new(builder.clone(), plan).build(&base, &path).unwrap();
    let expected = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    // With a checkpoint after each cluster, or none but the last.
    for (stop, every) in [(1, 0), (4, 0), (9, 0), (all.clusters as u64, 0), (5, 1000)] {
        let every = Duration::from_secs(every);
        let stopped = builder.clone().progress(stops_at(stop));
        let stopped = OutOfCore::new(stopped, plan).checkpoint(every);
        assert!(matches!(stopped.build(&base, &path), Err(Error::Cancelled)), "stop at {stop}");
        assert!(work.exists() && !path.exists());
        let build = OutOfCore::new(builder.clone(), plan);
        let error = build.build(&base, &path).unwrap_err().to_string();
        assert!(error.contains("found work files of a build that has not ended"), "{error}");
        let other = OutOfCore::new(builder.clone().seed(9), plan).resume(true);
        let error = other.build(&base, &path).unwrap_err().to_string();
        assert!(error.ends_with("manifest.json: found seed 0, expected seed 9, as is asked for"), "{error}");
        // However much memory there is by now, clusters are those of the files.
        let mut now = plan;
        (now.clusters, now.cluster_size, now.cache) = (3, 2000, 2);
        let stats = OutOfCore::new(builder.clone(), now).resume(true).build(&base, &path).unwrap();
        assert!(fs::read(&path).unwrap() == expected, "stop at {stop}, checkpoints every {every:?}");
        assert_eq!(stats.built as u64, all.built as u64 - stop, "what waits is saved before the end");
        assert_eq!(stats.cache.second_visits, 3000);
        assert!(!work.exists());
        fs::remove_file(&path).unwrap();
    }
    // Where there is nothing to go on with, it begins.
    OutOfCore::new(builder, plan).resume(true).build(&base, &path).unwrap();
    assert!(fs::read(&path).unwrap() == expected);
}

#[test]
fn damaged_work_files_are_made_again() {
    let base = Synth::new(3000, 12, 1).unwrap().base();
    let builder = Builder::new(Strategy::vamana()).knn(24).device(Device::Cpu);
    let folder = tempfile::tempdir().unwrap();
    let (path, work) = (folder.path().join("index"), folder.path().join("index.work"));
    let mut plan = plan(&builder, &base, 600);
    plan.cache = 2;
    OutOfCore::new(builder.clone(), plan).build(&base, &path).unwrap();
    let expected = fs::read(&path).unwrap();
    type Damage = fn(&mut Vec<u8>);
    let flip: Damage = |content| {
        let middle = content.len() / 2;
        content[middle] ^= 4;
    };
    let cut: Damage = |content| content.truncate(content.len() / 2);
    let damages = [
        ("clusters", flip),
        ("clusters", cut),
        ("rows", flip),
        ("rows", cut),
        ("lists", cut),
        ("table", flip),
        ("checkpoint", flip),
    ];
    for (file, damage) in damages {
        let stopped = builder.clone().progress(stops_at(8));
        OutOfCore::new(stopped, plan).checkpoint(Duration::ZERO).build(&base, &path).unwrap_err();
        let file = work.join(file);
        let mut content = fs::read(&file).unwrap();
        damage(&mut content);
        fs::write(&file, content).unwrap();
        OutOfCore::new(builder.clone(), plan).resume(true).build(&base, &path).unwrap();
        assert!(fs::read(&path).unwrap() == expected, "{} damaged", file.display());
    }
    // Every byte of the lists that wait.
    let stopped = builder.clone().progress(stops_at(8));
    OutOfCore::new(stopped, plan).checkpoint(Duration::ZERO).build(&base, &path).unwrap_err();
    let lists = work.join("lists");
    let content: Vec<u8> = fs::read(&lists).unwrap().iter().map(|byte| byte ^ 1).collect();
    fs::write(&lists, content).unwrap();
    // However many pairs of clusters that is, all are found at once.
    let stats = OutOfCore::new(builder, plan).resume(true).build(&base, &path).unwrap();
    assert!(fs::read(&path).unwrap() == expected);
    assert_eq!(stats.repaired, ["lists"]);
}

/// A build that was stopped after some clusters, and what it would have ended in.
struct Stopped {
    builder: Builder,
    base: Vectors,
    plan: ClusterPlan,
    folder: tempfile::TempDir,
    expected: Vec<u8>,
}

impl Stopped {
    fn new() -> Self {
        let base = Synth::new(3000, 12, 1).unwrap().base();
        let builder = Builder::new(Strategy::vamana()).knn(24).device(Device::Cpu);
        let mut plan = plan(&builder, &base, 600);
        plan.cache = 2;
        let folder = tempfile::tempdir().unwrap();
        OutOfCore::new(builder.clone(), plan).build(&base, &folder.path().join("index")).unwrap();
        let expected = fs::read(folder.path().join("index")).unwrap();
        let stopped = Self { builder, base, plan, folder, expected };
        stopped.stop();
        stopped
    }

    fn index(&self) -> PathBuf {
        self.folder.path().join("index")
    }

    fn work(&self, name: &str) -> PathBuf {
        self.folder.path().join("index.work").join(name)
    }

    /// Builds until eight clusters are done.
    fn stop(&self) {
        let _ = fs::remove_file(self.index());
        let build = OutOfCore::new(self.builder.clone().progress(stops_at(8)), self.plan);
        let error = build.checkpoint(Duration::ZERO).build(&self.base, &self.index()).unwrap_err();
        assert!(matches!(error, Error::Cancelled), "{error}");
    }

    fn run(&self, base: &Vectors, resume: bool) -> Result<OutOfCoreStats, Error> {
        OutOfCore::new(self.builder.clone(), self.plan).resume(resume).build(base, &self.index())
    }

    /// The build ends in what it would have ended in.
    fn ends(&self, resume: bool) -> OutOfCoreStats {
        let stats = self.run(&self.base, resume).unwrap_or_else(|error| panic!("{error}"));
        assert!(fs::read(self.index()).unwrap() == self.expected);
        assert!(!self.work("").exists());
        stats
    }

    /// Changes the JSON of a state, whose checksum is made to fit.
    fn forge(&self, name: &str, change: impl FnOnce(&mut Value)) {
        let content = fs::read(self.work(name)).unwrap();
        let mut json = serde_json::from_slice(&content[4..]).unwrap();
        change(&mut json);
        let json = serde_json::to_vec(&json).unwrap();
        fs::write(self.work(name), [&crc32fast::hash(&json).to_le_bytes()[..], &json].concat()).unwrap();
    }

    /// Changes the content of a piece of a log, whose checksum is made to fit.
    fn forge_piece(&self, log: &str, piece: &mut Value, change: impl FnOnce(&mut [u8])) {
        let mut content = fs::read(self.work(log)).unwrap();
        let [offset, bytes] = ["offset", "bytes"].map(|key| piece[key].as_u64().unwrap() as usize);
        let part = &mut content[offset..offset + bytes];
        change(part);
        piece["crc"] = crc32fast::hash(part).into();
        fs::write(self.work(log), content).unwrap();
    }
}

#[test]
fn work_files_are_checked_beyond_their_checksums() {
    let stopped = Stopped::new();
    let huge = |value: &mut Value| *value = (1u64 << 60).into();
    // Sizes that cannot be allocated, places outside of a file, numbers of clusters that are not there.
    let tables: [fn(&mut Value); 4] = [
        |table| table["members"][1][0]["offset"] = u64::MAX.into(),
        |table| table["shared"][0][1] = 4_000_000_000u32.into(),
        |table| table["mean"] = Value::Array(Vec::new()),
        |table| table["checksums"] = Value::Array(Vec::new()),
    ];
    for (number, table) in tables.into_iter().enumerate() {
        stopped.forge("table", table);
        if number == 0 {
            stopped.forge("table", |table| huge(&mut table["members"][0][0]["bytes"]));
        }
        stopped.ends(true);
        stopped.stop();
    }
    let waiting = |checkpoint: &Value| -> usize {
        let lists = checkpoint["waiting"].as_array().unwrap();
        lists.iter().position(|list| !list[1].is_null()).unwrap()
    };
    stopped.forge("checkpoint", |state| {
        let place = waiting(state);
        huge(&mut state["waiting"][place][1]["bytes"]);
    });
    stopped.ends(true);
    // Lists of neighbours that are not there.
    stopped.stop();
    stopped.forge("checkpoint", |state| {
        let place = waiting(state);
        stopped.forge_piece("lists", &mut state["waiting"][place][1], |content| content.fill(0x11));
    });
    assert_eq!(stopped.ends(true).repaired, ["lists"]);
    // Rows of nodes that are not there, of one twice, and with neighbours that are not there.
    let rows: [fn(&mut [u8]); 3] = [
        |content| content[..4].fill(0xfe),
        |content| content.copy_within(..132, 132),
        |content| content[4..8].fill(0x11),
    ];
    for change in rows {
        stopped.stop();
        stopped.forge("checkpoint", |state| {
            let bins = state["rows"].as_array_mut().unwrap();
            let piece = bins.iter_mut().flat_map(|bin| bin.as_array_mut().unwrap()).next().unwrap();
            stopped.forge_piece("rows", piece, change);
        });
        assert_eq!(stopped.ends(true).repaired, ["rows"]);
    }
    // Members that are not there, and in clusters that are not.
    for at in [0, 4] {
        stopped.stop();
        // The last to be built.
        stopped.forge("table", |table| {
            for members in table["members"].as_array_mut().unwrap() {
                stopped.forge_piece("clusters", &mut members[0], |content| content[at..at + 4].fill(0x7f));
            }
        });
        assert_eq!(stopped.ends(true).repaired, ["clusters"]);
    }
}

#[test]
fn only_the_same_base_is_gone_on_with() {
    let stopped = Stopped::new();
    let mut values: Vec<f32> = (0..3000).flat_map(|row| stopped.base.row(row).to_vec()).collect();
    // A row that is not among the 1,024 of the fingerprint.
    values[12] += 1.0;
    let changed = Vectors::from_f32(values, 12).unwrap();
    assert_eq!(Fingerprint::of(&changed), Fingerprint::of(&stopped.base));
    let check = || {
        let error = stopped.run(&changed, true).unwrap_err().to_string();
        assert!(error.starts_with("vectors: found other values"), "{error}");
        assert!(error.ends_with("index.work are of; delete them to build anew"), "{error}");
        error
    };
    assert!(check().contains("in rows 0 to 2999"));
    // Even if the table with the checksums is lost.
    fs::remove_file(stopped.work("table")).unwrap();
    check();
    stopped.ends(true);
}

#[test]
fn what_is_left_of_a_finished_build_is_cleared() {
    let stopped = Stopped::new();
    for (resume, removed) in
        [(false, &["lists", "table"][..]), (true, &[]), (true, &["clusters", "checkpoint"])]
    {
        fs::rename(stopped.work("manifest.json"), stopped.work("done")).unwrap();
        removed.iter().for_each(|name| fs::remove_file(stopped.work(name)).unwrap());
        stopped.ends(resume);
        stopped.stop();
    }
    // A kill before the table, and as a state was written.
    for lost in [&["table", "lists", "rows", "checkpoint"][..], &["checkpoint"], &["table"], &[]] {
        lost.iter().for_each(|name| fs::remove_file(stopped.work(name)).unwrap());
        fs::write(stopped.work(".table.tagore-tmp"), "half").unwrap();
        let error = stopped.run(&stopped.base, false).unwrap_err().to_string();
        assert!(error.contains("found work files of a build that has not ended"), "{error}");
        stopped.ends(true);
        stopped.stop();
    }
}

#[cfg(unix)]
#[test]
fn an_older_report_is_deleted_as_the_index_takes_its_place() {
    let base = uniform(200, 4, 1);
    let builder = Builder::new(Strategy::nsg()).knn(10).device(Device::Cpu);
    let folder = tempfile::tempdir().unwrap();
    let (path, report) = (folder.path().join("index"), folder.path().join("report"));
    fs::write(&report, "old").unwrap();
    let build = |progress: Progress| {
        let builder = builder.clone().progress(progress);
        OutOfCore::new(builder.clone(), plan(&builder, &base, 80))
            .stale(vec![report.clone()])
            .build(&base, &path)
    };
    build(stops_at(1)).unwrap_err();
    assert!(report.exists(), "gone, though the build was stopped");
    fs::remove_dir_all(folder.path().join("index.work")).unwrap();
    build(Progress::silent()).unwrap();
    assert!(path.exists() && !report.exists());
    // And of an index that is built in memory.
    fs::write(&report, "old").unwrap();
    builder.build(&base).unwrap().save_replacing(&path, std::slice::from_ref(&report)).unwrap();
    assert!(!report.exists());
}

#[test]
fn a_planted_link_is_not_written_through() {
    let stopped = Stopped::new();
    let secret = stopped.folder.path().join("secret");
    for name in ["lists", "rows", "clusters", "checkpoint", "table", "manifest.json", "lock"] {
        fs::write(&secret, "kept").unwrap();
        let saved = fs::read(stopped.work(name)).unwrap();
        fs::remove_file(stopped.work(name)).unwrap();
        std::os::unix::fs::symlink(&secret, stopped.work(name)).unwrap();
        let error = stopped.run(&stopped.base, true).unwrap_err().to_string();
        assert!(
            error.ends_with("found a link, expected a regular file; delete the folder to build anew"),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&secret).unwrap(), "kept", "{name}");
        fs::remove_file(stopped.work(name)).unwrap();
        fs::write(stopped.work(name), saved).unwrap();
    }
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&fs::metadata(stopped.work("")).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700);
    stopped.ends(true);
}

#[test]
fn parameters_out_of_their_ranges_are_errors_everywhere() {
    let base = Synth::new(500, 4, 0).unwrap().base();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let (vamana, cagra) = (Strategy::vamana, Strategy::cagra);
    let builder = |strategy: Strategy| Builder::new(strategy).knn(40).device(Device::Cpu);
    let sound = builder(vamana());
    let wrong = [
        builder(vamana().degree(0)),
        builder(vamana().degree(usize::MAX)),
        builder(vamana().candidates(0)),
        builder(vamana().candidates(usize::MAX)),
        builder(vamana().alpha(f32::NAN)),
        builder(vamana().threshold(f32::INFINITY)),
        builder(Strategy::alpha_cng().alpha(f32::NAN)),
        builder(Strategy::nssg().angle(f32::NAN)),
        builder(Strategy::tau_mng().threshold(f32::NAN)),
        builder(cagra()).knn(20),
        builder(vamana()).knn(0),
        builder(vamana()).knn(500),
        builder(vamana()).knn(usize::MAX),
        builder(vamana()).descent(Descent::new().expand(0)),
        builder(vamana())
            .descent(Descent::new().cells(CellSettings { memberships: Some(0), ..CellSettings::default() })),
    ];
    let small = Limits { cluster_size: Some(200), ..Limits::default() };
    let is_argument =
        |error: Error, what: &str| assert!(matches!(error, Error::Argument { .. }), "{what}: {error}");
    for (number, builder) in wrong.iter().enumerate() {
        let data = DataShape::of(&base, &Progress::silent()).unwrap();
        is_argument(builder.plan(&data, Target::cpu()).unwrap_err(), &format!("plan of {number}"));
        is_argument(builder.what_fits(&data, Target::cuda(), 1).unwrap_err(), &format!("ways of {number}"));
        is_argument(builder.build(&base).unwrap_err(), &format!("build of {number}"));
        for limits in [small, Limits { host_memory: Some(8 << 20), ..Limits::default() }, Limits::default()] {
            is_argument(
                ClusterPlan::new(builder, &base, &limits).unwrap_err(),
                &format!("clusters of {number}"),
            );
            for target in [Target::cpu(), Target::cuda()] {
                let clusters = ClusterPlan::on(builder, &data, &limits, (target, 1));
                is_argument(clusters.unwrap_err(), &format!("clusters of {number}"));
            }
        }
        let build = OutOfCore::new(builder.clone(), plan(&sound, &base, 200)).build(&base, &path);
        is_argument(build.unwrap_err(), &format!("build out of core of {number}"));
    }
    // Sizes of data, of clusters and of limits.
    for (rows, dim) in [(0, 4), (500, 0), (usize::MAX, 4), (500, usize::MAX)] {
        let data = DataShape { rows, dim, ..DataShape::of(&base, &Progress::silent()).unwrap() };
        sound.plan(&data, Target::cpu()).unwrap_err();
        ClusterPlan::on(&sound, &data, &small, (Target::cpu(), 1)).unwrap_err();
        Descent::new().plan_for(&data).unwrap_err();
    }
    for size in [0, 1, 15] {
        let limits = Limits { cluster_size: Some(size), ..Limits::default() };
        is_argument(ClusterPlan::new(&sound, &base, &limits).unwrap_err(), "cluster size");
    }
    for bytes in [0, 1, 4096] {
        let limits = Limits { host_memory: Some(bytes), ..Limits::default() };
        is_argument(ClusterPlan::new(&sound, &base, &limits).unwrap_err(), "host memory");
    }
    type Change = fn(&mut ClusterPlan);
    let changes: [Change; 5] = [
        |plan| plan.clusters = 0,
        |plan| plan.clusters = usize::MAX,
        |plan| plan.cluster_size = 0,
        |plan| plan.cluster_size = usize::MAX,
        |plan| plan.cache = 0,
    ];
    for change in changes {
        let mut plan = plan(&sound, &base, 200);
        change(&mut plan);
        is_argument(OutOfCore::new(sound.clone(), plan).build(&base, &path).unwrap_err(), "plan");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "something was left behind");
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
fn an_early_error_leaves_nothing_behind() {
    let base = Synth::new(500, 4, 0).unwrap().base();
    let progress = Progress::silent();
    progress.cancel();
    let builder = Builder::new(Strategy::vamana()).knn(10).device(Device::Cpu);
    let folder = tempfile::tempdir().unwrap();
    let (path, work) = (folder.path().join("index"), folder.path().join("index.work"));
    let plan = plan(&builder, &base, 200);
    let build = || OutOfCore::new(builder.clone().progress(progress.clone()), plan).build(&base, &path);
    fs::create_dir(&work).unwrap();
    fs::write(work.join("letter"), "").unwrap();
    let error = build().unwrap_err().to_string();
    assert!(error.ends_with("found letter, expected an empty folder, or none"), "{error}");
    assert!(work.join("letter").exists());
    fs::remove_dir_all(&work).unwrap();
    assert!(matches!(build(), Err(Error::Cancelled)));
    assert!(!work.exists() && !path.exists());
}

#[test]
fn a_bad_value_is_found_as_it_is_put_into_a_cluster() {
    let mut values: Vec<f32> = (0..4000u16).map(|i| f32::from(i * 7 % 1000)).collect();
    let (builder, folder) =
        (Builder::new(Strategy::vamana()).knn(10).device(Device::Cpu), tempfile::tempdir().unwrap());
    let (path, file) = (folder.path().join("index"), folder.path().join("base.fbin"));
    Vectors::from_f32(values.clone(), 4).unwrap().save(&file).unwrap();
    values[4 * 777 + 2] = f32::NAN;
    let header = fs::read(&file).unwrap()[..8].to_vec();
    fs::write(&file, [header, values.iter().flat_map(|x| x.to_le_bytes()).collect()].concat()).unwrap();
    let base = Vectors::open(&file).unwrap();
    let error = OutOfCore::new(builder.clone(), plan(&builder, &base, 300)).build(&base, &path).unwrap_err();
    assert!(matches!(error, Error::Value { row: 777, .. }), "{error}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "something was left behind");
}
