//! The costs of a build in tasks on paper agree with its objects.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use tagore::outofcore::{
    ClusterPlan, Limits, ObjectPart, OutOfCore, StageCosts, TaskBound, TaskCosts, TaskFiles, TaskFolder,
    TaskInput, TaskMachines, TaskStage,
};
use tagore::{
    Builder, DataShape, Device, ElementType, Error, Format, Index, Metric, Strategy, Synth, Target,
};

use super::plan;

/// Bytes that a task reads of an input, and the requests for them: one for the beginning, and one
/// for a piece or for the rest.
fn moved(folder: &TaskFolder, input: &TaskInput) -> (u64, u64) {
    let mut begin = Vec::new();
    let file = File::open(folder.path().join(&input.object)).unwrap();
    file.take(1 << 16).read_to_end(&mut begin).unwrap();
    let bytes = folder.bytes_of(input, &begin).unwrap().unwrap();
    let moved = bytes.ranges.iter().map(|range| range.end - range.start).sum();
    (moved, if input.part == ObjectPart::Head { 1 } else { 2 })
}

fn bytes_of(path: &Path) -> u64 {
    path.metadata().unwrap().len()
}

/// What two numbers are, if they differ by more than this share and by more than `least`.
fn differ(what: &str, planned: u64, found: u64, share: f64, least: u64) -> Option<String> {
    let difference = planned.abs_diff(found);
    let wrong = difference > least && difference as f64 > share * found as f64;
    wrong.then(|| format!("{what}: planned {planned}, found {found}"))
}

#[test]
fn planned_bytes_are_those_of_objects() {
    let cases = [
        (Builder::new(Strategy::vamana()).knn(32), 32, 1_800, 18_000),
        (Builder::new(Strategy::cagra()).knn(32).metric(Metric::InnerProduct), 12, 1_700, 10_000),
    ];
    for (builder, dim, size, rows) in cases {
        let builder = builder.device(Device::Cpu);
        let what = builder.strategy().kind();
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let base = Synth::new(rows, dim, 5).unwrap().base();
        base.save(path("base.fbin")).unwrap();
        let mut clusters = plan(&builder, &base, size);
        let output = path("index");
        let files = TaskFiles {
            base: path("base.fbin"),
            format: Format::Fbin,
            output: output.clone(),
            range_rows: 4096,
        };
        let build = OutOfCore::new(builder.clone(), clusters);
        let tasks = TaskFolder::create(&path("tasks"), &build, &base, &files).unwrap();
        // K-means may split clusters, which the plan cannot foresee.
        clusters.clusters = tasks.clusters();
        let worker = tasks.worker(base.clone(), Device::Cpu, false).unwrap();
        for task in tasks.tasks() {
            worker.run(task).unwrap();
        }
        let data = DataShape::new(base.len(), dim, ElementType::F32).unwrap();
        let costs = TaskCosts::new(&builder, &data, &clusters, 4096, Target::cpu()).unwrap();
        let mut wrong = Vec::new();
        for StageCosts { stage, tasks: count, base: rows, read, written, requests, seconds } in costs.stages()
        {
            assert_eq!(count, tasks.count(stage), "{what}, {stage}");
            let names = tasks.tasks_of(stage).map(|task| path("tasks").join(tasks.object(task)));
            let objects: u64 = names.map(|name| bytes_of(&name)).sum();
            let index = if stage == TaskStage::Finish { bytes_of(&output) } else { 0 };
            // Descriptions, and pairs of clusters, are some hundred bytes more or less.
            let bytes =
                |what: &str, planned, found| differ(&format!("{stage}, {what}"), planned, found, 0.03, 1024);
            wrong.extend(bytes("written", written, objects + index));
            let inputs = tasks.tasks_of(stage).flat_map(|task| tasks.inputs(task).unwrap());
            let (mut found, mut asked) = (0, 0);
            for (input_bytes, input_requests) in inputs.map(|input| moved(&tasks, &input)) {
                found += input_bytes;
                asked += input_requests;
            }
            wrong.extend(bytes("read", read, found));
            let of_base = [TaskStage::Assign, TaskStage::Write].contains(&stage);
            // An object that is written is a request, and so is a range of rows. Reads of other
            // lists follow the pairs of clusters that share rows, whose number depends on the data.
            let made = count as u64 * (1 + u64::from(of_base)) + u64::from(stage == TaskStage::Finish);
            wrong.extend(differ(&format!("{stage}, requests"), requests, asked + made, 0.15, 0));
            let is_right = if of_base {
                rows == (base.len() * dim * 4) as u64
            } else {
                stage >= TaskStage::Build || rows == 0
            };
            assert!(is_right && seconds > 0.0, "{what}, {stage}: {rows} bytes of the base, {seconds} s");
        }
        assert!(wrong.is_empty(), "{what}: {wrong:?}");
        assert_eq!(Index::open(&output).unwrap().len(), base.len());
    }
}

/// A billion rows of 96 bytes on GPUs, in ranges of this many rows.
fn billion(range_rows: usize) -> TaskCosts {
    let data = DataShape::new(1_000_000_000, 96, ElementType::U8).unwrap();
    let builder = Builder::new(Strategy::vamana()).knn(64);
    let limits = Limits { cluster_size: Some(4_000_000), ..Default::default() };
    let target = Target { threads: 16, ..Target::cuda() };
    let clusters = ClusterPlan::on(&builder, &data, &limits, target, 1).unwrap().unwrap();
    TaskCosts::new(&builder, &data, &clusters, range_rows, target).unwrap()
}

#[test]
fn workers_save_time_until_a_bound() {
    let costs = billion(1 << 20);
    let machines = |workers| TaskMachines { workers, ..TaskMachines::default() };
    let of = |workers| costs.simulate(&machines(workers));
    let total = |workers| of(workers).iter().map(|stage| stage.seconds).sum::<f64>();
    let totals: Vec<f64> = [1, 2, 4, 16, 64, 256].into_iter().map(total).collect();
    assert!(totals.is_sorted_by(|a, b| a >= b), "{totals:?}");
    assert!(totals[0] / totals[2] > 3.0, "{totals:?}");
    // Single tasks gain nothing.
    let (one, many) = (of(1), of(64));
    for (stage, bound) in [(1, TaskBound::Tasks), (6, TaskBound::Tasks)] {
        assert_eq!((one[stage].seconds, many[stage].bound), (many[stage].seconds, bound));
    }
    let (most, times) = costs.most_workers(&machines(1));
    assert!(total(2 * most) > 0.9 * total(most) && total(most) <= 0.9 * total(most / 2), "{most}");
    assert_eq!(times, of(most));
    // A store too slow for all: more workers gain nothing at all.
    let slow = |workers| TaskMachines { store: 1e8, ..machines(workers) };
    let times = costs.simulate(&slow(64));
    assert!(times.iter().any(|time| time.bound == TaskBound::Store), "{times:?}");
    assert!(costs.most_workers(&slow(1)).0 < most);
}

#[test]
fn small_ranges_cost_requests() {
    let requests = |range_rows| billion(range_rows).stages().iter().map(|stage| stage.requests).sum::<u64>();
    assert!(requests(1 << 18) > 3 * requests(1 << 20));
}

#[test]
fn wrong_ranges_are_refused() {
    let data = DataShape::new(10_000, 8, ElementType::F32).unwrap();
    let builder = Builder::new(Strategy::vamana()).knn(20).device(Device::Cpu);
    let clusters = plan(&builder, &Synth::new(10_000, 8, 0).unwrap().base(), 2_000);
    for range_rows in [0, 1, 1025] {
        let error = TaskCosts::new(&builder, &data, &clusters, range_rows, Target::cpu()).unwrap_err();
        assert!(matches!(error, Error::Argument { parameter: "range_rows", .. }), "{error}");
    }
    let other = DataShape::new(100, 8, ElementType::F32).unwrap();
    assert!(TaskCosts::new(&builder, &other, &clusters, 1024, Target::cpu()).is_err());
}
