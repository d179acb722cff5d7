//! Stopped builds: resumed, they end in the same bytes.

use std::fs;
use std::time::Duration;

use tagore::outofcore::{Limits, OutOfCore, unfinished};
use tagore::{Builder, Device, Error, Index, IndexRoom, Progress, Strategy, Synth, Update, Vectors};

use super::quality::{separated, ten_times};
use super::{plan, stops_at, stops_when};
use crate::reference::uniform;

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
        // While the first layer is built, after all rows are written.
        Box::new(|update| update.stage == "write" && update.done + 1 == update.total),
    ];
    for (number, stop) in stops.into_iter().enumerate() {
        let stopped = builder.clone().progress(stops_when(stop));
        let stopped = OutOfCore::new(stopped, plan).checkpoint(Duration::ZERO).build(&base, &path);
        assert!(matches!(stopped, Err(Error::Cancelled)), "stop {number}");
        assert!(work.exists() && !path.exists(), "stop {number}");
        let mut repaired = Vec::new();
        if number == 2 {
            // Damaged repeated rows are made again.
            let mut content = fs::read(work.join("repeated")).unwrap();
            content[77] ^= 1;
            fs::write(work.join("repeated"), content).unwrap();
            repaired.push("repeated");
        }
        // All clusters are merged: their members are not needed any more, and not made again.
        let is_merged = number > 0;
        assert_eq!(fs::metadata(work.join("clusters")).unwrap().len() == 0, is_merged, "stop {number}");
        let resumed = if is_merged && repaired.is_empty() {
            builder.clone().progress(stops_when(|update| update.stage == "partition"))
        } else {
            builder.clone()
        };
        let stats = OutOfCore::new(resumed, plan).resume(true).build(&base, &path).unwrap();
        assert!(fs::read(&path).unwrap() == expected, "stop {number}");
        assert_eq!((stats.repaired, stats.repeated), (repaired, 5400), "stop {number}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "stop {number}: files left behind");
        fs::remove_file(&path).unwrap();
    }
    // On one thread.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    pool.install(|| OutOfCore::new(builder, plan).build(&base, &path)).unwrap();
    assert!(fs::read(&path).unwrap() == expected, "one thread");
}

/// A build that needs no work files does not leave those of another one behind.
#[test]
fn builds_in_memory_do_not_pass_a_stopped_build() {
    let base = Synth::new(1200, 6, 1).unwrap().base();
    let builder = Builder::new(Strategy::vamana()).knn(12).device(Device::Cpu);
    let folder = tempfile::tempdir().unwrap();
    let (path, work) = (folder.path().join("index"), folder.path().join("index.work"));
    let (limits, none) = (plan(&builder, &base, 400).limits, Limits::default());
    assert!(unfinished(&work, &base, &none, false).unwrap().is_none());
    let all = OutOfCore::new(builder.clone(), plan(&builder, &base, 400));
    all.build(&base, &path).unwrap();
    let expected = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let stopped = OutOfCore::new(builder.clone().progress(stops_at(2)), plan(&builder, &base, 400));
    stopped.checkpoint(Duration::ZERO).build(&base, &path).unwrap_err();
    assert!(work.exists());
    // Without `resume`, whatever the data set; with it, only its own data set and limits.
    let error = unfinished(&work, &base, &none, false).unwrap_err();
    assert!(matches!(error, Error::Unfinished { .. }), "{error}");
    let other = Synth::new(1000, 6, 2).unwrap().base();
    let error = unfinished(&work, &other, &none, true).unwrap_err().to_string();
    assert!(
        error.contains("found input 1200 x 6 f32") && error.contains("expected input 1000 x 6"),
        "{error}"
    );
    let in_memory = |resume| {
        let build = OutOfCore::new(builder.clone(), plan(&builder, &base, 400)).in_memory(true);
        build.resume(resume).build(&base, &path)
    };
    assert!(matches!(in_memory(false), Err(Error::Unfinished { .. })));
    let resumed = |limits: &Limits| {
        let plan = unfinished(&work, &base, limits, true).unwrap().unwrap();
        OutOfCore::new(builder.clone(), plan).resume(true).build(&base, &path)
    };
    let error = resumed(&none).unwrap_err().to_string();
    assert!(error.contains("found cluster-size 400, expected no cluster-size"), "{error}");
    assert!(work.exists() && !path.exists());
    resumed(&limits).unwrap();
    assert!(fs::read(&path).unwrap() == expected && !work.exists());
    assert!(in_memory(true).is_ok());
}

#[test]
fn stopped_builds_resume_to_the_same_bytes() {
    let base = Synth::new(1500, 12, 1).unwrap().base();
    let builder = Builder::new(Strategy::vamana()).knn(24).device(Device::Cpu);
    let folder = tempfile::tempdir().unwrap();
    let (path, work) = (folder.path().join("index"), folder.path().join("index.work"));
    let mut plan = plan(&builder, &base, 300);
    plan.cache = 3;
    let all = OutOfCore::new(builder.clone(), plan).build(&base, &path).unwrap();
    let expected = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    // Checkpoints after each cluster, or only at the stop; work files of vectors, or of ids alone.
    let stops = [(1, 0), (4, 0), (9, 0), (all.clusters as u64, 0), (5, 1000)];
    let written = stops.map(|(stop, every)| (stop, every, plan));
    for (stop, every, plan) in written.into_iter().chain([(4, 0, plan.reading_base(true))]) {
        let every = Duration::from_secs(every);
        let stopped = builder.clone().progress(stops_at(stop));
        let stopped = OutOfCore::new(stopped, plan).checkpoint(every);
        assert!(matches!(stopped.build(&base, &path), Err(Error::Cancelled)), "stop at {stop}");
        assert!(work.exists() && !path.exists());
        let build = OutOfCore::new(builder.clone(), plan);
        let error = build.build(&base, &path).unwrap_err().to_string();
        assert!(error.contains("found an unfinished build"), "{error}");
        let other = OutOfCore::new(builder.clone().seed(9), plan).resume(true);
        let error = other.build(&base, &path).unwrap_err().to_string();
        assert!(
            error.contains("manifest.json: found seed 0, expected seed 9; resume with the parameters"),
            "{error}"
        );
        // The resumed build keeps the plan of the work files.
        let mut now = plan;
        (now.clusters, now.cluster_size, now.cache) = (3, 1000, 2);
        let stats = OutOfCore::new(builder.clone(), now).resume(true).build(&base, &path).unwrap();
        assert!(fs::read(&path).unwrap() == expected, "stop at {stop}, checkpoints every {every:?}");
        assert_eq!(stats.built as u64, all.built as u64 - stop, "waiting lists are saved at a stop");
        assert_eq!(stats.cache.second_visits, 1500);
        assert!(!work.exists());
        fs::remove_file(&path).unwrap();
    }
    // Without work files, a resumed build begins.
    OutOfCore::new(builder, plan).resume(true).build(&base, &path).unwrap();
    assert!(fs::read(&path).unwrap() == expected);
}

#[test]
fn clusters_of_small_values_resume_beside_large_ones() {
    // Alone, most clusters would be refused: their squares would vanish.
    let row = |row: usize| if row.is_multiple_of(4) { 1.0 } else { 1e-14 };
    let values = uniform(800, 6, 5).to_f32().unwrap();
    let values = values.iter().enumerate().map(|(i, x)| x * row(i / 6)).collect::<Vec<f32>>();
    // Each build reads a base that no other has checked.
    let base = || Vectors::from_f32(values.clone(), 6).unwrap();
    let builder = Builder::new(Strategy::nssg()).knn(16).device(Device::Cpu);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let plan = plan(&builder, &base(), 100).reading_base(true);
    OutOfCore::new(builder.clone(), plan).build(&base(), &path).unwrap();
    let expected = fs::read(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let stopped = OutOfCore::new(builder.clone().progress(stops_at(2)), plan);
    assert!(matches!(stopped.build(&base(), &path), Err(Error::Cancelled)));
    OutOfCore::new(builder, plan).resume(true).build(&base(), &path).unwrap();
    assert!(fs::read(&path).unwrap() == expected);
}

#[test]
fn damaged_work_files_are_made_again() {
    let base = Synth::new(1500, 12, 1).unwrap().base();
    let builder = Builder::new(Strategy::vamana()).knn(24).device(Device::Cpu);
    let folder = tempfile::tempdir().unwrap();
    let (path, work) = (folder.path().join("index"), folder.path().join("index.work"));
    let mut plan = plan(&builder, &base, 300);
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
    // All waiting lists: all damaged parcels are found at once.
    let stopped = builder.clone().progress(stops_at(8));
    OutOfCore::new(stopped, plan).checkpoint(Duration::ZERO).build(&base, &path).unwrap_err();
    let lists = work.join("lists");
    let content: Vec<u8> = fs::read(&lists).unwrap().iter().map(|byte| byte ^ 1).collect();
    fs::write(&lists, content).unwrap();
    let stats = OutOfCore::new(builder, plan).resume(true).build(&base, &path).unwrap();
    assert!(fs::read(&path).unwrap() == expected);
    assert_eq!(stats.repaired, ["lists"]);
}

#[cfg(unix)]
#[test]
fn an_older_report_is_deleted_with_the_older_index() {
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
    assert!(report.exists(), "deleted by a stopped build");
    fs::remove_dir_all(folder.path().join("index.work")).unwrap();
    build(Progress::silent()).unwrap();
    assert!(path.exists() && !report.exists());
    // Also for an index built in memory.
    fs::write(&report, "old").unwrap();
    let index = builder.build(&base).unwrap();
    let room = IndexRoom::reserve(&path, base.len(), index.max_degree()).unwrap();
    assert!(report.exists());
    index.save_in(room, std::slice::from_ref(&report)).unwrap();
    assert!(!report.exists());
}
