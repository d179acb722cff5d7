//! Searches on a GPU that walk on a copy of the base.

use std::sync::Arc;

use half::f16;
use tagore::{
    Builder, Device, ElementType, IdSet, Index, Metric, Progress, Search, SearchVectors, Searcher, Strategy,
    Synth, Vectors, ground_truth,
};

const COPIES: [SearchVectors; 2] = [SearchVectors::F16, SearchVectors::Int8];

/// Rows far from the origin, the first of which is zero, in `element`.
fn data(element: ElementType) -> (Vectors, Vectors) {
    let synth = Synth::new(700, 33, 5).unwrap();
    let shifted = |vectors: &Vectors| {
        let value = |(i, &x): (usize, &f32)| if i < 33 { 0.0 } else { 3.0 * x + 40.0 };
        let values: Vec<f32> = vectors.to_f32().iter().enumerate().map(value).collect();
        if element == ElementType::F32 {
            return Vectors::from_f32(values, 33).unwrap();
        }
        Vectors::from_f16(values.into_iter().map(f16::from_f32).collect(), 33).unwrap()
    };
    (shifted(&synth.base()), shifted(&synth.queries(20)))
}

fn index(base: &Vectors, metric: Metric) -> Arc<Index> {
    Arc::new(Builder::new(Strategy::cagra()).metric(metric).device(Device::Cpu).build(base).unwrap())
}

fn searcher(index: &Arc<Index>, base: &Vectors) -> Searcher {
    Searcher::new(Arc::clone(index), base.clone(), &Progress::silent()).unwrap()
}

#[test]
fn distances_are_exact_and_nearly_all_neighbours_are_found() {
    let silent = Progress::silent();
    for element in [ElementType::F32, ElementType::F16] {
        let (base, queries) = data(element);
        for metric in [Metric::L2, Metric::Cosine, Metric::InnerProduct] {
            let index = index(&base, metric);
            // The distances of all rows.
            let truth = ground_truth(&base, &queries, metric, base.len(), &silent).unwrap();
            for vectors in COPIES {
                let searcher = searcher(&index, &base).device(Device::Emulated).unwrap();
                let searcher = searcher.vectors(vectors).unwrap();
                let found = searcher.search(&queries, Search::new(10), &silent).unwrap();
                let what = format!("{vectors} of {element}, {metric}");
                let mut hits = 0;
                for query in 0..queries.len() {
                    let exact = |id: u32| {
                        let place = truth.ids(query).iter().position(|&other| other == id).unwrap();
                        truth.distances(query).unwrap()[place]
                    };
                    let (ids, distances) = (found.ids(query), found.distances(query));
                    assert!(
                        ids.iter().zip(distances).all(|(&id, &d)| exact(id).to_bits() == d.to_bits()),
                        "{what}"
                    );
                    assert!(distances.is_sorted(), "{what}");
                    let farthest = truth.distances(query).unwrap()[9];
                    hits += distances.iter().filter(|&&distance| distance <= farthest).count();
                }
                assert!(hits >= 194, "{what}: {hits} of 200");
            }
        }
    }
}

#[test]
fn more_reranked_rows_find_more() {
    let silent = Progress::silent();
    let (base, queries) = data(ElementType::F32);
    let index = index(&base, Metric::L2);
    let searcher =
        searcher(&index, &base).vectors(SearchVectors::Int8).unwrap().device(Device::Emulated).unwrap();
    let found = |rows: usize| {
        let searcher = searcher.clone().rerank(rows);
        let found = searcher.search(&queries, Search::new(10).beam(64), &silent).unwrap();
        let sums = (0..queries.len()).flat_map(|query| found.distances(query).to_vec());
        sums.map(f64::from).sum::<f64>()
    };
    let sums = [1, 10, 16, 64, 1000].map(found);
    assert!(sums.is_sorted_by(|a, b| a >= b), "{sums:?}");
    // Fewer than k count as k, more than the beam as the beam.
    assert!(sums[0] == sums[1] && sums[3] == sums[4] && sums[1] > sums[3], "{sums:?}");
}

#[test]
fn filters_and_radii_hold() {
    let silent = Progress::silent();
    let (base, queries) = data(ElementType::F32);
    let index = index(&base, Metric::L2);
    let searcher = searcher(&index, &base).device(Device::Emulated).unwrap();
    let half = IdSet::from_ids(700, (0..700).filter(|id| id % 2 == 1)).unwrap();
    let plain = searcher.search(&queries, Search::new(10).beam(120).among(&half), &silent).unwrap();
    let radius = plain.distances(1)[4];
    let search = Search::new(10).beam(120).among(&half).radius(radius);
    for vectors in COPIES {
        let searcher = searcher.clone().vectors(vectors).unwrap();
        let found = searcher.search(&queries, search, &silent).unwrap();
        for query in 0..queries.len() {
            let near: Vec<_> = found.neighbors(query).collect();
            assert!(near.iter().all(|n| half.contains(n.id) && n.distance <= radius), "{vectors}");
            let one = searcher.search_one(&queries.row(query), search).unwrap();
            assert!(near == one, "{vectors}");
        }
        assert_eq!(found.neighbors(1).count(), 5, "{vectors}");
    }
}

#[test]
fn bytes_and_cpus_search_the_base_itself() {
    let silent = Progress::silent();
    let (floats, _) = data(ElementType::F32);
    let whole = Vectors::from_f32(floats.to_f32().iter().map(|x| x.round().clamp(0.0, 255.0)).collect(), 33);
    let whole = whole.unwrap();
    for (base, device) in [(&whole, Device::Emulated), (&floats, Device::Cpu)] {
        let index = index(base, Metric::L2);
        let searcher = searcher(&index, base).device(device).unwrap();
        let ids = |searcher: &Searcher| {
            let found = searcher.search(base, Search::new(5).beam(20), &silent).unwrap();
            (0..base.len()).map(|query| found.ids(query).to_vec()).collect::<Vec<_>>()
        };
        let expected = ids(&searcher);
        for vectors in COPIES {
            assert_eq!(ids(&searcher.clone().vectors(vectors).unwrap()), expected, "{vectors}");
        }
    }
}

#[test]
fn unknown_names_are_refused() {
    let error = "f8".parse::<SearchVectors>().unwrap_err().to_string();
    assert_eq!(error, "vectors: found f8, expected stored, f16 or int8");
}
