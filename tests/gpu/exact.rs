//! Exact search on a device: the ids and the bits of distances of the CPU.

use half::f16;
use tagore::{Device, ExactSearch, Metric, Synth, Vectors};

use super::{METRICS, devices};
use crate::reference::{hard_cases, uniform};

/// Checks that exact search on each device equals that of the CPU: ids and bits of distances.
fn check_exact(case: &str, base: &Vectors, queries: &Vectors, search: &ExactSearch) {
    let (expected, _) = search.clone().device(Device::Cpu).run(base, queries).unwrap();
    for device in devices() {
        let search = search.clone().device(device);
        let shape = format!("{case}, {} x {}, {search:?}", base.len(), base.dim());
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

/// Queries, and the first `count` rows of `base`, which find themselves.
fn with_first_rows(queries: &Vectors, base: &Vectors, count: usize) -> Vectors {
    let rows = &base.to_f32().unwrap()[..count * base.dim()];
    Vectors::from_f32([&queries.to_f32().unwrap(), rows].concat(), base.dim()).unwrap()
}

#[test]
fn exact_search_of_odd_shapes() {
    for (rows, dim, queries, k) in [(1, 1, 1, 1), (129, 1, 3, 129), (520, 97, 5, 13)] {
        for metric in METRICS {
            check_exact(
                "uniform",
                &uniform(rows, dim, 1),
                &uniform(queries, dim, 2),
                &ExactSearch::new(k).metric(metric),
            );
        }
    }
    // More than a tile of queries.
    for metric in [Metric::InnerProduct, Metric::Cosine] {
        let search = ExactSearch::new(7).metric(metric);
        check_exact("queries", &uniform(260, 137, 1), &uniform(130, 137, 2), &search);
    }
}

#[test]
fn exact_search_of_hard_data() {
    // More rows than the two tiles that are visited before there is a bound.
    for (number, (name, base)) in hard_cases(290, 9, 3).into_iter().enumerate() {
        let queries = with_first_rows(&uniform(6, 9, 4), &base, 6);
        for (metric, k) in METRICS.into_iter().zip([3, 20].into_iter().cycle().skip(number)) {
            check_exact(name, &base, &queries, &ExactSearch::new(k).metric(metric));
        }
    }
}

/// Rounding moves rows of heavy tails by very different distances, some of them past f16.
#[test]
fn exact_search_of_heavy_tails() {
    let tailed = |rows: usize, power: i32, seed: u64| {
        let uniform = uniform(rows, 33, seed);
        let value = |x: &f32| x.signum() * (0.1 / (x.abs() + 1e-4)).powi(power);
        let rows =
            (0..rows).flat_map(|row| uniform.row_to_f32(row).unwrap().iter().map(value).collect::<Vec<_>>());
        Vectors::from_f32(rows.collect(), 33).unwrap()
    };
    for (power, metric) in [1, 2].into_iter().flat_map(|power| METRICS.map(|metric| (power, metric))) {
        let base = tailed(900, power, 5);
        let queries = with_first_rows(&tailed(60, power, 6), &base, 60);
        check_exact("heavy tails", &base, &queries, &ExactSearch::new(12).metric(metric));
    }
}

#[test]
fn exact_search_of_every_type() {
    let of = |rows: usize, seed: u64, to: &dyn Fn(Vec<f32>) -> Vectors| {
        let values = uniform(rows, 33, seed);
        to((0..rows).flat_map(|row| values.row_to_f32(row).unwrap().to_vec()).collect())
    };
    type Convert<'a> = &'a dyn Fn(Vec<f32>) -> Vectors;
    let types: [(&str, Convert<'_>); 3] = [
        ("f16", &|v| Vectors::from_f16(v.iter().map(|&x| f16::from_f32(x)).collect(), 33).unwrap()),
        ("u8", &|v| Vectors::from_u8(v.iter().map(|&x| (12.0 * (x + 10.0)) as u8).collect(), 33).unwrap()),
        ("i8", &|v| Vectors::from_i8(v.iter().map(|&x| (12.0 * x) as i8).collect(), 33).unwrap()),
    ];
    for (name, to) in types {
        for metric in METRICS {
            check_exact(name, &of(300, 5, to), &of(6, 6, to), &ExactSearch::new(11).metric(metric));
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
        let values =
            (0..vectors.len()).flat_map(|row| vectors.row_to_f32(row).unwrap().to_vec()).map(|x| x + 1000.0);
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
    let mut ks = [1, 3].into_iter().cycle();
    for (huge, huge_query) in [(1e15, 1e15), (1e17, 1e17), (1e18, 1e5)] {
        let value = |row: usize, x: f32| match row {
            100 => huge,
            900 => 1.5 * huge,
            _ => x * 1e-13,
        };
        let values = (0..rows)
            .flat_map(|row| tiny.row_to_f32(row).unwrap().iter().map(|&x| value(row, x)).collect::<Vec<_>>());
        let base = Vectors::from_f32(values.collect(), dim).unwrap();
        let values = (0..3).flat_map(|row| {
            let scale = if row == 1 { huge_query } else { 1e-13 };
            tiny.row_to_f32(row).unwrap().iter().map(|x| x.abs() * scale).collect::<Vec<_>>()
        });
        let queries = Vectors::from_f32(values.collect(), dim).unwrap();
        for (metric, k) in METRICS.into_iter().zip(ks.by_ref()) {
            let case = format!("{huge:e} among tiny");
            check_exact(&case, &base, &queries, &ExactSearch::new(k).metric(metric));
        }
    }
}

#[test]
fn exact_search_finds_equal_rows_by_their_ids() {
    // All distances are 0: the smallest ids win. Their tiles are not visited first.
    let (zeros, ones) = (Vectors::from_f32(vec![0.0; 2 * 1000], 2).unwrap(), uniform(1000, 2, 1));
    let equal = Vectors::from_f32(vec![0.25; 2 * 1000], 2).unwrap();
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
fn exact_search_of_approaching_rows() {
    // Every row is nearer than all earlier rows, so more rows are noted than the capacity.
    let values = (0..9_000).map(|row| (9_000 - row) as f32).collect();
    let base = Vectors::from_f32(values, 1).unwrap();
    let queries = Vectors::from_f32(vec![-3.0, 9_001.0, 4_499.4], 1).unwrap();
    check_exact("approaching", &base, &queries, &ExactSearch::new(5).metric(Metric::L2));
    // All rows at one distance.
    let base = Vectors::from_f32(vec![2.0; 5000], 1).unwrap();
    check_exact("all equal", &base, &queries, &ExactSearch::new(5).metric(Metric::L2));
}

#[test]
fn k_has_a_limit_on_a_device() {
    let base = uniform(2000, 2, 1);
    let error = ExactSearch::new(1025).device(Device::Emulated).run(&base, &base).unwrap_err().to_string();
    assert!(error.contains("1025") && error.contains("1 to 1024"), "{error}");
}
