//! Searches on codes of edges: what they find, and what they refuse.

use tagore::{
    Builder, Device, IdSet, Metric, Progress, Search, SearchCodes, Searcher, Strategy, Synth, Vectors,
    ground_truth,
};

use crate::compressed::searcher;
use crate::dirty_codes::{Searched, recall_by_distance, searched};
use crate::reference::uniform;

fn silent() -> Progress {
    Progress::silent()
}

#[test]
fn searches_on_edges_of_dirty_data_find_nearly_what_searches_on_vectors_find() {
    for Searched { name, queries, truth, full } in searched() {
        let (name, metric) = (*name, full.index().metric());
        let on_edges = match full.clone().compressed(SearchCodes::Edges) {
            Ok(on_edges) => on_edges,
            // Beside outliers the other rows are a dense spot.
            Err(error) if name != "clean" => {
                assert!(error.to_string().contains("dense spots"), "{name}, {metric}: {error}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        let recall = |searcher: &Searcher| {
            let found = searcher.search(queries, Search::new(10).beam(150), &silent()).unwrap();
            recall_by_distance(truth, &found)
        };
        let (expected, reached) = (recall(full), recall(&on_edges));
        assert!(reached > expected - 0.02, "{name}, {metric}: {reached} of {expected}");
    }
}

#[test]
fn a_search_on_edges_computes_few_distances() {
    let synth = Synth::new(4000, 256, 1).unwrap();
    let (base, queries) = (synth.base(), synth.queries(40));
    let full = searcher(base.clone(), Metric::L2);
    let on_edges = full.clone().compressed(SearchCodes::Edges).unwrap();
    let truth = ground_truth(&base, &queries, Metric::L2, 10, &silent()).unwrap();
    let [full, on_edges] = [full, on_edges].map(|searcher| {
        let found = searcher.search(&queries, Search::new(10).beam(64), &silent()).unwrap();
        (recall_by_distance(&truth, &found), found.computed())
    });
    assert!(on_edges.0 > full.0 - 0.02 && on_edges.1 < full.1 / 3, "{on_edges:?}, {full:?}");
}

#[test]
fn filters_radii_and_equal_rows_hold_on_edges() {
    let (plain, queries) = (uniform(1500, 24, 1), uniform(20, 24, 2));
    // Each row twice.
    let base = plain.to_f32().unwrap().chunks(24).flat_map(|row| [row, row].concat()).collect();
    let base = Vectors::from_f32(base, 24).unwrap();
    let full = searcher(base.clone(), Metric::L2);
    let on_edges = full.clone().compressed(SearchCodes::Edges).unwrap();
    let third = IdSet::from_ids(base.len(), (0..base.len() as u32).filter(|id| id % 3 == 0)).unwrap();
    let beam = Search::new(10).beam(200);
    for search in [beam.among(&third), beam.accept(&|id| id % 2 == 1)] {
        let [expected, found] = [&full, &on_edges].map(|s| s.search(&queries, search, &silent()).unwrap());
        assert!((0..queries.len()).all(|query| found.ids(query) == expected.ids(query)));
    }
    let truth = ground_truth(&base, &queries, Metric::L2, 10, &silent()).unwrap();
    let found = on_edges.search(&queries, beam, &silent()).unwrap();
    assert!(recall_by_distance(&truth, &found) > 0.97);
    for query in 0..queries.len() {
        let radius = truth.distances(query).unwrap()[4];
        let near = on_edges.search_one(&queries.row_to_f32(query).unwrap(), beam.radius(radius)).unwrap();
        assert!(near.len() >= 4 && near.iter().all(|row| row.distance <= radius), "{near:?}");
    }
}

#[test]
fn an_index_with_dense_spots_is_refused() {
    // A tenth of the rows, a thousandth as far apart as the others.
    let rows = uniform(2000, 16, 3).to_f32().unwrap();
    let shrunk = |(place, x): (usize, f32)| if place / 16 % 10 == 0 { x * 1e-3 } else { x };
    let base = Vectors::from_f32(rows.into_iter().enumerate().map(shrunk).collect(), 16).unwrap();
    let index = Builder::new(Strategy::cagra().degree(16)).knn(32).device(Device::Cpu).build(&base).unwrap();
    let searcher = Searcher::new(index, base, &silent()).unwrap();
    let error = searcher.compressed(SearchCodes::Edges).unwrap_err().to_string();
    let found = "edges for an index with dense spots, whose rows differ too little for it";
    assert_eq!(error, format!("vectors: found {found}, expected full"));
    let error = SearchCodes::named("int4").unwrap_err().to_string();
    assert_eq!(error, "vectors: found int4, expected full, f16, int8 or edges");
}
