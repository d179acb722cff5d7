//! The k-NN graph compared with exact search.

use tagore::{
    CellSettings, Descent, Error, Iterations, KnnGraph, Metric, RecallSample, Start, Synth, Vectors,
    knn_recall,
};

use crate::reference::{distance, hard_cases, nearest_distances, uniform};

const METRICS: [Metric; 3] = [Metric::L2, Metric::InnerProduct, Metric::Cosine];

/// Starts of a descent.
const STARTS: [Start; 2] = [Start::Random, Start::Cells];

/// Checks that lists are sorted by (distance, id) without the node itself or repeats, and that
/// distances are right.
fn check_rows(graph: &KnnGraph, base: &Vectors, what: &str) {
    for node in 0..graph.len() {
        let (ids, distances) = (graph.neighbors(node), graph.distances(node));
        let pairs: Vec<(f32, u32)> = distances.iter().copied().zip(ids.iter().copied()).collect();
        assert!(pairs.windows(2).all(|p| p[0] < p[1]), "{what}: row {node} is not sorted: {pairs:?}");
        assert!(!ids.contains(&(node as u32)), "{what}: row {node} holds itself");
        let mut different = ids.to_vec();
        different.sort_unstable();
        different.dedup();
        assert_eq!(different.len(), ids.len(), "{what}: row {node} holds an id twice");
        for (&id, &found) in ids.iter().zip(distances) {
            let exact = distance(
                graph.metric(),
                &base.row_to_f32(node).unwrap(),
                &base.row_to_f32(id as usize).unwrap(),
            );
            let norm = |row: usize| {
                base.row_to_f32(row).unwrap().iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt()
            };
            // The error of a sum of products of both signs grows with the size of its terms.
            let epsilon = match graph.metric() {
                Metric::L2 => 0.0,
                Metric::Cosine => 1e-6,
                Metric::InnerProduct => 1e-6 * norm(node) * norm(id as usize),
            };
            approx::assert_relative_eq!(f64::from(found), exact, max_relative = 1e-5, epsilon = epsilon);
        }
    }
}

/// The distance of the `k`-th neighbour of each node, by the plain reference, which takes long.
fn reaches(base: &Vectors, metric: Metric, k: usize) -> Vec<f64> {
    let of = |node: usize| {
        let point = base.row_to_f32(node).unwrap();
        let far = nearest_distances(base, &point, Some(node), metric, k)[k - 1];
        far + far.abs() * 1e-4 + 1e-6
    };
    (0..base.len()).map(of).collect()
}

/// The share of neighbours within the reach of their node.
fn recall_within(graph: &KnnGraph, reaches: &[f64]) -> f64 {
    let hits = reaches.iter().enumerate().map(|(node, &reach)| {
        graph.distances(node).iter().filter(|&&distance| f64::from(distance) <= reach).count()
    });
    hits.sum::<usize>() as f64 / (reaches.len() * graph.k()) as f64
}

/// Recall over all nodes against the plain reference; ties count.
fn recall(graph: &KnnGraph, base: &Vectors) -> f64 {
    recall_within(graph, &reaches(base, graph.metric(), graph.k()))
}

#[test]
fn small_data_gets_the_exact_graph() {
    for metric in METRICS {
        for (rows, dim, k) in [(2, 1, 1), (3, 97, 2), (31, 1, 30), (97, 3, 13), (200, 17, 96)] {
            let base = uniform(rows, dim, 11);
            let graph = Descent::new().metric(metric).knn(k).build(&base).unwrap();
            let what = format!("{rows} x {dim}, k {k}, {metric}");
            check_rows(&graph, &base, &what);
            assert_eq!(recall(&graph, &base), 1.0, "{what}");
        }
    }
}

#[test]
fn descent_finds_nearly_all_neighbours() {
    for metric in METRICS {
        for (rows, dim, k) in [(100, 5, 10), (1100, 24, 10), (801, 97, 33), (1800, 3, 20)] {
            let base = Synth::new(rows, dim, 3).unwrap().base();
            let reaches = reaches(&base, metric, k);
            for start in STARTS {
                let graph = Descent::new().metric(metric).knn(k).start(start).build(&base).unwrap();
                check_rows(&graph, &base, "synth");
                let recall = recall_within(&graph, &reaches);
                // Inner product is no metric: neighbours of neighbours need not be near.
                let floor = if metric == Metric::InnerProduct { 0.80 } else { 0.97 };
                assert!(recall > floor, "{rows} x {dim}, k {k}, {metric}, {start}: recall {recall}");
            }
        }
    }
}

#[test]
fn each_phase_alone_improves_the_lists() {
    let base = Synth::new(2000, 32, 4).unwrap().base();
    let reaches = reaches(&base, Metric::L2, 20);
    let recall = |join, refine| {
        let iterations = Iterations::Fixed(join, refine);
        let graph = Descent::new().knn(20).start(Start::Random).iterations(iterations).build(&base).unwrap();
        assert_eq!(graph.stats().iterations, (join, refine));
        recall_within(&graph, &reaches)
    };
    let (start, joined, refined, both) = (recall(0, 0), recall(3, 0), recall(0, 3), recall(3, 3));
    assert!(
        start < 0.1 && joined > 0.5 && refined > 0.2 && both > joined,
        "{start} {joined} {refined} {both}"
    );
}

#[test]
fn hard_data_gives_a_valid_graph() {
    for (name, base) in hard_cases(300, 7, 5) {
        for metric in METRICS {
            for start in [Start::Auto, Start::Random, Start::Cells] {
                let graph = Descent::new().metric(metric).knn(15).start(start).build(&base).unwrap();
                let what = format!("{name}, {metric}, {start:?}");
                check_rows(&graph, &base, &what);
                let recall = recall(&graph, &base);
                assert!(recall > if start == Start::Auto { 0.999 } else { 0.8 }, "{what}: recall {recall}");
            }
        }
    }
}

#[test]
fn every_element_type_gives_the_graph_of_its_values() {
    let values: Vec<u8> = (0..500 * 9).map(|i| (i * 7919 % 101) as u8).collect();
    let i8s = values.iter().map(|&x| x as i8).collect();
    let f16s = values.iter().map(|&x| half::f16::from_f32(f32::from(x))).collect();
    let f32s = values.iter().map(|&x| f32::from(x)).collect();
    let others = [
        Vectors::from_i8(i8s, 9).unwrap(),
        Vectors::from_f16(f16s, 9).unwrap(),
        Vectors::from_f32(f32s, 9).unwrap(),
    ];
    let u8s = Vectors::from_u8(values, 9).unwrap();
    for (other, start) in others.iter().flat_map(|other| STARTS.map(|start| (other, start))) {
        let [graph, expected] =
            [other, &u8s].map(|base| Descent::new().knn(12).start(start).build(base).unwrap());
        for node in 0..500 {
            let what = format!("{}, {start}", other.element_type());
            assert_eq!(graph.neighbors(node), expected.neighbors(node), "{what}");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_graph_on_any_number_of_threads() {
    let base = Synth::new(3000, 20, 8).unwrap().base();
    for start in STARTS {
        let build = |threads: usize, seed: u64| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            // Few probes, for lists that depend on the cells.
            let cells = CellSettings { probes: Some(2), ..CellSettings::default() };
            let descent = Descent::new().knn(24).start(start).cells(cells).seed(seed);
            let graph = pool.install(|| descent.build(&base)).unwrap();
            (0..3000).flat_map(|node| graph.neighbors(node).to_vec()).collect::<Vec<u32>>()
        };
        let one = build(1, 5);
        assert!(one == build(2, 5) && one == build(3, 5), "{start}");
        assert!(one != build(2, 6), "{start}: another seed must give another graph");
    }
}

#[test]
fn the_default_k_is_clamped_and_a_given_k_checked() {
    let base = uniform(5, 3, 1);
    assert_eq!(Descent::new().build(&base).unwrap().k(), 4);
    for k in [0, 5, 6, 5000] {
        let error = Descent::new().knn(k).build(&base).unwrap_err();
        assert!(matches!(error, Error::Argument { parameter: "knn", .. }), "{error}");
    }
    assert_eq!(Descent::new().build(&uniform(1, 3, 1)).unwrap().k(), 0);
    let empty = Vectors::from_f32(vec![], 3).unwrap();
    assert!(Descent::new().build(&empty).unwrap_err().to_string().contains("0 rows"));
}

#[test]
fn a_saved_graph_round_trips() {
    let folder = tempfile::tempdir().unwrap();
    let base = uniform(50, 4, 2);
    let graph = Descent::new().knn(7).build(&base).unwrap();
    for name in ["graph", "graph.bin", "graph.fbin"] {
        graph.save(folder.path().join(name)).unwrap();
        let read =
            KnnGraph::open(folder.path().join(name), &base, Metric::L2, &tagore::Progress::silent()).unwrap();
        for node in 0..50 {
            assert_eq!(read.neighbors(node), graph.neighbors(node));
            assert_eq!(read.distances(node), graph.distances(node));
        }
    }
    let other = uniform(51, 4, 2);
    let error = KnnGraph::open(folder.path().join("graph"), &other, Metric::L2, &tagore::Progress::silent())
        .unwrap_err()
        .to_string();
    assert!(error.contains("50 rows") && error.contains("51"), "{error}");
}

#[test]
fn measured_recall_equals_the_reference() {
    let base = Synth::new(3000, 16, 2).unwrap().base();
    let descent = Descent::new().knn(20).start(Start::Random).iterations(Iterations::Fixed(2, 0));
    let graph = descent.build(&base).unwrap();
    let measured = knn_recall(
        &graph,
        &base,
        &[20],
        &RecallSample { nodes: 3000, seed: 1, device: tagore::Device::Cpu, ..RecallSample::default() },
    )
    .unwrap()[0];
    approx::assert_abs_diff_eq!(measured, recall(&graph, &base), epsilon = 1e-3);
    let sampled = knn_recall(
        &graph,
        &base,
        &[20],
        &RecallSample { nodes: 500, seed: 1, device: tagore::Device::Cpu, ..RecallSample::default() },
    )
    .unwrap()[0];
    approx::assert_abs_diff_eq!(measured, sampled, epsilon = 0.05);
}

#[test]
fn descent_can_be_cancelled() {
    let base = uniform(5000, 8, 1);
    let progress = tagore::Progress::silent();
    progress.cancel();
    let error = Descent::new().progress(progress).build(&base).unwrap_err();
    assert!(matches!(error, Error::Cancelled));
}
