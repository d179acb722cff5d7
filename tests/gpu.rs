//! Kernels against the CPU backend: on the emulator, and on a CUDA device where there is one.

use half::f16;
use tagore::outofcore::{ClusterPlan, Limits, OutOfCore};
use tagore::{
    Builder, Collect, DataShape, Descent, DescentStats, Device, Error, ExactSearch, Filter, Index,
    Iterations, KnnGraph, MAX_WIDTH, Metric, PlannedStage, Progress, RecallSample, Remedy, Searcher, Start,
    Strategy, Synth, Target, TestQueries, Vectors, evaluate, ground_truth, knn_recall,
};

use crate::reference::{hard_cases, separated, uniform};
use crate::skip;

/// The devices to test: the emulator, and the first CUDA device.
fn devices() -> Vec<Device> {
    let mut devices = vec![Device::Emulated];
    match tagore::gpu::survey() {
        Ok(survey) if !survey.devices.is_empty() => devices.push(Device::Cuda(0)),
        Ok(_) => skip::no_cuda_device("the driver finds none"),
        Err(reason) => skip::no_cuda_device(&reason),
    }
    devices
}

/// The exact search of a device equals that of the CPU, ids and bits of distances.
fn check_exact(what: &str, base: &Vectors, queries: &Vectors, search: &ExactSearch) {
    let (expected, _) = search.clone().device(Device::Cpu).run(base, queries).unwrap();
    for device in devices() {
        let search = search.clone().device(device);
        let shape = format!("{what}, {} x {}, {search:?}", base.len(), base.dim());
        let (found, stats) = search.run(base, queries).unwrap_or_else(|error| panic!("{shape}: {error}"));
        assert_eq!(stats.device, device.to_string());
        for query in 0..queries.len() {
            assert_eq!(found.ids(query), expected.ids(query), "{shape}, query {query}");
            let bits = |distances: &[f32]| distances.iter().map(|d| d.to_bits()).collect::<Vec<_>>();
            let (found, expected) = (found.distances(query).unwrap(), expected.distances(query).unwrap());
            assert_eq!(bits(found), bits(expected), "{shape}, query {query}");
        }
    }
}

const METRICS: [Metric; 3] = [Metric::L2, Metric::InnerProduct, Metric::Cosine];

#[test]
fn exact_search_of_odd_shapes() {
    for (rows, dim, queries, k) in [(1, 1, 1, 1), (129, 1, 3, 129), (1003, 97, 5, 13), (300, 200, 130, 7)] {
        for metric in METRICS {
            check_exact(
                "uniform",
                &uniform(rows, dim, 1),
                &uniform(queries, dim, 2),
                &ExactSearch::new(k).metric(metric),
            );
        }
    }
}

#[test]
fn exact_search_of_hard_data() {
    for (name, base) in hard_cases(200, 9, 3) {
        for metric in METRICS {
            check_exact(name, &base, &uniform(9, 9, 4), &ExactSearch::new(20).metric(metric));
        }
        check_exact(name, &base, &base, &ExactSearch::new(3).metric(Metric::L2));
    }
}

#[test]
fn exact_search_of_every_type() {
    let of = |rows: usize, seed: u64, to: &dyn Fn(Vec<f32>) -> Vectors| {
        let values = uniform(rows, 33, seed);
        to((0..rows).flat_map(|row| values.row(row).to_vec()).collect())
    };
    type Convert<'a> = &'a dyn Fn(Vec<f32>) -> Vectors;
    let types: [(&str, Convert<'_>); 3] = [
        ("f16", &|v| Vectors::from_f16(v.iter().map(|&x| f16::from_f32(x)).collect(), 33).unwrap()),
        ("u8", &|v| Vectors::from_u8(v.iter().map(|&x| (12.0 * (x + 10.0)) as u8).collect(), 33).unwrap()),
        ("i8", &|v| Vectors::from_i8(v.iter().map(|&x| (12.0 * x) as i8).collect(), 33).unwrap()),
    ];
    for (name, to) in types {
        for metric in METRICS {
            check_exact(name, &of(400, 5, to), &of(6, 6, to), &ExactSearch::new(11).metric(metric));
        }
    }
    let extremes = |a: u8, b: u8| Vectors::from_u8([vec![a; 4096], vec![b; 4096]].concat(), 4096).unwrap();
    for metric in METRICS {
        check_exact(
            "extreme bytes",
            &extremes(0, 255),
            &extremes(255, 0),
            &ExactSearch::new(2).metric(metric),
        );
    }
}

#[test]
fn exact_search_far_from_the_origin() {
    let synth = Synth::new(1500, 24, 7).unwrap();
    let shifted = |vectors: &Vectors| {
        let values = (0..vectors.len()).flat_map(|row| vectors.row(row).to_vec()).map(|x| x + 1000.0);
        Vectors::from_f32(values.collect(), 24).unwrap()
    };
    for metric in METRICS {
        check_exact(
            "shifted",
            &shifted(&synth.base()),
            &shifted(&synth.queries(20)),
            &ExactSearch::new(10).metric(metric),
        );
    }
}

#[test]
fn exact_search_of_a_few_huge_values_among_tiny_ones() {
    // Rows are scaled for the tiny values, so sums with the huge ones overflow. The bound comes
    // after two tiles of 128 rows, visited in a mixed order: it must let the second huge row pass.
    let (rows, dim) = (1100, 5);
    let tiny = uniform(rows, dim, 1);
    for (huge, huge_query) in [(1e15, 1e15), (1e17, 1e17), (1e18, 1e5)] {
        let value = |row: usize, x: f32| match row {
            100 => huge,
            900 => 1.5 * huge,
            _ => x * 1e-13,
        };
        let values =
            (0..rows).flat_map(|row| tiny.row(row).iter().map(|&x| value(row, x)).collect::<Vec<_>>());
        let base = Vectors::from_f32(values.collect(), dim).unwrap();
        let values = (0..3).flat_map(|row| {
            let scale = if row == 1 { huge_query } else { 1e-13 };
            tiny.row(row).iter().map(|x| x.abs() * scale).collect::<Vec<_>>()
        });
        let queries = Vectors::from_f32(values.collect(), dim).unwrap();
        for metric in METRICS {
            for k in [1, 3] {
                check_exact(
                    &format!("{huge:e} among tiny"),
                    &base,
                    &queries,
                    &ExactSearch::new(k).metric(metric),
                );
            }
        }
    }
}

#[test]
fn exact_search_finds_equal_rows_by_their_ids() {
    // All distances are 0: the smallest ids win. Their tiles are not visited first.
    let (zeros, ones) = (Vectors::from_f32(vec![0.0; 2 * 1500], 2).unwrap(), uniform(1500, 2, 1));
    let equal = Vectors::from_f32(vec![0.25; 2 * 1500], 2).unwrap();
    let query = |value: f32| Vectors::from_f32(vec![value; 2], 2).unwrap();
    for k in [3, 300] {
        check_exact("all zero", &zeros, &query(0.0), &ExactSearch::new(k).metric(Metric::L2));
        check_exact("all equal", &equal, &query(0.25), &ExactSearch::new(k).metric(Metric::L2));
        check_exact("a zero query", &ones, &query(0.0), &ExactSearch::new(k).metric(Metric::InnerProduct));
        check_exact("all zero", &zeros, &query(1.0), &ExactSearch::new(k).metric(Metric::InnerProduct));
    }
}

#[test]
fn exact_search_in_pieces() {
    let (base, queries) = (uniform(1000, 16, 8), uniform(7, 16, 9));
    // Room for two tiles of rows, and for one.
    for bytes in [250_000, 230_000] {
        check_exact("pieces", &base, &queries, &ExactSearch::new(10).metric(Metric::L2).device_memory(bytes));
    }
    let search = ExactSearch::new(10).device(Device::Emulated).device_memory(1000);
    let error = search.run(&base, &queries).unwrap_err().to_string();
    assert!(error.contains("emulated") && error.contains("free 1000"), "{error}");
}

#[test]
fn exact_search_of_rows_that_come_nearer_and_nearer() {
    // Every row is nearer than all before it, and many more are noted than there is room for.
    let values = (0..9_000).map(|row| (9_000 - row) as f32).collect();
    let base = Vectors::from_f32(values, 1).unwrap();
    let queries = Vectors::from_f32(vec![-3.0, 9_001.0, 4_499.4], 1).unwrap();
    check_exact("nearer and nearer", &base, &queries, &ExactSearch::new(5).metric(Metric::L2));
    // All at one distance.
    let base = Vectors::from_f32(vec![2.0; 5000], 1).unwrap();
    check_exact("all equal", &base, &queries, &ExactSearch::new(5).metric(Metric::L2));
}

#[test]
fn k_has_a_limit_on_a_device() {
    let base = uniform(2000, 2, 1);
    let error = ExactSearch::new(1025).device(Device::Emulated).run(&base, &base).unwrap_err().to_string();
    assert!(error.contains("1025") && error.contains("1 to 1024"), "{error}");
}

/// Checks the lists of a k-NN graph: full, distinct ids other than the node, ascending, exact
/// distances.
fn check_graph(what: &str, graph: &KnnGraph, base: &Vectors, metric: Metric) {
    let exact = ExactSearch::new(base.len()).metric(metric).device(Device::Cpu).run(base, base).unwrap().0;
    for node in 0..base.len() {
        let (ids, distances) = (graph.neighbors(node), graph.distances(node));
        assert!(distances.windows(2).all(|pair| pair[0] <= pair[1]), "{what}: order of {node}");
        let mut sorted = ids.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        assert!(sorted.len() == graph.k() && !ids.contains(&(node as u32)), "{what}: ids of {node}");
        for (id, distance) in ids.iter().zip(distances) {
            let place = exact.ids(node).iter().position(|other| other == id).unwrap();
            let expected = exact.distances(node).unwrap()[place];
            assert_eq!(distance.to_bits(), expected.to_bits(), "{what}: {node} to {id}");
        }
    }
}

#[test]
fn graphs_of_all_pairs_are_those_of_the_cpu() {
    for (index, (name, base)) in hard_cases(130, 5, 11).into_iter().enumerate() {
        let metric = METRICS[index % 3];
        let descent = Descent::new().knn(12).metric(metric);
        let expected = descent.clone().device(Device::Cpu).build(&base).unwrap();
        for device in devices() {
            let graph = descent.clone().device(device).build(&base).unwrap();
            assert_eq!(graph.stats().device, device.to_string());
            for node in 0..base.len() {
                assert_eq!(
                    graph.neighbors(node),
                    expected.neighbors(node),
                    "{name}, {metric}, {device}, {node}"
                );
            }
        }
    }
    let one = Vectors::from_f32(vec![1.0, 2.0], 2).unwrap();
    assert_eq!(Descent::new().device(Device::Emulated).build(&one).unwrap().k(), 0);
}

/// Whether two graphs have the same lists.
fn same(a: &KnnGraph, b: &KnnGraph) -> bool {
    (0..a.len()).all(|node| a.neighbors(node) == b.neighbors(node) && a.distances(node) == b.distances(node))
}

fn recall(graph: &KnnGraph, base: &Vectors) -> f64 {
    let verified = knn_recall(
        graph,
        base,
        &[graph.k()],
        &RecallSample { nodes: base.len(), device: Device::Cpu, ..RecallSample::default() },
    )
    .unwrap();
    verified[0]
}

#[test]
fn graphs_of_cells_find_nearly_all() {
    let synth = Synth::new(780, 20, 5).unwrap().base();
    let values = (0..780).flat_map(|row| synth.row(row).to_vec());
    let bytes: Vec<u8> = values.map(|x| (x * 4.0 + 128.0).clamp(0.0, 255.0) as u8).collect();
    // Whole numbers in f32 are compared as bytes and give the same graph.
    let whole: Vec<f32> = bytes.iter().map(|&x| f32::from(x)).collect();
    let (bytes, whole) = (Vectors::from_u8(bytes, 20).unwrap(), Vectors::from_f32(whole, 20).unwrap());
    for device in devices() {
        let build = |base: &Vectors, metric: Metric, iterations: Iterations| {
            let descent = Descent::new().knn(10).metric(metric).start(Start::Cells);
            descent.iterations(iterations).seed(3).device(device).build(base).unwrap()
        };
        // Phases 1 and 2 do not depend on the start: one graph is enough.
        let of_synth = build(&synth, Metric::Cosine, Iterations::Fixed(1, 1));
        let cells_alone = |base: &Vectors| build(base, Metric::L2, Iterations::Fixed(0, 0));
        let (of_bytes, of_whole) = (cells_alone(&bytes), cells_alone(&whole));
        for (name, graph, base) in [("f32, cosine", &of_synth, &synth), ("u8", &of_bytes, &bytes)] {
            check_graph(name, graph, base, graph.metric());
            let recall = recall(graph, base);
            assert!(recall > 0.97, "{name}, {device}: recall {recall}");
        }
        assert!(same(&of_bytes, &of_whole), "{device}: bytes and whole numbers");
    }
}

#[test]
fn graphs_of_a_random_start_find_nearly_all() {
    let synth = Synth::new(300, 24, 6).unwrap().base();
    for device in devices() {
        for metric in [Metric::L2, Metric::InnerProduct] {
            let descent = Descent::new().knn(12).metric(metric).start(Start::Random).seed(3).device(device);
            let build = |iterations| descent.clone().iterations(iterations).build(&synth).unwrap();
            let graph = build(Iterations::Fixed(3, 2));
            check_graph("random", &graph, &synth, metric);
            let stats = graph.stats();
            assert!(stats.iterations == (3, 2) && stats.distances > 0 && stats.peak_gpu_bytes > 0);
            let found = recall(&graph, &synth);
            assert!(found > 0.95, "{metric}, {device}: recall {found}");
            if metric == Metric::L2 {
                assert!(same(&graph, &build(Iterations::Fixed(3, 2))), "{device}: the same seed");
            } else {
                assert!(recall(&build(Iterations::Fixed(1, 0)), &synth) < found, "iterations help");
            }
        }
    }
}

/// A base large enough for lists of 6.
fn small() -> Vectors {
    Synth::new(160, 8, 5).unwrap().base()
}

/// The smallest base that is divided into cells.
fn small_cells() -> Vectors {
    Synth::new(768, 4, 5).unwrap().base()
}

#[test]
fn kernels_count_their_bytes_and_operations() {
    let base = small();
    for device in devices() {
        let descent = Descent::new().knn(6).device(device).start(Start::Random);
        let graph = descent.iterations(Iterations::Fixed(2, 1)).build(&base).unwrap();
        let stats = graph.stats();
        let kernel = |name: &str| stats.kernels.iter().find(|time| time.kernel.starts_with(name)).unwrap();
        assert!(stats.join_distances > 0 && stats.refine_distances > 0);
        let at_end = stats.completed * 159;
        assert_eq!(stats.distances, stats.join_distances + stats.refine_distances + at_end);
        for name in ["descent_join", "descent_expand", "cells_finish", "cluster_assign"] {
            assert!(kernel(name).bytes > 0 && kernel(name).operations > 0, "{name}");
        }
        for name in ["descent_sample", "descent_merge", "descent_gather", "renumber_vectors"] {
            assert!(kernel(name).bytes > 0, "{name}");
        }
        let join = kernel("descent_join");
        assert_eq!((join.launches, join.operations), (2, stats.join_distances * 16));
    }
}

#[test]
fn kernels_of_cells_count_their_bytes_and_operations() {
    let base = small_cells();
    for device in devices() {
        let descent = Descent::new().knn(6).device(device).start(Start::Cells);
        let descent = descent.iterations(Iterations::Fixed(0, 0));
        let graph = descent.build(&base).unwrap();
        check_plan(&descent, &base, &graph);
        let kernels = &graph.stats().kernels;
        let kernel = |name: &str| kernels.iter().find(|time| time.kernel.starts_with(name)).unwrap();
        for name in
            ["cells_intra_join", "cells_merge_candidates", "cells_cross_join", "cells_merge_proposals"]
        {
            assert!(kernel(name).bytes > 0, "{name}");
        }
        let met = graph.stats().distances - graph.stats().completed * 767;
        let counted = kernel("cells_intra_join").operations + kernel("cells_cross_join").operations;
        // Other tests run on the same CUDA device at the same time, and are counted with it.
        assert!(counted == met * 8 || device != Device::Emulated && counted > met * 8);
    }
}

#[test]
fn phases_run_alone() {
    let base = small();
    for device in devices() {
        let recall = |joins, expands| {
            let descent = Descent::new().knn(6).start(Start::Random).device(device).seed(1);
            let graph = descent.iterations(Iterations::Fixed(joins, expands)).build(&base).unwrap();
            assert_eq!(graph.stats().iterations, (joins, expands));
            if joins == 0 {
                check_graph("phase 2 alone", &graph, &base, Metric::L2);
                assert!(graph.stats().completed == 0 && graph.stats().join_distances == 0);
            }
            knn_recall(
                &graph,
                &base,
                &[6],
                &RecallSample { nodes: 160, device: Device::Cpu, ..RecallSample::default() },
            )
            .unwrap()[0]
        };
        let (second, first) = (recall(0, 3), recall(3, 0));
        assert!(second > 0.85 && first > 0.9, "{device}: {first}, {second}");
    }
}

#[test]
fn each_build_counts_its_own_launches_and_memory() {
    let base = small();
    for device in devices() {
        let descent = Descent::new().knn(6).start(Start::Random).iterations(Iterations::Fixed(1, 1));
        let [first, second] = [0, 1].map(|seed| {
            let graph = descent.clone().device(device).seed(seed).build(&base).unwrap();
            graph.stats().clone()
        });
        let launches = |stats: &DescentStats| {
            stats.kernels.iter().find(|time| time.kernel.starts_with("descent_join")).unwrap().launches
        };
        if device == Device::Emulated {
            assert_eq!(first.peak_gpu_bytes, second.peak_gpu_bytes);
            assert_eq!((launches(&first), launches(&second)), (1, 1));
        } else {
            // Other tests run on the same CUDA device at the same time and are counted too.
            assert!(launches(&first) >= 1 && launches(&second) >= 1);
        }
    }
}

#[test]
fn descent_on_a_device_copes_with_odd_data() {
    let far = |row: usize| if row.is_multiple_of(2) { 60_000.0 } else { -60_000.0 };
    let synth = Synth::new(300, 6, 8).unwrap().base();
    let of = |value: &dyn Fn(usize, f32) -> f32| -> Vectors {
        let row = |row: usize| synth.row(row).iter().map(|&x| value(row, x)).collect::<Vec<_>>();
        Vectors::from_f32((0..300).flat_map(row).collect(), 6).unwrap()
    };
    let cases = [
        ("two clusters far apart", of(&|row, x| far(row) + x), Some(0.9)),
        ("large values", of(&|_, x| x * 8000.0), Some(0.9)),
        ("small values", of(&|_, x| x * 1e-6), Some(0.9)),
        // Ids among equal rows are arbitrary: `check_graph` checks their distances, recall says
        // nothing.
        ("all equal", of(&|_, _| 7.0), None),
        ("an outlier", of(&|row, x| if row == 9 { x * 1e9 } else { x }), Some(0.9)),
    ];
    for device in devices() {
        for (name, base, least) in &cases {
            let descent = Descent::new().knn(8).start(Start::Random).iterations(Iterations::Fixed(3, 2));
            let graph = descent.device(device).build(base).unwrap();
            check_graph(name, &graph, base, Metric::L2);
            if let Some(least) = *least {
                let recall = recall(&graph, base);
                assert!(recall > least, "{name}, {device}: recall {recall}, at least {least}");
            }
        }
        // Zero vectors are at cosine distance 1 from all.
        let base = of(&|row, x| if row % 50 == 0 { 0.0 } else { x });
        let descent = Descent::new().knn(8).metric(Metric::Cosine).start(Start::Random);
        let graph = descent.iterations(Iterations::Fixed(3, 2)).device(device).build(&base).unwrap();
        check_graph("zero vectors", &graph, &base, Metric::Cosine);
    }
}

/// Checks that a build took the planned memory, on the emulator: on a CUDA device other tests take
/// memory at the same time.
fn check_plan(descent: &Descent, base: &Vectors, graph: &KnnGraph) {
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

/// Whole numbers below 251. Rows of nine of them are all different.
fn varied(place: usize) -> f32 {
    ((place * place + place / (9 * 251)) % 251) as f32
}

#[test]
fn a_plan_is_what_a_build_of_an_index_takes() {
    // Whole numbers go to the device as bytes. Cosine normalises and marks zero vectors. Inner
    // products are lifted.
    let whole = Vectors::from_f32((0..410 * 9).map(varied).collect(), 9).unwrap();
    let halves = (0..410 * 9).map(|i| if i < 9 { 0.0 } else { varied(i) + 0.5 }).collect();
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
            let target = Target::of(Device::Emulated, base.len()).unwrap();
            let plan = builder.plan(&DataShape::of(base, &Progress::silent()).unwrap(), target).unwrap();
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
    let halves: Vec<f32> = (0..260 * 9).map(|i| varied(i) + 0.5).collect();
    let base = Vectors::from_f32(halves, 9).unwrap();
    let cases = [
        (Metric::L2, Strategy::nssg()),
        (Metric::InnerProduct, Strategy::nssg()),
        (Metric::InnerProduct, Strategy::cagra()),
    ];
    for (metric, strategy) in cases {
        let what = format!("{} {metric}", strategy.kind());
        let descent = Descent::new().knn(128).metric(metric).start(Start::Random);
        let graph = descent.clone().device(Device::Cpu).build(&base).unwrap();
        let builder = Builder::new(strategy.degree(16)).descent(descent).device(Device::Emulated);
        let target = Target::of(Device::Emulated, base.len()).unwrap();
        let plan = builder.plan(&DataShape::of(&base, &Progress::silent()).unwrap(), target).unwrap();
        let pruning = ["medoid", "collect and filter", "reverse edges", "store"];
        let stages = plan.device.iter().filter(|stage| pruning.contains(&stage.name));
        let planned = stages.map(|stage| stage.buffers.bytes()).max().unwrap();
        let (_, stats) = builder.build_with_stats(&base, Some(&graph)).unwrap();
        let taken = stats.prune.peak_gpu_bytes;
        assert!(0 < taken && taken <= planned, "{what}: {taken} of {planned}\n{plan}");
    }
}

#[test]
fn a_plan_is_what_a_build_takes() {
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

/// Checks that beam search on each device equals that of the CPU: ids and bits of distances.
fn check_search(what: &str, index: &Index, base: &Vectors, queries: &Vectors, widths: &[(usize, usize)]) {
    let silent = Progress::silent();
    let on_cpu = Searcher::new(index, base, &Progress::silent()).unwrap();
    assert_eq!((on_cpu.runs_on(), on_cpu.device_name()), ("cpu", None));
    for device in devices() {
        let searcher = Searcher::new(index, base, &Progress::silent()).unwrap().device(device).unwrap();
        assert_eq!(searcher.runs_on(), device.to_string());
        for &(k, beam) in widths {
            let expected = on_cpu.search(queries, k, beam, &silent).unwrap();
            let found = searcher.search(queries, k, beam, &silent).unwrap();
            let shape = format!("{what}, {}, k = {k}, beam = {beam}, {device}", index.metric());
            for query in 0..queries.len() {
                assert_eq!(found.ids(query), expected.ids(query), "{shape}, query {query}");
                let bits = |distances: &[f32]| distances.iter().map(|d| d.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(found.distances(query)), bits(expected.distances(query)), "{shape}, {query}");
            }
            // A device computes forgotten distances again.
            assert!(found.computed() >= expected.computed(), "{shape}");
            assert!(found.device_seconds().is_some() && expected.device_seconds().is_none());
            let kernels = found.kernels();
            let is_layer = |kernel: &str| kernel.starts_with("beam_search_layer");
            let of_index = |kernel: &str| kernel.starts_with("beam_search") && !is_layer(kernel);
            let beam = kernels.iter().find(|time| of_index(time.kernel)).unwrap();
            // Other tests run on the same CUDA device at the same time and are counted too.
            let of_one = beam.launches == 1 && kernels.len() == 1 + usize::from(!index.layers().is_empty());
            assert!(beam.bytes > 0 && (device != Device::Emulated || of_one));
        }
    }
}

#[test]
fn beam_search_of_every_kind_and_metric() {
    for (strategy, metric) in Strategy::all().into_iter().zip(METRICS.into_iter().cycle()) {
        let (name, synth) = (strategy.kind().to_owned(), Synth::new(400, 17, 6).unwrap());
        let values: Vec<f32> = (0..400).flat_map(|row| synth.base().row(row).into_owned()).collect();
        let with_zeros = |mut values: Vec<f32>| {
            values[17 * 3..17 * 4].fill(0.0);
            Vectors::from_f32(values, 17).unwrap()
        };
        let (base, queries) = (with_zeros(values.clone()), with_zeros(values[17 * 300..17 * 306].to_vec()));
        let builder = Builder::new(strategy.degree(12)).knn(24).metric(metric).device(Device::Cpu);
        let index = builder.build(&base).unwrap();
        check_search(&name, &index, &base, &queries, &[(1, 1), (10, 30), (5, 100)]);
    }
}

#[test]
fn beam_search_of_every_type_and_of_hard_data() {
    let of = |rows: usize, seed: u64| -> Vec<f32> {
        let values = uniform(rows, 21, seed);
        (0..rows).flat_map(|row| values.row(row).into_owned()).map(|x| (x * 12.0).floor()).collect()
    };
    let f16 =
        |v: Vec<f32>| Vectors::from_f16(v.iter().map(|&x| f16::from_f32(x / 8.0)).collect(), 21).unwrap();
    let u8 = |v: Vec<f32>| Vectors::from_u8(v.iter().map(|&x| (x + 120.0) as u8).collect(), 21).unwrap();
    let i8 = |v: Vec<f32>| Vectors::from_i8(v.iter().map(|&x| x as i8).collect(), 21).unwrap();
    let whole =
        |v: Vec<f32>| Vectors::from_f32(v.iter().map(|&x| (x + 120.0).floor()).collect(), 21).unwrap();
    type Convert<'a> = &'a dyn Fn(Vec<f32>) -> Vectors;
    let types: [(&str, Convert<'_>); 4] = [("f16", &f16), ("u8", &u8), ("i8", &i8), ("whole f32", &whole)];
    for ((name, to), metric) in types.into_iter().zip(METRICS.into_iter().cycle()) {
        let (base, queries) = (to(of(200, 1)), to(of(3, 2)));
        let index = Builder::new(Strategy::cagra().degree(8)).knn(20).metric(metric).build(&base).unwrap();
        check_search(name, &index, &base, &queries, &[(3, 20)]);
    }
    // A base held as bytes, and queries that are no bytes.
    let (base, queries) = (whole(of(200, 1)), uniform(2, 21, 5));
    let index = Builder::new(Strategy::cagra().degree(8)).knn(20).build(&base).unwrap();
    check_search("whole base", &index, &base, &queries, &[(3, 20)]);
    for (name, base) in hard_cases(100, 5, 3) {
        let index = Builder::new(Strategy::vamana().degree(6)).knn(12).build(&base).unwrap();
        check_search(name, &index, &base, &uniform(2, 5, 9), &[(4, 9), (100, 300)]);
    }
}

#[test]
fn beam_search_through_layers() {
    let of = |rows: usize, part: u64| -> Vec<f32> {
        let values = separated(rows, 30, 9, part);
        (0..rows).flat_map(|row| values.row(row).into_owned()).collect()
    };
    let f32 = |v: Vec<f32>| Vectors::from_f32(v, 9).unwrap();
    let f16 = |v: Vec<f32>| Vectors::from_f16(v.iter().map(|&x| f16::from_f32(x)).collect(), 9).unwrap();
    let u8 =
        |v: Vec<f32>| Vectors::from_u8(v.iter().map(|x| ((x + 11.0) * 11.0) as u8).collect(), 9).unwrap();
    let i8 = |v: Vec<f32>| Vectors::from_i8(v.iter().map(|x| (x * 11.0) as i8).collect(), 9).unwrap();
    type Convert<'a> = &'a dyn Fn(Vec<f32>) -> Vectors;
    let types: [(&str, Convert<'_>, Metric); 5] = [
        ("f32", &f32, Metric::L2),
        ("f32", &f32, Metric::Cosine),
        ("f16", &f16, Metric::L2),
        ("u8", &u8, Metric::Cosine),
        ("i8", &i8, Metric::L2),
    ];
    for (name, to, metric) in types {
        let (base, queries) = (to(of(900, 0)), to(of(5, 1)));
        let builder = Builder::new(Strategy::cagra().degree(12)).knn(24).metric(metric);
        let index = builder.device(Device::Cpu).build(&base).unwrap();
        assert!(!index.layers().is_empty(), "{name}, {metric}");
        // Beams narrower and wider than a layer's.
        check_search(name, &index, &base, &queries, &[(1, 1), (10, 20), (10, 130)]);
    }
}

#[test]
fn wider_steps_find_as_much() {
    let synth = Synth::new(600, 12, 2).unwrap();
    let (base, queries) = (synth.base(), synth.queries(20));
    let index = Builder::new(Strategy::nsg().degree(12)).knn(24).device(Device::Cpu).build(&base).unwrap();
    let truth = ground_truth(&base, &queries, Metric::L2, 10, &Progress::silent()).unwrap();
    for device in devices() {
        let recall = |width| {
            let searcher = Searcher::new(&index, &base, &Progress::silent())
                .unwrap()
                .width(width)
                .unwrap()
                .device(device)
                .unwrap();
            let found = searcher
                .evaluate(TestQueries::new(&queries, &truth, 10), &[40], &Progress::silent())
                .unwrap()[0];
            assert!(found.device_qps.unwrap() >= found.qps);
            found.recall
        };
        assert!(recall(4) >= recall(1) - 0.02, "{device}");
    }
    for width in [0, MAX_WIDTH + 1] {
        assert!(Searcher::new(&index, &base, &Progress::silent()).unwrap().width(width).is_err());
    }
    let searcher =
        Searcher::new(&index, &base, &Progress::silent()).unwrap().device(Device::Emulated).unwrap();
    let error = searcher.search(&queries, 10, 513, &Progress::silent()).unwrap_err().to_string();
    assert!(error.contains("513") && error.contains("at most 512"), "{error}");
    let none = searcher.search(&synth.queries(0), 10, 20, &Progress::silent()).unwrap();
    assert!(none.is_empty() && none.computed() == 0);
}

/// Checks that each device builds the CPU's index, both from a given k-NN graph and in one go.
fn check_build(what: &str, base: &Vectors, metric: Metric, knn: usize, strategy: &Strategy) {
    let builder = |device| {
        let descent = Descent::new().metric(metric).knn(knn).device(device);
        Builder::new(strategy.clone()).descent(descent)
    };
    for device in devices() {
        let shape =
            format!("{what}, {} x {}, {metric}, {}, {device}", base.len(), base.dim(), strategy.kind());
        let graph = Descent::new().metric(metric).knn(knn).device(device).build(base).unwrap();
        let expected = builder(Device::Cpu).build_from(base, &graph).unwrap();
        let of_graph = builder(device).build_from(base, &graph);
        let (fused, stats) = builder(device).sample(30).build_with_stats(base, None).unwrap();
        let (_, of_lists) = builder(Device::Cpu).sample(30).build_with_stats(base, Some(&graph)).unwrap();
        if stats.repeated > 0 {
            // The index has fewer rows than the graph: equal rows are one node.
            let expected = builder(Device::Cpu).build(base).unwrap();
            assert_same(&fused, &expected, &shape);
            assert_same(&of_graph.unwrap(), &builder(Device::Cpu).build_from(base, &graph).unwrap(), &shape);
            continue;
        }
        assert_eq!(stats.sample, of_lists.sample, "{shape}");
        assert_eq!(stats.prune.device, device.to_string(), "{shape}");
        assert!(knn == 0 || !stats.prune.kernels.is_empty(), "{shape}");
        for index in [of_graph.unwrap_or_else(|error| panic!("{shape}: {error}")), fused] {
            assert_same(&index, &expected, &shape);
        }
    }
}

fn assert_same(found: &Index, expected: &Index, what: &str) {
    assert_eq!(found.entries(), expected.entries(), "{what}");
    assert_eq!(found.repeated(), expected.repeated(), "{what}");
    for node in 0..expected.len() {
        assert_eq!(found.neighbors(node), expected.neighbors(node), "{what}, node {node}");
    }
}

#[test]
fn indexes_of_every_kind_are_those_of_the_cpu() {
    let base = Synth::new(100, 13, 6).unwrap().base();
    for (strategy, metric) in Strategy::all().into_iter().zip(METRICS.into_iter().cycle()) {
        check_build("synth", &base, metric, 18, &strategy.degree(9));
    }
    check_build("synth", &base, Metric::Cosine, 18, &Strategy::cagra().degree(9));
    check_build("synth", &base, Metric::InnerProduct, 18, &Strategy::nssg().degree(9));
}

#[test]
fn indexes_of_hard_data_are_those_of_the_cpu() {
    let strategies = [Strategy::cagra(), Strategy::vamana(), Strategy::nssg(), Strategy::dpg()];
    let metrics = [Metric::L2, Metric::Cosine, Metric::L2];
    let cases = hard_cases(48, 5, 9).into_iter().zip(metrics.into_iter().cycle());
    for (((name, base), metric), strategy) in cases.zip(strategies.into_iter().cycle()) {
        check_build(name, &base, metric, 10, &strategy.degree(6));
    }
    for rows in [2, 3, 33] {
        for strategy in [Strategy::cagra(), Strategy::nsg(), Strategy::nssg()] {
            check_build("few", &uniform(rows, 1, 3), Metric::L2, rows - 1, &strategy);
        }
    }
}

#[test]
fn indexes_of_hard_data_by_products_are_those_of_the_cpu() {
    let strategies = [Strategy::nssg(), Strategy::cagra(), Strategy::dpg(), Strategy::nsg()];
    for ((name, base), strategy) in hard_cases(48, 5, 9).into_iter().zip(strategies.into_iter().cycle()) {
        check_build(name, &base, Metric::InnerProduct, 10, &strategy.degree(6));
    }
}

#[test]
fn stages_of_pruning_combine() {
    let base = Synth::new(70, 33, 6).unwrap().base();
    for (collect, filter) in [
        (Collect::OneHop, Filter::Angle),
        (Collect::OneHop, Filter::Rank),
        (Collect::TwoHop, Filter::Rank),
        (Collect::TwoHop, Filter::Distance),
        (Collect::Path, Filter::Rank),
        (Collect::Path, Filter::Spread),
    ] {
        let strategy = Strategy::nsg().collect(collect).filter(filter).degree(8).candidates(25);
        check_build("combined", &base, Metric::L2, 16, &strategy);
        check_build("combined", &base, Metric::InnerProduct, 16, &strategy);
    }
}

#[test]
fn the_baseline_kernels_give_the_same_index() {
    let base = Synth::new(150, 24, 8).unwrap().base();
    for (strategy, metric) in [
        (Strategy::cagra(), Metric::L2),
        (Strategy::nsg(), Metric::L2),
        (Strategy::vamana(), Metric::L2),
        (Strategy::nsg(), Metric::InnerProduct),
    ] {
        let graph = Descent::new().metric(metric).knn(24).build(&base).unwrap();
        for device in devices() {
            let builder = Builder::new(strategy.clone().degree(8)).metric(metric).device(device);
            let index = builder.build_from(&base, &graph).unwrap();
            let (plain, stats) =
                builder.baseline_kernels(true).build_with_stats(&base, Some(&graph)).unwrap();
            assert!((0..base.len()).all(|node| index.neighbors(node) == plain.neighbors(node)));
            let is_plain = |kernel: &str| kernel.contains("serial") || kernel.contains("unbalanced");
            assert!(
                stats.prune.kernels.iter().any(|time| is_plain(time.kernel)),
                "{:?}",
                stats.prune.kernels
            );
        }
    }
}

#[test]
fn an_index_built_out_of_core_is_the_same_each_time_and_as_good() {
    for device in devices() {
        // The emulator is slow.
        let (n, size, k) = if device == Device::Emulated { (200, 100, 8) } else { (30_000, 9000, 32) };
        let synth = Synth::new(n, 12, 5).unwrap();
        let (base, queries) = (synth.base(), synth.queries(100));
        let builder = Builder::new(Strategy::vamana().degree(k)).knn(k).devices(&[device]);
        let limits = Limits { cluster_size: Some(size), ..Limits::default() };
        let plan = ClusterPlan::new(&builder, &base, &limits).unwrap().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        let build = || {
            let stats = OutOfCore::new(builder.clone(), plan).build(&base, &path).unwrap();
            assert!(!stats.kernels.is_empty() && stats.peak_gpu_bytes > 0);
            std::fs::read(&path).unwrap()
        };
        assert!(build() == build(), "two builds on {device}");
        let truth = ground_truth(&base, &queries, Metric::L2, 10, &Progress::silent()).unwrap();
        let recall = |index: &Index| {
            evaluate(index, &base, TestQueries::new(&queries, &truth, 10), &[50], &Progress::silent())
                .unwrap()[0]
                .recall
        };
        // The reference is built on the CPU: recall does not depend on the device.
        let in_memory = builder.clone().devices(&[Device::Cpu]).build(&base).unwrap();
        let (found, expected) = (recall(&Index::open(&path).unwrap()), recall(&in_memory));
        assert!(found > expected - 0.02, "{found} for {expected} on {device}");
    }
}

#[test]
fn more_neighbours_are_expanded_than_a_block_has_room_for() {
    let base = small();
    let descent = Descent::new().knn(6).start(Start::Random).iterations(Iterations::Fixed(0, 3)).expand(64);
    for device in devices() {
        let graph = descent.clone().device(device).build(&base).unwrap_or_else(|error| panic!("{error}"));
        check_graph("64 neighbours", &graph, &base, Metric::L2);
        let recall = knn_recall(
            &graph,
            &base,
            &[6],
            &RecallSample { nodes: 160, device: Device::Cpu, ..RecallSample::default() },
        )
        .unwrap()[0];
        let on_cpu = descent.clone().device(Device::Cpu).build(&base).unwrap();
        let expected = knn_recall(
            &on_cpu,
            &base,
            &[6],
            &RecallSample { nodes: 160, device: Device::Cpu, ..RecallSample::default() },
        )
        .unwrap()[0];
        assert!(recall > expected - 0.05, "{device}: {recall} for {expected}");
    }
}

#[test]
fn lists_too_long_for_a_block_are_pruned_on_the_cpu() {
    let base = uniform(560, 4, 32);
    let graph = Descent::new().knn(530).device(Device::Cpu).build(&base).unwrap();
    let builder = |device| Builder::new(Strategy::nsg().degree(8)).device(device);
    let build = |device| builder(device).build_with_stats(&base, Some(&graph)).unwrap();
    let ((expected, _), (found, stats)) = (build(Device::Cpu), build("emulated:8.9".parse().unwrap()));
    assert_eq!(stats.prune.device, "cpu");
    let rows = |index: &Index| (0..560).map(|node| index.neighbors(node).to_vec()).collect::<Vec<_>>();
    assert_eq!(rows(&found), rows(&expected));
}
