//! The fraction of a build: from 0 to 1, once.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use tagore::outofcore::{ClusterPlan, Limits, OutOfCore};
use tagore::{Builder, Device, Error, Progress, Start, Strategy, Update};

use crate::reference::uniform;

/// A handle, and the first update of each stage that it receives.
fn watched() -> (Progress, Arc<Mutex<Vec<Update>>>) {
    let updates = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&updates);
    (Progress::new(move |update| sink.lock().unwrap().push(update)), updates)
}

/// The stages in order, each with its first fraction. Checks that fractions grow from 0 to 1.
fn stages(updates: &Mutex<Vec<Update>>) -> Vec<(&'static str, f64)> {
    let updates = updates.lock().unwrap();
    let begun: Vec<_> =
        updates.iter().filter(|update| update.done == 0).map(|u| (u.stage, u.fraction)).collect();
    assert!(begun.is_sorted_by(|a, b| a.1 <= b.1 + 1e-9), "{begun:?}");
    assert!(updates.iter().all(|update| (0.0..=1.0).contains(&update.fraction)));
    let most = updates.iter().map(|update| update.fraction).fold(0.0, f64::max);
    assert!(begun[0].1 == 0.0 && (most - 1.0).abs() < 1e-9, "{begun:?}");
    begun
}

#[test]
fn a_build_goes_from_0_to_1_once() {
    let base = uniform(600, 8, 1);
    let (progress, updates) = watched();
    let builder = Builder::new(Strategy::nsg()).knn(20).device(Device::Cpu).start(Start::Random);
    builder.clone().progress(progress).build(&base).unwrap();
    let begun = stages(&updates);
    let first = |stage: &str| begun.iter().find(|begun| begun.0 == stage).unwrap().1;
    assert!(0.0 < first("join") && first("join") < first("refine") && first("refine") < first("prune"));
    assert!(first("prune") < first("reach"), "{begun:?}");

    let (progress, updates) = watched();
    let limits = Limits { cluster_size: Some(200), ..Limits::default() };
    let plan = ClusterPlan::new(&builder, &base, &limits).unwrap().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let build = OutOfCore::new(builder.progress(progress), plan);
    build.build(&base, &folder.path().join("x.tagore")).unwrap();
    let names: Vec<_> = stages(&updates).into_iter().map(|begun| begun.0).collect();
    assert!(names.ends_with(&["partition", "build", "write"]), "{names:?}");
}

#[test]
fn a_sink_cancels_the_work_that_it_watches() {
    let base = uniform(600, 8, 1);
    let builder = Builder::new(Strategy::nsg()).knn(20).device(Device::Cpu);
    for last in ["check", "all pairs", "prune"] {
        let progress = Progress::controlled(move |update| {
            if update.stage == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let stopped = builder.clone().progress(progress.clone()).build(&base);
        assert!(matches!(stopped, Err(Error::Cancelled)) && progress.is_cancelled(), "{last}");
    }
    let progress = Progress::controlled(|_| ControlFlow::Continue(()));
    assert!(builder.progress(progress).build(&base).is_ok());
}

#[test]
fn parts_share_the_work_by_their_weights() {
    let (progress, updates) = watched();
    let [none, first, second] = progress.parts([0.0, 1.0, 3.0]);
    let [_, late] = second.parts([1.0, 1.0]);
    let ends = [none, first, late].map(|part| {
        uniform(100, 4, 1).validate(&part).unwrap();
        updates.lock().unwrap().last().unwrap().fraction
    });
    assert_eq!(ends, [0.0, 0.25, 1.0]);
    // A part cancels the whole, and a cancelled handle stays so.
    second.cancel();
    assert!(matches!(uniform(100, 4, 2).validate(&progress), Err(Error::Cancelled)));
}
