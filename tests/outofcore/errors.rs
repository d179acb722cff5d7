//! Errors of wrong parameters and data.

use std::fs;

use tagore::outofcore::{ClusterPlan, Limits, OutOfCore};
use tagore::{
    Builder, CellSettings, DataShape, Descent, Device, Error, Progress, Strategy, Synth, Target, Vectors,
};

use super::plan;

#[test]
fn wrong_parameters_are_errors_everywhere() {
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
        builder(cagra()).knn(20),
        builder(vamana()).knn(0),
        builder(vamana()).knn(500),
        builder(vamana()).knn(usize::MAX),
        builder(vamana()).descent(Descent::new().expand(0)),
        builder(vamana())
            .descent(Descent::new().cells(CellSettings { probes: Some(0), ..CellSettings::default() })),
    ];
    let small = Limits { cluster_size: Some(200), ..Limits::default() };
    let is_argument =
        |error: Error, what: &str| assert!(matches!(error, Error::Argument { .. }), "{what}: {error}");
    for (number, builder) in wrong.iter().enumerate() {
        let data = DataShape::inspect(&base, &Progress::silent()).unwrap();
        is_argument(builder.plan(&data, Target::cpu()).unwrap_err(), &format!("plan of {number}"));
        is_argument(
            builder.remedies(&data, Target::cuda(), 1).unwrap_err(),
            &format!("remedies of {number}"),
        );
        is_argument(builder.build(&base).unwrap_err(), &format!("build of {number}"));
        for limits in [small, Limits { host_memory: Some(8 << 20), ..Limits::default() }, Limits::default()] {
            is_argument(
                ClusterPlan::new(builder, &base, &limits).unwrap_err(),
                &format!("clusters of {number}"),
            );
            for target in [Target::cpu(), Target::cuda()] {
                let clusters = ClusterPlan::on(builder, &data, &limits, target, 1);
                is_argument(clusters.unwrap_err(), &format!("clusters of {number}"));
            }
        }
        let build = OutOfCore::new(builder.clone(), plan(&sound, &base, 200)).build(&base, &path);
        is_argument(build.unwrap_err(), &format!("build out of core of {number}"));
    }
    // Shapes of data, cluster sizes and limits.
    for (rows, dim) in [(0, 4), (500, 0), (usize::MAX, 4), (500, usize::MAX)] {
        let data = DataShape { rows, dim, ..DataShape::inspect(&base, &Progress::silent()).unwrap() };
        sound.plan(&data, Target::cpu()).unwrap_err();
        ClusterPlan::on(&sound, &data, &small, Target::cpu(), 1).unwrap_err();
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
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "files left behind");
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
fn a_bad_value_stops_the_partition() {
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
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "files left behind");
}
