//! Builds that leave out rows, such as deleted ones.

use std::sync::Arc;

use tagore::outofcore::{ClusterPlan, Limits, OutOfCore};
use tagore::{
    Builder, Device, IdSet, Index, IndexFormat, Measure, Metric, Progress, Report, Search, Searcher,
    Strategy, Vectors,
};

use crate::reference::uniform;

const N: usize = 600;

/// The rows that stay: two of three.
fn kept() -> IdSet {
    kept_of(N)
}

/// The rows that stay of `n`.
fn kept_of(n: usize) -> IdSet {
    IdSet::from_ids(n, (0..n as u32).filter(|row| row % 3 > 0)).unwrap()
}

/// 600 rows, of which 100 that stay repeat an earlier one.
fn base() -> Vectors {
    base_of(N)
}

/// `n` rows. A sixth of them repeat an earlier row, and all of these stay.
fn base_of(n: usize) -> Vectors {
    let all = uniform(n, 9, 4);
    let from = |row: usize| if row % 6 == 4 { row - 3 } else { row };
    Vectors::from_f32((0..n).flat_map(|row| all.row_to_f32(from(row)).unwrap().into_owned()).collect(), 9)
        .unwrap()
}

fn part(base: &Vectors, rows: &[u32]) -> Vectors {
    Vectors::from_f32(
        rows.iter().flat_map(|&row| base.row_to_f32(row as usize).unwrap().into_owned()).collect(),
        9,
    )
    .unwrap()
}

/// Checks that a build over the rows of `base` that stay is that of these rows alone.
fn check_kept(base: &Vectors, strategy: Strategy, device: Device) {
    let kept = || kept_of(base.len());
    let rows: Vec<u32> = kept().iter().collect();
    let builder = Builder::new(strategy.degree(12)).knn(24).device(device);
    let index = builder.clone().among(kept()).build(base).unwrap();
    let alone = builder.build(&part(base, &rows)).unwrap();
    let named = |ids: &[u32]| ids.iter().map(|&id| rows[id as usize]).collect::<Vec<u32>>();
    assert_eq!(index.len(), base.len());
    assert_eq!(index.entries(), named(alone.entries()));
    for row in 0..base.len() as u32 {
        let expected = rows.binary_search(&row).map_or(Vec::new(), |at| named(alone.neighbors(at)));
        assert_eq!(index.neighbors(row as usize), expected, "{}, row {row}", index.kind());
    }
    let repeated = alone.repeated().pairs().map(|(a, b)| (rows[a as usize], rows[b as usize]));
    assert!(index.repeated().pairs().eq(repeated));
    assert_eq!(index.left_out(), Some(&kept().complement()));
    index.verify(&Progress::silent()).unwrap();
    let unreachable = |index: &Index| index.statistics(&Progress::silent()).unwrap().unreachable;
    assert_eq!(unreachable(&index), unreachable(&alone));
}

#[test]
fn the_index_is_that_of_the_rows_that_stay_with_the_ids_of_the_base() {
    for base in [base(), uniform(N, 9, 5)] {
        Strategy::all().into_iter().for_each(|strategy| check_kept(&base, strategy, Device::Cpu));
    }
    // The emulator is slow.
    for base in [base_of(120), uniform(120, 9, 5)] {
        check_kept(&base, Strategy::nsg(), Device::Emulated);
    }
}

#[test]
fn no_search_returns_a_row_left_out() {
    let (base, stay) = (base(), kept());
    let (queries, few_queries) = (uniform(8, 9, 6), uniform(2, 9, 6));
    let builder = Builder::new(Strategy::vamana()).device(Device::Cpu).among(stay.clone());
    let index = builder.build(&base).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("part.tagore");
    index.save(&path).unwrap();
    let few = IdSet::from_ids(N, 0..20).unwrap();
    let even = |id: u32| id.is_multiple_of(2);
    let searches =
        [Search::new(10), Search::new(500), Search::new(10).among(&few), Search::new(10).accept(&even)];
    for index in [index, Index::open(&path).unwrap()].map(Arc::new) {
        assert_eq!(index.left_out(), Some(&stay.complement()));
        index.verify(&Progress::silent()).unwrap();
        for device in [Device::Cpu, Device::Emulated] {
            let searcher = Searcher::new(index.clone(), base.clone(), &Progress::silent())
                .unwrap()
                .device(device)
                .unwrap();
            // The emulator is slow.
            let queries = if device == Device::Cpu { &queries } else { &few_queries };
            for search in searches {
                let found = searcher.search(queries, search, &Progress::silent()).unwrap();
                for query in 0..queries.len() {
                    let one = searcher.search_one(&queries.row_to_f32(query).unwrap(), search).unwrap();
                    let ids: Vec<u32> = found.neighbors(query).map(|neighbor| neighbor.id).collect();
                    assert!(ids.iter().eq(one.iter().map(|neighbor| &neighbor.id)), "{search:?}");
                    assert!(!ids.is_empty() && ids.iter().all(|&id| stay.contains(id)), "{search:?}");
                    // All rows that stay, and nothing else.
                    assert!(found.k() < 500 || ids.len() == stay.len(), "{search:?}");
                }
            }
        }
    }
}

#[test]
fn a_report_judges_the_rows_that_stay() {
    let base = base();
    let builder = Builder::new(Strategy::nsg()).device(Device::Cpu).among(kept());
    let (index, stats) = builder.build_with_stats(&base, None).unwrap();
    let measure = Measure { nodes: 100, ..Measure::default() }.on(Device::Cpu);
    let report = Report::measure(&index, Some(&base), &stats.sample, &measure).unwrap();
    let recall = report.search.as_ref().unwrap().recall;
    assert!(recall > 0.99 && report.unreachable == 0, "{recall}, {}", report.unreachable);
}

#[test]
fn files_of_other_systems_hold_rows_left_out_without_edges() {
    let base = base();
    let index = Builder::new(Strategy::nsg()).device(Device::Cpu).among(kept()).build(&base).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for format in [IndexFormat::Nsg, IndexFormat::Hnswlib, IndexFormat::Diskann] {
        let path = folder.path().join(format.to_string());
        index.export(format).base(&base).save(&path).unwrap();
        let read = Index::import(&path, format, &base, Metric::L2, &Progress::silent()).unwrap();
        assert!((0..N).step_by(3).all(|row| read.neighbors(row).is_empty()), "{format}");
        let leads_out = |row: usize| read.neighbors(row).iter().any(|&id| !kept().contains(id));
        assert!(!(0..N).any(leads_out), "{format}");
    }
    let error = index.export(IndexFormat::Npy).save(folder.path().join("x.npy")).unwrap_err().to_string();
    assert!(error.contains("neighbours of node 0"), "{error}");
}

#[test]
fn wrong_sets_are_refused() {
    let base = base();
    let builder = Builder::new(Strategy::cagra()).device(Device::Cpu);
    let error = |set: IdSet| builder.clone().among(set).build(&base).unwrap_err().to_string();
    assert_eq!(error(IdSet::new(N)), "rows: found an empty set, expected at least one row to build over");
    assert_eq!(error(IdSet::all(5)), "rows: found a set of 5 rows, expected 600 as in vectors");
    let graph = builder.knn_graph(&base).unwrap();
    let part = builder.clone().among(kept());
    let given = part.build_from(&base, &graph).unwrap_err().to_string();
    assert_eq!(given, "k-NN graph: found one of all rows, expected none if rows are left out");
    let folder = tempfile::tempdir().unwrap();
    let limits = Limits { cluster_size: Some(200), ..Limits::default() };
    let plan = ClusterPlan::within(&part, &base, &limits).unwrap().unwrap();
    let error = OutOfCore::new(part, plan).build(&base, &folder.path().join("x.tagore")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "rows: found 400 of 600, expected all: out of core no rows can be left out"
    );
    // A set of all rows changes nothing.
    let all = builder.clone().among(IdSet::all(N)).build(&base).unwrap();
    assert_eq!(all.left_out(), None);
    assert_eq!(all.padded_rows().unwrap(), builder.build(&base).unwrap().padded_rows().unwrap());
    // One row is enough.
    let one = builder.among(IdSet::from_ids(N, [17]).unwrap()).build(&base).unwrap();
    let found = Searcher::new(one, base.clone(), &Progress::silent())
        .unwrap()
        .search_one(&base.row_to_f32(0).unwrap(), Search::new(3))
        .unwrap();
    assert_eq!(found.iter().map(|neighbor| neighbor.id).collect::<Vec<_>>(), [17]);
}
