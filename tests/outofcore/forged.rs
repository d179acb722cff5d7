//! Folders of tasks that others write to: planted files, vanished objects, and wrong numbers behind
//! right checksums.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tagore::outofcore::{OutOfCore, TaskFiles, TaskFolder, TaskId, TaskStage, TaskWorker};
use tagore::{Builder, Device, Format, Strategy, Synth};

use super::{plan, sealed};

/// A build in tasks, and the index of one machine.
struct Case {
    folder: tempfile::TempDir,
    tasks: TaskFolder,
    expected: Vec<u8>,
}

impl Case {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let base = Synth::new(1500, 4, 1).unwrap().base();
        base.save(path("base.fbin")).unwrap();
        let builder = Builder::new(Strategy::vamana()).knn(12).device(Device::Cpu);
        let build = OutOfCore::new(builder.clone(), plan(&builder, &base, 500));
        build.build(&base, &path("one")).unwrap();
        let files = TaskFiles {
            base: path("base.fbin"),
            format: Format::Fbin,
            output: path("index"),
            range_rows: 1024,
        };
        let tasks = TaskFolder::create(&path("tasks"), &build, &base, &files).unwrap();
        let expected = fs::read(path("one")).unwrap();
        Self { folder, tasks, expected }
    }

    fn worker(&self) -> TaskWorker {
        self.tasks.worker(self.tasks.open_base().unwrap(), Device::Cpu, false).unwrap()
    }

    fn object(&self, task: &str) -> PathBuf {
        self.tasks.path().join(self.tasks.object(task.parse().unwrap()))
    }

    /// Runs what is missing, and checks the index.
    fn ends(&self, what: &str) {
        self.worker().run_stages(&TaskStage::ALL, |_| ()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let index = self.folder.path().join("index");
        assert!(fs::read(&index).unwrap() == self.expected, "{what}: other bytes");
        fs::remove_file(index).unwrap();
    }
}

/// Changes a piece of an object, or the first one that is not empty, and sets all checksums right
/// (docs/tasks.md).
fn forge(path: &Path, key: Option<u32>, change: impl FnOnce(&mut [u8])) {
    let mut bytes = fs::read(path).unwrap();
    let begin = bytes.windows(2).position(|end| end == b"}\n").unwrap() + 2;
    let mut head: Value = serde_json::from_slice(&bytes[..begin]).unwrap();
    let pieces = head["content"]["pieces"].as_array_mut().unwrap();
    let mut offset = begin;
    let piece = pieces.iter_mut().find(|piece| {
        let length = piece[1].as_u64().unwrap() as usize;
        let is_it = key.map_or(length > 0, |key| piece[0] == key);
        offset += if is_it { 0 } else { length };
        is_it
    });
    let piece = piece.unwrap();
    let content = &mut bytes[offset..offset + piece[1].as_u64().unwrap() as usize];
    change(content);
    piece[2] = crc32fast::hash(content).into();
    let record = sealed("object", &head["content"].to_string());
    fs::write(path, [record.as_bytes(), &bytes[begin..]].concat()).unwrap();
}

#[test]
fn wrong_numbers_behind_right_checksums_are_made_again() {
    let case = Case::new();
    case.worker().run_stages(&TaskStage::ALL[..6], |_| ()).unwrap();
    let forged: [(&str, Option<u32>, &[u8]); 9] = [
        // Nearest centres, sums, counts by pairs of centres.
        ("assign-0", Some(0), &[255; 4]),
        ("assign-0", Some(1), &[255; 8]),
        ("assign-0", Some(2), &[255; 12]),
        // Shared nodes, the mean, the order of clusters.
        ("place", Some(u32::MAX - 2), &[255; 8]),
        ("place", Some(u32::MAX - 1), &[255; 8]),
        ("place", Some(u32::MAX), &[255; 4]),
        // A neighbour of no row; padding before a neighbour.
        ("build-0", None, &[254; 8]),
        ("assemble-0", None, &[254; 4]),
        ("assemble-0", None, &[255; 4]),
    ];
    for (task, key, with) in forged {
        // All that reads it runs again.
        let stage = task.parse::<TaskId>().unwrap().stage;
        for later in TaskStage::ALL.into_iter().filter(|&later| later > stage) {
            let objects = case.tasks.tasks_of(later).map(|task| case.object(&task.to_string()));
            objects.for_each(|object| drop(fs::remove_file(object)));
        }
        forge(&case.object(task), key, |piece| piece[..with.len()].copy_from_slice(with));
        case.ends(&format!("{task}, piece {key:?}"));
    }
}

#[test]
fn rows_that_are_not_finite_are_refused() {
    let case = Case::new();
    case.worker().run_stages(&TaskStage::ALL[..3], |_| ()).unwrap();
    // The first record of a cluster: two numbers, then the row.
    forge(&case.object("write-0"), Some(0), |piece| piece[8..12].copy_from_slice(&f32::NAN.to_le_bytes()));
    let error = case.worker().run("build-0".parse().unwrap()).unwrap_err().to_string();
    assert!(error.contains("found members of cluster 0 at odds with `place`"), "{error}");
}

#[test]
fn objects_that_vanish_while_tasks_run_are_made_again() {
    let case = Case::new();
    let all = case.tasks.tasks();
    let mut removed = 0;
    let each = |task: TaskId| {
        // All objects of earlier stages, thrice.
        if removed < 3 && task.stage > TaskStage::Assign {
            removed += 1;
            let earlier = all.iter().filter(|earlier| earlier.stage < task.stage);
            earlier.for_each(|task| drop(fs::remove_file(case.object(&task.to_string()))));
        }
    };
    case.worker().run_stages(&TaskStage::ALL, each).unwrap();
    assert_eq!(removed, 3);
    case.ends("vanished objects");
}

#[test]
fn forged_plans_are_refused() {
    let case = Case::new();
    let path = case.tasks.path().join("plan.json");
    let sound = fs::read_to_string(&path).unwrap();
    let plan = sound.split_once('\n').unwrap().1.strip_suffix("}\n").unwrap();
    assert_eq!(sealed("plan", plan), sound);
    for (from, to, expected) in [
        ("\"dim\":4", "\"dim\":0", "dim: found 0, expected 1 to"),
        ("\"rows\":1500", "\"rows\":18446744073709551615", "n: found 18446744073709551615, expected 1 to"),
        ("\"range_rows\":1024", "\"range_rows\":0", "range_rows: found 0"),
        ("\"cluster_size\":500,\"cache\"", "\"cluster_size\":0,\"cache\"", "cluster_size: found 0"),
        ("\"largest_square\":0", "\"largest_square\":9221120237041090560", "largest square: found NaN"),
    ] {
        let forged = plan.replace(from, to);
        assert_ne!(forged, plan, "{from}");
        fs::write(&path, sealed("plan", &forged)).unwrap();
        let error = TaskFolder::open(case.tasks.path()).unwrap_err().to_string();
        assert!(error.contains("plan.json: found ") && error.contains(expected), "{to}: {error}");
    }
    let clusters = format!("\"clusters\":{},\"range_rows\"", case.tasks.clusters());
    let forged = plan.replace(&clusters, "\"clusters\":4294967296,\"range_rows\"");
    fs::write(&path, sealed("plan", &forged)).unwrap();
    let error = TaskFolder::open(case.tasks.path()).unwrap_err().to_string();
    assert!(error.contains("clusters: found 4294967296, expected 2 to"), "{error}");
    fs::write(&path, " ".repeat(2 << 20)).unwrap();
    let error = TaskFolder::open(case.tasks.path()).unwrap_err().to_string();
    assert!(error.contains("found 2097152 bytes, expected at most 1048576"), "{error}");
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_not_read_and_not_written() {
    use std::os::unix::fs::symlink;
    let case = Case::new();
    let tasks = case.tasks.path();
    let victim = case.folder.path().join("victim");
    fs::write(&victim, "of someone else").unwrap();
    let pipe = |path: &Path| rustix::fs::mkfifoat(rustix::fs::CWD, path, rustix::fs::Mode::RWXU).unwrap();
    // Claims and objects, before and after their tasks have run.
    for round in 0..2 {
        for (number, task) in
            ["assign-0", "assign-1", "place", "write-0", "build-0", "finish"].iter().enumerate()
        {
            let object = case.object(task);
            let claim = tasks.join(format!(".{}.claim", case.tasks.object(task.parse().unwrap())));
            for (path, kind) in [(object, number + round), (claim, number + round + 1)] {
                let _ = fs::remove_file(&path);
                match kind % 3 {
                    0 => pipe(&path),
                    1 => symlink(&victim, &path).unwrap(),
                    _ => symlink("elsewhere", &path).unwrap(),
                }
            }
        }
        case.tasks.status().unwrap();
        case.ends("planted files");
    }
    assert_eq!(fs::read(&victim).unwrap(), b"of someone else");
    assert!(!tasks.join("elsewhere").exists());
    // The index at the end of a link, but no pipe.
    let index = case.folder.path().join("index");
    symlink(&victim, &index).unwrap();
    case.worker().run("finish".parse().unwrap()).unwrap();
    assert!(fs::symlink_metadata(&index).unwrap().is_symlink());
    assert!(fs::read(&victim).unwrap() == case.expected);
    fs::remove_file(&index).unwrap();
    pipe(&index);
    let error = case.worker().run("finish".parse().unwrap()).unwrap_err().to_string();
    assert!(error.ends_with("found a device or a pipe, expected a regular file, or a new name"), "{error}");
    let plan = tasks.join("plan.json");
    fs::remove_file(&plan).unwrap();
    for kind in ["pipe", "link"] {
        match kind {
            "pipe" => pipe(&plan),
            _ => symlink("/dev/zero", &plan).unwrap(),
        }
        let error = TaskFolder::open(tasks).unwrap_err().to_string();
        assert!(error.ends_with(&format!("found a {kind}, expected a regular file")), "{error}");
        fs::remove_file(&plan).unwrap();
    }
}
