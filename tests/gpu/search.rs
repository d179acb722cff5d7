//! Beam search on a device.

use half::f16;
use tagore::{
    Builder, Device, Index, MAX_WIDTH, Metric, Progress, Search, Searcher, Strategy, Synth, TestQueries,
    Vectors, ground_truth,
};

use super::{METRICS, devices};
use crate::reference::{hard_cases, separated, uniform};

/// Checks that beam search on each device equals that of the CPU: ids and bits of distances.
fn check_search(case: &str, index: Index, base: &Vectors, queries: &Vectors, widths: &[(usize, usize)]) {
    let silent = Progress::silent();
    let on_cpu = Searcher::new(index, base.clone(), &silent).unwrap();
    let index = on_cpu.index();
    assert_eq!((on_cpu.runs_on(), on_cpu.device_name()), ("cpu", None));
    for device in devices() {
        let searcher = on_cpu.clone().device(device).unwrap();
        assert_eq!(searcher.runs_on(), device.to_string());
        for &(k, beam) in widths {
            let expected = on_cpu.search(queries, Search::new(k).beam(beam), &silent).unwrap();
            let found = searcher.search(queries, Search::new(k).beam(beam), &silent).unwrap();
            let shape = format!("{case}, {}, k = {k}, beam = {beam}, {device}", index.metric());
            for query in 0..queries.len() {
                assert_eq!(found.ids(query), expected.ids(query), "{shape}, query {query}");
                let bits = |distances: &[f32]| distances.iter().map(|d| d.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(found.distances(query)), bits(expected.distances(query)), "{shape}, {query}");
            }
            // A device recomputes distances of nodes dropped from its table.
            assert!(found.computed() >= expected.computed(), "{shape}");
            assert!(found.device_seconds().is_some() && expected.device_seconds().is_none());
            let kernels = found.kernels();
            let is_layer = |kernel: &str| kernel.starts_with("beam_search_layer");
            let of_index = |kernel: &str| kernel.starts_with("beam_search") && !is_layer(kernel);
            // Other tests run on the same CUDA device at the same time and are counted too.
            let mut beams = kernels.iter().filter(|time| of_index(time.kernel));
            assert!(beams.clone().any(|beam| beam.bytes > 0), "{shape}: {kernels:?}");
            let of_one = kernels.len() == 1 + usize::from(!index.layers().is_empty());
            assert!(device != Device::Emulated || of_one && beams.all(|beam| beam.launches == 1));
        }
    }
}

#[test]
fn beam_search_of_every_kind_and_metric() {
    for (strategy, metric) in Strategy::all().into_iter().zip(METRICS.into_iter().cycle()) {
        let (name, synth) = (strategy.kind().to_owned(), Synth::new(240, 17, 6).unwrap());
        let values: Vec<f32> =
            (0..240).flat_map(|row| synth.base().row_to_f32(row).unwrap().into_owned()).collect();
        let with_zeros = |mut values: Vec<f32>| {
            values[17 * 3..17 * 4].fill(0.0);
            Vectors::from_f32(values, 17).unwrap()
        };
        let (base, queries) = (with_zeros(values.clone()), with_zeros(values[17 * 200..17 * 204].to_vec()));
        let builder = Builder::new(strategy.degree(12)).knn(24).metric(metric).device(Device::Cpu);
        let index = builder.build(&base).unwrap();
        // The searches of all kinds are those of one kernel.
        let widths = if name == "cagra" { &[(1, 1), (10, 30), (5, 100)][..] } else { &[(10, 30)] };
        check_search(&name, index, &base, &queries, widths);
    }
}

#[test]
fn beam_search_of_every_type_and_of_hard_data() {
    let of = |rows: usize, seed: u64| -> Vec<f32> {
        let values = uniform(rows, 21, seed);
        (0..rows)
            .flat_map(|row| values.row_to_f32(row).unwrap().into_owned())
            .map(|x| (x * 12.0).floor())
            .collect()
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
        check_search(name, index, &base, &queries, &[(3, 20)]);
    }
    // A base held as bytes, and queries with other values.
    let (base, queries) = (whole(of(200, 1)), uniform(2, 21, 5));
    let index = Builder::new(Strategy::cagra().degree(8)).knn(20).build(&base).unwrap();
    check_search("whole base", index, &base, &queries, &[(3, 20)]);
    for (name, base) in hard_cases(100, 5, 3) {
        let index = Builder::new(Strategy::vamana().degree(6)).knn(12).build(&base).unwrap();
        check_search(name, index, &base, &uniform(2, 5, 9), &[(4, 9), (100, 300)]);
    }
}

#[test]
fn beam_search_through_layers() {
    let of = |rows: usize, part: u64| -> Vec<f32> {
        let values = separated(rows, 30, 9, part);
        (0..rows).flat_map(|row| values.row_to_f32(row).unwrap().into_owned()).collect()
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
        let (base, queries) = (to(of(900, 0)), to(of(3, 1)));
        let builder = Builder::new(Strategy::cagra().degree(12)).knn(24).metric(metric);
        let index = builder.device(Device::Cpu).build(&base).unwrap();
        assert!(!index.layers().is_empty(), "{name}, {metric}");
        // Beams narrower and wider than a layer's.
        check_search(name, index, &base, &queries, &[(1, 1), (10, 20), (10, 130)]);
    }
}

#[test]
fn wider_steps_find_as_much() {
    let synth = Synth::new(600, 12, 2).unwrap();
    let (base, queries) = (synth.base(), synth.queries(12));
    let index = Builder::new(Strategy::nsg().degree(12)).knn(24).device(Device::Cpu).build(&base).unwrap();
    let truth = ground_truth(&base, &queries, Metric::L2, 10, &Progress::silent()).unwrap();
    let on_cpu = Searcher::new(index, base, &Progress::silent()).unwrap();
    for device in devices() {
        let recall = |width| {
            let searcher = on_cpu.clone().width(width).unwrap().device(device).unwrap();
            let found = searcher
                .evaluate(TestQueries::new(&queries, &truth, 10), &[40], &Progress::silent())
                .unwrap()[0];
            assert!(found.device_qps.unwrap() >= found.qps);
            found.recall
        };
        assert!(recall(4) >= recall(1) - 0.02, "{device}");
    }
    for width in [0, MAX_WIDTH + 1] {
        assert!(on_cpu.clone().width(width).is_err());
    }
    let searcher = on_cpu.device(Device::Emulated).unwrap();
    let error =
        searcher.search(&queries, Search::new(10).beam(513), &Progress::silent()).unwrap_err().to_string();
    assert!(error.contains("513") && error.contains("at most 512"), "{error}");
    let none = searcher.search(&synth.queries(0), Search::new(10).beam(20), &Progress::silent()).unwrap();
    assert!(none.is_empty() && none.computed() == 0);
}
