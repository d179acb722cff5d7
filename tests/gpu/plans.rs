//! Plans against the memory taken by builds.

use tagore::gpu::PlannedStage;
use tagore::{
    Builder, DataShape, Descent, Device, Error, Iterations, KnnGraph, Metric, Progress, Remedy, Start,
    Strategy, Target, Vectors,
};

use super::devices;
use super::graphs::small;

/// Checks that a build took the planned memory, on the emulator: on a CUDA device other tests take
/// memory at the same time.
pub(super) fn check_plan(descent: &Descent, base: &Vectors, graph: &KnnGraph) {
    if graph.stats().device != Device::Emulated.to_string() {
        return;
    }
    let (plan, taken) = (descent.plan(base).unwrap(), graph.stats().peak_gpu_bytes);
    check_bytes(taken, plan.peak_bytes(), &plan.stages, &plan);
}

/// Checks that a build took at most the planned bytes, and at least nine tenths of the largest
/// stage other than the rare stage `complete`.
fn check_bytes(taken: u64, planned: u64, stages: &[PlannedStage], plan: &dyn std::fmt::Display) {
    let usual =
        stages.iter().filter(|stage| stage.name != "complete").map(|stage| stage.buffers.bytes()).max();
    let usual = usual.unwrap();
    assert!(
        taken <= planned && 10 * taken >= 9 * usual,
        "took {taken} of {planned} bytes, usual {usual}\n{plan}"
    );
}

/// Whole numbers below 251. Rows of nine values are distinct.
fn varied(place: usize) -> f32 {
    ((place * place + place / (9 * 251)) % 251) as f32
}

#[test]
fn builds_of_indexes_take_the_planned_memory() {
    // Whole numbers go to the device as bytes. Cosine normalises and marks zero vectors. Inner
    // products are lifted.
    let whole = Vectors::from_f32((0..64 * 9).map(varied).collect(), 9).unwrap();
    let halves = (0..64 * 9).map(|i| if i < 9 { 0.0 } else { varied(i) + 0.5 }).collect();
    let halves = Vectors::from_f32(halves, 9).unwrap();
    for (base, metric, start, strategies) in [
        (
            &whole,
            Metric::L2,
            Start::AllPairs,
            vec![Strategy::cagra().degree(10), Strategy::vamana().degree(10)],
        ),
        (&whole, Metric::L2, Start::Random, vec![Strategy::dpg().degree(10)]),
        (&halves, Metric::Cosine, Start::AllPairs, vec![Strategy::nssg().degree(10)]),
        (&halves, Metric::InnerProduct, Start::Random, vec![Strategy::cagra().degree(10)]),
        // Lists shorter than rows.
        (&whole, Metric::L2, Start::Random, vec![Strategy::nsg(), Strategy::nssg()]),
    ] {
        let descent = Descent::new().knn(24).metric(metric).start(start).iterations(Iterations::Fixed(1, 1));
        for strategy in strategies {
            let name = strategy.kind().to_owned();
            let builder = Builder::new(strategy).descent(descent.clone()).device(Device::Emulated);
            let target = Target::open(Device::Emulated, base.len()).unwrap();
            let plan = builder.plan(&DataShape::inspect(base, &Progress::silent()).unwrap(), target).unwrap();
            assert_eq!((plan.context, plan.start), (0, start), "{name}");
            let (_, stats) = builder.build_with_stats(base, None).unwrap();
            let (first, second): (Vec<_>, Vec<_>) = plan.device.iter().cloned().partition(|stage| {
                !["medoid", "collect and filter", "reverse edges", "store"].contains(&stage.name)
            });
            let peak =
                |stages: &[PlannedStage]| stages.iter().map(|stage| stage.buffers.bytes()).max().unwrap();
            check_bytes(stats.descent.peak_gpu_bytes.max(1), peak(&first), &first, &plan);
            // Rules accept fewer edges than rows have room for.
            let exact = &second[..second.len() - 2];
            let taken = stats.prune.peak_gpu_bytes;
            assert!(taken <= peak(&second) && taken >= peak(exact), "{name}: {taken}\n{plan}");
        }
    }
}

#[test]
fn pruning_long_lists_takes_no_more_than_is_planned() {
    let halves: Vec<f32> = (0..150 * 9).map(|i| varied(i) + 0.5).collect();
    let base = Vectors::from_f32(halves, 9).unwrap();
    let cases = [
        (Metric::L2, Strategy::nssg()),
        (Metric::InnerProduct, Strategy::nssg()),
        (Metric::InnerProduct, Strategy::cagra()),
    ];
    for (metric, strategy) in cases {
        let case = format!("{} {metric}", strategy.kind());
        let descent = Descent::new().knn(128).metric(metric).start(Start::Random);
        let graph = descent.clone().device(Device::Cpu).build(&base).unwrap();
        let builder = Builder::new(strategy.degree(16)).descent(descent).device(Device::Emulated);
        let target = Target::open(Device::Emulated, base.len()).unwrap();
        let plan = builder.plan(&DataShape::inspect(&base, &Progress::silent()).unwrap(), target).unwrap();
        let pruning = ["medoid", "collect and filter", "reverse edges", "store"];
        let stages = plan.device.iter().filter(|stage| pruning.contains(&stage.name));
        let planned = stages.map(|stage| stage.buffers.bytes()).max().unwrap();
        let (_, stats) = builder.build_with_stats(&base, Some(&graph)).unwrap();
        let taken = stats.prune.peak_gpu_bytes;
        assert!(0 < taken && taken <= planned, "{case}: {taken} of {planned}\n{plan}");
    }
}

#[test]
fn builds_of_graphs_take_the_planned_memory() {
    let base = small();
    for device in devices() {
        for (start, metric) in [(Start::Random, Metric::L2), (Start::AllPairs, Metric::Cosine)] {
            let descent = Descent::new().knn(6).metric(metric).start(start).device(device);
            let descent = descent.iterations(Iterations::Fixed(1, 0));
            assert_eq!(descent.plan(&base).unwrap().start, start);
            check_plan(&descent, &base, &descent.build(&base).unwrap());
        }
    }
}

#[test]
fn a_build_that_does_not_fit_names_remedies() {
    // The emulator has 1 GiB.
    const FREE: u64 = 1 << 30;
    let base = Vectors::from_f32((0..800_000).map(|i| i as f32 + 0.5).collect(), 1).unwrap();
    let descent = |k| Descent::new().knn(k).start(Start::Random);
    let error = descent(96).device(Device::Emulated).build(&base).unwrap_err();
    let text = error.to_string();
    let Error::DeviceMemory { device, stage, required, largest, free, remedies } = error else {
        panic!("{text}");
    };
    assert_eq!((device.as_str(), stage, largest, free), ("emulated", "join", ("lists", 614_400_000), FREE));
    let &[Remedy::Knn(fits), .., Remedy::Cpu] = remedies.as_slice() else { panic!("{text}") };
    let peak = |k| descent(k).plan(&base).unwrap().peak_bytes();
    assert_eq!(required, peak(96));
    assert!(fits < 96 && peak(fits) <= FREE && peak(fits + 1) > FREE, "{text}");
    assert!(
        text.starts_with("emulated: needs ") && text.contains(", free 1073741824: lower knn to "),
        "{text}"
    );
    assert!(!text.contains('\n'));
    // An index fails before its graph is built.
    let builder = Builder::new(Strategy::nsg()).knn(96).start(Start::Random).device(Device::Emulated);
    match builder.build(&base).unwrap_err() {
        Error::DeviceMemory { free: FREE, remedies, .. } => {
            assert!(
                matches!(remedies[..], [Remedy::GpuMemory(FREE), Remedy::Knn(_), Remedy::Cpu]),
                "{remedies:?}"
            );
        }
        other => panic!("{other}"),
    }
}
