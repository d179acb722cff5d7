//! Values whose distances exceed f32: an error, never ids in the order of infinities, NaNs or
//! zeros.

use std::sync::Arc;

use tagore::outofcore::{ClusterGraph, ClusterPlan, Limits, OutOfCore};
use tagore::{
    Builder, Descent, Device, Error, ExactSearch, GroundTruth, Metric, Progress, RecallSample, Result,
    Strategy, TestQueries, Vectors, evaluate, knn_recall,
};

use crate::reference::{nearest_distances, search, uniform};

const DEVICES: [Device; 2] = [Device::Cpu, Device::Emulated];
const SUMMED: [Metric; 2] = [Metric::L2, Metric::InnerProduct];

/// `vectors` with all values multiplied by `by`.
fn scaled(vectors: &Vectors, by: f32) -> Vectors {
    let values = (0..vectors.len())
        .flat_map(|row| vectors.row_to_f32(row).unwrap().into_owned())
        .map(|x| x * by)
        .collect();
    Vectors::from_f32(values, vectors.dim()).unwrap()
}

/// `vectors` with one value replaced.
fn with(vectors: &Vectors, row: usize, dim: usize, value: f32) -> Vectors {
    let mut values: Vec<f32> =
        (0..vectors.len()).flat_map(|row| vectors.row_to_f32(row).unwrap().into_owned()).collect();
    values[row * vectors.dim() + dim] = value;
    Vectors::from_f32(values, vectors.dim()).unwrap()
}

/// The largest magnitude allowed in `dim` components under L2.
fn limit(dim: usize) -> f32 {
    (f64::from(f32::MAX) / (8 * dim) as f64).sqrt() as f32
}

fn out_of_core(builder: &Builder, base: &Vectors) -> Result<()> {
    let limits = Limits { cluster_size: Some(base.len() / 2), ..Limits::default() };
    let plan = ClusterPlan::new(builder, base, &limits)?.unwrap();
    let folder = tempfile::tempdir().unwrap();
    OutOfCore::new(builder.clone(), plan).build(base, &folder.path().join("x.tagore")).map(drop)
}

/// Runs every operation on a base.
fn over_base(base: &Vectors, metric: Metric, device: Device) -> Vec<(&'static str, Result<()>)> {
    let (queries, silent) = (uniform(2, base.dim(), 3), Progress::silent());
    let builder = Builder::new(Strategy::vamana()).knn(8).metric(metric).device(device);
    let truth = ExactSearch::new(3).metric(metric).device(device).run(base, &queries).map(drop);
    let graph = Descent::new().knn(8).metric(metric).device(device).build(base).map(drop);
    let mut all =
        vec![("exact search", truth), ("k-NN graph", graph), ("index", builder.build(base).map(drop))];
    // On a GPU these operations check the base as they copy it there.
    if device == Device::Cpu {
        all.push(("index out of core", out_of_core(&builder, base)));
    }
    if device == Device::Cpu && metric == Metric::L2 {
        all.push(("clusters", ClusterGraph::of_vectors(base, 2, 0, device, &silent).map(drop)));
    }
    all
}

#[test]
fn values_whose_distances_overflow_are_refused() {
    let base = uniform(200, 4, 1);
    for (value, metric) in [1e20, -1e20, 3e38].into_iter().flat_map(|value| SUMMED.map(|m| (value, m))) {
        let large = with(&base, 103, 2, value);
        for (what, result) in DEVICES.iter().flat_map(|&device| over_base(&large, metric, device)) {
            match result {
                Err(Error::Value { row: 103, dim: 2, expected, .. }) => {
                    let words =
                        [&format!("{:e}", limit(4)), "dimension 4", metric.name(), "scale the data down"];
                    assert!(words.iter().all(|word| expected.contains(*word)), "{expected}");
                }
                other => panic!("{what} of {value} under {metric}: {other:?}"),
            }
        }
    }
}

#[test]
fn queries_whose_distances_overflow_are_refused() {
    let (base, silent) = (uniform(200, 4, 1), Progress::silent());
    for metric in SUMMED {
        let index = Arc::new(Builder::new(Strategy::vamana()).knn(8).metric(metric).build(&base).unwrap());
        let queries = with(&uniform(5, 4, 2), 3, 1, 1e20);
        let truth = GroundTruth::new(1, vec![0; 5], None).unwrap();
        for (what, result) in [
            ("search", search(Arc::clone(&index), &base, &queries, 1, 10).map(drop)),
            (
                "evaluation",
                evaluate(&index, &base, TestQueries::new(&queries, &truth, 1), &[10], &silent).map(drop),
            ),
            ("exact search", ExactSearch::new(1).metric(metric).run(&base, &queries).map(drop)),
        ] {
            assert!(matches!(result, Err(Error::Value { row: 3, dim: 1, .. })), "{what}: {result:?}");
        }
    }
    // Only products of small values with small values vanish.
    let (small, tiny) = (scaled(&base, 1e-10), scaled(&uniform(5, 4, 2), 1e-23));
    let error = ExactSearch::new(1).metric(Metric::InnerProduct).run(&small, &tiny).unwrap_err().to_string();
    assert!(error.contains("e-23") && error.ends_with("scale the queries up"), "{error}");
}

#[test]
fn values_whose_differences_vanish_are_refused() {
    for (metric, device) in SUMMED.into_iter().flat_map(|metric| DEVICES.map(|device| (metric, device))) {
        for by in [1e-23, 1e-40, 1e-14] {
            for (what, result) in over_base(&scaled(&uniform(200, 4, 1), by), metric, device) {
                let error = result.expect_err(what).to_string();
                assert!(error.contains(metric.name()) && error.ends_with("scale the data up"), "{error}");
            }
        }
    }
}

#[test]
fn zeros_are_allowed() {
    let base = Vectors::from_f32(vec![0.0; 800], 4).unwrap();
    for metric in SUMMED {
        for (what, result) in over_base(&base, metric, Device::Cpu) {
            assert!(result.is_ok(), "{what} of zeros under {metric}: {result:?}");
        }
    }
}

#[test]
fn small_values_beside_others_are_allowed() {
    // Rows of small values alone, rows of larger ones, and rows of both.
    let noise = uniform(200, 4, 1);
    let mixed =
        |row: usize, dim: usize| if row.is_multiple_of(3) || (row + dim) % 3 == 1 { 1e-23 } else { 1.0 };
    let value = |i: usize| noise.row_to_f32(i / 4).unwrap()[i % 4] * mixed(i / 4, i % 4);
    let base = Vectors::from_f32((0..800).map(value).collect(), 4).unwrap();
    let rows: Vec<usize> = (0..40).collect();
    let queries = Vectors::from_f32(
        rows.iter().flat_map(|&row| base.row_to_f32(row).unwrap().into_owned()).collect(),
        4,
    )
    .unwrap();
    for metric in SUMMED {
        for (what, result) in over_base(&base, metric, Device::Cpu) {
            assert!(result.is_ok(), "{what} under {metric}: {result:?}");
        }
        let of = |device| ExactSearch::new(5).metric(metric).device(device).run(&base, &queries).unwrap().0;
        let truth = of(Device::Cpu);
        assert_eq!(of(Device::Emulated), truth, "{metric}");
        for row in rows.iter().copied() {
            let expected = nearest_distances(&base, &queries.row_to_f32(row).unwrap(), None, metric, 5);
            for (found, expected) in truth.distances(row).unwrap().iter().zip(expected) {
                let error = (f64::from(*found) - expected).abs();
                assert!(error <= 1e-5 * expected.abs().max(1e-30), "{found} for {expected}, {metric}");
            }
        }
    }
}

#[test]
fn scaling_within_the_limits_keeps_neighbours() {
    let (base, queries) = (uniform(120, 8, 1), uniform(20, 8, 2));
    let truth = |by: f32, metric, device| {
        let search = ExactSearch::new(10).metric(metric).device(device);
        search.run(&scaled(&base, by), &scaled(&queries, by)).unwrap().0
    };
    let recall = |by: f32, metric, device| {
        let base = scaled(&base, by);
        let graph = Descent::new().knn(10).metric(metric).device(device).build(&base).unwrap();
        knn_recall(
            &graph,
            &base,
            &[10],
            &RecallSample { nodes: 120, device: Device::Cpu, ..RecallSample::default() },
        )
        .unwrap()[0]
    };
    for metric in SUMMED {
        let expected = truth(1.0, metric, Device::Cpu);
        // Scaling by powers of two keeps all digits: up to the largest values, and down to the
        // smallest.
        for power in [54, -43] {
            let by = 2f32.powi(power);
            let square = f64::from(by) * f64::from(by);
            let found = truth(by, metric, Device::Cpu);
            for query in 0..20 {
                assert_eq!(found.ids(query), expected.ids(query), "2^{power} under {metric}");
                let pairs = found.distances(query).unwrap().iter().zip(expected.distances(query).unwrap());
                assert!(pairs.into_iter().all(|(&a, &b)| f64::from(a) == f64::from(b) * square));
            }
            assert_eq!(truth(by, metric, Device::Emulated), found, "2^{power} under {metric}");
            for device in DEVICES {
                let recall = recall(by, metric, device);
                assert!(recall > 0.99, "recall {recall} at 2^{power} under {metric} on {device}");
            }
        }
    }
    // Cosine allows any values: vectors are normalised in f64.
    let expected = truth(1.0, Metric::Cosine, Device::Cpu);
    for power in [66, 120, -76, -100] {
        assert_eq!(truth(2f32.powi(power), Metric::Cosine, Device::Cpu), expected, "2^{power}");
    }
    assert_eq!(truth(2f32.powi(66), Metric::Cosine, Device::Emulated), expected);
}

#[test]
fn the_limit_is_allowed_and_the_next_value_refused() {
    for (dim, metric) in [1, 3, 128, 4096].into_iter().flat_map(|dim| SUMMED.map(|m| (dim, m))) {
        let most = limit(dim);
        // Opposite corners have the largest distance.
        let corner = |sign: f32| vec![sign * most; dim];
        let base = Vectors::from_f32([corner(1.0), corner(-1.0), corner(0.0)].concat(), dim).unwrap();
        for device in if dim == 128 { &DEVICES[..] } else { &DEVICES[..1] } {
            let device = *device;
            let (truth, _) = ExactSearch::new(3).metric(metric).device(device).run(&base, &base).unwrap();
            for query in 0..3 {
                let distances = truth.distances(query).unwrap();
                assert!(
                    distances.iter().all(|distance| distance.is_finite()),
                    "{dim}, {metric}: {distances:?}"
                );
            }
            // Under both metrics the opposite corner is the farthest.
            let order = [[0, 2, 1], [1, 2, 0]];
            assert_eq!([truth.ids(0), truth.ids(1)], order, "{dim}, {metric}");
            let graph = Descent::new().knn(2).metric(metric).device(device).build(&base).unwrap();
            assert!((0..3).all(|node| graph.distances(node).iter().all(|distance| distance.is_finite())));
        }
        Builder::new(Strategy::nsg()).knn(2).metric(metric).device(Device::Cpu).build(&base).unwrap();
        let beyond = with(&base, 1, dim - 1, -most.next_up());
        let error = ExactSearch::new(1).metric(metric).run(&beyond, &base).unwrap_err();
        assert!(matches!(error, Error::Value { row: 1, dim: d, .. } if d == dim - 1), "{error}");
    }
}

#[test]
fn other_types_have_no_limits() {
    use half::f16;
    let (most, least) = (f16::MAX, f16::from_bits(1));
    for value in [most, least] {
        let base = Vectors::from_f16(vec![value, -value, value, value], 2).unwrap();
        for metric in SUMMED {
            let (truth, _) = ExactSearch::new(2).metric(metric).run(&base, &base).unwrap();
            let distances = [truth.distances(0).unwrap(), truth.distances(1).unwrap()].concat();
            assert!(distances.iter().all(|x| x.is_finite()) && distances[1] != distances[0], "{distances:?}");
        }
    }
}
