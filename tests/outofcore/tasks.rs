//! Builds in tasks end in the bytes of the build on one machine, whatever happens to processes and
//! objects.

use std::fs;
use std::path::{Path, PathBuf};

use tagore::outofcore::{
    ObjectBytes, OutOfCore, TaskFiles, TaskFolder, TaskId, TaskInput, TaskStage, TaskWorker, Worked,
};
use tagore::{
    Builder, Device, ElementType, Error, Format, Index, Metric, Strategy, Synth, SynthKind, Vectors,
};

use super::lone::with_lone_rows;
use super::plan;
use super::quality::{separated, ten_times};

/// A folder with a data set, the index of one machine, and a plan of the same build in tasks.
struct Case {
    folder: tempfile::TempDir,
    expected: Vec<u8>,
    build: OutOfCore,
    base: Vectors,
}

impl Case {
    fn new(builder: Builder, base: &Vectors, size: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (name, format) = format(base);
        let (file, index) = (folder.path().join(name), folder.path().join("one"));
        base.save(&file).unwrap();
        let base = Vectors::open_as(&file, format).unwrap();
        let mut plan = plan(&builder, &base, size);
        plan.cache = 3;
        let build = OutOfCore::new(builder, plan);
        build.build(&base, &index).unwrap();
        let expected = fs::read(&index).unwrap();
        Self { folder, expected, build, base }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn files(&self) -> TaskFiles {
        let (name, format) = format(&self.base);
        TaskFiles { base: self.path(name), format, output: self.path("index"), range_rows: 1024 }
    }

    fn plan(&self) -> TaskFolder {
        TaskFolder::create(&self.path("tasks"), &self.build, &self.base, &self.files()).unwrap()
    }

    fn worker(&self, folder: &TaskFolder) -> TaskWorker {
        folder.worker(folder.open_base().unwrap(), Device::Cpu, false).unwrap()
    }

    /// Checks the index and removes it with all objects.
    fn ends(&self, what: &str) {
        assert!(fs::read(self.path("index")).unwrap() == self.expected, "{what}: other bytes");
        let hidden = |folder: &Path| {
            let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
            names.filter(|name| name.to_string_lossy().starts_with('.')).count()
        };
        assert_eq!(hidden(self.folder.path()) + hidden(&self.path("tasks")), 0, "{what}: files left behind");
        fs::remove_file(self.path("index")).unwrap();
        fs::remove_dir_all(self.path("tasks")).unwrap();
    }
}

/// The extension and the format of a file of vectors of a type.
fn format(base: &Vectors) -> (&'static str, Format) {
    match base.element_type() {
        ElementType::U8 => ("base.u8bin", Format::U8bin),
        _ => ("base.fbin", Format::Fbin),
    }
}

fn vamana() -> Builder {
    Builder::new(Strategy::vamana()).knn(24).device(Device::Cpu)
}

fn small() -> Case {
    let base = Synth::new(3000, 12, 1).unwrap().base();
    Case::new(vamana(), &base, 600)
}

#[test]
fn tasks_in_any_order_make_the_bytes_of_one_machine() {
    let base = Synth::new(3000, 12, 1).unwrap().base();
    let bytes = Vectors::from_u8(
        (0..base.len() * 12).map(|i| base.row_to_f32(i / 12).unwrap()[i % 12].abs() as u8).collect(),
        12,
    );
    let cases = [
        (vamana(), base.clone()),
        (vamana().metric(Metric::InnerProduct), base.clone()),
        (vamana().metric(Metric::Cosine).seed(4), base.clone()),
        (Builder::new(Strategy::cagra()).knn(32).device(Device::Cpu), bytes.unwrap()),
        (Builder::new(Strategy::alpha_cng()).knn(30).device(Device::Cpu), base),
    ];
    for (builder, base) in cases {
        let what = format!("{} by {}", builder.strategy().kind(), base.element_type());
        let case = Case::new(builder, &base, 600);
        let folder = case.plan();
        assert!(folder.clusters() > 5 && folder.ranges() == 3, "{what}");
        let worker = case.worker(&folder);
        for stage in TaskStage::ALL {
            // Backwards.
            let mut tasks: Vec<TaskId> = folder.tasks_of(stage).collect();
            tasks.reverse();
            tasks
                .into_iter()
                .for_each(|task| assert_eq!(worker.run(task).unwrap(), Worked::Made, "{what}, {task}"));
        }
        assert!(folder.tasks().into_iter().all(|task| worker.run(task).unwrap() == Worked::Present));
        assert!(
            folder
                .status()
                .unwrap()
                .iter()
                .all(|stage| stage.made == stage.tasks && stage.missing.is_empty())
        );
        case.ends(&what);
    }
}

#[test]
fn full_clusters_layers_and_repeated_rows_are_those_of_one_machine() {
    // Layers, and nine in ten rows repeated: the first row of a group is often in another range.
    let repeated = ten_times(&separated(600, 16, 20), 600);
    let builder = Builder::new(Strategy::cagra()).knn(32).device(Device::Cpu);
    let case = Case::new(builder, &repeated, 100);
    let folder = case.plan();
    case.worker(&folder).run_stages(&TaskStage::ALL, |_| ()).unwrap();
    let index = Index::open(case.path("index")).unwrap();
    assert!(!index.layers().is_empty() && index.repeated().len() == 5400);
    assert_eq!(folder.finished().unwrap().unwrap().repeated, 5400);
    case.ends("repeated rows");
    let builder = Builder::new(Strategy::cagra()).knn(32).device(Device::Cpu);
    let case = Case::new(builder, &with_lone_rows(), 600);
    case.worker(&case.plan()).run_stages(&TaskStage::ALL, |_| ()).unwrap();
    case.ends("lone rows");
    let case = Case::new(vamana(), &heavy(), 300);
    case.worker(&case.plan()).run_stages(&TaskStage::ALL, |_| ()).unwrap();
    case.ends("full clusters");
}

/// Rows of norms from nearly 0 to large ones: clusters in the middle become full.
fn heavy() -> Vectors {
    let rows = Synth::of_kind(SynthKind::Lognormal, 4000, 16, 1).unwrap().base();
    let stretched = |row: usize| {
        let values = rows.row_to_f32(row).unwrap().into_owned();
        let square: f32 = values.iter().map(|x| x * x).sum();
        values.into_iter().map(move |x| x * square.powf(1.5))
    };
    Vectors::from_f32((0..rows.len()).flat_map(stretched).collect(), 16).unwrap()
}

#[test]
fn every_task_twice_at_once_and_workers_side_by_side_make_the_same_bytes() {
    let case = small();
    let folder = case.plan();
    let workers = [0, 1].map(|_| case.worker(&folder));
    for task in folder.tasks() {
        std::thread::scope(|scope| {
            for worker in &workers {
                scope.spawn(move || worker.run(task).unwrap());
            }
        });
    }
    case.ends("twice");
    let folder = case.plan();
    std::thread::scope(|scope| {
        for worker in [0, 1, 2].map(|_| case.worker(&folder)) {
            scope.spawn(move || worker.run_stages(&TaskStage::ALL, |_| ()).unwrap());
        }
    });
    case.ends("three workers");
}

/// Copies the part of an input that its task reads; the other bytes are zeros.
fn fetch(folder: &TaskFolder, input: &TaskInput, to: &Path) {
    let content = fs::read(folder.path().join(&input.object)).unwrap();
    assert!(folder.bytes_of(input, &content[..39]).unwrap().is_none(), "too few bytes");
    let ObjectBytes { length, ranges } = folder.bytes_of(input, &content).unwrap().unwrap();
    assert_eq!(length, content.len() as u64);
    let mut copy = vec![0; content.len()];
    for range in ranges {
        let range = range.start as usize..range.end as usize;
        copy[range.clone()].copy_from_slice(&content[range]);
    }
    fs::write(to.join(&input.object), copy).unwrap();
}

/// A data set with the rows that a task reads; the values of all others are no numbers.
fn rows_of(folder: &TaskFolder, there: &TaskFolder, task: TaskId, base: &Vectors) -> Vectors {
    let mut values = vec![f32::NAN; base.len() * base.dim()];
    let ranges = there.base_rows(task).unwrap().unwrap().into_iter().flatten();
    for row in ranges.chain(folder.fingerprint_rows()) {
        let row = row as usize;
        values[row * base.dim()..][..base.dim()].copy_from_slice(&base.row_to_f32(row).unwrap());
    }
    Vectors::from_f32(values, base.dim()).unwrap()
}

/// Runs each task in a folder with the named parts of its inputs, on a data set with the rows that
/// it reads. Returns how many rows `place` and `finish` read.
fn run_apart(case: &Case) -> [u64; 2] {
    let folder = case.plan();
    let mut read = Vec::new();
    for task in folder.tasks() {
        let scratch = tempfile::tempdir().unwrap();
        fs::copy(folder.path().join("plan.json"), scratch.path().join("plan.json")).unwrap();
        folder.inputs(task).unwrap().iter().for_each(|input| fetch(&folder, input, scratch.path()));
        let there = TaskFolder::open(scratch.path()).unwrap();
        if matches!(task.stage, TaskStage::Place | TaskStage::Finish) {
            let rows = there.base_rows(task).unwrap().unwrap();
            read.push(rows.iter().map(|rows| rows.end - rows.start).sum());
        }
        let base = rows_of(&folder, &there, task, &case.base);
        let worker = there.worker(base, Device::Cpu, false).unwrap();
        assert_eq!(worker.attempt(task).unwrap(), Ok(Worked::Made), "{task}");
        let object = there.object(task);
        fs::copy(scratch.path().join(&object), folder.path().join(&object)).unwrap();
    }
    read.try_into().unwrap()
}

#[test]
fn a_task_runs_on_the_named_parts_of_its_inputs_and_of_the_data_set() {
    let case = small();
    assert_eq!(run_apart(&case), [0, 3000]);
    let folder = TaskFolder::open(&case.path("tasks")).unwrap();
    let assign = TaskId { stage: TaskStage::Assign, number: 1 };
    fs::write(folder.path().join(folder.object(assign)), "damage").unwrap();
    let place = TaskId { stage: TaskStage::Place, number: 0 };
    assert!(folder.base_rows(place).unwrap().is_none());
    let inputs = folder.inputs(place).unwrap();
    let foreign = folder.bytes_of(&inputs[0], &[7; 99]).unwrap_err().to_string();
    assert!(foreign.contains("another version, expected an intact object of this plan"), "{foreign}");
    case.ends("scratch folders");
    // Full clusters, entry points of clusters, no layers.
    let case = Case::new(vamana().layers(false), &heavy(), 300);
    let [place, finish] = run_apart(&case);
    assert!(place >= 4000 - 3 * 1024 && (2..=200).contains(&finish), "{place} and {finish} rows");
    case.ends("full clusters");
    // Random entry points.
    let cagra = Builder::new(Strategy::cagra()).knn(32).device(Device::Cpu).layers(false);
    let case = Case::new(cagra, &Synth::new(3000, 12, 1).unwrap().base(), 600);
    assert_eq!(run_apart(&case), [0, 0]);
    case.ends("random entry points");
}

#[test]
fn damaged_and_missing_objects_are_named_and_made_again() {
    let case = small();
    let folder = case.plan();
    let worker = case.worker(&folder);
    let object = |task: TaskId| case.path("tasks").join(folder.object(task));
    let id = |name: &str| name.parse::<TaskId>().unwrap();
    let error = |name: &str| worker.run(id(name)).unwrap_err().to_string();
    assert!(
        error("build-3").ends_with("found 4 objects missing, expected the objects of place, write-0, write-1, write-2: run these tasks before build-3"),
        "{}", error("build-3")
    );
    assert!(error("build-300").contains("task: found build-300, expected one of the "));
    worker.run_stages(&TaskStage::ALL, |_| ()).unwrap();
    let flip = |task: TaskId| {
        let mut bytes = fs::read(object(task)).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(object(task), bytes).unwrap();
    };
    // A run of the task finds the damage and makes the object again.
    for name in ["assign-1", "place", "write-2", "build-4", "merge-5", "assemble-0"] {
        let (task, sound) = (id(name), fs::read(object(id(name))).unwrap());
        flip(task);
        assert_eq!(worker.run(task).unwrap(), Worked::Made, "{name}");
        assert!(fs::read(object(task)).unwrap() == sound, "{name}");
        fs::write(object(task), &sound[..sound.len() / 2]).unwrap();
        let status = folder.status().unwrap();
        let missing: Vec<TaskId> = status.into_iter().flat_map(|stage| stage.missing).collect();
        assert_eq!(missing, [task], "{name}");
        assert_eq!(worker.run(task).unwrap(), Worked::Made, "{name}");
    }
    // A run of a task that reads it names it. The last byte is of the last cluster.
    let last = TaskId { stage: TaskStage::Build, number: folder.clusters() as u32 - 1 };
    flip(id("write-0"));
    fs::remove_file(object(last)).unwrap();
    let error = worker.run(last).unwrap_err().to_string();
    let expected = format!("expected an intact object: delete it, run the task write-0 again, then {last}");
    assert!(error.ends_with(&format!("found damage, or no file, {expected}")), "{error}");
    // A worker makes it again by itself, and all that is missing.
    fs::remove_file(case.path("index")).unwrap();
    fs::remove_file(object(id("merge-1"))).unwrap();
    worker.run_stages(&TaskStage::ALL, |_| ()).unwrap();
    case.ends("damage");
}

#[test]
fn a_claim_of_a_stopped_process_lapses() {
    let case = small();
    let folder = case.plan();
    for task in folder.tasks_of(TaskStage::ALL[0]) {
        fs::write(case.path("tasks").join(format!(".{}.claim", folder.object(task))), "gone 3").unwrap();
    }
    assert!(case.worker(&folder).run_next().unwrap().is_some());
}

#[test]
fn a_changed_base_another_plan_and_a_damaged_plan_are_refused() {
    let case = small();
    let folder = case.plan();
    // The same plan again.
    assert_eq!(case.plan().tasks(), folder.tasks());
    let other = TaskFiles { range_rows: 2048, ..case.files() };
    let error =
        TaskFolder::create(&case.path("tasks"), &case.build, &case.base, &other).unwrap_err().to_string();
    assert!(
        error.contains("plan.json: found the plan of another build, expected an empty folder"),
        "{error}"
    );
    for rows in [0, 1000] {
        let wrong = TaskFiles { range_rows: rows, ..case.files() };
        let error = TaskFolder::create(&case.path("other"), &case.build, &case.base, &wrong).unwrap_err();
        assert!(matches!(error, Error::Argument { parameter: "range_rows", .. }), "{error}");
    }
    let changed = Synth::new(3000, 12, 2).unwrap().base();
    let error = folder.worker(changed, Device::Cpu, false).err().unwrap().to_string();
    assert!(
        error.contains("found another data set, or other values, expected the 3000 x 12 f32 of the plan"),
        "{error}"
    );
    // A row that the fingerprint leaves out, changed between two tasks.
    let worker = case.worker(&folder);
    worker.run_stages(&[TaskStage::Assign, TaskStage::Place], |_| ()).unwrap();
    let (file, mut bytes) = (case.path("base.fbin"), fs::read(case.path("base.fbin")).unwrap());
    let sound = bytes.clone();
    let place = 8 + 1502 * 48 + 4;
    bytes[place] ^= 1;
    fs::write(&file, &bytes).unwrap();
    let worker = case.worker(&folder);
    let error = worker.run("write-1".parse().unwrap()).unwrap_err().to_string();
    assert!(
        error.contains("found other values in rows 1024 to 2047, expected the data set of the plan"),
        "{error}"
    );
    fs::write(&file, sound).unwrap();
    let plan = case.path("tasks").join("plan.json");
    let json = fs::read_to_string(&plan).unwrap();
    fs::write(&plan, json.replace("\"range_rows\":1024", "\"range_rows\":2048")).unwrap();
    let error = TaskFolder::open(&case.path("tasks")).unwrap_err().to_string();
    assert!(error.contains("plan.json: found damage, expected the plan of a build in tasks"), "{error}");
    fs::write(&plan, json).unwrap();
    case.worker(&TaskFolder::open(&case.path("tasks")).unwrap()).run_stages(&TaskStage::ALL, |_| ()).unwrap();
    case.ends("again");
}

#[test]
fn devices_of_another_kind_are_refused_unless_allowed() {
    let base = Synth::new(300, 6, 1).unwrap().base();
    let case = Case::new(Builder::new(Strategy::vamana()).knn(10).device(Device::Cpu), &base, 120);
    let folder = case.plan();
    let open = || folder.open_base().unwrap();
    let emulated = folder.worker(open(), Device::Emulated, false).unwrap();
    let refused = |task: &str| {
        let error = emulated.run(task.parse().unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("device: found emulated, expected cpu, the plan's"), "{error}");
    };
    refused("assign-0");
    case.worker(&folder).run_stages(&[TaskStage::Assign], |_| ()).unwrap();
    // These make the same bytes on any device.
    emulated.run_stages(&[TaskStage::Place, TaskStage::Write], |_| ()).unwrap();
    refused("build-1");
    let worker = folder.worker(open(), Device::Emulated, true).unwrap();
    worker.run("build-1".parse().unwrap()).unwrap();
    case.worker(&folder).run_stages(&TaskStage::ALL, |_| ()).unwrap();
    assert_eq!(folder.finished().unwrap().unwrap().devices, ["cpu", "emulated"]);
}

#[test]
fn a_plan_for_a_gpu_makes_the_bytes_of_that_gpu() {
    let base = Synth::new(110, 6, 1).unwrap().base();
    // The emulator is slow.
    let builder = Builder::new(Strategy::vamana().degree(8)).knn(10).device(Device::Emulated);
    let case = Case::new(builder, &base, 60);
    let folder = case.plan();
    let worker = folder.worker(folder.open_base().unwrap(), Device::Emulated, false).unwrap();
    worker.run_stages(&TaskStage::ALL, |_| ()).unwrap();
    case.ends("emulated");
}

#[test]
fn large_data_sets_have_at_most_256_ranges() {
    for (rows, expected) in [(1, 1 << 18), (67_000_000, 1 << 18), (1_000_000_000, 3_906_560)] {
        let found = TaskFolder::usual_range_rows(rows);
        assert_eq!((found, found % 1024), (expected, 0));
        assert!(rows.div_ceil(found) <= 256);
    }
}
