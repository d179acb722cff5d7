//! Searches on codes of edges: the same rows on every device.

use half::f16;
use tagore::{Builder, Device, Index, Progress, Search, SearchCodes, Searcher, Strategy, Synth, Vectors};

use super::{METRICS, devices};
use crate::reference::{hard_cases, separated, uniform};

/// Checks that searches on each device equal those of the CPU, ids and bits of distances, and that
/// their distances are those of searches on the vectors.
fn check(case: &str, index: Index, base: &Vectors, queries: &Vectors, widths: &[(usize, usize)]) {
    let silent = Progress::silent();
    let plain = Searcher::new(index, base.clone(), &silent).unwrap();
    let on_cpu = plain.clone().compressed(SearchCodes::Edges).unwrap();
    for &(k, beam) in widths {
        let search = Search::new(k).beam(beam);
        let expected = on_cpu.search(queries, search, &silent).unwrap();
        let all = plain.search(queries, Search::new(base.len()), &silent).unwrap();
        for query in 0..queries.len() {
            let found: Vec<_> = expected.neighbors(query).collect();
            assert!(found.is_sorted_by_key(|found| (found.distance, found.id)), "{case}, query {query}");
            let exact: Vec<_> = all.neighbors(query).collect();
            assert!(found.iter().all(|found| exact.contains(found)), "{case}, query {query}");
            let one = on_cpu.search_one(&queries.row_to_f32(query).unwrap(), search).unwrap();
            assert_eq!(one, found, "{case}, query {query}");
        }
        for device in devices() {
            let shape = format!("{case}, {}, k = {k}, beam = {beam}, {device}", plain.index().metric());
            let searcher = on_cpu.clone().device(device).unwrap();
            let found = searcher.search(queries, search, &silent).unwrap();
            for query in 0..queries.len() {
                assert_eq!(found.ids(query), expected.ids(query), "{shape}, query {query}");
                let bits = |distances: &[f32]| distances.iter().map(|d| d.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(found.distances(query)), bits(expected.distances(query)), "{shape}, {query}");
            }
            let kernels: Vec<&str> = found.kernels().iter().map(|time| time.kernel).collect();
            assert!(kernels.iter().any(|kernel| kernel.starts_with("edge_search")), "{shape}: {kernels:?}");
        }
    }
}

#[test]
fn searches_on_edges_of_every_kind_metric_and_dimension() {
    let dims = [1, 7, 17, 31, 32, 33, 100];
    let cases = Strategy::all().into_iter().zip(METRICS.into_iter().cycle()).zip(dims.into_iter().cycle());
    for ((strategy, metric), dim) in cases {
        let name = format!("{} of dimension {dim}", strategy.kind());
        // The emulator takes a millisecond to code an edge; one node more than a warp is enough.
        let synth = Synth::new(44, dim, 6).unwrap();
        let mut values = synth.base().to_f32().unwrap();
        values[dim * 3..dim * 4].fill(0.0);
        let (base, queries) = (Vectors::from_f32(values, dim).unwrap(), synth.queries(3));
        let builder = Builder::new(strategy.degree(6)).knn(12).metric(metric).device(Device::Cpu);
        let index = builder.build(&base).unwrap();
        check(&name, index, &base, &queries, &[(10, 30), (1, 1)]);
    }
}

#[test]
fn searches_on_edges_of_every_type_and_of_hard_data() {
    let of = |rows: usize, seed: u64| -> Vec<f32> {
        uniform(rows, 37, seed).to_f32().unwrap().into_iter().map(|x| (x * 12.0).floor()).collect()
    };
    let f16 =
        |v: Vec<f32>| Vectors::from_f16(v.iter().map(|&x| f16::from_f32(x / 8.0)).collect(), 37).unwrap();
    let u8 = |v: Vec<f32>| Vectors::from_u8(v.iter().map(|&x| (x + 120.0) as u8).collect(), 37).unwrap();
    let i8 = |v: Vec<f32>| Vectors::from_i8(v.iter().map(|&x| x as i8).collect(), 37).unwrap();
    let whole =
        |v: Vec<f32>| Vectors::from_f32(v.iter().map(|&x| (x + 120.0).floor()).collect(), 37).unwrap();
    type Convert<'a> = &'a dyn Fn(Vec<f32>) -> Vectors;
    let types: [(&str, Convert<'_>); 4] = [("f16", &f16), ("u8", &u8), ("i8", &i8), ("whole f32", &whole)];
    // Rows of more than a warp's edges for one type; lists of more than a warp's keys for all.
    let degrees = [34, 7, 7, 7];
    for (((name, to), metric), degree) in types.into_iter().zip(METRICS.into_iter().cycle()).zip(degrees) {
        let (base, queries) = (to(of(44, 1)), to(of(2, 2)));
        let strategy = Strategy::cagra().degree(degree);
        let index = Builder::new(strategy).knn(40).metric(metric).build(&base).unwrap();
        check(name, index, &base, &queries, &[(3, 20), (40, 80)]);
    }
    let (base, queries) = (whole(of(44, 1)), uniform(2, 37, 5));
    let index = Builder::new(Strategy::cagra().degree(8)).knn(20).build(&base).unwrap();
    check("whole base", index, &base, &queries, &[(3, 20)]);
    for (name, base) in hard_cases(34, 5, 3) {
        let index = Builder::new(Strategy::vamana().degree(4)).knn(12).build(&base).unwrap();
        check(name, index, &base, &uniform(2, 5, 9), &[(4, 9), (34, 300)]);
    }
}

#[test]
fn searches_on_edges_through_layers() {
    let (base, queries) = (separated(120, 12, 9, 0), separated(4, 12, 9, 1));
    let index = Builder::new(Strategy::cagra().degree(6)).knn(7).device(Device::Cpu).build(&base).unwrap();
    assert!(!index.layers().is_empty());
    check("clusters", index, &base, &queries, &[(5, 5), (10, 40)]);
}
