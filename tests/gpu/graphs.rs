//! k-NN graphs on a device.

use std::sync::OnceLock;

use tagore::gpu::KernelTime;
use tagore::{
    CellSettings, Descent, DescentStats, Device, ExactSearch, Iterations, KnnGraph, Metric, RecallSample,
    Start, Synth, Vectors, knn_recall,
};

use super::plans::check_plan;
use super::{METRICS, devices};
use crate::reference::hard_cases;

/// Checks the lists of a k-NN graph: full, distinct ids other than the node, ascending, exact
/// distances.
fn check_graph(case: &str, graph: &KnnGraph, base: &Vectors, metric: Metric) {
    let exact = ExactSearch::new(base.len()).metric(metric).device(Device::Cpu).run(base, base).unwrap().0;
    for node in 0..base.len() {
        let (ids, distances) = (graph.neighbors(node), graph.distances(node));
        assert!(distances.windows(2).all(|pair| pair[0] <= pair[1]), "{case}: order of {node}");
        let mut sorted = ids.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        assert!(sorted.len() == graph.k() && !ids.contains(&(node as u32)), "{case}: ids of {node}");
        for (id, distance) in ids.iter().zip(distances) {
            let place = exact.ids(node).iter().position(|other| other == id).unwrap();
            let expected = exact.distances(node).unwrap()[place];
            assert_eq!(distance.to_bits(), expected.to_bits(), "{case}: {node} to {id}");
        }
    }
}

#[test]
fn graphs_of_all_pairs_match_the_cpu() {
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
pub(super) fn same(a: &KnnGraph, b: &KnnGraph) -> bool {
    (0..a.len()).all(|node| a.neighbors(node) == b.neighbors(node) && a.distances(node) == b.distances(node))
}

pub(super) fn recall(graph: &KnnGraph, base: &Vectors) -> f64 {
    let verified = knn_recall(
        graph,
        base,
        &[graph.k()],
        &RecallSample { nodes: base.len(), device: Device::Cpu, ..RecallSample::default() },
    )
    .unwrap();
    verified[0]
}

/// Rows of a base with a start from cells. The emulator needs 768 of them, and seconds for each
/// graph.
const ROWS: usize = 780;

/// Components of a row.
const DIM: usize = 20;

/// Whole numbers below 256.
fn whole_numbers() -> Vec<u8> {
    let values = Synth::new(ROWS, DIM, 5).unwrap().base().to_f32().unwrap();
    values.iter().map(|x| (x * 4.0 + 128.0).clamp(0.0, 255.0) as u8).collect()
}

/// A graph from cells.
struct OfCells {
    device: Device,
    descent: Descent,
    base: Vectors,
    graph: KnnGraph,
}

/// Graphs of f32 under cosine and of u8 under L2, on each device.
fn graphs_of_cells() -> &'static [OfCells] {
    static ALL: OnceLock<Vec<OfCells>> = OnceLock::new();
    ALL.get_or_init(|| {
        // Phases 1 and 2 do not depend on the start: one graph is enough.
        let floats = Synth::new(ROWS, DIM, 5).unwrap().base();
        let bytes = Vectors::from_u8(whole_numbers(), DIM).unwrap();
        // One clustering, and two, whose lists are merged.
        let cases = [(floats, Metric::Cosine, 1, 1), (bytes, Metric::L2, 2, 0)];
        let build = |device: Device, (base, metric, clusterings, phases)| {
            let descent = Descent::new().knn(10).metric(metric).start(Start::Cells);
            let cells = CellSettings { clusterings: Some(clusterings), ..CellSettings::default() };
            let descent = descent.cells(cells).iterations(Iterations::Fixed(phases, phases));
            let descent = descent.seed(3).device(device);
            let graph = descent.build(&base).unwrap();
            OfCells { device, descent, base, graph }
        };
        devices().into_iter().flat_map(|device| cases.clone().map(|case| build(device, case))).collect()
    })
}

#[test]
fn graphs_of_cells_find_nearly_all() {
    for OfCells { device, base, graph, .. } in graphs_of_cells() {
        let name = format!("{}, {}, {device}", base.element_type(), graph.metric());
        check_graph(&name, graph, base, graph.metric());
        let recall = recall(graph, base);
        assert!(recall > 0.97, "{name}: recall {recall}");
    }
}

#[test]
fn whole_numbers_in_f32_give_the_graph_of_bytes() {
    let bytes = whole_numbers()[..90 * DIM].to_vec();
    let whole = bytes.iter().map(|&x| f32::from(x)).collect();
    let few = [Vectors::from_u8(bytes, DIM).unwrap(), Vectors::from_f32(whole, DIM).unwrap()];
    for device in devices() {
        let [of_bytes, of_whole] = few.each_ref().map(|base| {
            let descent = Descent::new().knn(10).start(Start::Random).iterations(Iterations::Fixed(2, 1));
            descent.device(device).build(base).unwrap()
        });
        assert!(same(&of_bytes, &of_whole), "{device}: bytes and whole numbers");
    }
}

#[test]
fn graphs_of_a_random_start_find_nearly_all() {
    let synth = Synth::new(120, 24, 6).unwrap().base();
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
pub(super) fn small() -> Vectors {
    Synth::new(160, 8, 5).unwrap().base()
}

/// What the kernels whose names begin with `name` have done together. Other tests run on the same
/// CUDA device at the same time, and are counted with it: also their kernels of other types.
fn total(kernels: &[KernelTime], name: &str) -> KernelTime {
    kernels.iter().filter(|time| time.kernel.starts_with(name)).fold(KernelTime::default(), |sum, time| {
        KernelTime {
            launches: sum.launches + time.launches,
            bytes: sum.bytes + time.bytes,
            operations: sum.operations + time.operations,
            ..sum
        }
    })
}

#[test]
fn kernels_count_their_bytes_and_operations() {
    let base = small();
    for device in devices() {
        let descent = Descent::new().knn(6).device(device).start(Start::Random);
        let graph = descent.iterations(Iterations::Fixed(2, 1)).build(&base).unwrap();
        let stats = graph.stats();
        let kernel = |name: &str| total(&stats.kernels, name);
        assert!(stats.join_distances > 0 && stats.refine_distances > 0);
        let at_end = stats.completed * 159;
        assert_eq!(stats.distances, stats.join_distances + stats.refine_distances + at_end);
        for name in ["descent_join", "descent_expand", "cells_finish", "cluster_assign"] {
            assert!(kernel(name).bytes > 0 && kernel(name).operations > 0, "{name}");
        }
        for name in ["descent_sample", "descent_merge", "descent_gather", "renumber_vectors"] {
            assert!(kernel(name).bytes > 0, "{name}");
        }
        let KernelTime { launches, operations, .. } = kernel("descent_join");
        let expected = (2, stats.join_distances * 16);
        let more = launches > expected.0 && operations > expected.1;
        assert!((launches, operations) == expected || device != Device::Emulated && more);
    }
}

#[test]
fn kernels_of_cells_count_their_bytes_and_operations() {
    for OfCells { device, descent, base, graph } in graphs_of_cells() {
        check_plan(descent, base, graph);
        // Joins of phase 1 compare rows too.
        if graph.stats().iterations.0 > 0 {
            continue;
        }
        let kernels = &graph.stats().kernels;
        let kernel = |name: &str| total(kernels, name);
        for name in
            ["cells_intra_join", "cells_merge_candidates", "cells_cross_join", "cells_merge_proposals"]
        {
            assert!(kernel(name).bytes > 0, "{name}");
        }
        let compared = graph.stats().distances - graph.stats().completed * (ROWS as u64 - 1);
        let counted = kernel("cells_intra_join").operations + kernel("cells_cross_join").operations;
        let expected = compared * 2 * DIM as u64;
        assert!(counted == expected || *device != Device::Emulated && counted > expected);
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
    let synth = Synth::new(110, 6, 8).unwrap().base();
    let of = |value: &dyn Fn(usize, f32) -> f32| -> Vectors {
        let row =
            |row: usize| synth.row_to_f32(row).unwrap().iter().map(|&x| value(row, x)).collect::<Vec<_>>();
        Vectors::from_f32((0..110).flat_map(row).collect(), 6).unwrap()
    };
    let cases = [
        ("two clusters far apart", of(&|row, x| far(row) + x), Some(0.9)),
        ("large values", of(&|_, x| x * 8000.0), Some(0.9)),
        ("small values", of(&|_, x| x * 1e-6), Some(0.9)),
        // Ids among equal rows are arbitrary, so recall says nothing; `check_graph` checks the
        // distances.
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

#[test]
fn expansions_of_several_launches_are_complete() {
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
