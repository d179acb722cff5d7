//! Exact search and beam search compared with plain references.

use std::sync::Arc;

use tagore::{
    Builder, Device, ElementType, Error, GroundTruth, Metric, Progress, Strategy, Synth, TestQueries,
    Vectors, evaluate, ground_truth,
};

use crate::reference::{nearest_distances, search, uniform};

#[test]
fn exact_search_is_exact() {
    for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
        for (rows, dim, queries, k) in [(1, 1, 1, 1), (97, 1, 3, 97), (1003, 97, 33, 13), (3000, 8, 65, 100)]
        {
            let (base, queries) = (uniform(rows, dim, 1), uniform(queries, dim, 2));
            let truth = ground_truth(&base, &queries, metric, k, &Progress::silent()).unwrap();
            for query in 0..queries.len() {
                let expected = nearest_distances(&base, &queries.row_to_f32(query).unwrap(), None, metric, k);
                for (found, expected) in truth.distances(query).unwrap().iter().zip(expected) {
                    approx::assert_relative_eq!(
                        f64::from(*found),
                        expected,
                        max_relative = 1e-4,
                        epsilon = 1e-3
                    );
                }
                let mut ids = truth.ids(query).to_vec();
                ids.sort_unstable();
                ids.dedup();
                assert_eq!(ids.len(), k);
            }
        }
    }
}

#[test]
fn zero_vectors_are_at_cosine_distance_one() {
    let base = Vectors::from_f32(vec![0.0, 0.0, 3.0, 4.0, 0.0, 0.0], 2).unwrap();
    let queries = Vectors::from_f32(vec![0.0, 0.0, 6.0, 8.0], 2).unwrap();
    let truth = ground_truth(&base, &queries, Metric::Cosine, 3, &Progress::silent()).unwrap();
    assert_eq!((truth.ids(0), truth.distances(0).unwrap()), (&[0, 1, 2][..], &[1.0; 3][..]));
    assert_eq!((truth.ids(1), truth.distances(1).unwrap()), (&[1, 0, 2][..], &[0.0, 1.0, 1.0][..]));
}

#[test]
fn a_beam_as_wide_as_the_data_finds_everything_reachable() {
    let (base, queries) = (uniform(300, 5, 1), uniform(40, 5, 2));
    let index = Builder::new(Strategy::nsg()).knn(20).build(&base).unwrap();
    let truth = ground_truth(&base, &queries, Metric::L2, 10, &Progress::silent()).unwrap();
    let result = search(index, &base, &queries, 10, 300).unwrap();
    for query in 0..40 {
        assert_eq!(result.ids(query), truth.ids(query));
        assert_eq!(Some(result.distances(query)), truth.distances(query));
    }
    assert_eq!(result.computed(), 40 * 300, "one distance per node");
}

#[test]
fn recall_allows_ties_and_counts_distances() {
    // Every point twice, so either of two equal rows may be found.
    let base = Vectors::from_u8((0..200u8).map(|i| i / 2).collect(), 1).unwrap();
    let index = Builder::new(Strategy::vamana()).knn(20).build(&base).unwrap();
    let queries = Vectors::from_u8((0..100).collect(), 1).unwrap();
    let swapped: Vec<u32> = (0..100).map(|i| 2 * i + 1).collect();
    let truth = GroundTruth::new(1, swapped, None).unwrap();
    let found =
        evaluate(&index, &base, TestQueries::new(&queries, &truth, 1), &[40], &Progress::silent()).unwrap();
    assert_eq!(found[0].recall, 1.0);
    let computed = search(index, &base, &queries, 1, 40).unwrap().computed();
    assert_eq!(found[0].distances, computed as f64 / queries.len() as f64);
    assert!(found[0].distances >= 2.0 && found[0].qps > 0.0);
}

#[test]
fn queries_of_another_type_are_converted_if_possible() {
    let base = Vectors::from_u8((0..60u8).collect(), 3).unwrap();
    assert_eq!(base.element_type(), ElementType::U8);
    let index = Arc::new(Builder::new(Strategy::nsg()).device(Device::Cpu).build(&base).unwrap());
    let whole = Vectors::from_f32(vec![3.0, 4.0, 5.0], 3).unwrap();
    let result = search(Arc::clone(&index), &base, &whole, 1, 10).unwrap();
    assert_eq!((result.ids(0), result.distances(0)), (&[1][..], &[0.0][..]));
    let fraction = Vectors::from_f32(vec![3.0, 4.5, 5.0], 3).unwrap();
    let error = search(index, &base, &fraction, 1, 10).unwrap_err().to_string();
    assert!(error.contains("4.5") && error.contains("u8"), "{error}");
}

#[test]
fn mismatched_inputs_are_errors() {
    let base = uniform(100, 4, 1);
    let index = Arc::new(Builder::new(Strategy::nsg()).build(&base).unwrap());
    let search = |base: &_, queries: &_, k, beam| search(Arc::clone(&index), base, queries, k, beam);
    let silent = Progress::silent();
    let wrong_dim = search(&base, &uniform(3, 5, 1), 10, 20).unwrap_err();
    assert!(matches!(&wrong_dim, Error::Mismatch { found, .. } if found == "dimension 5"), "{wrong_dim}");
    let other = uniform(100, 4, 2);
    assert!(matches!(search(&other, &base, 10, 20), Err(Error::Mismatch { .. })));
    for (k, beam, what) in [(0, 10, "k"), (101, 200, "k"), (10, 9, "beam")] {
        match search(&base, &base, k, beam).unwrap_err() {
            Error::Argument { parameter: found, .. } => assert_eq!(found, what),
            other => panic!("{other}"),
        }
    }
    let truth = ground_truth(&base, &uniform(5, 4, 3), Metric::L2, 10, &silent).unwrap();
    let error =
        evaluate(&index, &base, TestQueries::new(&uniform(6, 4, 3), &truth, 10), &[20], &silent).unwrap_err();
    assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    let error =
        evaluate(&index, &base, TestQueries::new(&uniform(5, 4, 3), &truth, 11), &[20], &silent).unwrap_err();
    assert!(matches!(error, Error::Argument { parameter: "k", .. }), "{error}");
    let foreign = GroundTruth::new(1, vec![0, 1, 2, 3, 100], None).unwrap();
    let error = evaluate(&index, &base, TestQueries::new(&uniform(5, 4, 3), &foreign, 1), &[20], &silent)
        .unwrap_err();
    assert!(error.to_string().contains("id 100"), "{error}");
}

#[test]
fn an_empty_set_of_queries_is_allowed() {
    let synth = Synth::new(100, 4, 1).unwrap();
    let base = synth.base();
    let index = Builder::new(Strategy::cagra()).build(&base).unwrap();
    let result = search(index, &base, &synth.queries(0), 10, 20).unwrap();
    assert!(result.is_empty() && result.computed() == 0);
}
