//! Rows far from all others: searches find them, and any build attaches them in the same way.

use std::fs;
use std::time::Duration;

use tagore::outofcore::OutOfCore;
use tagore::{Builder, Device, Error, Index, Progress, Strategy, Vectors};

use super::{build, plan, stops_when};
use crate::reference::{check_graph, search, uniform};

const ROWS: usize = 3000;

/// Every how many rows one is far from all others, or repeats the row before.
const LONE: usize = 50;
const COPY: usize = 40;

fn is_lone(row: usize) -> bool {
    row % LONE == 7
}

/// Uniform rows, some of them far away and some repeated.
pub(super) fn with_lone_rows() -> Vectors {
    let all = uniform(ROWS, 16, 5);
    let row = |row: usize| if row % COPY == 3 { row - 1 } else { row };
    let scale = |row: usize| if is_lone(row) { 100.0 } else { 1.0 };
    let values = (0..ROWS)
        .flat_map(|i| all.row_to_f32(row(i)).unwrap().iter().map(|x| scale(row(i)) * x).collect::<Vec<_>>());
    Vectors::from_f32(values.collect(), 16).unwrap()
}

#[test]
fn searches_find_rows_far_from_all_others() {
    let base = with_lone_rows();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    for strategy in [Strategy::cagra(), Strategy::nsg(), Strategy::dpg()] {
        let builder = Builder::new(strategy).knn(32).device(Device::Cpu);
        let stats = build(&builder, &base, plan(&builder, &base, 600), &path);
        let index = Index::open(&path).unwrap();
        let what = builder.strategy().kind();
        index.verify(&Progress::silent()).unwrap();
        check_graph(&index, what);
        assert!(stats.unreachable == 0 && index.repeated().len() == ROWS / COPY, "{what}");
        for (row, first) in index.repeated().pairs() {
            assert_eq!(index.neighbors(row as usize), index.neighbors(first as usize), "{what}");
        }
        let found = search(index, &base, &base, 1, 100).unwrap();
        let missed = (0..ROWS).filter(|&row| is_lone(row) && found.ids(row)[0] as usize != row);
        assert_eq!(missed.collect::<Vec<usize>>(), Vec::<usize>::new(), "{what}");
    }
}

#[test]
fn every_build_attaches_the_same_nodes() {
    let base = with_lone_rows();
    let builder = Builder::new(Strategy::cagra()).knn(32).device(Device::Cpu);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("index");
    let plan = plan(&builder, &base, 600);
    let clusters = build(&builder, &base, plan, &path).clusters as u64;
    let expected = fs::read(&path).unwrap();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let build = OutOfCore::new(builder.clone(), plan).in_memory(true);
    pool.install(|| build.build(&base, &path)).unwrap();
    assert!(fs::read(&path).unwrap() == expected, "in memory, on one thread");
    fs::remove_file(&path).unwrap();
    // After all clusters: the resumed build makes none again.
    for clusters in [4, clusters] {
        let stopped = stops_when(move |update| (update.stage, update.done) == ("build", clusters));
        let stopped = OutOfCore::new(builder.clone().progress(stopped), plan).checkpoint(Duration::ZERO);
        assert!(matches!(stopped.build(&base, &path), Err(Error::Cancelled)), "{clusters}");
        OutOfCore::new(builder.clone(), plan).resume(true).build(&base, &path).unwrap();
        assert!(fs::read(&path).unwrap() == expected, "resumed after {clusters}");
        fs::remove_file(&path).unwrap();
    }
}
